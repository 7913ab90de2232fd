//! Lengths that behave alike.

/// Requests whose lengths are within a factor of four of each other, except for the smallest and the
/// largest ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

impl SizeClass {
    /// How many there are.
    pub const COUNT: usize = 12;

    /// The class of a length in bytes: up to 1 KiB, 4 KiB, 16 KiB and so on to 1 GiB, and above.
    pub fn of(length: u64) -> Self {
        // 2^bits is the least power of two that is no less than the length.
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        let class = bits.saturating_sub(10).div_ceil(2);
        Self((class as usize).min(Self::COUNT - 1) as u8)
    }

    /// All of them, the smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// Its place among all.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// The largest length in it, in bytes; `None`: there is no limit.
    pub fn most(self) -> Option<u64> {
        (self.index() + 1 < Self::COUNT).then(|| 1 << (10 + 2 * self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other_without_a_gap() {
        assert_eq!(SizeClass::of(0).index(), 0);
        assert_eq!(SizeClass::of(u64::MAX).index(), SizeClass::COUNT - 1);
        for class in SizeClass::all() {
            let Some(most) = class.most() else { continue };
            assert_eq!(SizeClass::of(most), class);
            assert_eq!(SizeClass::of(most + 1).index(), class.index() + 1);
        }
        assert_eq!(SizeClass::of(1 << 20).most(), Some(1 << 20));
    }
}
