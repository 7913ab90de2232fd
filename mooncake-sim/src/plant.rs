//! Mistakes that are made on purpose.

use std::{fmt, str::FromStr};

/// A mistake that is made on purpose, to see that it is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    /// All is as it should be.
    #[default]
    Nothing,
    /// The master gives no leases, while clients believe in them.
    LeaseUnchecked,
    /// Memory of late puts is not held back for frames that may still land.
    NoHold,
    /// Memory of what is gone is free at once.
    NoQuarantine,
    /// An operation that is sent again is performed again.
    NumberIgnored,
    /// Nodes do not look at generations and incarnations.
    StaleAccepted,
    /// A write counts as completed when it is posted.
    PublishEarly,
    /// All clients work on one tenant.
    TenantIgnored,
    /// Nobody hears that what it reads is gone.
    ReadersUntold,
    /// Clients go on with what they know of keys, though they hear that it is gone.
    NewsIgnored,
    /// The first replica that fails is the last one that is tried.
    OtherReplicasForgotten,
    /// A remove leaves puts that are under way alone.
    WritersSpared,
    /// Leases end only when they are released.
    LeasesForever,
    /// A remove with a barrier does not wait for readers.
    BarrierAtOnce,
    /// What `exist` promised to keep is evicted all the same.
    ReservationIgnored,
    /// An upsert replaces what is there before it is written.
    UpsertSwitchesEarly,
    /// Removing all leaves puts that are under way alone.
    PutsForgotten,
    /// Clients that leave say that they are quiet while their transfers move.
    NeverQuiet,
    /// A put into the writer's own memory is asked for when its write is posted.
    OwnWritesTrusted,
    /// The master gives space that it had set aside to others, without asking.
    GrantsTaken,
    /// An answer that comes later is lost if the stream has changed meanwhile.
    AnswersLost,
}

impl Plant {
    /// All mistakes.
    pub const MISTAKES: [Self; 20] = [
        Self::LeaseUnchecked,
        Self::NoHold,
        Self::NoQuarantine,
        Self::NumberIgnored,
        Self::StaleAccepted,
        Self::PublishEarly,
        Self::TenantIgnored,
        Self::ReadersUntold,
        Self::NewsIgnored,
        Self::OtherReplicasForgotten,
        Self::WritersSpared,
        Self::LeasesForever,
        Self::BarrierAtOnce,
        Self::ReservationIgnored,
        Self::UpsertSwitchesEarly,
        Self::PutsForgotten,
        Self::NeverQuiet,
        Self::OwnWritesTrusted,
        Self::GrantsTaken,
        Self::AnswersLost,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::LeaseUnchecked => "lease-unchecked",
            Self::NoHold => "no-hold",
            Self::NoQuarantine => "no-quarantine",
            Self::NumberIgnored => "number-ignored",
            Self::StaleAccepted => "stale-accepted",
            Self::PublishEarly => "publish-early",
            Self::TenantIgnored => "tenant-ignored",
            Self::ReadersUntold => "readers-untold",
            Self::NewsIgnored => "news-ignored",
            Self::OtherReplicasForgotten => "other-replicas-forgotten",
            Self::WritersSpared => "writers-spared",
            Self::LeasesForever => "leases-forever",
            Self::BarrierAtOnce => "barrier-at-once",
            Self::ReservationIgnored => "reservation-ignored",
            Self::UpsertSwitchesEarly => "upsert-switches-early",
            Self::PutsForgotten => "puts-forgotten",
            Self::NeverQuiet => "never-quiet",
            Self::OwnWritesTrusted => "own-writes-trusted",
            Self::GrantsTaken => "grants-taken",
            Self::AnswersLost => "answers-lost",
        }
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Plant {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = [Self::Nothing].into_iter().chain(Self::MISTAKES);
        known
            .into_iter()
            .find(|plant| plant.name() == name)
            .ok_or_else(|| format!("no mistake is called {name:?}"))
    }
}
