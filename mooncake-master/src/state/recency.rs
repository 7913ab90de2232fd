//! Complete objects in the order of their last use, so that eviction takes the oldest first.
//!
//! An object under a lease is not evicted. Whoever meets one at the old end *parks* it outside of
//! the list, so that it is met once and not at each eviction; when its leases end it returns to the
//! place that its last use gives it.

use super::bodies::{Bodies, Phase};
use crate::{
    Time,
    list::{Links, List, NONE},
    slab::Ref,
};

/// A place in the order of uses: a time, and room for places between two of the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use(u64);

impl Use {
    const ROOM: u32 = 16;

    /// The first place at a time, but later than `last`.
    pub(crate) fn after(last: Self, now: Time) -> Self {
        let next = (last.0 >> Self::ROOM) + 1;
        Self(now.0.max(next) << Self::ROOM)
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The place of one time before.
    fn before(self) -> Self {
        Self(self.0.saturating_sub(1 << Self::ROOM))
    }

    /// When that was.
    pub(crate) fn time(self) -> Time {
        Time(self.0 >> Self::ROOM)
    }

    /// A place between two, if there is room: after one part of the gap, if not at once.
    fn between(older: Self, younger: Self, parts: u64) -> Option<Self> {
        let gap = younger.0 - older.0;
        (gap > 1).then(|| Self(older.0 + (gap / parts).max(1)))
    }
}

/// How far a put looks for others of its batch.
const COMPANY: usize = 256;

/// Marks a body that is set aside.
const PARKED: Links = Links {
    prev: NONE - 1,
    next: NONE - 1,
};

/// Marks a body that has no memory to evict.
const APART: Links = Links {
    prev: NONE - 2,
    next: NONE - 2,
};

#[derive(Debug)]
pub(crate) struct Recency {
    list: List,
    /// Where the latest parked body returned to: the next one's place is likely beside it.
    returned: Option<Ref>,
    /// The latest put that took its place among others of its batch.
    joined: Option<Ref>,
}

impl Recency {
    pub(crate) const fn new() -> Self {
        Self {
            list: List::EMPTY,
            returned: None,
            joined: None,
        }
    }

    /// The least recently used body that is not parked.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.list.back != NONE).then_some(self.list.back)
    }

    /// The next one after it.
    pub(crate) fn younger(&self, bodies: &Bodies, slot: u32) -> Option<u32> {
        let younger = bodies[slot].links.prev;
        (younger != NONE).then_some(younger)
    }

    /// Takes in the body of a put that ends. Of a batch the first key counts as the most recently
    /// used, in whatever order and portions its puts end: of a chain of prefixes the longest, which
    /// needs all others, is evicted before them. So the body goes behind those of its batch that
    /// have ended and come before it, if these are the latest of all; else in front.
    ///
    /// `first` is the sequence number of the batch's first key.
    pub(crate) fn join(&mut self, bodies: &mut Bodies, slot: u32, first: u64, latest: Use) {
        let own = bodies[slot].sequence();
        let before = |at: u32| (first..own).contains(&bodies[at].sequence());
        // Mostly the one behind it has just been taken in.
        let neighbour = self
            .joined
            .and_then(|at| listed(bodies, at))
            .filter(|&at| bodies[at].sequence() == own + 1)
            .filter(|&at| bodies[at].links.prev != NONE && before(bodies[at].links.prev));
        let (mut younger, mut older) = (NONE, self.list.front);
        if let Some(neighbour) = neighbour {
            (younger, older) = (bodies[neighbour].links.prev, neighbour);
        } else {
            for _ in 0..COMPANY {
                if older == NONE || !before(older) {
                    break;
                }
                (younger, older) = (older, bodies[older].links.next);
            }
        }
        let place = (younger != NONE)
            .then(|| {
                let low = match older {
                    NONE => bodies[younger].used().before(),
                    older => bodies[older].used(),
                };
                // Those that follow this neighbour one by one need one place each.
                let part = if neighbour.is_some() { u64::MAX } else { 2 };
                Use::between(low, bodies[younger].used(), part)
            })
            .flatten();
        if let Some(place) = place {
            bodies[slot].set_phase(Phase::Complete { used: place });
            self.list.insert(bodies, slot, younger, older);
            self.joined = Some(bodies.reference(slot));
        } else {
            bodies[slot].set_phase(Phase::Complete { used: latest });
            self.list.push_front(bodies, slot);
            self.joined = None;
        }
    }

    /// The body is used now, later than all others.
    pub(crate) fn touch(&mut self, bodies: &mut Bodies, slot: u32, used: Use) {
        if bodies[slot].links == APART {
            bodies[slot].set_phase(Phase::Complete { used });
            return;
        }
        self.remove(bodies, slot);
        bodies[slot].set_phase(Phase::Complete { used });
        self.list.push_front(bodies, slot);
    }

    /// Takes in a body without memory, which is in no list.
    pub(crate) fn join_apart(bodies: &mut Bodies, slot: u32, used: Use) {
        bodies[slot].set_phase(Phase::Complete { used });
        bodies[slot].links = APART;
    }

    /// The body has no memory any more.
    pub(crate) fn set_apart(&mut self, bodies: &mut Bodies, slot: u32) {
        self.remove(bodies, slot);
        bodies[slot].links = APART;
    }

    pub(crate) fn remove(&mut self, bodies: &mut Bodies, slot: u32) {
        if [PARKED, APART].contains(&bodies[slot].links) {
            bodies[slot].links = Links::LOOSE;
        } else {
            self.unlist(bodies, slot);
        }
    }

    /// Sets a body aside that must stay.
    pub(crate) fn park(&mut self, bodies: &mut Bodies, slot: u32) {
        if bodies[slot].links == PARKED {
            return;
        }
        self.unlist(bodies, slot);
        bodies[slot].links = PARKED;
    }

    fn unlist(&mut self, bodies: &mut Bodies, slot: u32) {
        if self.returned.is_some_and(|at| at.slot == slot) {
            // It may come back far from there, but its neighbour stays.
            let older = bodies[slot].links.next;
            self.returned = (older != NONE).then(|| bodies.reference(older));
        }
        self.list.remove(bodies, slot);
    }

    /// Nothing keeps the body any more. Returns how many others were looked at.
    pub(crate) fn unpark(&mut self, bodies: &mut Bodies, slot: u32) -> u32 {
        if bodies[slot].links != PARKED {
            return 0;
        }
        let mut looked = 0;
        let used = bodies[slot].used();
        let mut older = match self.returned.and_then(|at| listed(bodies, at)) {
            Some(near) => near,
            None => self.list.back,
        };
        while older != NONE && bodies[older].used() > used {
            older = bodies[older].links.next;
            looked += 1;
        }
        // Now `older` is older, or nothing is; the place is before the first that is younger.
        let mut younger = match older {
            NONE => self.list.back,
            older => bodies[older].links.prev,
        };
        while younger != NONE && bodies[younger].used() < used {
            older = younger;
            younger = bodies[younger].links.prev;
            looked += 1;
        }
        self.list.insert(bodies, slot, younger, older);
        self.returned = Some(bodies.reference(slot));
        looked
    }

    /// The most recently used bodies first.
    #[cfg(test)]
    pub(crate) fn iter<'a>(&self, bodies: &'a Bodies) -> impl Iterator<Item = u32> + use<'a> {
        let front = (self.list.front != NONE).then_some(self.list.front);
        std::iter::successors(front, |&slot| {
            let next = bodies[slot].links.next;
            (next != NONE).then_some(next)
        })
    }
}

/// The slot of a body, if it still is in the list.
fn listed(bodies: &Bodies, at: Ref) -> Option<u32> {
    let body = bodies.get(at)?;
    let listed = ![PARKED, APART].contains(&body.links);
    (body.is_complete() && listed).then_some(at.slot)
}
