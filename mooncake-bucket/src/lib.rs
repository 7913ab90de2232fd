//! A crash-safe log of immutable objects on a local SSD.
//!
//! A [`BucketStorageBackend`] owns a directory. Objects are put under a tenant and a key, in one of their lives (an
//! [`Incarnation`]); many of them share a *bucket*, a file that only grows, is sealed, and never changes after that.
//! Removals are *tombstones* in a log of their own, until a collection lets go of the bytes.
//!
//! ```
//! use mooncake_bucket::{BucketConfig, BucketStorageBackend, Incarnation, Name, Put, Removal};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let directory = folder.path();
//! let storage = BucketStorageBackend::open(directory, BucketConfig::default())?;
//! let (name, life) = (Name::new("tenant", "key"), Incarnation::new(1, 1));
//! storage.put(Put::new(name, life, b"value"))?;
//! assert_eq!(storage.get(name, Some(life))?.bytes, b"value");
//! for result in storage.mark_removed(&[Removal { name, incarnation: life }]) {
//!     result?;
//! }
//! assert!(storage.get(name, None).is_err());
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! *Stored* means synced: the record, the name of its file, and all that a start needs to find it. Before that nobody
//! is served it.
//!
//! *Removed* means that this incarnation is not served again, also not after a power loss at any point, until
//! somebody puts it anew. That holds for [`Removed::Absent`] as well: what a failed put or an eviction may have left on
//! the disk cannot come back after that.
//!
//! *Read* means verified: magic, version, key, incarnation, length and checksums are looked at before a byte is
//! served. What is wrong is an error; what is in doubt is not there.
//!
//! *Accounted* means that live, dead and overhead bytes are the bytes in files, when nothing is under way.
//!
//! # Threads
//!
//! Methods block until the disk has answered, and run on the caller's thread; see [`BucketWorkers`] for why, and for
//! callers that must not block. No lock is held while the disk works, but that of callers who wait for the same thing:
//! those who put wait for a new bucket, or for the eviction that makes room for all of them, and share one sync; those who
//! remove share a sync of the log. Readers wait for nobody.
//!
//! # Layers
//!
//! [`BucketStorageBackend`] (what callers hold) → put, get, remove, collect, recover (drivers) → index, choices,
//! budgets (pure) and the format (bytes; see `FORMAT.md`) → [`Disk`] (the operating system, or a simulated one that
//! loses whatever it may).
//!
//! # Features
//!
//! `fuzzing`: ways in for the fuzz targets of this workspace, which may change at any time.
#![deny(unsafe_code)]

mod append;
mod audit;
mod backend;
mod bucket;
mod config;
mod control;
mod counters;
mod disk;
mod error;
mod format;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gc;
mod get;
mod get_batch;
mod hash;
mod ids;
mod index;
mod inspect;
mod list;
mod name;
mod open;
mod open_files;
mod put;
mod recover;
mod remove;
mod room;
mod storage;
mod tombstones;
mod workers;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use audit::{Audit, Measured};
pub use backend::{Accounting, BucketStorageBackend, OpenOptions};
pub use config::{BucketConfig, Eviction};
pub use counters::Counts;
pub use disk::{
    Disk, DiskFile, Engine, Found, LockFailure, PowerLost, Read, RealDisk, SimDisk, Space,
};
pub use error::{GcError, GetError, OpenError, PutError, RemoveError, Retry};
pub use format::{FORMAT_VERSION, Flaw, record::MAX_VALUE_BYTES};
pub use gc::{BucketGcWorker, Candidate, CandidateKind, GcConfig, GcReport};
pub use get::{Stat, Value};
pub use get_batch::GetInto;
pub use inspect::{Inspection, RecordState, SeenBucket, SeenRecord, SeenTombstone, Totals};
pub use list::{Cursor, Listed, Page, Unlisted};
pub use name::{Incarnation, MAX_NAME_BYTES, Name};
pub use open::Recovery;
pub use put::{Put, Stored};
pub use remove::{Removal, Removed};
pub use workers::{Abandoned, BucketWorkers, Busy, Completion};
