//! What was measured, as numbers of a row.

use std::time::Duration;

use serde::Serialize;

use crate::latency::Latency;

/// What a contender did in one round.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Operations that ended.
    pub operations: u64,
    /// Payload bytes that they moved.
    pub bytes: u64,
    /// How long the round took.
    pub wall: Duration,
    /// Processor time of all sides.
    pub cpu: Duration,
    /// How long each operation took, or each batch where they are submitted together.
    pub latency: Latency,
}

/// The figures of a row: medians of the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Payload, 10⁹ bytes per second.
    pub gb_per_s: f64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Half of the operations took no longer, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 operations took no longer, in microseconds.
    pub p99_us: f64,
    /// 999 of 1,000 operations took no longer, in microseconds.
    pub p999_us: f64,
    /// Processor seconds of all sides per 10⁹ bytes; 0 where no payload moves.
    pub cpu_s_per_gb: f64,
    /// Processor microseconds of all sides per operation.
    pub cpu_us_per_op: f64,
}

impl Sample {
    /// The figures of this round alone.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let seconds = self.wall.as_secs_f64().max(f64::MIN_POSITIVE);
        let gigabytes = self.bytes as f64 / 1e9;
        let cpu = self.cpu.as_secs_f64();
        Figures {
            gb_per_s: gigabytes / seconds,
            ops_per_s: self.operations as f64 / seconds,
            p50_us: self.latency.quantile_us(0.5),
            p99_us: self.latency.quantile_us(0.99),
            p999_us: self.latency.quantile_us(0.999),
            cpu_s_per_gb: if self.bytes == 0 {
                0.0
            } else {
                cpu / gigabytes
            },
            cpu_us_per_op: cpu * 1e6 / self.operations.max(1) as f64,
        }
    }
}

impl Figures {
    /// Each figure's median over the rounds.
    #[must_use]
    pub fn medians(samples: &[Sample]) -> Self {
        let rounds: Vec<Self> = samples.iter().map(Sample::figures).collect();
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure));
        Self {
            gb_per_s: of(|it| it.gb_per_s),
            ops_per_s: of(|it| it.ops_per_s),
            p50_us: of(|it| it.p50_us),
            p99_us: of(|it| it.p99_us),
            p999_us: of(|it| it.p999_us),
            cpu_s_per_gb: of(|it| it.cpu_s_per_gb),
            cpu_us_per_op: of(|it| it.cpu_us_per_op),
        }
    }
}

/// The middle of some numbers, or the mean of the two in the middle; 0 of none.
pub(super) fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let (half, odd) = (sorted.len() / 2, sorted.len() % 2 == 1);
    match sorted.len() {
        0 => 0.0,
        _ if odd => sorted[half],
        _ => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_becomes_rates() {
        let mut sample = Sample {
            operations: 2_000,
            bytes: 4_000_000_000,
            wall: Duration::from_secs(2),
            cpu: Duration::from_secs(1),
            ..Sample::default()
        };
        sample.latency.record(Duration::from_nanos(1_500));
        let figures = sample.figures();
        assert_eq!((figures.gb_per_s, figures.ops_per_s), (2.0, 1_000.0));
        assert_eq!((figures.cpu_s_per_gb, figures.cpu_us_per_op), (0.25, 500.0));
        assert!((figures.p50_us - 1.5).abs() < 0.01, "{}", figures.p50_us);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([].into_iter()), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }
}
