//! The storage as callers hold it.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc, Weak,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    append::Appender,
    audit::{Audit, Measured},
    bucket::Stage,
    config::BucketConfig,
    counters::Counts,
    disk::{Disk, RealDisk},
    error::{GcError, GetError, OpenError, PutError, RemoveError},
    gc::{Candidate, GcConfig, GcReport},
    get::{Stat, Value},
    get_batch::GetInto,
    list::{Cursor, Listed, Page},
    name::{Incarnation, Name},
    open::{Choices, Recovery, open},
    put::{Put, Stored},
    remove::{Removal, Removed},
    room::choose,
    storage::Storage,
};

/// A crash-safe log of objects in one directory. See the [crate](crate) for what it promises.
///
/// All methods can be called from any thread and block until the disk has answered.
pub struct BucketStorageBackend {
    pub(crate) storage: Arc<Storage>,
    recovery: Recovery,
    housekeeper: Option<JoinHandle<()>>,
}

/// How a directory is opened.
#[derive(Debug)]
pub struct OpenOptions {
    config: BucketConfig,
    choices: Choices,
}

impl OpenOptions {
    /// With these settings.
    #[must_use]
    pub fn new(config: BucketConfig) -> Self {
        Self {
            config,
            choices: Choices::default(),
        }
    }

    /// Takes a directory whose identity file is lost, with all that is in it and has no tombstone.
    #[must_use]
    pub fn adopt(mut self, adopt: bool) -> Self {
        self.choices.adopt = adopt;
        self
    }

    /// Opens only what is a storage already: a directory that is none is refused and left as it is.
    #[must_use]
    pub fn existing(mut self, existing: bool) -> Self {
        self.choices.existing = existing;
        self
    }

    /// Takes a directory with a damaged log of tombstones. What can be read of that counts, and the log is set aside;
    /// what else it said is dead is served again, so whoever removed it has to do so anew.
    #[must_use]
    pub fn accept_damaged_logs(mut self, accept: bool) -> Self {
        self.choices.lenient = accept;
        self
    }

    /// Opens a directory of the operating system; one that is not there is made.
    pub fn open(self, path: impl AsRef<Path>) -> Result<BucketStorageBackend, OpenError> {
        let path = path.as_ref();
        if self.choices.existing && !path.is_dir() {
            return Err(OpenError::NoStorage);
        }
        let disk = RealDisk::open(path);
        let mut disk = disk.map_err(OpenError::io(format!("opening {}", path.display())))?;
        if self.config.direct_reads {
            disk = disk.direct();
        }
        if self.config.uring {
            disk = disk.uring();
        }
        self.open_on(Arc::new(disk))
    }

    /// Opens a directory of any disk.
    pub fn open_on(self, disk: Arc<dyn Disk>) -> Result<BucketStorageBackend, OpenError> {
        let housekeeping = self.config.housekeeping;
        let (storage, recovery, held) = open(disk, self.config, self.choices)?;
        *storage.held.lock() = Some(held);
        let storage = Arc::new(storage);
        let housekeeper = if housekeeping {
            let (sender, receiver) = channel();
            *storage.sealer.lock() = Some(sender);
            let weak = Arc::downgrade(&storage);
            let thread = std::thread::Builder::new()
                .name("bucket-seal".into())
                .spawn(move || keep_house(&weak, &receiver))
                .map_err(OpenError::io("starting a thread"))?;
            Some(thread)
        } else {
            None
        };
        Ok(BucketStorageBackend {
            storage,
            recovery,
            housekeeper,
        })
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(200);

fn keep_house(storage: &Weak<Storage>, full: &Receiver<Arc<Appender>>) {
    let (mut looked, mut audited) = (Instant::now(), Instant::now());
    loop {
        let next = full.recv_timeout(LOOK_EVERY.saturating_sub(looked.elapsed()));
        let Some(storage) = storage.upgrade() else {
            return;
        };
        match next {
            Ok(appender) => storage.seal_or_warn(&appender),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // However much there is to seal: old buckets and the log must not wait for that to end.
        if looked.elapsed() >= LOOK_EVERY {
            maintain(&storage);
            storage.audit_if_due(&mut audited);
            looked = Instant::now();
        }
    }
}

fn maintain(storage: &Storage) {
    if let Some(before) = Instant::now().checked_sub(storage.config.bucket_age) {
        storage.close_old(before);
    }
    storage.seal_again();
    if let Err(error) = storage.finish_compactions() {
        tracing::warn!(%error, "a compaction could not be ended yet");
    }
    commit_what_waits(storage);
    if let Err(error) = storage.trim_log() {
        tracing::warn!(%error, "the log of tombstones could not be shortened");
    }
}

/// Nobody waits for the tombstones of what was replaced, but should the bucket with the later life be damaged or lost, they
/// are all that keeps the older one dead.
fn commit_what_waits(storage: &Storage) {
    if let Err(error) = storage.log.commit(&[], &storage.pen()) {
        tracing::warn!(%error, "tombstones could not be written yet");
    }
}

/// Where the bytes of a storage are. `live_bytes + dead_bytes + overhead_bytes == file_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accounting {
    /// Records that can be read, with their headers and keys.
    pub live_bytes: u64,
    /// Records that cannot be read any more and are not reclaimed yet.
    pub dead_bytes: u64,
    /// Heads, footers, padding, places that were never written, tombstones, control files.
    pub overhead_bytes: u64,
    /// The lengths of all files, but of the lock and of what is set aside.
    pub file_bytes: u64,
    /// The lengths of the files that are set aside.
    pub quarantined_bytes: u64,
    /// Records that can be read.
    pub live_records: u64,
    /// Records that cannot be read and are not reclaimed yet.
    pub dead_records: u64,
    /// Buckets.
    pub buckets: u64,
    /// Those of them that never change any more.
    pub sealed_buckets: u64,
}

impl BucketStorageBackend {
    /// Opens a directory, which is made if it is not there.
    pub fn open(path: impl AsRef<Path>, config: BucketConfig) -> Result<Self, OpenError> {
        OpenOptions::new(config).open(path)
    }

    /// Puts records. Each has a result; those that were stored are durable, whatever happens from now on.
    pub fn put_batch(&self, puts: &[Put<'_>]) -> Vec<Result<Stored, PutError>> {
        self.storage.put_batch(puts)
    }

    /// Puts one record.
    pub fn put(&self, put: Put<'_>) -> Result<Stored, PutError> {
        let result = self.storage.put_batch(&[put]).pop();
        result.expect("one was put")
    }

    /// Reads a whole value.
    pub fn get(&self, name: Name<'_>, incarnation: Option<Incarnation>) -> Result<Value, GetError> {
        self.storage.get(&name, incarnation)
    }

    /// Reads a whole value into the beginning of `into`. After an error that may hold anything.
    pub fn get_into(
        &self,
        name: Name<'_>,
        incarnation: Option<Incarnation>,
        into: &mut [u8],
    ) -> Result<Stat, GetError> {
        self.storage.get_into(&name, incarnation, into)
    }

    /// Fills `into` with the value from byte `from` on. Of a large value only the blocks in question are read and
    /// verified.
    pub fn get_range(
        &self,
        name: Name<'_>,
        incarnation: Option<Incarnation>,
        from: u32,
        into: &mut [u8],
    ) -> Result<Stat, GetError> {
        self.storage.get_range(&name, incarnation, from, into)
    }

    /// Reads several values, side by side where the disk can; each has a result.
    pub fn get_batch(
        &self,
        names: &[(Name<'_>, Option<Incarnation>)],
    ) -> Vec<Result<Value, GetError>> {
        self.storage.get_batch(names)
    }

    /// Reads several whole values, each into the beginning of its `into`; each has a result.
    pub fn get_batch_into(&self, gets: &mut [GetInto<'_>]) -> Vec<Result<Stat, GetError>> {
        self.storage.get_batch_into(gets)
    }

    /// Which life of a key is here. It is looked up, not read.
    pub fn stat(&self, name: Name<'_>) -> Option<Stat> {
        self.storage.stat(&name)
    }

    /// Makes records unreadable for good: when it returns, that is durable. One sync serves the whole batch.
    pub fn mark_removed(&self, removals: &[Removal<'_>]) -> Vec<Result<Removed, RemoveError>> {
        self.storage.mark_removed(removals)
    }

    /// Lists about `most` records with their keys, from a cursor on. What is here all the time is listed, once or, if it
    /// moved meanwhile, twice. What cannot be read is counted, and the rest listed.
    pub fn list(&self, from: Cursor, most: usize) -> Page {
        self.storage.list(from, most.max(1))
    }

    /// Lists all records of one bucket with their keys: what goes when it is evicted. There are none in one that is gone.
    pub fn list_bucket(&self, bucket: u32) -> Result<Vec<Listed>, GetError> {
        self.storage.list_one(bucket)
    }

    /// The bucket that would be evicted next, by the policy of the settings. A holder that has to tell others
    /// beforehand lists what is in it, tells them, and evicts it.
    pub fn next_victim(&self) -> Option<u32> {
        choose(self.storage.config.eviction, &self.storage.ranks())
    }

    /// Looks into the directory, without any lock: what all files have, and what they take on the disk. Whoever
    /// compares that with the accounting does so while nothing is under way.
    pub fn measure(&self) -> std::io::Result<Measured> {
        self.storage.measure()
    }

    /// Compares the books with the directory, file by file where nothing can change, and without any lock.
    pub fn audit(&self) -> std::io::Result<Audit> {
        self.storage.audit()
    }

    /// What the last comparison found; `None`: there was none yet. See [`BucketConfig::audit_every`].
    pub fn audited(&self) -> Option<Audit> {
        *self.storage.audited.lock()
    }

    /// Drops a sealed bucket with all that is alive in it, durably. Says how many records that were. They are out of sight even
    /// if the disk fails it, and may or may not be found by the next start then.
    pub fn evict_bucket(&self, bucket: u32) -> Result<u64, GcError> {
        self.storage.evict(bucket)
    }

    /// Which buckets' space could be had, in the order of its worth.
    pub fn gc_candidates(&self, config: &GcConfig) -> Vec<Candidate> {
        self.storage.candidates(config)
    }

    /// Drops a sealed bucket in which nothing is alive.
    pub fn retire_bucket(&self, bucket: u32) -> Result<GcReport, GcError> {
        self.storage.retire(bucket)
    }

    /// Copies what is alive in sealed buckets to a new one, or as many as `bucket_bytes` asks for, and drops them, as fast as
    /// the disk allows.
    pub fn compact_buckets(&self, buckets: &[u32]) -> Result<GcReport, GcError> {
        self.compact_buckets_paced(buckets, &mut |_, _| true)
    }

    /// The same at the caller's pace: `pace` is asked before so many bytes are read or written in so many
    /// operations, may wait, and ends the compaction by `false`; then the new bucket that was being written is none, and what
    /// it was to replace is as before.
    pub fn compact_buckets_paced(
        &self,
        buckets: &[u32],
        pace: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<GcReport, GcError> {
        self.storage.compact(buckets, pace)
    }

    /// The sealed buckets, oldest first.
    pub fn sealed_buckets(&self) -> Vec<u32> {
        let buckets = self.storage.buckets.read();
        let sealed = buckets
            .values()
            .filter(|bucket| bucket.stage() == Stage::Sealed);
        sealed.map(|bucket| bucket.id).collect()
    }

    /// Seals all that grows; what comes next begins new buckets. A bucket that somebody just writes to is sealed
    /// when they are done.
    pub fn seal(&self) {
        self.storage.seal_all();
    }

    /// Does what the housekeeping thread does from time to time: seals what is old, ends seals and compactions
    /// that the disk did not let end, makes the tombstones durable that nobody waits for, shortens their log.
    pub fn maintain(&self) {
        maintain(&self.storage);
    }

    /// Where the bytes are.
    pub fn accounting(&self) -> Accounting {
        let storage = &self.storage;
        let mut accounting = Accounting {
            overhead_bytes: storage.controls.bytes(),
            file_bytes: storage.used_bytes(),
            quarantined_bytes: storage.quarantined_bytes.load(Ordering::Relaxed),
            ..Accounting::default()
        };
        for bucket in storage.buckets.read().values() {
            let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            let (file, records, live) = (
                load(&bucket.file_bytes),
                load(&bucket.record_bytes),
                load(&bucket.live_bytes),
            );
            accounting.live_bytes += live;
            accounting.dead_bytes += records.saturating_sub(live);
            accounting.overhead_bytes += file.saturating_sub(records);
            let live = load(&bucket.live_records);
            accounting.live_records += live;
            accounting.dead_records += load(&bucket.records).saturating_sub(live);
            accounting.buckets += 1;
            accounting.sealed_buckets += u64::from(bucket.stage() == Stage::Sealed);
        }
        accounting
    }

    /// What was done since it was opened.
    pub fn counts(&self) -> Counts {
        self.storage.counters.counts()
    }

    /// What was found when it was opened.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Which storage this is, wherever its directory is moved to.
    pub fn identity(&self) -> [u8; 16] {
        self.storage.identity
    }

    /// Records that can be read.
    pub fn len(&self) -> u64 {
        self.storage.index.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the index of records takes in memory.
    pub fn index_memory_bytes(&self) -> u64 {
        self.storage.index.memory_bytes()
    }
}

impl fmt::Debug for BucketStorageBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketStorageBackend")
            .field("records", &self.len())
            .finish_non_exhaustive()
    }
}

/// What grows is sealed, so that the next start need not look through it, and all tombstones are written. What was put was
/// durable before.
impl Drop for BucketStorageBackend {
    fn drop(&mut self) {
        // A worker that compacts sees that and undoes what it has begun.
        self.storage.closed.store(true, Ordering::Release);
        self.storage.sealer.lock().take();
        if let Some(thread) = self.housekeeper.take() {
            // It seals what it was told of and ends.
            let _it_has_panicked_or_not = thread.join();
        }
        self.storage.seal_all();
        commit_what_waits(&self.storage);
    }
}
