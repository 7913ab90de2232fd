//! A crash-safe log of immutable objects on a local SSD.
#![deny(unsafe_code)]

mod append;
mod backend;
mod bucket;
mod config;
mod control;
mod counters;
mod disk;
mod error;
mod format;
mod gc;
mod get;
mod hash;
mod ids;
mod index;
mod name;
mod open;
mod put;
mod recover;
mod remove;
mod room;
mod storage;
mod tombstones;
mod workers;

pub use backend::{Accounting, BucketStorageBackend, OpenOptions};
pub use config::{BucketConfig, Eviction};
pub use counters::Counts;
pub use disk::{Disk, DiskFile, Found, LockFailure, PowerLost, RealDisk, SimDisk, Space};
pub use error::{GcError, GetError, OpenError, PutError, RemoveError, Retry};
pub use format::{FORMAT_VERSION, Flaw, record::MAX_VALUE_BYTES};
pub use gc::{BucketGcWorker, Candidate, CandidateKind, GcConfig, GcReport};
pub use get::{Stat, Value};
pub use name::{Incarnation, MAX_NAME_BYTES, Name};
pub use open::Recovery;
pub use put::{Put, Stored};
pub use remove::{Removal, Removed};
pub use workers::{Abandoned, BucketWorkers, Busy, Completion};
