//! Which neighbours to evict where enough memory would come free, but not side by side.

/// A row of taken ranges, by address.
pub(crate) trait Row {
    type Use: Copy + Ord;

    fn below(&self, id: u32) -> Option<u32>;
    fn above(&self, id: u32) -> Option<u32>;
    /// What would be free side by side without the ranges from `first` to `last`.
    fn room(&self, first: u32, last: u32) -> u64;
    /// When its object was last used; `None`: it must stay.
    fn used(&self, id: u32) -> Option<Self::Use>;
}

/// Neighbours from one to another, the lower one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window<U> {
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// Its latest use.
    pub(crate) used: U,
    /// Without it `size` bytes are free side by side; if not, it was not grown further.
    pub(crate) suffices: bool,
}

/// A window around `id` without which `size` bytes are free side by side, grown towards what has not
/// been used for longer, and no larger than needed. It looks at `most` neighbours and counts them
/// down; `None`: what must stay is in the way.
pub(crate) fn around<R: Row>(
    row: &R,
    id: u32,
    size: u64,
    most: &mut u32,
) -> Option<Window<R::Use>> {
    let mut window = Window {
        first: id,
        last: id,
        used: row.used(id)?,
        suffices: row.room(id, id) >= size,
    };
    while !window.suffices && *most > 0 {
        *most -= 1;
        let side = |id: Option<u32>| id.and_then(|id| Some((row.used(id)?, id)));
        let (below, above) = (side(row.below(window.first)), side(row.above(window.last)));
        let used = match (below, above) {
            (Some((used, id)), Some((other, _))) if used <= other => {
                window.first = id;
                used
            }
            (_, Some((used, id))) => {
                window.last = id;
                used
            }
            (Some((used, id)), None) => {
                window.first = id;
                used
            }
            (None, None) => return None,
        };
        window.used = window.used.max(used);
        window.suffices = row.room(window.first, window.last) >= size;
    }
    if window.suffices {
        trim(row, &mut window, size);
    }
    Some(window)
}

/// Leaves out at both ends what need not go. The last one that was taken in had to be, so only the
/// other end gives way.
fn trim<R: Row>(row: &R, window: &mut Window<R::Use>, size: u64) {
    while window.first != window.last
        && let Some(second) = row.above(window.first)
        && row.room(second, window.last) >= size
    {
        window.first = second;
    }
    while window.first != window.last
        && let Some(second) = row.below(window.last)
        && row.room(window.first, second) >= size
    {
        window.last = second;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Taken ranges as (start, end, used), sorted.
    struct Street {
        taken: Vec<(u64, u64, Option<u32>)>,
        capacity: u64,
    }

    impl Row for Street {
        type Use = u32;

        fn below(&self, id: u32) -> Option<u32> {
            id.checked_sub(1)
        }

        fn above(&self, id: u32) -> Option<u32> {
            (id as usize + 1 < self.taken.len()).then_some(id + 1)
        }

        fn room(&self, first: u32, last: u32) -> u64 {
            let left = self.below(first).map_or(0, |id| self.taken[id as usize].1);
            let right = self
                .above(last)
                .map_or(self.capacity, |id| self.taken[id as usize].0);
            right - left
        }

        fn used(&self, id: u32) -> Option<u32> {
            self.taken[id as usize].2
        }
    }

    proptest! {
        #[test]
        fn a_window_is_found_if_there_is_one_and_none_of_it_goes_in_vain(
            parts in prop::collection::vec((0u64..4, 1u64..5, prop::option::weighted(0.8, 0u32..50)), 1..12),
            tail in 0u64..4,
            size in 1u64..20,
            which in any::<prop::sample::Index>(),
        ) {
            let mut at = 0;
            let mut taken = Vec::new();
            for (gap, length, used) in parts {
                let start = at + gap;
                at = start + length;
                taken.push((start, at, used));
            }
            let anchor = which.index(taken.len()) as u32;
            let street = Street { taken, capacity: at + tail };
            // All neighbours that may go.
            let (mut low, mut high) = (anchor, anchor);
            while let Some(id) = street.below(low) && street.used(id).is_some() {
                low = id;
            }
            while let Some(id) = street.above(high) && street.used(id).is_some() {
                high = id;
            }
            let possible = street.used(anchor).is_some() && street.room(low, high) >= size;
            let mut most = 100;
            match around(&street, anchor, size, &mut most) {
                Some(found) => {
                    prop_assert!(possible && found.suffices);
                    prop_assert!(low <= found.first && found.first <= found.last && found.last <= high);
                    prop_assert!(street.room(found.first, found.last) >= size);
                    if found.first < found.last {
                        prop_assert!(street.room(found.first + 1, found.last) < size);
                        prop_assert!(street.room(found.first, found.last - 1) < size);
                    }
                    let uses = (found.first..=found.last).filter_map(|id| street.used(id));
                    prop_assert!(uses.max() <= Some(found.used));
                }
                None => prop_assert!(!possible),
            }
            prop_assert!(most >= 100 - 12);
            let mut most = 2;
            if let Some(part) = around(&street, anchor, size, &mut most) {
                prop_assert!(part.suffices || part.last - part.first == 2);
            }
        }
    }
}
