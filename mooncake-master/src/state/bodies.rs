//! What is known of each object. Plain values in mapped memory, small since there are many.

use std::ops::{Index, IndexMut};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{
    Incarnation, keys::Keys, objects::PutSlot, recency::Use, reservations::Stamp, tenants::TenantId,
};
use crate::{
    alloc::Ground,
    list::{Linked, Links, NONE},
    mapped::Pool,
    slab::{Ref, Slab},
};

/// All that is known of one incarnation of an object, but its key and further replicas.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct Body {
    key: u32,
    key_len: u16,
    tenant: u16,
    /// What goes with `kind`: a place in the order of uses, or the slot of a put.
    detail: u64,
    pub(crate) length: u64,
    kind: u8,
    replicas: u8,
    pub(crate) reservation: Stamp,
    pub(crate) leases: u32,
    sequence: u64,
    /// In the list of puts under way, or in that of complete objects by recency.
    pub(crate) links: Links,
    /// The first replica that it had; of no segment if it lost that one.
    offset: u64,
    segment: u32,
    neighbours: Links,
    /// Its next replica, in `Bodies::further`.
    more: u32,
}

const VACANT: u8 = 0;
const WRITING: u8 = 1;
const COMPLETE: u8 = 2;
const GONE: u8 = 3;
const GONE_WRITTEN: u8 = 4;
/// Flags in `kind`, which stay when the phase changes.
const PHASE: u8 = 0x0f;
/// It is on a disk, or shall be: `Disks` knows more.
const ON_DISK: u8 = 0x80;
/// An earlier life of the master gave it its incarnation, which is in `Bodies::earlier`.
const EARLIER: u8 = 0x40;
/// It shall be evicted once it is on a disk.
const SAVING: u8 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Readable. `used` is its place in the order of uses: no two are equal.
    Complete { used: Use },
    /// Not found any more; its memory waits for leases, and for the put's writer if there is one.
    Gone { put: Option<PutSlot> },
    /// A put under way.
    Writing { put: PutSlot },
}

impl Body {
    pub(crate) fn phase(&self) -> Phase {
        let put = || PutSlot::from_bits(self.detail as u32);
        match self.kind & PHASE {
            WRITING => Phase::Writing { put: put() },
            COMPLETE => Phase::Complete {
                used: Use::from_bits(self.detail),
            },
            GONE => Phase::Gone { put: None },
            GONE_WRITTEN => Phase::Gone { put: Some(put()) },
            _ => unreachable!("only a taken slot is looked into"),
        }
    }

    pub(crate) fn set_phase(&mut self, phase: Phase) {
        let kind;
        (kind, self.detail) = match phase {
            Phase::Complete { used } => (COMPLETE, used.to_bits()),
            Phase::Gone { put: None } => (GONE, 0),
            Phase::Gone { put: Some(put) } => (GONE_WRITTEN, u64::from(put.to_bits())),
            Phase::Writing { put } => (WRITING, u64::from(put.to_bits())),
        };
        self.kind = self.kind & !PHASE | kind;
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.kind & PHASE == COMPLETE
    }

    pub(crate) fn is_gone(&self) -> bool {
        let phase = self.kind & PHASE;
        phase == GONE || phase == GONE_WRITTEN
    }

    /// Of a complete one: its place in the order of uses.
    pub(crate) fn used(&self) -> Use {
        debug_assert!(self.is_complete(), "others are not in the order of uses");
        Use::from_bits(self.detail)
    }

    /// Of a put under way.
    pub(crate) fn put(&self) -> Option<PutSlot> {
        match self.phase() {
            Phase::Writing { put } => Some(put),
            Phase::Complete { .. } | Phase::Gone { .. } => None,
        }
    }

    pub(crate) fn tenant(&self) -> TenantId {
        TenantId(self.tenant)
    }

    /// Counts the lives of all objects.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Of its replicas.
    pub(crate) fn count(&self) -> u8 {
        self.replicas
    }

    /// It stays for now, however long it has not been used.
    pub(crate) fn is_kept(&self) -> bool {
        self.leases > 0 || self.reservation.is_reserved() || self.is_saving()
    }

    /// It is on a disk, or shall be.
    pub(crate) fn has_disk(&self) -> bool {
        self.kind & ON_DISK != 0
    }

    pub(crate) fn set_disk(&mut self, has: bool) {
        self.set_flag(ON_DISK, has);
    }

    /// It shall be evicted once it is on a disk.
    pub(crate) fn is_saving(&self) -> bool {
        self.kind & SAVING != 0
    }

    pub(crate) fn set_saving(&mut self, saving: bool) {
        self.set_flag(SAVING, saving);
    }

    fn set_flag(&mut self, flag: u8, on: bool) {
        self.kind = if on {
            self.kind | flag
        } else {
            self.kind & !flag
        };
    }
}

/// A replica of an object that had others before it.
#[derive(Debug)]
struct Further {
    body: u32,
    segment: u32,
    offset: u64,
    neighbours: Links,
    more: u32,
}

/// A range of a segment that was granted: taken, but of no body.
#[derive(Debug)]
struct Aside {
    offset: u64,
    size: u64,
    neighbours: Links,
}

/// Where a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of the replica: a body's slot for its first one.
    pub(crate) id: u32,
    pub(crate) segment: u32,
    pub(crate) offset: u64,
}

/// What an id of something taken names: ids of three kinds are told apart by their highest bits.
enum Taken {
    /// The first replica of the body in this slot.
    First(u32),
    Further(u32),
    Aside(u32),
}

const FURTHER: u32 = 0b10 << 30;
const ASIDE: u32 = 0b11 << 30;

fn taken(id: u32) -> Taken {
    match id & ASIDE {
        ASIDE => Taken::Aside(id & !ASIDE),
        FURTHER => Taken::Further(id & !FURTHER),
        _ => Taken::First(id),
    }
}

/// All bodies, by slot.
#[derive(Debug)]
pub(crate) struct Bodies {
    epoch: u64,
    pool: Pool,
    keys: Keys,
    further: Slab<Further>,
    aside: Slab<Aside>,
    /// The incarnations that earlier lives of the master gave out, by slot.
    earlier: FxHashMap<u32, Incarnation>,
    len: usize,
}

impl Bodies {
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            pool: Pool::new(size_of::<Body>()),
            keys: Keys::new(),
            further: Slab::new(),
            aside: Slab::new(),
            earlier: FxHashMap::default(),
            len: 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A gone body without replicas.
    pub(crate) fn insert(
        &mut self,
        tenant: TenantId,
        key: &[u8],
        length: u64,
        sequence: u64,
    ) -> u32 {
        let slot = self.pool.take();
        let body = Body {
            key: self.keys.insert(key),
            key_len: key.len() as u16,
            tenant: tenant.0,
            detail: 0,
            length,
            kind: GONE,
            replicas: 0,
            reservation: Stamp::default(),
            leases: 0,
            sequence,
            links: Links::LOOSE,
            offset: 0,
            segment: NONE,
            neighbours: Links::LOOSE,
            more: NONE,
        };
        *Body::mut_from_bytes(self.pool.bytes_mut(slot)).expect("it is aligned") = body;
        self.len += 1;
        slot
    }

    /// Its replicas must have been taken from it.
    pub(crate) fn remove(&mut self, slot: u32) {
        let body = &mut self[slot];
        debug_assert_eq!(body.replicas, 0, "memory without an owner");
        debug_assert!(!body.has_disk(), "a replica without an owner");
        let earlier = body.kind & EARLIER != 0;
        body.kind = VACANT;
        let (key, key_len) = (body.key, body.key_len);
        self.keys.remove(key, key_len);
        self.pool.give(slot);
        if earlier {
            self.earlier.remove(&slot);
        }
        self.len -= 1;
    }

    pub(crate) fn key(&self, slot: u32) -> &[u8] {
        let body = &self[slot];
        self.keys.at(body.key, body.key_len)
    }

    #[inline]
    pub(crate) fn is_of(&self, slot: u32, tenant: TenantId, key: &[u8]) -> bool {
        let body = &self[slot];
        body.tenant == tenant.0
            && body.key_len as usize == key.len()
            && self.keys.at(body.key, body.key_len) == key
    }

    /// Reads of the body, so that it is at hand later.
    #[inline]
    pub(crate) fn touch(&self, slot: u32) -> u32 {
        self[slot].key
    }

    /// Reads the beginning and end of the key.
    #[inline]
    pub(crate) fn touch_key(&self, slot: u32) -> u8 {
        let key = self.key(slot);
        key.first().copied().unwrap_or(0) ^ key.last().copied().unwrap_or(0)
    }

    pub(crate) fn incarnation(&self, slot: u32) -> Incarnation {
        let body = &self[slot];
        if body.kind & EARLIER != 0 {
            return self.earlier[&slot];
        }
        Incarnation {
            epoch: self.epoch,
            sequence: body.sequence,
        }
    }

    /// An earlier life of the master gave it this incarnation.
    pub(crate) fn set_earlier(&mut self, slot: u32, incarnation: Incarnation) {
        self[slot].kind |= EARLIER;
        self.earlier.insert(slot, incarnation);
    }

    pub(crate) fn get(&self, at: Ref) -> Option<&Body> {
        self.at(at.slot)
            .filter(|body| body.sequence as u32 == at.life)
    }

    /// The full reference of a taken slot.
    pub(crate) fn reference(&self, slot: u32) -> Ref {
        let life = self[slot].sequence as u32;
        Ref { slot, life }
    }

    /// One past the highest slot that may be taken.
    pub(crate) fn end(&self) -> u32 {
        self.pool.end()
    }

    /// What the slot holds, if it is taken.
    pub(crate) fn at(&self, slot: u32) -> Option<&Body> {
        let body = self.pool.is_touched(slot).then(|| &self[slot])?;
        (body.kind & PHASE != VACANT).then_some(body)
    }

    /// All bodies, by slot.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Body)> {
        (0..self.end()).filter_map(|slot| Some((slot, self.at(slot)?)))
    }

    /// Where its replicas are, the first one first.
    pub(crate) fn places(&self, slot: u32) -> impl Iterator<Item = Place> {
        let body = &self[slot];
        let first = (body.segment != NONE).then_some(Place {
            id: slot,
            segment: body.segment,
            offset: body.offset,
        });
        let mut more = body.more;
        let further = std::iter::from_fn(move || {
            let further = (more != NONE).then(|| &self.further[more])?;
            let id = more | FURTHER;
            more = further.more;
            Some(Place {
                id,
                segment: further.segment,
                offset: further.offset,
            })
        });
        first.into_iter().chain(further)
    }

    pub(crate) fn all_places(&self, slot: u32) -> SmallVec<[Place; 2]> {
        self.places(slot).collect()
    }

    /// Adds a replica as the last one; its id.
    pub(crate) fn add_place(&mut self, slot: u32, segment: u32, offset: u64) -> u32 {
        let body = &mut self[slot];
        body.replicas += 1;
        if body.segment == NONE && body.more == NONE {
            (body.segment, body.offset) = (segment, offset);
            return slot;
        }
        let added = self.further.insert(Further {
            body: slot,
            segment,
            offset,
            neighbours: Links::LOOSE,
            more: NONE,
        });
        *self.link_to(slot, NONE) = added.slot;
        added.slot | FURTHER
    }

    /// Takes a replica from its body.
    pub(crate) fn remove_place(&mut self, id: u32) {
        let slot = self.owner(id);
        self[slot].replicas -= 1;
        match taken(id) {
            Taken::Further(removed) => {
                let next = self.further.remove(removed).more;
                *self.link_to(slot, removed) = next;
            }
            _ => self[slot].segment = NONE,
        }
    }

    /// Where the body's chain of further replicas names this one.
    fn link_to(&mut self, slot: u32, further: u32) -> &mut u32 {
        let mut last = None;
        let mut at = self[slot].more;
        while at != further {
            last = Some(at);
            at = self.further[at].more;
        }
        match last {
            None => &mut self[slot].more,
            Some(last) => &mut self.further[last].more,
        }
    }

    /// The body that a replica is of.
    pub(crate) fn owner(&self, id: u32) -> u32 {
        match taken(id) {
            Taken::First(slot) => slot,
            Taken::Further(at) => self.further[at].body,
            Taken::Aside(_) => unreachable!("what is set aside is of no body"),
        }
    }

    /// The id of a range that is set aside.
    pub(crate) fn set_aside(&mut self, offset: u64, size: u64) -> u32 {
        let added = self.aside.insert(Aside {
            offset,
            size,
            neighbours: Links::LOOSE,
        });
        added.slot | ASIDE
    }

    pub(crate) fn is_aside(&self, id: u32) -> bool {
        matches!(taken(id), Taken::Aside(_))
    }

    /// Leaves the first so many bytes to the range; the id of one with what follows.
    pub(crate) fn split_aside(&mut self, id: u32, first: u64) -> u32 {
        let aside = &mut self.aside[id & !ASIDE];
        let (offset, size) = (aside.offset + first, aside.size - first);
        aside.size = first;
        self.set_aside(offset, size)
    }

    pub(crate) fn remove_aside(&mut self, id: u32) {
        self.aside.remove(id & !ASIDE);
    }

    /// Ranges that are set aside.
    #[cfg(test)]
    pub(crate) fn asides(&self) -> usize {
        self.aside.len()
    }
}

impl Index<u32> for Bodies {
    type Output = Body;

    #[inline]
    fn index(&self, slot: u32) -> &Body {
        Body::ref_from_bytes(self.pool.bytes(slot)).expect("it is aligned")
    }
}

impl IndexMut<u32> for Bodies {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Body {
        Body::mut_from_bytes(self.pool.bytes_mut(slot)).expect("it is aligned")
    }
}

impl Linked for Bodies {
    fn links(&mut self, slot: u32) -> &mut Links {
        &mut self[slot].links
    }
}

impl Ground for Bodies {
    fn start(&self, id: u32) -> u64 {
        match taken(id) {
            Taken::First(slot) => self[slot].offset,
            Taken::Further(at) => self.further[at].offset,
            Taken::Aside(at) => self.aside[at].offset,
        }
    }

    fn length(&self, id: u32) -> u64 {
        match taken(id) {
            Taken::First(slot) => self[slot].length,
            Taken::Further(at) => self[self.further[at].body].length,
            Taken::Aside(at) => self.aside[at].size,
        }
    }

    fn neighbours(&mut self, id: u32) -> &mut Links {
        match taken(id) {
            Taken::First(slot) => &mut self[slot].neighbours,
            Taken::Further(at) => &mut self.further[at].neighbours,
            Taken::Aside(at) => &mut self.aside[at].neighbours,
        }
    }

    fn neighbours_of(&self, id: u32) -> Links {
        match taken(id) {
            Taken::First(slot) => self[slot].neighbours,
            Taken::Further(at) => self.further[at].neighbours,
            Taken::Aside(at) => self.aside[at].neighbours,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_stays_small() {
        assert_eq!(size_of::<Body>(), 72);
    }

    #[test]
    fn places_are_added_and_lost_in_any_order() {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let mut bodies = Bodies::new(1);
            let slot = bodies.insert(TenantId(0), b"key", 9, 1);
            let ids = [5, 6, 7].map(|segment| bodies.add_place(slot, segment, 64));
            let mut left = vec![5, 6, 7];
            for at in order {
                bodies.remove_place(ids[at]);
                left.retain(|segment| *segment != 5 + at as u32);
                let segments: Vec<_> = bodies.places(slot).map(|place| place.segment).collect();
                assert_eq!(segments, left);
                assert_eq!(bodies[slot].count() as usize, left.len());
            }
            assert_eq!(bodies.further.len(), 0);
            bodies.remove(slot);
        }
    }
}
