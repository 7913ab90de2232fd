//! Tasks that are submitted and awaited together.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use super::parts::{BatchParts, PartsPool, Scratch};
use crate::{
    platform::after,
    transport::{BatchState, Outcome, SubBatch, TaskRef, Tasks},
};

/// Room for some tasks. Dropping it lets go of them: they go on, and their memory stays leased,
/// until they are quiet.
#[derive(Debug)]
pub struct Batch {
    tasks: Tasks,
    /// There until it is dropped.
    parts: Option<BatchParts>,
    pool: Arc<PartsPool>,
    capacity: usize,
    /// Since the last submission.
    handed_over: AtomicBool,
    /// Counts the tasks of the submission that is being made, beside the batch.
    part: Option<Arc<BatchState>>,
}

impl Batch {
    pub(crate) fn new(tasks: Tasks, pool: &Arc<PartsPool>, capacity: usize) -> Self {
        tasks.batch_opened();
        Self {
            tasks,
            parts: Some(pool.take(capacity)),
            pool: Arc::clone(pool),
            capacity,
            handed_over: AtomicBool::new(false),
            part: None,
        }
    }

    /// Whatever `submit` adds is also counted by itself. The links' own threads do the work.
    pub(crate) fn with_part<E>(
        &mut self,
        submit: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<Arc<BatchState>, E> {
        let part = BatchState::part_of(&self.parts().state);
        self.part = Some(Arc::clone(&part));
        let submitted = submit(self);
        self.part = None;
        submitted?;
        self.hand_over();
        Ok(part)
    }

    /// For what is planned before it is submitted; it comes back by
    /// [`return_scratch`](Self::return_scratch).
    pub(crate) fn take_scratch(&mut self) -> Box<Scratch> {
        self.parts_mut().scratch.take().unwrap_or_default()
    }

    pub(crate) fn return_scratch(&mut self, scratch: Box<Scratch>) {
        self.parts_mut().scratch = Some(scratch);
    }

    /// Where the cells of new tasks go, and the count that they are part of.
    pub(crate) fn opened(&mut self) -> (&Arc<BatchState>, &mut Vec<TaskRef>) {
        *self.handed_over.get_mut() = false;
        let Self { part, parts, .. } = self;
        let parts = parts.as_mut().expect("it has not been dropped");
        (part.as_ref().unwrap_or(&parts.state), &mut parts.refs)
    }

    /// The tasks from `first` on, and the part that link number `link` carries, made by `make` the
    /// first time.
    pub(crate) fn sub_batch<E>(
        &mut self,
        first: usize,
        link: usize,
        make: impl FnOnce() -> Result<Box<dyn SubBatch>, E>,
    ) -> Result<(&[TaskRef], &dyn SubBatch), E> {
        let BatchParts {
            refs, sub_batches, ..
        } = self.parts_mut();
        let known = sub_batches.iter().position(|(number, _)| *number == link);
        let place = match known {
            Some(place) => place,
            None => {
                sub_batches.push((link, make()?));
                sub_batches.len() - 1
            }
        };
        Ok((&refs[first..], &*sub_batches[place].1))
    }

    fn parts(&self) -> &BatchParts {
        self.parts.as_ref().expect("it has not been dropped")
    }

    fn parts_mut(&mut self) -> &mut BatchParts {
        self.parts.as_mut().expect("it has not been dropped")
    }

    #[cfg(all(test, mooncake_loom))]
    pub(crate) fn state(&self) -> &Arc<BatchState> {
        &self.parts().state
    }

    pub(crate) fn refs(&self) -> &[TaskRef] {
        &self.parts().refs
    }

    /// How many tasks it takes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many tasks it has.
    pub fn len(&self) -> usize {
        self.parts().refs.len()
    }

    /// Nothing was submitted yet.
    pub fn is_empty(&self) -> bool {
        self.parts().refs.is_empty()
    }

    /// All its tasks have ended.
    pub fn is_terminal(&self) -> bool {
        let terminal = self.parts().state.is_terminal();
        if !terminal {
            self.only_polled();
        }
        terminal
    }

    /// No byte of it can move any more.
    pub fn is_quiescent(&self) -> bool {
        self.parts().state.is_quiescent()
    }

    /// How task `index` ended; `None`: it has not.
    pub fn outcome(&self, index: usize) -> Option<Outcome> {
        let task = self.parts().refs.get(index)?;
        let outcome = self.tasks.outcome(*task);
        if outcome.is_none() {
            self.only_polled();
        }
        outcome
    }

    /// No byte of task `index` can move any more.
    pub fn is_task_quiescent(&self, index: usize) -> bool {
        self.parts()
            .refs
            .get(index)
            .is_none_or(|task| self.tasks.is_quiescent(*task))
    }

    /// Ends when all tasks have ended. The links' own threads do the work.
    pub async fn terminal(&self) {
        self.until(BatchState::is_terminal).await;
    }

    /// Ends when no byte of the batch can move any more.
    pub async fn quiescent(&self) {
        self.until(BatchState::is_quiescent).await;
    }

    async fn until(&self, reached: fn(&BatchState) -> bool) {
        if reached(&self.parts().state) {
            return;
        }
        self.hand_over();
        self.parts().state.until(reached).await;
    }

    /// Waits until all tasks have ended, doing the links' work meanwhile; `false`: the budget was
    /// over before. Not for async code, which it would block.
    pub fn wait(&self, budget: Duration) -> bool {
        let mut end = None;
        while !self.parts().state.is_terminal() {
            let end = *end.get_or_insert_with(|| after(budget));
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.hand_over();
                return false;
            }
            if !self.drive(left) {
                self.park(left);
            }
        }
        // Others may have left work on the lanes that we drove.
        self.hand_over();
        true
    }

    fn drive(&self, budget: Duration) -> bool {
        // With several links at work, none of them may hold us for long.
        let share = match self.parts().sub_batches.len() {
            0 | 1 => budget,
            _ => budget.min(Duration::from_micros(100)),
        };
        let mut driven = false;
        for (_, sub_batch) in &self.parts().sub_batches {
            driven |= sub_batch.drive(share);
            if self.parts().state.is_terminal() {
                return true;
            }
        }
        driven
    }

    /// Another thread does the work and wakes us.
    fn park(&self, budget: Duration) {
        self.parts().state.register(&thread_waker());
        if !self.parts().state.is_terminal() {
            // Whoever drives now may leave without having finished our tasks.
            thread::park_timeout(budget.min(Duration::from_millis(10)));
        }
    }

    /// Asks for an early end of task `index`, which still arrives as its outcome: `Cancelled` where
    /// that was possible, and otherwise whatever became of it. Memory is free when the task is quiet,
    /// as ever.
    pub fn cancel(&self, index: usize) {
        if let Some(task) = self.parts().refs.get(index) {
            self.cancel_tasks(&[*task]);
        }
    }

    /// As [`cancel`](Self::cancel), for all tasks that have not ended.
    pub fn cancel_all(&self) {
        self.cancel_tasks(&self.parts().refs);
    }

    fn cancel_tasks(&self, tasks: &[TaskRef]) {
        for task in tasks {
            if let Some(carrier) = self.tasks.ask_to_cancel(*task) {
                carrier.cancel_transfer_task(*task);
            }
            for (_, sub_batch) in &self.parts().sub_batches {
                sub_batch.cancel_transfer_task(*task);
            }
        }
        self.hand_over();
    }

    /// Who looks without waiting leaves the work to the links, and says so once.
    fn only_polled(&self) {
        if !self.handed_over.swap(true, Ordering::Relaxed) {
            self.hand_over();
        }
    }

    fn hand_over(&self) {
        for (_, sub_batch) in &self.parts().sub_batches {
            sub_batch.hand_over();
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.parts().state.is_terminal() {
            self.hand_over();
        }
        self.tasks.release(&self.parts().refs);
        self.tasks.batch_closed();
        if let Some(parts) = self.parts.take().filter(|parts| parts.state.is_quiescent()) {
            self.pool.put(parts);
        }
    }
}

struct WakeThread(Thread);

impl Wake for WakeThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The waker of the calling thread, made once for each.
fn thread_waker() -> Waker {
    thread_local! {
        static WAKER: RefCell<Option<Waker>> = const { RefCell::new(None) };
    }
    WAKER.with_borrow_mut(|waker| {
        waker
            .get_or_insert_with(|| Waker::from(Arc::new(WakeThread(thread::current()))))
            .clone()
    })
}
