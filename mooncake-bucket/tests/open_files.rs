//! How many files a storage has open, however many there are.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use mooncake_bucket::{
    BucketConfig, BucketStorageBackend, Cursor, Disk, DiskFile, Found, GcConfig, Incarnation,
    LockFailure, Name, OpenOptions, Put, SimDisk, Space,
};

/// A disk that counts descriptors. A file takes two of them, as one does that is read past the page cache.
#[derive(Clone, Debug, Default)]
struct Counting {
    disk: SimDisk,
    count: Arc<Count>,
}

#[derive(Debug, Default)]
struct Count {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Counting {
    fn counted(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let now = self.count.now.fetch_add(2, Ordering::Relaxed) + 2;
        self.count.most.fetch_max(now, Ordering::Relaxed);
        let count = Arc::clone(&self.count);
        Arc::new(CountedFile { file, count })
    }

    /// The most that were open since the last call.
    fn most(&self) -> usize {
        let now = self.count.now.load(Ordering::Relaxed);
        self.count.most.swap(now, Ordering::Relaxed)
    }
}

impl Disk for Counting {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name).map(|file| self.counted(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name).map(|file| self.counted(file))
    }

    fn list(&self) -> io::Result<Vec<Found>> {
        self.disk.list()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn space(&self) -> io::Result<Space> {
        self.disk.space()
    }

    fn lock(&self, words: &str) -> Result<Box<dyn Send + Sync>, LockFailure> {
        self.disk.lock(words)
    }
}

#[derive(Debug)]
struct CountedFile {
    file: Arc<dyn DiskFile>,
    count: Arc<Count>,
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.count.now.fetch_sub(2, Ordering::Relaxed);
    }
}

impl DiskFile for CountedFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(at, into)
    }

    fn write_at(&self, at: u64, pieces: &[&[u8]]) -> io::Result<()> {
        self.file.write_at(at, pieces)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn allocated(&self) -> io::Result<u64> {
        self.file.allocated()
    }

    fn descriptors(&self) -> usize {
        2
    }
}

const BUCKETS: u64 = 200;
const MOST: usize = 16;
/// A bucket that grows or is written by a compaction, one that is looked at, the log, a control file.
const ON_TOP: usize = 4 * 2;

fn open(disk: &Counting) -> BucketStorageBackend {
    let mut config = BucketConfig::default();
    config.housekeeping = false;
    config.bucket_bytes = 16 << 10;
    config.open_files = MOST;
    config.open_threads = 1;
    OpenOptions::new(config)
        .open_on(Arc::new(disk.clone()))
        .unwrap()
}

fn life(seq: u64) -> Incarnation {
    Incarnation::new(1, seq)
}

fn keys(buckets: u64) -> Vec<String> {
    (0..buckets).map(|key| key.to_string()).collect()
}

/// A key in each bucket, and one that is dead by now.
fn filled(disk: &Counting) -> BucketStorageBackend {
    let backend = open(disk);
    for key in keys(BUCKETS) {
        for name in [Name::key(&key), Name::key("common")] {
            let stored = backend.put(Put::new(name, life(key.parse().unwrap()), b"v"));
            stored.unwrap();
        }
        backend.seal();
    }
    backend
}

#[test]
fn a_start_has_few_files_open_at_once_however_many_buckets_there_are() {
    let disk = Counting::default();
    drop(filled(&disk));
    disk.most();
    let backend = open(&disk);
    assert_eq!(backend.len(), BUCKETS + 1);
    assert_eq!(backend.accounting().dead_records, BUCKETS - 1);
    let most = disk.most();
    assert!(most <= ON_TOP, "{most}");
}

#[test]
fn no_more_files_are_kept_open_than_the_settings_say_whatever_is_done() {
    let disk = Counting::default();
    let backend = filled(&disk);
    let bounded = |what: &str| {
        let most = disk.most();
        assert!(most <= MOST + ON_TOP, "{most} after {what}");
        most
    };
    assert!(bounded("puts") >= MOST, "they are kept");
    for key in keys(BUCKETS) {
        assert!(backend.get(Name::key(&key), None).is_ok());
    }
    assert!(bounded("reads") >= MOST, "they are kept");
    let keys = keys(BUCKETS);
    let names: Vec<_> = keys.iter().map(|key| (Name::key(key), None)).collect();
    assert!(backend.get_batch(&names).iter().all(Result::is_ok));
    // A quarter of them twice: those that are being read are open even if they are not kept so.
    let most = disk.most();
    assert!(most <= MOST + MOST / 2 + ON_TOP, "{most} after a batch");
    let (mut listed, mut next) = (0, Some(Cursor::default()));
    while let Some(cursor) = next {
        let page = backend.list(cursor, 10);
        listed += page.records.len() as u64;
        next = page.next;
    }
    assert_eq!(listed, BUCKETS + 1);
    assert!(bounded("a listing") >= MOST, "they are kept");
    let mut gc = GcConfig::default();
    gc.live_fraction = 1.0;
    let found = backend.gc_candidates(&gc);
    let ids: Vec<_> = found.iter().map(|candidate| candidate.bucket).collect();
    for ids in ids[20..].chunks(10) {
        backend.compact_buckets(ids).unwrap();
    }
    bounded("compactions");
    for bucket in &ids[..20] {
        backend.evict_bucket(*bucket).unwrap();
    }
    bounded("evictions");
    for key in &keys {
        let _evicted_or_there = backend.get(Name::key(key), None);
    }
    bounded("more reads");
}
