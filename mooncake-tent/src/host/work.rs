//! Reads that are done by whoever waits for them, or by the link's threads.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use super::{
    Medium,
    session::{Registration, Session},
};
use crate::{
    error::{Reason, Stage, TransferError},
    identity::{Generation, RegistrationId},
    memory::LocalSlice,
    platform::after,
    transport::{Outcome, TaskRef, Tasks},
};

/// A read that has not begun.
#[derive(Debug)]
pub(super) struct Read<M: Medium> {
    pub(super) task: TaskRef,
    pub(super) session: Arc<Session<M>>,
    /// How many fences there were when it was asked for.
    pub(super) fences: u64,
    pub(super) registration: RegistrationId,
    pub(super) generation: Generation,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) local: SmallVec<[LocalSlice; 1]>,
    pub(super) deadline: Option<Instant>,
}

/// Without a deadline, how long a peer may take to lend something.
const LONG: Duration = Duration::from_secs(1);

/// What was wanted before may not be any more.
const A_WHILE: Duration = Duration::from_millis(1);

/// Why a read did not bring what was asked for.
enum Failure {
    /// The peer did not lend it.
    NotLent(Reason),
    /// It began, or need not.
    End(Outcome),
}

impl<M: Medium> Read<M> {
    /// Does it, and tells the task. Waits for the peer to lend what it has not lent yet.
    pub(super) fn run(self, tasks: &Tasks) {
        let patience = self.deadline.unwrap_or_else(|| after(LONG));
        let done = self.within(patience, tasks);
        self.tell(done, tasks);
    }

    /// As [`run`](Self::run), but gives up waiting when the budget is over: then it comes back.
    pub(super) fn run_within(self, budget: Duration, tasks: &Tasks) -> Option<Self> {
        let end = after(budget);
        let deadline = self.deadline.unwrap_or_else(|| after(LONG));
        let done = self.within(end.min(deadline), tasks);
        let early = end < deadline && Instant::now() >= end;
        if early && matches!(done, Err(Failure::NotLent(_))) {
            return Some(self);
        }
        self.tell(done, tasks);
        None
    }

    /// Does it out of what was lent before, and tells the task, which was wanted a moment ago.
    pub(super) fn run_from(self, from: &Registration<M>, tasks: &Tasks) {
        let done = self.copy(from, tasks).map_err(Failure::End);
        self.tell(done, tasks);
    }

    fn tell(self, done: Result<(), Failure>, tasks: &Tasks) {
        let end = match done {
            Ok(()) => Outcome::Completed { bytes: self.length },
            Err(Failure::End(end)) => end,
            Err(Failure::NotLent(reason)) => {
                let peer = self.session.peer();
                match self.deadline.is_some_and(|end| end <= Instant::now()) {
                    true => Outcome::timed_out(Stage::Connect, peer),
                    false => {
                        let error = TransferError::unstarted(reason, Stage::Admit, Some(peer));
                        Outcome::Failed(error)
                    }
                }
            }
        };
        let task = self.task;
        // Its leases end before anybody is told.
        drop(self);
        tasks.finish(task, end, true);
    }

    fn within(&self, end: Instant, tasks: &Tasks) -> Result<(), Failure> {
        self.still_wanted(tasks, 0).map_err(Failure::End)?;
        let begun = Instant::now();
        let from = self
            .session
            .registration(self.registration, self.generation, end)
            .map_err(Failure::NotLent)?;
        if begun.elapsed() >= A_WHILE {
            self.still_wanted(tasks, 0).map_err(Failure::End)?;
        }
        self.copy(&from, tasks).map_err(Failure::End)
    }

    fn copy(&self, from: &Registration<M>, tasks: &Tasks) -> Result<(), Outcome> {
        let unstarted = |reason, stage| {
            let peer = Some(self.session.peer());
            Outcome::Failed(TransferError::unstarted(reason, stage, peer))
        };
        let end = self.offset.checked_add(self.length);
        if end.is_none_or(|end| end > from.length) {
            return Err(unstarted(Reason::OutOfBounds, Stage::Admit));
        }
        let chunk = self.session.config().chunk_bytes.max(1);
        let mut done = 0;
        for local in &self.local {
            let mut at = 0;
            while at < local.len() {
                if done > 0 {
                    self.still_wanted(tasks, done)?;
                }
                let next = (at + chunk).min(local.len());
                let into = local.piece_of(at..next);
                let copied = self
                    .session
                    .copy(from, self.offset + done, into, self.fences);
                copied.map_err(|error| {
                    let end = unstarted(error.reason, Stage::Admit);
                    match error.untouched && done == 0 {
                        true => end,
                        false => end.underway(true),
                    }
                })?;
                done += next - at;
                at = next;
            }
        }
        Ok(())
    }

    fn still_wanted(&self, tasks: &Tasks, done: u64) -> Result<(), Outcome> {
        let peer = self.session.peer();
        let end = if tasks.is_unwanted(self.task) {
            Outcome::cancelled(Stage::Post, peer)
        } else if self.deadline.is_some_and(|end| end <= Instant::now()) {
            Outcome::timed_out(Stage::Post, peer)
        } else {
            return Ok(());
        };
        Err(match done {
            0 => end,
            _ => end.underway(true),
        })
    }
}

/// Reads of one batch that have not begun.
#[derive(Debug)]
pub(super) struct Work<M: Medium> {
    reads: Mutex<VecDeque<Read<M>>>,
    /// It is on the list of the link's threads.
    given: AtomicBool,
}

impl<M: Medium> Default for Work<M> {
    fn default() -> Self {
        Self {
            reads: Mutex::default(),
            given: AtomicBool::new(false),
        }
    }
}

impl<M: Medium> Work<M> {
    pub(super) fn push(&self, read: Read<M>) {
        self.reads.lock().push_back(read);
    }

    pub(super) fn pop(&self) -> Option<Read<M>> {
        self.reads.lock().pop_front()
    }

    pub(super) fn put_back(&self, read: Read<M>) {
        self.reads.lock().push_front(read);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reads.lock().is_empty()
    }

    /// Takes the reads of `task` out.
    pub(super) fn take(&self, task: TaskRef) -> Option<Read<M>> {
        let mut reads = self.reads.lock();
        let place = reads.iter().position(|read| read.task == task)?;
        reads.remove(place)
    }
}

/// Work that nobody waits for, and the threads that do it.
#[derive(Debug)]
pub(super) struct Pool<M: Medium> {
    queue: Mutex<Queue<M>>,
    more: Condvar,
    tasks: Tasks,
}

#[derive(Debug)]
struct Queue<M: Medium> {
    work: VecDeque<Arc<Work<M>>>,
    stopped: bool,
    threads: usize,
}

impl<M: Medium> Pool<M> {
    pub(super) fn new(tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(Queue {
                work: VecDeque::new(),
                stopped: false,
                threads: 0,
            }),
            more: Condvar::new(),
            tasks,
        })
    }

    pub(super) fn start(self: &Arc<Self>, threads: usize) -> std::io::Result<()> {
        for _ in 0..threads.max(1) {
            self.queue.lock().threads += 1;
            let pool = Arc::clone(self);
            let started = thread::Builder::new()
                .name(format!("{}-copy", M::NAME))
                .spawn(move || pool.run());
            if let Err(error) = started {
                self.queue.lock().threads -= 1;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Has a thread do the work, beside whoever does it already.
    pub(super) fn give(&self, work: &Arc<Work<M>>) {
        if work.is_empty() || work.given.swap(true, Ordering::AcqRel) {
            return;
        }
        {
            let mut queue = self.queue.lock();
            if !queue.stopped {
                queue.work.push_back(Arc::clone(work));
                self.more.notify_one();
                return;
            }
        }
        // No thread will: their sessions begin nothing any more.
        work.given.store(false, Ordering::Release);
        while let Some(read) = work.pop() {
            read.run(&self.tasks);
        }
    }

    fn run(&self) {
        loop {
            let work = {
                let mut queue = self.queue.lock();
                loop {
                    if queue.stopped {
                        queue.threads -= 1;
                        self.more.notify_all();
                        return;
                    }
                    if let Some(work) = queue.work.pop_front() {
                        break work;
                    }
                    self.more.wait(&mut queue);
                }
            };
            // What comes from here on is given anew.
            work.given.store(false, Ordering::Release);
            while let Some(read) = work.pop() {
                read.run(&self.tasks);
            }
        }
    }

    /// Ends the threads; `false`: one copies still.
    pub(super) fn stop(&self, end: Instant) -> bool {
        let mut queue = self.queue.lock();
        queue.stopped = true;
        self.more.notify_all();
        while queue.threads > 0 {
            if self.more.wait_until(&mut queue, end).timed_out() {
                return false;
            }
        }
        let left = std::mem::take(&mut queue.work);
        drop(queue);
        for read in left
            .iter()
            .flat_map(|work| std::iter::from_fn(|| work.pop()))
        {
            // Its session begins nothing any more.
            read.run(&self.tasks);
        }
        true
    }
}
