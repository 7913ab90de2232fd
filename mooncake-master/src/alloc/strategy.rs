//! In which order segments are tried.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// How segments are chosen for a new object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum AllocationStrategy {
    /// Each object starts at a segment drawn for it.
    #[default]
    Random,
    /// Of some that are drawn, those with the largest share of free memory first.
    FreeRatioFirst,
    /// The writer's own segments first.
    LocalFirst,
    /// Of some that are drawn, those first whose owners have the largest free share of their disks.
    SsdFreeRatioFirst,
}

const ALL: [(AllocationStrategy, &str); 4] = [
    (AllocationStrategy::Random, "random"),
    (AllocationStrategy::FreeRatioFirst, "free_ratio_first"),
    (AllocationStrategy::LocalFirst, "local_first"),
    (
        AllocationStrategy::SsdFreeRatioFirst,
        "ssd_free_ratio_first",
    ),
];

/// Segments that are compared for one replica.
const SAMPLE: usize = 6;

impl AllocationStrategy {
    /// All of `0..segments`, in the order in which to try them when nothing else is known.
    pub(crate) fn order(segments: usize, draw: u64) -> impl Iterator<Item = usize> {
        // The high bits of a product: no division, no bias that matters.
        let start = ((u128::from(draw) * segments as u128) >> 64) as usize;
        (start..segments).chain(0..start)
    }

    /// Those of `0..segments` to try before all others, the best first. `score` tells how good one
    /// is; one of which that is not known counts as the mean of the others that are compared.
    pub(crate) fn ranked(
        segments: usize,
        draw: u64,
        replicas: u32,
        score: impl Fn(usize) -> Option<f64>,
    ) -> SmallVec<[usize; SAMPLE]> {
        let sample = SAMPLE.saturating_mul(replicas as usize);
        let drawn = Self::order(segments, draw).take(sample);
        let scored: SmallVec<[_; SAMPLE]> = drawn.map(|at| (at, score(at))).collect();
        let known = scored.iter().filter_map(|(_, score)| *score);
        let (count, sum) = known.fold((0u32, 0.0), |(count, sum), score| (count + 1, sum + score));
        let mean = if count > 0 {
            sum / f64::from(count)
        } else {
            0.0
        };
        let mut ranked: SmallVec<[_; SAMPLE]> = scored
            .into_iter()
            .map(|(at, score)| (at, score.unwrap_or(mean)))
            .collect();
        ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        ranked.into_iter().map(|(at, _)| at).collect()
    }
}

/// A name that is no allocation strategy here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStrategy(String);

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        let known = ALL.map(|(_, known)| format!("`{known}`")).join(", ");
        write!(
            f,
            "allocation strategy `{name}` is not known; there are {known}"
        )
    }
}

impl std::error::Error for UnknownStrategy {}

impl FromStr for AllocationStrategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        let found = ALL.iter().find(|(_, known)| *known == name);
        let found = found.map(|(strategy, _)| *strategy);
        found.ok_or_else(|| UnknownStrategy(name.to_owned()))
    }
}

impl TryFrom<String> for AllocationStrategy {
    type Error = UnknownStrategy;

    fn try_from(name: String) -> Result<Self, UnknownStrategy> {
        name.parse()
    }
}

impl fmt::Display for AllocationStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ALL.iter().find(|(strategy, _)| strategy == self);
        f.write_str(name.expect("all are listed").1)
    }
}

impl From<AllocationStrategy> for String {
    fn from(strategy: AllocationStrategy) -> Self {
        strategy.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_segment_is_tried_once_whatever_is_drawn(segments in 0usize..40, draw in any::<u64>()) {
            let mut order: Vec<_> = AllocationStrategy::order(segments, draw).collect();
            order.sort_unstable();
            prop_assert_eq!(order, (0..segments).collect::<Vec<_>>());
        }

        #[test]
        fn the_best_of_the_sample_come_first_and_the_unknown_are_in_the_middle(
            scores in prop::collection::vec(prop::option::of(0.0f64..1.0), 1..40),
            draw in any::<u64>(),
            replicas in 1u32..4
        ) {
            let ranked = AllocationStrategy::ranked(scores.len(), draw, replicas, |at| scores[at]);
            let sample: Vec<_> = AllocationStrategy::order(scores.len(), draw)
                .take(6 * replicas as usize)
                .collect();
            prop_assert_eq!(ranked.len(), sample.len());
            prop_assert!(ranked.iter().all(|at| sample.contains(at)));
            let known: Vec<_> = ranked.iter().filter_map(|&at| scores[at]).collect();
            prop_assert!(known.windows(2).all(|pair| pair[0] >= pair[1]));
            // No unknown one is before one that is better than all in the mean, or behind a worse one.
            let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
            for (place, &at) in ranked.iter().enumerate() {
                let Some(score) = scores[at] else { continue };
                let before = ranked[..place].iter().any(|&other| scores[other].is_none());
                prop_assert!(!(before && score > mean + 1e-9), "unknown is better than {score}");
            }
        }
    }

    #[test]
    fn names_are_those_of_the_existing_system() {
        for (strategy, name) in ALL {
            assert_eq!(name.parse(), Ok(strategy));
            assert_eq!(strategy.to_string(), name);
        }
        let said = "cxl".parse::<AllocationStrategy>().unwrap_err().to_string();
        assert!(
            said.contains("`cxl`") && said.contains("`ssd_free_ratio_first`"),
            "{said}"
        );
    }
}
