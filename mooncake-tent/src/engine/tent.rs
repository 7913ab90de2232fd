//! The TENT runtime.

use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use arc_swap::Guard;
use mooncake_proto::tent as wire;
use tokio::{runtime::Handle, sync::watch};

use super::{
    Batch, Buffer, Gauges, Probe, RegisterOptions, Request, TentEngineBuilder, TransferEngine,
    buffer::Registrar,
    health::Circuits,
    liveness,
    parts::{PartsPool, Scratch},
};
use crate::{
    control::{ControlServer, Describe},
    error::{Error, Reason, Result, Retry, Stage, TransferError},
    identity::{Generation, Incarnation, RegistrationId},
    memory::{LocalBuffer, LocalSlice, Memory, Permission},
    notify::{
        Announcement, Notification, NotificationCounts, NotificationQueue, Notifier,
        ReceivedNotification,
    },
    platform::after,
    registry::{Registry, Tenure},
    segment::{
        BufferDescriptor, Known, OwnSegment, Route, RouteKey, Segment, SegmentDescriptor,
        SegmentManager, Span,
    },
    selector::{Exclusion, Health, LinkFacts, Ranking, RequestFacts, TransportSelector},
    transport::{
        Arrival, Attachment, BoxFuture, InstallContext, Op, Opened, Origin, Outcome, RetryHook,
        SubBatch, TaskRef, TaskSlab, TaskSpec, Tasks, Transport,
    },
};

/// How long the refresh of a stale descriptor may take if the task names no deadline.
const REFRESH_BUDGET: Duration = Duration::from_secs(1);

/// Links are ranked for so many bytes.
const TYPICAL: u64 = 1 << 20;

/// So many tasks are posted at once.
const TOGETHER: usize = 32;

/// Moves bytes between this process's buffers and open segments, over the links that it was given.
/// Clones are the same engine.
#[derive(Clone)]
pub struct TentEngine {
    shared: Arc<Shared>,
}

pub(super) struct Parts {
    pub(super) name: String,
    pub(super) machine: String,
    pub(super) patience: Duration,
    /// So many of them may wait.
    pub(super) notifications: usize,
    pub(super) context: InstallContext,
    pub(super) links: Vec<Arc<dyn Transport>>,
    pub(super) absent: Vec<(&'static str, String)>,
    pub(super) control: Option<ControlServer>,
    /// `host:port` under which others reach it.
    pub(super) place: Option<String>,
    pub(super) registry: Option<Arc<dyn Registry>>,
    /// The name in the registry.
    pub(super) tenure: OnceLock<Tenure>,
}

struct Shared {
    parts: Parts,
    selector: TransportSelector,
    circuits: Circuits,
    segments: Arc<SegmentManager>,
    own: OwnSegment,
    batch_parts: Arc<PartsPool>,
    notifier: Arc<Notifier>,
    me: Weak<Self>,
}

impl TentEngine {
    /// Collects what an engine shall be.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use mooncake_tent::TentEngine;
    ///
    /// let engine = TentEngine::builder().build().await?;
    /// # Ok::<_, mooncake_tent::Error>(()) })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> TentEngineBuilder {
        TentEngineBuilder::new()
    }

    pub(super) fn assemble(parts: Parts) -> Self {
        let endpoints = endpoints(&parts.links);
        let own = SegmentDescriptor::new(
            parts.name.clone(),
            parts.context.incarnation,
            0,
            parts.machine.clone(),
            endpoints,
            Vec::new(),
        );
        let own = OwnSegment::new(own);
        let segments = SegmentManager::new(parts.registry.clone());
        let incarnation = parts.context.incarnation;
        let queue = Arc::new(NotificationQueue::new(incarnation, parts.notifications));
        let (name, patience) = (parts.name.clone(), parts.patience);
        let known = Arc::clone(&segments);
        let notifier = Notifier::new(incarnation, name, queue, known, patience);
        let shared = Arc::new_cyclic(|me: &Weak<Shared>| {
            parts.context.tasks.on_retry(retry_hook(
                Weak::clone(me),
                Arc::downgrade(&parts.context.tasks),
                Handle::current(),
            ));
            if let Some(control) = &parts.control {
                control.speak_for(Weak::<Shared>::clone(me));
            }
            Shared {
                parts,
                selector: TransportSelector::new(),
                circuits: Circuits::new(),
                segments,
                own,
                batch_parts: Arc::default(),
                notifier,
                me: Weak::clone(me),
            }
        });
        Self { shared }
    }

    /// Keeps its name until it ends.
    pub(super) fn hold(&self, tenure: Tenure) {
        if self.shared.parts.tenure.set(tenure).is_err() {
            unreachable!("an engine has one name");
        }
    }

    /// `host:port` of its control service; `None`: it has none.
    pub fn control_address(&self) -> Option<&str> {
        let parts = &self.shared.parts;
        parts.place.as_deref().filter(|_| parts.control.is_some())
    }

    pub(super) fn segments(&self) -> &SegmentManager {
        &self.shared.segments
    }

    pub(super) fn own_segment(&self) -> &Segment {
        self.shared.own.segment()
    }

    /// Which links would carry a request to `segment`, best first, and why.
    pub fn explain(&self, op: Op, segment: &Segment) -> Ranking {
        self.shared
            .rank(RouteKey::any(op), &segment.known().descriptor)
    }

    /// Links that it should have had [if possible](TentEngineBuilder::transport_if_possible), and why
    /// it has not.
    pub fn absent_links(&self) -> &[(&'static str, String)] {
        &self.shared.parts.absent
    }

    /// What it holds at this moment.
    pub fn gauges(&self) -> Gauges {
        let parts = &self.shared.parts;
        let tasks = parts.context.tasks.sums();
        let buffers = parts.context.buffers.sums();
        let links = parts.links.iter();
        Gauges {
            tasks_in_flight: tasks.in_flight,
            bytes_in_flight: tasks.bytes_in_flight,
            quarantined_bytes: tasks.quarantined_bytes,
            open_batches: parts.context.tasks.open_batches(),
            registrations: buffers.registrations,
            leases: buffers.leases,
            withdrawn_bytes: buffers.withdrawn_bytes,
            arrivals: parts.context.arrivals.len() as u64,
            notifications: self.shared.notifier.queue().len() as u64,
            links: links.map(|link| (link.name(), link.gauges())).collect(),
        }
    }

    /// What became of notifications that came in.
    pub fn notification_counts(&self) -> NotificationCounts {
        self.shared.notifier.queue().counts()
    }

    /// Tasks that have not been given back.
    pub fn tasks_in_use(&self) -> usize {
        self.shared.parts.context.tasks.len()
    }
}

impl fmt::Debug for TentEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = &self.shared.parts;
        f.debug_struct("TentEngine")
            .field("segment", &parts.name)
            .field("incarnation", &parts.context.incarnation)
            .field("links", &parts.links)
            .finish_non_exhaustive()
    }
}

impl TransferEngine for TentEngine {
    fn incarnation(&self) -> Incarnation {
        self.shared.parts.context.incarnation
    }

    fn segment_name(&self) -> &str {
        &self.shared.parts.name
    }

    fn register_memory(
        &self,
        memory: Memory,
        options: RegisterOptions,
    ) -> BoxFuture<'_, Result<Buffer>> {
        Box::pin(async move {
            let shared = &self.shared;
            let table = &shared.parts.context.buffers;
            let local = table.prepare(memory, options.permission, options.location);
            let mut declined = Vec::new();
            for (place, link) in shared.parts.links.iter().enumerate() {
                match link.add_memory_buffer(&local).await {
                    Ok(Attachment::Attached) => local.attach(place),
                    Ok(Attachment::Declined(why)) => {
                        declined.push(format!("{}: {why}", link.name()));
                    }
                    Err(error) => {
                        shared.detach(&local).await;
                        return Err(error);
                    }
                }
            }
            if local.links() == 0 {
                let reasons = declined.join(", ");
                return Err(Error::NoLink { reasons });
            }
            // Peers find it from here on (law 8).
            table.publish(&local);
            shared.changed(&local);
            let registrar: Weak<dyn Registrar> = Weak::<Shared>::clone(&shared.me);
            Ok(Buffer::new(local, registrar))
        })
    }

    fn unregister_memory(&self, buffer: Buffer, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let local = Arc::clone(buffer.local());
            // Closes it and takes it out of the table.
            drop(buffer);
            quiet_within(&local, budget).await?;
            self.shared.detach(&local).await;
            Ok(())
        })
    }

    fn renew_registration<'a>(
        &'a self,
        buffer: &'a Buffer,
        budget: Duration,
    ) -> BoxFuture<'a, Result<Generation>> {
        Box::pin(async move {
            buffer.local().close();
            quiet_within(buffer.local(), budget).await?;
            let generation = buffer.local().reopen();
            self.shared.changed(buffer.local());
            Ok(generation)
        })
    }

    fn open_segment<'a>(
        &'a self,
        name: &'a str,
        budget: Duration,
    ) -> BoxFuture<'a, Result<Segment>> {
        Box::pin(async move {
            if name.is_empty() || name == self.segment_name() {
                return Ok(self.shared.own.segment().clone());
            }
            match self.shared.opening(name) {
                Some(opening) => opening.within(name, budget).await,
                None => self.shared.segments.open(name, budget).await,
            }
        })
    }

    fn close_segment(&self, segment: &Segment) {
        match segment.provider() {
            Some(link) => {
                // Another engine's segment may name a link that we do not have.
                if let Some(link) = self.shared.parts.links.get(link) {
                    link.close(segment.incarnation());
                }
            }
            None => self.shared.segments.close(segment),
        }
    }

    fn warm_up<'a>(&'a self, segment: &'a Segment, budget: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let peer = Arc::clone(segment.known().descriptor.peer());
            let any = RouteKey::any(Op::Read);
            let known = segment.known();
            let link = self.shared.route(any, segment, &known, Route::first);
            let link = link.ok_or_else(|| self.shared.no_route(any, segment))?;
            self.shared.parts.links[link].warm_up(&peer, budget).await
        })
    }

    fn probe<'a>(&'a self, segment: &'a Segment, budget: Duration) -> BoxFuture<'a, Result<Probe>> {
        let segments = &self.shared.segments;
        Box::pin(liveness::probe(
            segments,
            self.incarnation(),
            segment,
            budget,
        ))
    }

    fn fence<'a>(&'a self, segment: &'a Segment, budget: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let end = after(budget);
            let known = segment.incarnation();
            // Tasks that wait for fresh knowledge are on no link.
            segment.fences().raise();
            // One that just had it was posted to whom it speaks of.
            let learned = Some(segment.incarnation()).filter(|learned| *learned != known);
            for link in &self.shared.parts.links {
                for peer in [known].into_iter().chain(learned) {
                    let left = end.saturating_duration_since(Instant::now());
                    link.fence(peer, left).await?;
                }
            }
            Ok(())
        })
    }

    fn allocate_batch(&self, capacity: usize) -> Batch {
        let tasks = Arc::clone(&self.shared.parts.context.tasks);
        Batch::new(tasks, &self.shared.batch_parts, capacity)
    }

    fn submit_transfer(&self, batch: &mut Batch, requests: Vec<Request>) -> Result<()> {
        self.shared.submit(batch, requests)
    }

    fn submit_transfer_and_notify(
        &self,
        batch: &mut Batch,
        requests: Vec<Request>,
        notification: Notification,
    ) -> Result<Announcement> {
        let notifier = &self.shared.notifier;
        let segments = requests.iter().map(|request| &request.segment);
        let plan = notifier.plan(segments, &notification)?;
        let part = batch.with_part(|batch| self.shared.submit(batch, requests))?;
        Ok(notifier.announce(plan, part))
    }

    fn send_notification<'a>(
        &'a self,
        segment: &'a Segment,
        notification: Notification,
        budget: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let end = after(budget);
            let shared = &self.shared;
            let seen = segment.descriptor();
            let sent = shared.notifier.send(segment, &notification, budget).await;
            if matches!(sent, Err(Error::Restarted { .. })) {
                let left = end.saturating_duration_since(Instant::now());
                // Without it the next transfer finds out by itself.
                let _learned = shared.segments.refresh(segment, &seen, left).await;
            }
            sent
        })
    }

    fn receive_notifications(&self) -> Vec<ReceivedNotification> {
        self.shared.notifier.queue().take_all()
    }

    fn next_notification(&self) -> BoxFuture<'_, ReceivedNotification> {
        Box::pin(self.shared.notifier.queue().take_one())
    }

    fn receive_arrivals(&self) -> Vec<Arrival> {
        self.shared.parts.context.arrivals.take_all()
    }

    fn next_arrival(&self) -> BoxFuture<'_, Arrival> {
        Box::pin(self.shared.parts.context.arrivals.take_one())
    }

    fn arrival(&self, sender: Incarnation, op_id: u64) -> BoxFuture<'_, Arrival> {
        Box::pin(self.shared.parts.context.arrivals.take(sender, op_id))
    }

    fn shutdown(&self, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let end = after(budget);
            let parts = &self.shared.parts;
            self.shared.segments.stop();
            if let Some(tenure) = parts.tenure.get()
                && let Err(error) = tenure.end(budget / 4).await
            {
                // Its lease ends all the same.
                tracing::debug!(%error, "the name was not given back");
            }
            if let Some(control) = &parts.control {
                control.stop(budget / 2).await;
            }
            let mut first = Ok(());
            for link in &parts.links {
                let left = end.saturating_duration_since(Instant::now());
                first = first.and(link.uninstall(left).await);
            }
            first
        })
    }
}

/// What was known of a segment before anything of it was looked up for a request; serves those that
/// follow and name the same one.
struct Outlook {
    segment: Segment,
    /// A fence that comes later counts.
    fences: u64,
    known: Guard<Arc<Known>>,
    /// The last link that was looked for in each direction, and whether there were others.
    routes: [Option<(Wanted, usize, bool)>; 2],
}

/// What of a request the choice of its link depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wanted {
    op: Op,
    registration: Option<RegistrationId>,
    /// The target is told something.
    receipt: bool,
    /// A bit for each link that carries all that is written from.
    local: u64,
}

impl Outlook {
    fn of(segment: &Segment) -> Self {
        Self {
            segment: segment.clone(),
            fences: segment.fences().count(),
            known: segment.known(),
            routes: [None; 2],
        }
    }
}

/// A segment that a link is opening.
struct Opening<'a> {
    link: usize,
    opened: BoxFuture<'a, Result<Opened>>,
}

impl Opening<'_> {
    async fn within(self, name: &str, budget: Duration) -> Result<Segment> {
        let opened = tokio::time::timeout(budget, self.opened).await;
        let late = |_| Error::Unreachable {
            segment: name.to_owned(),
            message: format!("it is not open after {budget:?}"),
        };
        let opened = opened.map_err(late)??;
        Ok(Segment::provided(name.to_owned(), opened, self.link))
    }
}

impl Shared {
    fn submit(&self, batch: &mut Batch, requests: Vec<Request>) -> Result<()> {
        if batch.len() + requests.len() > batch.capacity() {
            return Err(Error::Busy {
                what: "the batch",
                limit: batch.capacity(),
            });
        }
        let mut scratch = batch.take_scratch();
        let submitted = self.submit_with(batch, requests, &mut scratch);
        scratch.specs.clear();
        scratch.links.clear();
        batch.return_scratch(scratch);
        submitted
    }

    fn submit_with(
        &self,
        batch: &mut Batch,
        requests: Vec<Request>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let patience = after(self.parts.patience);
        let mut outlook: Option<Outlook> = None;
        scratch.specs.reserve(requests.len());
        scratch.links.reserve(requests.len());
        for request in requests {
            let outlook = match &mut outlook {
                Some(outlook) if outlook.segment.is(&request.segment) => outlook,
                place => place.insert(Outlook::of(&request.segment)),
            };
            self.plan(request, patience, outlook, scratch)?;
        }
        let first = batch.len();
        let (state, refs) = batch.opened();
        let tasks = &self.parts.context.tasks;
        tasks.take(state, scratch.specs.len(), refs)?;
        self.post(batch, first, scratch);
        Ok(())
    }

    /// Adds what becomes of a request.
    fn plan(
        &self,
        request: Request,
        patience: Instant,
        outlook: &mut Outlook,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let length = request.length();
        if length == 0 {
            return Err(Error::Invalid(
                "a request moves at least one byte".to_owned(),
            ));
        }
        if request.op == Op::Read && !request.receipt.is_none() {
            return Err(Error::Invalid(
                "only a write has an op id or a checksum at its target".to_owned(),
            ));
        }
        let deadline = request.deadline.unwrap_or(patience);
        let span = outlook.known.resolve(request.remote, length);
        let wanted = Wanted {
            op: request.op,
            registration: span.map(|span| span.registration),
            receipt: !request.receipt.is_none(),
            local: held_by_all(request.op, &request.local),
        };
        let last = &mut outlook.routes[usize::from(request.op == Op::Write)];
        let (link, others) = match last {
            Some((last, link, others)) if *last == wanted => (*link, *others),
            _ => {
                let key = self.key(wanted, &outlook.known);
                let best = |route: &Route| Some((route.first()?, route.links.len() > 1));
                let found = self.route(key, &request.segment, &outlook.known, best);
                let (link, others) = found.ok_or_else(|| self.no_route(key, &request.segment))?;
                *last = Some((wanted, link, others));
                (link, others)
            }
        };
        let Outlook { fences, known, .. } = outlook;
        // Neither our own descriptor nor that of a link is ever stale: there is nothing to learn.
        let own = known.descriptor.incarnation() == self.parts.context.incarnation;
        let refreshable = !own && request.segment.provider().is_none();
        let Span {
            registration,
            generation,
            offset,
        } = span.unwrap_or(Span {
            registration: RegistrationId(0),
            generation: Generation(0),
            offset: 0,
        });
        let spec = TaskSpec {
            op: request.op,
            local: request.local,
            peer: Arc::clone(known.descriptor.peer()),
            registration,
            generation,
            offset,
            length,
            deadline: Some(deadline),
            receipt: request.receipt,
            origin: refreshable.then_some(Origin {
                segment: request.segment,
                range: request.remote,
                fences: *fences,
                link: link as u8,
                others,
                tried: 0,
                refreshed: false,
            }),
        };
        scratch.specs.push((spec, refreshable));
        scratch.links.push(span.map(|_| link));
        Ok(())
    }

    /// Hands the batch's tasks from `first` on to their links.
    fn post(&self, batch: &mut Batch, first: usize, scratch: &mut Scratch) {
        let Scratch { specs, links } = scratch;
        let mut specs = specs.drain(..);
        let mut start = first;
        // Neighbours on the same link are posted together, but so that the peer has begun with the
        // first of many before we are through with the last.
        let together = links
            .chunk_by(|a, b| a == b)
            .flat_map(|run| run.chunks(TOGETHER));
        for run in together {
            let end = start + run.len();
            let (state, refs) = batch.opened();
            let tasks = &self.parts.context.tasks;
            tasks.begin(state, &refs[start..end], &mut specs);
            match run[0] {
                Some(link) => {
                    let transport = &self.parts.links[link];
                    let capacity = batch.capacity();
                    let posted = batch
                        .sub_batch(start, link, || transport.allocate_sub_batch(capacity))
                        .and_then(|(tasks, sub_batch)| {
                            sub_batch.submit_transfer_tasks(&tasks[..run.len()])
                        });
                    if let Err(error) = posted {
                        tracing::debug!(%error, link = transport.name(), "posting failed");
                        self.refuse(&batch.refs()[start..end], &error);
                    }
                }
                None => {
                    let tasks = &batch.refs()[start..end];
                    self.fail(tasks, &Reason::UnknownRegistration, Stage::Resolve);
                }
            }
            start = end;
        }
    }

    fn fail(&self, tasks: &[TaskRef], reason: &Reason, stage: Stage) {
        self.fail_with(
            tasks,
            &TransferError::unstarted(reason.clone(), stage, None),
        );
    }

    /// A link takes none of `tasks`; whether a retry makes sense is for it to say.
    fn refuse(&self, tasks: &[TaskRef], refusal: &Error) {
        let reason = Reason::Broken(refusal.to_string().into());
        let mut error = TransferError::unstarted(reason, Stage::Post, None);
        error.retry = refusal.retry();
        self.fail_with(tasks, &error);
    }

    fn fail_with(&self, tasks: &[TaskRef], error: &TransferError) {
        for task in tasks {
            let mut error = error.clone();
            let spec = self.parts.context.tasks.spec(*task);
            error.peer = spec.map(|spec| spec.peer.id());
            let end = Outcome::Failed(error);
            self.parts.context.tasks.finish(*task, end, true);
        }
    }

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
        let stale = error.retry == Retry::AfterRefresh;
        if !stale {
            origin.tried |= 1 << u32::from(origin.link);
            let (peer, link) = (spec.peer.id(), usize::from(origin.link));
            // What a fence ended says nothing about the link.
            let fenced = segment.fences().count() != origin.fences;
            let blamed = origin.others && !fenced;
            if blamed && self.circuits.failed(peer, link, &error.reason) {
                segment.forget_routes();
            }
        }
        let refreshes = stale || matches!(error.reason, Reason::Unreachable(_));
        if refreshes {
            let budget = spec.deadline.map_or(REFRESH_BUDGET, |deadline| {
                deadline
                    .saturating_duration_since(Instant::now())
                    .min(REFRESH_BUDGET)
            });
            let seen = segment.descriptor();
            if let Err(error) = self.segments.refresh(&segment, &seen, budget).await
                && !origin.others
            {
                let why = Reason::Unreachable(error.to_string().into());
                drop(spec);
                return self.fail(&[task], &why, Stage::Resolve);
            }
        }
        let Some(link) = self.anew(&mut spec, &mut origin, refreshes) else {
            // Its leases end before anybody is told.
            drop(spec);
            return tasks.give_up(task);
        };
        tracing::debug!(
            %error, from = self.parts.links[usize::from(origin.link)].name(), to = self.parts.links[link].name(),
            "a task is posted again"
        );
        let (fences, incarnation) = (origin.fences, segment.incarnation());
        origin.link = link as u8;
        origin.refreshed |= refreshes;
        spec.origin = Some(origin);
        tasks.renew(task, spec);
        if tasks.is_unwanted(task) {
            let end = Outcome::cancelled(Stage::Resolve, incarnation);
            return tasks.finish(task, end, true);
        }
        let post = || {
            let sub_batch = self.parts.links[link].allocate_sub_batch(1)?;
            let sub_batch: Arc<dyn SubBatch> = Arc::from(sub_batch);
            tasks.carried_by(task, &sub_batch);
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

    /// Puts what is known now of its segment into `spec`, and says which link to try next; `None`: there
    /// is none that would not fail in the same way.
    fn anew(&self, spec: &mut TaskSpec, origin: &mut Origin, refreshed: bool) -> Option<usize> {
        let known = origin.segment.known();
        let span = known.resolve(origin.range, spec.length)?;
        let wanted = Wanted {
            op: spec.op,
            registration: Some(span.registration),
            receipt: !spec.receipt.is_none(),
            local: held_by_all(spec.op, &spec.local),
        };
        let key = self.key(wanted, &known);
        let peer = Arc::clone(known.descriptor.peer());
        if peer.id() != spec.peer.id() {
            // None of them has tried this one.
            origin.tried = 0;
        }
        let next = self.route(key, &origin.segment, &known, |route| {
            let untried = |link: &&u8| origin.tried >> **link & 1 == 0;
            // The one that failed may do with what is known now, but not twice.
            let first = route.links.first();
            let same = first.filter(|_| refreshed && !origin.refreshed);
            let next = match origin.tried {
                0 => same,
                _ => route.links.iter().find(untried).or(same),
            };
            next.map(|link| usize::from(*link))
        })?;
        spec.peer = peer;
        spec.registration = span.registration;
        spec.generation = span.generation;
        spec.offset = span.offset;
        Some(next)
    }

    /// The segment of this name, if a link provides it.
    fn opening<'a>(&'a self, name: &'a str) -> Option<Opening<'a>> {
        let mut links = self.parts.links.iter().enumerate();
        links.find_map(|(link, transport)| {
            let opened = transport.open(name)?;
            Some(Opening { link, opened })
        })
    }

    fn key(&self, wanted: Wanted, known: &Known) -> RouteKey {
        let names = || self.parts.links.iter().map(|link| link.name());
        let mut key = RouteKey::any(wanted.op);
        key.local = wanted.local;
        key.receipt = wanted.receipt;
        if let Some(registration) = wanted.registration {
            key.remote = known.descriptor.links_of(registration, names);
        }
        key
    }

    /// Gives `take` the links that can carry what `key` says.
    fn route<T>(
        &self,
        key: RouteKey,
        segment: &Segment,
        known: &Known,
        take: impl FnOnce(&Route) -> T,
    ) -> T {
        let choose = || {
            let ranking = self.rank(key, &known.descriptor);
            tracing::debug!(op = %key.op, segment = segment.name(), %ranking, "links were chosen");
            let barred = ranking.excluded.iter().filter_map(|link| match link.why {
                Exclusion::Open { left, .. } => Some(left),
                _ => None,
            });
            Route {
                until: barred.min().map(after),
                links: ranking.ranked.iter().map(|link| link.index as u8).collect(),
            }
        };
        known.route(key, choose, take)
    }

    fn rank(&self, key: RouteKey, descriptor: &SegmentDescriptor) -> Ranking {
        let peer = descriptor.peer();
        let links = &self.parts.links;
        let (circuits, now) = self.circuits.to(peer.id(), links.len());
        let mut facts: Vec<_> = links
            .iter()
            .zip(&circuits)
            .enumerate()
            .map(|(place, (link, circuit))| LinkFacts {
                reaches: link.reaches(peer),
                accepts: key.is_held(place, link.capabilities()),
                same_machine_only: link.capabilities().same_host,
                bandwidth: link.estimated_bandwidth(),
                health: circuit
                    .as_ref()
                    .map_or(Health::Closed, |circuit| circuit.health(now)),
                ..LinkFacts::new(link.name(), link.capabilities())
            })
            .collect();
        let machine = &self.parts.machine;
        let request = RequestFacts {
            same_machine: !machine.is_empty() && descriptor.machine() == machine,
            receipt: key.receipt,
            ..RequestFacts::new(key.op, TYPICAL)
        };
        let ranking = self.selector.rank(&request, &facts);
        if !ranking.ranked.is_empty() {
            return ranking;
        }
        // Where all have failed, trying is better than not.
        for link in &mut facts {
            link.health = Health::Closed;
        }
        self.selector.rank(&request, &facts)
    }

    fn no_route(&self, key: RouteKey, segment: &Segment) -> Error {
        Error::NoRoute {
            op: match key.op {
                Op::Read => "read",
                Op::Write => "write",
            },
            segment: segment.name().to_owned(),
            reasons: self.rank(key, &segment.known().descriptor).to_string(),
        }
    }

    /// The links that carry a buffer.
    fn carrying(&self, buffer: &LocalBuffer) -> impl Iterator<Item = &Arc<dyn Transport>> {
        let held = buffer.links();
        let links = self.parts.links.iter().enumerate();
        links.filter_map(move |(place, link)| (held >> place & 1 == 1).then_some(link))
    }

    /// A buffer has come, changed or gone. Peers do not know of local ones.
    fn changed(&self, buffer: &LocalBuffer) {
        if buffer.permission() != Permission::Local {
            self.own.changed(buffer.id(), || {
                let there = self.parts.context.buffers.contains(buffer.id());
                there.then(|| self.describe(buffer))
            });
        }
    }

    fn describe(&self, buffer: &LocalBuffer) -> BufferDescriptor {
        BufferDescriptor {
            registration: buffer.id(),
            generation: buffer.generation(),
            address: buffer.memory().address(),
            length: buffer.memory().len() as u64,
            permission: buffer.permission(),
            location: buffer.location().into(),
            links: self
                .carrying(buffer)
                .map(|link| link.name().to_owned())
                .collect(),
        }
    }

    /// Takes a buffer from the links that carry it.
    async fn detach(&self, buffer: &LocalBuffer) {
        let id = buffer.id();
        for link in self.carrying(buffer) {
            if let Err(error) = link.remove_memory_buffer(id).await {
                tracing::warn!(link = link.name(), %id, %error, "a link keeps a buffer");
            }
        }
    }
}

/// A bit for each link that carries all of what is written from; of reads, all.
fn held_by_all(op: Op, local: &[LocalSlice]) -> u64 {
    match op {
        Op::Read => u64::MAX,
        Op::Write => {
            let held = local.iter().map(|slice| slice.buffer().links());
            held.fold(u64::MAX, |all, held| all & held)
        }
    }
}

/// Retries on the engine's runtime. The engine is looked up there and nowhere else: its last owner
/// stops its links, which must not happen on a thread that works for one of them.
fn retry_hook(engine: Weak<Shared>, tasks: Weak<TaskSlab>, runtime: Handle) -> RetryHook {
    Box::new(move |task| {
        let Some(tasks) = tasks.upgrade() else {
            return;
        };
        let engine = Weak::clone(&engine);
        let unless_stopped = UnlessStopped { tasks, task };
        runtime.spawn(async move {
            if let Some(engine) = engine.upgrade() {
                engine.retry(task).await;
                unless_stopped.disarm();
            }
        });
    })
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
            let error = TransferError::unstarted(Reason::Stopped, Stage::Resolve, None);
            self.tasks.finish(self.task, Outcome::Failed(error), true);
        }
    }
}

impl Registrar for Shared {
    fn withdraw(&self, buffer: &Arc<LocalBuffer>) {
        self.parts.context.buffers.remove(buffer.id());
        self.changed(buffer);
    }
}

impl Describe for Shared {
    fn descriptor(&self) -> SegmentDescriptor {
        self.own.segment().descriptor()
    }

    fn since(&self, incarnation: u64, version: u64) -> Option<wire::GetSegmentResponse> {
        self.own.since(incarnation, version)
    }

    fn versions(&self) -> watch::Receiver<u64> {
        self.own.versions()
    }

    fn notified(&self, request: wire::NotifyRequest) -> wire::NotifyResponse {
        self.notifier.queue().accept(request)
    }
}

fn endpoints(links: &[Arc<dyn Transport>]) -> Vec<(String, String)> {
    links
        .iter()
        .filter_map(|link| Some((link.name().to_owned(), link.endpoint()?)))
        .collect()
}

async fn quiet_within(buffer: &LocalBuffer, budget: Duration) -> Result<()> {
    let quiet = tokio::time::timeout(budget, buffer.until_quiet()).await;
    quiet.map_err(|_| Error::InUse {
        registration: buffer.id(),
        leases: buffer.leases(),
        after: budget,
    })
}
