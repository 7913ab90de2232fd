//! What holders of storages ask, and what they are answered.

use serde::{Deserialize, Serialize};

use super::{
    Failure, Incarnation, Key, Located, Object, StorageHandle, StorageId, StorageIdentity,
};

/// What the holder of a storage, or an operator, asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StorageCall {
    /// The storage takes part from here on.
    Mount {
        /// Which, and how it is reached.
        storage: StorageIdentity,
        /// How full it is.
        measured: Measured,
        /// Nothing was ever put into it.
        fresh: bool,
    },
    /// One page of all that is in it.
    Reconcile {
        /// Which.
        storage: StorageId,
        /// Counts the pages from 0, which begins anew.
        page: u64,
        /// What is on the disk.
        objects: Vec<Held>,
        /// No page follows.
        last: bool,
    },
    /// How full it is.
    Report {
        /// Which.
        storage: StorageId,
        /// As it was measured.
        measured: Measured,
    },
    /// Its objects are not announced until it is mounted and reconciled again.
    Unmount {
        /// Which.
        storage: StorageId,
    },
    /// An unknown storage may come with all that it holds.
    Adopt {
        /// Which.
        storage: StorageId,
    },
    /// All storages, with what is known of them.
    List,
    /// Which objects to remove.
    FetchRemoves {
        /// Which storage asks.
        storage: StorageId,
        /// At most so many; 0: the master's limit.
        limit: u32,
        /// Only tasks with greater numbers.
        after: u64,
    },
    /// The tombstones of these tasks are durable.
    AckRemoves {
        /// Whose.
        storage: StorageId,
        /// Numbers of tasks.
        tasks: Vec<u64>,
    },
    /// Which objects to copy to the disk.
    FetchOffloads {
        /// Which storage asks.
        storage: StorageId,
        /// At most so many; 0: the master's limit.
        limit: u32,
        /// At most so many bytes, but one task at least; 0: the master's limit.
        limit_bytes: u64,
    },
    /// What became of them.
    NotifyOffloads {
        /// On which storage.
        storage: StorageId,
        /// For each task that has ended.
        results: Vec<OffloadResult>,
    },
    /// Replicas that the storage does not have any more, or is about to give up.
    Drop {
        /// Which.
        storage: StorageId,
        /// Of which objects.
        objects: Vec<Dropped>,
    },
}

/// As a storage reported it. 0 capacity: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// What it may take of its disk.
    pub capacity: u64,
    /// What its files take.
    pub used: u64,
    /// Of records that can be read.
    pub live: u64,
    /// Of records that cannot be read.
    pub dead: u64,
    /// Accepted and not written.
    pub queued: u64,
    /// Of values that can be read.
    pub value_bytes: u64,
    /// That can be read.
    pub objects: u64,
}

/// An object on a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Whose.
    pub tenant: String,
    /// Its key.
    pub key: Key,
    /// Which life of the key.
    pub incarnation: Incarnation,
    /// Of its value.
    pub length: u64,
}

/// One life of a tenant's key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectName {
    /// Whose.
    pub tenant: String,
    /// Its key.
    pub key: Key,
    /// Which life of the key.
    pub incarnation: Incarnation,
}

/// How an offload ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadResult {
    /// The task.
    pub task: u64,
    /// What it was for, by which it is judged when the task has ended before.
    pub object: Option<ObjectName>,
    /// What became of it.
    pub outcome: Offloaded,
}

/// What became of an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Offloaded {
    /// The object is on the disk, durably.
    Done,
    /// It is not, and may be tried again.
    Failed,
    /// It is not, and will never be.
    Refused,
}

/// A replica that a storage gives up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Whose object.
    pub tenant: String,
    /// Its key.
    pub key: Key,
    /// Which life of the key.
    pub incarnation: Incarnation,
    /// It gives way to others; otherwise it is lost or damaged.
    pub evicted: bool,
}

/// What a holder or operator is answered, where it is more than that it is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StorageAnswer {
    /// What of the page must be removed, by index.
    Reconciled {
        /// Growing.
        remove: Vec<u32>,
    },
    /// What waits to be fetched.
    Reported {
        /// Objects to remove.
        remove_tasks: u64,
        /// Objects to copy to the disk.
        offload_tasks: u64,
    },
    /// All that are known.
    Storages(Vec<StorageUsage>),
    /// Objects to remove, the oldest task first.
    Removes {
        /// With their numbers.
        tasks: Vec<(u64, Removal)>,
        /// There are further ones.
        more: bool,
    },
    /// Objects to copy to the disk.
    Offloads {
        /// Number, tenant and key of each.
        tasks: Vec<(u64, String, Key)>,
        /// What they are and where they lie.
        objects: Located<Object>,
        /// Keeps the memory until it is released or over; 0: there is nothing to keep.
        lease: u64,
        /// There are further ones.
        more: bool,
    },
    /// For each of what was asked.
    Each(Vec<Result<(), Failure>>),
}

/// What a holder is to remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Whose.
    pub tenant: String,
    /// Its key; none: all that the tenant has.
    pub key: Option<Key>,
    /// This life of the key, or all up to this one.
    pub incarnation: Incarnation,
}

/// How a storage is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorageUsage {
    /// Of the last holder, if none holds it now.
    pub storage: StorageHandle,
    /// As its holder reported it last.
    pub measured: Measured,
    /// Values of objects that are on it or on their way to it, as the master counts.
    pub value_bytes: u64,
    /// Objects on it that can be read.
    pub objects: u64,
    /// Waiting to be acknowledged.
    pub remove_tasks: u64,
    /// Waiting to be fetched.
    pub offload_tasks: u64,
    /// It has a holder.
    pub mounted: bool,
    /// It has told all that it holds.
    pub reconciled: bool,
    /// Since the holder's last sign of life.
    pub silent: std::time::Duration,
}
