//! What can go wrong, and what a retry needs.

use std::{fmt, io, sync::Arc, time::Duration};

pub use mooncake_proto::{Applied, Retry};

use crate::{
    engine::Conflicts,
    identity::{Incarnation, PeerId, RegistrationId},
    transport::Op,
};

/// A result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call on the engine failed. What becomes of bytes is in [`TransferError`].
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More tasks, batches or buffers than the engine holds.
    #[error("{what} is full: {limit} at most")]
    Busy { what: &'static str, limit: usize },
    /// The buffer is still in use by transfers after the budget.
    #[error("registration {registration} is still held by {leases} transfers after {after:?}")]
    InUse {
        registration: RegistrationId,
        leases: u64,
        after: Duration,
    },
    /// A link could not be set up.
    #[error("link {link}: {message}")]
    Install { link: &'static str, message: String },
    /// What the engine was told does not go together. All of it is listed.
    #[error("{0}")]
    Conflicts(Conflicts),
    /// A link could not be set up now, for a reason that may pass.
    #[error("link {link}, not yet: {message}")]
    NotYet { link: &'static str, message: String },
    /// The request would not be done by its deadline, as far as was measured.
    #[error("{link} needs about {needed:.1?} for {length} bytes, and {left:.1?} are left")]
    Infeasible {
        link: &'static str,
        length: u64,
        needed: Duration,
        left: Duration,
    },
    /// The caller's arguments do not make sense.
    #[error("{0}")]
    Invalid(String),
    /// Another process has the name that a segment should get.
    #[error("the name {name} is taken: {holder} has it")]
    NameTaken { name: String, holder: String },
    /// No link accepted the buffer.
    #[error("no link accepts the buffer: {reasons}")]
    NoLink { reasons: String },
    /// No link can carry the request.
    #[error("no link carries a {op} to {segment}: {reasons}")]
    NoRoute {
        op: &'static str,
        segment: String,
        reasons: String,
    },
    /// A notification was not delivered, as far as is known; `applied` says how far.
    #[error("{segment} was not notified ({applied:?} of it arrived): {message}")]
    NotDelivered {
        segment: String,
        message: String,
        applied: Applied,
    },
    /// The address or range does not lie within a buffer that the peer offers.
    #[error("{segment} offers no buffer for {wanted}")]
    NotRegistered { segment: String, wanted: String },
    /// A registry cannot be reached, or what it says of a name makes no sense.
    #[error("registry {registry}, name {name}: {message}")]
    Registry {
        registry: String,
        name: String,
        message: String,
    },
    /// Another life of the segment's owner answers than the one that was meant.
    #[error("segment {segment}: another process answers in the place of {known}")]
    Restarted { segment: String, known: Incarnation },
    /// The contract of the tenant neither lets the request go now nor lets it wait.
    #[error("{tenant:?} has as much on its way as its contract lets it, and it may not wait")]
    OverLimit { tenant: String },
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
    /// The peer's control service does not answer, or not sensibly.
    #[error("segment {segment}: {message}")]
    Unreachable { segment: String, message: String },
}

impl Error {
    /// What a retry needs.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Busy { .. } | Self::InUse { .. } | Self::OverLimit { .. } => {
                Retry::Later(Duration::from_millis(10))
            }
            Self::NotYet { .. } | Self::Registry { .. } | Self::Unreachable { .. } => {
                Retry::Later(Duration::from_millis(100))
            }
            Self::NotDelivered {
                applied: Applied::Nothing,
                ..
            } => Retry::Later(Duration::from_millis(100)),
            Self::NotRegistered { .. } | Self::Restarted { .. } => Retry::AfterRefresh,
            Self::Infeasible { .. } | Self::NoRoute { .. } => Retry::Elsewhere,
            Self::Conflicts(_)
            | Self::Install { .. }
            | Self::Invalid(_)
            | Self::NameTaken { .. }
            | Self::NoLink { .. }
            | Self::NotDelivered { .. }
            | Self::System { .. } => Retry::Never,
        }
    }

    /// The same, of the last of several attempts to install a link.
    pub(crate) fn after_attempts(mut self, attempts: u32, time: Duration) -> Self {
        if let Self::System { what: said, .. }
        | Self::Install { message: said, .. }
        | Self::NotYet { message: said, .. } = &mut self
        {
            said.push_str(&format!(" (attempt {attempts}, after {time:.1?})"));
        }
        self
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// Where a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Finding the way: descriptor, route.
    Resolve,
    /// Reaching the peer.
    Connect,
    /// Handing the request to the link.
    Post,
    /// At the peer, before a byte moved.
    Admit,
    /// While bytes moved, or before their end was confirmed.
    Move,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Post => "post",
            Self::Admit => "admit",
            Self::Move => "move",
        })
    }
}

/// What failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The peer refuses: the range is not within the registration.
    OutOfBounds,
    /// The peer refuses: it does not offer this buffer for this.
    Permission,
    /// The peer refuses: the buffer was registered anew.
    StaleGeneration,
    /// The peer refuses: it has no such registration (any more).
    UnknownRegistration,
    /// The peer refuses: it has no room to note that the write arrived.
    ArrivalsFull,
    /// The bytes at their place are not those that were sent.
    Corrupted,
    /// The connection to the peer ended.
    Broken(Arc<str>),
    /// The peer cannot be reached.
    Unreachable(Arc<str>),
    /// Another process answers where the peer was.
    OtherIncarnation,
    /// The peer does not keep to the protocol.
    Protocol(Arc<str>),
    /// Memory cannot be copied to or from the stage.
    Mover(Arc<str>),
    /// A file cannot be read or written there, or is not what was opened any more.
    File(Arc<str>),
    /// The engine is being shut down.
    Stopped,
    /// The caller ended it.
    Cancelled,
    /// Its deadline passed.
    TimedOut,
}

impl Reason {
    /// The peer was there and said so.
    pub(crate) fn is_an_answer(&self) -> bool {
        matches!(
            self,
            Self::OutOfBounds
                | Self::Permission
                | Self::StaleGeneration
                | Self::UnknownRegistration
                | Self::ArrivalsFull
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds => f.write_str("the range is outside of the peer's registration"),
            Self::Permission => f.write_str("the peer does not permit this access"),
            Self::StaleGeneration => f.write_str("the peer registered the buffer anew"),
            Self::UnknownRegistration => f.write_str("the peer has no such registration"),
            Self::ArrivalsFull => f.write_str("the peer's list of arrivals is full"),
            Self::Corrupted => f.write_str("the bytes that arrived are not those that were sent"),
            Self::Broken(why) => write!(f, "the connection broke: {why}"),
            Self::Unreachable(why) => write!(f, "the peer cannot be reached: {why}"),
            Self::OtherIncarnation => f.write_str("another process answers in the peer's place"),
            Self::Protocol(why) => write!(f, "the peer breaks the protocol: {why}"),
            Self::Mover(why) => write!(f, "memory was not copied {why}"),
            Self::File(why) => write!(f, "file {why}"),
            Self::Stopped => f.write_str("the engine is shutting down"),
            Self::Cancelled => f.write_str("the transfer was ended early"),
            Self::TimedOut => f.write_str("the transfer's deadline passed"),
        }
    }
}

/// Why a transfer did not finish, and what it has done all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (stage {stage}{}{})", but(", peer ", peer.as_ref()), but(", ", progress.as_ref()))]
#[non_exhaustive]
pub struct TransferError {
    /// What failed.
    pub reason: Reason,
    /// What a retry needs.
    pub retry: Retry,
    /// What was done all the same.
    pub applied: Applied,
    /// No byte of it could move any more when it failed. Otherwise wait for quiet.
    pub quiescent: bool,
    /// Where it failed.
    pub stage: Stage,
    /// The peer.
    pub peer: Option<PeerId>,
    /// What it was and how far it came; the engine says so when the task ends.
    pub progress: Option<Progress>,
}

fn but(what: &str, detail: Option<&impl fmt::Display>) -> String {
    detail.map_or_else(String::new, |detail| format!("{what}{detail}"))
}

/// What a task was that did not complete, and how far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Read or write.
    pub op: Op,
    /// How many bytes it had.
    pub length: u64,
    /// How many of them are at their destination for sure.
    pub bytes: u64,
    /// How long after it was submitted it ended.
    pub after: Duration,
}

impl Progress {
    pub(crate) fn new(op: Op, length: u64, bytes: u64, after: Duration) -> Self {
        Self {
            op,
            length,
            bytes,
            after,
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            op,
            length,
            bytes,
            after,
        } = self;
        write!(
            f,
            "{op} with {bytes} of {length} bytes done after {after:.1?}"
        )
    }
}

impl TransferError {
    /// A failure before anything was done.
    pub fn unstarted(reason: Reason, stage: Stage, peer: Option<PeerId>) -> Self {
        let retry = match reason {
            Reason::OutOfBounds | Reason::Permission | Reason::Stopped => Retry::Never,
            Reason::StaleGeneration | Reason::UnknownRegistration | Reason::OtherIncarnation => {
                Retry::AfterRefresh
            }
            Reason::Broken(_) | Reason::Cancelled => Retry::Here,
            Reason::ArrivalsFull => Retry::Later(Duration::from_millis(10)),
            Reason::Corrupted
            | Reason::Unreachable(_)
            | Reason::Protocol(_)
            | Reason::Mover(_)
            | Reason::File(_)
            | Reason::TimedOut => Retry::Elsewhere,
        };
        Self {
            reason,
            retry,
            applied: Applied::Nothing,
            quiescent: true,
            stage,
            peer,
            progress: None,
        }
    }

    /// The same failure after bytes may have moved.
    #[must_use]
    pub fn underway(mut self, quiescent: bool) -> Self {
        self.applied = Applied::Unknown;
        self.quiescent = quiescent;
        self.stage = Stage::Move;
        self
    }
}
