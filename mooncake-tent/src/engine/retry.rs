//! What becomes of a task that its link failed.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use tokio::runtime::Handle;

use super::{routing::Errand, tent::Shared};
use crate::{
    error::{Applied, Reason, Retry, Stage, TransferError},
    lane::Watch,
    segment::{RemoteRange, Route, Segment, Way},
    selector::Pass,
    trace::TraceEvent,
    transport::{
        Op, Origin, Outcome, RetryHook, SubBatch, TaskRef, TaskSlab, TaskSpec, Tasks, Turn,
    },
};

/// How long the refresh of a stale descriptor may take if the task names no deadline.
const REFRESH_BUDGET: Duration = Duration::from_secs(1);

impl Shared {
    /// A task failed, and fresh knowledge of its segment or another link may help.
    async fn retry(&self, task: TaskRef) {
        let tasks = &self.parts.context.tasks;
        let (Some(mut spec), Some(error)) = (tasks.spec(task), tasks.retried_for(task)) else {
            return;
        };
        let Some(mut origin) = spec.origin.take() else {
            unreachable!("only tasks with an origin ask for a retry");
        };
        let segment = origin.segment.clone();
        // Where fresh knowledge does not help, another link may.
        let refreshed = origin.refreshed && origin.others;
        let stale = error.retry == Retry::AfterRefresh && !refreshed;
        let watch = tasks.unwatch(task);
        self.judge(&spec, watch, &origin, stale, &error);
        if !stale {
            origin.tried |= 1 << u32::from(origin.link);
        }
        let refreshes = stale || matches!(error.reason, Reason::Unreachable(_));
        if refreshes {
            let budget = origin.deadline.map_or(REFRESH_BUDGET, |deadline| {
                deadline
                    .saturating_duration_since(Instant::now())
                    .min(REFRESH_BUDGET)
            });
            let seen = segment.descriptor();
            let refreshed = self.segments.refresh(&segment, &seen, budget).await;
            if let Some(trace) = tasks.trace(task) {
                let failure = refreshed.as_ref().err().map(ToString::to_string);
                trace.note(TraceEvent::Refreshed { failure });
            }
            if let Err(refused) = refreshed
                && !origin.others
            {
                let why = Reason::Unreachable(refused.to_string().into());
                let peer = Some(spec.peer.id());
                drop(spec);
                let mut end = TransferError::unstarted(why, Stage::Resolve, peer);
                // What was done before is done.
                end.applied = error.applied;
                return tasks.finish(task, Outcome::Failed(end), true);
            }
        }
        let mut parted = 0;
        if let Applied::UpTo(bytes) = error.applied
            // A read of another life of the buffer begins anew.
            && (spec.op == Op::Write || origin.resumed || self.is_same_buffer(&spec, &origin))
        {
            parted = resume(&mut spec, &mut origin, bytes);
        }
        let late = error.reason == Reason::TimedOut;
        let (meters, before) = (tasks.meters(), spec.meter);
        let Some((way, pass)) = self.anew(&mut spec, &mut origin, refreshes, late) else {
            // Its leases end before anybody is told.
            drop(spec);
            return tasks.give_up(task);
        };
        let link = way.link();
        tracing::debug!(
            %error, from = self.parts.links[usize::from(origin.link)].name(), to = self.parts.links[link].name(),
            "a task is posted again"
        );
        if let Some(trace) = tasks.trace(task) {
            let name = |link: u8| self.parts.links[usize::from(link)].name();
            let (from, to, bytes) = (name(origin.link), name(way.link), spec.length);
            trace.note(match origin.link == way.link {
                true => TraceEvent::Retried { link: to, bytes },
                false => TraceEvent::FailedOver { from, to, bytes },
            });
        }
        meters.parted(before, spec.op, parted);
        match origin.link == way.link {
            true => meters.retried(before, spec.op),
            false => self.tally.failed_over(usize::from(origin.link), link),
        }
        let fences = origin.fences;
        origin.link = way.link;
        spec.meter = way.meter;
        spec.terms = way.terms;
        if pass.is_some() {
            let (lane, since) = (way.lane, Instant::now());
            tasks.watch(task, Some(Watch { lane, since, pass }));
        }
        origin.refreshed |= refreshes;
        spec.origin = Some(origin);
        tasks.renew(task, spec);
        self.launch(task, link, &segment, fences);
    }

    /// Posts a task by itself, unless it is not wanted any more or its segment was fenced since.
    pub(super) fn launch(&self, task: TaskRef, link: usize, segment: &Segment, fences: u64) {
        let tasks = &self.parts.context.tasks;
        if tasks.is_unwanted(task) {
            let end = Outcome::cancelled(Stage::Resolve, segment.incarnation());
            return tasks.finish(task, end, true);
        }
        let post = || {
            let sub_batch = self.parts.links[link].allocate_sub_batch(1)?;
            let sub_batch: Arc<dyn SubBatch> = Arc::from(sub_batch);
            tasks.carried_by(task, &sub_batch);
            if let Some(trace) = tasks.trace(task) {
                let link = self.parts.links[link].name();
                trace.note(TraceEvent::Posted { link });
            }
            sub_batch.submit_transfer_tasks(&[task])?;
            if tasks.is_unwanted(task) {
                // Whoever cancelled it before it was posted has found it nowhere.
                sub_batch.cancel_transfer_task(task);
            }
            sub_batch.hand_over();
            Ok(())
        };
        let mut posted = Ok(());
        if !segment.fences().unless_raised(fences, || posted = post()) {
            let why = Reason::Broken("the peer was fenced meanwhile".into());
            self.fail(&[task], &why, Stage::Resolve);
        } else if let Err(error) = posted {
            self.refuse(&[task], &error);
        }
    }

    /// Tells the lane of a failed attempt how it went.
    fn judge(
        &self,
        spec: &TaskSpec,
        watch: Option<Watch>,
        origin: &Origin,
        stale: bool,
        error: &TransferError,
    ) {
        let pass = watch.and_then(|watch| watch.pass);
        // What a fence ended says nothing about the link.
        let fenced = origin.segment.fences().count() != origin.fences;
        if pass.is_none() && (stale || fenced || !origin.others) {
            return;
        }
        let lane = self
            .lanes
            .one(spec.peer.id(), &origin.segment, usize::from(origin.link));
        match pass {
            // The peer has answered.
            Some(pass) if stale => lane.succeeded(pass),
            Some(pass) if fenced => lane.abandoned(pass),
            pass => lane.judge(pass, error),
        }
    }

    /// What `spec` goes on with is where it was, as far as is known.
    fn is_same_buffer(&self, spec: &TaskSpec, origin: &Origin) -> bool {
        let known = origin.segment.known();
        let span = known.resolve(spec.op, origin.range, spec.length, || self.names());
        known.descriptor.peer().id() == spec.peer.id()
            && span.is_some_and(|span| {
                (span.registration, span.generation) == (spec.registration, spec.generation)
            })
    }

    /// Puts what is known now of its segment into `spec`, and says which way to try next; `None`: there
    /// is none that would not fail in the same way.
    fn anew(
        &self,
        spec: &mut TaskSpec,
        origin: &mut Origin,
        refreshed: bool,
        late: bool,
    ) -> Option<(Way, Option<Pass>)> {
        let known = origin.segment.known();
        let span = known.resolve(spec.op, origin.range, spec.length, || self.names())?;
        let peer = Arc::clone(known.descriptor.peer());
        let same_buffer = peer.id() == spec.peer.id()
            && (span.registration, span.generation) == (spec.registration, spec.generation);
        if origin.resumed && !same_buffer {
            // The part that is done belongs to another life of the buffer.
            return None;
        }
        let moved = peer.id() != spec.peer.id();
        if moved {
            // None of them has tried this one.
            origin.tried = 0;
        }
        let errand = Errand {
            op: spec.op,
            length: spec.length,
            local: &spec.local,
            registration: Some(span.registration),
            receipt: !spec.receipt.is_none(),
            qos: &spec.qos,
        };
        let wanted = self.wanted(&errand, &origin.segment, &known).ok()?;
        let now = Instant::now();
        let mut route = Route::default();
        let take = &mut |found: &Route| route.clone_from(found);
        self.route(&wanted, &errand, &origin.segment, &known, now, take);
        // The one that failed may do with what is known now, but not twice; one that was too slow, with
        // what time is left, if there is no other.
        let again = late || moved || refreshed && !origin.refreshed;
        let first = route.ways.first();
        let same = |way: &&Way| way.link == origin.link && again;
        let same = || Some((route.ways.iter().find(same)?.clone(), None));
        let untried = |way: &&Way| origin.tried >> way.link & 1 == 0;
        let mut ways = route.ways.iter().filter(untried);
        let (way, pass) = match origin.tried {
            0 if again => same().or_else(|| Some((first?.clone(), None)))?,
            0 => return None,
            _ if !origin.others => same()?,
            _ => {
                let next = ways.find_map(|way| Some((way.clone(), way.permission(&route)?)));
                next.or_else(same)?
            }
        };
        let more = ways.next().is_some();
        let attempts = self.parts.attempts;
        spec.deadline = origin
            .deadline
            .map(|deadline| attempts.end(now, deadline, more, way.estimate));
        spec.peer = peer;
        spec.registration = span.registration;
        spec.generation = span.generation;
        spec.offset = span.offset;
        Some((way, pass))
    }
}

/// Leaves out the first `bytes`, which are at their destination, as far as more are left; how many.
fn resume(spec: &mut TaskSpec, origin: &mut Origin, bytes: u64) -> u64 {
    let bytes = bytes.min(spec.length.saturating_sub(1));
    let mut skipped = bytes;
    let rest = spec.local.iter().filter_map(|slice| {
        let skips = skipped.min(slice.len());
        skipped -= skips;
        (skips < slice.len()).then(|| slice.part(skips..slice.len()))
    });
    spec.local = rest.collect();
    spec.length -= bytes;
    origin.resumed |= bytes > 0;
    match &mut origin.range {
        RemoteRange::Address(address) => *address += bytes,
        RemoteRange::Registered { offset, .. } => *offset += bytes,
    }
    bytes
}

/// Retries on the engine's runtime. The engine is looked up there and nowhere else: its last owner
/// stops its links, which must not happen on a thread that works for one of them.
pub(super) fn retry_hook(
    engine: Weak<Shared>,
    tasks: Weak<TaskSlab>,
    runtime: Handle,
) -> RetryHook {
    Box::new(move |task, turn| {
        let Some(tasks) = tasks.upgrade() else {
            return;
        };
        if turn == Turn::WhenQuiet {
            // Nothing else has a deadline for it.
            if let Some(deadline) = tasks.deadline(task) {
                let last = Last { tasks, task };
                runtime.spawn(async move {
                    tokio::time::sleep_until(deadline.into()).await;
                    drop(last);
                });
            }
            return;
        }
        let engine = Weak::clone(&engine);
        let unless_stopped = UnlessStopped { tasks, task };
        runtime.spawn(async move {
            if let Some(engine) = engine.upgrade() {
                match turn {
                    Turn::Part => engine.next_part(task),
                    Turn::Now | Turn::WhenQuiet => engine.retry(task).await,
                }
                unless_stopped.disarm();
            }
        });
    })
}

/// Ends a task that still waits to be quiet, when its time is over or nobody is left who knows when
/// (law 2).
struct Last {
    tasks: Tasks,
    task: TaskRef,
}

impl Drop for Last {
    fn drop(&mut self) {
        self.tasks.give_up_waiting(self.task);
    }
}

/// Ends a task whose retry never comes to its end, since the engine or its runtime is gone (law 2).
struct UnlessStopped {
    tasks: Tasks,
    task: TaskRef,
}

impl UnlessStopped {
    fn disarm(mut self) {
        self.task = TaskRef::NONE;
    }
}

impl Drop for UnlessStopped {
    fn drop(&mut self) {
        if self.task != TaskRef::NONE {
            let mut error = TransferError::unstarted(Reason::Stopped, Stage::Resolve, None);
            // What its last attempt has done stays done.
            if let Some(last) = self.tasks.retried_for(self.task) {
                error.applied = last.applied;
            }
            self.tasks.finish(self.task, Outcome::Failed(error), true);
        }
    }
}
