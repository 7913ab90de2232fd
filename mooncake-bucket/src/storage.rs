//! What all operations of a storage share.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    append::{Appender, Limits},
    audit::Audit,
    bucket::{Bucket, Stage},
    config::BucketConfig,
    control::Controls,
    counters::Counters,
    disk::{Disk, DiskFile},
    format::{
        BLOCK,
        file_name::FileName,
        footer::{self, FooterEntry},
        head::{self, Head},
        tombstone::{ANY_BUCKET, Tombstone},
    },
    gc::{Candidate, GcConfig, candidates, compact::Unfinished},
    hash::Hasher,
    ids::{Ids, random},
    index::{Entry, Index},
    open::Held,
    open_files::OpenFiles,
    room::Collecting,
    tombstones::{Pen, TombstoneLog},
};

/// See the module.
pub(crate) struct Storage {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) config: BucketConfig,
    pub(crate) identity: [u8; 16],
    pub(crate) hasher: Hasher,
    pub(crate) index: Index,
    pub(crate) buckets: RwLock<BTreeMap<u32, Arc<Bucket>>>,
    pub(crate) lanes: Box<[Lane]>,
    pub(crate) ids: Ids,
    pub(crate) log: TombstoneLog,
    pub(crate) controls: Controls,
    pub(crate) counters: Counters,
    pub(crate) leaving: Leaving,
    /// Of all buckets.
    pub(crate) file_bytes: AtomicU64,
    pub(crate) quarantined_bytes: AtomicU64,
    /// Room for puts that are about to be written.
    pub(crate) promised: AtomicU64,
    /// Room for compactions that are under way.
    pub(crate) collecting: Collecting,
    files: Mutex<OpenFiles>,
    begun: Instant,
    /// Told what is to be sealed, when there is a thread for that.
    pub(crate) sealer: Mutex<Option<std::sync::mpsc::Sender<Arc<Appender>>>>,
    pub(crate) closed: AtomicBool,
    /// Buckets that the disk did not let be sealed.
    pub(crate) unsealed: Mutex<Vec<Arc<Appender>>>,
    /// Held by the put that evicts for all that need room.
    pub(crate) making_room: Mutex<()>,
    /// Held by the one that rewrites the log of tombstones.
    trimming: Mutex<()>,
    /// What the last look at the directory found.
    pub(crate) audited: Mutex<Option<Audit>>,
    /// Compactions that the disk did not let end.
    pub(crate) unfinished: Mutex<Vec<Unfinished>>,
    /// Keeps others out as long as anything here may write.
    pub(crate) held: Mutex<Option<Held>>,
}

/// Where puts of some grouping keys go.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    current: Mutex<Option<Arc<Appender>>>,
    /// Held by the one that makes a new bucket.
    making: Mutex<()>,
}

/// Evictions that are not durable yet.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    count: Mutex<u32>,
    none: Condvar,
}

impl Leaving {
    pub(crate) fn begin(&self) -> LeavingGuard<'_> {
        *self.count.lock() += 1;
        LeavingGuard(self)
    }

    /// Returns once what was evicted before the call cannot come back.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.none.wait(&mut count);
        }
    }
}

pub(crate) struct LeavingGuard<'a>(&'a Leaving);

impl Drop for LeavingGuard<'_> {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

impl Storage {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        config: BucketConfig,
        identity: [u8; 16],
        ids: Ids,
    ) -> Self {
        let lanes = (0..config.lanes).map(|_| Lane::default()).collect();
        Self {
            disk,
            identity,
            hasher: Hasher::new(identity),
            index: Index::new(),
            buckets: RwLock::default(),
            lanes,
            ids,
            log: TombstoneLog::new(identity),
            controls: Controls::default(),
            counters: Counters::default(),
            leaving: Leaving::default(),
            file_bytes: AtomicU64::new(0),
            quarantined_bytes: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            collecting: Collecting::default(),
            files: Mutex::default(),
            begun: Instant::now(),
            sealer: Mutex::default(),
            closed: AtomicBool::new(false),
            unsealed: Mutex::default(),
            making_room: Mutex::default(),
            trimming: Mutex::default(),
            audited: Mutex::default(),
            unfinished: Mutex::default(),
            held: Mutex::default(),
            config,
        }
    }

    pub(crate) fn pen(&self) -> Pen<'_> {
        Pen {
            disk: &*self.disk,
            ids: &self.ids,
            controls: &self.controls,
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    pub(crate) fn bucket(&self, id: u32) -> Option<Arc<Bucket>> {
        self.buckets.read().get(&id).cloned()
    }

    /// A bucket's open file. So many are kept open, those that were opened last.
    pub(crate) fn open_file(&self, bucket: &Bucket) -> io::Result<Arc<dyn DiskFile>> {
        let (file, opened) = bucket.file(&*self.disk)?;
        if opened {
            self.keep_open(bucket.id, &*file);
        }
        Ok(file)
    }

    /// A file is open that nobody writes to any more.
    pub(crate) fn keep_open(&self, id: u32, file: &dyn DiskFile) {
        let (descriptors, most) = (file.descriptors(), self.config.open_files);
        let close = self.files.lock().opened(id, descriptors, most);
        for bucket in close.into_iter().filter_map(|id| self.bucket(id)) {
            bucket.close_file();
        }
    }

    /// All records that were written to a bucket, dead or not.
    pub(crate) fn load_entries(&self, bucket: &Bucket) -> io::Result<Vec<FooterEntry>> {
        bucket.load_entries(|| self.open_file(bucket))
    }

    /// The same of a bucket that is to go; if its footer cannot be read, those that can be found.
    pub(crate) fn entries_of(&self, bucket: &Bucket) -> Vec<Entry> {
        match self.load_entries(bucket) {
            Ok(entries) => {
                let entries = entries.iter();
                entries.map(|entry| Entry::new(bucket.id, entry)).collect()
            }
            Err(error) => {
                tracing::warn!(bucket = bucket.id, %error, "a footer could not be read");
                self.index.of_bucket(bucket.id)
            }
        }
    }

    /// A bucket has no file any more.
    pub(crate) fn forget(&self, bucket: &Bucket) {
        self.buckets.write().remove(&bucket.id);
        self.files.lock().gone(bucket.id);
        self.set_file_bytes(bucket, 0);
    }

    /// What all files have, but the lock and what was set aside.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.file_bytes.load(Ordering::Relaxed) + self.controls.bytes()
    }

    pub(crate) fn set_file_bytes(&self, bucket: &Bucket, bytes: u64) {
        let before = bucket.file_bytes.swap(bytes, Ordering::Relaxed);
        if bytes >= before {
            self.file_bytes.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.file_bytes.fetch_sub(before - bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn grow_file_bytes(&self, bucket: &Bucket, bytes: u64) {
        bucket.file_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.file_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A record cannot be read any more. Called with its shard locked, or when nobody else runs.
    pub(crate) fn count_dead(&self, entry: &Entry) {
        if let Some(bucket) = self.bucket(entry.bucket) {
            bucket.count_dead(entry.span());
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            bytes: self.config.bucket_bytes,
            records: self.config.bucket_records,
        }
    }

    /// The bucket that puts of this grouping key go to now.
    pub(crate) fn appender(&self, group: Option<u64>) -> io::Result<Arc<Appender>> {
        let lane = self.lane(group);
        let current = lane.current.lock().clone();
        if let Some(current) = current {
            let other = current.group != group && self.is_worth_sealing(&current);
            if !other {
                return Ok(current);
            }
            self.close(&current);
        }
        let making = lane.making.lock();
        let current = lane.current.lock().clone();
        if let Some(current) = current {
            return Ok(current);
        }
        let id = self.ids.take(&*self.disk, &self.controls)?;
        let made = Arc::new(self.make_bucket(id, group, FileName::Open)?);
        *lane.current.lock() = Some(Arc::clone(&made));
        drop(making);
        Ok(made)
    }

    fn lane(&self, group: Option<u64>) -> &Lane {
        let number = group.map_or(0, |group| group % self.lanes.len() as u64);
        &self.lanes[number as usize]
    }

    /// Another group gets its own bucket, unless that would make for very small ones.
    fn is_worth_sealing(&self, appender: &Appender) -> bool {
        appender.tail() >= self.config.bucket_bytes / 4
    }

    /// Makes a file with nothing but its head, durably.
    pub(crate) fn make_bucket(
        &self,
        id: u32,
        group: Option<u64>,
        name: impl Fn(u32) -> FileName,
    ) -> io::Result<Appender> {
        let head = Head {
            storage: self.identity,
            id,
            stamp: random()?,
            born: crate::open::unix_seconds(),
        };
        let text = name(id).text();
        let file = self.disk.create(&text)?;
        let written = file
            .write_at(0, &[&head.encode(head::BUCKET)])
            .and_then(|()| file.sync())
            .and_then(|()| self.disk.sync());
        if let Err(error) = written {
            // It is empty, whatever becomes of it: if it stays, the next start removes it.
            if unless_gone(self.disk.remove(&text)).is_err() {
                self.controls.look(&*self.disk, name(id));
            }
            return Err(error);
        }
        let bucket = Bucket::new(id, head.stamp, Stage::Open, Some(Arc::clone(&file)));
        let bucket = Arc::new(bucket);
        bucket.read_at.store(self.now_ms(), Ordering::Relaxed);
        self.grow_file_bytes(&bucket, BLOCK);
        self.buckets.write().insert(id, Arc::clone(&bucket));
        Ok(Appender::new(bucket, group, file))
    }

    /// The bucket takes no more; the lane begins another one.
    pub(crate) fn close(&self, appender: &Arc<Appender>) {
        let seal = appender.close();
        self.leave(appender, seal);
    }

    /// What is full is no lane's any more, and sealed by whoever was told to.
    pub(crate) fn leave(&self, appender: &Arc<Appender>, seal: bool) {
        for lane in &self.lanes {
            let mut current = lane.current.lock();
            if current
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, appender))
            {
                *current = None;
            }
        }
        if seal {
            // From here on somebody is about to seal it, which is worth waiting for.
            appender.bucket.set_stage(Stage::Closed);
            let sealer = self.sealer.lock().clone();
            let left = match sealer {
                Some(sealer) => sealer
                    .send(Arc::clone(appender))
                    .err()
                    .map(|unsent| unsent.0),
                None => Some(Arc::clone(appender)),
            };
            if let Some(appender) = left {
                self.seal_or_warn(&appender);
            }
        }
    }

    pub(crate) fn seal_or_warn(&self, appender: &Arc<Appender>) {
        if let Err(error) = self.seal(appender) {
            self.unsealed.lock().push(Arc::clone(appender));
            // It is as durable as before, and a start takes longer to read it.
            Counters::add(&self.counters.seal_failures, 1);
            tracing::warn!(bucket = appender.bucket.id, %error, "a bucket could not be sealed");
        }
    }

    /// Tries anew to seal what could not be sealed.
    pub(crate) fn seal_again(&self) {
        let unsealed = std::mem::take(&mut *self.unsealed.lock());
        for appender in unsealed {
            self.seal_or_warn(&appender);
        }
    }

    /// Ends a bucket that nobody writes to any more: footer, sync, name, sync.
    fn seal(&self, appender: &Appender) -> io::Result<()> {
        let bucket = &appender.bucket;
        let file = appender.file();
        bucket.set_stage(Stage::Closed);
        let entries = {
            let mut entries = bucket.entries.lock();
            entries.sort_unstable_by_key(|entry| entry.layout.at);
            entries.clone()
        };
        if entries.is_empty() {
            unless_gone(self.disk.remove(&FileName::Open(bucket.id).text()))?;
            self.disk.sync()?;
            self.forget(bucket);
            return Ok(());
        }
        let done = self.write_footer(bucket, &**file, &entries, appender.tail());
        if let Err(error) = done {
            if let Ok(bytes) = file.len() {
                self.set_file_bytes(bucket, bytes);
            }
            return Err(error);
        }
        let names = [FileName::Open(bucket.id), FileName::Sealed(bucket.id)];
        // It may have its name already, and only the sync failed.
        unless_gone(self.disk.rename(&names[0].text(), &names[1].text()))?;
        self.disk.sync()?;
        let mut entries = bucket.entries.lock();
        bucket.set_stage(Stage::Sealed);
        *entries = Vec::new();
        drop(entries);
        Counters::add(&self.counters.sealed, 1);
        self.keep_open(bucket.id, &**file);
        Ok(())
    }

    /// Puts the index of `entries` behind the groups that end at `tail`, and makes all of it durable.
    pub(crate) fn write_footer(
        &self,
        bucket: &Bucket,
        file: &dyn DiskFile,
        entries: &[FooterEntry],
        tail: u64,
    ) -> io::Result<()> {
        let footer = footer::encode(entries, bucket.stamp, bucket.id, tail);
        let end = tail + footer.len() as u64;
        if file.len()? > end {
            file.set_len(tail)?;
        }
        file.write_at(tail, &[&footer])?;
        file.sync()?;
        self.set_file_bytes(bucket, end);
        Ok(())
    }

    /// Closes what was begun before `before`, and has it sealed.
    pub(crate) fn close_old(&self, before: Instant) {
        for old in self.growing(before) {
            self.close(&old);
        }
    }

    /// Seals all that grows and that nobody writes to, now.
    pub(crate) fn seal_all(&self) {
        for appender in self.growing(Instant::now()) {
            let seal = appender.close();
            self.leave(&appender, false);
            if seal {
                self.seal_or_warn(&appender);
            }
        }
    }

    fn growing(&self, before: Instant) -> Vec<Arc<Appender>> {
        let current = self
            .lanes
            .iter()
            .filter_map(|lane| lane.current.lock().clone());
        current
            .filter(|current| current.begun() <= before)
            .collect()
    }
}

impl Storage {
    /// Rewrites the log of tombstones without those of buckets that are gone, if it is as long as that.
    pub(crate) fn trim_log(&self) -> io::Result<()> {
        self.trim_log_from(self.config.log_bytes)
    }

    /// The same, if it has so many bytes.
    pub(crate) fn trim_log_from(&self, worth_bytes: u64) -> io::Result<()> {
        // One at a time: what is refused by now would be allowed by another one that ends later, although that one has kept, or
        // not even seen, the tombstone that kills what is put then.
        let _turn = self.trimming.lock();
        if !self.log.is_worth_trimming(worth_bytes, &self.pen()) {
            return Ok(());
        }
        // What was put while it was removed is dead wherever it is. Its puts have ended by now, so that the tombstones of
        // each copy, which are made durable before that one goes, say as much.
        let refused = self.index.refused();
        // A bucket that is gone must be so for good before what is said of it goes.
        let here: HashSet<u32> = self.buckets.read().keys().copied().collect();
        self.disk.sync()?;
        self.log.commit(&[], &self.pen())?;
        let gone = |stone: &Tombstone| {
            if stone.bucket == ANY_BUCKET {
                refused.contains(&(stone.hash, stone.incarnation))
            } else {
                !here.contains(&stone.bucket) && self.bucket(stone.bucket).is_none()
            }
        };
        self.log.trim(gone, &self.pen())?;
        for (hash, incarnation) in refused {
            self.index.allow(hash, incarnation);
        }
        Ok(())
    }
}

impl Storage {
    /// What could be collected now.
    pub(crate) fn candidates(&self, config: &GcConfig) -> Vec<Candidate> {
        candidates(&self.ranks(), config)
    }
}

/// What is not there need not be removed or renamed.
pub(crate) fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let buckets = self.buckets.read().len();
        write!(
            f,
            "Storage({} records in {buckets} buckets)",
            self.index.len()
        )
    }
}
