//! What goes in and out of the core: events and actions.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use mooncake_proto::{
    Applied, Fault, Retry,
    master::{answer, operation},
};

use super::{Incarnation, Outcome};
use crate::time::Time;

/// What is asked of the master.
pub type MasterRequest = operation::Operation;

/// What the master answers. The core is never given its `Error`: that is a [`Fault`].
pub type MasterAnswer = answer::Answer;

/// An operation that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// A request to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A read or write of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// The identity of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub [u8; 16]);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A segment as the master described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its identity.
    pub id: SegmentId,
    /// The name under which the transfer engine opens it.
    pub name: String,
    /// Incarnation of the process that owns it.
    pub owner_incarnation: u64,
    /// The registration that holds its memory.
    pub registration: u64,
    /// Of the registration.
    pub generation: u32,
    /// In bytes.
    pub length: u64,
}

/// The identity of a storage, a directory of buckets on a node's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(pub [u8; 16]);

impl fmt::Display for StorageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A storage as the master described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageInfo {
    /// Its identity.
    pub id: StorageId,
    /// Incarnation of the process that holds it.
    pub holder_incarnation: u64,
    /// Where that process answers readers.
    pub endpoint: String,
    /// The name under which the transfer engine opens its memory.
    pub segment_name: String,
}

/// Where bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// In which segment; shared by all locations of one answer.
    pub segment: Arc<SegmentInfo>,
    /// Within the segment's registration.
    pub offset: u64,
    /// In bytes.
    pub length: u64,
}

/// A value on the disk of a holder, which is asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlace {
    /// In which storage.
    pub storage: Arc<StorageInfo>,
    /// Whose value.
    pub key: Bytes,
    /// Which life of it; another one is not to be read.
    pub incarnation: Incarnation,
    /// In bytes.
    pub length: u64,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// Ask the master, and report [`Event::MasterAnswered`] or [`Event::MasterFailed`] once.
    CallMaster {
        /// To be named in the report.
        call: CallId,
        /// What to ask.
        request: MasterRequest,
        /// When an answer is of no use any more.
        deadline: Time,
    },
    /// End a transfer early if that can be done; its end is reported all the same.
    Cancel {
        /// Which.
        transfer: TransferId,
    },
    /// Tell the caller. Exactly one per operation, and nothing for the operation after it.
    Finish {
        /// Which.
        op: OpId,
        /// How it ended.
        outcome: Outcome,
    },
    /// Read `location` into the destination of the operation's item. The one of an earlier `Read`
    /// of the same item is quiet by now and may be used again, if it is long enough.
    Read {
        /// To be named in the report.
        transfer: TransferId,
        /// Of which operation.
        op: OpId,
        /// Which of its items.
        item: usize,
        /// What to read.
        location: Location,
        /// When to give up.
        deadline: Time,
    },
    /// Have a holder read the value from its disk, and the bytes brought to the destination of the operation's item, as
    /// by [`Read`](Self::Read). It has succeeded when they are there and their checksum is the holder's.
    ReadDisk {
        /// To be named in the report.
        transfer: TransferId,
        /// Of which operation.
        op: OpId,
        /// Which of its items.
        item: usize,
        /// What to read.
        place: DiskPlace,
        /// When to give up.
        deadline: Time,
    },
    /// Write the bytes of the operation's item to `location`.
    Write {
        /// To be named in the report.
        transfer: TransferId,
        /// Of which operation.
        op: OpId,
        /// Which of its items.
        item: usize,
        /// Where to.
        location: Location,
        /// When to give up.
        deadline: Time,
    },
}

/// What has happened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The master answered.
    MasterAnswered {
        /// Which call.
        call: CallId,
        /// With what.
        answer: MasterAnswer,
    },
    /// The call as a whole failed, whether here, on the way or at the master.
    MasterFailed {
        /// Which call.
        call: CallId,
        /// Why.
        fault: Fault,
    },
    /// A failed transfer became quiet after its end was reported.
    Quiet {
        /// Which.
        transfer: TransferId,
    },
    /// The master says that lives of objects are over. What it says is told in the order of its
    /// stream: after the answers that came before.
    Invalidated {
        /// Each key with its last life that is over.
        objects: Vec<(Bytes, Incarnation)>,
    },
    /// The session was interrupted: what the master said since may be missed.
    Lost,
    /// The master is short of space: what it has set aside and is not in use should go back.
    Reclaim,
    /// Time has passed: see [`ClientCore::next_deadline`](super::ClientCore::next_deadline).
    Tick,
    /// A transfer ended.
    TransferEnded {
        /// Which.
        transfer: TransferId,
        /// The bytes it moved, quiet with that; or why it failed.
        result: Result<u64, TransferFault>,
    },
}

/// Why a transfer failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferFault {
    /// What a retry needs.
    pub retry: Retry,
    /// What it moved all the same.
    pub applied: Applied,
    /// No byte of it can move any more; otherwise [`Event::Quiet`] follows.
    pub quiescent: bool,
    /// With whom; empty: not known.
    pub peer: String,
    /// For people.
    pub message: String,
}
