//! How a request is cut into slices.

use std::{num::NonZeroU64, ops::Range};

/// What slices may look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceLimits {
    /// A request is cut when it is longer than this many bytes; slices are about as long, up to
    /// [`most_slices`](Self::most_slices) of them.
    pub block: NonZeroU64,
    /// Not more slices than this, unless [`longest`](Self::longest) asks for more.
    pub most_slices: u32,
    /// Cuts lie on multiples of this many bytes, so that no slice but the last ends in the middle of
    /// what a device moves at once.
    pub unit: NonZeroU64,
    /// No slice has more bytes than this; the devices' own limit. Less than a unit counts as one.
    pub longest: u64,
}

const fn bytes(count: u64) -> NonZeroU64 {
    NonZeroU64::new(count).expect("it is not zero")
}

impl Default for SliceLimits {
    /// 64 KiB, 64 slices, cut at cache lines, and 1 GiB.
    fn default() -> Self {
        Self {
            block: bytes(64 << 10),
            most_slices: 64,
            unit: bytes(64),
            longest: 1 << 30,
        }
    }
}

/// A request in slices: equal to within one unit, none of them empty, and together the whole of it.
///
/// With `u` units, `n` slices and `k` from 0, slice `k` is the units from ⌊u·k/n⌋ to ⌊u·(k+1)/n⌋.
///
/// ```
/// use mooncake_tent::spray::{SliceLimits, SlicePlan};
///
/// // Five megabytes and a bit, for eight devices: eight slices each.
/// let plan = SlicePlan::new((5 << 20) + 3, &SliceLimits::default(), 8).expect("it is not empty");
/// assert_eq!(plan.len(), 64);
/// assert!(plan.iter().all(|slice| (slice.end - slice.start).abs_diff(80 << 10) <= 64));
/// assert_eq!(plan.iter().map(|slice| slice.end - slice.start).sum::<u64>(), (5 << 20) + 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlicePlan {
    length: NonZeroU64,
    unit: NonZeroU64,
    slices: u64,
}

impl SlicePlan {
    /// Cuts `length` bytes for `devices` that may share them; `None`: there is nothing to cut.
    ///
    /// Where there are as many slices as devices or more, their number is a multiple of the devices':
    /// otherwise some would have one more to do while the others wait.
    pub fn new(length: u64, limits: &SliceLimits, devices: usize) -> Option<Self> {
        let length = NonZeroU64::new(length)?;
        let units = length.get().div_ceil(limits.unit.get());
        let most = u64::from(limits.most_slices.max(1)).min(units);
        let wanted = length.get().div_ceil(limits.block.get()).min(most);
        let ways = (devices as u64).max(1);
        let even = wanted.next_multiple_of(ways);
        let slices = match wanted {
            _ if wanted < ways => wanted,
            _ if even <= most => even,
            _ => most - most % ways,
        };
        // The devices' limit goes before the others.
        let longest = (limits.longest / limits.unit.get()).max(1);
        Some(Self {
            length,
            unit: limits.unit,
            slices: slices.max(units.div_ceil(longest)),
        })
    }

    /// All of it as one slice.
    pub fn whole(length: NonZeroU64) -> Self {
        Self {
            length,
            unit: NonZeroU64::MIN,
            slices: 1,
        }
    }

    /// How many slices there are, at least one.
    #[expect(clippy::len_without_is_empty, reason = "no plan is empty")]
    pub fn len(&self) -> u64 {
        self.slices
    }

    /// How many bytes they are together.
    pub fn length(&self) -> u64 {
        self.length.get()
    }

    /// The bytes of slice `index`, counted from the beginning of the request.
    ///
    /// # Panics
    ///
    /// There are not so many slices.
    pub fn slice(&self, index: u64) -> Range<u64> {
        assert!(index < self.slices, "{index} of {} slices", self.slices);
        self.cut(index)..self.cut(index + 1)
    }

    /// The slices in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        let plan = *self;
        (0..plan.slices).map(move |index| plan.slice(index))
    }

    fn cut(&self, index: u64) -> u64 {
        let (length, unit) = (self.length.get(), self.unit.get());
        let units = length.div_ceil(unit);
        let at = match units.checked_mul(index) {
            Some(product) => product / self.slices,
            None => {
                let wide = u128::from(units) * u128::from(index) / u128::from(self.slices);
                u64::try_from(wide).expect("index is at most the number of slices")
            }
        };
        // Only the last cut can lie beyond the end.
        at.saturating_mul(unit).min(length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// All magnitudes from a byte to a gibibyte, with the odd sizes beside the powers of two.
    fn length() -> impl Strategy<Value = u64> {
        prop_oneof![
            (0..=30u32, 0..GIB)
                .prop_map(|(bits, raw)| (1 << bits | raw & ((1 << bits) - 1)).min(GIB)),
            (0..=30u32, -3..=3i64)
                .prop_map(|(bits, by)| (1u64 << bits).saturating_add_signed(by).clamp(1, GIB)),
        ]
    }

    fn limits() -> impl Strategy<Value = SliceLimits> {
        (0..22u32, 1..200u32, 0..13u32, 0..31u32).prop_map(|(block, most_slices, unit, longest)| {
            SliceLimits {
                block: bytes(1 << block),
                most_slices,
                unit: bytes(1 << unit),
                longest: 1 << longest,
            }
        })
    }

    proptest! {
        #[test]
        fn slices_tile_the_request_equally_and_none_is_empty(
            length in length(), mut limits in limits(), devices in 0..70usize
        ) {
            // Some of them: millions of slices would say nothing more.
            limits.longest = limits.longest.max(length >> 12);
            let plan = SlicePlan::new(length, &limits, devices).unwrap();
            prop_assert_eq!(plan.iter().count() as u64, plan.len());
            let unit = limits.unit.get();
            let (mut end, mut shortest, mut longest) = (0, u64::MAX, 0);
            for slice in plan.iter() {
                prop_assert_eq!(slice.start, end);
                prop_assert!(slice.end > slice.start && slice.start % unit == 0);
                end = slice.end;
                shortest = shortest.min(slice.end - slice.start);
                longest = longest.max(slice.end - slice.start);
            }
            prop_assert_eq!(end, length);
            prop_assert!(longest - shortest <= unit, "{shortest} to {longest}");
            prop_assert!(longest <= limits.longest.max(unit));
        }

        #[test]
        fn more_slices_than_asked_for_are_only_made_for_the_limit_of_the_devices(
            length in length(), limits in limits(), devices in 1..70usize
        ) {
            let limits = SliceLimits { longest: GIB, ..limits };
            let plan = SlicePlan::new(length, &limits, devices).unwrap();
            prop_assert!(plan.len() <= u64::from(limits.most_slices));
            let ways = devices as u64;
            prop_assert!(plan.len() < ways || plan.len().is_multiple_of(ways));
            if length <= limits.block.get() && plan.len() > 1 {
                prop_assert_eq!(ways, 1, "a short request is not cut");
            }
        }

        #[test]
        fn lengths_to_the_end_of_numbers_can_be_cut(
            below in 0..1_000_000u64, unit in 0..64u32, index in any::<prop::sample::Index>()
        ) {
            let limits = SliceLimits {
                unit: bytes(1 << unit),
                longest: u64::MAX,
                ..SliceLimits::default()
            };
            let plan = SlicePlan::new(u64::MAX - below, &limits, 8).unwrap();
            let slice = plan.slice(index.index(plan.len() as usize) as u64);
            prop_assert!(slice.end > slice.start);
            prop_assert_eq!(plan.slice(plan.len() - 1).end, plan.length());
        }
    }

    #[test]
    fn nothing_cannot_be_cut() {
        assert_eq!(SlicePlan::new(0, &SliceLimits::default(), 8), None);
    }

    #[test]
    fn sizes_that_are_no_power_of_two_have_no_empty_slices_at_their_end() {
        // With blocks rounded up to 64 KiB these leave up to 37 % of 64 slices empty.
        for length in [
            5 << 20,
            6 << 20,
            (8 << 20) + (512 << 10),
            3 << 20,
            100_000_000,
        ] {
            let plan = SlicePlan::new(length, &SliceLimits::default(), 8).unwrap();
            assert!(plan.iter().all(|slice| !slice.is_empty()), "{length}");
            assert_eq!(
                plan.iter()
                    .map(|slice| slice.end - slice.start)
                    .sum::<u64>(),
                length
            );
        }
    }
}
