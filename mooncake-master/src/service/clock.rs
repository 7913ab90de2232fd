//! The clock that the state machine is driven by.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::{Time, time::micros};

/// Counts from its creation, time in which the machine was suspended included.
#[derive(Debug)]
pub(crate) struct Clock {
    start: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: boot_time() }
    }

    pub(crate) fn now(&self) -> Time {
        Time(boot_time() - self.start)
    }
}

fn boot_time() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    // Neither is negative on a clock that starts at boot.
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// A number that is greater than in all earlier lives of this master, as long as the machine's date
/// does not go back.
pub(crate) fn epoch_by_date() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    micros(since.unwrap_or(Duration::ZERO)).max(1)
}
