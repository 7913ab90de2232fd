//! How memory comes back: retirement, quarantine, expiry and eviction.

use std::{collections::BTreeMap, time::Duration};

use smallvec::SmallVec;

use super::{
    ClientId, Effect, Failure, Key, Replica, Replicas, State,
    leases::Covered,
    objects::Phase,
    recency::Use,
    segments::{Useful, Wish},
};
use crate::{
    Time,
    evict::{
        Fill, Watermarks, share,
        window::{self, Taken},
    },
    list::NONE,
    slab::Ref,
};

/// Objects evicted for a watermark in one step, so that no step takes long.
const EVICTIONS_A_STEP: usize = 1024;

/// Objects in segments of no use that eviction passes over, for the same reason.
const PASSED_OVER: usize = 1024;

/// How many times the bytes that are needed are evicted in the order of use, before it is looked
/// where they could come free side by side.
const SCATTERED: u64 = 2;

/// For how long nothing is evicted for as many bytes as those for which that was in vain, unless
/// something that had to stay may go.
const CROWDED: Duration = Duration::from_millis(100);

impl State {
    /// Takes a body out of sight. Its memory is free at once unless somebody reads it.
    pub(super) fn retire(&mut self, now: Time, slot: u32) {
        if let Phase::Writing { put } = self.hide(slot) {
            self.objects.close_put(put);
        }
        self.free_if_quiet(now, slot);
    }

    /// Takes a put out of sight whose writer does not know, and may go on until its deadline and the
    /// longest budget of a write frame are over.
    pub(super) fn cancel(&mut self, now: Time, slot: u32) {
        if let Phase::Writing { put } = self.hide(slot) {
            let until = self.objects.put(put).deadline + self.settings.hold();
            let at = self.objects.bodies.reference(slot);
            let body = &mut self.objects.bodies[slot];
            body.phase = Phase::Gone { put: Some(put) };
            self.held.insert((until, at));
            self.cancelled.insert(body.incarnation.sequence, at);
        }
        self.free_if_quiet(now, slot);
    }

    /// The key stands for nothing from now on; what the body was.
    fn hide(&mut self, slot: u32) -> Phase {
        let was = self.objects.bodies[slot].phase;
        self.objects.forget(slot);
        if matches!(was, Phase::Complete { .. }) {
            self.invalidate(slot);
            if self.objects.bodies[slot].leases > 0 {
                self.gone_while_read(slot);
            }
        }
        let body = &mut self.objects.bodies[slot];
        body.phase = Phase::Gone { put: None };
        for (segment, _) in body.extents() {
            self.segments.quarantine(segment, body.length);
        }
        was
    }

    /// Gives a gone body's memory back once nobody can reach it.
    fn free_if_quiet(&mut self, now: Time, slot: u32) {
        let body = &self.objects.bodies[slot];
        let Phase::Gone { put } = body.phase else {
            return;
        };
        if body.leases > 0 {
            return;
        }
        if let Some(put) = put {
            let until = self.objects.put(put).deadline + self.settings.hold();
            let lost = body.replicas.is_empty();
            if until > now && !lost {
                return;
            }
            let at = self.objects.bodies.reference(slot);
            self.held.remove(&(until, at));
            self.cancelled.remove(&body.incarnation.sequence);
            self.objects.close_put(put);
        }
        let body = self.objects.bodies.remove(slot);
        for (segment, offset) in body.extents() {
            self.segments
                .release_quarantined(segment, offset, body.length);
        }
    }

    /// The writer of a cancelled put says that no byte of it moves any more.
    pub(super) fn quieten(&mut self, now: Time, at: Ref) {
        let body = &mut self.objects.bodies[at.slot];
        if let Phase::Gone { put } = &mut body.phase
            && let Some(put) = put.take()
        {
            let until = self.objects.put(put).deadline + self.settings.hold();
            self.held.remove(&(until, at));
            self.cancelled
                .remove(&self.objects.bodies[at.slot].incarnation.sequence);
            self.objects.close_put(put);
        }
        self.free_if_quiet(now, at.slot);
    }

    /// A lease on these bodies has ended.
    pub(super) fn uncover(&mut self, now: Time, covered: &Covered) {
        for &slot in covered {
            let body = &mut self.objects.bodies[slot];
            body.leases -= 1;
            if body.leases > 0 {
                continue;
            }
            if matches!(body.phase, Phase::Complete { .. }) {
                self.unpark(slot);
            } else {
                self.unread(slot);
                self.free_if_quiet(now, slot);
            }
        }
    }

    fn unpark(&mut self, slot: u32) {
        let objects = &mut self.objects;
        if !objects.bodies[slot].is_kept() {
            objects.recency.unpark(&mut objects.bodies, slot);
            self.crowded = None;
        }
    }

    /// Ends leases, reservations, holds and puts whose time is over.
    pub(super) fn expire_memory(&mut self, now: Time) {
        while let Some(covered) = self.leases.expire(now) {
            self.uncover(now, &covered);
        }
        let period = self.settings.exist_reservation;
        loop {
            let objects = &mut self.objects;
            let reservations = &mut objects.reservations;
            let Some(slot) = reservations.expire(&mut objects.bodies, now, period) else {
                break;
            };
            self.unpark(slot);
        }
        while let Some(&(until, at)) = self.held.first()
            && until <= now
        {
            self.free_if_quiet(now, at.slot);
        }
        let hold = self.settings.hold();
        while self.objects.writing.back != NONE {
            let slot = self.objects.writing.back;
            match self.objects.bodies[slot].phase {
                Phase::Writing { put } if self.objects.put(put).deadline + hold <= now => {
                    self.totals.abandoned_puts += 1;
                    self.retire(now, slot);
                }
                _ => break,
            }
        }
    }

    /// A client says that nothing of its cancelled puts moves any more.
    pub(super) fn quieten_puts_of(&mut self, now: Time, id: ClientId) {
        let theirs = |at: &Ref| match self.objects.bodies[at.slot].phase {
            Phase::Gone { put: Some(put) } => self.objects.put(put).writer == id,
            _ => false,
        };
        let held = self.held.iter().map(|(_, at)| *at);
        for at in held.filter(theirs).collect::<Vec<_>>() {
            self.quieten(now, at);
        }
    }

    /// Drops the puts that a dead client has begun.
    pub(super) fn drop_puts_of(&mut self, now: Time, id: ClientId) {
        let mut slot = self.objects.writing.back;
        while slot != NONE {
            let body = &self.objects.bodies[slot];
            let newer = body.links.prev;
            if let Phase::Writing { put } = body.phase
                && self.objects.put(put).writer == id
            {
                self.totals.abandoned_puts += 1;
                self.cancel(now, slot);
            }
            slot = newer;
        }
    }

    /// Unmounts a segment: all that is in it is lost.
    pub(super) fn drop_segment(&mut self, now: Time, segment: u32) {
        // The owner may be writing to what it was granted.
        let mut reachable = self.segments.at(segment).grants.bytes() > 0;
        for slot in 0..self.objects.bodies.end() {
            if self.segments.replicas_in(segment) == 0 {
                break;
            }
            if self.objects.bodies.at(slot).is_some() {
                reachable |= self.lose_replica(now, slot, segment);
            }
        }
        let settings = &self.settings;
        let longest = settings
            .lease_ttl
            .max(settings.put_deadline + settings.hold());
        self.segments
            .unmount(segment, reachable.then(|| now + longest));
    }

    /// `true`: a reader or writer may still go there.
    fn lose_replica(&mut self, now: Time, slot: u32, lost: u32) -> bool {
        let body = &mut self.objects.bodies[slot];
        let gone = matches!(body.phase, Phase::Gone { .. });
        let before = body.replicas.len();
        body.replicas.retain(
            |replica| !matches!(replica, Replica::Memory { segment, .. } if *segment == lost),
        );
        if body.replicas.len() == before {
            return false;
        }
        self.objects.reservations.shrink(body, before);
        let reachable = body.leases > 0 || !matches!(body.phase, Phase::Complete { .. });
        let empty = body.replicas.is_empty();
        self.segments.lose(lost, gone);
        if empty && gone {
            self.free_if_quiet(now, slot);
        } else if empty {
            self.retire(now, slot);
        }
        reachable
    }

    /// Memory for an object, made by eviction if need be.
    pub(super) fn allocate(&mut self, now: Time, wish: &Wish<'_>) -> Result<Replicas, Failure> {
        if self.segments.len() == 0 {
            return Err(Failure::NoSegment);
        }
        let (length, limit) = (wish.length, self.segments.largest());
        if length > limit {
            return Err(Failure::TooLarge { length, limit });
        }
        let mut placed = self.segments.place(wish);
        if placed.is_empty() {
            self.expire_memory(now);
            placed = self.segments.place(wish);
        }
        if placed.is_empty() {
            let (quarantined, capacity) = (self.segments.quarantined_bytes, self.segments.capacity);
            if quarantined > share(capacity, self.settings.quarantine_share) {
                return Err(Failure::QuarantineFull {
                    quarantined,
                    capacity,
                });
            }
        }
        if placed.is_empty()
            && self
                .crowded
                .is_some_and(|(until, least)| now < until && length >= least)
        {
            return Err(Failure::NoSpace { length });
        }
        let useful = self.segments.useful(wish);
        let mut evicted = 0;
        while placed.is_empty() {
            let before = self.segments.live_bytes;
            let freed = if evicted < SCATTERED * length {
                self.evict_oldest(Some(&useful))
            } else {
                self.evict_window(&useful, length)
            };
            let Some(freed) = freed else {
                if evicted > 0 {
                    self.crowded = Some((now + CROWDED, length));
                }
                return Err(Failure::NoSpace { length });
            };
            evicted += before - self.segments.live_bytes;
            if freed.iter().any(|&slot| self.segments.fits(slot, length)) {
                placed = self.segments.place(wish);
            }
        }
        Ok(placed)
    }

    /// Goes on from the high watermark to the low one, if it is above.
    pub(super) fn evict_to_watermark(&mut self) {
        let marks = Watermarks {
            high: self.settings.high_watermark,
            low: self.settings.low_watermark,
        };
        for _ in 0..EVICTIONS_A_STEP {
            let fill = Fill {
                capacity: self.segments.capacity,
                used: self.segments.taken(),
                quarantined: self.segments.quarantined_bytes,
            };
            if self.drain.goal(marks, fill) == 0 {
                return;
            }
            if self.evict_oldest(None).is_none() {
                self.drain.give_up();
                return;
            }
        }
    }

    /// Evicts the least recently used object that nothing keeps, of those in useful segments if one
    /// is near; the segments where memory came free.
    fn evict_oldest(&mut self, useful: Option<&Useful>) -> Option<SmallVec<[u32; 2]>> {
        let slot = self.oldest(useful)?;
        Some(self.evict(slot))
    }

    /// Evicts the neighbours that have not been used for the longest time, of those that leave room
    /// for so many bytes.
    fn evict_window(&mut self, useful: &Useful, length: u64) -> Option<SmallVec<[u32; 2]>> {
        let mut by_segment: BTreeMap<u32, Vec<Taken<Use>>> = BTreeMap::new();
        for (slot, body) in self.objects.bodies.iter() {
            let used = match body.phase {
                Phase::Complete { used } if !body.is_kept() => Some(used),
                _ => None,
            };
            for (segment, start) in body.extents() {
                if useful.has(segment) {
                    let size = self.segments.size_of(segment, body.length);
                    let end = start + size;
                    by_segment.entry(segment).or_default().push(Taken {
                        start,
                        end,
                        used,
                        slot,
                    });
                }
            }
        }
        for (segment, start, size) in self.segments.granted() {
            if useful.has(segment) {
                by_segment.entry(segment).or_default().push(Taken {
                    start,
                    end: start + size,
                    used: None,
                    slot: NONE,
                });
            }
        }
        let cheapest = |(segment, mut taken): (u32, Vec<Taken<Use>>)| {
            taken.sort_unstable_by_key(|one| one.start);
            let size = self.segments.size_of(segment, length);
            let capacity = self.segments.capacity_of(segment);
            let (used, window) = window::cheapest(&taken, capacity, size)?;
            let slots: Vec<_> = taken[window].iter().map(|one| one.slot).collect();
            Some((used, segment, slots))
        };
        let all = by_segment.into_iter().filter_map(cheapest);
        let (_, segment, slots) = all.min_by_key(|(used, ..)| *used)?;
        for slot in slots {
            self.evict(slot);
        }
        Some(SmallVec::from_slice(&[segment]))
    }

    /// The segments where memory came free.
    fn evict(&mut self, slot: u32) -> SmallVec<[u32; 2]> {
        let doomed = self.objects.is_doomed(&self.objects.bodies[slot]);
        self.objects.forget(slot);
        let body = self.objects.bodies.remove(slot);
        let mut freed = SmallVec::new();
        let before = self.segments.live_bytes;
        for (segment, offset) in body.extents() {
            self.segments.release(segment, offset, body.length);
            freed.push(segment);
        }
        if !doomed {
            self.totals.evicted_objects += 1;
            self.totals.evicted_bytes += before - self.segments.live_bytes;
        }
        self.effects.push(Effect::Invalidate {
            tenant: self.tenants.name(body.tenant).clone(),
            key: Key::from(body.key),
            incarnation: body.incarnation,
            leased: false,
        });
        freed
    }

    fn oldest(&mut self, useful: Option<&Useful>) -> Option<u32> {
        let mut next = self.objects.recency.oldest();
        let mut passed = None;
        let mut steps = 0;
        while let Some(slot) = next {
            let objects = &mut self.objects;
            next = objects.recency.younger(&objects.bodies, slot);
            let body = &objects.bodies[slot];
            if body.is_kept() {
                objects.recency.park(&mut objects.bodies, slot);
                continue;
            }
            let helps = useful.is_none_or(|useful| useful.any(body.extents()));
            if helps {
                return Some(slot);
            }
            passed.get_or_insert(slot);
            steps += 1;
            if steps == PASSED_OVER {
                break;
            }
        }
        passed
    }

    fn invalidate(&mut self, slot: u32) {
        let body = &self.objects.bodies[slot];
        self.effects.push(Effect::Invalidate {
            tenant: self.tenants.name(body.tenant).clone(),
            key: Key::from(body.key.to_vec()),
            incarnation: body.incarnation,
            leased: body.leases > 0,
        });
    }
}
