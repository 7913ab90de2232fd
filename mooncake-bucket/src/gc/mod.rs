//! Space of dead records comes back: buckets in which nothing is alive are dropped, and such with little in them
//! are rewritten.

mod budget;
mod choose;
pub(crate) mod compact;
mod worker;

use std::time::Duration;

pub use choose::{Candidate, CandidateKind};
pub(crate) use choose::{candidates, fitting};
pub use worker::BucketGcWorker;

/// When a bucket is rewritten, and how fast.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct GcConfig {
    /// A bucket is rewritten once no more than this part of it is alive, 0 to 1. With random removals a byte that
    /// is put is then written `1 / (1 - live_fraction)` times in the long run. 0: only what is wholly dead goes.
    pub live_fraction: f64,
    /// Bytes that compactions may read and write each second; 0: as many as they can.
    pub bytes_per_second: u64,
    /// Reads and writes that they may begin each second; 0: as many as they can.
    pub operations_per_second: u64,
    /// How often the worker looks for candidates.
    pub interval: Duration,
}

impl Default for GcConfig {
    fn default() -> Self {
        Self {
            live_fraction: 0.5,
            bytes_per_second: 64 << 20,
            operations_per_second: 2000,
            interval: Duration::from_secs(1),
        }
    }
}

/// What a collection gave back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GcReport {
    /// Buckets that are gone.
    pub buckets: u64,
    /// Live records that were copied for that.
    pub moved_records: u64,
    /// What they take.
    pub moved_bytes: u64,
    /// Bytes of files that are free now.
    pub reclaimed_bytes: u64,
    /// Records that were damaged and could not be copied.
    pub lost_records: u64,
}

impl GcReport {
    pub(crate) fn add(&mut self, other: &Self) {
        self.buckets += other.buckets;
        self.moved_records += other.moved_records;
        self.moved_bytes += other.moved_bytes;
        self.reclaimed_bytes += other.reclaimed_bytes;
        self.lost_records += other.lost_records;
    }
}
