//! Unmounting segments: what is in them is taken out step by step.

use super::{State, bodies::Phase};
use crate::Time;

/// A segment that is being emptied. Nothing new goes there.
#[derive(Debug)]
pub(crate) struct Closing {
    segment: u32,
    /// A reader or writer may still go there.
    reachable: bool,
    /// Whoever waits until it is empty.
    ticket: Option<u64>,
}

impl State {
    /// Unmounts a segment: all that is in it is lost. Of few objects that is done at once; else they
    /// are found until their turn has come, and the ticket's answer waits for the last.
    pub(super) fn drop_segment(&mut self, now: Time, segment: u32, ticket: Option<u64>) {
        // The owner may be writing to what it was granted.
        let reachable = self.segments.at(segment).grants.bytes() > 0;
        self.segments.close(segment);
        if let Some(ticket) = ticket {
            self.promises.hold(ticket);
        }
        self.closing.push_back(Closing {
            segment,
            reachable,
            ticket,
        });
        self.close_segments(now);
    }

    /// Takes one step; `true`: there is more to do.
    pub(super) fn close_segments(&mut self, now: Time) -> bool {
        while let Some(mut closing) = self.closing.pop_front() {
            while let Some(taken) = self.segments.first_in(closing.segment) {
                if !self.may_go_on() {
                    self.closing.push_front(closing);
                    return true;
                }
                self.work += 1;
                let bodies = &mut self.objects.bodies;
                if bodies.is_aside(taken) {
                    self.segments.free_aside(bodies, closing.segment, taken);
                } else {
                    closing.reachable |= self.lose_replica(now, taken);
                }
            }
            let settings = &self.settings;
            let longest = settings
                .lease_ttl
                .max(settings.put_deadline + settings.hold());
            let reachable = closing.reachable.then(|| now + longest);
            self.segments.unmount(closing.segment, reachable);
            if let Some(ticket) = closing.ticket {
                self.settle(ticket);
            }
        }
        false
    }

    /// `true`: a reader or writer may still go there.
    fn lose_replica(&mut self, now: Time, replica: u32) -> bool {
        let bodies = &mut self.objects.bodies;
        let slot = bodies.owner(replica);
        let place = bodies.places(slot).find(|place| place.id == replica);
        let place = place.expect("a replica is one of its body's");
        let (gone, complete) = (bodies[slot].is_gone(), bodies[slot].is_complete());
        let reachable = bodies[slot].leases > 0 || !complete;
        if bodies[slot].is_saving() {
            self.saving_bytes -= bodies[slot].length;
        }
        if gone {
            self.segments.release_quarantined(bodies, place);
        } else {
            self.segments.release(bodies, place);
        }
        self.objects.reservations.shrink(&bodies[slot]);
        if bodies[slot].count() == 0 {
            match bodies[slot].phase() {
                Phase::Gone { .. } => self.free_if_quiet(now, slot),
                Phase::Complete { .. } => self.lose_memory(now, slot),
                Phase::Writing { .. } => self.retire(now, slot),
            }
        }
        reachable
    }
}
