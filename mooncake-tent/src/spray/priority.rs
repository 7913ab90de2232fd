//! Which slices go first.

/// How much a request matters beside others. Lower ones wait, but not for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits for it.
    #[default]
    High,
    /// Between the two.
    Medium,
    /// It may take its time.
    Low,
}

impl Priority {
    /// All of them, the most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Medium, Self::Low];

    /// 0 for the most urgent.
    pub fn level(self) -> u8 {
        self as u8
    }
}
