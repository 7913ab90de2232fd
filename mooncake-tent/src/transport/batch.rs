//! The books of a batch: tasks that have not ended, tasks whose bytes may still move, and who waits.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Poll, Waker},
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
    /// The batch of which this is a part that somebody waits for by itself.
    whole: Option<Arc<Self>>,
    /// A task did not complete.
    spoiled: AtomicBool,
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

    /// Counts some of the tasks of `whole`, which counts them as well.
    pub(crate) fn part_of(whole: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            whole: Some(Arc::clone(whole)),
            ..Self::default()
        })
    }

    /// A task has ended without having completed.
    pub(crate) fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Acquire)
    }

    /// Told before the end of the task that did not complete.
    pub(super) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Release);
    }

    /// Ends when all its tasks have ended.
    pub(crate) async fn until_terminal(&self) {
        self.until(Self::is_terminal).await;
    }

    /// Ends when it has got so far. Somebody else does the links' work.
    pub(crate) async fn until(&self, reached: fn(&Self) -> bool) {
        poll_fn(|context| {
            if !reached(self) {
                self.register(context.waker());
                if !reached(self) {
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        })
        .await;
    }

    /// As new; nobody else has it.
    pub(crate) fn renew(&mut self) {
        *self = Self::default();
    }

    pub(super) fn add(&self, tasks: u32) {
        let tasks = u64::from(tasks);
        self.open.fetch_add(tasks << 32 | tasks, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.open.fetch_add(tasks << 32 | tasks, Ordering::Relaxed);
        }
    }

    /// A task has ended, become quiet, or both.
    pub(super) fn change(&self, ended: bool, quiet: bool) {
        let less = u64::from(ended) << 32 | u64::from(quiet);
        // Release publishes the outcome in the cell; Acquire in `is_terminal` collects it.
        let now = self.open.fetch_sub(less, Ordering::AcqRel) - less;
        if (ended && now >> 32 == 0) || (quiet && now & LOUD == 0) {
            self.wake();
        }
        if let Some(whole) = &self.whole {
            whole.change(ended, quiet);
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
