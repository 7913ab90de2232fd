//! Looks at a directory without the lock and without a change, also while somebody has it open.
//!
//! What is seen is how the directory was within a moment: who has it open goes on meanwhile. Files that went between two
//! looks have it looked at anew.

mod look;
mod records;

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc};

pub use records::{RecordState, SeenRecord};

use crate::{
    bucket::Bucket,
    disk::{Disk, RealDisk},
    error::OpenError,
    format::{Flaw, file_name::FileName, footer::FooterEntry, tombstone::Tombstone},
    index::Index,
    name::Incarnation,
};

/// A directory as it was found. Nothing in it was changed, and nobody kept from it.
pub struct Inspection {
    disk: Arc<dyn Disk>,
    identity: [u8; 16],
    created: u64,
    /// What is alive, and where.
    index: Index,
    buckets: BTreeMap<u32, Looked>,
    seen: Vec<SeenBucket>,
    tombstones: Vec<(u32, Tombstone)>,
    totals: Totals,
    flaws: Vec<(String, Flaw)>,
}

/// A bucket that can be read.
struct Looked {
    name: FileName,
    bucket: Bucket,
    /// Its records, if its file does not say them.
    walked: Option<Vec<FooterEntry>>,
}

/// A bucket's file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenBucket {
    /// Its number.
    pub id: u32,
    /// Its file.
    pub file: String,
    /// Whether it never changes any more.
    pub sealed: bool,
    /// When it was made, in seconds since 1970; 0 if that cannot be read.
    pub created: u64,
    /// The length of its file.
    pub file_bytes: u64,
    /// Of that, records that can be read.
    pub live_bytes: u64,
    /// Records that cannot be read any more.
    pub dead_bytes: u64,
    /// How many can be read.
    pub live_records: u64,
    /// How many are dead.
    pub dead_records: u64,
    /// Records that are not whole, as far as they were looked at: in a bucket that grows, of puts under way.
    pub broken_records: u64,
    /// Of those, how many have whole ones of later puts behind them: they went bad, unless a crash ended several puts at once.
    pub passed_records: u64,
    /// What is wrong with it: nothing of it can be read, or, if it has records, its index was made anew.
    pub flaw: Option<Flaw>,
}

/// The whole directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Records that can be read.
    pub live_bytes: u64,
    /// Records that cannot be read any more.
    pub dead_bytes: u64,
    /// All else in files.
    pub overhead_bytes: u64,
    /// The lengths of all files, but of the lock and of what is set aside.
    pub file_bytes: u64,
    /// What these take on the disk.
    pub allocated_bytes: u64,
    /// Records that can be read.
    pub live_records: u64,
    /// Records that cannot.
    pub dead_records: u64,
    /// Records that are not whole.
    pub broken_records: u64,
    /// Buckets, readable or not.
    pub buckets: u64,
    /// Those of them that never change any more.
    pub sealed_buckets: u64,
    /// Those of which nothing can be read.
    pub damaged_buckets: u64,
    /// What the logs say is dead.
    pub tombstones: u64,
    /// Buckets that went whenever they were to be read: whoever has it open moved or dropped what was in them.
    pub gone_buckets: u64,
    /// Logs whose last frame is not whole: of a removal that is under way, or that a crash ended.
    pub torn_logs: u64,
    /// Logs that are damaged otherwise: nobody can open the directory before an operator decides.
    pub damaged_logs: u64,
    /// Compactions that are under way, or that a crash ended.
    pub transitions: u64,
    /// Files that are set aside.
    pub quarantined_files: u64,
    /// What they have.
    pub quarantined_bytes: u64,
    /// Files that are not ours.
    pub foreign_files: u64,
}

/// A tombstone of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenTombstone {
    /// Which log says so.
    pub log: u32,
    /// The hash of whose record, high half first.
    pub hash: [u64; 2],
    /// Which life of it.
    pub incarnation: Incarnation,
    /// In which bucket; `None`: in any.
    pub bucket: Option<u32>,
    /// Where in it the record begins; `None`: anywhere.
    pub at: Option<u64>,
}

impl Inspection {
    /// Looks at a directory of the operating system. Opening its files for reading is all that is done to it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let disk = RealDisk::read_only(path);
        let disk = disk.map_err(OpenError::io(format!("opening {}", path.display())))?;
        Self::open_on(Arc::new(disk))
    }

    /// Looks at a directory of any disk.
    pub fn open_on(disk: Arc<dyn Disk>) -> Result<Self, OpenError> {
        look::look(&disk)
    }

    /// Which storage this is.
    pub fn identity(&self) -> [u8; 16] {
        self.identity
    }

    /// Since when there is this storage, in seconds since 1970; 0 if its identity file is lost.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// What is in the whole directory.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// All buckets, oldest first.
    pub fn buckets(&self) -> &[SeenBucket] {
        &self.seen
    }

    /// What the logs say is dead, in the order in which they say it.
    pub fn tombstones(&self) -> impl Iterator<Item = SeenTombstone> + '_ {
        self.tombstones.iter().map(|(log, stone)| SeenTombstone {
            log: *log,
            hash: [stone.hash.high, stone.hash.low],
            incarnation: stone.incarnation,
            bucket: (stone.bucket != 0).then_some(stone.bucket),
            at: stone.place(),
        })
    }

    /// Files that are damaged and what is wrong with them.
    pub fn flaws(&self) -> &[(String, Flaw)] {
        &self.flaws
    }
}

impl fmt::Debug for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspection")
            .field("totals", &self.totals)
            .finish_non_exhaustive()
    }
}
