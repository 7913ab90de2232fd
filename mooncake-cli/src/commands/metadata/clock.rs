//! A clock that does not count while its process is stopped: whoever could not be heard meanwhile
//! has not been silent.

use std::time::{Duration, Instant};

/// The longest step; it is looked at far more often.
const MOST: Duration = Duration::from_millis(500);

/// Counts from its creation.
#[derive(Debug)]
pub(super) struct Clock {
    seen: Instant,
    now: Duration,
}

impl Clock {
    pub(super) fn start(at: Instant) -> Self {
        Self {
            seen: at,
            now: Duration::ZERO,
        }
    }

    /// How late it is when the system's clock says `at`.
    pub(super) fn now(&mut self, at: Instant) -> Duration {
        self.now += at.saturating_duration_since(self.seen).min(MOST);
        self.seen = self.seen.max(at);
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_looked_hardly_counts() {
        let start = Instant::now();
        let mut clock = Clock::start(start);
        for step in 1..=10 {
            let later = Duration::from_millis(100) * step;
            assert_eq!(clock.now(start + later), later);
        }
        let second = Duration::from_secs(1);
        let later = clock.now(start + Duration::from_secs(3600));
        assert_eq!(later, second + MOST);
        assert_eq!(clock.now(start), later, "it never goes back");
    }
}
