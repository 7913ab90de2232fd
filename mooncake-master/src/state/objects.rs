//! The table of objects: their bodies, found by key, and the lists that these are in.

use std::{num::NonZeroU32, ops::Range};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    ClientId, Incarnation, Object, Replica,
    bodies::{Bodies, Phase},
    hash::KeyHasher,
    index::Index,
    recency::{Recency, Use},
    reservations::Reservations,
    tenants::TenantId,
};
use crate::{Time, list::List, slab::Slab};

/// Keys that are looked for side by side.
pub(super) const TOGETHER: usize = 32;

/// A key that is looked for, with its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought<'a> {
    /// `None`: nothing was ever put under the tenant's name.
    pub(crate) tenant: Option<TenantId>,
    pub(crate) key: &'a [u8],
    hash: u32,
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

impl PutSlot {
    pub(crate) fn to_bits(self) -> u32 {
        self.0.get()
    }

    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(NonZeroU32::new(bits).expect("it was not zero before"))
    }
}

#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) bodies: Bodies,
    /// All bodies that are not gone, but those in `beside`.
    index: Index,
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
    /// What puts will bring to storages: the storages and the length, by put.
    charges: FxHashMap<u32, (SmallVec<[u32; 2]>, u64)>,
    /// All of these together, by storage.
    pub(crate) placed: FxHashMap<u32, u64>,
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
    pub(crate) fn new(epoch: u64, seed: u64) -> Self {
        Self {
            bodies: Bodies::new(epoch),
            index: Index::new(),
            beside: FxHashMap::default(),
            doomed: FxHashMap::default(),
            hasher: KeyHasher::new(seed),
            recency: Recency::new(),
            writing: List::EMPTY,
            in_progress: 0,
            puts: Slab::new(),
            charges: FxHashMap::default(),
            placed: FxHashMap::default(),
            reservations: Reservations::new(),
        }
    }

    /// Complete objects.
    pub(crate) fn complete(&self) -> u64 {
        self.index.len() + self.beside.len() as u64 - self.in_progress
    }

    pub(crate) fn sought<'a>(&self, tenant: Option<TenantId>, key: &'a [u8]) -> Sought<'a> {
        let hash = tenant.map_or(0, |tenant| self.hash(tenant, key));
        Sought { tenant, key, hash }
    }

    /// The one body that the key stands for now.
    pub(crate) fn find(&self, sought: Sought<'_>) -> Option<u32> {
        let tenant = sought.tenant?;
        self.index.find(sought.hash, |slot| {
            self.bodies.is_of(slot, tenant, sought.key) && !self.is_doomed(slot)
        })
    }

    /// A body that the key stood for until all of the tenant was removed.
    pub(crate) fn find_doomed(&self, sought: Sought<'_>) -> Option<u32> {
        let tenant = sought.tenant?;
        self.index.find(sought.hash, |slot| {
            self.bodies.is_of(slot, tenant, sought.key) && self.is_doomed(slot)
        })
    }

    /// Brings to the caches what looking for the first [`TOGETHER`] of these keys will need: first of
    /// all the lines of the index, then all bodies, then all keys, so that the misses of each kind
    /// overlap.
    pub(crate) fn bring<'a>(
        &self,
        tenant: Option<TenantId>,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> SmallVec<[Sought<'a>; TOGETHER]> {
        let keys = keys.take(TOGETHER);
        let all: SmallVec<[Sought<'a>; TOGETHER]> =
            keys.map(|key| self.sought(tenant, key)).collect();
        if tenant.is_none() {
            return all;
        }
        let mut slots = [None; TOGETHER];
        let mut read = 0;
        for sought in &all {
            read ^= self.index.touch(sought.hash);
        }
        for (slot, sought) in slots.iter_mut().zip(&all) {
            *slot = self.index.find(sought.hash, |_| true);
        }
        for slot in slots.iter().flatten() {
            read ^= self.bodies.touch(*slot);
        }
        for slot in slots.iter().flatten() {
            read ^= u32::from(self.bodies.touch_key(*slot));
        }
        std::hint::black_box(read);
        all
    }

    /// The same for at most so many bodies that will be forgotten: lines of the index, and neighbours
    /// in the order of uses. The hashes of their keys.
    pub(crate) fn bring_slots(&self, slots: Range<u32>) -> [u32; TOGETHER] {
        let mut hashes = [0; TOGETHER];
        let mut read = 0;
        for (hash, slot) in hashes.iter_mut().zip(slots.clone()) {
            if self.bodies.at(slot).is_some() {
                *hash = self.hash_at(slot);
            }
        }
        for &hash in &hashes[..slots.len()] {
            read ^= self.index.touch(hash);
        }
        for body in slots.clone().filter_map(|slot| self.bodies.at(slot)) {
            for neighbour in [body.links.prev, body.links.next] {
                if !slots.contains(&neighbour) && self.bodies.at(neighbour).is_some() {
                    read ^= self.bodies.touch(neighbour);
                }
            }
        }
        std::hint::black_box(read);
        hashes
    }

    /// No put under way will replace a complete body.
    pub(crate) fn none_replaces(&self) -> bool {
        self.beside.is_empty()
    }

    /// The put under way that will replace this complete body.
    pub(crate) fn successor(&self, slot: u32) -> Option<u32> {
        if self.beside.is_empty() {
            return None;
        }
        self.beside.get(&slot).copied()
    }

    pub(crate) fn is_doomed(&self, slot: u32) -> bool {
        !self.doomed.is_empty()
            && self
                .doomed
                .get(&self.bodies[slot].tenant())
                .is_some_and(|doomed| self.bodies.incarnation(slot) <= doomed.last)
    }

    fn hash(&self, tenant: TenantId, key: &[u8]) -> u32 {
        self.hash_of(tenant, key) as u32
    }

    pub(crate) fn hash_of(&self, tenant: TenantId, key: &[u8]) -> u64 {
        self.hasher.hash(tenant, key)
    }

    /// Takes in a put that begins. Its key must be free, but for the complete body that it will
    /// replace.
    pub(crate) fn start(&mut self, slot: u32, sought: Sought<'_>, put: Put, replaces: Option<u32>) {
        let put = self.open_put(put);
        self.bodies[slot].set_phase(Phase::Writing { put });
        if let Some(replaced) = replaces {
            self.beside.insert(replaced, slot);
        } else {
            self.index.insert(sought.hash, slot);
        }
        self.writing.push_front(&mut self.bodies, slot);
        self.in_progress += 1;
    }

    /// Takes in a complete body without memory. Its key must be free.
    pub(crate) fn restore(&mut self, slot: u32, sought: Sought<'_>, used: Use) {
        self.index.insert(sought.hash, slot);
        Recency::join_apart(&mut self.bodies, slot, used);
    }

    /// The hash of a body's key.
    pub(crate) fn hash_at(&self, slot: u32) -> u32 {
        self.hash(self.bodies[slot].tenant(), self.bodies.key(slot))
    }

    fn open_put(&mut self, put: Put) -> PutSlot {
        let at = self.puts.insert(put);
        PutSlot(NonZeroU32::MIN.saturating_add(at.slot))
    }

    pub(crate) fn put(&self, PutSlot(at): PutSlot) -> Put {
        self.puts[at.get() - 1]
    }

    /// Charges storages with what a put under way will bring to them.
    pub(crate) fn charge(&mut self, slot: u32, storages: &[u32], length: u64) {
        if let Some(PutSlot(at)) = self.bodies[slot].put()
            && !storages.is_empty()
        {
            for &storage in storages {
                *self.placed.entry(storage).or_default() += length;
            }
            self.charges
                .insert(at.get(), (SmallVec::from_slice(storages), length));
        }
    }

    /// All puts end here, and with them what they were charged for.
    pub(crate) fn close_put(&mut self, PutSlot(at): PutSlot) {
        self.puts.remove(at.get() - 1);
        if self.charges.is_empty() {
            return;
        }
        let (storages, length) = self.charges.remove(&at.get()).unwrap_or_default();
        for storage in storages {
            if let Some(placed) = self.placed.get_mut(&storage) {
                *placed -= length;
                if *placed == 0 {
                    self.placed.remove(&storage);
                }
            }
        }
    }

    /// Puts under way, and cancelled ones that may not be quiet.
    #[cfg(test)]
    pub(crate) fn open_puts(&self) -> usize {
        self.puts.len()
    }

    /// A put has ended well. What it replaces must have been forgotten.
    pub(crate) fn complete_put(&mut self, slot: u32, used: Use) {
        let Phase::Writing { put } = self.bodies[slot].phase() else {
            unreachable!("only a put under way ends");
        };
        self.writing.remove(&mut self.bodies, slot);
        self.in_progress -= 1;
        let first = self.put(put).first;
        self.close_put(put);
        self.recency.join(&mut self.bodies, slot, first, used);
    }

    /// From now on the key, whose hash this is, does not stand for this body, but for its successor
    /// if it has one. The body stays, in no list.
    pub(crate) fn forget(&mut self, slot: u32, hash: u32) {
        let body = &self.bodies[slot];
        match body.phase() {
            Phase::Complete { .. } => {
                if !self.doomed.is_empty()
                    && let Some(doomed) = self.doomed.get_mut(&body.tenant())
                    && self.bodies.incarnation(slot) <= doomed.last
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
        let successor = if self.beside.is_empty() {
            None
        } else {
            self.beside.remove(&slot)
        };
        let found = match successor {
            Some(successor) => self.index.replace(hash, slot, successor),
            None => self.index.remove(hash, slot),
        };
        if !found {
            // It was to be a successor itself; few are.
            self.beside.retain(|_, successor| *successor != slot);
        }
    }

    /// As answers show it; `segment` gives a segment's place in the answer's table.
    pub(crate) fn view(&self, slot: u32, mut segment: impl FnMut(u32) -> u32) -> Object {
        let memory = |place: super::bodies::Place| Replica::Memory {
            segment: segment(place.segment),
            offset: place.offset,
        };
        Object {
            incarnation: self.bodies.incarnation(slot),
            length: self.bodies[slot].length,
            replicas: self.bodies.places(slot).map(memory).collect(),
        }
    }
}
