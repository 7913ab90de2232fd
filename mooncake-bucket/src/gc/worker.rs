//! The thread that collects.

use std::{
    io,
    sync::{Arc, Weak, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{Candidate, CandidateKind, GcConfig, GcReport, budget::Budget, choose::together};
use crate::{backend::BucketStorageBackend, error::GcError, storage::Storage};

/// Collects in the background: dead buckets at once, sparse ones within the budget, worst first. Neither readers
/// nor writers wait for it.
#[derive(Debug)]
pub struct BucketGcWorker {
    storage: Weak<Storage>,
    config: GcConfig,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Whoever closes the storage waits no longer than this for a worker that waits.
const LOOK_UP: Duration = Duration::from_millis(50);

/// A bucket in which the disk cannot read a record is left alone for so long.
const READ_AGAIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Shared {
    stop: Mutex<bool>,
    stopped: Condvar,
    budget: Mutex<(Budget, Budget)>,
    begun: Instant,
}

impl Shared {
    /// Waits until so much may be done; `false`: it was told to stop, or the storage is closed.
    fn pace(&self, storage: &Storage, bytes: u64, operations: u64) -> bool {
        let now = self.begun.elapsed();
        let wait = {
            let mut budget = self.budget.lock();
            let bytes = budget.0.spend(now, bytes);
            bytes.max(budget.1.spend(now, operations))
        };
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.sleep(left.min(LOOK_UP)) || storage.closed.load(Ordering::Acquire) {
                return false;
            }
            if left <= LOOK_UP {
                return true;
            }
        }
    }

    /// `true`: it was told to stop.
    fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut stop = self.stop.lock();
        while !*stop {
            if time.is_zero() || self.stopped.wait_until(&mut stop, until).timed_out() {
                return *stop;
            }
        }
        true
    }
}

impl BucketGcWorker {
    /// Begins to collect. The worker ends by itself once the storage is gone.
    pub fn start(backend: &BucketStorageBackend, config: GcConfig) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            stop: Mutex::new(false),
            stopped: Condvar::new(),
            budget: Mutex::new((
                Budget::new(config.bytes_per_second),
                Budget::new(config.operations_per_second),
            )),
            begun: Instant::now(),
        });
        let storage = Arc::downgrade(&backend.storage);
        let thread = std::thread::Builder::new()
            .name("bucket-gc".into())
            .spawn({
                let (storage, shared) = (Weak::clone(&storage), Arc::clone(&shared));
                move || run(&storage, &shared, &config)
            })?;
        Ok(Self {
            storage,
            config,
            shared,
            thread: Some(thread),
        })
    }

    /// What could be collected now, in the order in which it is.
    pub fn scan_candidates(&self) -> Vec<Candidate> {
        let storage = self.storage.upgrade();
        storage.map_or_else(Vec::new, |storage| storage.candidates(&self.config))
    }

    /// Collects one candidate now, within the budget.
    pub fn compact(&self, candidate: &Candidate) -> Result<GcReport, GcError> {
        let storage = self.storage.upgrade().ok_or(GcError::Stopped)?;
        collect(&storage, &self.shared, &[*candidate])
    }

    /// Stops as soon as what is under way allows, which is soon; what was begun is undone.
    pub fn stop_and_join(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        *self.shared.stop.lock() = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.take() {
            let _it_has_panicked_or_not = thread.join();
        }
    }
}

impl Drop for BucketGcWorker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(storage: &Weak<Storage>, shared: &Shared, config: &GcConfig) {
    loop {
        let Some(strong) = storage.upgrade() else {
            return;
        };
        let mut found = strong.candidates(config);
        found.retain(|candidate| {
            candidate.kind == CandidateKind::Dead || !is_unreadable(&strong, candidate.bucket)
        });
        let dead = found
            .iter()
            .take_while(|candidate| candidate.kind == CandidateKind::Dead);
        let (dead, sparse) = found.split_at(dead.count());
        for candidate in dead {
            warn(collect(&strong, shared, std::slice::from_ref(candidate)));
        }
        // What there is no room for now may have some once others are done.
        let room = strong.room_to_collect();
        let fits = |candidate: &&Candidate| candidate.live_bytes < room;
        let fitting: Vec<_> = sparse.iter().filter(fits).copied().collect();
        let sparse = if fitting.is_empty() { sparse } else { &fitting };
        let batch = together(sparse, strong.config.bucket_bytes.min(room));
        let worked = !batch.is_empty() && warn(collect(&strong, shared, batch));
        drop(strong);
        // What else is sparse is looked at anew: it may be dead by now.
        let rest = if worked {
            Duration::ZERO
        } else {
            config.interval
        };
        if shared.sleep(rest) {
            return;
        }
    }
}

/// Whether the disk could not read a bucket just now. It may by and by, and the others need not wait for that.
fn is_unreadable(storage: &Storage, bucket: u32) -> bool {
    let Some(bucket) = storage.bucket(bucket) else {
        return false;
    };
    let at = bucket.unreadable_at.load(Ordering::Relaxed);
    at != 0 && storage.now_ms().saturating_sub(at) < READ_AGAIN.as_millis() as u64
}

fn collect(storage: &Storage, shared: &Shared, batch: &[Candidate]) -> Result<GcReport, GcError> {
    if let [
        Candidate {
            kind: CandidateKind::Dead,
            bucket,
            ..
        },
    ] = batch
    {
        return storage.retire(*bucket);
    }
    let ids: Vec<_> = batch.iter().map(|candidate| candidate.bucket).collect();
    storage.compact(&ids, &mut |bytes, operations| {
        shared.pace(storage, bytes, operations)
    })
}

fn warn(done: Result<GcReport, GcError>) -> bool {
    match done {
        Ok(_) => true,
        Err(GcError::Stopped | GcError::Unavailable { .. }) => false,
        Err(error) => {
            tracing::warn!(%error, "space could not be reclaimed");
            false
        }
    }
}
