//! The TENT runtime.

use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use mooncake_proto::tent as wire;
use tokio::{runtime::Handle, sync::watch};

use super::{
    Batch, Buffer, Conflicts, Gauges, Probe, RegisterOptions, Request, TentEngineBuilder,
    TransferEngine,
    attempt::Attempts,
    buffer::Registrar,
    lanes::Lanes,
    late,
    links::{AbsentLink, Links},
    liveness,
    parking::{self, Gatekeeper, Parking},
    parts::PartsPool,
    retry::retry_hook,
    routing::Kinds,
};
use crate::{
    admission::AdmissionConfig,
    control::{ControlServer, Describe, Unanswered},
    error::{Error, Result},
    identity::{Generation, Incarnation},
    memory::{LocalBuffer, Memory, Permission},
    metrics::{Metrics, Tally},
    notify::{
        Announcement, Notification, NotificationCounts, NotificationQueue, Notifier,
        ReceivedNotification,
    },
    platform::after,
    qos::Qos,
    registry::{Registry, Tenure},
    segment::{BufferDescriptor, OwnSegment, Segment, SegmentDescriptor, SegmentManager},
    selector::{Policies, Ranking, TransportSelector},
    transport::{Arrival, Attachment, BoxFuture, InstallContext, Op, Opened, Transport},
};

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
    pub(super) attempts: Attempts,
    /// So many of them may wait.
    pub(super) notifications: usize,
    pub(super) context: InstallContext,
    pub(super) links: Links,
    /// What it was told and is not likely to be meant.
    pub(super) conflicts: Conflicts,
    pub(super) control: Option<ControlServer>,
    /// `host:port` under which others reach it.
    pub(super) place: Option<String>,
    pub(super) registry: Option<Arc<dyn Registry>>,
    /// The name in the registry.
    pub(super) tenure: OnceLock<Tenure>,
}

pub(super) struct Shared {
    pub(super) parts: Parts,
    pub(super) selector: TransportSelector,
    pub(super) lanes: Lanes,
    pub(super) tally: Tally,
    pub(super) kinds: Kinds,
    /// Without it every request goes at once.
    pub(super) gate: Option<Gatekeeper>,
    pub(super) segments: Arc<SegmentManager>,
    own: OwnSegment,
    batch_parts: Arc<PartsPool>,
    notifier: Arc<Notifier>,
    me: Weak<Self>,
}

/// An engine, for those that belong to it.
#[derive(Clone)]
pub(crate) struct WeakEngine(Weak<Shared>);

impl WeakEngine {
    /// The engine, if it is still there.
    pub(crate) fn upgrade(&self) -> Option<TentEngine> {
        let shared = self.0.upgrade()?;
        Some(TentEngine { shared })
    }
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

    pub(super) fn assemble(
        parts: Parts,
        policies: Policies,
        admission: Option<AdmissionConfig>,
    ) -> Self {
        let endpoints = endpoints(&parts.links);
        let runtime = Handle::current();
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
        let gate = admission.map(|config| Parking::new(config, Arc::clone(&parts.context.tasks)));
        let shared = Arc::new_cyclic(|me: &Weak<Shared>| {
            parts.context.tasks.on_retry(retry_hook(
                Weak::clone(me),
                Arc::downgrade(&parts.context.tasks),
                Handle::current(),
            ));
            if let Some(gate) = &gate {
                parking::watch(Arc::clone(gate), Weak::clone(me), &Handle::current());
            }
            if let Some(staging) = parts.context.staging.get() {
                staging.speak_through(WeakEngine(Weak::clone(me)));
            }
            if let Some(control) = &parts.control {
                control.speak_for(Weak::<Shared>::clone(me));
            }
            Shared {
                tally: Tally::new(parts.links.len()),
                lanes: Lanes::new(Arc::clone(parts.context.tasks.meters())),
                parts,
                selector: TransportSelector::with_policies(policies),
                kinds: Kinds::default(),
                gate: gate.map(Gatekeeper),
                segments,
                own,
                batch_parts: Arc::default(),
                notifier,
                me: Weak::clone(me),
            }
        });
        late::try_again(&shared, &runtime);
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

    /// As [`submit_transfer`](TransferEngine::submit_transfer), for a part of a transfer that was admitted
    /// already.
    pub(crate) fn submit_inner(&self, batch: &mut Batch, requests: Vec<Request>) -> Result<()> {
        self.shared.submit_inner(batch, requests)
    }

    /// Asks the segment's owner for a step of a transfer that goes through its stage.
    pub(crate) fn ask_to_stage(
        &self,
        segment: Segment,
        request: wire::StageRequest,
    ) -> impl Future<Output = Result<wire::StageResponse, Unanswered>> + Send + 'static {
        let segments = Arc::clone(&self.shared.segments);
        async move { segments.stage(&segment, request).await }
    }

    pub(super) fn segments(&self) -> &SegmentManager {
        &self.shared.segments
    }

    pub(super) fn own_segment(&self) -> &Segment {
        self.shared.own.segment()
    }

    /// Which links would carry a request of `length` bytes to `segment` that asks for this, best first,
    /// and why. The buffers at both ends are taken to be plain memory that every link carries.
    pub fn explain(&self, op: Op, length: u64, qos: &Qos, segment: &Segment) -> Ranking {
        self.shared.explain(op, length, qos, segment)
    }

    /// Links that it should have [if possible](TentEngineBuilder::transport_if_possible) and has not,
    /// and why. Those whose reason may pass are tried again while the engine runs, and come then:
    /// they get the buffers that there are, and peers are told.
    pub fn absent_links(&self) -> Vec<AbsentLink> {
        self.shared.parts.links.absent()
    }

    /// What it was told and is not likely to be meant, such as policies that name links which it was
    /// not given. What cannot be at all is an error of [`build`](TentEngineBuilder::build).
    pub fn conflicts(&self) -> &Conflicts {
        &self.shared.parts.conflicts
    }

    /// What it holds at this moment.
    pub fn gauges(&self) -> Gauges {
        let parts = &self.shared.parts;
        let tasks = parts.context.tasks.sums();
        let buffers = parts.context.buffers.sums();
        let links = parts.links.installed();
        let staging = parts.context.staging.get();
        // They are nobody's, and kept for whoever comes next.
        let idle = staging.map_or(0, |staging| staging.idle_slots() as u64);
        Gauges {
            tasks_in_flight: tasks.in_flight,
            bytes_in_flight: tasks.bytes_in_flight,
            quarantined_bytes: tasks.quarantined_bytes,
            open_batches: parts.context.tasks.open_batches(),
            registrations: buffers.registrations.saturating_sub(idle),
            leases: buffers.leases,
            withdrawn_bytes: buffers.withdrawn_bytes,
            waiting_requests: self
                .shared
                .gate
                .as_ref()
                .map_or(0, |gate| gate.0.waiting() as u64),
            arrivals: parts.context.arrivals.len() as u64,
            notifications: self.shared.notifier.queue().len() as u64,
            links: links
                .map(|(_, link)| (link.name(), link.gauges()))
                .collect(),
        }
    }

    /// What it has done since it began.
    pub fn metrics(&self) -> Metrics {
        let shared = &self.shared;
        let link = |place: usize| shared.parts.links.get(place).map_or("", |link| link.name());
        Metrics {
            links: shared.parts.context.tasks.meters().read(link),
            served: {
                let links = shared.parts.links.iter().enumerate();
                let served =
                    links.map(|(place, link)| shared.parts.links.served(place).read(link.name()));
                served.flatten().collect()
            },
            failovers: shared.tally.failovers(link),
            refreshes: shared.segments.refreshes(),
            registrations: shared.tally.registrations(),
            admission: shared.tally.admission(),
            notifications: self.notification_counts(),
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
            for (place, link) in shared.parts.links.taking() {
                local.ask(place);
                match link.add_memory_buffer(&local).await {
                    Ok(Attachment::Attached) => local.attach(place),
                    Ok(Attachment::Declined(why)) => {
                        declined.push(format!("{}: {why}", link.name()));
                    }
                    Err(error) => {
                        shared.tally.declined.one();
                        shared.detach(&local).await;
                        return Err(error);
                    }
                }
            }
            if local.links() == 0 {
                shared.tally.declined.one();
                let reasons = declined.join(", ");
                return Err(Error::NoLink { reasons });
            }
            // Peers find it from here on (law 8).
            table.publish(&local);
            shared.tally.registered.one();
            // Those that came just now did not see it.
            for (place, _) in shared.parts.links.taking() {
                if local.is_unasked(place) {
                    shared.give(&local, place).await;
                }
            }
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
            self.shared.tally.renewed.one();
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
                return Ok(self.shared.own.segment().opened_again());
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
            let link = self.shared.usual_link(segment)?;
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
            let fences = segment.fences();
            // Tasks that wait for fresh knowledge are on no link.
            if !fences.raise(end).await {
                return Err(Error::Unreachable {
                    segment: segment.name().to_owned(),
                    message: format!("a task is still being posted to it after {budget:?}"),
                });
            }
            // Those that had it were posted to whom it speaks of; older ones, to former lives.
            let mut fenced = Ok(());
            for peer in fences.met(segment.incarnation()) {
                let mut proven = Ok(());
                for (_, link) in self.shared.parts.links.installed() {
                    let left = end.saturating_duration_since(Instant::now());
                    proven = proven.and(link.fence(peer, left).await);
                }
                if proven.is_ok() {
                    fences.proven(peer);
                }
                fenced = fenced.and(proven);
            }
            fenced
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
            if let Some(gate) = &self.shared.gate {
                gate.0.close();
            }
            let mut first = Ok(());
            parts.links.close();
            for (_, link) in parts.links.installed() {
                let left = end.saturating_duration_since(Instant::now());
                first = first.and(link.uninstall(left).await);
            }
            first
        })
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
    /// The segment of this name, if a link provides it.
    fn opening<'a>(&'a self, name: &'a str) -> Option<Opening<'a>> {
        let mut links = self.parts.links.installed();
        links.find_map(|(link, transport)| {
            let opened = transport.open(name)?;
            Some(Opening { link, opened })
        })
    }

    /// The links that carry a buffer.
    fn carrying(&self, buffer: &LocalBuffer) -> impl Iterator<Item = &Arc<dyn Transport>> {
        let links = self.parts.links.among(buffer.links());
        links.map(|(_, link)| link)
    }

    /// Tells everybody of all links and all that they carry.
    pub(super) fn describe_anew(&self) {
        self.own.renew(|version| {
            let parts = &self.parts;
            let all = parts.context.buffers.all();
            let offered = all
                .iter()
                .filter(|buffer| buffer.permission() != Permission::Local);
            SegmentDescriptor::new(
                parts.name.clone(),
                parts.context.incarnation,
                version,
                parts.machine.clone(),
                endpoints(&parts.links),
                offered.map(|buffer| self.describe(buffer)).collect(),
            )
        });
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

impl Registrar for Shared {
    fn withdraw(&self, buffer: &Arc<LocalBuffer>) {
        self.parts.context.buffers.remove(buffer.id());
        self.tally.unregistered.one();
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

    fn staged(&self, request: wire::StageRequest) -> BoxFuture<'static, wire::StageResponse> {
        match self.parts.context.staging.get() {
            Some(staging) => Box::pin(Arc::clone(staging).serve(request)),
            None => Box::pin(async {
                wire::StageResponse {
                    outcome: wire::StageOutcome::Refused.into(),
                    reason: "it has no stage".to_owned(),
                    ..wire::StageResponse::default()
                }
            }),
        }
    }
}

fn endpoints(links: &Links) -> Vec<(String, String)> {
    links
        .installed()
        .filter_map(|(_, link)| Some((link.name().to_owned(), link.endpoint()?)))
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
