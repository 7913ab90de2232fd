//! The TENT runtime.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mooncake_proto::tent as wire;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{
    Batch, Buffer, Gauges, RegisterOptions, Request, TentEngineBuilder, TransferEngine,
    attempt::Attempts,
    buffer::Registrar,
    lanes::Lanes,
    parking::{self, Gatekeeper, Parking},
    parts::PartsPool,
    retry::retry_hook,
    routing::Kinds,
};
use crate::{
    admission::AdmissionConfig,
    control::{ControlServer, Describe},
    error::{Error, Result},
    identity::{Generation, Incarnation},
    memory::{LocalBuffer, Memory, Permission},
    platform::after,
    qos::Qos,
    segment::{BufferDescriptor, Segment, SegmentDescriptor, SegmentManager},
    selector::{Policies, Ranking, TransportSelector},
    transport::{Attachment, BoxFuture, InstallContext, Op, Opened, Transport},
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
    pub(super) context: InstallContext,
    pub(super) links: Vec<Arc<dyn Transport>>,
    pub(super) absent: Vec<(&'static str, String)>,
    pub(super) control: Option<ControlServer>,
}

pub(super) struct Shared {
    pub(super) parts: Parts,
    /// Of our own descriptor.
    version: AtomicU64,
    pub(super) selector: TransportSelector,
    pub(super) lanes: Lanes,
    pub(super) kinds: Kinds,
    /// Without it every request goes at once.
    pub(super) gate: Option<Gatekeeper>,
    pub(super) segments: SegmentManager,
    own: Segment,
    /// Held while `own` learns, so that it never learns an older state after a newer one.
    learning: Mutex<()>,
    batch_parts: Arc<PartsPool>,
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

    pub(super) fn assemble(
        parts: Parts,
        policies: Policies,
        admission: Option<AdmissionConfig>,
    ) -> Self {
        let endpoints = endpoints(&parts.links);
        let own = SegmentDescriptor::new(
            parts.name.clone(),
            parts.context.incarnation,
            0,
            parts.machine.clone(),
            endpoints,
            Vec::new(),
        );
        let own = Segment::new(parts.name.clone(), own, Arc::default());
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
            if let Some(control) = &parts.control {
                control.speak_for(Weak::<Shared>::clone(me));
            }
            Shared {
                parts,
                version: AtomicU64::new(0),
                selector: TransportSelector::with_policies(policies),
                lanes: Lanes::new(),
                kinds: Kinds::default(),
                gate: gate.map(Gatekeeper),
                segments: SegmentManager::default(),
                own,
                learning: Mutex::default(),
                batch_parts: Arc::default(),
                me: Weak::clone(me),
            }
        });
        Self { shared }
    }

    /// Which links would carry a request of `length` bytes to `segment` that asks for this, best first,
    /// and why. The buffers at both ends are taken to be plain memory that every link carries.
    pub fn explain(&self, op: Op, length: u64, qos: &Qos, segment: &Segment) -> Ranking {
        self.shared.explain(op, length, qos, segment)
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
            waiting_requests: self
                .shared
                .gate
                .as_ref()
                .map_or(0, |gate| gate.0.waiting() as u64),
            links: links.map(|link| (link.name(), link.gauges())).collect(),
        }
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
                return Ok(self.shared.own.clone());
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

    fn shutdown(&self, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let end = after(budget);
            let parts = &self.shared.parts;
            if let Some(control) = &parts.control {
                control.stop(budget / 2).await;
            }
            if let Some(gate) = &self.shared.gate {
                gate.0.close();
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
        let mut links = self.parts.links.iter().enumerate();
        links.find_map(|(link, transport)| {
            let opened = transport.open(name)?;
            Some(Opening { link, opened })
        })
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
            let _learning = self.learning.lock();
            self.version.fetch_add(1, Ordering::AcqRel);
            self.own.learn(self.descriptor());
        }
    }

    fn descriptor(&self) -> SegmentDescriptor {
        let parts = &self.parts;
        let buffers = parts
            .context
            .buffers
            .all()
            .iter()
            .filter(|buffer| buffer.permission() != Permission::Local)
            .map(|buffer| BufferDescriptor {
                registration: buffer.id(),
                generation: buffer.generation(),
                address: buffer.memory().address(),
                length: buffer.memory().len() as u64,
                permission: buffer.permission(),
                location: buffer.location().to_owned(),
                links: self
                    .carrying(buffer)
                    .map(|link| link.name().to_owned())
                    .collect(),
            })
            .collect();
        SegmentDescriptor::new(
            parts.name.clone(),
            parts.context.incarnation,
            self.version.load(Ordering::Acquire),
            parts.machine.clone(),
            endpoints(&parts.links),
            buffers,
        )
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
        self.changed(buffer);
    }
}

impl Describe for Shared {
    fn describe(&self) -> wire::SegmentDescriptor {
        self.descriptor().to_wire(&endpoints(&self.parts.links))
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
