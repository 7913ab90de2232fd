//! Devices of one link, as bits.

use std::fmt;

use smallvec::SmallVec;

/// A set of the devices of one link, by their place among them. As wide as the link has devices.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DeviceMask {
    width: usize,
    words: SmallVec<[u64; 2]>,
}

const BITS: usize = u64::BITS as usize;

impl DeviceMask {
    /// None of `width` devices.
    pub fn none(width: usize) -> Self {
        Self {
            width,
            words: SmallVec::from_elem(0, width.div_ceil(BITS)),
        }
    }

    /// Those of `width` devices that `permits` lets through.
    pub fn of(width: usize, permits: impl FnMut(&usize) -> bool) -> Self {
        let mut mask = Self::none(width);
        for device in (0..width).filter(permits) {
            mask.words[device / BITS] |= 1 << (device % BITS);
        }
        mask
    }

    /// How many devices the link has.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether the device at this place is in the set; one beyond the width never is.
    pub fn contains(&self, device: usize) -> bool {
        let word = self.words.get(device / BITS).copied();
        word.is_some_and(|word| word >> (device % BITS) & 1 == 1)
    }

    /// How many are in the set.
    pub fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// None is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Their places, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.width).filter(|device| self.contains(*device))
    }
}

impl fmt::Debug for DeviceMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_mask_of_any_width_holds_what_was_let_through_and_no_more(
            width in 0..300usize, chosen in prop::collection::btree_set(0..300usize, 0..20)
        ) {
            let mask = DeviceMask::of(width, |device| chosen.contains(device));
            let expected: BTreeSet<_> = chosen.into_iter().filter(|device| *device < width).collect();
            prop_assert_eq!(mask.iter().collect::<BTreeSet<_>>(), expected.clone());
            prop_assert_eq!((mask.len(), mask.is_empty()), (expected.len(), expected.is_empty()));
            prop_assert!((width..400).all(|device| !mask.contains(device)));
        }
    }
}
