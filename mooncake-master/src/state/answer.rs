//! What the state machine answers.

use std::{ops::Deref, sync::Arc, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

use super::{ClientId, Incarnation, Key, SegmentId, StorageAnswer, StorageId};

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Answer {
    /// To a call about a storage.
    Storage(StorageAnswer),
    /// To [`Describe`](super::Operation::Describe).
    Described(Located<Description>),
    /// To commands that have nothing to tell.
    Done,
    /// To [`Exist`](super::Operation::Exist).
    Exist(Vec<Result<Existence, Failure>>),
    /// To [`Grant`](super::Operation::Grant).
    Granted {
        /// Where in the segment.
        offset: u64,
        /// How many bytes; 0: none for now.
        length: u64,
    },
    /// To [`Hello`](super::Command::Hello).
    Hello {
        /// The client's state is still here, and the client knows of this life of it.
        resumed: bool,
    },
    /// To operations on keys that have only success to tell.
    Keys(Vec<Result<(), Failure>>),
    /// The answer comes by [`Effect::Settled`](super::Effect::Settled).
    Later {
        /// Names it there.
        ticket: u64,
    },
    /// To [`Lookup`](super::Operation::Lookup).
    Looked {
        /// Where the objects lie.
        found: Located<Object>,
        /// Covers all that were found; 0: none was.
        lease: u64,
    },
    /// To [`ListObjects`](super::Operation::ListObjects).
    Objects {
        /// In the order of their keys.
        objects: Vec<ListedObject>,
        /// Others follow.
        more: bool,
    },
    /// To [`Ping`](super::Operation::Ping).
    Pong {
        /// The client's state is here.
        known: bool,
    },
    /// To [`Put`](super::Operation::Put).
    Put(Vec<Result<Incarnation, Failure>>),
    /// The command as a whole failed.
    Refused(Failure),
    /// To [`RemoveAll`](super::Operation::RemoveAll).
    Removed {
        /// Objects that could be read before.
        objects: u64,
    },
    /// To [`ListSegments`](super::Operation::ListSegments).
    Segments {
        /// Each of them.
        segments: Vec<SegmentUsage>,
        /// Objects that made room for others so far.
        evicted_objects: u64,
    },
    /// To [`PutStart`](super::Operation::PutStart).
    Started(Located<Object>),
    /// To [`Tick`](super::Command::Tick).
    Ticked {
        /// There is work that should not wait for the next one.
        more: bool,
    },
}

/// Results that refer to segments by their place in a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Located<T> {
    /// One for each key.
    pub results: Vec<Result<T, Failure>>,
    /// What [`Replica::Memory`] refers to.
    pub segments: Vec<SegmentHandle>,
    /// What [`Replica::LocalDisk`] refers to.
    pub storages: Vec<StorageHandle>,
}

/// Whether an object can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Existence {
    /// Now.
    pub exists: bool,
    /// And for so long, unless it is removed; zero: nothing is promised.
    pub held: Duration,
}

/// An object and where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// This life of it.
    pub incarnation: Incarnation,
    /// In bytes.
    pub length: u64,
    /// Where its bytes are.
    pub replicas: Replicas,
}

/// Nearly always one.
pub type Replicas = SmallVec<[Replica; 1]>;

/// One place that holds an object's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Replica {
    /// On a node's disk.
    LocalDisk {
        /// Its place in the table of storages that goes with the replica.
        storage: u32,
    },
    /// In a segment.
    Memory {
        /// Its place in the table that goes with the replica.
        segment: u32,
        /// Within the segment's registration.
        offset: u64,
    },
    /// In an object store.
    Remote(Box<RemoteReplica>),
}

/// See [`Replica::Remote`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteReplica {
    /// Name of the configured store.
    pub store: String,
    /// The object's path in it.
    pub path: String,
}

/// What [`Describe`](super::Operation::Describe) tells of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Where it lies.
    pub object: Object,
    /// Not readable yet.
    pub writing: bool,
    /// On it now.
    pub leases: u32,
    /// Since its last use.
    pub idle: Duration,
}

/// An entry of a list of objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedObject {
    /// Its key.
    pub key: Key,
    /// In bytes.
    pub length: u64,
    /// How many.
    pub replicas: u32,
    /// This life of it.
    pub incarnation: Incarnation,
}

/// What a segment is, and whose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentIdentity {
    /// The same through all its lives.
    pub id: SegmentId,
    /// Under which peers open it.
    pub name: String,
    /// The process that offers it.
    pub owner: ClientId,
    /// Of its memory at the owner's transfer engine.
    pub registration: u64,
    /// Of that registration.
    pub generation: u32,
    /// In bytes.
    pub length: u64,
    /// The owner's name, for people.
    pub owner_name: String,
}

/// A segment's identity, shared by all answers that name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHandle(Arc<SegmentIdentity>);

impl From<SegmentIdentity> for SegmentHandle {
    fn from(identity: SegmentIdentity) -> Self {
        Self(Arc::new(identity))
    }
}

impl Deref for SegmentHandle {
    type Target = SegmentIdentity;

    fn deref(&self) -> &SegmentIdentity {
        &self.0
    }
}

impl Serialize for SegmentHandle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SegmentHandle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        SegmentIdentity::deserialize(deserializer).map(Self::from)
    }
}

/// What a storage is, and who holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageIdentity {
    /// The same wherever its directory is moved to.
    pub id: StorageId,
    /// The process that serves it.
    pub holder: ClientId,
    /// Where that process answers readers.
    pub endpoint: String,
    /// Under which peers open its memory.
    pub segment_name: String,
    /// For people.
    pub holder_name: String,
}

/// A storage's identity, shared by all answers that name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageHandle(Arc<StorageIdentity>);

impl From<StorageIdentity> for StorageHandle {
    fn from(identity: StorageIdentity) -> Self {
        Self(Arc::new(identity))
    }
}

impl Deref for StorageHandle {
    type Target = StorageIdentity;

    fn deref(&self) -> &StorageIdentity {
        &self.0
    }
}

impl Serialize for StorageHandle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StorageHandle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StorageIdentity::deserialize(deserializer).map(Self::from)
    }
}

/// How a segment is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentUsage {
    /// Which.
    pub segment: SegmentHandle,
    /// Of objects and of puts under way.
    pub used_bytes: u64,
    /// Waiting for leases or writers to end.
    pub quarantined_bytes: u64,
    /// Set aside for the owner's next puts.
    pub granted_bytes: u64,
    /// With a replica here.
    pub objects: u64,
    /// Since its owner's last sign of life.
    pub silent: Duration,
}

/// Why something was not done.
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Too many removes wait for a storage that is being adopted to tell what it holds.
    #[error(
        "a storage is being adopted: {held} removed keys are noted until it has told what it holds, and no more can be"
    )]
    AdoptionUnderWay { held: u64 },
    /// The client leaves too many answers unacknowledged.
    #[error("{held} answers wait to be acknowledged")]
    AnswersPileUp { held: u64 },
    /// The session's client is not known, or no longer.
    #[error("the master does not know this session: say hello")]
    Fenced,
    /// The grant is not known, or not all of the space is its any more.
    #[error("grant {grant} does not have this space")]
    GrantNotFound { grant: u64 },
    /// Somebody else began it, or owns it.
    #[error("it belongs to client {owner}")]
    IllegalClient { owner: ClientId },
    /// A key of no bytes, or of too many.
    #[error("a key has 1 to 4096 bytes, not {length}")]
    InvalidKey { length: u64 },
    /// The request makes no sense.
    #[error("{what}")]
    InvalidParams { what: String },
    /// The disk of the log is slower than what is to be remembered.
    #[error("{waiting} bytes wait to be written to the master's log")]
    LogBehind { waiting: u64 },
    /// What the master must remember cannot be written down.
    #[error(
        "the master's log cannot be written, so this cannot be remembered: see the master's messages, and restart it once the disk is well"
    )]
    LogFailed,
    /// Nothing to write to.
    #[error("no segment is mounted")]
    NoSegment,
    /// Nothing is free, and nothing can be evicted.
    #[error("no segment has {length} bytes free and nothing can be evicted for them")]
    NoSpace { length: u64 },
    /// Nothing to read, or to remove.
    #[error("no such object")]
    ObjectNotFound,
    /// The key is taken by a complete object.
    #[error("the object exists")]
    ObjectExists,
    /// The client said that it has this answer.
    #[error("operation {number} was acknowledged and is forgotten")]
    OperationForgotten { number: u64 },
    /// Too many answers are to come later.
    #[error("{held} answers are promised and have not come yet")]
    PromisesPileUp { held: u64 },
    /// Another put of the key is under way.
    #[error("the key is being written, by a put that may take another {left:?}")]
    PutInProgress { left: Duration },
    /// Too much memory waits for leases or writers to end.
    #[error("{quarantined} of {capacity} bytes wait for leases or writers to end")]
    QuarantineFull { quarantined: u64, capacity: u64 },
    /// A holder has not removed what it was told to remove before.
    #[error("storage {storage} has yet to remove {held} objects, which are all that may wait")]
    RemovesPileUp { storage: StorageId, held: u64 },
    /// The named incarnation was removed, replaced or taken over.
    #[error("the put was revoked")]
    Revoked,
    /// No segment of this identity is mounted.
    #[error("no such segment")]
    SegmentNotFound,
    /// This life of the segment was unmounted while others could still use it.
    #[error("generation {generation} of the segment was dropped: register it anew")]
    StaleSegment { generation: u32 },
    /// The storage has no holder, or another one.
    #[error("the storage is not mounted: mount it, then tell what it holds")]
    StorageNotFound,
    /// A storage comes with objects of which no life of this master has heard.
    #[error(
        "storage {storage} has objects of which this master knows nothing: adopt it to keep them, or empty its directory"
    )]
    StorageUnknown { storage: StorageId },
    /// Nothing is known of the task, nor of what it was for.
    #[error("task {task} is not known: what it was for is told by the next reconciliation")]
    TaskNotFound { task: u64 },
    /// No segment could ever hold it.
    #[error("{length} bytes do not fit: the largest segment has {limit}")]
    TooLarge { length: u64, limit: u64 },
    /// The table of tenants is full.
    #[error("there are {limit} tenants already")]
    TooManyTenants { limit: u64 },
}

impl Failure {
    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::InvalidParams { what: what.into() }
    }
}
