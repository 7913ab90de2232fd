//! In which order segments are tried.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// How segments are chosen for a new object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum AllocationStrategy {
    /// Each object starts at a segment drawn for it.
    #[default]
    Random,
}

/// Names that configurations of the C++ system may carry, and that are not built yet.
const LATER: [&str; 3] = ["free_ratio_first", "local_first", "ssd_free_ratio_first"];

impl AllocationStrategy {
    /// All of `0..segments`, in the order in which to try them.
    pub(crate) fn order(self, segments: usize, draw: u64) -> impl Iterator<Item = usize> {
        let start = match self {
            // The high bits of a product: no division, no bias that matters.
            Self::Random => ((u128::from(draw) * segments as u128) >> 64) as usize,
        };
        (start..segments).chain(0..start)
    }
}

/// A name that is no allocation strategy here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStrategy(String);

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        let why = if LATER.contains(&name.as_str()) {
            "is not available yet"
        } else {
            "is not known"
        };
        write!(f, "allocation strategy `{name}` {why}; use `random`")
    }
}

impl std::error::Error for UnknownStrategy {}

impl FromStr for AllocationStrategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        match name {
            "random" => Ok(Self::Random),
            _ => Err(UnknownStrategy(name.to_owned())),
        }
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
        f.write_str(match self {
            Self::Random => "random",
        })
    }
}

impl From<AllocationStrategy> for String {
    fn from(strategy: AllocationStrategy) -> Self {
        strategy.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_segment_is_tried_once_whatever_is_drawn() {
        for draw in [0, 1, u64::MAX / 3, u64::MAX] {
            let mut order: Vec<_> = AllocationStrategy::Random.order(5, draw).collect();
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3, 4]);
        }
        assert_eq!(AllocationStrategy::Random.order(0, 7).count(), 0);
    }

    #[test]
    fn a_strategy_of_later_is_refused_by_name() {
        let error = "local_first".parse::<AllocationStrategy>().unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("local_first") && said.contains("not available yet"),
            "{said}"
        );
        assert_eq!("random".parse(), Ok(AllocationStrategy::Random));
    }
}
