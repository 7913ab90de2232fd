//! How room is made: eviction, when space is needed and before it is.

use std::time::Duration;

use smallvec::SmallVec;

use super::{
    ClientId, Failure, STEP, State,
    recency::Use,
    segments::{Useful, Wish},
};
use crate::{
    AllocationStrategy, Time,
    evict::{
        Fill, Watermarks, share,
        window::{self, Window},
    },
};

/// Objects in segments of no use that eviction passes over.
const PASSED_OVER: usize = 512;

/// How many times the bytes that are needed are evicted in the order of use, and how many objects,
/// before it is looked where they could come free side by side.
const SCATTERED: u64 = 2;
const SCATTERED_OBJECTS: u32 = 256;

/// Around so many of the oldest objects it is looked for neighbours.
const ANCHORS: u32 = 64;

/// No window has more objects. Where a larger one is needed it is evicted in parts.
const WIDEST: u32 = STEP / 2;

/// For how long nothing is evicted for as many bytes as those for which that was in vain, unless
/// something that had to stay may go.
const CROWDED: Duration = Duration::from_millis(100);

impl State {
    /// Memory for a body, made by eviction if need be.
    pub(super) fn allocate(
        &mut self,
        now: Time,
        body: u32,
        wish: &Wish<'_>,
    ) -> Result<(), Failure> {
        if self.segments.len() == 0 {
            return Err(Failure::NoSegment);
        }
        let (length, limit) = (wish.length, self.segments.largest());
        if length > limit {
            return Err(Failure::TooLarge { length, limit });
        }
        if self.place(body, wish) {
            return Ok(());
        }
        self.expire_memory(now);
        if self.place(body, wish) {
            return Ok(());
        }
        let (quarantined, capacity) = (self.segments.quarantined_bytes, self.segments.capacity);
        if quarantined > share(capacity, self.settings.quarantine_share) {
            return Err(Failure::QuarantineFull {
                quarantined,
                capacity,
            });
        }
        let in_vain = |(until, least)| now < until && length >= least;
        if self.crowded.is_some_and(in_vain) {
            return Err(Failure::NoSpace { length });
        }
        let useful = self.segments.useful(wish);
        let (mut evicted, mut objects) = (0, 0);
        loop {
            let before = self.segments.live_bytes;
            let freed = if evicted < length.saturating_mul(SCATTERED) && objects < SCATTERED_OBJECTS
            {
                objects += 1;
                self.evict_oldest(Some(&useful))
            } else {
                self.evict_window(&useful, length)
            };
            evicted += before - self.segments.live_bytes;
            let fits = |freed: &SmallVec<[u32; 2]>| {
                freed.iter().any(|&slot| self.segments.fits(slot, length))
            };
            if freed.as_ref().is_some_and(fits) && self.place(body, wish) {
                return Ok(());
            }
            if freed.is_none() && evicted > 0 {
                self.crowded = Some((now + CROWDED, length));
            }
            if freed.is_none() || !self.may_go_on() {
                return Err(Failure::NoSpace { length });
            }
        }
    }

    fn place(&mut self, body: u32, wish: &Wish<'_>) -> bool {
        let first = self.ranked(wish);
        self.segments
            .place(&mut self.objects.bodies, body, wish, &first)
    }

    /// The segments that the strategy tries first.
    fn ranked(&self, wish: &Wish<'_>) -> SmallVec<[usize; 6]> {
        let segments = &self.segments;
        let rank = |score: &dyn Fn(usize) -> Option<f64>| {
            AllocationStrategy::ranked(segments.len(), wish.draw, wish.replicas, score)
        };
        match wish.strategy {
            AllocationStrategy::Random => SmallVec::new(),
            AllocationStrategy::FreeRatioFirst => rank(&|at| {
                let segment = segments.in_order(at);
                let capacity = segment.capacity();
                (capacity > 0).then(|| segment.free() as f64 / capacity as f64)
            }),
            AllocationStrategy::LocalFirst => {
                let own = |at: &usize| segments.in_order(*at).identity.owner == wish.writer;
                (0..segments.len()).filter(own).collect()
            }
            AllocationStrategy::SsdFreeRatioFirst => {
                rank(&|at| self.disk_free_of(segments.in_order(at).identity.owner))
            }
        }
    }

    /// The free share of an owner's disks, what is on its way there taken off; `None`: unknown, or it
    /// has none.
    fn disk_free_of(&self, owner: ClientId) -> Option<f64> {
        let free = |storage: u32| {
            let placed = self.objects.placed.get(&storage).copied().unwrap_or(0);
            self.storages.at(storage).free(placed)
        };
        self.storages
            .held_by(owner)
            .filter_map(free)
            .reduce(f64::max)
    }

    /// Until its put has ended, an object counts as on its way to the disks of those who have it in
    /// memory.
    pub(super) fn charge_disks(&mut self, slot: u32) {
        let bodies = &self.objects.bodies;
        let length = bodies[slot].length;
        let disks = bodies.places(slot).filter_map(|place| {
            let owner = self.segments.at(place.segment).identity.owner;
            self.storages.held_by(owner).next()
        });
        let disks: SmallVec<[u32; 2]> = disks.collect();
        self.objects.charge(slot, &disks, length);
    }

    /// Goes on from the high watermark to the low one, if it is above, for what is left of the step:
    /// what is evicted then depends on the commands alone, unless it is so much that ticks do the rest.
    pub(super) fn evict_beside(&mut self) {
        self.evict_to_watermark(STEP);
    }

    /// The same for at most so many objects; `true`: there is more to do.
    pub(super) fn evict_to_watermark(&mut self, most: u32) -> bool {
        let marks = Watermarks {
            high: self.settings.high_watermark,
            low: self.settings.low_watermark,
        };
        for _ in 0..most {
            let fill = Fill {
                capacity: self.segments.capacity,
                used: self.segments.taken(),
                // What is being saved is free by itself, too, once it is on a disk.
                quarantined: self.segments.quarantined_bytes + self.saving_bytes,
            };
            if self.drain.goal(marks, fill) == 0 {
                return false;
            }
            if !self.may_go_on() {
                return true;
            }
            if !self.save_or_evict_oldest() && self.may_go_on() {
                self.drain.give_up();
                return false;
            }
        }
        true
    }

    /// Begins with the least recently used object that nothing keeps; `false`: there is none.
    fn save_or_evict_oldest(&mut self) -> bool {
        let Some(slot) = self.oldest(None) else {
            return false;
        };
        if self.save(slot) {
            self.work += 1;
        } else {
            self.evict(slot);
        }
        true
    }

    /// Evicts the least recently used object that nothing keeps, of those in useful segments if one
    /// is near; the segments where memory came free.
    fn evict_oldest(&mut self, useful: Option<&Useful>) -> Option<SmallVec<[u32; 2]>> {
        let slot = self.oldest(useful)?;
        Some(self.evict(slot))
    }

    /// Evicts neighbours that have not been used for long, of those that leave room for so many
    /// bytes; or a part of them, if they are many.
    fn evict_window(&mut self, useful: &Useful, length: u64) -> Option<SmallVec<[u32; 2]>> {
        let (segment, window) = self.window(useful, length)?;
        let row = self.segments.row(&self.objects.bodies, segment);
        let mut replicas = vec![window.first];
        while let Some(last) = replicas.last().copied().filter(|last| *last != window.last)
            && let Some(above) = window::Row::above(&row, last)
        {
            replicas.push(above);
        }
        let bodies = &self.objects.bodies;
        let mut slots: Vec<_> = replicas.iter().map(|&id| bodies.owner(id)).collect();
        // An object may have two replicas here.
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            self.evict(slot);
        }
        Some(SmallVec::from_slice(&[segment]))
    }

    /// The best window that is found around the oldest objects, or beside the longest free range:
    /// there a window that is too wide for one step grows from one to the next.
    fn window(&mut self, useful: &Useful, length: u64) -> Option<(u32, Window<Use>)> {
        let mut best: Option<(u32, Window<Use>)> = None;
        let mut most = WIDEST;
        let mut consider = |state: &Self, best: &mut Option<(u32, Window<Use>)>, segment, id| {
            let bodies = &state.objects.bodies;
            let row = state.segments.row(bodies, segment);
            let size = state.segments.size_of(segment, length);
            let found = window::around(&row, id, size, &mut most);
            let better = |found: &Window<Use>| {
                best.as_ref().is_none_or(|(_, best)| {
                    (found.suffices, best.used) > (best.suffices, found.used)
                })
            };
            if let Some(found) = found.filter(better) {
                *best = Some((segment, found));
            }
            most
        };
        for segment in useful.iter() {
            let beside = self
                .segments
                .beside_largest_free(&self.objects.bodies, segment);
            for id in beside.into_iter().flatten() {
                consider(self, &mut best, segment, id);
            }
        }
        let mut left = WIDEST;
        let mut next = self.objects.recency.oldest();
        for _ in 0..ANCHORS {
            let Some(slot) = next.filter(|_| left > 0) else {
                break;
            };
            let bodies = &self.objects.bodies;
            next = self.objects.recency.younger(bodies, slot);
            let used = bodies[slot].used();
            if best.is_some_and(|(_, best)| best.suffices && best.used <= used) {
                break;
            }
            for place in bodies.all_places(slot) {
                if useful.has(place.segment) {
                    left = consider(self, &mut best, place.segment, place.id);
                }
            }
        }
        self.work += WIDEST - left;
        best
    }

    /// The segments where memory came free.
    pub(super) fn evict(&mut self, slot: u32) -> SmallVec<[u32; 2]> {
        self.work += 1;
        let doomed = self.objects.is_doomed(slot);
        let before = self.segments.live_bytes;
        let freed = if self.keep_on_disk(slot) {
            let objects = &mut self.objects;
            objects.recency.set_apart(&mut objects.bodies, slot);
            self.free_places(slot)
        } else {
            self.discard(slot, self.objects.hash_at(slot))
        };
        if !doomed {
            self.totals.evicted_objects += 1;
            let freed = before - self.segments.live_bytes;
            let evicted = &mut self.totals.evicted_bytes;
            *evicted = evicted.saturating_add(freed);
        }
        freed
    }

    fn oldest(&mut self, useful: Option<&Useful>) -> Option<u32> {
        let mut next = self.objects.recency.oldest();
        let mut passed = None;
        let mut steps = 0;
        while let Some(slot) = next.filter(|_| self.may_go_on() && steps < PASSED_OVER) {
            let objects = &mut self.objects;
            next = objects.recency.younger(&objects.bodies, slot);
            let bodies = &mut objects.bodies;
            if bodies[slot].is_kept() {
                objects.recency.park(bodies, slot);
                self.work += 1;
                continue;
            }
            let helps = useful.is_none_or(|useful| useful.any(bodies.places(slot)));
            if helps {
                return Some(slot);
            }
            passed.get_or_insert(slot);
            steps += 1;
            self.work += 1;
        }
        passed
    }
}
