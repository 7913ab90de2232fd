//! What can be asked of the state machine.

use serde::{Deserialize, Serialize};

use super::{ClientId, Incarnation, Key, Record, SegmentId, SegmentIdentity, StorageCall};

/// One step of the state machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Command {
    /// A client has all answers to operations below `number`.
    AcknowledgeBelow {
        /// Whose.
        client: ClientId,
        /// The first that may still be asked for.
        number: u64,
    },
    /// A client begins or resumes its session.
    Hello {
        /// The life of its process.
        client: ClientId,
        /// Whose objects it works on; empty: the default tenant.
        tenant: String,
        /// For people.
        name: String,
    },
    /// A client's stream has ended without another in its place. It may be dead, or come back.
    Lost {
        /// Whose.
        client: ClientId,
    },
    /// Records can not be made durable any more: what needs one is refused from now on.
    LogFailed,
    /// An operation of a client.
    Perform {
        /// Who asks.
        caller: Caller,
        /// For what.
        operation: Operation,
    },
    /// What an earlier life of the master told, in its order. Comes before all else.
    Replay(Vec<Record>),
    /// All of it is taken in.
    Replayed,
    /// A call about a storage.
    Storage {
        /// Who asks.
        client: ClientId,
        /// For what.
        call: StorageCall,
    },
    /// Time has passed: ends what is over.
    Tick,
}

/// Who asks for an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Caller {
    /// A client that said hello. Its tenant is known from there.
    Session {
        /// Who.
        client: ClientId,
        /// Of the operation: one that was answered under it is answered alike.
        number: u64,
    },
    /// A single call.
    Unary {
        /// Who, or nobody.
        client: ClientId,
        /// Empty: the default tenant.
        tenant: String,
    },
}

/// What a client can ask for. Lists of keys are answered one by one, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Operation {
    /// What is known about objects; no lease, and no use of them.
    Describe(Vec<Key>),
    /// Which objects could be read. They are reserved, so that a read that follows finds them.
    Exist(Vec<Key>),
    /// The client ends its session. `quiet`: no byte of its reads and writes moves any more.
    Goodbye {
        /// See above.
        quiet: bool,
    },
    /// Space in a segment of the client's own for its puts to come.
    Grant(Grant),
    /// A page of the tenant's objects, ordered by key.
    ListObjects(ListObjects),
    /// All mounted segments.
    ListSegments,
    /// Where objects lie, under a lease.
    Lookup(Vec<Key>),
    /// Offers a segment's memory to the store.
    Mount(SegmentIdentity),
    /// A sign of life.
    Ping,
    /// New objects that are written already, in space that was granted.
    Put(PutPlaced),
    /// The objects are written.
    PutEnd(Vec<(Key, Incarnation)>),
    /// The objects will not be written, and no byte of them moves any more.
    PutRevoke(Vec<(Key, Incarnation)>),
    /// Memory for new objects.
    PutStart(PutStart),
    /// Ends leases.
    Release(Vec<u64>),
    /// Deletes objects, those of an incarnation if it is named.
    Remove(Remove),
    /// Deletes all objects of the tenant that were put, or begun, before this. Answered when nobody
    /// can read any of them.
    RemoveAll,
    /// What is left of these grants is free, and nothing of it is being written.
    ReturnGrants {
        /// Where.
        segment: SegmentId,
        /// Which.
        numbers: Vec<u64>,
    },
    /// Takes a segment's memory out of the store.
    Unmount(SegmentId),
}

impl Operation {
    /// A repetition would not do the same again, so its answer is kept.
    pub(crate) fn mutates(&self) -> bool {
        match self {
            Self::Grant(_)
            | Self::Mount(_)
            | Self::Put(_)
            | Self::PutEnd(_)
            | Self::PutRevoke(_)
            | Self::PutStart(_)
            | Self::Remove(_)
            | Self::RemoveAll
            | Self::Unmount(_) => true,
            // A second lease costs no more than its time; a second release, return or goodbye, nothing.
            Self::Describe(_)
            | Self::Exist(_)
            | Self::Goodbye { .. }
            | Self::ListObjects(_)
            | Self::ListSegments
            | Self::Lookup(_)
            | Self::Ping
            | Self::Release(_)
            | Self::ReturnGrants { .. } => false,
        }
    }
}

/// See [`Operation::PutStart`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutStart {
    /// Keys and lengths of the objects.
    pub items: Vec<(Key, u64)>,
    /// Memory replicas of each, on segments of different names. Fewer are made when space is short.
    pub replicas: u32,
    /// Names of segments to try first.
    pub preferred: Vec<String>,
    /// Segments to try last.
    pub avoided: Vec<SegmentId>,
    /// A complete object is no obstacle: it stays until this put has ended, which replaces it.
    pub upsert: bool,
    /// Drawn by the service: the state machine has no randomness of its own.
    pub draw: u64,
}

/// See [`Operation::Grant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Where.
    pub segment: SegmentId,
    /// The client's own name for it, not 0.
    pub number: u64,
    /// Bytes that are wanted.
    pub length: u64,
}

/// See [`Operation::Put`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutPlaced {
    /// The client's own, in which the objects are.
    pub segment: SegmentId,
    /// They.
    pub items: Vec<Placed>,
    /// A complete object is no obstacle: it is replaced.
    pub upsert: bool,
}

/// An object whose bytes are in a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Its key.
    pub key: Key,
    /// In bytes.
    pub length: u64,
    /// Which grant.
    pub grant: u64,
    /// Within the segment's registration.
    pub offset: u64,
}

/// See [`Operation::Remove`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remove {
    /// Keys, and the only incarnation that is meant.
    pub items: Vec<(Key, Option<Incarnation>)>,
    /// Answered only when nobody can read what was removed, now or before under the same keys.
    pub barrier: bool,
}

/// See [`Operation::ListObjects`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListObjects {
    /// Only keys that begin with it.
    pub prefix: Key,
    /// Only keys greater than it.
    pub after: Key,
    /// At most so many; 0: [`MAX_PAGE`](super::MAX_PAGE), which is also the limit.
    pub limit: u32,
}
