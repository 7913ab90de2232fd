//! Which buckets are worth it.

use super::GcConfig;
use crate::room::Rank;

/// Why a bucket is worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CandidateKind {
    /// Nothing in it is alive.
    Dead,
    /// Most of it is dead.
    Sparse,
}

/// A bucket whose space can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Why.
    pub kind: CandidateKind,
    /// Which bucket.
    pub bucket: u32,
    /// The length of its file.
    pub file_bytes: u64,
    /// What of it would have to be copied.
    pub live_bytes: u64,
    /// What is dead in it.
    pub dead_bytes: u64,
}

/// The candidates among buckets: dead ones first, then those with the least alive. Heads and padding do not count:
/// a rewritten bucket would have them as well.
pub(crate) fn candidates(buckets: &[Rank], config: &GcConfig) -> Vec<Candidate> {
    let all = buckets.iter().filter_map(|rank| {
        let Rank {
            id: bucket,
            file_bytes,
            live_bytes,
            dead_bytes,
            ..
        } = *rank;
        let kind = if live_bytes == 0 {
            CandidateKind::Dead
        } else if dead_bytes > 0
            && live_bytes as f64 <= (live_bytes + dead_bytes) as f64 * config.live_fraction
        {
            CandidateKind::Sparse
        } else {
            return None;
        };
        Some(Candidate {
            kind,
            bucket,
            file_bytes,
            live_bytes,
            dead_bytes,
        })
    });
    let mut all: Vec<_> = all.collect();
    // Cross-multiplied: which has the smaller part alive.
    all.sort_by(|a, b| {
        let (left, right) = (
            u128::from(a.live_bytes) * u128::from(b.live_bytes + b.dead_bytes),
            u128::from(b.live_bytes) * u128::from(a.live_bytes + a.dead_bytes),
        );
        (a.kind, left, a.bucket).cmp(&(b.kind, right, b.bucket))
    });
    all
}

/// The first of `sparse` that fit into one bucket of `bucket_bytes` together.
pub(crate) fn together(sparse: &[Candidate], bucket_bytes: u64) -> &[Candidate] {
    let live = sparse.iter().map(|candidate| candidate.live_bytes);
    &sparse[..fitting(live, bucket_bytes)]
}

/// How many of them, from the first on, fit into `most` together; one at least.
pub(crate) fn fitting(bytes: impl ExactSizeIterator<Item = u64>, most: u64) -> usize {
    let (mut sum, all) = (0u64, bytes.len());
    let fit = bytes.take_while(|bytes| {
        sum = sum.saturating_add(*bytes);
        sum <= most
    });
    fit.count().max(1).min(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_buckets_come_first_and_then_those_with_the_least_alive() {
        let config = GcConfig {
            live_fraction: 0.5,
            ..GcConfig::default()
        };
        let rank = |id, bytes, live_bytes| Rank {
            id,
            file_bytes: bytes + 500,
            live_bytes,
            dead_bytes: bytes - live_bytes,
            idle_ms: 0,
        };
        let all = [
            rank(1, 1000, 501),
            rank(2, 1000, 400),
            rank(3, 100, 10),
            rank(4, 1000, 0),
            rank(5, 1000, 500),
            rank(6, 10, 10),
        ];
        let found: Vec<_> = candidates(&all, &config)
            .iter()
            .map(|candidate| candidate.bucket)
            .collect();
        assert_eq!(found, [4, 3, 2, 5]);
        let sparse = &candidates(&all, &config)[1..];
        assert_eq!(together(sparse, 409).len(), 1);
        assert_eq!(together(sparse, 410).len(), 2);
        assert_eq!(together(sparse, 5).len(), 1, "one at least");
        assert!(together(&[], 5).is_empty());
    }
}
