//! The books of a batch: tasks that have not ended, tasks whose bytes may still move, and who waits.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

use smallvec::SmallVec;

use crate::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

const LOUD: u64 = u32::MAX as u64;

/// Counts a batch down and wakes whoever waits for it.
#[derive(Debug, Default)]
pub struct BatchState {
    /// Tasks that have not ended in the upper half, tasks that are not quiet in the lower: one
    /// word, so that a task which ends quietly is never seen to be one without the other.
    open: AtomicU64,
    waited_for: AtomicBool,
    waiters: Mutex<SmallVec<[Waker; 1]>>,
}

impl BatchState {
    /// All its tasks have ended.
    pub fn is_terminal(&self) -> bool {
        self.open.load(Ordering::Acquire) >> 32 == 0
    }

    /// No byte of it can move any more.
    pub fn is_quiescent(&self) -> bool {
        self.open.load(Ordering::Acquire) & LOUD == 0
    }

    /// As new; nobody else has it.
    pub(crate) fn renew(&mut self) {
        *self = Self::default();
    }

    pub(super) fn add(&self, tasks: u32) {
        let tasks = u64::from(tasks);
        self.open.fetch_add(tasks << 32 | tasks, Ordering::Relaxed);
    }

    /// A task has ended, become quiet, or both.
    pub(super) fn change(&self, ended: bool, quiet: bool) {
        let less = u64::from(ended) << 32 | u64::from(quiet);
        // Release publishes the outcome in the cell; Acquire in `is_terminal` collects it.
        let now = self.open.fetch_sub(less, Ordering::AcqRel) - less;
        if (ended && now >> 32 == 0) || (quiet && now & LOUD == 0) {
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
            // It is the caller's code, on a thread that also serves others.
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!("a waker of whoever waits for a batch has panicked");
            }
        }
    }
}
