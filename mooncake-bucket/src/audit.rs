//! Compares the books with the directory. No lock is held while the disk is asked.

use std::{
    collections::HashMap,
    io,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{
    bucket::{Bucket, Stage},
    counters::Counters,
    format::file_name::FileName,
    storage::Storage,
};

/// What a look into the directory found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Measured {
    /// The lengths of our files, but of the lock and of what is set aside.
    pub file_bytes: u64,
    /// What these take on the disk.
    pub allocated_bytes: u64,
    /// The lengths of the files that are set aside.
    pub quarantined_bytes: u64,
    /// Files that are not ours.
    pub foreign_files: u64,
}

/// The directory beside the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// How long it took.
    pub took: Duration,
    /// What there is.
    pub measured: Measured,
    /// What the books said of all files just before. While nothing is under way, that is what there is.
    pub booked_bytes: u64,
    /// Sealed buckets, which never change, that were compared one by one.
    pub compared_buckets: u64,
    /// Of those, how many have another length than the books say, or are gone.
    pub wrong_buckets: u64,
    /// What the compared buckets take on the disk beyond their lengths, in whole blocks of it.
    pub excess_bytes: u64,
}

/// By bucket, the length of its file and what that takes.
type Lengths = HashMap<u32, (u64, u64)>;

impl Storage {
    /// What the directory says of itself.
    pub(crate) fn measure(&self) -> io::Result<Measured> {
        Ok(self.look()?.0)
    }

    /// The same, and each sealed bucket's length and what it takes.
    fn look(&self) -> io::Result<(Measured, Lengths)> {
        let (mut measured, mut sealed) = (Measured::default(), Lengths::new());
        for found in self.disk.list()? {
            match FileName::parse(&found.name).filter(|_| found.is_file) {
                None => measured.foreign_files += 1,
                Some(FileName::Lock) => {}
                Some(FileName::Quarantined) => measured.quarantined_bytes += found.bytes,
                Some(name) => {
                    measured.file_bytes += found.bytes;
                    measured.allocated_bytes += found.allocated_bytes;
                    // A target is sealed before it has its last name.
                    if let FileName::Sealed(id) | FileName::Target(id) = name {
                        sealed.insert(id, (found.bytes, found.allocated_bytes));
                    }
                }
            }
        }
        Ok((measured, sealed))
    }

    /// Compares the books with the directory, while all else goes on.
    pub(crate) fn audit(&self) -> io::Result<Audit> {
        let begun = Instant::now();
        let settled = |bucket: &Bucket| bucket.stage() == Stage::Sealed && !bucket.is_claimed();
        let all: Vec<_> = self.buckets.read().values().cloned().collect();
        let before: Vec<_> = all.into_iter().filter(|bucket| settled(bucket)).collect();
        let booked_bytes = self.used_bytes();
        let (measured, found) = self.look()?;
        let mut audit = Audit {
            measured,
            booked_bytes,
            ..Audit::default()
        };
        for bucket in before {
            // What is going is nobody's to compare.
            if self.bucket(bucket.id).is_none() || !settled(&bucket) {
                continue;
            }
            audit.compared_buckets += 1;
            let booked = bucket.file_bytes.load(Ordering::Relaxed);
            let (bytes, allocated) = found.get(&bucket.id).copied().unwrap_or_default();
            if bytes != booked {
                tracing::warn!(
                    bucket = bucket.id,
                    booked,
                    bytes,
                    "a bucket has not the length that it should have"
                );
                audit.wrong_buckets += 1;
            }
            audit.excess_bytes += allocated.saturating_sub(bytes.next_multiple_of(4096));
        }
        audit.took = begun.elapsed();
        Counters::add(&self.counters.audits, 1);
        Counters::add(&self.counters.audit_mismatches, audit.wrong_buckets);
        *self.audited.lock() = Some(audit);
        Ok(audit)
    }

    /// The same, if the last time was so long ago.
    pub(crate) fn audit_if_due(&self, last: &mut Instant) {
        let every = self.config.audit_every;
        if every.is_zero() || last.elapsed() < every {
            return;
        }
        *last = Instant::now();
        if let Err(error) = self.audit() {
            tracing::warn!(%error, "the directory could not be compared with the books");
        }
    }
}
