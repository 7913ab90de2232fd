//! Complete objects in the order of their last use, so that eviction takes the oldest first.
//!
//! An object under a lease is not evicted. Whoever meets one at the old end *parks* it outside of
//! the list, so that it is met once and not at each eviction; when its leases end it returns to the
//! place that its last use gives it.

use super::objects::{Body, Phase};
use crate::{
    Time,
    list::{Links, List, NONE},
    slab::{Ref, Slab},
};

/// Marks a body that is set aside.
const PARKED: Links = Links {
    prev: NONE - 1,
    next: NONE - 1,
};

#[derive(Debug)]
pub(crate) struct Recency {
    list: List,
    /// Where the latest parked body returned to: the next one's place is likely beside it.
    returned: Option<Ref>,
}

impl Recency {
    pub(crate) const fn new() -> Self {
        Self {
            list: List::EMPTY,
            returned: None,
        }
    }

    /// The least recently used body that is not parked.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.list.back != NONE).then_some(self.list.back)
    }

    /// Takes in a body whose use is the latest of all.
    pub(crate) fn push_front(&mut self, bodies: &mut Slab<Body>, slot: u32) {
        self.list.push_front(bodies, slot);
    }

    /// The body is used now, later than all others.
    pub(crate) fn touch(&mut self, bodies: &mut Slab<Body>, slot: u32, used: Time) {
        self.remove(bodies, slot);
        bodies[slot].phase = Phase::Complete { used };
        self.list.push_front(bodies, slot);
    }

    pub(crate) fn remove(&mut self, bodies: &mut Slab<Body>, slot: u32) {
        if bodies[slot].links == PARKED {
            bodies[slot].links = Links::LOOSE;
        } else {
            self.list.remove(bodies, slot);
        }
    }

    /// Sets a leased body aside.
    pub(crate) fn park(&mut self, bodies: &mut Slab<Body>, slot: u32) {
        self.list.remove(bodies, slot);
        bodies[slot].links = PARKED;
    }

    /// A body's last lease has ended.
    pub(crate) fn unpark(&mut self, bodies: &mut Slab<Body>, slot: u32) {
        if bodies[slot].links != PARKED {
            return;
        }
        let used = used(bodies, slot);
        let mut older = match self.returned.and_then(|at| listed(bodies, at)) {
            Some(near) => near,
            None => self.list.back,
        };
        while older != NONE && self::used(bodies, older) > used {
            older = bodies[older].links.next;
        }
        // Now `older` is older, or nothing is; the place is before the first that is younger.
        let mut younger = match older {
            NONE => self.list.back,
            older => bodies[older].links.prev,
        };
        while younger != NONE && self::used(bodies, younger) < used {
            older = younger;
            younger = bodies[younger].links.prev;
        }
        self.list.insert(bodies, slot, younger, older);
        self.returned = Some(bodies.reference(slot));
    }

    /// The most recently used bodies first.
    #[cfg(test)]
    pub(crate) fn iter<'a>(&self, bodies: &'a Slab<Body>) -> impl Iterator<Item = u32> + use<'a> {
        let front = (self.list.front != NONE).then_some(self.list.front);
        std::iter::successors(front, |&slot| {
            let next = bodies[slot].links.next;
            (next != NONE).then_some(next)
        })
    }
}

fn used(bodies: &Slab<Body>, slot: u32) -> Time {
    match bodies[slot].phase {
        Phase::Complete { used } => used,
        Phase::Gone { .. } | Phase::Writing { .. } => {
            unreachable!("only complete bodies are in the order of use")
        }
    }
}

/// The slot of a body, if it still is in the list.
fn listed(bodies: &Slab<Body>, at: Ref) -> Option<u32> {
    let body = bodies.get(at)?;
    let complete = matches!(body.phase, Phase::Complete { .. });
    (complete && body.links != PARKED).then_some(at.slot)
}
