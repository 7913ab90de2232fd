//! One transfer on its way through the stage.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};

use super::{
    NAME, Staging, ask::failure, config::slot_bytes, lane::Lane, mover::Mover, ring::Ring,
};
use crate::{
    error::{Applied, Reason, Stage, TransferError},
    identity::{Generation, PeerId, RegistrationId},
    memory::LocalSlice,
    platform::after,
    qos::Priority,
    segment::{BufferDescriptor, Segment},
    selector::memory_kind,
    transport::{Op, Outcome, TaskRef, TaskSpec},
};

/// What is to end quietly, has so long for it before its end is told without.
const GRACE: Duration = Duration::from_millis(50);

/// Who ends a transfer early.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
    Cancelled,
    Fenced,
    Shutdown,
}

/// Why a transfer does not go on.
#[derive(Clone, Debug)]
enum End {
    Asked(Stop),
    TimedOut,
    Failed(TransferError),
}

/// A task, as its pieces see it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) staging: Arc<Staging>,
    task: TaskRef,
    peer: PeerId,
    pub(super) segment: Segment,
    pub(super) op: Op,
    pub(super) registration: RegistrationId,
    pub(super) generation: Generation,
    pub(super) offset: u64,
    length: u64,
    pub(super) deadline: Instant,
    pub(super) priority: Priority,
    local: Mutex<SmallVec<[LocalSlice; 1]>>,
    /// What copies between the memory here and the stage; `None`: that is ordinary memory.
    pub(super) mover: Option<Arc<dyn Mover>>,
    /// The peer copies between its stage and its memory.
    pub(super) staged_there: bool,
    pub(super) ring: Mutex<Ring>,
    /// Who asks the peer for a slot waits here before.
    pub(super) queue: Arc<Semaphore>,
    end: watch::Sender<Option<End>>,
    /// How it ended.
    told: AtomicBool,
}

impl Job {
    /// Begins a transfer.
    pub(super) fn begin(staging: &Arc<Staging>, task: TaskRef, spec: TaskSpec) {
        let peer = spec.peer.id();
        let deadline = spec.deadline.unwrap_or_else(|| after(Duration::MAX));
        let theirs = spec.peer.endpoint(NAME).and_then(slot_bytes);
        let (Some(origin), Some(theirs)) = (spec.origin, theirs) else {
            let why = Reason::Unreachable("it does not stage".into());
            let end = Outcome::Failed(failure(why, Stage::Post, peer));
            drop(spec.local);
            return staging.tasks.finish(task, end, true);
        };
        let location = |slice: &LocalSlice| slice.buffer().location().to_owned();
        let here = spec.local.first().map(location).unwrap_or_default();
        let mover = staging.config.mover_at(&here).map(Arc::clone);
        let (staged_there, room) = {
            let known = origin.segment.known();
            let buffer = known.descriptor.buffer(spec.registration);
            let staged =
                |buffer: &BufferDescriptor| memory_kind(&buffer.location) != memory_kind("*");
            (
                buffer.is_some_and(staged),
                buffer.map(|buffer| buffer.length),
            )
        };
        let beyond = spec.offset.checked_add(spec.length);
        if beyond.is_none_or(|end| room.is_some_and(|room| end > room)) {
            // The peer is asked for one piece after the other, of which some would be done.
            let end = Outcome::Failed(failure(Reason::OutOfBounds, Stage::Admit, peer));
            drop(spec.local);
            return staging.tasks.finish(task, end, true);
        }
        let ours = staging.config.slot_bytes;
        let piece = if staged_there { ours.min(theirs) } else { ours };
        let job = Arc::new(Self {
            staging: Arc::clone(staging),
            task,
            peer,
            segment: origin.segment,
            op: spec.op,
            registration: spec.registration,
            generation: spec.generation,
            offset: spec.offset,
            length: spec.length,
            deadline,
            priority: spec.qos.priority(),
            local: Mutex::new(spec.local),
            mover,
            staged_there,
            ring: Mutex::new(Ring::new(spec.length, piece)),
            queue: staging.queue_to(peer),
            end: watch::Sender::new(None),
            told: AtomicBool::new(false),
        });
        if deadline <= Instant::now() {
            job.finish_with(&End::TimedOut);
        }
        staging.begin(&job);
        let unfinished = Unfinished::of(&job);
        staging.runtime.spawn(job.run(unfinished));
    }

    pub(super) fn task(&self) -> TaskRef {
        self.task
    }

    pub(super) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Asks for an early end.
    pub(super) fn stop(&self, stop: Stop) {
        self.finish_with(&End::Asked(stop));
    }

    /// A piece failed, so that the rest need not be moved.
    pub(super) fn fail(&self, error: TransferError) {
        // Whatever is given up at the deadline is given up for it.
        self.finish_with(&match self.deadline <= Instant::now() {
            true => End::TimedOut,
            false => End::Failed(error),
        });
    }

    fn finish_with(&self, end: &End) {
        self.ring.lock().stop();
        self.end.send_if_modified(|known| {
            let first = known.is_none();
            if first {
                *known = Some(end.clone());
            }
            first
        });
    }

    /// It shall not go on.
    pub(super) fn is_stopped(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Ends when it shall not go on.
    pub(super) async fn stopped(&self) {
        let mut end = self.end.subscribe();
        // The sender is ours.
        let _ended = end.wait_for(Option::is_some).await;
    }

    /// The memory here of a piece.
    pub(super) fn slices(&self, piece: &Range<u64>) -> SmallVec<[LocalSlice; 1]> {
        let mut start = 0;
        let local = self.local.lock();
        let parts = local.iter().filter_map(|slice| {
            let within = start..start + slice.len();
            start = within.end;
            let (from, to) = (piece.start.max(within.start), piece.end.min(within.end));
            (from < to).then(|| slice.part(from - within.start..to - within.start))
        });
        parts.collect()
    }

    async fn run(self: Arc<Self>, unfinished: Unfinished) {
        let mut lanes = JoinSet::new();
        let pieces = usize::try_from(self.ring.lock().pieces()).unwrap_or(usize::MAX);
        for _ in 0..self.staging.config.window.min(pieces) {
            lanes.spawn(Lane::new(Arc::clone(&self)).run());
        }
        let deadline = tokio::time::sleep_until(self.deadline.into());
        tokio::pin!(deadline);
        let (mut grace, mut doubt) = (None, false);
        loop {
            let patience = grace.unwrap_or(self.deadline);
            tokio::select! {
                ended = lanes.join_next() => match ended {
                    None => break,
                    Some(Ok(())) => {}
                    Some(Err(_)) => {
                        // Nobody can say any more what a lane has left behind that has panicked.
                        doubt = true;
                        let why = Reason::Broken("a piece was given up".into());
                        self.fail(failure(why, Stage::Move, self.peer));
                    }
                },
                () = &mut deadline, if grace.is_none() => self.finish_with(&End::TimedOut),
                () = self.stopped(), if grace.is_none() => grace = Some(after(GRACE)),
                () = tokio::time::sleep_until(patience.into()), if grace.is_some() && !self.is_told() => {
                    self.told.store(true, Ordering::Release);
                    let outcome = self.outcome(false);
                    if self.op == Op::Write {
                        // Lanes that read it still have leases of their own, and begin nothing.
                        self.local.lock().clear();
                        self.staging.tasks.release_source(self.task);
                    }
                    self.staging.tasks.finish(self.task, outcome, false);
                }
            }
        }
        // The leases end before anybody is told.
        self.local.lock().clear();
        match (self.told.swap(true, Ordering::AcqRel), doubt) {
            (false, _) => {
                let outcome = self.outcome(!doubt);
                self.staging.tasks.finish(self.task, outcome, !doubt);
            }
            (true, false) => self.staging.tasks.settle(self.task),
            (true, true) => {}
        }
        unfinished.disarm();
    }

    fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// How it ends, as far as is known now.
    fn outcome(&self, quiet: bool) -> Outcome {
        let (done, applied) = {
            let ring = self.ring.lock();
            (ring.is_done(), ring.applied(self.op))
        };
        if done {
            return Outcome::Completed { bytes: self.length };
        }
        let end = self.end.borrow().clone();
        let error = |reason| failure(reason, Stage::Post, self.peer);
        let (mut error, make): (_, fn(TransferError) -> Outcome) = match end {
            Some(End::Asked(Stop::Cancelled)) => (error(Reason::Cancelled), Outcome::Cancelled),
            Some(End::Asked(Stop::Fenced)) => {
                let why = Reason::Broken("the peer was fenced".into());
                (error(why), Outcome::Failed)
            }
            Some(End::Asked(Stop::Shutdown)) | None => (error(Reason::Stopped), Outcome::Failed),
            Some(End::TimedOut) => (error(Reason::TimedOut), Outcome::TimedOut),
            Some(End::Failed(error)) if error.reason == Reason::TimedOut => {
                (error, Outcome::TimedOut)
            }
            Some(End::Failed(error)) => (error, Outcome::Failed),
        };
        if applied != Applied::Nothing {
            error = error.underway(quiet);
        }
        (error.applied, error.quiescent) = (applied, quiet);
        make(error)
    }
}

/// Ends a task whose runtime is gone (law 2).
struct Unfinished {
    job: Arc<Job>,
    armed: bool,
}

impl Unfinished {
    fn of(job: &Arc<Job>) -> Self {
        let job = Arc::clone(job);
        Self { job, armed: true }
    }

    /// All is said.
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let job = &self.job;
        if self.armed && !job.told.swap(true, Ordering::AcqRel) {
            // Its copies may go on, under leases of their own.
            job.finish_with(&End::Asked(Stop::Shutdown));
            job.local.lock().clear();
            let outcome = job.outcome(false);
            job.staging.tasks.finish(job.task, outcome, false);
        }
        job.staging.over(job);
    }
}
