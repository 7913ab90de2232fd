//! How memory comes back: retirement, quarantine and expiry.

use smallvec::SmallVec;

use super::{ClientId, Effect, Key, State, bodies::Phase, leases::Covered};
use crate::{Time, list::NONE, slab::Ref};

impl State {
    /// Takes a body out of sight. Its memory is free at once unless somebody reads it.
    pub(super) fn retire(&mut self, now: Time, slot: u32) {
        if let Phase::Writing { put } = self.hide(slot) {
            self.objects.close_put(put);
        }
        self.free_if_quiet(now, slot);
    }

    /// The same for a complete body that nobody reads; the segments where memory came free.
    pub(super) fn discard(&mut self, slot: u32, hash: u32) -> SmallVec<[u32; 2]> {
        self.end_saving(slot);
        self.leave_all(slot);
        self.objects.forget(slot, hash);
        let freed = self.free_places(slot);
        self.objects.bodies.remove(slot);
        freed
    }

    /// Frees the memory of a live body that nobody reads; the segments where it came free.
    pub(super) fn free_places(&mut self, slot: u32) -> SmallVec<[u32; 2]> {
        let mut freed = SmallVec::new();
        let bodies = &mut self.objects.bodies;
        for place in bodies.all_places(slot) {
            self.segments.release(bodies, place);
            freed.push(place.segment);
        }
        freed
    }

    /// Takes a put out of sight whose writer does not know, and may go on until its deadline and the
    /// longest budget of a write frame are over.
    pub(super) fn cancel(&mut self, now: Time, slot: u32) {
        if let Phase::Writing { put } = self.hide(slot) {
            let until = self.objects.put(put).deadline + self.settings.hold();
            let at = self.objects.bodies.reference(slot);
            let body = &mut self.objects.bodies[slot];
            body.set_phase(Phase::Gone { put: Some(put) });
            self.held.insert((until, at));
            self.cancelled.insert(body.sequence(), at);
        }
        self.free_if_quiet(now, slot);
    }

    /// The key stands for nothing from now on; what the body was.
    fn hide(&mut self, slot: u32) -> Phase {
        let was = self.objects.bodies[slot].phase();
        self.end_saving(slot);
        self.remove_from_disks(slot);
        self.objects.forget(slot, self.objects.hash_at(slot));
        if matches!(was, Phase::Complete { .. }) && self.objects.bodies[slot].leases > 0 {
            self.invalidate(slot);
            self.gone_while_read(slot);
        }
        let body = &mut self.objects.bodies[slot];
        body.set_phase(Phase::Gone { put: None });
        let length = body.length;
        for place in self.objects.bodies.places(slot) {
            self.segments.quarantine(place.segment, length);
        }
        was
    }

    /// Gives a gone body's memory back once nobody can reach it.
    pub(super) fn free_if_quiet(&mut self, now: Time, slot: u32) {
        let body = &self.objects.bodies[slot];
        let Phase::Gone { put } = body.phase() else {
            return;
        };
        if body.leases > 0 {
            return;
        }
        if let Some(put) = put {
            let until = self.objects.put(put).deadline + self.settings.hold();
            let lost = body.count() == 0;
            if until > now && !lost {
                return;
            }
            let at = self.objects.bodies.reference(slot);
            self.held.remove(&(until, at));
            self.cancelled.remove(&body.sequence());
            self.objects.close_put(put);
        }
        let bodies = &mut self.objects.bodies;
        for place in bodies.all_places(slot) {
            self.segments.release_quarantined(bodies, place);
        }
        bodies.remove(slot);
    }

    /// The writer of a cancelled put says that no byte of it moves any more.
    pub(super) fn quieten(&mut self, now: Time, at: Ref) {
        let body = &mut self.objects.bodies[at.slot];
        if let Phase::Gone { put: Some(put) } = body.phase() {
            body.set_phase(Phase::Gone { put: None });
            let sequence = body.sequence();
            let until = self.objects.put(put).deadline + self.settings.hold();
            self.held.remove(&(until, at));
            self.cancelled.remove(&sequence);
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
            if body.is_complete() {
                self.unpark(slot);
            } else {
                self.unread(slot);
                self.free_if_quiet(now, slot);
            }
        }
    }

    pub(super) fn unpark(&mut self, slot: u32) {
        if self.evict_saved(slot) {
            return;
        }
        let objects = &mut self.objects;
        if !objects.bodies[slot].is_kept() {
            self.work += objects.recency.unpark(&mut objects.bodies, slot);
            self.crowded = None;
        }
    }

    /// Ends leases, reservations, holds and puts whose time is over, as many as one step may.
    pub(super) fn expire_memory(&mut self, now: Time) {
        while self.may_go_on()
            && let Some(covered) = self.leases.expire(now)
        {
            self.work += covered.len() as u32 + 1;
            self.uncover(now, &covered);
        }
        let period = self.settings.exist_reservation;
        while self.may_go_on() {
            let objects = &mut self.objects;
            let (reservations, bodies) = (&mut objects.reservations, &mut objects.bodies);
            if !reservations.end_rest(bodies, now) {
                let Some(freed) = reservations.expire(bodies, now, period) else {
                    break;
                };
                if let Some(slot) = freed {
                    self.unpark(slot);
                }
            }
            self.work += 1;
        }
        while self.may_go_on()
            && let Some(&(until, at)) = self.held.first()
            && until <= now
        {
            self.work += 1;
            self.free_if_quiet(now, at.slot);
        }
        let hold = self.settings.hold();
        while self.may_go_on() && self.objects.writing.back != NONE {
            let slot = self.objects.writing.back;
            match self.objects.bodies[slot].phase() {
                Phase::Writing { put } if self.objects.put(put).deadline + hold <= now => {
                    self.work += 1;
                    self.totals.abandoned_puts += 1;
                    self.retire(now, slot);
                }
                _ => break,
            }
        }
    }

    /// A client says that nothing of its cancelled puts moves any more.
    pub(super) fn quieten_puts_of(&mut self, now: Time, id: ClientId) {
        let theirs = |at: &Ref| match self.objects.bodies[at.slot].phase() {
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
            if let Phase::Writing { put } = body.phase()
                && self.objects.put(put).writer == id
            {
                self.totals.abandoned_puts += 1;
                self.cancel(now, slot);
            }
            slot = newer;
        }
    }

    /// Others are to hear of this body, which is gone and may still be read.
    fn invalidate(&mut self, slot: u32) {
        let bodies = &self.objects.bodies;
        self.effects.push(Effect::Invalidate {
            tenant: self.tenants.name(bodies[slot].tenant()).clone(),
            key: Key::from(bodies.key(slot).to_vec()),
            incarnation: bodies.incarnation(slot),
        });
    }
}
