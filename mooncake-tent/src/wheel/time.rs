//! The clock of pure decisions: a number that is passed in.

use std::{
    ops::{Add, AddAssign},
    time::Duration,
};

/// Microseconds on a monotonic clock of whoever drives the decision; never compared across processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// When the clock started.
    pub const ZERO: Self = Self(0);

    /// How long ago `earlier` was; zero when it is still to come.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}
