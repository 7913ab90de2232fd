//! What can be measured of a bucket storage.

use clap::ValueEnum;

/// A part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Values of 1 MiB, durable one by one and eight by eight.
    Put,
    /// Records of 4 KiB, in batches of 128 from eight callers.
    Small,
    /// Values of 128 KiB and 1 MiB, read at random, 32 at a time.
    Get,
    /// Batches of 1,000 removals.
    Remove,
    /// The start of a storage with many records.
    Restart,
    /// Values that are read while space is reclaimed.
    Gc,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Put,
        Self::Small,
        Self::Get,
        Self::Remove,
        Self::Restart,
        Self::Gc,
    ];

    /// What the command line calls it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Small => "small",
            Self::Get => "get",
            Self::Remove => "remove",
            Self::Restart => "restart",
            Self::Gc => "gc",
        }
    }
}
