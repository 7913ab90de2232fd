//! What callers ask of the core, and what they get.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mooncake_proto::{Fault, master::ObjectIncarnation};

use super::{Location, StorageInfo};

/// One life of an object. A later life of the same key is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    /// Of the master that admitted it.
    pub epoch: u64,
    /// Within the epoch.
    pub sequence: u64,
}

impl From<ObjectIncarnation> for Incarnation {
    fn from(wire: ObjectIncarnation) -> Self {
        Self {
            epoch: wire.epoch,
            sequence: wire.sequence,
        }
    }
}

impl From<Incarnation> for ObjectIncarnation {
    fn from(incarnation: Incarnation) -> Self {
        Self {
            epoch: incarnation.epoch,
            sequence: incarnation.sequence,
        }
    }
}

/// What a caller wants done. Each form is a batch, and has one result per key in the order of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// How objects are doing, for people.
    Describe {
        /// Which.
        keys: Vec<Bytes>,
    },
    /// Whether keys can be read.
    Exist {
        /// Which. A key may appear more than once.
        keys: Vec<Bytes>,
    },
    /// Reads objects.
    Get {
        /// Which. A key may appear more than once: each has a destination of its own.
        items: Vec<GetItem>,
    },
    /// Writes new objects.
    Put {
        /// Which. Of equal keys only the first is written.
        items: Vec<PutItem>,
        /// How, for all of them.
        options: PutOptions,
    },
    /// Removes objects.
    Remove {
        /// Which.
        keys: Vec<Bytes>,
        /// How, for all of them.
        options: RemoveOptions,
    },
    /// Removes all objects of the tenant, and waits until nobody can read any of them.
    RemoveAll,
}

/// One object to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutItem {
    /// Its name.
    pub key: Bytes,
    /// Its bytes, at least one.
    pub length: u64,
}

/// How objects are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Copies in memory, on different segments; 0 means 1.
    pub replicas: u32,
    /// Names of segments to try first.
    pub preferred_segments: Vec<String>,
    /// Objects that exist are replaced, each when its successor is written; otherwise a key that
    /// exists is an error.
    pub upsert: bool,
    /// Where no space is, the put waits for some until its deadline; otherwise it fails at once.
    pub wait_for_space: bool,
}

/// How objects are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoveOptions {
    /// Ends only when nobody can read the removed objects any more: each lease on them is given
    /// back or over.
    pub barrier: bool,
}

/// One object to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetItem {
    /// Its name.
    pub key: Bytes,
    /// Bytes of the destination; `None`: the driver allocates it once the length is known.
    pub capacity: Option<u64>,
}

/// How an operation ended: one result per key, in the order of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Of [`Operation::Describe`].
    Describe(Vec<Result<Description, Fault>>),
    /// Of [`Operation::Exist`].
    Exist(Vec<Result<Existence, Fault>>),
    /// Of [`Operation::Get`].
    Get(Vec<Result<Got, Fault>>),
    /// Of [`Operation::Put`]: the incarnation that the master made readable.
    Put(Vec<Result<Incarnation, Fault>>),
    /// Of [`Operation::Remove`].
    Remove(Vec<Result<(), Fault>>),
    /// Of [`Operation::RemoveAll`]: how many could be read before.
    RemoveAll(Result<u64, Fault>),
}

/// An object that lies whole in its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// Bytes read.
    pub length: u64,
    /// Which life of the object they are.
    pub incarnation: Incarnation,
}

/// Whether an object exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Existence {
    /// A read would have found it.
    pub exists: bool,
    /// It stays for so long; zero: nothing is promised.
    pub held: Duration,
}

/// How an object is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its current life.
    pub incarnation: Incarnation,
    /// In bytes.
    pub length: u64,
    /// Still being written, not readable.
    pub writing: bool,
    /// Leases on it.
    pub leases: u32,
    /// Since its last use.
    pub idle: Duration,
    /// Where it lies.
    pub replicas: Vec<Replica>,
}

/// One copy of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replica {
    /// On the disk of a holder.
    LocalDisk(Arc<StorageInfo>),
    /// In a segment.
    Memory(Location),
    /// In an object store.
    Remote {
        /// Name of the store.
        store: String,
        /// Where in it.
        path: String,
    },
}
