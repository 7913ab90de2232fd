//! The table of objects: bodies in a slab, an index by key, and what a body is.

use std::num::NonZeroU32;

use hashbrown::HashTable;

use super::{
    ClientId, Incarnation, Object, Replicas, hash::KeyHasher, recency::Recency, tenants::TenantId,
};
use crate::{
    Time,
    list::{Linked, Links, List},
    slab::{Ref, Slab},
};

/// All that is known of one incarnation of an object.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) key: Box<[u8]>,
    pub(crate) incarnation: Incarnation,
    pub(crate) length: u64,
    /// Memory replicas refer to slots of the segment table.
    pub(crate) replicas: Replicas,
    pub(crate) phase: Phase,
    /// In the list of puts under way, or in that of complete objects by recency.
    pub(crate) links: Links,
    pub(crate) tenant: TenantId,
    pub(crate) leases: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Readable. `used` is its place in the order of uses: no two are equal.
    Complete { used: Time },
    /// Not found any more; its memory waits for leases, and for the put's writer if there is one.
    Gone { put: Option<PutSlot> },
    /// A put under way.
    Writing { put: PutSlot },
}

/// Stands in `Objects::puts`: few objects are being written, so that all others do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PutSlot(NonZeroU32);

/// A writer's permission, until it ends its put or nothing of it can land any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    pub(crate) writer: ClientId,
    /// From here on another writer may take the key over.
    pub(crate) deadline: Time,
}

impl Body {
    /// Its memory replicas, as (slot of the segment, offset).
    pub(crate) fn extents(&self) -> impl Iterator<Item = (u32, u64)> {
        super::segments::extents(&self.replicas)
    }
}

impl Linked for Body {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Holds the hash beside the slot: neither growing the index nor passing by a neighbour on the way
/// to a key goes to the bodies, of which each is a cache miss.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    slot: u32,
}

impl Entry {
    /// What the index sees of a hash: all 64 bits, from the half that entries keep.
    fn spread(hash: u32) -> u64 {
        u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) bodies: Slab<Body>,
    /// All bodies that are not gone.
    index: HashTable<Entry>,
    hasher: KeyHasher,
    /// Complete ones, the latest used in front.
    pub(crate) recency: Recency,
    /// Puts under way, the latest started in front.
    pub(crate) writing: List,
    /// How many these are.
    pub(crate) in_progress: u64,
    puts: Slab<Put>,
}

impl Objects {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            bodies: Slab::new(),
            index: HashTable::new(),
            hasher: KeyHasher::new(seed),
            recency: Recency::new(),
            writing: List::EMPTY,
            in_progress: 0,
            puts: Slab::new(),
        }
    }

    /// Complete objects.
    pub(crate) fn complete(&self) -> u64 {
        self.index.len() as u64 - self.in_progress
    }

    /// The one body that the key stands for now.
    pub(crate) fn find(&self, tenant: TenantId, key: &[u8]) -> Option<u32> {
        let hash = self.hash(tenant, key);
        let same = |entry: &Entry| {
            entry.hash == hash && {
                let body = &self.bodies[entry.slot];
                body.tenant == tenant && *body.key == *key
            }
        };
        let entry = self.index.find(Entry::spread(hash), same)?;
        Some(entry.slot)
    }

    fn hash(&self, tenant: TenantId, key: &[u8]) -> u32 {
        self.hasher.hash(tenant, key) as u32
    }

    /// The body that the key stands for, if it can be read.
    pub(crate) fn readable(&self, tenant: TenantId, key: &[u8]) -> Option<u32> {
        self.find(tenant, key)
            .filter(|&slot| matches!(self.bodies[slot].phase, Phase::Complete { .. }))
    }

    /// Takes in a put that begins. Its key must be free.
    pub(crate) fn start(&mut self, body: Body) -> Ref {
        let hash = self.hash(body.tenant, &body.key);
        let at = self.bodies.insert(body);
        let entry = Entry {
            hash,
            slot: at.slot,
        };
        self.index
            .insert_unique(Entry::spread(hash), entry, |entry| {
                Entry::spread(entry.hash)
            });
        self.writing.push_front(&mut self.bodies, at.slot);
        self.in_progress += 1;
        at
    }

    pub(crate) fn open_put(&mut self, put: Put) -> PutSlot {
        let at = self.puts.insert(put);
        PutSlot(NonZeroU32::MIN.saturating_add(at.slot))
    }

    pub(crate) fn put(&self, PutSlot(at): PutSlot) -> Put {
        self.puts[at.get() - 1]
    }

    pub(crate) fn close_put(&mut self, PutSlot(at): PutSlot) {
        self.puts.remove(at.get() - 1);
    }

    /// Puts under way, and cancelled ones that may not be quiet.
    #[cfg(test)]
    pub(crate) fn open_puts(&self) -> usize {
        self.puts.len()
    }

    /// A put has ended well.
    pub(crate) fn complete_put(&mut self, slot: u32, used: Time) {
        self.writing.remove(&mut self.bodies, slot);
        self.in_progress -= 1;
        let was = std::mem::replace(&mut self.bodies[slot].phase, Phase::Complete { used });
        if let Phase::Writing { put } = was {
            self.close_put(put);
        }
        self.recency.push_front(&mut self.bodies, slot);
    }

    /// From now on the key stands for nothing. The body stays, in no list.
    pub(crate) fn forget(&mut self, slot: u32) {
        let body = &self.bodies[slot];
        match body.phase {
            Phase::Complete { .. } => self.recency.remove(&mut self.bodies, slot),
            Phase::Gone { .. } => unreachable!("a body goes once"),
            Phase::Writing { .. } => {
                self.writing.remove(&mut self.bodies, slot);
                self.in_progress -= 1;
            }
        }
        let body = &self.bodies[slot];
        let hash = self.hash(body.tenant, &body.key);
        self.index
            .find_entry(Entry::spread(hash), |entry| entry.slot == slot)
            .expect("a body that is not gone is in the index")
            .remove();
        if self.index.capacity() > 4096 && self.index.len() < self.index.capacity() / 8 {
            let room = self.index.len() * 2;
            self.index
                .shrink_to(room, |entry| Entry::spread(entry.hash));
        }
    }

    /// As answers show it; `segment` gives a segment's place in the answer's table.
    pub(crate) fn view(&self, slot: u32, segment: impl FnMut(u32) -> u32) -> Object {
        let body = &self.bodies[slot];
        Object {
            incarnation: body.incarnation,
            length: body.length,
            replicas: super::segments::translated(&body.replicas, segment),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_stays_small() {
        assert!(size_of::<Body>() <= 96, "{} bytes", size_of::<Body>());
        assert!(size_of::<super::super::Replica>() <= 16);
    }
}
