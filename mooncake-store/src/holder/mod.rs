//! A node's disk: what it keeps for the store beyond its memory.
//!
//! [`FileStorage`] owns a directory of buckets and does what the master says about it, in loops that wait for nothing of
//! each other:
//!
//! - *standing*: mounts the storage, and tells the master all that is in it; what the master does not know goes,
//! - *removals*: makes tombstones durable, and acknowledges them,
//! - *offloads*: copies objects from memory to the disk,
//! - *evictions*: tells the master which objects give way, and drops their bucket,
//! - *losses*: tells the master what was found damaged or gone,
//! - *reports*: tells the master how full the disk is, and finds what waits.
//!
//! Whoever works on the disk has a thread of [`Records`](records::Records) do it. So no report waits for the disk.

mod counts;
mod desk;
mod evictions;
mod file_storage;
mod in_flight;
mod incoming;
mod losses;
mod offloads;
mod options;
mod records;
mod removals;
mod reports;
mod staging;
mod standing;

pub(crate) use file_storage::{FileStorage, Opened};

pub use counts::HolderCounts;
pub use options::StorageOptions;
