//! Many threads at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake},
    time::Duration,
};

use mooncake_bucket::{
    BucketConfig, BucketGcWorker, BucketStorageBackend, BucketWorkers, Cursor, GcConfig, GetError,
    Incarnation, Name, OpenOptions, Put, Removal, Removed, SimDisk, Stored,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

fn life(seq: u64) -> Incarnation {
    Incarnation::new(1, seq)
}

#[test]
fn callers_share_syncs() {
    let disk = SimDisk::new();
    let backend = OpenOptions::new(BucketConfig::default())
        .open_on(Arc::new(disk.clone()))
        .unwrap();
    backend
        .put(Put::new(Name::key("first"), life(1), b"makes the bucket"))
        .unwrap();
    disk.set_sync_time(Duration::from_millis(3));
    let (before, begin) = (disk.syncs(), Barrier::new(8));
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let (backend, begin) = (&backend, &begin);
            scope.spawn(move || {
                begin.wait();
                for number in 0..20 {
                    let key = format!("{caller}-{number}");
                    let put = Put::new(Name::key(&key), life(1), key.as_bytes());
                    assert_eq!(backend.put(put).unwrap(), Stored::Written);
                }
            });
        }
    });
    let syncs = disk.syncs() - before;
    assert!(syncs < 80, "{syncs} syncs for 160 puts");
    assert_eq!(backend.len(), 161);
}

#[test]
fn a_listing_misses_nothing_when_a_bucket_is_sealed_between_two_pages() {
    let mut config = BucketConfig::default();
    config.housekeeping = false;
    for round in 0..60 {
        let disk = SimDisk::new();
        // Records become known in another order than they lie in.
        disk.set_sync_time(Duration::from_micros(200));
        let backend = OpenOptions::new(config.clone())
            .open_on(Arc::new(disk))
            .unwrap();
        std::thread::scope(|scope| {
            for caller in 0..8 {
                let backend = &backend;
                scope.spawn(move || {
                    for number in 0..4 {
                        let key = format!("{caller}-{number}");
                        let put = Put::new(Name::key(&key), life(1), b"v");
                        assert_eq!(backend.put(put).unwrap(), Stored::Written);
                    }
                });
            }
        });
        let (mut listed, mut next) = (BTreeSet::new(), Some(Cursor::default()));
        while let Some(cursor) = next {
            let page = backend.list(cursor, 10);
            listed.extend(page.records.into_iter().map(|record| record.key));
            next = page.next;
            backend.seal();
        }
        assert_eq!(listed.len(), 32, "round {round}");
    }
}

#[test]
fn readers_do_not_wait_for_a_put_that_the_disk_is_slow_with() {
    let disk = SimDisk::new();
    let backend = OpenOptions::new(BucketConfig::default())
        .open_on(Arc::new(disk.clone()))
        .unwrap();
    backend
        .put(Put::new(Name::key("old"), life(1), b"value"))
        .unwrap();
    disk.set_sync_time(Duration::from_secs(2));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let before = disk.syncs();
        scope.spawn(|| {
            backend
                .put(Put::new(Name::key("new"), life(1), b"value"))
                .unwrap();
            ended.store(true, Ordering::SeqCst);
        });
        while disk.syncs() == before {
            std::thread::yield_now();
        }
        for _ in 0..1000 {
            assert_eq!(backend.get(Name::key("old"), None).unwrap().bytes, b"value");
            assert!(matches!(
                backend.get(Name::key("new"), None),
                Err(GetError::NotFound)
            ));
        }
        assert!(
            !ended.load(Ordering::SeqCst),
            "the put was still at it, and its record out of sight"
        );
    });
    assert!(backend.get(Name::key("new"), None).is_ok());
}

#[test]
fn one_sync_serves_a_batch_of_removals() {
    let disk = SimDisk::new();
    let backend = OpenOptions::new(BucketConfig::default())
        .open_on(Arc::new(disk.clone()))
        .unwrap();
    let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let puts: Vec<_> = keys
        .iter()
        .map(|key| Put::new(Name::key(key), life(1), b"v"))
        .collect();
    assert!(backend.put_batch(&puts).iter().all(Result::is_ok));
    let gone = |key| {
        let name = Name::key(key);
        Removal {
            name,
            incarnation: life(1),
        }
    };
    // The first removal makes the log.
    backend.mark_removed(&[gone(&keys[0])]);
    let before = disk.syncs();
    let removals: Vec<_> = keys[1..].iter().map(gone).collect();
    let results = backend.mark_removed(&removals);
    assert!(
        results
            .iter()
            .all(|result| *result.as_ref().unwrap() == Removed::Gone)
    );
    assert_eq!(disk.syncs() - before, 1);
    assert!(backend.is_empty());
}

/// Writers, readers, removals, compactions and evictions on a real directory: every value that is read is one
/// that was put, nothing that was removed is read afterwards, and the books close.
#[test]
fn threads_do_not_disturb_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = BucketConfig::default();
    config.bucket_bytes = 256 << 10;
    config.aligned_from = 8 << 10;
    config.open_files = 4;
    config.housekeeping = false;
    let backend = BucketStorageBackend::open(directory.path(), config.clone()).unwrap();
    let mut gc = GcConfig::default();
    gc.live_fraction = 0.9;
    gc.bytes_per_second = 0;
    gc.operations_per_second = 0;
    gc.interval = Duration::from_millis(1);
    let worker = BucketGcWorker::start(&backend, gc).unwrap();
    let value = |key: u64, life: u64| {
        let length = (key * 7919 + life * 104_729) % 20_000;
        (0..length)
            .map(|at| (at ^ key ^ life) as u8)
            .collect::<Vec<_>>()
    };
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    // For each key the oldest life that may be read: what is older was removed or replaced.
    let floors: Vec<AtomicU64> = (0..60).map(|_| AtomicU64::new(0)).collect();
    let mut kept = BTreeMap::new();
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (backend, stop, reads, floors) = (&backend, &stop, &reads, &floors);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(reader);
                while !stop.load(Ordering::Relaxed) {
                    let key = rng.random_range(0..60);
                    let floor = floors[key as usize].load(Ordering::SeqCst);
                    match backend.get(Name::key(&key.to_string()), None) {
                        Ok(found) => {
                            assert!(
                                found.incarnation.seq >= floor,
                                "key {key}: {} < {floor}",
                                found.incarnation
                            );
                            assert!(
                                found.bytes == value(key, found.incarnation.seq),
                                "key {key}"
                            );
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(GetError::NotFound) => {}
                        Err(error) => panic!("key {key}: {error:?}"),
                    }
                }
            });
        }
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                let (backend, floors) = (&backend, &floors);
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(100 + writer);
                    let mut here = BTreeMap::new();
                    for seq in 1..400 {
                        let key = writer * 20 + rng.random_range(0..20);
                        let text = key.to_string();
                        let floor = &floors[key as usize];
                        let old = here.get(&key).copied();
                        if let Some(old) = old.filter(|_| rng.random_range(0..3) == 0) {
                            let removal = Removal {
                                name: Name::key(&text),
                                incarnation: life(old),
                            };
                            let removed = backend.mark_removed(&[removal]);
                            assert_eq!(*removed[0].as_ref().unwrap(), Removed::Gone);
                            floor.store(old + 1, Ordering::SeqCst);
                            here.remove(&key);
                        } else {
                            let put = value(key, seq);
                            backend
                                .put(Put::new(Name::key(&text), life(seq), &put))
                                .unwrap();
                            floor.store(seq, Ordering::SeqCst);
                            here.insert(key, seq);
                        }
                    }
                    here
                })
            })
            .collect();
        for writer in writers {
            kept.extend(writer.join().unwrap());
        }
        stop.store(true, Ordering::Relaxed);
    });
    worker.stop_and_join();
    let counts = backend.counts();
    assert!(
        counts.compacted_buckets > 0 && reads.load(Ordering::Relaxed) > 100,
        "{counts:?}"
    );
    backend.seal();
    let accounting = backend.accounting();
    let files = std::fs::read_dir(directory.path())
        .unwrap()
        .map(Result::unwrap);
    let ours = files.filter(|file| file.file_name() != "lock");
    let measured: u64 = ours.map(|file| file.metadata().unwrap().len()).sum();
    assert_eq!(accounting.file_bytes, measured, "{accounting:?}");
    let sum = accounting.live_bytes + accounting.dead_bytes + accounting.overhead_bytes;
    assert_eq!(sum, measured, "{accounting:?}");
    assert_eq!(accounting.live_records, kept.len() as u64);
    drop(backend);
    let backend = BucketStorageBackend::open(directory.path(), config).unwrap();
    for key in 0..60 {
        let found = backend.get(Name::key(&key.to_string()), None);
        match kept.get(&key) {
            Some(seq) => assert!(found.unwrap().bytes == value(key, *seq), "key {key}"),
            None => assert!(matches!(found, Err(GetError::NotFound)), "key {key}"),
        }
    }
}

#[test]
fn workers_carry_out_what_was_taken_and_refuse_what_is_too_much() {
    let backend = OpenOptions::new(BucketConfig::default())
        .open_on(Arc::new(SimDisk::new()))
        .unwrap();
    let workers = BucketWorkers::start(Arc::new(backend), 1, 2).unwrap();
    let gate = Arc::new(Barrier::new(2));
    let held = {
        let gate = Arc::clone(&gate);
        workers.submit(move |_| gate.wait().is_leader()).unwrap()
    };
    let mut taken = Vec::new();
    let refused = loop {
        match workers.submit(|backend| backend.put(Put::new(Name::key("k"), life(1), b"v")).is_ok())
        {
            Ok(completion) => taken.push(completion),
            Err(busy) => break busy,
        }
    };
    assert_eq!(refused.waiting, 2);
    gate.wait();
    held.wait().unwrap();
    for completion in taken {
        assert!(completion.wait().unwrap());
    }
    let panics = workers
        .submit(|_| panic!("as a caller's mistake would"))
        .unwrap();
    assert!(panics.wait().is_err());
    let last = workers.submit(|backend| backend.len()).unwrap();
    assert_eq!(last.wait(), Ok(1));
}

/// What a runtime does, in miniature: polls, parks, and is woken.
#[test]
fn a_completion_is_a_future_that_wakes_whoever_polled_it() {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let disk = SimDisk::new();
    let backend = OpenOptions::new(BucketConfig::default())
        .open_on(Arc::new(disk.clone()))
        .unwrap();
    let workers = BucketWorkers::start(Arc::new(backend), 2, 8).unwrap();
    // Long enough to be polled before it has ended.
    disk.set_sync_time(Duration::from_millis(20));
    let value = vec![5; 1000];
    let put = workers
        .submit(move |backend| {
            backend
                .put(Put::new(Name::key("k"), life(1), &value))
                .is_ok()
        })
        .unwrap();
    let mut put = std::pin::pin!(put);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut polls = 0;
    let ended = loop {
        polls += 1;
        match put.as_mut().poll(&mut context) {
            Poll::Ready(ended) => break ended,
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(ended, Ok(true));
    assert!(polls >= 2, "it was woken");
}
