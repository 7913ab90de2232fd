//! One request on its way: what it asks, and how it ended.

use std::{fmt, sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::{Peer, Terms};
use crate::{
    error::{Reason, Stage, TransferError},
    identity::{Generation, PeerId, RegistrationId},
    memory::LocalSlice,
    metrics::MeterId,
    qos::Qos,
    segment::{RemoteRange, Segment},
};

/// The direction of a transfer, seen from the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// From the peer's segment into local memory.
    Read,
    /// From local memory into the peer's segment.
    Write,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// What a write's target does beside applying it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Its engine learns of the write under this number, once all bytes are applied, and never if it
    /// was not wholly applied. See [`ArrivalBook`](super::ArrivalBook).
    pub op_id: Option<u64>,
    /// The bytes at their place are compared with those that were sent, by CRC32C. A write whose bytes
    /// differ fails.
    pub checksum: bool,
}

impl Receipt {
    /// It asks for nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What a task asks of a link.
#[derive(Clone, Debug)]
pub struct TaskSpec {
    /// Read or write.
    pub op: Op,
    /// The local side, in order; their lengths sum up to `length`.
    pub local: SmallVec<[LocalSlice; 1]>,
    /// The process that owns the remote side.
    pub peer: Arc<Peer>,
    /// The remote buffer.
    pub registration: RegistrationId,
    /// Its generation, as the descriptor named it.
    pub generation: Generation,
    /// Where in the remote buffer.
    pub offset: u64,
    /// How many bytes, at least 1.
    pub length: u64,
    /// When the caller stops being interested.
    pub deadline: Option<Instant>,
    /// Of a write: what the peer shall be told. Links that cannot are not asked.
    pub receipt: Receipt,
    /// What the caller asks of its way.
    pub qos: Qos,
    /// What a policy or the caller asks of the link by name, if anything.
    pub terms: Option<Arc<Terms>>,
    /// What the caller named, if the engine may look it up anew.
    pub(crate) origin: Option<Origin>,
    /// Where its end is counted.
    pub(crate) meter: MeterId,
}

/// The part of a [`TaskSpec`] that a link needs to move the bytes.
#[derive(Debug)]
pub struct Posting {
    /// Read or write.
    pub op: Op,
    /// The local side, in order; their lengths sum up to `length`.
    pub local: SmallVec<[LocalSlice; 1]>,
    /// The process that owns the remote side.
    pub peer: PeerId,
    /// The remote buffer.
    pub registration: RegistrationId,
    /// Its generation, as the descriptor named it.
    pub generation: Generation,
    /// Where in the remote buffer.
    pub offset: u64,
    /// How many bytes, at least 1.
    pub length: u64,
    /// When the caller stops being interested.
    pub deadline: Option<Instant>,
    /// Of a write: what the peer shall be told. Links that cannot are not asked.
    pub receipt: Receipt,
}

/// What the caller named.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) segment: Segment,
    pub(crate) range: RemoteRange,
    /// When the caller stops being interested.
    pub(crate) deadline: Option<Instant>,
    /// How many fences the segment had seen.
    pub(crate) fences: u64,
    /// A bit for the place of each link that failed it.
    pub(crate) tried: u64,
    /// The place of the link that it was given to.
    pub(crate) link: u8,
    /// Other links could carry it, too.
    pub(crate) others: bool,
    /// It was posted once more for fresh knowledge of the peer.
    pub(crate) refreshed: bool,
    /// A part of it is done, and left out since.
    pub(crate) resumed: bool,
}

/// A task cell in the engine's slab; a stale reference of a reused slot matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskRef {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl TaskRef {
    /// Matches no task.
    pub(crate) const NONE: Self = Self {
        slot: u32::MAX,
        generation: u32::MAX,
    };
}

/// How a task ended; written once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All bytes are at the destination.
    Completed {
        /// How many.
        bytes: u64,
    },
    /// It failed.
    Failed(TransferError),
    /// The caller ended it.
    Cancelled(TransferError),
    /// Its deadline passed.
    TimedOut(TransferError),
}

impl Outcome {
    /// All bytes are at the destination.
    pub fn is_completed(&self) -> bool {
        matches!(self, Self::Completed { .. })
    }

    /// The caller ended it.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled(_))
    }

    /// Its deadline passed.
    pub fn is_timed_out(&self) -> bool {
        matches!(self, Self::TimedOut(_))
    }

    /// The caller ended it before anything was done.
    pub fn cancelled(stage: Stage, peer: PeerId) -> Self {
        Self::Cancelled(TransferError::unstarted(
            Reason::Cancelled,
            stage,
            Some(peer),
        ))
    }

    /// Its deadline passed before anything was done.
    pub fn timed_out(stage: Stage, peer: PeerId) -> Self {
        Self::TimedOut(TransferError::unstarted(
            Reason::TimedOut,
            stage,
            Some(peer),
        ))
    }

    /// The same end after bytes may have moved.
    #[must_use]
    pub fn underway(self, quiescent: bool) -> Self {
        match self {
            Self::Completed { .. } => self,
            Self::Failed(error) => Self::Failed(error.underway(quiescent)),
            Self::Cancelled(error) => Self::Cancelled(error.underway(quiescent)),
            Self::TimedOut(error) => Self::TimedOut(error.underway(quiescent)),
        }
    }

    /// Why it did not complete, however it was ended.
    pub fn error(&self) -> Option<&TransferError> {
        match self {
            Self::Completed { .. } => None,
            Self::Failed(error) | Self::Cancelled(error) | Self::TimedOut(error) => Some(error),
        }
    }

    pub(super) fn error_mut(&mut self) -> Option<&mut TransferError> {
        match self {
            Self::Completed { .. } => None,
            Self::Failed(error) | Self::Cancelled(error) | Self::TimedOut(error) => Some(error),
        }
    }
}
