//! How a storage behaves.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use crate::error::OpenError;

/// Which bucket goes when room is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// None: a put that does not fit is refused.
    #[default]
    None,
    /// The oldest.
    Fifo,
    /// The one that was not read for the longest time.
    Lru,
    /// The one whose live bytes are the least loss for what it gives back: dead bytes first, then cold ones.
    CostAware,
}

/// Settings of a [`BucketStorageBackend`](crate::BucketStorageBackend).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BucketConfig {
    /// A bucket is sealed before it grows beyond this. A larger batch gets buckets of its own.
    pub bucket_bytes: u64,
    /// A bucket is sealed with so many records.
    pub bucket_records: u32,
    /// A bucket that was begun so long ago is sealed.
    pub bucket_age: Duration,
    /// Buckets that are written to at the same time. Objects with different grouping keys go to different ones,
    /// as far as that goes.
    pub lanes: usize,
    /// Values from this size on begin on a block of the disk; smaller ones share blocks.
    pub aligned_from: u32,
    /// The most that all files may have together.
    pub capacity_bytes: u64,
    /// So much of the file system stays free.
    pub reserve_bytes: u64,
    /// What happens when the capacity is reached.
    pub eviction: Eviction,
    /// Logs of tombstones are rewritten once they have so many bytes, and twice what was needed the last time.
    pub log_bytes: u64,
    /// Values are read past the page cache, where the file system can. What is read often is kept above this.
    pub direct_reads: bool,
    /// Batches of reads go through io_uring, where the kernel can.
    pub uring: bool,
    /// Descriptors of buckets that are kept open for readers; one that is read past the page cache has two. Those that grow
    /// or are just being read come on top. By default 1024, or half of what the process may have.
    pub open_files: usize,
    /// Threads that look at buckets when the storage is opened.
    pub open_threads: usize,
    /// How often the books are compared with the directory, if there is [`housekeeping`](Self::housekeeping); zero: never.
    pub audit_every: Duration,
    /// A thread seals what is full or old. Without it, whoever puts does the first, and
    /// [`maintain`](crate::BucketStorageBackend::maintain) the second.
    pub housekeeping: bool,
}

impl Default for BucketConfig {
    fn default() -> Self {
        Self {
            bucket_bytes: 256 << 20,
            bucket_records: 1 << 16,
            bucket_age: Duration::from_secs(60),
            lanes: 4,
            aligned_from: 64 << 10,
            capacity_bytes: u64::MAX,
            reserve_bytes: 0,
            eviction: Eviction::None,
            log_bytes: 4 << 20,
            direct_reads: true,
            uring: true,
            open_files: open_files(),
            open_threads: 4,
            audit_every: Duration::from_secs(60),
            housekeeping: true,
        }
    }
}

fn open_files() -> usize {
    let most = getrlimit(Resource::Nofile).current;
    let most = most.and_then(|most| usize::try_from(most).ok());
    most.map_or(1024, |most| (most / 2).clamp(1, 1024))
}

/// Bytes that a record's place can be named in.
const MOST_BUCKET_BYTES: u64 = 16 << 30;

impl BucketConfig {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let refuse = |setting, reason: String| Err(OpenError::Config { setting, reason });
        if !(16 << 10..=MOST_BUCKET_BYTES).contains(&self.bucket_bytes) {
            return refuse(
                "bucket_bytes",
                format!("must be 16 KiB to {MOST_BUCKET_BYTES} bytes"),
            );
        }
        if self.bucket_records == 0 {
            return refuse("bucket_records", "must not be 0".into());
        }
        let counts = [
            ("lanes", self.lanes),
            ("open_files", self.open_files),
            ("open_threads", self.open_threads),
        ];
        match counts.iter().find(|(_, count)| *count == 0) {
            Some((setting, _)) => refuse(setting, "must not be 0".into()),
            None => Ok(()),
        }
    }
}
