//! How many times took how long.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Bounds double from 1 µs to about 1 s; the last bucket has what took longer.
const BOUNDS: usize = 21;
const BUCKETS: usize = BOUNDS + 1;

/// How many times took how long, in buckets whose bounds double from 1 µs to 1.05 s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    sum: Duration,
}

impl Histogram {
    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// For each bound how many took longer than the bound before it, but not longer than this one. The
    /// last has none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bound = |place| (place < BOUNDS).then(|| Duration::from_micros(1_u64 << place));
        let buckets = self.buckets.iter().enumerate();
        buckets.map(move |(place, count)| (bound(place), *count))
    }
}

/// One that is being added to.
#[derive(Debug, Default)]
pub(crate) struct LiveHistogram {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl LiveHistogram {
    pub(crate) fn add(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[place(nanos)].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Makes another's times its own, and leaves none there.
    pub(super) fn takes_over(&self, other: &Self) {
        let buckets = self.buckets.iter().zip(&other.buckets);
        for (to, from) in buckets.chain([(&self.nanos, &other.nanos)]) {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> Histogram {
        Histogram {
            buckets: std::array::from_fn(|place| self.buckets[place].load(Ordering::Relaxed)),
            sum: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)),
        }
    }
}

/// The first bucket whose bound is not below that.
fn place(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000).max(1);
    let bits = u64::BITS - (micros - 1).leading_zeros();
    (bits as usize).min(BOUNDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        for (nanos, bound) in [
            (0, Some(1)),
            (1, Some(1)),
            (1_000, Some(1)),
            (1_001, Some(2)),
            (2_000, Some(2)),
            (2_001, Some(4)),
            (4_000, Some(4)),
            (1_048_576_000, Some(1 << 20)),
            (1_048_576_001, None),
            (u64::MAX, None),
        ] {
            let live = LiveHistogram::default();
            live.add(Duration::from_nanos(nanos));
            let read = live.read();
            let (found, _) = read.buckets().find(|(_, count)| *count == 1).unwrap();
            assert_eq!(found, bound.map(Duration::from_micros), "{nanos}");
            assert_eq!((read.count(), read.sum()), (1, Duration::from_nanos(nanos)));
        }
    }
}
