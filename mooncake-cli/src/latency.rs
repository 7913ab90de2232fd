//! How long operations took.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies in nanoseconds, to three digits. One per worker; they are merged when all is done.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            histogram: Histogram::new_with_max(Self::MOST_NANOS, 3)
                .expect("constants that fit together"),
        }
    }
}

impl Latency {
    /// What takes longer counts as this long: an hour.
    const MOST_NANOS: u64 = 3_600_000_000_000;

    /// Counts one operation.
    pub fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.histogram
            .saturating_record(nanos.min(Self::MOST_NANOS));
    }

    /// Adds all that `other` counted.
    pub fn merge(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("all have the same range");
    }

    /// Operations counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The time within which this share of operations ended, in microseconds; 0 of none.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.histogram.value_at_quantile(share) as f64 / 1e3
    }

    /// The time within which half of the operations ended, in microseconds; 0 of none.
    #[must_use]
    pub fn p50_us(&self) -> u64 {
        self.quantile_us(0.50).round() as u64
    }

    /// The time within which 99 of 100 operations ended, in microseconds; 0 of none.
    #[must_use]
    pub fn p99_us(&self) -> u64 {
        self.quantile_us(0.99).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_merged_workers_are_those_of_all() {
        let (mut fast, mut slow) = (Latency::default(), Latency::default());
        (0..98).for_each(|_| fast.record(Duration::from_micros(100)));
        (0..2).for_each(|_| slow.record(Duration::from_micros(9_000)));
        fast.merge(&slow);
        assert_eq!((fast.count(), fast.p50_us()), (100, 100));
        assert!((8_990..9_010).contains(&fast.p99_us()), "{}", fast.p99_us());
    }

    #[test]
    fn neither_none_nor_too_long_is_a_problem() {
        let mut latency = Latency::default();
        assert_eq!((latency.p50_us(), latency.p99_us()), (0, 0));
        latency.record(Duration::MAX);
        assert!(latency.p99_us() >= Latency::MOST_NANOS / 1_000);
    }
}
