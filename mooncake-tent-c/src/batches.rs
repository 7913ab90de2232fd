//! Batches by their numbers, and what became of their tasks.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mooncake_tent::{Batch, transport::Outcome};
use parking_lot::{Mutex, RwLock};

use crate::{
    failure::{Failure, Result},
    structures::{CANCELED, COMPLETED, FAILED, PENDING, Status, TIMEOUT, WAITING},
};

/// Whoever waits lets others submit so often.
const TURN: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct Batches {
    last: AtomicU64,
    batches: Mutex<HashMap<u64, Arc<RwLock<Batch>>>>,
}

impl Batches {
    pub(crate) fn add(&self, batch: Batch) -> u64 {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.batches.lock().insert(id, Arc::new(RwLock::new(batch)));
        id
    }

    pub(crate) fn get(&self, id: u64) -> Result<Arc<RwLock<Batch>>> {
        let batches = self.batches.lock();
        batches.get(&id).cloned().ok_or_else(|| unknown(id))
    }

    pub(crate) fn remove(&self, id: u64) -> Result<()> {
        let removed = self.batches.lock().remove(&id);
        removed.map(drop).ok_or_else(|| unknown(id))
    }

    /// They go on by themselves.
    pub(crate) fn clear(&self) {
        self.batches.lock().clear();
    }
}

fn unknown(id: u64) -> Failure {
    Failure::new(format!("there is no batch {id}"))
}

/// Of one task.
pub(crate) fn status(batch: &Batch, task: usize) -> Result<Status> {
    if task >= batch.len() {
        let len = batch.len();
        return Err(Failure::new(format!(
            "the batch has {len} tasks, and no task {task}"
        )));
    }
    Ok(of(batch.outcome(task)))
}

/// Of all of them together.
pub(crate) fn overall(batch: &Batch) -> Status {
    if batch.is_empty() {
        return Status {
            status: WAITING,
            transferred_bytes: 0,
        };
    }
    let terminal = batch.is_terminal();
    let mut all = Status {
        status: COMPLETED,
        transferred_bytes: 0,
    };
    for one in (0..batch.len()).map(|task| of(batch.outcome(task))) {
        all.transferred_bytes += one.transferred_bytes;
        if severity(one.status) > severity(all.status) {
            all.status = one.status;
        }
    }
    if !terminal {
        all.status = PENDING;
    }
    all
}

fn severity(status: i32) -> u8 {
    match status {
        COMPLETED => 0,
        CANCELED => 1,
        TIMEOUT => 2,
        _ => 3,
    }
}

fn of(outcome: Option<Outcome>) -> Status {
    let bytes = |outcome: &Outcome| {
        let progress = outcome.error().and_then(|error| error.progress.as_ref());
        progress.map_or(0, |progress| progress.bytes)
    };
    let (status, transferred_bytes) = match &outcome {
        None => (PENDING, 0),
        Some(Outcome::Completed { bytes }) => (COMPLETED, *bytes),
        Some(outcome) if outcome.is_cancelled() => (CANCELED, bytes(outcome)),
        Some(outcome) if outcome.is_timed_out() => (TIMEOUT, bytes(outcome)),
        Some(outcome) => (FAILED, bytes(outcome)),
    };
    Status {
        status,
        transferred_bytes,
    }
}

/// `false`: some task has not ended within `budget`.
pub(crate) fn wait(batch: &RwLock<Batch>, budget: Duration) -> bool {
    let start = Instant::now();
    loop {
        let left = budget.saturating_sub(start.elapsed());
        if batch.read().wait(left.min(TURN)) {
            return true;
        }
        if left.is_zero() {
            return false;
        }
    }
}
