//! Where a value is read from.

use super::{DiskPlace, Location, peers::Owner};

/// A replica that can be read.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Memory(Location),
    Disk(DiskPlace),
}

impl Source {
    pub(super) fn owner(&self) -> Owner {
        match self {
            Self::Memory(location) => Owner::from(&*location.segment),
            Self::Disk(place) => Owner::from(&*place.storage),
        }
    }

    /// Who is asked, for people.
    pub(super) fn peer(&self) -> &str {
        match self {
            Self::Memory(location) => &location.segment.name,
            Self::Disk(place) => &place.storage.segment_name,
        }
    }

    pub(super) const fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}
