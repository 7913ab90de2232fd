//! Mounted segments: whose they are, and what of their memory is used, quarantined and free.

use std::collections::{BTreeMap, VecDeque};

use super::{
    ClientId, Failure, MAX_NAME_BYTES, SegmentHandle, SegmentId, SegmentIdentity,
    bodies::{Bodies, Phase, Place},
    grants::{Grants, Part},
    recency::Use,
};
use crate::{
    Time,
    alloc::{ALIGNMENT, AllocationStrategy, Extents, Ground as _},
    evict::window::Row,
    list::NONE,
};

#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) identity: SegmentHandle,
    extents: Extents,
    pub(crate) live_bytes: u64,
    pub(crate) quarantined_bytes: u64,
    /// Replicas here, those in quarantine not counted.
    pub(crate) live: u64,
    pub(crate) grants: Grants,
    /// Its owner may be dead.
    suspect: bool,
    /// It is being unmounted: what is in it counts no more.
    closing: bool,
}

impl Mounted {
    /// What it can hold in all.
    pub(crate) fn capacity(&self) -> u64 {
        self.extents.capacity()
    }

    /// What nobody has, side by side or not.
    pub(crate) fn free(&self) -> u64 {
        self.capacity() - self.live_bytes - self.quarantined_bytes - self.grants.bytes()
    }
}

/// What mounting would change.
pub(crate) enum Mount {
    /// It is mounted already.
    Known,
    /// The slot holds an earlier life, which must be dropped first.
    Replaces(u32),
    /// Nothing is in the way.
    New,
}

/// See [`Segments::useful`].
#[derive(Debug)]
pub(crate) struct Useful(Vec<bool>);

impl Useful {
    pub(crate) fn has(&self, segment: u32) -> bool {
        self.0[segment as usize]
    }

    /// The slots of the segments.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        (0u32..)
            .zip(&self.0)
            .filter_map(|(slot, useful)| useful.then_some(slot))
    }

    pub(crate) fn any(&self, mut places: impl Iterator<Item = Place>) -> bool {
        places.any(|place| self.has(place.segment))
    }
}

/// What is wanted for one object.
pub(crate) struct Wish<'a> {
    pub(crate) writer: ClientId,
    pub(crate) strategy: AllocationStrategy,
    pub(crate) draw: u64,
    pub(crate) preferred: &'a [String],
    pub(crate) avoided: &'a [SegmentId],
    pub(crate) length: u64,
    pub(crate) replicas: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Segments {
    slots: Vec<Option<Mounted>>,
    by_id: BTreeMap<SegmentId, u32>,
    /// Slots of the mounted ones, in the order in which strategies count them.
    order: Vec<u32>,
    pub(crate) capacity: u64,
    pub(crate) live_bytes: u64,
    pub(crate) quarantined_bytes: u64,
    /// Set aside for puts to come.
    pub(crate) granted_bytes: u64,
    /// Lives that were dropped while leases or writers could still use them, until when.
    retired: VecDeque<(Time, SegmentHandle)>,
    /// Slots of those that are being unmounted.
    closing: Vec<u32>,
}

impl Segments {
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// All mounted ones, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mounted> {
        self.by_id.values().map(|&slot| self.at(slot))
    }

    pub(crate) fn find(&self, id: SegmentId) -> Option<(u32, &Mounted)> {
        let slot = *self.by_id.get(&id)?;
        Some((slot, self.at(slot)))
    }

    /// The one at a place in the order of strategies.
    pub(crate) fn in_order(&self, at: usize) -> &Mounted {
        self.at(self.order[at])
    }

    pub(crate) fn owned_by(&self, owner: ClientId) -> Vec<u32> {
        let owned = |slot: &u32| self.at(*slot).identity.owner == owner;
        self.by_id.values().copied().filter(owned).collect()
    }

    /// Prefers other segments to those of this owner, or no longer.
    pub(crate) fn suspect(&mut self, owner: ClientId, suspect: bool) {
        for slot in self.owned_by(owner) {
            self.at_mut(slot).suspect = suspect;
        }
    }

    pub(crate) fn is_suspect(&self, slot: u32) -> bool {
        self.at(slot).suspect
    }

    pub(crate) fn at(&self, slot: u32) -> &Mounted {
        self.slots[slot as usize]
            .as_ref()
            .expect("replicas refer to mounted segments only")
    }

    fn at_mut(&mut self, slot: u32) -> &mut Mounted {
        self.slots[slot as usize]
            .as_mut()
            .expect("replicas refer to mounted segments only")
    }

    /// What the largest segment holds when it is empty.
    pub(crate) fn largest(&self) -> u64 {
        let capacities = self
            .order
            .iter()
            .map(|&slot| self.at(slot).extents.capacity());
        capacities.max().unwrap_or(0)
    }

    /// What so many bytes take in the segment.
    pub(crate) fn size_of(&self, slot: u32, length: u64) -> u64 {
        let extents = &self.at(slot).extents;
        extents.size_of(length).unwrap_or(u64::MAX)
    }

    /// The segment could take so many bytes right now.
    pub(crate) fn fits(&self, slot: u32, length: u64) -> bool {
        let extents = &self.at(slot).extents;
        extents
            .size_of(length)
            .is_some_and(|size| size <= extents.largest_free())
    }

    /// The segment's memory by address, for the choice of neighbours to evict.
    pub(crate) fn row<'a>(&'a self, bodies: &'a Bodies, slot: u32) -> SegmentRow<'a> {
        let extents = &self.at(slot).extents;
        SegmentRow { bodies, extents }
    }

    /// What is beside the longest free range.
    pub(crate) fn beside_largest_free(&self, bodies: &Bodies, slot: u32) -> [Option<u32>; 2] {
        self.at(slot).extents.beside_largest_free(bodies)
    }

    /// Checks a segment that wants to be mounted.
    pub(crate) fn admit(&self, segment: &SegmentIdentity) -> Result<Mount, Failure> {
        if segment.owner == ClientId::NOBODY {
            return Err(Failure::invalid("a segment needs its owner's incarnation"));
        }
        if segment.name.is_empty() {
            return Err(Failure::invalid(
                "a segment needs the name under which peers open it",
            ));
        }
        if segment.name.len().max(segment.owner_name.len()) > MAX_NAME_BYTES {
            return Err(Failure::invalid(format!(
                "a name has at most {MAX_NAME_BYTES} bytes"
            )));
        }
        if segment.length < ALIGNMENT {
            return Err(Failure::invalid(format!(
                "a segment has at least {ALIGNMENT} bytes, not {}",
                segment.length
            )));
        }
        if self.capacity.checked_add(segment.length).is_none() {
            return Err(Failure::invalid(format!(
                "{} bytes are too many",
                segment.length
            )));
        }
        match self.find(segment.id) {
            Some((slot, mounted)) => {
                let known = &mounted.identity;
                if known.owner != segment.owner {
                    return Err(Failure::IllegalClient { owner: known.owner });
                }
                if same_life(known, segment) {
                    if known.length != segment.length {
                        return Err(Failure::invalid(format!(
                            "the segment is mounted with {} bytes, not {}: register it anew",
                            known.length, segment.length
                        )));
                    }
                    return Ok(Mount::Known);
                }
                self.refuse_retired(segment)?;
                Ok(Mount::Replaces(slot))
            }
            None => {
                self.refuse_retired(segment)?;
                Ok(Mount::New)
            }
        }
    }

    fn refuse_retired(&self, segment: &SegmentIdentity) -> Result<(), Failure> {
        let generation = segment.generation;
        let retired = self.retired.iter().map(|(_, old)| old);
        let closing = self.closing.iter().map(|&slot| &self.at(slot).identity);
        if retired.chain(closing).any(|old| same_life(old, segment)) {
            return Err(Failure::StaleSegment { generation });
        }
        Ok(())
    }

    /// Mounts a segment that was admitted.
    pub(crate) fn mount(&mut self, segment: SegmentIdentity) {
        let vacant = self.slots.iter().position(Option::is_none);
        let at = vacant.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let slot = u32::try_from(at).expect("segments are counted in 32 bits");
        let extents = Extents::new(segment.length, ALIGNMENT);
        self.capacity += extents.capacity();
        self.by_id.insert(segment.id, slot);
        self.order.push(slot);
        self.slots[at] = Some(Mounted {
            identity: segment.into(),
            extents,
            live_bytes: 0,
            quarantined_bytes: 0,
            live: 0,
            grants: Grants::default(),
            suspect: false,
            closing: false,
        });
    }

    /// Begins to unmount a segment: nothing new goes there, and what is in it counts no more.
    pub(crate) fn close(&mut self, slot: u32) {
        let mounted = self.at_mut(slot);
        mounted.closing = true;
        mounted.suspect = true;
        let id = mounted.identity.id;
        let capacity = mounted.extents.capacity();
        let (live, quarantined) = (mounted.live_bytes, mounted.quarantined_bytes);
        let granted = std::mem::take(&mut mounted.grants).bytes();
        self.capacity -= capacity;
        self.live_bytes -= live;
        self.quarantined_bytes -= quarantined;
        self.granted_bytes -= granted;
        self.by_id.remove(&id);
        self.order.retain(|&other| other != slot);
        self.closing.push(slot);
    }

    /// One of the replicas in a segment, or of the ranges set aside, if there are any.
    pub(crate) fn first_in(&self, slot: u32) -> Option<u32> {
        self.at(slot).extents.first()
    }

    /// Forgets a closed segment in which nothing is left. Until `reachable` its memory may still be
    /// read or written, so this life of it does not come back.
    pub(crate) fn unmount(&mut self, slot: u32, reachable: Option<Time>) {
        let gone = self.slots[slot as usize]
            .take()
            .expect("only a mounted segment is unmounted");
        self.closing.retain(|&other| other != slot);
        if let Some(until) = reachable {
            self.retired.push_back((until, gone.identity));
        }
    }

    /// Nobody can use these dropped lives any more.
    pub(crate) fn forget_retired(&mut self, now: Time) {
        while self.retired.front().is_some_and(|(until, _)| *until <= now) {
            self.retired.pop_front();
        }
    }

    /// What speaks against a segment; those with less are taken. What is put where the owner is
    /// suspect, or where the writer could not go, may never arrive.
    fn doubts(&self, slot: u32, wish: &Wish<'_>) -> u8 {
        let mounted = self.at(slot);
        let avoided = wish.avoided.contains(&mounted.identity.id);
        2 * u8::from(mounted.suspect) + u8::from(avoided)
    }

    fn least_doubts(&self, wish: &Wish<'_>) -> u8 {
        let doubts = self.order.iter().map(|&slot| self.doubts(slot, wish));
        doubts.min().unwrap_or(0)
    }

    /// The segments where memory that comes free could help.
    pub(crate) fn useful(&self, wish: &Wish<'_>) -> Useful {
        let least = self.least_doubts(wish);
        let useful = |slot: u32| {
            let mounted = self.slots.get(slot as usize)?.as_ref()?;
            let size = mounted
                .extents
                .size_of(wish.length)
                .filter(|_| !mounted.closing)?;
            Some(size <= mounted.extents.capacity() && self.doubts(slot, wish) == least)
        };
        let slots = 0..self.slots.len() as u32;
        let useful: Vec<_> = slots.map(|slot| useful(slot).unwrap_or(false)).collect();
        Useful(useful)
    }

    /// Gives a body memory for as many of the wished replicas as fit, on segments of different names
    /// that have the fewest doubts; `true`: for one at least.
    /// `first` are places in the order of strategies, to be tried before all others.
    pub(crate) fn place(
        &mut self,
        bodies: &mut Bodies,
        body: u32,
        wish: &Wish<'_>,
        first: &[usize],
    ) -> bool {
        let least = self.least_doubts(wish);
        for name in wish.preferred {
            for at in 0..self.order.len() {
                let slot = self.order[at];
                let wanted = self.at(slot).identity.name == *name;
                if wanted && self.doubts(slot, wish) == least {
                    self.try_place(bodies, body, at, wish);
                }
            }
        }
        let others = AllocationStrategy::order(self.order.len(), wish.draw);
        for at in first.iter().copied().chain(others) {
            if u32::from(bodies[body].count()) >= wish.replicas {
                break;
            }
            if self.doubts(self.order[at], wish) == least {
                self.try_place(bodies, body, at, wish);
            }
        }
        bodies[body].count() > 0
    }

    fn try_place(&mut self, bodies: &mut Bodies, body: u32, at: usize, wish: &Wish<'_>) {
        let slot = self.order[at];
        let same_name =
            |other: Place| self.at(other.segment).identity.name == self.at(slot).identity.name;
        if u32::from(bodies[body].count()) >= wish.replicas || bodies.places(body).any(same_name) {
            return;
        }
        let mounted = self.at_mut(slot);
        let Some(fit) = mounted.extents.fit(wish.length) else {
            return;
        };
        let id = bodies.add_place(body, slot, fit.offset);
        mounted.extents.take(bodies, id, fit);
        let size = size_of(mounted, wish.length);
        mounted.live += 1;
        mounted.live_bytes += size;
        self.live_bytes += size;
    }

    /// All that is not free.
    pub(crate) fn taken(&self) -> u64 {
        self.live_bytes + self.quarantined_bytes + self.granted_bytes
    }

    /// All that is set aside, as (slot, offset, size).
    #[cfg(test)]
    pub(crate) fn granted(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let ranges = |&slot: &u32| {
            let ranges = self.at(slot).grants.ranges();
            ranges.map(move |(offset, size)| (slot, offset, size))
        };
        self.order.iter().flat_map(ranges)
    }

    /// Sets at most so many bytes aside, side by side; where, and how many.
    pub(crate) fn set_aside(
        &mut self,
        bodies: &mut Bodies,
        slot: u32,
        number: u64,
        most: u64,
    ) -> (u64, u64) {
        let mounted = self.at_mut(slot);
        let size = most.min(mounted.extents.largest_free());
        let Some(fit) = mounted.extents.fit(size) else {
            return (0, 0);
        };
        let id = bodies.set_aside(fit.offset, size);
        mounted.extents.take(bodies, id, fit);
        mounted.grants.open(number, fit.offset, Part { id, size });
        self.granted_bytes += size;
        (fit.offset, size)
    }

    /// What is left of a grant is free.
    pub(crate) fn give_back(&mut self, bodies: &mut Bodies, slot: u32, number: u64) {
        let grants = &mut self.at_mut(slot).grants;
        let before = grants.bytes();
        let ranges = grants.close(number);
        self.granted_bytes -= before - self.at(slot).grants.bytes();
        for part in ranges.into_values() {
            self.free_aside(bodies, slot, part.id);
        }
    }

    /// Takes back the memory of a range that no grant has any more.
    pub(crate) fn free_aside(&mut self, bodies: &mut Bodies, slot: u32, id: u32) {
        self.at_mut(slot).extents.release(bodies, id);
        bodies.remove_aside(id);
    }

    /// Gives a body its memory out of a grant; `false`: the place is not, or no longer, set aside.
    pub(crate) fn put_in_grant(
        &mut self,
        bodies: &mut Bodies,
        body: u32,
        slot: u32,
        (number, offset): (u64, u64),
    ) -> bool {
        let mounted = self.at_mut(slot);
        let Some(size) = mounted.extents.size_of(bodies[body].length) else {
            return false;
        };
        if offset % ALIGNMENT != 0 {
            return false;
        }
        let extents = &mut mounted.extents;
        let split = |id: u32, at: u64| {
            let rest = bodies.split_aside(id, at);
            extents.split(bodies, id, rest);
            rest
        };
        let Some(aside) = mounted.grants.take(number, offset, size, split) else {
            return false;
        };
        let id = bodies.add_place(body, slot, offset);
        mounted.extents.replace(bodies, aside, id);
        bodies.remove_aside(aside);
        mounted.live += 1;
        mounted.live_bytes += size;
        self.live_bytes += size;
        self.granted_bytes -= size;
        true
    }

    /// A live replica is no longer found, but may still be read or written.
    pub(crate) fn quarantine(&mut self, slot: u32, length: u64) {
        let mounted = self.at_mut(slot);
        let size = size_of(mounted, length);
        mounted.live -= 1;
        mounted.live_bytes -= size;
        mounted.quarantined_bytes += size;
        if !mounted.closing {
            self.live_bytes -= size;
            self.quarantined_bytes += size;
        }
    }

    /// Takes back a live replica's memory.
    pub(crate) fn release(&mut self, bodies: &mut Bodies, place: Place) {
        let length = bodies[bodies.owner(place.id)].length;
        let mounted = self.at_mut(place.segment);
        let size = size_of(mounted, length);
        mounted.live -= 1;
        mounted.live_bytes -= size;
        mounted.extents.release(bodies, place.id);
        bodies.remove_place(place.id);
        if !mounted.closing {
            self.live_bytes -= size;
        }
    }

    /// Takes back a quarantined replica's memory.
    pub(crate) fn release_quarantined(&mut self, bodies: &mut Bodies, place: Place) {
        let length = bodies[bodies.owner(place.id)].length;
        let mounted = self.at_mut(place.segment);
        let size = size_of(mounted, length);
        mounted.quarantined_bytes -= size;
        mounted.extents.release(bodies, place.id);
        bodies.remove_place(place.id);
        if !mounted.closing {
            self.quarantined_bytes -= size;
        }
    }

    /// Bytes that the allocators have handed out, for checks of the books.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> u64 {
        self.iter().map(|mounted| mounted.extents.used()).sum()
    }
}

/// See [`Segments::row`].
pub(crate) struct SegmentRow<'a> {
    bodies: &'a Bodies,
    extents: &'a Extents,
}

impl Row for SegmentRow<'_> {
    type Use = Use;

    fn below(&self, id: u32) -> Option<u32> {
        let below = self.bodies.neighbours_of(id).prev;
        (below != NONE).then_some(below)
    }

    fn above(&self, id: u32) -> Option<u32> {
        let above = self.bodies.neighbours_of(id).next;
        (above != NONE).then_some(above)
    }

    fn room(&self, first: u32, last: u32) -> u64 {
        self.extents.room(self.bodies, first, last)
    }

    fn used(&self, id: u32) -> Option<Use> {
        if self.bodies.is_aside(id) {
            return None;
        }
        let body = &self.bodies[self.bodies.owner(id)];
        match body.phase() {
            Phase::Complete { used } if !body.is_kept() => Some(used),
            _ => None,
        }
    }
}

fn size_of(mounted: &Mounted, length: u64) -> u64 {
    mounted.extents.size_of(length).expect("it was allocated")
}

fn same_life(a: &SegmentIdentity, b: &SegmentIdentity) -> bool {
    (a.id, a.owner, a.registration, a.generation) == (b.id, b.owner, b.registration, b.generation)
}

/// The segments that one answer names.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<u32>,
    pub(crate) handles: Vec<SegmentHandle>,
}

impl Table {
    /// The segment at a place in the answer.
    pub(crate) fn slot(&self, place: u32) -> u32 {
        self.slots[place as usize]
    }

    /// The place of a segment in the answer.
    pub(crate) fn place(&mut self, segments: &Segments, slot: u32) -> u32 {
        let known = self.slots.iter().position(|&other| other == slot);
        let at = known.unwrap_or_else(|| {
            self.slots.push(slot);
            self.handles.push(segments.at(slot).identity.clone());
            self.slots.len() - 1
        });
        at as u32
    }
}
