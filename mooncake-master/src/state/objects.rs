//! The table of objects: bodies in a slab, an index by key, and what a body is.

use std::num::NonZeroU32;

use hashbrown::HashTable;
use rustc_hash::FxHashMap;

use super::{
    ClientId, Incarnation, Object, Replicas,
    hash::KeyHasher,
    recency::{Recency, Use},
    reservations::{Reservations, Stamp},
    tenants::TenantId,
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
    pub(crate) reservation: Stamp,
    pub(crate) leases: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Readable. `used` is its place in the order of uses: no two are equal.
    Complete { used: Use },
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
    /// Sequence number of the first key that was started with it.
    pub(crate) first: u64,
}

impl Body {
    /// Its memory replicas, as (slot of the segment, offset).
    pub(crate) fn extents(&self) -> impl Iterator<Item = (u32, u64)> {
        super::segments::extents(&self.replicas)
    }

    /// Of a put under way.
    pub(crate) fn put(&self) -> Option<PutSlot> {
        match self.phase {
            Phase::Writing { put } => Some(put),
            Phase::Complete { .. } | Phase::Gone { .. } => None,
        }
    }

    /// It stays for now, however long it has not been used.
    pub(crate) fn is_kept(&self) -> bool {
        self.leases > 0 || self.reservation.is_reserved()
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
    /// All bodies that are not gone, but those in `beside`.
    index: HashTable<Entry>,
    /// Puts under way that will replace a complete body when they end, by its slot.
    beside: FxHashMap<u32, u32>,
    /// Which objects of a tenant are as good as gone, while they are being taken out.
    pub(crate) doomed: FxHashMap<TenantId, Doomed>,
    hasher: KeyHasher,
    /// Complete ones, the latest used in front.
    pub(crate) recency: Recency,
    /// Puts under way, the latest started in front.
    pub(crate) writing: List,
    /// How many these are.
    pub(crate) in_progress: u64,
    puts: Slab<Put>,
    pub(crate) reservations: Reservations,
}

/// What a tenant removed all at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doomed {
    /// This incarnation and all before it.
    pub(crate) last: Incarnation,
    /// How many of these were complete and are gone by now.
    pub(crate) gone: u64,
}

impl Objects {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            bodies: Slab::new(),
            index: HashTable::new(),
            beside: FxHashMap::default(),
            doomed: FxHashMap::default(),
            hasher: KeyHasher::new(seed),
            recency: Recency::new(),
            writing: List::EMPTY,
            in_progress: 0,
            puts: Slab::new(),
            reservations: Reservations::default(),
        }
    }

    /// Complete objects.
    pub(crate) fn complete(&self) -> u64 {
        (self.index.len() + self.beside.len()) as u64 - self.in_progress
    }

    /// The one body that the key stands for now.
    pub(crate) fn find(&self, tenant: TenantId, key: &[u8]) -> Option<u32> {
        let hash = self.hash(tenant, key);
        let same = |entry: &Entry| {
            entry.hash == hash && {
                let body = &self.bodies[entry.slot];
                body.tenant == tenant && *body.key == *key && !self.is_doomed(body)
            }
        };
        let entry = self.index.find(Entry::spread(hash), same)?;
        Some(entry.slot)
    }

    /// A body that the key stood for until all of the tenant was removed.
    pub(crate) fn find_doomed(&self, tenant: TenantId, key: &[u8]) -> Option<u32> {
        let hash = self.hash(tenant, key);
        let same = |entry: &Entry| {
            entry.hash == hash && {
                let body = &self.bodies[entry.slot];
                body.tenant == tenant && *body.key == *key && self.is_doomed(body)
            }
        };
        let entry = self.index.find(Entry::spread(hash), same)?;
        Some(entry.slot)
    }

    /// The put under way that will replace this complete body.
    pub(crate) fn successor(&self, slot: u32) -> Option<u32> {
        if self.beside.is_empty() {
            return None;
        }
        self.beside.get(&slot).copied()
    }

    pub(crate) fn is_doomed(&self, body: &Body) -> bool {
        !self.doomed.is_empty()
            && self
                .doomed
                .get(&body.tenant)
                .is_some_and(|doomed| body.incarnation <= doomed.last)
    }

    fn hash(&self, tenant: TenantId, key: &[u8]) -> u32 {
        self.hash_of(tenant, key) as u32
    }

    pub(crate) fn hash_of(&self, tenant: TenantId, key: &[u8]) -> u64 {
        self.hasher.hash(tenant, key)
    }

    /// The body that the key stands for, if it can be read.
    pub(crate) fn readable(&self, tenant: TenantId, key: &[u8]) -> Option<u32> {
        self.find(tenant, key)
            .filter(|&slot| matches!(self.bodies[slot].phase, Phase::Complete { .. }))
    }

    /// Takes in a put that begins. Its key must be free, but for the complete body that it will
    /// replace.
    pub(crate) fn start(&mut self, body: Body, replaces: Option<u32>) -> Ref {
        let hash = self.hash(body.tenant, &body.key);
        let at = self.bodies.insert(body);
        let slot = at.slot;
        if let Some(replaced) = replaces {
            self.beside.insert(replaced, slot);
        } else {
            let respread = |entry: &Entry| Entry::spread(entry.hash);
            self.index
                .insert_unique(Entry::spread(hash), Entry { hash, slot }, respread);
        }
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

    /// A put has ended well. What it replaces must have been forgotten.
    pub(crate) fn complete_put(&mut self, slot: u32, used: Use) {
        let Phase::Writing { put } = self.bodies[slot].phase else {
            unreachable!("only a put under way ends");
        };
        self.writing.remove(&mut self.bodies, slot);
        self.in_progress -= 1;
        let first = self.put(put).first;
        self.close_put(put);
        self.recency.join(&mut self.bodies, slot, first, used);
    }

    /// From now on the key does not stand for this body, but for its successor if it has one. The
    /// body stays, in no list.
    pub(crate) fn forget(&mut self, slot: u32) {
        let body = &self.bodies[slot];
        match body.phase {
            Phase::Complete { .. } => {
                if self.is_doomed(body)
                    && let Some(doomed) = self.doomed.get_mut(&body.tenant)
                {
                    doomed.gone += 1;
                }
                self.recency.remove(&mut self.bodies, slot);
                self.reservations.forget(&mut self.bodies[slot]);
            }
            Phase::Gone { .. } => unreachable!("a body goes once"),
            Phase::Writing { .. } => {
                self.writing.remove(&mut self.bodies, slot);
                self.in_progress -= 1;
            }
        }
        let body = &self.bodies[slot];
        let hash = self.hash(body.tenant, &body.key);
        let entry = self
            .index
            .find_entry(Entry::spread(hash), |entry| entry.slot == slot);
        match (entry, self.beside.remove(&slot)) {
            (Ok(mut entry), Some(successor)) => entry.get_mut().slot = successor,
            (Ok(entry), None) => {
                entry.remove();
            }
            (Err(_), _) => {
                // It was to be a successor itself; few are.
                self.beside.retain(|_, successor| *successor != slot);
            }
        }
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
