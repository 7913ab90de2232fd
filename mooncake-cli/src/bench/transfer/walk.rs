//! Which block an operation moves, and from where to where.

use serde::{Deserialize, Serialize};

/// A walk through a region, so that blocks are cold. Both sides have the region at the same place.
///
/// From lap to lap every place gets another block, so that whoever checks a place at the end sees
/// whether its last transfer has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Walk {
    /// Where the region starts.
    start: u64,
    block: u64,
    places: u64,
}

impl Walk {
    /// Walks through `len` bytes from `start` on, in batches of blocks that lie side by side where
    /// they arrive; `None`: there is no room for one batch.
    pub(super) fn new(start: u64, len: u64, block: u64, batch: u64) -> Option<Self> {
        let places = len / block / batch * batch;
        (places > 0).then_some(Self {
            start,
            block,
            places,
        })
    }

    pub(super) fn block(self) -> u64 {
        self.block
    }

    /// Where operation number `i` puts its block.
    pub(super) fn dest(self, i: u64) -> u64 {
        self.start + i % self.places * self.block
    }

    /// Where operation number `i` takes its block.
    pub(super) fn source(self, i: u64) -> u64 {
        self.start + (i + i / self.places) % self.places * self.block
    }

    /// The last operation at each place after the first `done` ones, in the order of the places.
    pub(super) fn last(self, done: u64) -> impl Iterator<Item = u64> {
        let places = self.places;
        (0..places.min(done)).map(move |place| place + places * ((done - 1 - place) / places))
    }

    /// The end of what is within the region's reach, for whoever checks what a stranger says.
    pub(super) fn end(self) -> Option<u64> {
        self.places.checked_mul(self.block)?.checked_add(self.start)
    }

    /// Walks nowhere; no division by what it says is safe.
    pub(super) fn is_empty(self) -> bool {
        self.places == 0 || self.block == 0
    }
}

/// A walk after some operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Walked {
    pub(super) walk: Walk,
    /// Operations that were done since all places were wiped.
    pub(super) done: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_arrived_last_is_what_stays(
            len in 1..5_000u64, block in 1..50u64, batch in 1..5u64, done in 0..2_000u64,
        ) {
            let Some(walk) = Walk::new(7, len, block, batch) else {
                return Ok(());
            };
            let mut stays = std::collections::BTreeMap::new();
            for i in 0..done {
                stays.insert(walk.dest(i), walk.source(i));
            }
            let last: Vec<_> = walk.last(done).map(|i| (walk.dest(i), walk.source(i))).collect();
            prop_assert_eq!(last, stays.into_iter().collect::<Vec<_>>());
            prop_assert!((0..done).all(|i| walk.source(i).max(walk.dest(i)) + block <= 7 + len));
            prop_assert!(walk.end().is_some_and(|end| end <= 7 + len));
        }

        #[test]
        fn blocks_of_a_batch_lie_side_by_side(
            len in 1..5_000u64, block in 1..50u64, batch in 1..9u64, number in 0..500u64,
        ) {
            let Some(walk) = Walk::new(0, len, block, batch) else {
                return Ok(());
            };
            let first = number * batch;
            for i in 0..batch {
                prop_assert_eq!(walk.dest(first + i), walk.dest(first) + i * block);
            }
        }

        #[test]
        fn the_next_lap_brings_another_block(places in 2..100u64, i in 0..1_000u64) {
            let walk = Walk::new(0, places * 8, 8, 1).unwrap();
            prop_assert_ne!(walk.source(i), walk.source(i + places));
            prop_assert_eq!(walk.dest(i), walk.dest(i + places));
        }
    }
}
