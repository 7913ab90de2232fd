//! All tasks of an engine, in cells that are used again.

use std::{
    any::Any,
    sync::{Arc, OnceLock},
    time::Instant,
};

use smallvec::SmallVec;

use super::{
    BatchState, NextPart, Op, Outcome, Posting, Rest, SubBatch, TaskRef, TaskSpec,
    free_cells::FreeCells,
};
use crate::{
    error::{Applied, Error, Progress, Reason, Result, Retry, Stage, TransferError},
    lane::Watch,
    metrics::Meters,
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    trace::{Trace, TraceEvent},
};

/// Shared by the engine and its links.
pub type Tasks = Arc<TaskSlab>;

/// Few in a model, which makes all of them anew for each order of events.
const CHUNK: usize = if cfg!(mooncake_loom) { 2 } else { 1024 };
const CHUNKS: usize = 256;
/// So often a task is posted again at most for fresh knowledge of the peer.
const RETRIES: u8 = 3;
/// So often it goes to another link at most, unless the engine says otherwise.
pub(crate) const FAILOVERS: u8 = 3;

/// Cells of tasks, with the free ones among them.
///
/// A link learns what to do from [`spec`](Self::spec) and reports through
/// [`finish`](Self::finish), once for each slice that it announced by [`split`](Self::split).
pub struct TaskSlab {
    chunks: Box<[OnceLock<Box<[TaskCell]>>]>,
    free: FreeCells,
    open_batches: AtomicU64,
    retry: OnceLock<RetryHook>,
    /// So often a task goes to another link at most.
    failovers: u8,
    meters: Arc<Meters>,
}

/// What a task holds until it is quiet. Its drop takes no lock under which others are taken.
pub(crate) type Ticket = Box<dyn Any + Send + Sync>;

/// Takes over a task that failed for a reason which fresh knowledge of the peer or another link may
/// cure. It runs while a link's locks are held, so it may only arrange for the retry.
pub(crate) type RetryHook = Box<dyn Fn(TaskRef, Turn) + Send + Sync>;

/// When a task is posted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Now: it is quiet.
    Now,
    /// Its next part, now: the one before is done.
    Part,
    /// Once it is quiet, which the hook is told; at its [deadline](TaskSlab::deadline) it is [given
    /// up](TaskSlab::give_up_waiting).
    WhenQuiet,
}

/// What tasks add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskSums {
    pub(crate) in_flight: u64,
    pub(crate) bytes_in_flight: u64,
    /// Of tasks that have ended and are not quiet.
    pub(crate) quarantined_bytes: u64,
}

#[derive(Debug, Default)]
struct TaskCell {
    generation: AtomicU32,
    body: Mutex<TaskBody>,
}

#[derive(Debug, Default)]
struct TaskBody {
    spec: Option<TaskSpec>,
    submitted: Option<Instant>,
    batch: Option<Arc<BatchState>>,
    /// Slices that have not ended.
    unfinished: u32,
    /// Slices whose bytes may still move.
    loud: u32,
    bytes: u64,
    failure: Option<Outcome>,
    /// Some failed slice may have been applied.
    touched: bool,
    outcome: Option<Outcome>,
    /// Slices that its link announced.
    slices: u32,
    /// Where the first slice begins that failed.
    prefix: u64,
    /// So many bytes were at their destination before the latest attempt, which moves the rest.
    resumed: u64,
    /// So often it may be posted again for fresh knowledge.
    retries: u8,
    /// So often it may go to another link.
    failovers: u8,
    /// What learns from its end.
    watch: Option<Watch>,
    /// What becomes of it is told here, until it is quiet.
    trace: Option<Trace>,
    /// Released once it is quiet.
    ticket: Option<Ticket>,
    /// It goes in parts, and this follows the one that is on its way; there until its end.
    rest: Option<Box<Rest>>,
    /// It is posted again once it is quiet; until then one more slice is loud.
    awaits_quiet: bool,
    /// Why it is being posted again.
    previous: Option<Outcome>,
    /// What carries it instead of its batch's sub-batch.
    carrier: Option<Arc<dyn SubBatch>>,
    /// The caller asked for an early end.
    unwanted: bool,
    /// The batch was dropped: the cell frees itself once it is quiet.
    orphan: bool,
}

/// What an ended slice changed, told after the cell's lock is gone.
#[derive(Debug, Default)]
struct Change {
    batch: Option<Arc<BatchState>>,
    ended: bool,
    quiet: bool,
    /// It did not complete.
    failed: bool,
    retry: Option<Turn>,
    free: bool,
}

impl TaskSlab {
    #[cfg(any(test, feature = "conformance", feature = "fuzzing"))]
    pub(crate) fn new() -> Self {
        Self::with_failovers(FAILOVERS)
    }

    /// Whose tasks go to another link so often at most.
    pub(crate) fn with_failovers(failovers: u8) -> Self {
        Self {
            failovers,
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            free: FreeCells::default(),
            open_batches: AtomicU64::new(0),
            retry: OnceLock::new(),
            meters: Arc::default(),
        }
    }

    /// Where the ends of tasks are counted.
    pub(crate) fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    pub(crate) fn on_retry(&self, hook: RetryHook) {
        if self.retry.set(hook).is_err() {
            unreachable!("an engine sets its hook once");
        }
    }

    /// Takes `count` cells, or none, for tasks that [begin](Self::begin_at) after this.
    pub(crate) fn take(
        &self,
        batch: &BatchState,
        count: usize,
        refs: &mut Vec<TaskRef>,
    ) -> Result<()> {
        let first = refs.len();
        let limit = CHUNK * CHUNKS;
        if !self.free.take(count, limit as u32, refs) {
            return Err(Error::Busy {
                what: "the task table",
                limit,
            });
        }
        batch.add(u32::try_from(count).expect("fewer than the table holds"));
        for task in &mut refs[first..] {
            let cell = self.cell(task.slot);
            task.generation = cell.generation.load(Ordering::Acquire);
        }
        Ok(())
    }

    /// As [`begin_at`](Self::begin_at), now.
    #[cfg(any(test, feature = "conformance", feature = "fuzzing"))]
    pub(crate) fn begin(
        &self,
        batch: &Arc<BatchState>,
        tasks: &[TaskRef],
        specs: impl IntoIterator<Item = (TaskSpec, bool)>,
    ) {
        self.begin_at(Instant::now(), batch, tasks, specs);
    }

    /// Tells what tasks ask that were submitted then, and whose cells were [taken](Self::take). Each is
    /// told once.
    pub(crate) fn begin_at(
        &self,
        submitted: Instant,
        batch: &Arc<BatchState>,
        tasks: &[TaskRef],
        specs: impl IntoIterator<Item = (TaskSpec, bool)>,
    ) {
        let submitted = Some(submitted);
        for (task, (spec, may_retry)) in tasks.iter().zip(specs) {
            let batch = Arc::clone(batch);
            let mut body = self.cell(task.slot).body.lock();
            body.begin(spec, submitted, batch, may_retry, self.failovers);
        }
    }

    /// What the task asks; `None` once it has ended.
    pub fn spec(&self, task: TaskRef) -> Option<TaskSpec> {
        self.with(task, |body| {
            body.spec.clone().filter(|_| body.outcome.is_none())
        })
        .flatten()
    }

    /// As [`spec`](Self::spec), but only what is needed to move the bytes.
    pub fn posting(&self, task: TaskRef) -> Option<Posting> {
        self.with(task, |body| {
            let spec = body.spec.as_ref().filter(|_| body.outcome.is_none())?;
            Some(Posting {
                op: spec.op,
                local: match &*spec.local {
                    [only] => SmallVec::from_buf([only.clone()]),
                    several => several.iter().cloned().collect(),
                },
                peer: spec.peer.id(),
                registration: spec.registration,
                generation: spec.generation,
                offset: spec.offset,
                length: spec.length,
                deadline: spec.deadline,
                receipt: spec.receipt,
            })
        })
        .flatten()
    }

    /// Announces that the link will report `slices` times. Call before the first report.
    pub fn split(&self, task: TaskRef, slices: u32) {
        self.with(task, |body| {
            (body.unfinished, body.loud, body.slices) = (slices, slices, slices);
        });
    }

    /// One slice has ended. `quiet`: none of its bytes can move any more; otherwise
    /// [`settle`](Self::settle) follows.
    pub fn finish(&self, task: TaskRef, end: Outcome, quiet: bool) {
        let Some(change) = self.with(task, |body| body.finish(0, end, quiet, &self.meters)) else {
            return;
        };
        self.announce(task, change);
    }

    /// As [`finish`](Self::finish), of the slice from `offset` of the peer's registration on: if it
    /// failed and all before it did not, another attempt begins there.
    pub fn finish_slice(&self, task: TaskRef, offset: u64, end: Outcome, quiet: bool) {
        let Some(change) = self.with(task, |body| {
            let start = body.spec.as_ref().map_or(offset, |spec| spec.offset);
            body.finish(offset.saturating_sub(start), end, quiet, &self.meters)
        }) else {
            return;
        };
        self.announce(task, change);
    }

    /// A slice that ended before has become quiet.
    pub fn settle(&self, task: TaskRef) {
        let Some(change) = self.with(task, |body| {
            body.loud = body.loud.saturating_sub(1);
            if body.awaits_quiet && body.loud == 1 {
                body.awaits_quiet = false;
                let retry = Some(match body.previous {
                    Some(_) => Turn::Now,
                    None => Turn::Part,
                });
                return Change {
                    retry,
                    ..Change::default()
                };
            }
            body.after_quiet(Change::default())
        }) else {
            return;
        };
        self.announce(task, change);
    }

    /// The link reads no more of a write's local memory than it holds leases of its own for, though
    /// bytes of it may still land at the peer.
    pub fn release_source(&self, task: TaskRef) {
        let source = self.with(task, |body| {
            let spec = body.spec.as_mut().filter(|spec| spec.op == Op::Write)?;
            Some(std::mem::take(&mut spec.local))
        });
        drop(source);
    }

    /// How the task ended, if it has.
    pub fn outcome(&self, task: TaskRef) -> Option<Outcome> {
        self.with(task, |body| body.outcome.clone()).flatten()
    }

    /// The bytes of the task cannot move any more.
    pub fn is_quiescent(&self, task: TaskRef) -> bool {
        self.with(task, |body| body.outcome.is_some() && body.loud == 0)
            .unwrap_or(true)
    }

    /// The caller asks for an early end. A task that is on no link finds it before it is posted. What
    /// carries it instead of its batch is for the caller to tell.
    pub(crate) fn ask_to_cancel(&self, task: TaskRef) -> Option<Arc<dyn SubBatch>> {
        self.with(task, |body| {
            body.unwanted = true;
            body.carrier.clone()
        })
        .flatten()
    }

    /// Why a task is being posted again.
    pub(crate) fn retried_for(&self, task: TaskRef) -> Option<TransferError> {
        self.with(task, |body| body.previous.as_ref()?.error().cloned())
            .flatten()
    }

    /// A task that is being posted again is carried by this.
    pub(crate) fn carried_by(&self, task: TaskRef, carrier: &Arc<dyn SubBatch>) {
        self.with(task, |body| body.carrier = Some(Arc::clone(carrier)));
    }

    /// A task that should be posted again ends instead as it would have ended without.
    pub(crate) fn give_up(&self, task: TaskRef) {
        let Some(change) = self.with(task, |body| body.give_up(&self.meters)) else {
            return;
        };
        if let Some(change) = change {
            self.announce(task, change);
        }
    }

    /// As [`give_up`](Self::give_up), if it still waits to be quiet.
    pub(crate) fn give_up_waiting(&self, task: TaskRef) {
        let change = self.with(task, |body| {
            let waits = body.awaits_quiet;
            waits.then(|| body.give_up(&self.meters)).flatten()
        });
        if let Some(change) = change.flatten() {
            self.announce(task, change);
        }
    }

    /// When the caller of a task stops being interested.
    pub(crate) fn deadline(&self, task: TaskRef) -> Option<Instant> {
        self.with(task, |body| body.request_deadline()).flatten()
    }

    /// `watch` learns from the end of a task.
    pub(crate) fn watch(&self, task: TaskRef, watch: Option<Watch>) {
        self.with(task, |body| body.watch = watch);
    }

    /// What becomes of a task is told to `trace`.
    pub(crate) fn follow(&self, task: TaskRef, trace: Trace) {
        self.with(task, |body| body.trace = Some(trace));
    }

    /// Whom to tell what becomes of a task, if anybody.
    pub(crate) fn trace(&self, task: TaskRef) -> Option<Trace> {
        self.with(task, |body| body.trace.clone()).flatten()
    }

    /// What would have learned from the end of a task.
    pub(crate) fn unwatch(&self, task: TaskRef) -> Option<Watch> {
        self.with(task, |body| body.watch.take()).flatten()
    }

    /// Changes what a task asks that is on no link.
    pub(crate) fn amend(&self, task: TaskRef, change: impl FnOnce(&mut TaskSpec)) {
        self.with(task, |body| body.spec.as_mut().map(change));
    }

    /// Only a first part of the task goes, and then `rest`. It is on no link yet.
    pub(crate) fn divide(&self, task: TaskRef, rest: Box<Rest>) {
        self.with(task, |body| body.rest = Some(rest));
    }

    /// The part of a task whose [turn](Turn::Part) it is. What was charged for the one before is
    /// released.
    pub(crate) fn next_part(&self, task: TaskRef) -> Option<NextPart> {
        self.with(task, |body| {
            body.ticket = None;
            let (rest, spec) = (body.rest.as_ref()?, body.spec.as_ref()?);
            let mut terms = rest.terms().clone();
            if let Some(origin) = &spec.origin {
                // Another link may have taken over.
                terms.link = usize::from(origin.link);
            }
            (body.outcome.is_none()).then(|| NextPart {
                bytes: spec.length,
                qos: spec.qos.clone(),
                terms,
            })
        })
        .flatten()
    }

    /// The task keeps `ticket` until it is quiet.
    pub(crate) fn charge(&self, task: TaskRef, ticket: Ticket) {
        let mut ticket = Some(ticket);
        self.with(task, |body| {
            if body.outcome.is_none() {
                body.ticket = ticket.take();
            }
        });
    }

    /// The caller has asked for an early end.
    pub(crate) fn is_unwanted(&self, task: TaskRef) -> bool {
        self.with(task, |body| body.unwanted).unwrap_or(false)
    }

    /// Gives a task that awaits its retry a new spec.
    pub(crate) fn renew(&self, task: TaskRef, spec: TaskSpec) {
        self.with(task, |body| {
            let before = body.spec.as_ref().map_or(spec.length, |spec| spec.length);
            body.resumed += before.saturating_sub(spec.length);
            body.spec = Some(spec);
        });
    }

    /// Their batch gives the cells back: at once, or when they are quiet.
    pub(crate) fn release(&self, tasks: &[TaskRef]) {
        for some in tasks.chunks(64) {
            let mut freed = SmallVec::<[u32; 64]>::new();
            for task in some {
                let cell = self.cell(task.slot);
                let mut body = cell.body.lock();
                if cell.generation.load(Ordering::Acquire) != task.generation {
                    continue;
                }
                body.orphan = true;
                if body.outcome.is_some() && body.loud == 0 {
                    cell.retire(&mut body);
                    freed.push(task.slot);
                }
            }
            self.free.give_up(&freed);
        }
    }

    /// Cells in use.
    pub fn len(&self) -> usize {
        self.free.taken()
    }

    /// No cell is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn batch_opened(&self) {
        self.open_batches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn batch_closed(&self) {
        self.open_batches.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn open_batches(&self) -> u64 {
        self.open_batches.load(Ordering::Relaxed)
    }

    /// Adds up all cells that were ever used, one after the other.
    pub(crate) fn sums(&self) -> TaskSums {
        let used = self.free.used();
        let mut sums = TaskSums::default();
        for slot in 0..used {
            let body = self.cell(slot).body.lock();
            // A task that is quiet has no spec any more.
            let Some(spec) = &body.spec else { continue };
            let length = spec.length + body.waiting_bytes();
            if body.outcome.is_some() {
                sums.quarantined_bytes += length;
            } else {
                sums.in_flight += 1;
                sums.bytes_in_flight += length;
            }
        }
        sums
    }

    fn announce(&self, task: TaskRef, change: Change) {
        if let Some(turn) = change.retry {
            let hook = self
                .retry
                .get()
                .expect("only tasks of an engine ask for retries");
            return hook(task, turn);
        }
        // Freed before anyone is told, so that who waits for the end finds the books closed.
        if change.free {
            self.free(task);
        }
        if let Some(batch) = change.batch {
            if change.failed {
                batch.spoil();
            }
            batch.change(change.ended, change.quiet);
        }
    }

    /// Frees the cell of a task whose batch is gone and whose bytes are quiet.
    fn free(&self, task: TaskRef) {
        let cell = self.cell(task.slot);
        {
            let mut body = cell.body.lock();
            if cell.generation.load(Ordering::Acquire) != task.generation {
                return;
            }
            cell.retire(&mut body);
        }
        self.free.give_up(&[task.slot]);
    }

    fn cell(&self, slot: u32) -> &TaskCell {
        let slot = slot as usize;
        let chunk = self.chunks[slot / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| TaskCell::default()).collect());
        &chunk[slot % CHUNK]
    }

    fn with<T>(&self, task: TaskRef, f: impl FnOnce(&mut TaskBody) -> T) -> Option<T> {
        let cell = self.cell(task.slot);
        let mut body = cell.body.lock();
        (cell.generation.load(Ordering::Acquire) == task.generation).then(|| f(&mut body))
    }
}

impl TaskCell {
    /// As new for the next task; no reference to the last one matches any more. `body` is its own.
    fn retire(&self, body: &mut TaskBody) {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation
            .store(generation.wrapping_add(1), Ordering::Release);
        body.empty();
    }
}

impl TaskBody {
    /// A task begins. In place, since most of this is large and empty.
    fn begin(
        &mut self,
        spec: TaskSpec,
        submitted: Option<Instant>,
        batch: Arc<BatchState>,
        may_retry: bool,
        failovers: u8,
    ) {
        self.spec = Some(spec);
        self.submitted = submitted;
        self.batch = Some(batch);
        (self.unfinished, self.loud, self.bytes) = (1, 1, 0);
        (self.slices, self.resumed, self.awaits_quiet) = (1, 0, false);
        self.prefix = u64::MAX;
        (self.retries, self.failovers) = if may_retry {
            (RETRIES, failovers)
        } else {
            (0, 0)
        };
        (self.touched, self.unwanted, self.orphan) = (false, false, false);
    }

    /// Nothing of the task is kept.
    fn empty(&mut self) {
        (self.spec, self.batch) = (None, None);
        (self.failure, self.outcome) = (None, None);
        (self.previous, self.carrier, self.rest) = (None, None, None);
    }

    // An outcome is large, and a call would copy it.
    #[inline(always)]
    fn finish(&mut self, at: u64, end: Outcome, quiet: bool, meters: &Meters) -> Change {
        let mut change = Change::default();
        if self.unfinished == 0 {
            return change;
        }
        self.unfinished -= 1;
        self.loud -= u32::from(quiet);
        match end {
            Outcome::Completed { bytes } => self.bytes += bytes,
            failure => {
                let error = failure.error();
                self.touched |= error.is_some_and(|error| error.applied != Applied::Nothing);
                self.failure = Some(self.failure.take().unwrap_or(failure));
                self.prefix = self.prefix.min(at);
            }
        }
        if self.unfinished > 0 {
            return change;
        }
        if self.wants_retry() {
            self.trace_failure();
            // The retry is one slice until its link splits it.
            self.previous = self.failure.take();
            self.unfinished = 1;
            self.loud += 1;
            self.awaits_quiet = self.loud > 1;
            change.retry = Some(match self.awaits_quiet {
                true => Turn::WhenQuiet,
                false => Turn::Now,
            });
            return change;
        }
        if self.rest.is_some() && self.goes_on(meters) {
            change.retry = Some(match self.awaits_quiet {
                true => Turn::WhenQuiet,
                false => Turn::Part,
            });
            return change;
        }
        let failure = self.failure.take().or_else(|| self.shortfall());
        let bytes = self.resumed + self.bytes;
        let mut outcome = failure.unwrap_or(Outcome::Completed { bytes });
        if let Some(error) = outcome.error_mut() {
            error.progress = self.progress();
            // The error of one slice speaks for all of them.
            error.quiescent = self.loud == 0;
            error.applied = match error.applied {
                Applied::UpTo(bytes) if self.slices == 1 => Applied::UpTo(self.resumed + bytes),
                _ if self.is_prefix() => Applied::UpTo(self.resumed + self.bytes),
                _ if self.touched || self.bytes > 0 => Applied::Unknown,
                _ if self.resumed > 0 => Applied::UpTo(self.resumed),
                applied => applied,
            };
            change.failed = true;
        }
        if let Some(spec) = &self.spec {
            meters.ended(spec.meter, spec.op, &outcome, self.bytes);
            if let Some(watch) = self.watch.take() {
                // It takes no lock under which others are taken.
                watch.ended(spec.op, spec.length, &outcome);
            }
            if let Some(trace) = &self.trace {
                let outcome = outcome.clone();
                trace.note(TraceEvent::Ended { outcome });
            }
        }
        self.outcome = Some(outcome);
        (self.previous, self.carrier) = (None, None);
        change.ended = true;
        self.after_quiet(change)
    }

    /// What is done of it are its first bytes, and nothing behind them was touched.
    fn is_prefix(&self) -> bool {
        !self.touched && self.bytes > 0 && self.bytes == self.prefix
    }

    /// Its part is done, and it goes on with the next, unless it is not wanted any more.
    #[cold]
    fn goes_on(&mut self, meters: &Meters) -> bool {
        let (Some(rest), Some(spec)) = (&mut self.rest, &mut self.spec) else {
            return false;
        };
        let done = self.failure.is_none() && self.bytes == spec.length;
        if !done || rest.length() == 0 {
            return false;
        }
        meters.parted(spec.meter, spec.op, self.bytes);
        if let Some(watch) = self.watch.take() {
            let bytes = self.bytes;
            watch.ended(spec.op, spec.length, &Outcome::Completed { bytes });
        }
        self.resumed += self.bytes;
        (self.bytes, self.slices, self.touched) = (0, 1, false);
        rest.go_on(spec);
        if self.unwanted {
            self.failure = Some(Outcome::cancelled(Stage::Resolve, spec.peer.id()));
            return false;
        }
        (self.previous, self.carrier) = (None, None);
        self.unfinished = 1;
        self.loud += 1;
        self.awaits_quiet = self.loud > 1;
        true
    }

    /// Bytes of it that are not on their way yet.
    fn waiting_bytes(&self) -> u64 {
        self.rest.as_ref().map_or(0, |rest| rest.length())
    }

    /// Tells that an attempt failed that another one may follow.
    fn trace_failure(&self) {
        if let (Some(trace), Some(why)) = (&self.trace, &self.failure) {
            let why = why.clone();
            trace.note(TraceEvent::AttemptEnded { why });
        }
    }

    /// A link that claims to be done with fewer or more bytes than it was asked for.
    fn shortfall(&self) -> Option<Outcome> {
        let spec = self.spec.as_ref()?;
        (self.bytes != spec.length).then(|| {
            let what = format!("the link moved {} of {} bytes", self.bytes, spec.length);
            let reason = Reason::Protocol(what.into());
            let error = TransferError::unstarted(reason, Stage::Move, Some(spec.peer.id()));
            Outcome::Failed(error.underway(true))
        })
    }

    fn progress(&self) -> Option<Progress> {
        let (spec, submitted) = (self.spec.as_ref()?, self.submitted?);
        let after = submitted.elapsed();
        let length = self.resumed + spec.length + self.waiting_bytes();
        let bytes = self.resumed + self.bytes;
        Some(Progress::new(spec.op, length, bytes, after))
    }

    /// When the caller stops being interested; an attempt may have less time.
    fn request_deadline(&self) -> Option<Instant> {
        let spec = self.spec.as_ref()?;
        let origin = spec.origin.as_ref();
        origin.map_or(spec.deadline, |origin| origin.deadline)
    }

    fn give_up(&mut self, meters: &Meters) -> Option<Change> {
        (self.retries, self.failovers, self.awaits_quiet) = (0, 0, false);
        let end = match self.previous.take() {
            Some(end) => end,
            // Its part is done, but never became quiet.
            None => {
                let peer = self.rest.as_ref().and(self.spec.as_ref())?.peer.id();
                Outcome::timed_out(Stage::Move, peer)
            }
        };
        Some(self.finish(0, end, true, meters))
    }

    /// It is worth another attempt, which is counted.
    fn wants_retry(&mut self) -> bool {
        let (Some(failure), Some(spec)) = (&self.failure, &self.spec) else {
            return false;
        };
        let Some(error) = failure.error().filter(|_| !self.unwanted) else {
            return false;
        };
        // A write is posted once more only from where nothing of it can have been applied, now or
        // later. A read begins anew and overwrites what it brought.
        let untouched = !self.touched && self.bytes == 0;
        let done = match (error.applied, spec.op) {
            (Applied::UpTo(bytes), _) if self.slices == 1 => bytes,
            (_, Op::Read) => self.prefix,
            (_, Op::Write) if self.is_prefix() => self.prefix,
            _ => 0,
        };
        // What the target is told of a write is of the whole.
        let is_known = 0 < done && done < spec.length && spec.receipt.is_none();
        let movable = match spec.op {
            Op::Read => true,
            Op::Write => self.loud == 0 && (untouched || is_known),
        };
        if !movable {
            return false;
        }
        // A peer that came back elsewhere is not reached where it was, and what one link cannot another
        // may. An attempt that took too long is not the end of the time for all of them.
        let origin = spec.origin.as_ref();
        let others = origin.is_some_and(|origin| origin.others);
        let refreshed = origin.is_some_and(|origin| origin.refreshed && others);
        let (stale, elsewhere) = match failure {
            Outcome::Failed(error) => (
                error.retry == Retry::AfterRefresh && !refreshed
                    || matches!(error.reason, Reason::Unreachable(_)) && !others,
                others && error.retry != Retry::Never,
            ),
            Outcome::TimedOut(_) => {
                let left = || {
                    self.request_deadline()
                        .is_none_or(|end| Instant::now() < end)
                };
                (false, others && left())
            }
            Outcome::Completed { .. } | Outcome::Cancelled(_) => (false, false),
        };
        // Who is not quiet waits for a better link, but not for what will be the same.
        let left = match (stale, elsewhere) {
            (true, _) if self.loud == 0 => &mut self.retries,
            (false, true) => &mut self.failovers,
            _ => return false,
        };
        let may = *left > 0;
        *left = left.saturating_sub(1);
        if may {
            self.touched &= !is_known;
            (self.bytes, self.slices, self.prefix) = (0, 1, u64::MAX);
            if let Some(error) = self.failure.as_mut().and_then(Outcome::error_mut) {
                // It speaks of one slice only.
                error.applied = match error.applied {
                    _ if is_known => Applied::UpTo(done),
                    _ if self.touched => Applied::Unknown,
                    applied => applied,
                };
            }
        }
        may
    }

    fn after_quiet(&mut self, mut change: Change) -> Change {
        if self.outcome.is_some() && self.loud == 0 {
            // Ends the leases on local memory (law 13).
            (self.spec, self.rest) = (None, None);
            if let Some(trace) = self.trace.take() {
                trace.note(TraceEvent::Quiet);
            }
            change.batch = self.batch.take();
            if self.ticket.is_some() {
                self.ticket = None;
            }
            change.quiet = change.batch.is_some();
            change.free = self.orphan && change.quiet;
        } else if change.ended {
            change.batch.clone_from(&self.batch);
        }
        change
    }
}

impl std::fmt::Debug for TaskSlab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TaskSlab({} tasks)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        identity::{Generation, Incarnation, RegistrationId},
        transport::Peer,
    };

    fn slab_with_one(may_refresh: bool) -> (TaskSlab, Arc<BatchState>, TaskRef) {
        let slab = TaskSlab::new();
        let batch = Arc::new(BatchState::default());
        let spec = TaskSpec {
            op: Op::Write,
            local: SmallVec::new(),
            peer: Arc::new(Peer::new(Incarnation::random(), Vec::new())),
            registration: RegistrationId(1),
            generation: Generation(1),
            offset: 0,
            length: 10,
            deadline: None,
            receipt: crate::transport::Receipt::default(),
            qos: crate::qos::Qos::new(),
            terms: None,
            origin: None,
            meter: crate::metrics::MeterId::NONE,
        };
        let mut refs = Vec::new();
        slab.take(&batch, 1, &mut refs).unwrap();
        slab.begin(&batch, &refs, [(spec, may_refresh)]);
        (slab, batch, refs[0])
    }

    fn failed(reason: Reason) -> TransferError {
        TransferError::unstarted(reason, Stage::Admit, None)
    }

    /// The first part of a task, of 34 of 100 bytes, is done after a retry behind its first 20.
    #[test]
    fn a_part_that_was_retried_leaves_nothing_of_that_to_the_next() {
        let (slab, _batch, task) = slab_with_one(true);
        let turns = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&turns);
        slab.on_retry(Box::new(move |_, turn| noted.lock().push(turn)));
        let segment = crate::segment::Segment::new(
            String::new(),
            crate::segment::SegmentDescriptor::new(
                String::new(),
                Incarnation::random(),
                0,
                String::new(),
                Vec::new(),
                Vec::new(),
            ),
            Arc::default(),
        );
        let terms = super::super::rest::RestTerms {
            segment,
            fences: 0,
            deadline: Instant::now() + std::time::Duration::from_secs(9),
            link: 0,
        };
        slab.amend(task, |spec| spec.length = 100);
        let mut spec = slab.spec(task).unwrap();
        let rest = Rest::cut(&mut spec, 40, terms);
        slab.renew(task, spec);
        slab.divide(task, Box::new(rest));
        let mut error = failed(Reason::StaleGeneration);
        error.applied = Applied::UpTo(20);
        slab.finish(task, Outcome::Failed(error), true);
        let mut spec = slab.spec(task).unwrap();
        (spec.length, spec.offset) = (spec.length - 20, spec.offset + 20);
        let left = spec.length;
        slab.renew(task, spec);
        // Its end comes before its quiet.
        slab.finish(task, Outcome::Completed { bytes: left }, false);
        slab.settle(task);
        assert_eq!(*turns.lock(), [Turn::Now, Turn::WhenQuiet, Turn::Part]);
        assert_eq!(slab.retried_for(task), None);
    }

    #[test]
    fn law_03_the_error_of_one_slice_does_not_hide_that_another_is_loud() {
        let (slab, batch, task) = slab_with_one(true);
        slab.split(task, 3);
        slab.finish(task, Outcome::Failed(failed(Reason::StaleGeneration)), true);
        slab.finish(task, Outcome::Completed { bytes: 3 }, true);
        assert_eq!(slab.outcome(task), None);
        let broken = failed(Reason::Broken("".into())).underway(false);
        slab.finish(task, Outcome::Failed(broken), false);
        let Some(Outcome::Failed(error)) = slab.outcome(task) else {
            panic!("it failed");
        };
        assert_eq!(error.reason, Reason::StaleGeneration);
        assert_eq!((error.applied, error.quiescent), (Applied::Unknown, false));
        assert!(batch.is_terminal() && !batch.is_quiescent());
        slab.release(&[task]);
        assert_eq!(slab.len(), 1);
        slab.settle(task);
        assert!(batch.is_quiescent() && slab.is_empty());
    }

    #[test]
    fn law_01_a_link_that_claims_completion_of_other_bytes_is_not_believed() {
        for (bytes, believed) in [(9, false), (10, true), (11, false)] {
            let (slab, _batch, task) = slab_with_one(true);
            slab.finish(task, Outcome::Completed { bytes }, true);
            let outcome = slab.outcome(task).unwrap();
            assert_eq!(outcome.is_completed(), believed, "{outcome:?}");
            slab.release(&[task]);
            assert!(slab.is_empty());
        }
    }

    #[test]
    fn law_01_a_write_of_which_a_part_was_applied_is_not_posted_again() {
        let unreachable = || failed(Reason::Unreachable("".into()));
        let (slab, _batch, task) = slab_with_one(true);
        slab.on_retry(Box::new(|_, _| panic!("it would be applied twice")));
        slab.split(task, 2);
        slab.finish(task, Outcome::Completed { bytes: 5 }, true);
        slab.finish(task, Outcome::Failed(unreachable()), true);
        let outcome = slab.outcome(task).unwrap();
        let error = outcome.error().unwrap();
        assert_eq!(error.applied, Applied::Unknown);
        assert_eq!(error.progress.unwrap().bytes, 5);
    }

    #[test]
    fn law_02_a_task_whose_retry_is_given_up_ends_as_it_would_have_without() {
        let (slab, batch, task) = slab_with_one(true);
        slab.on_retry(Box::new(|_, _| {}));
        slab.finish(task, Outcome::Failed(failed(Reason::StaleGeneration)), true);
        assert!(!batch.is_terminal());
        slab.give_up(task);
        slab.give_up(task);
        assert!(batch.is_terminal() && batch.is_quiescent());
        let outcome = slab.outcome(task).unwrap();
        assert_eq!(outcome.error().unwrap().reason, Reason::StaleGeneration);
        slab.release(&[task]);
        assert!(slab.is_empty());
    }

    #[test]
    fn law_02_a_task_asks_for_a_few_retries_and_ends_once() {
        let (slab, batch, task) = slab_with_one(true);
        let (asked, asks) = std::sync::mpsc::channel();
        slab.on_retry(Box::new(move |task, _| asked.send(task).unwrap()));
        let stale = || Outcome::Failed(failed(Reason::StaleGeneration));
        for _ in 0..RETRIES {
            slab.finish(task, stale(), true);
            assert_eq!(asks.try_recv(), Ok(task));
            assert!(!batch.is_terminal() && !slab.is_quiescent(task));
            let why = slab.retried_for(task).unwrap();
            assert_eq!(why.reason, Reason::StaleGeneration);
        }
        slab.finish(task, stale(), true);
        assert!(asks.try_recv().is_err());
        let reason = |slab: &TaskSlab| slab.outcome(task)?.error().map(|it| it.reason.clone());
        assert_eq!(reason(&slab), Some(Reason::StaleGeneration));
        slab.finish(task, Outcome::Completed { bytes: 10 }, true);
        slab.settle(task);
        let stale = Some(Reason::StaleGeneration);
        assert_eq!(reason(&slab), stale, "written once");
        assert!(batch.is_terminal() && batch.is_quiescent());
        slab.release(&[task]);
        slab.release(&[task]);
        assert!(slab.is_empty());
        assert_eq!(
            slab.outcome(task),
            None,
            "a stale reference matches nothing"
        );
    }
}
