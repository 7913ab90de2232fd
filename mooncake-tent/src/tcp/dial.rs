//! Whose turn it is to connect to a peer, and what the last who tried found.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::lane::SharedLane;
use crate::{
    error::Reason,
    platform::{after, jittered},
};

/// Pauses between tries double from here …
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// … up to here.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Who connects to a peer: one thread at a time, for all lanes that wait.
#[derive(Debug, Default)]
pub(super) struct Dial {
    pub(super) waiting: VecDeque<SharedLane>,
    pub(super) running: bool,
    /// In a row.
    failures: u32,
    /// What the last try said, and until when that is believed.
    failure: Option<(Reason, Instant)>,
}

impl Dial {
    /// Why nobody tries now.
    pub(super) fn bar(&self) -> Option<&Reason> {
        let (reason, until) = self.failure.as_ref()?;
        (Instant::now() < *until).then_some(reason)
    }

    /// All that waited, for whom the failure speaks.
    pub(super) fn failed(&mut self, reason: &Reason) -> VecDeque<SharedLane> {
        let pause = nth_pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.failure = Some((reason.clone(), after(pause)));
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.failure = None;
        self.waiting.pop_front();
    }
}

/// With jitter, so that those who failed together do not try again together.
pub(super) fn nth_pause(n: u32) -> Duration {
    let pause = FIRST_PAUSE
        .saturating_mul(1 << n.min(16))
        .min(LONGEST_PAUSE);
    jittered(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_believed_for_a_while_and_a_success_ends_that() {
        let mut dial = Dial::default();
        assert_eq!(dial.bar(), None);
        for _ in 0..100 {
            dial.failed(&Reason::OtherIncarnation);
        }
        assert_eq!(dial.bar(), Some(&Reason::OtherIncarnation));
        let (_, until) = dial.failure.clone().unwrap();
        assert!(until < Instant::now() + 2 * LONGEST_PAUSE);
        dial.succeeded();
        assert_eq!(dial.bar(), None);
        assert!((0..40).all(|n| nth_pause(n) <= 2 * LONGEST_PAUSE));
        assert!(nth_pause(0) <= 2 * FIRST_PAUSE);
    }
}
