//! Moments of this machine's clock, as plain numbers that are passed in.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// Microseconds on a clock of the reader's choice. Only differences mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Later than every moment that a clock shows: no deadline.
    pub const NEVER: Self = Self(u64::MAX);

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Stops at [`Time::NEVER`].
    fn add(self, length: Duration) -> Self {
        let micros = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    /// Stops at zero.
    fn sub(self, length: Duration) -> Self {
        let micros = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(micros))
    }
}

/// Reads the clock that also counts while the machine is suspended.
///
/// A lease must end for us no later than for its master, so a clock that stands still in suspend
/// would not do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// The time since the machine started.
    #[must_use]
    pub fn now(self) -> Time {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let micros = u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000;
        Time(seconds * 1_000_000 + micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stops_at_its_ends_instead_of_wrapping() {
        let second = Duration::from_secs(1);
        assert_eq!(Time::NEVER + second, Time::NEVER);
        assert_eq!(Time(5) - second, Time(0));
        assert_eq!(Time(5).since(Time(9)), Duration::ZERO);
        assert_eq!((Time(1) + second).since(Time(1)), second);
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let first = Clock.now();
        assert!(first > Time(0) && Clock.now() >= first);
    }
}
