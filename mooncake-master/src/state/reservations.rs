//! Promises of `exist`: what it found stays for a moment, so that the read that follows finds it.
//!
//! An object is reserved once, then rests for as long before it can be reserved again, and all that
//! is reserved together is capped: whoever asks again and again keeps nothing from being evicted.

use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::bodies::{Bodies, Body};
use crate::{Time, mapped::Queue, slab::Ref};

/// Longer ones do not fit into a [`Stamp`].
pub(crate) const MAX_RESERVATION: Duration = Duration::from_secs(30);

/// Where a body stands: free, reserved until about then, or resting. Small, since each body has one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout,
)]
#[repr(transparent)]
pub(crate) struct Stamp(u16);

impl Stamp {
    const COUNTED: u16 = 1 << 15;
    const RESTING: u16 = Self::COUNTED - 1;
    /// A unit is 2^12 µs. Those that fit go round in 134 s, four times the longest reservation.
    const UNIT: u32 = 12;

    fn until(end: Time) -> Self {
        Self(Self::COUNTED | Self::units(end))
    }

    fn units(time: Time) -> u16 {
        (time.0 >> Self::UNIT) as u16 & Self::RESTING
    }

    /// The body is not to be evicted.
    pub(crate) fn is_reserved(self) -> bool {
        self.0 & Self::COUNTED != 0
    }

    /// How long it is reserved at least.
    fn left(self, now: Time) -> Duration {
        // In whole units, of which the first may have begun.
        let left = self.0.wrapping_sub(Self::units(now)) & Self::RESTING;
        if !self.is_reserved() || left == 0 || left > Self::RESTING / 2 {
            return Duration::ZERO;
        }
        let end = (now.0 >> Self::UNIT) + u64::from(left);
        Time(end << Self::UNIT).since(now)
    }
}

/// A body that is reserved, or rests, until then.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Waiting {
    until: u64,
    slot: u32,
    life: u32,
}

impl Waiting {
    fn new(until: Time, Ref { slot, life }: Ref) -> Self {
        let until = until.0;
        Self { until, slot, life }
    }

    fn at(self) -> Ref {
        let Self { slot, life, .. } = self;
        Ref { slot, life }
    }
}

/// All reservations, in the order of their ends, which is that of their beginnings.
#[derive(Debug)]
pub(crate) struct Reservations {
    reserved: Queue<Waiting>,
    resting: Queue<Waiting>,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
}

impl Reservations {
    pub(crate) const fn new() -> Self {
        Self {
            reserved: Queue::new(),
            resting: Queue::new(),
            bytes: 0,
            count: 0,
        }
    }

    /// Reserves the body if it may be, within `limit` bytes for all; how long it stays.
    pub(crate) fn reserve(
        &mut self,
        bodies: &mut Bodies,
        slot: u32,
        now: Time,
        period: Duration,
        limit: u64,
    ) -> Duration {
        let body = &mut bodies[slot];
        if body.reservation != Stamp::default() || period.is_zero() {
            return body.reservation.left(now);
        }
        let size = size_of(body);
        if self.bytes + size > limit {
            return Duration::ZERO;
        }
        let until = now + period;
        body.reservation = Stamp::until(until);
        let left = body.reservation.left(now);
        self.bytes += size;
        self.count += 1;
        self.reserved
            .push(Waiting::new(until, bodies.reference(slot)));
        left
    }

    /// Ends a rest that is over; `false`: there is none.
    pub(crate) fn end_rest(&mut self, bodies: &mut Bodies, now: Time) -> bool {
        let Some(first) = self.resting.front().filter(|first| first.until <= now.0) else {
            return false;
        };
        self.resting.pop();
        if bodies.get(first.at()).is_some() {
            bodies[first.slot].reservation = Stamp::default();
        }
        true
    }

    /// Ends a reservation whose time is over; the body, if that sets it free. `None`: there is none.
    pub(crate) fn expire(
        &mut self,
        bodies: &mut Bodies,
        now: Time,
        period: Duration,
    ) -> Option<Option<u32>> {
        let first = self.reserved.front().filter(|first| first.until <= now.0)?;
        self.reserved.pop();
        let reserved = bodies
            .get(first.at())
            .is_some_and(|body| body.reservation.is_reserved());
        if !reserved {
            return Some(None);
        }
        self.forget(&mut bodies[first.slot]);
        let rested = Time(first.until) + period;
        self.resting.push(Waiting::new(rested, first.at()));
        Some(Some(first.slot))
    }

    /// The body goes, or its time is over: it counts no more.
    pub(crate) fn forget(&mut self, body: &mut Body) {
        if body.reservation.is_reserved() {
            body.reservation = Stamp(Stamp::RESTING);
            self.bytes -= size_of(body);
            self.count -= 1;
        }
    }

    /// The body has lost a replica.
    pub(crate) fn shrink(&mut self, body: &Body) {
        if body.reservation.is_reserved() {
            self.bytes -= body.length;
        }
    }
}

fn size_of(body: &Body) -> u64 {
    body.length * u64::from(body.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_never_promises_more_than_was_granted_and_hardly_less() {
        for now in [0, 1, 4095, 4096, 1 << 27, (1 << 27) - 1, u64::MAX >> 8] {
            for period in [5_000, 500_000, 30_000_000] {
                let (now, period) = (Time(now), Duration::from_micros(period));
                let stamp = Stamp::until(now + period);
                let left = stamp.left(now);
                assert!(left <= period, "{left:?} of {period:?} at {now:?}");
                assert!(left + Duration::from_micros(4096) > period, "{left:?}");
                let later = now + period;
                assert_eq!(stamp.left(later), Duration::ZERO);
                assert_eq!(stamp.left(later + period), Duration::ZERO);
            }
        }
    }
}
