//! Looking at a directory that somebody else has open, or that nobody can open.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{
    collections::BTreeMap,
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use mooncake_bucket::{
    BucketConfig, BucketStorageBackend, Disk, DiskFile, Flaw, Found, GcConfig, Incarnation,
    Inspection, LockFailure, Name, OpenError, OpenOptions, Put, RecordState, Removal, SimDisk,
    Space,
};

fn config() -> BucketConfig {
    let mut config = BucketConfig::default();
    config.bucket_bytes = 64 << 10;
    config.housekeeping = false;
    config
}

fn open(disk: &SimDisk) -> BucketStorageBackend {
    OpenOptions::new(config())
        .open_on(Arc::new(disk.clone()))
        .unwrap()
}

fn look(disk: &SimDisk) -> Inspection {
    Inspection::open_on(Arc::new(disk.clone())).unwrap()
}

fn life(seq: u64) -> Incarnation {
    Incarnation::new(1, seq)
}

fn put(backend: &BucketStorageBackend, key: u64, seq: u64) {
    let (text, value) = (format!("key-{key}"), vec![key as u8; 2000]);
    let put = Put::new(Name::new("tenant", &text), life(seq), &value);
    backend.put(put).unwrap();
}

fn remove(backend: &BucketStorageBackend, key: u64, seq: u64) {
    let text = format!("key-{key}");
    let removal = Removal {
        name: Name::new("tenant", &text),
        incarnation: life(seq),
    };
    assert!(backend.mark_removed(&[removal])[0].is_ok());
}

/// All live keys, and their lives.
fn live(inspection: &Inspection) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for bucket in inspection.buckets() {
        let shown = inspection.records(bucket.id, &mut |record| {
            if record.state == RecordState::Live {
                let (tenant, key) = record.name.clone().unwrap();
                assert_eq!(tenant, b"tenant");
                let key = String::from_utf8(key).unwrap();
                found.insert(key, record.incarnation.seq);
            }
            ControlFlow::Continue(())
        });
        shown.unwrap();
    }
    found
}

fn check_books(disk: &SimDisk, backend: &BucketStorageBackend) {
    let (totals, books) = (look(disk).totals(), backend.accounting());
    assert_eq!(totals.live_bytes, books.live_bytes, "{totals:?}");
    assert_eq!(totals.dead_bytes, books.dead_bytes, "{totals:?}");
    assert_eq!(totals.overhead_bytes, books.overhead_bytes, "{totals:?}");
    assert_eq!(totals.file_bytes, books.file_bytes, "{totals:?}");
    assert_eq!(totals.live_records, books.live_records, "{totals:?}");
    assert_eq!(totals.dead_records, books.dead_records, "{totals:?}");
    assert_eq!(totals.buckets, books.buckets, "{totals:?}");
    assert_eq!(totals.sealed_buckets, books.sealed_buckets, "{totals:?}");
}

#[test]
fn who_looks_beside_the_holder_sees_what_it_has_and_changes_nothing() {
    let disk = SimDisk::new();
    let backend = open(&disk);
    for key in 0..100 {
        put(&backend, key, 1);
    }
    for key in (0..100).step_by(3) {
        remove(&backend, key, 1);
    }
    for key in (1..100).step_by(3) {
        put(&backend, key, 2);
    }
    let steps = disk.steps();
    let inspection = look(&disk);
    assert_eq!(inspection.identity(), backend.identity());
    assert!(inspection.created() > 0 && inspection.tombstones().count() >= 34);
    let expected: BTreeMap<_, _> = (0..100)
        .filter(|key| key % 3 != 0)
        .map(|key| (format!("key-{key}"), 1 + key % 3 % 2))
        .collect();
    assert_eq!(live(&inspection), expected);
    // What was replaced is noted, and written with the next removal.
    backend.maintain();
    check_books(&disk, &backend);
    let mut whole = 0;
    for bucket in inspection.buckets() {
        let verified = inspection.verify(bucket.id, &mut |_, flaw| {
            flaw.unwrap();
            whole += 1;
        });
        verified.unwrap();
    }
    assert_eq!(whole, expected.len());
    assert_eq!(disk.steps(), steps + 2, "but for the tombstones");
    // In the middle of a compaction, before its commit and with files that come and go.
    let candidates = backend.gc_candidates(&GcConfig::default());
    let mut looks = 0;
    for candidate in candidates {
        let done = backend.compact_buckets_paced(&[candidate.bucket], &mut |_, _| {
            let inspection = look(&disk);
            assert_eq!(inspection.totals().transitions, 1);
            assert_eq!(live(&inspection), expected);
            looks += 1;
            true
        });
        done.unwrap();
        assert_eq!(live(&look(&disk)), expected);
        check_books(&disk, &backend);
    }
    assert!(looks > 10, "{looks}");
}

#[test]
fn who_looks_while_others_put_remove_and_compact_sees_no_record_that_never_was() {
    let folder = tempfile::tempdir().unwrap();
    let backend = BucketStorageBackend::open(folder.path(), config()).unwrap();
    for key in 0..50 {
        put(&backend, key, 1);
    }
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..6 {
                for key in 50..100 {
                    put(&backend, key, round + 1);
                }
                for key in (50..100).step_by(2) {
                    remove(&backend, key, round + 1);
                }
                backend.seal();
                for candidate in backend.gc_candidates(&GcConfig::default()) {
                    backend.compact_buckets(&[candidate.bucket]).unwrap();
                }
            }
            ended.store(true, Ordering::SeqCst);
        });
        let mut looks = 0;
        while !ended.load(Ordering::SeqCst) {
            let inspection = Inspection::open(folder.path()).unwrap();
            for bucket in inspection.buckets() {
                // It may be gone by now.
                let _gone_or_not = inspection.verify(bucket.id, &mut |record, flaw| {
                    flaw.unwrap();
                    assert!(record.incarnation.seq <= 6, "{record:?}");
                });
                assert_eq!(bucket.flaw, None);
            }
            // What nobody touches is always there.
            assert!(inspection.totals().live_records >= 50);
            looks += 1;
        }
        assert!(looks > 0);
    });
}

/// A disk that gives a bucket its last name while it is listed, so that neither name is found.
#[derive(Debug)]
struct Renaming {
    disk: SimDisk,
    bucket: u32,
    listings: AtomicU64,
}

impl Disk for Renaming {
    fn list(&self) -> io::Result<Vec<Found>> {
        let mut found = self.disk.list()?;
        if self.listings.fetch_add(1, Ordering::Relaxed) == 1 {
            let names = ["open", "bucket"].map(|kind| format!("{:08x}.{kind}", self.bucket));
            self.disk.rename(&names[0], &names[1])?;
            found.retain(|file| !names.contains(&file.name));
        }
        Ok(found)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name)
    }

    fn create(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
        panic!("nothing is changed")
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        panic!("nothing is changed")
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        panic!("nothing is changed")
    }

    fn sync(&self) -> io::Result<()> {
        panic!("nothing is changed")
    }

    fn space(&self) -> io::Result<Space> {
        self.disk.space()
    }

    fn lock(&self, _: &str) -> Result<Box<dyn Send + Sync>, LockFailure> {
        panic!("nobody is kept out")
    }
}

/// A disk that somebody is busy with: a bucket that is to be read has just got its last name, and what is in the last one has
/// just moved to a new one.
#[derive(Debug)]
struct Busy {
    disk: SimDisk,
    moves: bool,
    opened: AtomicU64,
}

impl Disk for Busy {
    fn list(&self) -> io::Result<Vec<Found>> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let files = self.disk.list()?.into_iter().map(|file| file.name);
        let last = files.filter(|name| name.ends_with(".bucket")).max();
        if let Some(number) = name.strip_suffix(".open") {
            self.disk.rename(name, &format!("{number}.bucket"))?;
        } else if self.moves && last.as_deref() == Some(name) {
            let number = u32::from_str_radix(&name[..8], 16).unwrap();
            let content = self.disk.content(name).unwrap();
            self.disk.remove(name)?;
            self.disk
                .plant(&format!("{:08x}.bucket", number + 1), content);
        }
        self.disk.open(name)
    }

    fn create(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
        panic!("nothing is changed")
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        panic!("nothing is changed")
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        panic!("nothing is changed")
    }

    fn sync(&self) -> io::Result<()> {
        panic!("nothing is changed")
    }

    fn space(&self) -> io::Result<Space> {
        self.disk.space()
    }

    fn lock(&self, _: &str) -> Result<Box<dyn Send + Sync>, LockFailure> {
        panic!("nobody is kept out")
    }
}

#[test]
fn who_looks_beside_a_busy_holder_reads_each_bucket_once_and_is_told_what_went() {
    for moves in [false, true] {
        let disk = SimDisk::new();
        let backend = open(&disk);
        for key in 0..60 {
            put(&backend, key, 1);
            backend.seal();
        }
        let sealed = backend.sealed_buckets();
        drop(backend);
        let names = ["open", "bucket"].map(|kind| format!("{:08x}.{kind}", sealed[7]));
        disk.rename(&names[1], &names[0]).unwrap();
        let busy = Arc::new(Busy {
            disk,
            moves,
            opened: AtomicU64::new(0),
        });
        let inspection = Inspection::open_on(Arc::<Busy>::clone(&busy)).unwrap();
        let opened = busy.opened.load(Ordering::Relaxed);
        let totals = inspection.totals();
        // One goes each time that it looks, until it has looked often enough.
        let gone = u64::from(moves);
        assert_eq!((totals.gone_buckets, totals.buckets), (gone, 60 - gone));
        assert_eq!(
            (totals.sealed_buckets, totals.damaged_buckets),
            (60 - gone, 0)
        );
        assert_eq!(live(&inspection).len() as u64, 60 - gone);
        assert!(opened < 5 * 60, "{opened} files were opened");
    }
}

#[test]
fn a_bucket_that_gets_its_last_name_during_the_look_is_not_missed() {
    let disk = SimDisk::new();
    let backend = open(&disk);
    for key in 0..5 {
        put(&backend, key, 1);
    }
    // As it is just before the name: with its footer.
    backend.seal();
    let bucket = backend.sealed_buckets()[0];
    let names = ["open", "bucket"].map(|kind| format!("{bucket:08x}.{kind}"));
    disk.rename(&names[1], &names[0]).unwrap();
    let renaming = Renaming {
        disk,
        bucket,
        listings: AtomicU64::new(0),
    };
    let inspection = Inspection::open_on(Arc::new(renaming)).unwrap();
    assert_eq!(live(&inspection).len(), 5);
    assert_eq!(inspection.totals().sealed_buckets, 1);
}

#[test]
fn what_is_damaged_is_told_and_the_rest_is_seen() {
    let disk = SimDisk::new();
    let backend = open(&disk);
    for key in 0..60 {
        put(&backend, key, 1);
    }
    for key in 0..3 {
        remove(&backend, key, 1);
    }
    drop(backend);
    let names = |ending: &str| -> Vec<String> {
        let files = disk.list().unwrap().into_iter().map(|file| file.name);
        files.filter(|name| name.ends_with(ending)).collect()
    };
    let (buckets, log) = (names(".bucket"), names(".tombstones").remove(0));
    // A value, a head, and a log that is damaged before its last frame.
    disk.damage(&buckets[0], |bytes| {
        let value = bytes.windows(100).position(|window| window == [9; 100]);
        bytes[value.unwrap()] ^= 1;
    });
    disk.damage(&buckets[1], |bytes| bytes[20] ^= 1);
    disk.damage(&log, |bytes| bytes[4096 + 50] ^= 1);
    let refused = OpenOptions::new(config()).open_on(Arc::new(disk.clone()));
    assert!(matches!(refused, Err(OpenError::Damaged { .. })));
    let inspection = look(&disk);
    let totals = inspection.totals();
    assert_eq!((totals.damaged_buckets, totals.damaged_logs), (1, 1));
    let flaws: Vec<_> = inspection.flaws().iter().map(|(file, _)| file).collect();
    assert_eq!(flaws, [&log, &buckets[1]]);
    let mut damaged = Vec::new();
    for bucket in inspection.buckets().iter().filter(|it| it.flaw.is_none()) {
        let verified = inspection.verify(bucket.id, &mut |record, flaw| {
            if let Err(flaw) = flaw {
                damaged.push((record.name.clone().unwrap().1, flaw));
            }
        });
        verified.unwrap();
    }
    assert_eq!(damaged, [(b"key-9".to_vec(), Flaw::Value)]);
}

#[test]
fn a_place_without_a_storage_is_none_and_stays_as_it_is() {
    let disk = SimDisk::new();
    disk.plant("notes.txt", b"mine".to_vec());
    let looked = Inspection::open_on(Arc::new(disk.clone()));
    assert!(matches!(looked, Err(OpenError::NoStorage)), "{looked:?}");
    assert_eq!(disk.list().unwrap().len(), 1);
    let opened = || OpenOptions::new(config()).existing(true);
    let refused = opened().open_on(Arc::new(disk.clone()));
    assert!(matches!(refused, Err(OpenError::NoStorage)), "{refused:?}");
    assert_eq!(disk.list().unwrap().len(), 1);
    let refused = opened().open("/nowhere/at/all");
    assert!(matches!(refused, Err(OpenError::NoStorage)), "{refused:?}");
    drop(open(&disk));
    assert!(opened().open_on(Arc::new(disk.clone())).is_ok());
    let nowhere = Inspection::open("/nowhere/at/all");
    assert!(matches!(nowhere, Err(OpenError::Io { .. })), "{nowhere:?}");
}

/// An operator's last resort, when no replica of what the log said is left to be asked.
#[test]
fn a_damaged_log_can_be_accepted_and_what_can_be_read_of_it_counts() {
    let disk = SimDisk::new();
    let backend = open(&disk);
    for key in 0..10 {
        put(&backend, key, 1);
    }
    for key in 0..3 {
        remove(&backend, key, 1);
    }
    drop(backend);
    let log = || {
        let files = disk.list().unwrap().into_iter();
        let logs = files.filter(|file| file.name.contains(".tombstones"));
        logs.map(|file| file.name).collect::<Vec<_>>()
    };
    // Of three frames the second one.
    let name = log().remove(0);
    disk.damage(&name, |bytes| bytes[2 * 4096 + 50] ^= 1);
    let strict = || OpenOptions::new(config()).open_on(Arc::new(disk.clone()));
    assert!(matches!(strict(), Err(OpenError::Damaged { .. })));
    let accepted = OpenOptions::new(config())
        .accept_damaged_logs(true)
        .open_on(Arc::new(disk.clone()))
        .unwrap();
    let recovery = accepted.recovery();
    assert_eq!((recovery.damaged_logs, recovery.quarantined_files), (1, 1));
    let here = |backend: &BucketStorageBackend, key: u64| {
        let text = format!("key-{key}");
        backend.stat(Name::new("tenant", &text)).is_some()
    };
    let found: Vec<_> = (0..4).map(|key| here(&accepted, key)).collect();
    assert_eq!(found, [false, true, false, true], "only the second is back");
    let books = accepted.accounting();
    let ours = disk.list().unwrap().into_iter();
    let ours = ours.filter(|file| !file.name.ends_with(".quarantined"));
    assert_eq!(books.file_bytes, ours.map(|file| file.bytes).sum::<u64>());
    drop(accepted);
    // It is whole again, and the log that was not is kept for whoever wants to look at it.
    let again = strict().unwrap();
    let found: Vec<_> = (0..4).map(|key| here(&again, key)).collect();
    assert_eq!(found, [false, true, false, true]);
    assert!(log().contains(&format!("{name}.quarantined")));
}

#[test]
fn an_audit_finds_a_bucket_that_is_not_what_the_books_say() {
    let disk = SimDisk::new();
    let backend = open(&disk);
    for key in 0..60 {
        put(&backend, key, 1);
    }
    backend.seal();
    let audit = backend.audit().unwrap();
    assert_eq!(audit.compared_buckets, backend.accounting().buckets);
    assert_eq!((audit.wrong_buckets, audit.excess_bytes), (0, 0));
    assert_eq!(audit.booked_bytes, audit.measured.file_bytes);
    assert!(audit.measured.allocated_bytes >= audit.measured.file_bytes);
    let [first, second, ..] = backend.sealed_buckets()[..] else {
        panic!("two buckets")
    };
    disk.damage(&format!("{first:08x}.bucket"), |bytes| bytes.truncate(9000));
    disk.remove(&format!("{second:08x}.bucket")).unwrap();
    let audit = backend.audit().unwrap();
    assert_eq!(audit.wrong_buckets, 2);
    assert_eq!(backend.audited(), Some(audit));
    let counts = backend.counts();
    assert_eq!((counts.audits, counts.audit_mismatches), (2, 2));
}

#[test]
fn audits_happen_by_themselves_beside_all_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config.housekeeping = true;
    config.audit_every = std::time::Duration::from_millis(1);
    let backend = BucketStorageBackend::open(folder.path(), config).unwrap();
    let mut round = 0;
    while backend.counts().audits < 5 {
        round += 1;
        for key in 0..20 {
            put(&backend, key, round);
        }
        for candidate in backend.gc_candidates(&GcConfig::default()) {
            let _done_or_taken = backend.compact_buckets(&[candidate.bucket]);
        }
    }
    assert_eq!(backend.counts().audit_mismatches, 0);
    assert!(backend.audited().unwrap().measured.allocated_bytes > 0);
}
