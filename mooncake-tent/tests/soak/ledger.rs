//! What everybody in one process knows of the others.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The time, and numbered writes to owners of this process.
#[derive(Debug)]
pub(crate) struct Ledger {
    start: Instant,
    time: Duration,
    /// Somebody found something that is wrong.
    over: AtomicBool,
    /// Whether they completed; what nobody knows is not here.
    ended: Mutex<HashMap<u64, bool>>,
    arrived: Mutex<HashSet<u64>>,
}

impl Ledger {
    pub(crate) fn new(time: Duration) -> Self {
        Self {
            start: Instant::now(),
            time,
            over: AtomicBool::new(false),
            ended: Mutex::default(),
            arrived: Mutex::default(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn goes_on(&self) -> bool {
        self.elapsed() < self.time && !self.over.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Not beyond the end.
    pub(crate) fn sleep(&self, pause: Duration) {
        let left = self.time.saturating_sub(self.elapsed());
        std::thread::sleep(pause.min(left));
    }

    pub(crate) fn ended(&self, op_id: u64, completed: bool) {
        self.ended.lock().unwrap().insert(op_id, completed);
    }

    pub(crate) fn arrived(&self, op_id: u64) {
        let new = self.arrived.lock().unwrap().insert(op_id);
        assert!(new, "write {op_id} arrived twice");
    }

    /// What completed has arrived, and what was refused has not.
    pub(crate) fn must_agree(&self) {
        let arrived = self.arrived.lock().unwrap();
        for (op_id, completed) in &*self.ended.lock().unwrap() {
            let told = arrived.contains(op_id);
            assert_eq!(told, *completed, "write {op_id} arrived: {told}");
        }
    }
}
