//! How long a link may be silent about a task before the next one gets it.

use std::time::{Duration, Instant};

/// So many times as long as expected is too long, if it is also [half](Attempts::end) of the time left.
const TOO_LONG: u32 = 4;

/// The rules for attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempts {
    /// So often a task goes to another link at most.
    pub(super) failovers: u8,
    /// The time for each attempt that another may follow, if the engine was told one.
    pub(super) timeout: Option<Duration>,
}

impl Attempts {
    /// When an attempt ends that begins at `now`, of a request that ends at `deadline`; `others`: other
    /// links could follow, of which the request has half of its time, unless it was told otherwise or
    /// this link is known to need more.
    pub(super) fn end(
        self,
        now: Instant,
        deadline: Instant,
        others: bool,
        estimate: Option<Duration>,
    ) -> Instant {
        if !others || self.failovers == 0 {
            return deadline;
        }
        let time = self.timeout.unwrap_or_else(|| {
            let half = deadline.saturating_duration_since(now) / 2;
            half.max(estimate.unwrap_or_default().saturating_mul(TOO_LONG))
        });
        let end = now.checked_add(time);
        end.map_or(deadline, |end| end.min(deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_has_half_of_the_time_unless_told_otherwise_and_never_more_than_all() {
        let ms = Duration::from_millis;
        let now = Instant::now();
        let deadline = now + ms(100);
        let usual = Attempts {
            failovers: 3,
            timeout: None,
        };
        let told = Attempts {
            timeout: Some(ms(7)),
            ..usual
        };
        let patient = Attempts {
            timeout: Some(Duration::MAX),
            ..usual
        };
        let alone = Attempts {
            failovers: 0,
            ..told
        };
        for (attempts, others, estimate, end) in [
            (usual, true, None, 50),
            (usual, true, Some(ms(1)), 50),
            (usual, true, Some(ms(20)), 80),
            (usual, true, Some(Duration::MAX), 100),
            (usual, false, None, 100),
            (told, true, None, 7),
            (told, true, Some(ms(20)), 7),
            (patient, true, None, 100),
            (alone, true, None, 100),
        ] {
            assert_eq!(attempts.end(now, deadline, others, estimate), now + ms(end));
        }
    }
}
