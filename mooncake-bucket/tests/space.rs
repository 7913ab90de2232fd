//! Where bytes go: capacity, full disks, eviction, collection.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mooncake_bucket::{
    BucketConfig, BucketGcWorker, BucketStorageBackend, CandidateKind, Disk, Eviction, GcConfig,
    GcError, GetError, Incarnation, Name, OpenOptions, Put, PutError, Removal, Retry, SimDisk,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

fn config() -> BucketConfig {
    let mut config = BucketConfig::default();
    config.bucket_bytes = 256 << 10;
    config.housekeeping = false;
    config
}

fn open(disk: &SimDisk, config: BucketConfig) -> BucketStorageBackend {
    OpenOptions::new(config)
        .open_on(Arc::new(disk.clone()))
        .unwrap()
}

fn life(seq: u64) -> Incarnation {
    Incarnation::new(1, seq)
}

fn put(backend: &BucketStorageBackend, key: u64, bytes: usize) -> Result<(), PutError> {
    let (text, value) = (key.to_string(), vec![key as u8; bytes]);
    backend
        .put(Put::new(Name::key(&text), life(key), &value))
        .map(drop)
}

fn here(backend: &BucketStorageBackend, key: u64) -> bool {
    backend.get(Name::key(&key.to_string()), None).is_ok()
}

fn remove(backend: &BucketStorageBackend, keys: &[u64]) {
    let texts: Vec<_> = keys.iter().map(u64::to_string).collect();
    let removals: Vec<_> = keys
        .iter()
        .zip(&texts)
        .map(|(key, text)| Removal {
            name: Name::key(text),
            incarnation: life(*key),
        })
        .collect();
    assert!(backend.mark_removed(&removals).iter().all(Result::is_ok));
}

/// So many keys of 10,000 bytes each in sealed buckets, of which some are removed.
fn filled(disk: &SimDisk, keys: u64, dead: &[u64]) -> BucketStorageBackend {
    let backend = open(disk, config());
    for key in 0..keys {
        put(&backend, key, 10_000).unwrap();
    }
    backend.seal();
    remove(&backend, dead);
    backend
}

fn measured(disk: &SimDisk) -> u64 {
    disk.list().unwrap().iter().map(|file| file.bytes).sum()
}

#[test]
fn small_records_in_batches_cost_less_than_eight_per_cent() {
    let disk = SimDisk::new();
    let backend = open(&disk, BucketConfig::default());
    let value = vec![3; 4096];
    for batch in 0..80u64 {
        let keys: Vec<_> = (0..128)
            .map(|number| format!("{:032x}/layer/{number:03}", batch))
            .collect();
        let puts: Vec<_> = keys
            .iter()
            .map(|key| Put::new(Name::key(key), life(batch), &value))
            .collect();
        assert!(backend.put_batch(&puts).iter().all(Result::is_ok));
    }
    backend.seal();
    let payload = 80.0 * 128.0 * 4096.0;
    let overhead = measured(&disk) as f64 / payload - 1.0;
    println!("overhead {:.2} %", overhead * 100.0);
    assert!(overhead <= 0.08, "{overhead}");
}

#[test]
fn the_capacity_is_kept_and_a_put_that_does_not_fit_is_refused() {
    let disk = SimDisk::new();
    let mut config = config();
    config.capacity_bytes = 1 << 20;
    let backend = open(&disk, config);
    let mut stored = 0;
    let refused = loop {
        match put(&backend, stored, 10_000) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(measured(&disk) <= 1 << 20);
    };
    assert!(matches!(refused, PutError::Full { .. }), "{refused:?}");
    assert_eq!(refused.retry(), Retry::Later);
    assert!(stored > 60, "{stored} of 100 fit");
    backend.seal();
    assert!(measured(&disk) <= 1 << 20, "its footers had their room");
    // Removing makes no room by itself; collecting does.
    let all: Vec<_> = (0..stored).collect();
    remove(&backend, &all);
    for candidate in backend.gc_candidates(&GcConfig::default()) {
        assert_eq!(candidate.kind, CandidateKind::Dead);
        backend.retire_bucket(candidate.bucket).unwrap();
    }
    put(&backend, 1000, 10_000).unwrap();
}

#[test]
fn with_a_policy_puts_make_their_own_room() {
    for policy in [Eviction::Fifo, Eviction::Lru, Eviction::CostAware] {
        let disk = SimDisk::new();
        let mut config = config();
        config.capacity_bytes = 2 << 20;
        config.eviction = policy;
        let backend = open(&disk, config);
        for key in 0..1000 {
            put(&backend, key, 10_000).unwrap();
            assert!(measured(&disk) <= 2 << 20, "{policy:?}");
        }
        let kept = (0..1000).filter(|key| here(&backend, *key)).count() as u64;
        assert_eq!(kept, backend.len());
        assert!(kept > 100, "{policy:?} keeps {kept}");
        assert!(here(&backend, 999));
        let counts = backend.counts();
        assert_eq!(counts.evicted_records, 1000 - kept);
    }
}

/// Many callers at the end of the capacity: one bucket goes for all of them, and nobody is refused since all that could go
/// are just going, or just being sealed.
#[test]
fn callers_that_need_room_at_once_share_what_is_evicted() {
    for housekeeping in [false, true] {
        let disk = SimDisk::new();
        let mut config = config();
        config.bucket_bytes = 128 << 10;
        config.capacity_bytes = 1 << 20;
        config.eviction = Eviction::Fifo;
        config.housekeeping = housekeeping;
        let backend = open(&disk, config);
        disk.set_sync_time(Duration::from_millis(2));
        std::thread::scope(|scope| {
            for caller in 0..8u8 {
                let backend = &backend;
                scope.spawn(move || {
                    let (key, value) = (format!("{caller}"), vec![caller; 10_000]);
                    for number in 0..60 {
                        // Each replaces the one before, and what says so has to be written before a bucket goes.
                        let put = Put::new(Name::key(&key), life(number), &value);
                        backend.put(put).unwrap();
                    }
                });
            }
        });
        let counts = backend.counts();
        assert_eq!((counts.put_records, counts.refused_full), (480, 0));
        assert!(counts.evicted_buckets > 20, "{counts:?}");
        // All the room that puts have is used, but for a bucket or two.
        let used = backend.accounting().file_bytes;
        assert!(used > 600 << 10, "{used} bytes are left of {counts:?}");
    }
}

#[test]
fn a_full_disk_is_an_answer_and_what_was_stored_stays() {
    let disk = SimDisk::new();
    disk.set_capacity(Some(1 << 20));
    let backend = open(&disk, config());
    let mut stored = Vec::new();
    for key in 0..200 {
        match put(&backend, key, 10_000) {
            Ok(()) => stored.push(key),
            // What is left is for collections.
            Err(PutError::Full { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    // Somebody else fills it meanwhile: what is being written finds out.
    disk.fail_at(disk.steps(), std::io::ErrorKind::StorageFull);
    backend.seal();
    assert_eq!(backend.counts().seal_failures, 1);
    let used = measured(&disk);
    disk.set_capacity(Some(used));
    let full = put(&backend, 1000, 10_000);
    assert!(matches!(full, Err(PutError::Full { .. })), "{full:?}");
    assert!(stored.len() > 50 && stored.len() < 110, "{}", stored.len());
    assert!(stored.iter().all(|key| here(&backend, *key)));
    // The operator gives it more.
    disk.set_capacity(None);
    put(&backend, 1000, 10_000).unwrap();
    backend.seal();
    backend.maintain();
    let accounting = backend.accounting();
    assert_eq!(
        accounting.buckets, accounting.sealed_buckets,
        "what could not be sealed is, once there is room"
    );
    assert_eq!(accounting.file_bytes, measured(&disk), "{accounting:?}");
    drop(backend);
    let backend = open(&disk, config());
    assert!(stored.iter().all(|key| here(&backend, *key)));
    let accounting = backend.accounting();
    assert_eq!(accounting.file_bytes, measured(&disk), "{accounting:?}");
}

/// Puts leave room to what gives room back, of the capacity and of the disk alike.
#[test]
fn a_full_storage_can_remove_and_compact_and_takes_puts_again() {
    for by_capacity in [true, false] {
        let disk = SimDisk::new();
        let mut config = config();
        config.bucket_bytes = 128 << 10;
        if by_capacity {
            config.capacity_bytes = 1 << 20;
        } else {
            disk.set_capacity(Some(1 << 20));
        }
        let backend = open(&disk, config.clone());
        let mut stored = Vec::new();
        for key in 0.. {
            match put(&backend, key, 10_000) {
                Ok(()) => stored.push(key),
                Err(PutError::Full { .. }) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        backend.seal();
        assert!(stored.len() > 60, "{}", stored.len());
        let dead: Vec<_> = stored.iter().copied().filter(|key| key % 2 == 0).collect();
        for key in &dead {
            // One by one, so that each takes a block of the log.
            remove(&backend, &[*key]);
            assert!(measured(&disk) <= 1 << 20);
        }
        let mut gc = GcConfig::default();
        gc.live_fraction = 0.8;
        let found = backend.gc_candidates(&gc);
        assert!(found.len() >= 5, "{found:?}");
        for candidate in found {
            let done = backend.compact_buckets_paced(&[candidate.bucket], &mut |_, _| {
                assert!(measured(&disk) <= 1 << 20);
                // Its copies take nothing from what puts have.
                true
            });
            done.unwrap();
        }
        assert!(measured(&disk) < 700_000, "{}", measured(&disk));
        put(&backend, 1000, 10_000).unwrap();
        for key in stored {
            assert_eq!(here(&backend, key), !dead.contains(&key));
        }
    }
}

#[test]
fn a_compaction_without_room_is_an_answer_and_leaves_all_as_it_was() {
    let disk = SimDisk::new();
    let dead: Vec<_> = (0..60).filter(|key| key % 4 == 0).collect();
    let backend = filled(&disk, 60, &dead);
    let before = measured(&disk);
    disk.set_capacity(Some(before + (64 << 10)));
    let ids = backend.sealed_buckets();
    let refused = backend.compact_buckets(&ids);
    let Err(
        error @ GcError::Full {
            needed_bytes,
            room_bytes,
        },
    ) = refused
    else {
        panic!("{refused:?}")
    };
    assert!(
        needed_bytes > room_bytes && error.retry() == Retry::Later,
        "{error}"
    );
    // The disk fills up between the look and the write: that is found out by the write.
    disk.set_capacity(Some(before + (512 << 10)));
    let failed = backend.compact_buckets_paced(&ids[..1], &mut |_, _| {
        disk.set_capacity(Some(before + (8 << 10)));
        true
    });
    assert!(
        matches!(failed, Err(GcError::Io { .. } | GcError::Full { .. })),
        "{failed:?}"
    );
    assert!((0..60).all(|key| here(&backend, key) == (key % 4 != 0)));
    let accounting = backend.accounting();
    assert_eq!((accounting.file_bytes, measured(&disk)), (before, before));
    // Even on a disk without any room nothing is left to be undone, so that it goes on once there is some.
    disk.set_capacity(None);
    backend.compact_buckets(&ids).unwrap();
    assert!((0..60).all(|key| here(&backend, key) == (key % 4 != 0)));
}

#[test]
fn tombstones_without_room_are_an_answer_and_come_through_later() {
    let disk = SimDisk::new();
    let backend = filled(&disk, 60, &[0]);
    disk.set_capacity(Some(measured(&disk)));
    let removal = Removal {
        name: Name::key("1"),
        incarnation: life(1),
    };
    let Err(error) = &backend.mark_removed(&[removal])[0] else {
        panic!("there is no room")
    };
    assert_eq!(error.retry(), Retry::Later);
    assert_eq!(error.0.kind(), std::io::ErrorKind::StorageFull);
    assert!(!here(&backend, 1), "what is in doubt is a miss");
    assert_eq!(backend.accounting().file_bytes, measured(&disk));
    disk.set_capacity(None);
    remove(&backend, &[1]);
    disk.cut_power();
    for seed in 0..5 {
        assert!(!here(&open(&disk.after_power_loss(seed), config()), 1));
    }
}

/// Whatever step fails, the books say what the directory has.
#[test]
fn the_books_are_right_after_any_control_file_that_could_not_be_written() {
    for step in 0..12 {
        let disk = SimDisk::new();
        let backend = open(&disk, config());
        for key in 0..3 {
            put(&backend, key, 1000).unwrap();
        }
        backend.seal();
        // The first removal makes a log: a number for it, maybe, a file, its name.
        let fails = disk.steps() + step;
        disk.fail_at(fails, std::io::ErrorKind::Other);
        let removal = Removal {
            name: Name::key("1"),
            incarnation: life(1),
        };
        let failed = backend.mark_removed(&[removal])[0].is_err();
        if disk.steps() <= fails {
            assert!(step > 4 && !failed, "step {step}");
            return;
        }
        assert!(failed, "step {step}");
        let books = backend.accounting().file_bytes;
        assert_eq!(books, measured(&disk), "step {step}: {:?}", disk.list());
        // Nor is what the failure left behind forgotten when the log is rewritten.
        remove(&backend, &[1]);
        assert_eq!(
            backend.accounting().file_bytes,
            measured(&disk),
            "step {step}"
        );
    }
    panic!("a log has fewer steps");
}

#[test]
fn a_start_without_room_serves_what_is_there_be_it_the_disk_that_is_full_or_a_quota() {
    use std::io::ErrorKind;
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
        let disk = SimDisk::new();
        let backend = open(&disk, config());
        for key in 0..20 {
            put(&backend, key, 100).unwrap();
        }
        remove(&backend, &[3]);
        disk.cut_power();
        drop(backend);
        let disk = disk.after_process_death();
        // The directory is synced first; then come the footer, which is not written, a sync without it, and the number of a
        // log, which is not written either.
        for step in [1, 4] {
            disk.fail_at(step, kind);
        }
        let backend = open(&disk, config());
        assert!(backend.sealed_buckets().is_empty(), "{kind:?}");
        assert!((0..20).all(|key| here(&backend, key) == (key != 3)));
        drop(backend);
        let backend = open(&disk.after_process_death(), config());
        assert!((0..20).all(|key| here(&backend, key) == (key != 3)));
    }
}

#[test]
fn a_compaction_keeps_what_is_alive_and_gives_the_rest_back() {
    let disk = SimDisk::new();
    let dead: Vec<_> = (0..200).filter(|key| key % 4 != 0).collect();
    let backend = filled(&disk, 200, &dead);
    let before = measured(&disk);
    let found = backend.gc_candidates(&GcConfig::default());
    assert!(
        found
            .iter()
            .all(|candidate| candidate.kind == CandidateKind::Sparse)
            && found.len() >= 8
    );
    let ids: Vec<_> = found
        .iter()
        .take(3)
        .map(|candidate| candidate.bucket)
        .collect();
    let report = backend.compact_buckets(&ids).unwrap();
    assert_eq!((report.buckets, report.lost_records), (3, 0));
    assert!(report.moved_records >= 12, "{report:?}");
    assert!(measured(&disk) < before - 300_000, "{report:?}");
    for key in 0..200 {
        assert_eq!(here(&backend, key), key % 4 == 0, "{key}");
    }
    drop(backend);
    let backend = open(&disk, config());
    for key in 0..200 {
        assert_eq!(here(&backend, key), key % 4 == 0, "{key}");
    }
}

#[test]
fn what_a_compaction_cannot_copy_goes_with_its_bucket_and_nothing_is_read_twice_for_that() {
    let disk = SimDisk::new();
    let backend = open(&disk, config());
    for key in 1..=4 {
        put(&backend, key, 300).unwrap();
    }
    backend.seal();
    let bucket = backend.sealed_buckets()[0];
    // A removal that did not end, and a value that went bad.
    disk.fail_at(disk.steps(), std::io::ErrorKind::Other);
    let removal = Removal {
        name: Name::key("4"),
        incarnation: life(4),
    };
    assert!(backend.mark_removed(&[removal])[0].is_err());
    let file = format!("{bucket:08x}.bucket");
    let bytes = disk.content(&file).unwrap();
    let value = bytes.windows(300).position(|window| window == [2; 300]);
    disk.damage(&file, |bytes| bytes[value.unwrap()] ^= 1);
    // By the time that it is committed, the old footer cannot be read any more.
    let report = backend.compact_buckets_paced(&[bucket], &mut |_, _| {
        disk.damage(&file, |bytes| {
            let end = bytes.len();
            bytes[end - 64] = 0;
        });
        true
    });
    let report = report.unwrap();
    assert_eq!((report.moved_records, report.lost_records), (2, 1));
    let found = (1..=4).map(|key| backend.get(Name::key(&key.to_string()), None));
    let found: Vec<_> = found.collect();
    assert!(found[0].is_ok() && found[2].is_ok());
    for gone in [&found[1], &found[3]] {
        assert!(matches!(gone, Err(GetError::NotFound)), "{gone:?}");
    }
    let accounting = backend.accounting();
    assert_eq!((backend.len(), accounting.live_records), (2, 2));
    assert_eq!(accounting.file_bytes, measured(&disk));
    // What is not here can be put anew.
    put(&backend, 2, 300).unwrap();
    put(&backend, 4, 300).unwrap();
    drop(backend);
    let backend = open(&disk, config());
    assert!((1..=4).all(|key| here(&backend, key)));
}

#[test]
fn a_compaction_of_many_buckets_makes_none_that_is_larger_than_the_settings_say() {
    let disk = SimDisk::new();
    let dead: Vec<_> = (0..200).filter(|key| key % 4 == 0).collect();
    let backend = filled(&disk, 200, &dead);
    let before = backend.sealed_buckets();
    assert!(before.len() >= 8, "{before:?}");
    let report = backend.compact_buckets(&before).unwrap();
    let after = backend.sealed_buckets();
    assert_eq!(report.buckets, before.len() as u64);
    assert_eq!(report.moved_records, 150);
    assert!(after.len() >= 6 && before.iter().all(|id| !after.contains(id)));
    for file in disk.list().unwrap() {
        assert!(file.bytes <= (256 << 10) + (8 << 10), "{file:?}");
    }
    assert!((0..200).all(|key| here(&backend, key) == (key % 4 != 0)));
    drop(backend);
    let backend = open(&disk, config());
    assert!((0..200).all(|key| here(&backend, key) == (key % 4 != 0)));
}

#[test]
fn a_bucket_without_records_counts_until_its_file_is_gone() {
    let disk = SimDisk::new();
    let backend = open(&disk, config());
    put(&backend, 1, 100).unwrap();
    backend.seal();
    // A new bucket is made, synced and named; then its first group is not synced, and it cannot be removed.
    for step in 5..7 {
        disk.fail_at(disk.steps() + step, std::io::ErrorKind::Other);
    }
    assert!(put(&backend, 2, 100).is_err());
    let books = || {
        let accounting = backend.accounting();
        let sum = accounting.live_bytes + accounting.dead_bytes + accounting.overhead_bytes;
        (sum, accounting.file_bytes, accounting.buckets)
    };
    assert_eq!(books(), (measured(&disk), measured(&disk), 2));
    backend.maintain();
    assert_eq!(books(), (measured(&disk), measured(&disk), 1));
}

/// With random removals a byte is written `1 / (1 - T)` times, T being the part alive at which a bucket is rewritten.
#[test]
fn random_removals_cost_no_more_writing_than_the_threshold_says() {
    let disk = SimDisk::new();
    let mut config = config();
    config.bucket_bytes = 512 << 10;
    let backend = open(&disk, config);
    let mut gc = GcConfig::default();
    gc.live_fraction = 0.5;
    let mut rng = StdRng::seed_from_u64(1);
    let mut alive: Vec<u64> = Vec::new();
    for key in 0..20_000u64 {
        put(&backend, key, 3000).unwrap();
        alive.push(key);
        if alive.len() > 2000 {
            let gone = alive.swap_remove(rng.random_range(0..alive.len()));
            remove(&backend, &[gone]);
        }
        if key % 50 == 0 {
            for candidate in backend.gc_candidates(&gc) {
                if candidate.kind == CandidateKind::Dead {
                    backend.retire_bucket(candidate.bucket).unwrap();
                } else {
                    backend.compact_buckets(&[candidate.bucket]).unwrap();
                }
            }
        }
    }
    let counts = backend.counts();
    let amplification = (counts.put_bytes + counts.moved_bytes) as f64 / counts.put_bytes as f64;
    println!("written {amplification:.2} times, {counts:?}");
    assert!(counts.compacted_buckets > 20, "{counts:?}");
    assert!(
        amplification <= 1.1 / (1.0 - gc.live_fraction),
        "{amplification}"
    );
    assert!(alive.iter().all(|key| here(&backend, *key)));
}

#[test]
fn the_log_of_tombstones_shrinks_once_what_it_is_about_is_gone() {
    let disk = SimDisk::new();
    let mut config = config();
    config.bucket_records = 100_000;
    config.bucket_bytes = 16 << 20;
    let backend = open(&disk, config.clone());
    let keep: Vec<u64> = vec![1_000_000];
    put(&backend, keep[0], 10).unwrap();
    backend.seal();
    for round in 0..4u64 {
        let keys: Vec<u64> = (0..40_000).map(|number| round * 40_000 + number).collect();
        let texts: Vec<_> = keys.iter().map(u64::to_string).collect();
        let puts: Vec<_> = keys
            .iter()
            .zip(&texts)
            .map(|(key, text)| Put::new(Name::key(text), life(*key), b"v"))
            .collect();
        assert!(backend.put_batch(&puts).iter().all(Result::is_ok));
        backend.seal();
        remove(&backend, &keys);
    }
    let logs = || -> u64 {
        let files = disk.list().unwrap().into_iter();
        files
            .filter(|file| file.name.ends_with(".tombstones"))
            .map(|file| file.bytes)
            .sum()
    };
    assert!(logs() > 6 << 20, "{}", logs());
    backend.maintain();
    assert!(logs() > 6 << 20, "all of it is needed: {}", logs());
    for candidate in backend.gc_candidates(&GcConfig::default()) {
        backend.retire_bucket(candidate.bucket).unwrap();
    }
    // Twice as long as it was when all was needed, and then it is looked at again.
    let keys: Vec<u64> = (200_000..400_000).collect();
    let texts: Vec<_> = keys.iter().map(u64::to_string).collect();
    let puts: Vec<_> = keys
        .iter()
        .zip(&texts)
        .map(|(key, text)| Put::new(Name::key(text), life(*key), b"v"))
        .collect();
    assert!(backend.put_batch(&puts).iter().all(Result::is_ok));
    remove(&backend, &keys);
    backend.seal();
    for candidate in backend.gc_candidates(&GcConfig::default()) {
        backend.retire_bucket(candidate.bucket).unwrap();
    }
    backend.maintain();
    assert!(logs() < 1 << 20, "{}", logs());
    let accounting = backend.accounting();
    assert_eq!(accounting.file_bytes, measured(&disk));
    drop(backend);
    let backend = open(&disk, config);
    assert_eq!(backend.len(), 1);
    assert!(here(&backend, keep[0]));
}

#[test]
fn what_dies_together_lies_together_and_goes_without_a_copy() {
    let disk = SimDisk::new();
    let backend = open(&disk, config());
    let texts: Vec<_> = (0..400u64).map(|key| key.to_string()).collect();
    let value = vec![3; 5000];
    for (key, text) in texts.iter().enumerate() {
        let put = Put::new(Name::key(text), life(key as u64), &value);
        backend.put(put.group(key as u64 % 2)).unwrap();
    }
    backend.seal();
    let ended: Vec<u64> = (0..400).filter(|key| key % 2 == 1).collect();
    remove(&backend, &ended);
    let found = backend.gc_candidates(&GcConfig::default());
    assert!(found.len() >= 3, "{found:?}");
    for candidate in found {
        assert_eq!(candidate.kind, CandidateKind::Dead, "{candidate:?}");
        backend.retire_bucket(candidate.bucket).unwrap();
    }
    assert_eq!(backend.accounting().dead_bytes, 0);
    assert_eq!(backend.counts().moved_bytes, 0);
    assert!((0..400).all(|key| here(&backend, key) == (key % 2 == 0)));
}

#[test]
fn a_worker_collects_by_itself_and_one_that_is_stopped_in_the_middle_loses_nothing() {
    let disk = SimDisk::new();
    let dead: Vec<_> = (0..200).filter(|key| key % 4 != 0 || *key < 60).collect();
    let backend = filled(&disk, 200, &dead);
    let alive = |backend: &BucketStorageBackend| {
        assert!((0..200).all(|key| here(backend, key) != dead.contains(&key)));
    };
    // At this pace the first compaction takes hours.
    let mut gc = GcConfig::default();
    gc.bytes_per_second = 10;
    gc.interval = Duration::from_millis(1);
    let worker = BucketGcWorker::start(&backend, gc).unwrap();
    while backend.counts().retired_buckets < 2 {
        std::thread::yield_now();
    }
    worker.stop_and_join();
    assert_eq!(backend.counts().compacted_buckets, 0);
    alive(&backend);
    let accounting = backend.accounting();
    assert_eq!(accounting.file_bytes, measured(&disk), "{accounting:?}");
    assert!(
        disk.list()
            .unwrap()
            .iter()
            .all(|file| !file.name.ends_with(".target"))
    );

    gc.bytes_per_second = 0;
    gc.operations_per_second = 0;
    gc.interval = Duration::from_secs(3600);
    let worker = BucketGcWorker::start(&backend, gc).unwrap();
    let left = || worker.scan_candidates().into_iter().next();
    while let Some(candidate) = left() {
        // The thread may have been sooner.
        let _done_or_taken = worker.compact(&candidate);
    }
    worker.stop_and_join();
    assert!(backend.counts().compacted_buckets > 0);
    alive(&backend);
    drop(backend);
    alive(&open(&disk, config()));
}

#[test]
fn a_bucket_that_is_old_is_sealed_without_anybody_asking() {
    let disk = SimDisk::new();
    let mut config = config();
    config.housekeeping = true;
    config.bucket_age = Duration::from_millis(1);
    let backend = open(&disk, config);
    put(&backend, 1, 100).unwrap();
    while backend.sealed_buckets().is_empty() {
        std::thread::yield_now();
    }
    assert!(here(&backend, 1));
    put(&backend, 2, 100).unwrap();
    assert!(here(&backend, 2));
}

#[test]
fn a_storage_that_goes_does_not_wait_for_its_worker_nor_leave_it_behind() {
    let disk = SimDisk::new();
    let backend = filled(&disk, 50, &(0..30).collect::<Vec<_>>());
    let mut gc = GcConfig::default();
    gc.live_fraction = 1.0;
    gc.bytes_per_second = 10;
    gc.interval = Duration::from_millis(1);
    let worker = BucketGcWorker::start(&backend, gc).unwrap();
    while !disk
        .list()
        .unwrap()
        .iter()
        .any(|file| file.name.ends_with(".target"))
    {
        std::thread::yield_now();
    }
    drop(backend);
    // The worker is in the middle of something, which it undoes before the directory is anybody else's.
    let backend = loop {
        match OpenOptions::new(config()).open_on(Arc::new(disk.clone())) {
            Ok(backend) => break backend,
            Err(error) => assert_eq!(error.retry(), Retry::Later, "{error:?}"),
        }
        std::thread::yield_now();
    };
    assert!((0..50).all(|key| here(&backend, key) == (key >= 30)));
    assert!(worker.scan_candidates().is_empty());
    worker.stop_and_join();
}

fn bucket_file(bucket: u32) -> String {
    format!("{bucket:08x}.bucket")
}

#[test]
fn a_bucket_whose_footer_cannot_be_read_is_evicted_like_any_other() {
    for damaged in [false, true] {
        let disk = SimDisk::new();
        let mut config = config();
        config.capacity_bytes = 2 << 20;
        config.eviction = Eviction::Fifo;
        let backend = open(&disk, config);
        for key in 0..60 {
            put(&backend, key, 10_000).unwrap();
        }
        let first = bucket_file(backend.sealed_buckets()[0]);
        let bytes = disk.content(&first).unwrap().len();
        if damaged {
            disk.damage(&first, |content| content[bytes - 64..].fill(0));
        } else {
            disk.fail_reads(&first, bytes as u64 - 4096..u64::MAX);
        }
        for key in 60..400 {
            put(&backend, key, 10_000).unwrap();
        }
        assert!(!here(&backend, 0) && disk.content(&first).is_none());
        let kept = (0..400).filter(|key| here(&backend, *key)).count() as u64;
        let (counts, accounting) = (backend.counts(), backend.accounting());
        assert_eq!((kept, counts.refused_full), (backend.len(), 0));
        assert_eq!(counts.evicted_records, 400 - kept);
        assert_eq!(accounting.live_records, kept);
        assert_eq!(accounting.file_bytes, measured(&disk));
    }
}

#[test]
fn a_bucket_that_the_disk_does_not_let_go_does_not_keep_the_others_from_being_evicted() {
    let begin = |disk: &SimDisk| {
        let mut config = config();
        config.capacity_bytes = 2 << 20;
        config.eviction = Eviction::Fifo;
        open(disk, config)
    };
    // Which put evicts first. Nothing is replaced, so its first step is that the bucket goes.
    let backend = begin(&SimDisk::new());
    let mut evicts = 0;
    loop {
        put(&backend, evicts, 10_000).unwrap();
        if backend.counts().evicted_buckets > 0 {
            break;
        }
        evicts += 1;
    }
    let disk = SimDisk::new();
    let backend = begin(&disk);
    for key in 0..evicts {
        put(&backend, key, 10_000).unwrap();
    }
    let sealed = backend.sealed_buckets();
    disk.fail_at(disk.steps(), std::io::ErrorKind::Other);
    put(&backend, evicts, 10_000).unwrap();
    let left = backend.sealed_buckets();
    assert!(left.contains(&sealed[0]) && !left.contains(&sealed[1]));
    assert_eq!(backend.counts().refused_full, 0);
    assert!(here(&backend, evicts) && !here(&backend, 0));
    assert_eq!(backend.accounting().file_bytes, measured(&disk));
    // What failed once is done by and by.
    put(&backend, evicts + 1, 100).unwrap();
    backend.evict_bucket(sealed[0]).unwrap();
    assert_eq!(backend.accounting().file_bytes, measured(&disk));
}

#[test]
fn a_record_that_the_disk_cannot_read_does_not_keep_a_worker_from_other_buckets() {
    let disk = SimDisk::new();
    let dead: Vec<_> = (0..100).filter(|key| key % 4 != 0).collect();
    let backend = filled(&disk, 100, &dead);
    let all = backend.gc_candidates(&GcConfig::default());
    let worst = all[0].bucket;
    let file = bucket_file(worst);
    // All of its values, and not what says where they are.
    let bytes = all[0].file_bytes;
    disk.fail_reads(&file, 4096..bytes - 4096);
    let footer = bucket_file(all[1].bucket);
    disk.fail_reads(&footer, all[1].file_bytes - 64..u64::MAX);
    let mut gc = GcConfig::default();
    gc.bytes_per_second = 0;
    gc.operations_per_second = 0;
    gc.interval = Duration::from_millis(1);
    let worker = BucketGcWorker::start(&backend, gc).unwrap();
    let left = || {
        let left = backend.gc_candidates(&gc).into_iter();
        left.map(|candidate| candidate.bucket).collect::<Vec<_>>()
    };
    while left() != [worst] {
        std::thread::yield_now();
    }
    worker.stop_and_join();
    disk.fail_reads(&file, 0..0);
    for key in 0..100 {
        assert_eq!(here(&backend, key), key % 4 == 0, "{key}");
    }
    assert_eq!(backend.counts().lost_records, 0);
    backend.compact_buckets(&[worst]).unwrap();
    assert!((0..100).all(|key| here(&backend, key) == (key % 4 == 0)));
    let accounting = backend.accounting();
    assert_eq!(accounting.file_bytes, measured(&disk), "{accounting:?}");
}

#[test]
fn what_is_old_is_sealed_however_much_else_there_is_to_seal() {
    let disk = SimDisk::new();
    let mut config = config();
    config.lanes = 4;
    config.bucket_records = 1;
    config.housekeeping = true;
    config.bucket_age = Duration::from_millis(1);
    let backend = open(&disk, config);
    disk.set_sync_time(Duration::from_millis(2));
    let stop = AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for caller in 1..4 {
            let (backend, stopped) = (&backend, &stopped);
            scope.spawn(move || {
                let mut number = 0;
                while !stopped() {
                    let key = format!("{caller}-{number}");
                    let name = Name::key(&key);
                    backend
                        .put(Put::new(name, life(1), b"v").group(caller))
                        .unwrap();
                    number += 1;
                }
            });
        }
        while backend.counts().sealed < 20 {
            std::thread::yield_now();
        }
        put(&backend, 77, 100).unwrap();
        let sealed = || {
            let names = disk.list().unwrap().into_iter().map(|file| file.name);
            let mut sealed = names.filter(|name| name.ends_with(".bucket"));
            sealed.any(|name| {
                let bytes = disk.content(&name).unwrap_or_default();
                bytes.windows(100).any(|window| window == [77; 100])
            })
        };
        let patience = Instant::now() + Duration::from_secs(20);
        while !sealed() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(sealed(), "it waits for an end of the others");
    });
}

/// As a crash leaves it: a bucket without its last name, and no room to end it.
#[test]
fn a_bucket_that_a_start_had_no_room_to_seal_is_sealed_once_there_is_some() {
    let disk = SimDisk::new();
    let backend = open(&disk, config());
    for key in 0..20 {
        put(&backend, key, 100).unwrap();
    }
    disk.cut_power();
    drop(backend);
    let disk = disk.after_process_death();
    let mut config = config();
    config.eviction = Eviction::Fifo;
    config.housekeeping = true;
    config.capacity_bytes = 1 << 20;
    // The footer is what does not fit, after the directory is synced.
    disk.fail_at(1, std::io::ErrorKind::StorageFull);
    let backend = open(&disk, config);
    while backend.sealed_buckets().is_empty() {
        std::thread::yield_now();
    }
    assert!((0..20).all(|key| here(&backend, key)));
    // It goes like any other when its turn comes.
    for key in 20..200 {
        put(&backend, key, 10_000).unwrap();
    }
    assert!(!here(&backend, 0));
    assert_eq!(backend.counts().refused_full, 0);
    drop(backend);
    let backend = open(&disk, self::config());
    assert_eq!(backend.recovery().reopened_buckets, 0);
}

/// Nothing may be written, not even that something is dead, but what is dead can go.
#[test]
fn a_dead_bucket_can_go_from_a_disk_without_any_room() {
    let disk = SimDisk::new();
    let backend = open(&disk, config());
    let all = |seq: u64, keys: std::ops::Range<u64>| {
        for key in keys {
            let (text, value) = (key.to_string(), vec![seq as u8; 10_000]);
            let put = Put::new(Name::key(&text), life(seq), &value);
            backend.put(put).unwrap();
        }
        backend.seal();
    };
    // One bucket that dies, one of which a part does, and one with the later lives.
    all(1, 0..10);
    all(1, 10..20);
    all(2, 0..15);
    let sealed = backend.sealed_buckets();
    disk.set_capacity(Some(measured(&disk)));
    let report = backend.retire_bucket(sealed[0]).unwrap();
    assert!(report.reclaimed_bytes > 100_000, "{report:?}");
    assert_eq!(backend.accounting().file_bytes, measured(&disk));
    disk.cut_power();
    for seed in 0..20 {
        let disk = disk.after_power_loss(seed);
        let backend = open(&disk, config());
        for key in 0..20 {
            let found = backend.get(Name::key(&key.to_string()), None).unwrap();
            let later = if key < 15 { 2 } else { 1 };
            assert_eq!(found.incarnation, life(later), "{key}");
        }
    }
}

/// A start that has no room for a log of its own knows that what it would say is said already.
#[test]
fn a_dead_bucket_can_go_after_a_start_without_any_room() {
    let disk = SimDisk::new();
    let backend = filled(&disk, 60, &(0..30).collect::<Vec<_>>());
    drop(backend);
    disk.set_capacity(Some(measured(&disk)));
    let backend = open(&disk, config());
    let found = backend.gc_candidates(&GcConfig::default());
    assert_eq!(found[0].kind, CandidateKind::Dead);
    backend.retire_bucket(found[0].bucket).unwrap();
    assert!((0..60).all(|key| here(&backend, key) == (key >= 30)));
    disk.cut_power();
    for seed in 0..10 {
        let backend = open(&disk.after_power_loss(seed), config());
        assert!((0..60).all(|key| here(&backend, key) == (key >= 30)));
    }
}
