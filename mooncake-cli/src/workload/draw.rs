//! Random draws that mean the same on every machine and in every version.

/// A small generator (SplitMix64): a counter with a strong mixer behind it.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    state: u64,
}

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number in `0..limit`, or 0 when there is none.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        // The high half of a product: no division, and a bias that no trace could show.
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

/// A distribution as a few of its quantiles, straight lines in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantiles(pub(super) &'static [(u64, u64)]);

impl Quantiles {
    /// Draws a value. The table starts at 0 and ends at 1,000 thousandths.
    pub(super) fn draw(self, draw: &mut Draw) -> u64 {
        let at = draw.below(1_000_000);
        let after = self
            .0
            .partition_point(|(thousandth, _)| thousandth * 1_000 <= at);
        let ((low, from), (high, to)) = (self.0[after - 1], self.0[after]);
        from + (to - from) * (at - low * 1_000) / ((high - low) * 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_draws_lie_below_the_median() {
        let table = Quantiles(&[(0, 10), (500, 100), (900, 1_000), (1_000, 5_000)]);
        let mut draw = Draw::new(7);
        let values: Vec<_> = (0..10_000).map(|_| table.draw(&mut draw)).collect();
        assert!(values.iter().all(|value| (10..5_000).contains(value)));
        let below = values.iter().filter(|value| **value < 100).count();
        assert!((4_800..5_200).contains(&below), "{below}");
    }

    #[test]
    fn below_covers_its_range_and_nothing_else() {
        let mut draw = Draw::new(3);
        let mut seen = [false; 5];
        (0..200).for_each(|_| seen[draw.below(5) as usize] = true);
        assert_eq!((seen, draw.below(0)), ([true; 5], 0));
    }
}
