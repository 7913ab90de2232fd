//! The books of a batch: tasks that have not ended, tasks whose bytes may still move, and who waits.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering, fence},
    task::Waker,
};

use parking_lot::Mutex;
use smallvec::SmallVec;

/// Counts a batch down and wakes whoever waits for it.
#[derive(Debug, Default)]
pub struct BatchState {
    unfinished: AtomicU32,
    loud: AtomicU32,
    waited_for: AtomicBool,
    waiters: Mutex<SmallVec<[Waker; 1]>>,
}

impl BatchState {
    /// All its tasks have ended.
    pub fn is_terminal(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) == 0
    }

    /// No byte of it can move any more.
    pub fn is_quiescent(&self) -> bool {
        self.loud.load(Ordering::Acquire) == 0
    }

    pub(super) fn add(&self, tasks: u32) {
        self.loud.fetch_add(tasks, Ordering::Relaxed);
        self.unfinished.fetch_add(tasks, Ordering::Relaxed);
    }

    pub(super) fn task_ended(&self) {
        // Release publishes the outcome in the cell; Acquire in `is_terminal` collects it.
        if self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wake();
        }
    }

    pub(super) fn task_quiet(&self) {
        if self.loud.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wake();
        }
    }

    /// Wakes `waker` at the next change of [`is_terminal`](Self::is_terminal) or
    /// [`is_quiescent`](Self::is_quiescent); check both again after this call.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut waiters = self.waiters.lock();
        if !waiters.iter().any(|known| known.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        // The two fences pair: either `wake` sees this, or our caller, who looks again, sees the
        // counter that `wake`'s caller has brought to 0.
        self.waited_for.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn wake(&self) {
        fence(Ordering::SeqCst);
        if !self.waited_for.load(Ordering::SeqCst) {
            return;
        }
        let waiters = {
            let mut waiters = self.waiters.lock();
            self.waited_for.store(false, Ordering::SeqCst);
            std::mem::take(&mut *waiters)
        };
        for waker in waiters {
            waker.wake();
        }
    }
}
