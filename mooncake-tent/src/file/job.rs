//! A task on its way, and what is told of it.

use std::{sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::{
    cut::{Cutter, Part, Shape},
    open::OpenFile,
};
use crate::{
    error::{Stage, TransferError},
    memory::LocalSlice,
    transport::{Op, Outcome, TaskRef, Tasks},
};

/// A task on its way. It holds the file open and the memory leased.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) task: TaskRef,
    pub(super) op: Op,
    pub(super) file: Arc<OpenFile>,
    pub(super) local: SmallVec<[LocalSlice; 1]>,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) deadline: Option<Instant>,
    pub(super) progress: Progress,
}

/// How far a task has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    cutter: Cutter,
    /// Parts that have to be done once more, or the rest of them.
    pub(super) again: SmallVec<[Part; 1]>,
    /// Parts that are under way.
    pub(super) flying: u32,
    pub(super) done: u64,
    /// A part was begun.
    pub(super) touched: bool,
    /// Waits for its turn.
    pub(super) queued: bool,
    /// Why it ends before it is done.
    pub(super) end: Option<End>,
    /// Its end was told while parts were still under way.
    pub(super) told: bool,
}

/// Why a task ends before it is done.
#[derive(Clone, Debug)]
pub(super) enum End {
    Cancelled,
    Failed(TransferError),
    TimedOut,
}

impl Job {
    /// The part to be begun next.
    pub(super) fn next(&mut self, most: u64) -> Option<Part> {
        if self.progress.end.is_some() {
            return None;
        }
        let shape = Shape {
            most,
            direct: self.file.is_direct(),
        };
        let progress = &mut self.progress;
        let again = progress.again.pop();
        again.or_else(|| progress.cutter.next(self.offset, &self.local, shape))
    }

    /// There is nothing left to begin.
    pub(super) fn is_begun(&self) -> bool {
        let Progress {
            cutter, again, end, ..
        } = &self.progress;
        end.is_some() || (again.is_empty() && cutter.is_done(&self.local))
    }

    /// How it ended; `None`: it is done.
    pub(super) fn outcome(&self, quiet: bool) -> Option<Outcome> {
        if self.progress.done == self.length {
            return None;
        }
        let peer = self.file.id();
        let outcome = match self.progress.end.as_ref()? {
            End::Cancelled => Outcome::cancelled(Stage::Post, peer),
            End::TimedOut => Outcome::timed_out(Stage::Post, peer),
            End::Failed(error) => Outcome::Failed(error.clone()),
        };
        Some(match self.progress.touched {
            true => outcome.underway(quiet),
            false => outcome,
        })
    }
}

/// What the engine is told of a task, once no lock is held.
#[derive(Debug)]
pub(super) enum Note {
    /// It is over, and what it held is free.
    Over(Box<Job>),
    /// It has ended, though parts of it are still under way.
    Loud(TaskRef, Outcome),
}

pub(super) type Notes = SmallVec<[Note; 8]>;

/// Tells all of them, and returns how many are over.
pub(super) fn tell(tasks: &Tasks, notes: Notes) -> usize {
    let mut over = 0;
    for note in notes {
        match note {
            Note::Loud(task, outcome) => tasks.finish(task, outcome, false),
            Note::Over(job) => {
                over += 1;
                let (task, done, told) = (job.task, job.progress.done, job.progress.told);
                let outcome = job.outcome(true);
                // Its leases end before anyone is told that nothing moves.
                drop(job);
                match outcome {
                    _ if told => tasks.settle(task),
                    None => tasks.finish(task, Outcome::Completed { bytes: done }, true),
                    Some(outcome) if done == 0 => tasks.finish(task, outcome, true),
                    Some(outcome) => {
                        // As two slices, of which one is done: so it is known how far it came.
                        tasks.split(task, 2);
                        tasks.finish(task, Outcome::Completed { bytes: done }, true);
                        tasks.finish(task, outcome, true);
                    }
                }
            }
        }
    }
    over
}
