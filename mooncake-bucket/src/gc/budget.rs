//! How much may be done by now.

use std::time::Duration;

/// Allows so much each second, and a tenth of a second's worth at once.
#[derive(Debug)]
pub(crate) struct Budget {
    per_second: u64,
    /// When what was spent so far is paid for.
    paid_at: Duration,
}

impl Budget {
    /// `per_second` 0: there is no bound.
    pub(crate) fn new(per_second: u64) -> Self {
        Self {
            per_second,
            paid_at: Duration::ZERO,
        }
    }

    /// Spends `amount` at `now`; says how long to wait before it is used.
    pub(crate) fn spend(&mut self, now: Duration, amount: u64) -> Duration {
        if self.per_second == 0 {
            return Duration::ZERO;
        }
        let burst = Duration::from_millis(100);
        let free = self.paid_at.max(now.saturating_sub(burst));
        self.paid_at = free + Duration::from_secs_f64(amount as f64 / self.per_second as f64);
        self.paid_at.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_long_run_no_more_is_spent_than_allowed() {
        let mut budget = Budget::new(1000);
        let mut now = Duration::ZERO;
        for _ in 0..1000 {
            now += budget.spend(now, 50);
        }
        let allowed = Duration::from_secs(50);
        assert!(
            now <= allowed && now + Duration::from_millis(101) >= allowed,
            "{now:?}"
        );
        now += Duration::from_secs(3600);
        assert!(
            budget.spend(now, 100) <= Duration::from_millis(1),
            "a burst"
        );
        assert!(
            budget.spend(now, 1000) >= Duration::from_millis(999),
            "idle time is not saved up"
        );
        assert_eq!(Budget::new(0).spend(now, u64::MAX), Duration::ZERO);
    }
}
