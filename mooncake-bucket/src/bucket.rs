//! One bucket: its file, and what is counted of it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    disk::{Disk, DiskFile, read_exact},
    format::{
        BLOCK,
        file_name::FileName,
        footer::{self, FooterEntry, Trailer},
    },
};

/// What a bucket's file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// It grows.
    Open,
    /// It does not grow any more, but has no footer.
    Closed,
    /// It never changes any more.
    Sealed,
}

/// See the module. What is counted changes with the record's shard locked, so sums are right when nothing moves.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) id: u32,
    pub(crate) stamp: u64,
    stage: AtomicU8,
    file: Mutex<Option<Arc<dyn DiskFile>>>,
    pub(crate) file_bytes: AtomicU64,
    /// Of all records, dead or not.
    pub(crate) record_bytes: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) live_bytes: AtomicU64,
    pub(crate) live_records: AtomicU64,
    /// The bucket that its live records are being copied to, or 0.
    pub(crate) moving_to: AtomicU32,
    /// A compaction or an eviction has it.
    claimed: AtomicBool,
    /// When it was last read, in milliseconds of the storage's clock.
    pub(crate) read_at: AtomicU64,
    /// When a record of it could last not be read to be copied, plus 1, in the same milliseconds; 0: never.
    pub(crate) unreadable_at: AtomicU64,
    /// Its records, while the file does not say them.
    pub(crate) entries: Mutex<Vec<FooterEntry>>,
}

impl Bucket {
    pub(crate) fn new(id: u32, stamp: u64, stage: Stage, file: Option<Arc<dyn DiskFile>>) -> Self {
        Self {
            id,
            stamp,
            stage: AtomicU8::new(stage as u8),
            file: Mutex::new(file),
            file_bytes: AtomicU64::new(0),
            record_bytes: AtomicU64::new(0),
            records: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            live_records: AtomicU64::new(0),
            moving_to: AtomicU32::new(0),
            claimed: AtomicBool::new(false),
            read_at: AtomicU64::new(0),
            unreadable_at: AtomicU64::new(0),
            entries: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Open,
            1 => Stage::Closed,
            _ => Stage::Sealed,
        }
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// A record was written, alive or dead.
    pub(crate) fn count_record(&self, span: u64) {
        self.record_bytes.fetch_add(span, Ordering::Relaxed);
        self.records.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_live(&self, span: u64) {
        self.live_bytes.fetch_add(span, Ordering::Relaxed);
        self.live_records.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_dead(&self, span: u64) {
        self.live_bytes.fetch_sub(span, Ordering::Relaxed);
        self.live_records.fetch_sub(1, Ordering::Relaxed);
    }

    /// Of records that cannot be read any more.
    pub(crate) fn dead_bytes(&self) -> u64 {
        let live = self.live_bytes.load(Ordering::Relaxed);
        self.record_bytes
            .load(Ordering::Relaxed)
            .saturating_sub(live)
    }

    /// `false`: somebody else has it.
    pub(crate) fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn unclaim(&self) {
        self.claimed.store(false, Ordering::Release);
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire)
    }

    /// Its open file. `opened`: it was not open before. Not found: the bucket is gone, and whatever was alive in
    /// it is elsewhere.
    pub(crate) fn file(&self, disk: &dyn Disk) -> io::Result<(Arc<dyn DiskFile>, bool)> {
        let mut slot = self.file.lock();
        if let Some(file) = &*slot {
            return Ok((Arc::clone(file), false));
        }
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        // It may be renamed between two looks.
        for name in [
            FileName::Sealed,
            FileName::Open,
            FileName::Target,
            FileName::Sealed,
        ] {
            match disk.open(&name(self.id).text()) {
                Ok(file) => {
                    *slot = Some(Arc::clone(&file));
                    return Ok((file, true));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => failure = error,
                Err(error) => return Err(error),
            }
        }
        Err(failure)
    }

    /// Lets go of the file; it is opened again when it is read.
    pub(crate) fn close_file(&self) {
        self.file.lock().take();
    }

    /// All records that were written to it, dead or not. `file` opens it.
    pub(crate) fn load_entries(
        &self,
        file: impl FnOnce() -> io::Result<Arc<dyn DiskFile>>,
    ) -> io::Result<Vec<FooterEntry>> {
        {
            // Sealing changes both under this lock.
            let entries = self.entries.lock();
            if self.stage() != Stage::Sealed {
                return Ok(entries.clone());
            }
        }
        let file = file()?;
        let bytes = self.file_bytes.load(Ordering::Relaxed);
        read_footer(&*file, self.stamp, self.id, bytes)
    }
}

/// Reads the index that ends a sealed bucket. What is wrong with it is an error of invalid data.
pub(crate) fn read_footer(
    file: &dyn DiskFile,
    stamp: u64,
    id: u32,
    file_bytes: u64,
) -> io::Result<Vec<FooterEntry>> {
    let flawed = |flaw| io::Error::new(io::ErrorKind::InvalidData, flaw);
    if file_bytes < 2 * BLOCK {
        return Err(flawed(crate::format::Flaw::Short));
    }
    let at = file_bytes - footer::TRAILER;
    let trailer = read_exact(file, at, footer::TRAILER as usize)?;
    let trailer = Trailer::decode(&trailer, stamp, id, file_bytes).map_err(flawed)?;
    let index = read_exact(file, trailer.index_at, trailer.index_bytes as usize)?;
    trailer.entries(&index).map_err(flawed)
}
