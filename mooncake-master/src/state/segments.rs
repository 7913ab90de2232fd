//! Mounted segments: whose they are, and what of their memory is used, quarantined and free.

use std::collections::{BTreeMap, VecDeque};

use super::{
    ClientId, Failure, MAX_NAME_BYTES, Replica, Replicas, SegmentHandle, SegmentId,
    SegmentIdentity, grants::Grants,
};
use crate::{
    Time,
    alloc::{ALIGNMENT, AllocationStrategy, Extents},
};

#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) identity: SegmentHandle,
    extents: Extents,
    pub(crate) live_bytes: u64,
    pub(crate) quarantined_bytes: u64,
    /// Replicas here, those in quarantine not counted.
    pub(crate) live: u64,
    /// Those that are.
    quarantined: u64,
    pub(crate) grants: Grants,
    /// Its owner may be dead.
    suspect: bool,
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

    pub(crate) fn any(&self, mut extents: impl Iterator<Item = (u32, u64)>) -> bool {
        extents.any(|(segment, _)| self.has(segment))
    }
}

/// What is wanted for one object.
pub(crate) struct Wish<'a> {
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

    /// What the segment can hold in all.
    pub(crate) fn capacity_of(&self, slot: u32) -> u64 {
        self.at(slot).extents.capacity()
    }

    /// The segment could take so many bytes right now.
    pub(crate) fn fits(&self, slot: u32, length: u64) -> bool {
        let extents = &self.at(slot).extents;
        extents
            .size_of(length)
            .is_some_and(|size| size <= extents.largest_free())
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
        if self.retired.iter().any(|(_, old)| same_life(old, segment)) {
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
            quarantined: 0,
            grants: Grants::default(),
            suspect: false,
        });
    }

    /// Forgets a segment with all that is in it. No replica may refer to it any more. Until
    /// `reachable` its memory may still be read or written, so this life of it does not come back.
    pub(crate) fn unmount(&mut self, slot: u32, reachable: Option<Time>) {
        let gone = self.slots[slot as usize]
            .take()
            .expect("only a mounted segment is unmounted");
        self.by_id.remove(&gone.identity.id);
        self.order.retain(|&other| other != slot);
        self.capacity -= gone.extents.capacity();
        self.live_bytes -= gone.live_bytes;
        self.quarantined_bytes -= gone.quarantined_bytes;
        self.granted_bytes -= gone.grants.bytes();
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

    /// Replicas that refer to the segment.
    pub(crate) fn replicas_in(&self, slot: u32) -> u64 {
        let mounted = self.at(slot);
        mounted.live + mounted.quarantined
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
            let size = mounted.extents.size_of(wish.length)?;
            Some(size <= mounted.extents.capacity() && self.doubts(slot, wish) == least)
        };
        let slots = 0..self.slots.len() as u32;
        let useful: Vec<_> = slots.map(|slot| useful(slot).unwrap_or(false)).collect();
        Useful(useful)
    }

    /// Memory for as many of the wished replicas as fit, on segments of different names that have
    /// the fewest doubts.
    pub(crate) fn place(&mut self, wish: &Wish<'_>) -> Replicas {
        let mut placed = Replicas::new();
        let least = self.least_doubts(wish);
        for name in wish.preferred {
            for at in 0..self.order.len() {
                let slot = self.order[at];
                let wanted = self.at(slot).identity.name == *name;
                if wanted && self.doubts(slot, wish) == least {
                    self.try_place(&mut placed, at, wish);
                }
            }
        }
        for at in wish.strategy.order(self.order.len(), wish.draw) {
            if placed.len() >= wish.replicas as usize {
                break;
            }
            if self.doubts(self.order[at], wish) == least {
                self.try_place(&mut placed, at, wish);
            }
        }
        placed
    }

    fn try_place(&mut self, placed: &mut Replicas, at: usize, wish: &Wish<'_>) {
        let slot = self.order[at];
        let same_name = |(other, _)| self.at(other).identity.name == self.at(slot).identity.name;
        if placed.len() >= wish.replicas as usize || extents(placed).any(same_name) {
            return;
        }
        let mounted = self.at_mut(slot);
        let Some(offset) = mounted.extents.allocate(wish.length) else {
            return;
        };
        let size = size_of(mounted, wish.length);
        mounted.live += 1;
        mounted.live_bytes += size;
        self.live_bytes += size;
        placed.push(Replica::Memory {
            segment: slot,
            offset,
        });
    }

    /// All that is not free.
    pub(crate) fn taken(&self) -> u64 {
        self.live_bytes + self.quarantined_bytes + self.granted_bytes
    }

    /// All that is set aside, as (slot, offset, size).
    pub(crate) fn granted(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let ranges = |&slot: &u32| {
            let ranges = self.at(slot).grants.ranges();
            ranges.map(move |(offset, size)| (slot, offset, size))
        };
        self.order.iter().flat_map(ranges)
    }

    /// Sets at most so many bytes aside, side by side; where, and how many.
    pub(crate) fn set_aside(&mut self, slot: u32, number: u64, most: u64) -> (u64, u64) {
        let mounted = self.at_mut(slot);
        let size = most.min(mounted.extents.largest_free());
        let Some(offset) = mounted.extents.allocate(size) else {
            return (0, 0);
        };
        mounted.grants.open(number, offset, size);
        self.granted_bytes += size;
        (offset, size)
    }

    /// What is left of a grant is free.
    pub(crate) fn give_back(&mut self, slot: u32, number: u64) {
        let mounted = self.at_mut(slot);
        let before = mounted.grants.bytes();
        for (offset, size) in mounted.grants.close(number) {
            mounted.extents.release(offset, size);
        }
        self.granted_bytes -= before - self.at(slot).grants.bytes();
    }

    /// Makes a replica of so many bytes of a grant; `None`: they are not, or no longer, set aside.
    pub(crate) fn put_in_grant(
        &mut self,
        slot: u32,
        (number, offset): (u64, u64),
        length: u64,
    ) -> Option<Replica> {
        let mounted = self.at_mut(slot);
        let size = mounted.extents.size_of(length)?;
        if offset % ALIGNMENT != 0 || !mounted.grants.take(number, offset, size) {
            return None;
        }
        mounted.live += 1;
        mounted.live_bytes += size;
        self.live_bytes += size;
        self.granted_bytes -= size;
        Some(Replica::Memory {
            segment: slot,
            offset,
        })
    }

    /// A live replica is no longer found, but may still be read or written.
    pub(crate) fn quarantine(&mut self, slot: u32, length: u64) {
        let mounted = self.at_mut(slot);
        let size = size_of(mounted, length);
        mounted.live -= 1;
        mounted.live_bytes -= size;
        mounted.quarantined += 1;
        mounted.quarantined_bytes += size;
        self.live_bytes -= size;
        self.quarantined_bytes += size;
    }

    /// Takes back a live replica's memory.
    pub(crate) fn release(&mut self, slot: u32, offset: u64, length: u64) {
        self.quarantine(slot, length);
        self.release_quarantined(slot, offset, length);
    }

    /// Takes back a quarantined replica's memory.
    pub(crate) fn release_quarantined(&mut self, slot: u32, offset: u64, length: u64) {
        let mounted = self.at_mut(slot);
        let size = size_of(mounted, length);
        mounted.quarantined -= 1;
        mounted.quarantined_bytes -= size;
        mounted.extents.release(offset, length);
        self.quarantined_bytes -= size;
    }

    /// A replica's memory is lost together with its segment, whose counts end with it.
    pub(crate) fn lose(&mut self, slot: u32, quarantined: bool) {
        let mounted = self.at_mut(slot);
        if quarantined {
            mounted.quarantined -= 1;
        } else {
            mounted.live -= 1;
        }
    }

    /// Bytes that the allocators have handed out, for checks of the books.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> u64 {
        self.iter().map(|mounted| mounted.extents.used()).sum()
    }
}

/// Where the memory replicas are, as (segment, offset).
pub(crate) fn extents(replicas: &Replicas) -> impl Iterator<Item = (u32, u64)> {
    replicas.iter().filter_map(|replica| match *replica {
        Replica::Memory { segment, offset } => Some((segment, offset)),
        Replica::LocalDisk(_) | Replica::Remote(_) => None,
    })
}

/// The same replicas, with their segments counted otherwise.
pub(crate) fn translated(replicas: &Replicas, mut segment: impl FnMut(u32) -> u32) -> Replicas {
    let mut replicas = replicas.clone();
    for replica in &mut replicas {
        if let Replica::Memory { segment: slot, .. } = replica {
            *slot = segment(*slot);
        }
    }
    replicas
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
