//! Two rewrites of the log of tombstones at once, and what is removed while it is put.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use mooncake_bucket::{
    BucketConfig, BucketStorageBackend, Disk, DiskFile, Found, Incarnation, LockFailure, Name,
    OpenOptions, Put, PutError, Removal, Removed, SimDisk, Space, Stored,
};

/// What somebody is stopped at, and for how long.
#[derive(Debug, Default)]
struct Gate {
    shut: AtomicBool,
    waits: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        while self.shut.load(SeqCst) {
            self.waits.store(true, SeqCst);
            std::thread::yield_now();
        }
        self.waits.store(false, SeqCst);
    }

    fn shut(&self) {
        self.shut.store(true, SeqCst);
    }

    fn open(&self) {
        self.shut.store(false, SeqCst);
    }

    fn waits(&self) -> bool {
        self.waits.load(SeqCst)
    }
}

/// A disk that can be stopped where a bucket is begun, and where a log goes.
#[derive(Debug, Default)]
struct Gates {
    disk: SimDisk,
    begin: Gate,
    logs: [Gate; 2],
    logs_gone: AtomicU32,
    syncs: AtomicU32,
}

/// The storage's end of it.
#[derive(Debug)]
struct Gated(Arc<Gates>);

impl Disk for Gated {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if name.ends_with(".open") {
            self.0.begin.pass();
        }
        self.0.disk.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.0.disk.open(name)
    }

    fn list(&self) -> io::Result<Vec<Found>> {
        self.0.disk.list()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if name.ends_with(".tombstones") {
            let number = self.0.logs_gone.fetch_add(1, SeqCst) as usize;
            if let Some(gate) = self.0.logs.get(number) {
                gate.pass();
            }
        }
        self.0.disk.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        let done = self.0.disk.sync();
        self.0.syncs.fetch_add(1, SeqCst);
        done
    }

    fn space(&self) -> io::Result<Space> {
        self.0.disk.space()
    }

    fn lock(&self, words: &str) -> Result<Box<dyn Send + Sync>, LockFailure> {
        self.0.disk.lock(words)
    }
}

const NAME: Name<'static> = Name {
    tenant: b"",
    key: b"key",
};

fn put(backend: &BucketStorageBackend) -> Result<Stored, PutError> {
    backend.put(Put::new(NAME, Incarnation::new(1, 5), b"value"))
}

fn remove(backend: &BucketStorageBackend) -> Removed {
    let removal = Removal {
        name: NAME,
        incarnation: Incarnation::new(1, 5),
    };
    let removed = backend.mark_removed(&[removal]).pop();
    removed.unwrap().unwrap()
}

fn until(met: impl Fn() -> bool) {
    while !met() {
        std::thread::yield_now();
    }
}

#[test]
fn what_is_removed_while_it_is_put_is_not_acknowledged_anew_by_a_rewrite_that_began_before() {
    let gates = Arc::new(Gates::default());
    let config = {
        let mut config = BucketConfig::default();
        config.log_bytes = 1;
        config.housekeeping = false;
        config
    };
    let opened = OpenOptions::new(config.clone()).open_on(Arc::new(Gated(Arc::clone(&gates))));
    let backend = &opened.unwrap();
    for gate in &gates.logs {
        gate.shut();
    }
    std::thread::scope(|scope| {
        // Refused from now on.
        gates.begin.shut();
        let first = scope.spawn(|| put(backend));
        until(|| gates.begin.waits());
        assert_eq!(remove(backend), Removed::Gone);
        gates.begin.open();
        let first = first.join().unwrap();
        assert!(matches!(first, Err(PutError::Removed)), "{first:?}");
        backend.seal();

        // One rewrite is at its end when another one begins, if it can.
        let one = scope.spawn(|| backend.maintain());
        until(|| gates.logs[0].waits());
        let syncs = gates.syncs.load(SeqCst);
        let other = scope.spawn(|| backend.maintain());
        let patience = Instant::now() + Duration::from_millis(300);
        until(|| gates.syncs.load(SeqCst) > syncs || Instant::now() > patience);
        gates.logs[0].open();
        one.join().unwrap();
        until(|| gates.logs[1].waits() || other.is_finished());

        // What the first one allowed is put, and removed meanwhile.
        gates.begin.shut();
        let second = scope.spawn(|| put(backend));
        until(|| gates.begin.waits());
        let removal = scope.spawn(|| remove(backend));
        until(|| matches!(put(backend), Err(PutError::Removed)));
        let records = backend.counts().put_records;
        gates.begin.open();
        until(|| backend.counts().put_records > records);
        // Its end is known a moment later.
        std::thread::sleep(Duration::from_millis(50));
        gates.logs[1].open();
        other.join().unwrap();
        assert_eq!(removal.join().unwrap(), Removed::Gone);
        let second = second.join().unwrap();
        assert!(matches!(second, Err(PutError::Removed)), "{second:?}");
    });
    // Whatever is answered now is what a start finds.
    let again = put(backend);
    gates.disk.cut_power();
    for seed in 0..10 {
        let disk = gates.disk.after_power_loss(seed);
        let opened = OpenOptions::new(config.clone()).open_on(Arc::new(disk));
        let found = opened.unwrap().get(NAME, None);
        assert_eq!(again.is_ok(), found.is_ok(), "{again:?}, then {found:?}");
    }
}
