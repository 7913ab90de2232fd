//! All tasks of a ring or of the portable threads: what is to be begun, what is under way, and what
//! becomes of it. It does no I/O and reads no clock.

use std::{
    collections::VecDeque,
    os::fd::RawFd,
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;
use rustix::io::Errno;

use super::{
    FileCounts,
    cut::{Part, Way},
    job::{End, Job, Note, Notes},
    slots::Numbered,
};
use crate::{
    error::{Reason, Stage, TransferError},
    identity::{PeerId, RegistrationId},
    memory::{Memory, Piece},
    transport::{Op, TaskRef},
};

/// How long after a task's deadline the kernel may take to give back its parts, until the task ends
/// without that.
const GRACE: Duration = Duration::from_millis(100);
/// Stage buffers in use at once; beyond that the page cache serves.
const MOST_STAGES: usize = 32;
/// Stage buffers that are kept for later.
const KEPT_STAGES: usize = 8;

/// See the module.
#[derive(Debug)]
pub(super) struct Book {
    jobs: Numbered<Box<Job>>,
    flights: Numbered<Flight>,
    /// Jobs of which something is to be begun.
    ready: VecDeque<u64>,
    by_task: FxHashMap<TaskRef, u64>,
    /// Parts whose cancellation is to be asked for.
    recalls: Vec<u64>,
    /// No deadline is earlier.
    earliest: Option<Instant>,
    stages: Vec<Memory>,
    stages_out: usize,
    /// Jobs that are over, of which nobody has been told yet.
    untold: usize,
    /// A multiple of the block.
    part_bytes: u64,
    /// Nothing is taken any more.
    closed: bool,
    pub(super) counts: FileCounts,
}

/// A part that is under way.
#[derive(Debug)]
struct Flight {
    job: u64,
    part: Part,
    stage: Option<Memory>,
    recalled: bool,
}

/// What a call of the kernel needs. The book keeps the memory leased, or the stage buffer, and the
/// file open until the part has [landed](Book::land); only it makes these.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) id: u64,
    pub(super) op: Op,
    pub(super) descriptor: RawFd,
    /// Where the kernel's table has the file descriptor.
    pub(super) fixed: Option<u32>,
    /// The registered memory that the piece is part of.
    pub(super) memory: Option<RegistrationId>,
    pub(super) piece: Piece,
    pub(super) at: u64,
    _made_by_book: (),
}

impl Book {
    pub(super) fn new(part_bytes: u64) -> Self {
        Self {
            jobs: Numbered::default(),
            flights: Numbered::default(),
            ready: VecDeque::new(),
            by_task: FxHashMap::default(),
            recalls: Vec::new(),
            earliest: None,
            stages: Vec::new(),
            stages_out: 0,
            untold: 0,
            part_bytes,
            closed: false,
            counts: FileCounts::default(),
        }
    }

    /// Takes a task that is to be done.
    pub(super) fn add(&mut self, job: Job, notes: &mut Notes) {
        let mut job = Box::new(job);
        if self.closed {
            job.progress.end = Some(stopped(&job));
            self.untold += 1;
            return notes.push(Note::Over(job));
        }
        self.earliest = sooner(self.earliest, job.deadline);
        job.progress.queued = true;
        let task = job.task;
        let number = self.jobs.insert(job);
        self.by_task.insert(task, number);
        self.ready.push_back(number);
    }

    /// Begins the next part, unless `depth` are under way.
    pub(super) fn launch(&mut self, depth: usize) -> Option<Launch> {
        if self.flights.len() >= depth {
            return None;
        }
        while let Some(number) = self.ready.front().copied() {
            let Some(job) = self.jobs.get_mut(number) else {
                self.ready.pop_front();
                continue;
            };
            let part = job.next(self.part_bytes);
            if job.is_begun() {
                self.ready.pop_front();
                job.progress.queued = false;
            }
            if let Some(part) = part {
                return Some(self.begin(number, part));
            }
        }
        None
    }

    fn begin(&mut self, number: u64, mut part: Part) -> Launch {
        let job = self.jobs.get_mut(number).expect("it was just found");
        let local = &job.local[part.piece];
        let piece = local
            .piece()
            .skip(part.within as usize)
            .first(part.length as usize);
        let mut stage = None;
        if part.way == Way::Staged {
            stage = take_stage(&mut self.stages, &mut self.stages_out, self.part_bytes);
            if stage.is_none() {
                part.way = Way::Cached;
            }
        }
        let piece = match &stage {
            Some(stage) => {
                let staged = stage.piece(0..part.length);
                if job.op == Op::Write {
                    staged.copy_from(piece);
                }
                staged
            }
            None => piece,
        };
        job.progress.flying += 1;
        job.progress.touched = true;
        self.counts.begun(part.way);
        let launch = Launch {
            id: 0,
            op: job.op,
            descriptor: job.file.descriptor_for(part.way),
            fixed: job.file.slot.get().map(|slot| {
                2 * slot.place + u32::from(part.way != Way::Cached && job.file.is_direct())
            }),
            memory: stage.is_none().then(|| local.buffer().id()),
            piece,
            at: part.at,
            _made_by_book: (),
        };
        let flight = Flight {
            job: number,
            part,
            stage,
            recalled: false,
        };
        Launch {
            id: self.flights.insert(flight),
            ..launch
        }
    }

    /// The kernel has done with a part: it has moved so many bytes, or refused.
    pub(super) fn land(&mut self, id: u64, result: Result<usize, Errno>, notes: &mut Notes) {
        let Some(Flight {
            job: number,
            part,
            stage,
            recalled,
        }) = self.flights.remove(id)
        else {
            return;
        };
        let job = self.jobs.get_mut(number).expect("its parts keep it");
        if let (Op::Read, Some(stage), Ok(moved)) = (job.op, &stage, result)
            && moved > 0
        {
            let piece = job.local[part.piece].piece().skip(part.within as usize);
            piece.copy_from(stage.piece(0..moved as u64));
        }
        if let Some(stage) = stage {
            self.stages_out -= 1;
            if self.stages.len() < KEPT_STAGES {
                self.stages.push(stage);
            }
        }
        let job = self.jobs.get_mut(number).expect("its parts keep it");
        job.progress.flying -= 1;
        let mut failure = None;
        match result {
            Ok(moved) if moved as u64 >= part.length => job.progress.done += part.length,
            Ok(0) => {
                failure = Some(job.file.ended(job.op, part.at, part.length, 0));
            }
            Ok(moved) => {
                job.progress.done += moved as u64;
                self.counts.short += 1;
                job.progress.again.push(part.rest(moved as u64));
            }
            // The kernel ends what a thread began when that thread ends, which is no reason for us.
            Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN) => {
                self.counts.repeated += u64::from(!recalled);
                job.progress.again.push(part);
            }
            // The file system wants more than whole blocks.
            Err(Errno::INVAL) if part.way != Way::Cached => {
                self.counts.repeated += 1;
                let way = Way::Cached;
                job.progress.again.push(Part { way, ..part });
            }
            Err(errno) => failure = Some(job.file.refusal(job.op, part.at, part.length, errno)),
        }
        if let Some(error) = failure {
            self.end(number, End::Failed(error), notes);
        } else {
            self.go_on(number, notes);
        }
    }

    /// Ends the job if nothing of it is left, and otherwise lets it wait for its turn.
    fn go_on(&mut self, number: u64, notes: &mut Notes) {
        let job = self.jobs.get_mut(number).expect("the caller has found it");
        if !job.is_begun() && !job.progress.queued {
            job.progress.queued = true;
            // What others began before is older than what is begun anew.
            self.ready.push_front(number);
        }
        if job.is_begun() && job.progress.flying == 0 {
            let job = self.jobs.remove(number).expect("it was just found");
            self.by_task.remove(&job.task);
            self.untold += 1;
            notes.push(Note::Over(job));
        }
    }

    /// Nothing more of the job is begun; what is under way is called back.
    fn end(&mut self, number: u64, end: End, notes: &mut Notes) {
        let Some(job) = self.jobs.get_mut(number) else {
            return;
        };
        // A job whose last part has landed is done, whatever comes now.
        if job.progress.end.is_none() {
            job.progress.end = Some(end);
            if job.progress.flying > 0 {
                for (id, flight) in self.flights.iter_mut() {
                    if flight.job == number && !flight.recalled {
                        flight.recalled = true;
                        self.recalls.push(id);
                    }
                }
            }
        }
        self.go_on(number, notes);
    }

    /// The caller wants an early end of `task`.
    pub(super) fn cancel(&mut self, task: TaskRef, notes: &mut Notes) {
        if let Some(number) = self.by_task.get(&task).copied() {
            self.end(number, End::Cancelled, notes);
        }
    }

    /// Ends all jobs of a file that was fenced.
    pub(super) fn fence(&mut self, peer: PeerId, notes: &mut Notes) {
        self.end_where(notes, |job| {
            let fenced = || {
                let reason = Reason::Broken("its segment was fenced".into());
                TransferError::unstarted(reason, Stage::Post, Some(peer))
            };
            (job.file.id() == peer).then(|| End::Failed(fenced()))
        });
    }

    /// Ends all jobs, and those that come later.
    pub(super) fn close(&mut self, notes: &mut Notes) {
        self.closed = true;
        self.end_where(notes, |job| Some(stopped(job)));
    }

    fn end_where(&mut self, notes: &mut Notes, why: impl Fn(&Job) -> Option<End>) {
        let ends = self.jobs.iter_mut();
        let ends: Vec<_> = ends
            .filter_map(|(number, job)| Some((number, why(job)?)))
            .collect();
        for (number, end) in ends {
            self.end(number, end, notes);
        }
    }

    /// Ends what is overdue.
    pub(super) fn expire(&mut self, now: Instant, notes: &mut Notes) {
        if self.earliest.is_none_or(|earliest| now < earliest) {
            return;
        }
        self.earliest = None;
        let mut late = Vec::new();
        for (number, job) in self.jobs.iter_mut() {
            let Some(deadline) = job.deadline else {
                continue;
            };
            if now < deadline {
                self.earliest = sooner(self.earliest, Some(deadline));
                continue;
            }
            late.push(number);
            let loud = deadline + GRACE;
            if now < loud {
                self.earliest = sooner(self.earliest, Some(loud));
            }
        }
        for number in late {
            self.end(number, End::TimedOut, notes);
            let Some(job) = self.jobs.get_mut(number) else {
                continue;
            };
            if job.deadline.is_some_and(|deadline| deadline + GRACE <= now) && !job.progress.told {
                job.progress.told = true;
                let outcome = job.outcome(false).expect("it has just been ended");
                notes.push(Note::Loud(job.task, outcome));
            }
        }
    }

    /// When [`expire`](Self::expire) may have something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.earliest
    }

    /// The next part to be called back.
    pub(super) fn recall(&mut self) -> Option<u64> {
        self.recalls.pop()
    }

    /// It could not be called back now.
    pub(super) fn recall_later(&mut self, id: u64) {
        self.recalls.push(id);
    }

    /// There is something to be begun, or called back.
    pub(super) fn is_ready(&self, depth: usize) -> bool {
        !self.recalls.is_empty() || (!self.ready.is_empty() && self.flights.len() < depth)
    }

    /// There is more to be begun than one part.
    pub(super) fn is_shareable(&mut self) -> bool {
        let first = self.ready.front().copied();
        let first = first.and_then(|number| self.jobs.get_mut(number));
        self.ready.len() > 1 || first.is_some_and(|job| job.length > self.part_bytes)
    }

    /// Jobs that are not over.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// So many jobs that were over have been told of.
    pub(super) fn told(&mut self, over: usize) {
        self.untold -= over;
    }

    /// There are jobs that are not over, or if a file is named, jobs of this file whose end somebody
    /// has not heard of yet.
    pub(super) fn is_busy(&mut self, peer: Option<PeerId>) -> bool {
        let Some(peer) = peer else {
            return self.len() > 0;
        };
        self.untold > 0 || self.jobs.iter_mut().any(|(_, job)| job.file.id() == peer)
    }
}

fn take_stage(free: &mut Vec<Memory>, out: &mut usize, bytes: u64) -> Option<Memory> {
    if *out == MOST_STAGES {
        return None;
    }
    let stage = free
        .pop()
        .or_else(|| Memory::allocate(bytes as usize).ok())?;
    *out += 1;
    Some(stage)
}

fn stopped(job: &Job) -> End {
    let peer = Some(job.file.id());
    End::Failed(TransferError::unstarted(Reason::Stopped, Stage::Post, peer))
}

fn sooner(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests;
