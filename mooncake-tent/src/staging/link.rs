//! The link itself.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore},
};

use super::{
    NAME, StagingConfig, config,
    job::{Job, Stop},
    ledger::Ledger,
    mover::Copies,
    slots::{Slot, SlotPool},
};
use crate::{
    engine::{TentEngine, WeakEngine},
    error::{Error, Result},
    identity::{Incarnation, PeerId, RegistrationId},
    memory::{BufferTable, LocalBuffer, Permission},
    platform::after,
    selector::{LinkDevices, memory_kind},
    time::Time,
    transport::{
        Attachment, BoxFuture, Capabilities, InstallContext, LinkGauges, Peer, SubBatch, TaskRef,
        Tasks, Transport,
    },
};

/// So many ask one peer for slots at once.
const AT_ONCE: usize = 16;
/// Queues of more peers are kept only while somebody stands there.
const QUEUES: usize = 64;

/// Has transfers go through stage buffers where no other link joins the memories. See
/// [the module](super).
pub struct StagingTransport {
    config: StagingConfig,
    joins: Vec<(&'static str, &'static str)>,
    installed: OnceLock<Installed>,
}

/// Stops when the engine lets go of it, whether that was shut down or not.
struct Installed(Arc<Staging>);

impl Drop for Installed {
    fn drop(&mut self) {
        self.0.stop();
        // A later life is taken as proof that they have ended.
        if !self.0.copies.wait(Duration::from_secs(1)) {
            tracing::warn!("a copy between memory and the stage does not end");
        }
    }
}

/// What it has in common with its tasks and with the service for peers.
pub(crate) struct Staging {
    pub(super) incarnation: Incarnation,
    pub(super) config: StagingConfig,
    pub(super) tasks: Tasks,
    pub(super) buffers: Arc<BufferTable>,
    pub(super) runtime: Handle,
    pub(super) for_us: Arc<SlotPool>,
    pub(super) for_reads: Arc<SlotPool>,
    pub(super) for_writes: Arc<SlotPool>,
    pub(super) ledger: Mutex<Ledger<Slot>>,
    pub(super) leases_looked_after: Mutex<bool>,
    pub(super) copies: Arc<Copies>,
    /// A slot was retired, or a job is over.
    pub(super) changed: Notify,
    jobs: Mutex<FxHashMap<TaskRef, Arc<Job>>>,
    /// Whose turn it is to ask a peer for a slot.
    queues: Mutex<FxHashMap<PeerId, Arc<Semaphore>>>,
    stopped: AtomicBool,
    began: Instant,
    engine: OnceLock<WeakEngine>,
}

impl StagingTransport {
    /// A link with these settings.
    pub fn new(config: StagingConfig) -> Self {
        // The other end knows by itself what it can copy.
        let kinds = config.movers.iter().map(|(kind, _)| *kind);
        let kinds = kinds.chain([memory_kind("*")]);
        Self {
            joins: kinds.map(|kind| (kind, "*")).collect(),
            config,
            installed: OnceLock::new(),
        }
    }

    fn installed(&self) -> Result<&Arc<Staging>> {
        let installed = self.installed.get();
        installed.map(|it| &it.0).ok_or_else(|| Error::Install {
            link: NAME,
            message: "it is not installed".to_owned(),
        })
    }
}

impl Staging {
    /// The engine is there from now on.
    pub(crate) fn speak_through(&self, engine: WeakEngine) {
        if self.engine.set(engine).is_err() {
            unreachable!("a link serves one engine");
        }
    }

    /// Slots that nobody uses, which are registered all the same.
    pub(crate) fn idle_slots(&self) -> usize {
        let pools = [&self.for_us, &self.for_reads, &self.for_writes];
        pools.iter().map(|pool| pool.idle()).sum()
    }

    pub(super) fn engine(&self) -> Option<TentEngine> {
        self.engine.get()?.upgrade()
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Where those stand in line who ask this peer for a slot: all at once would bury its control
    /// service.
    pub(super) fn queue_to(&self, peer: PeerId) -> Arc<Semaphore> {
        let mut queues = self.queues.lock();
        if queues.len() >= QUEUES && !queues.contains_key(&peer) {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        let queue = queues.entry(peer);
        Arc::clone(queue.or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))))
    }

    pub(super) fn begin(&self, job: &Arc<Job>) {
        self.jobs.lock().insert(job.task(), Arc::clone(job));
        // Whoever stops us looks at the jobs after that.
        if self.is_stopped() {
            job.stop(Stop::Shutdown);
        }
    }

    /// Nothing of it can move any more.
    pub(super) fn over(&self, job: &Job) {
        {
            let mut jobs = self.jobs.lock();
            // Its task may have begun anew.
            if jobs
                .get(&job.task())
                .is_some_and(|known| std::ptr::eq(&**known, job))
            {
                jobs.remove(&job.task());
            }
        }
        self.changed.notify_waiters();
    }

    fn jobs_to(&self, peer: PeerId) -> Vec<Arc<Job>> {
        let jobs = self.jobs.lock();
        let to_peer = jobs.values().filter(|job| job.peer() == peer);
        to_peer.map(Arc::clone).collect()
    }

    fn stop(self: &Arc<Self>) {
        self.stopped.store(true, Ordering::SeqCst);
        for job in self.jobs.lock().values() {
            job.stop(Stop::Shutdown);
        }
        self.copies.close();
        self.recall();
        for pool in [&self.for_us, &self.for_reads, &self.for_writes] {
            pool.close();
        }
    }

    /// Ends jobs, and waits until nothing of them can move.
    async fn end(&self, jobs: Vec<Arc<Job>>, stop: Stop, end: Instant) -> bool {
        for job in &jobs {
            job.stop(stop);
        }
        self.until(end, || {
            let known = self.jobs.lock();
            let is_over = |job: &Arc<Job>| {
                let known = known.get(&job.task());
                known.is_none_or(|known| !Arc::ptr_eq(known, job))
            };
            jobs.iter().all(is_over)
        })
        .await
    }

    async fn until(&self, end: Instant, reached: impl Fn() -> bool) -> bool {
        let waited = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if reached() {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout_at(end.into(), waited).await.is_ok()
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({} tasks)", self.jobs.lock().len())
    }
}

impl fmt::Debug for StagingTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagingTransport")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Transport for StagingTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            cancellation: true,
            target_applies: true,
            indirect: true,
            ..Capabilities::read_write()
        }
    }

    fn install(&self, engine: InstallContext) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.config.check()?;
            let config = self.config.clone();
            let pool = |permission| SlotPool::new(permission, config.slot_bytes, config.slots);
            let staging = Arc::new(Staging {
                incarnation: engine.incarnation,
                tasks: engine.tasks,
                buffers: engine.buffers,
                runtime: Handle::current(),
                for_us: pool(Permission::Local),
                for_reads: pool(Permission::PeersRead),
                for_writes: pool(Permission::PeersReadWrite),
                ledger: Mutex::new(Ledger::new(config.lease)),
                leases_looked_after: Mutex::new(false),
                copies: Arc::default(),
                changed: Notify::new(),
                jobs: Mutex::default(),
                queues: Mutex::default(),
                stopped: AtomicBool::new(false),
                began: Instant::now(),
                engine: OnceLock::new(),
                config,
            });
            let installed = Installed(Arc::clone(&staging));
            let first = self.installed.set(installed).is_ok();
            match first && engine.staging.set(staging).is_ok() {
                true => Ok(()),
                false => Err(Error::Install {
                    link: NAME,
                    message: "it serves another engine already".to_owned(),
                }),
            }
        })
    }

    fn endpoint(&self) -> Option<String> {
        let installed = self.installed.get()?;
        Some(config::endpoint(installed.0.config.slot_bytes))
    }

    fn uninstall(&self, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let Some(Installed(staging)) = self.installed.get() else {
                return Ok(());
            };
            let end = after(budget);
            staging.stop();
            let quiet = staging.until(end, || {
                staging.jobs.lock().is_empty() && staging.ledger.lock().len() == 0
            });
            match quiet.await {
                true => Ok(()),
                false => Err(Error::Install {
                    link: NAME,
                    message: format!("bytes may still move in the stage after {budget:?}"),
                }),
            }
        })
    }

    fn add_memory_buffer<'a>(
        &'a self,
        buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, Result<Attachment>> {
        let staged = self.config.mover_at(buffer.location()).is_some();
        Box::pin(async move {
            Ok(match buffer.is_plain() || staged {
                true => Attachment::Attached,
                false => Attachment::Declined("no mover was given for such memory"),
            })
        })
    }

    fn remove_memory_buffer(&self, _id: RegistrationId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn allocate_sub_batch(&self, _capacity: usize) -> Result<Box<dyn SubBatch>> {
        Ok(Box::new(StagingSubBatch(Arc::clone(self.installed()?))))
    }

    fn joins(&self) -> &[(&str, &str)] {
        &self.joins
    }

    fn devices(&self) -> LinkDevices<'_> {
        LinkDevices::NotNeeded
    }

    fn reaches(&self, peer: &Peer) -> bool {
        let Some(Installed(staging)) = self.installed.get() else {
            return false;
        };
        let endpoint = peer.endpoint(NAME).and_then(config::slot_bytes);
        endpoint.is_some() && peer.id() != staging.incarnation
    }

    fn warm_up<'a>(&'a self, _peer: &'a Arc<Peer>, _budget: Duration) -> BoxFuture<'a, Result<()>> {
        // Other links carry the bytes, and the control service has been spoken to.
        Box::pin(async { Ok(()) })
    }

    fn fence(&self, peer: PeerId, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let staging = self.installed()?;
            let to_peer = staging.jobs_to(peer);
            match staging.end(to_peer, Stop::Fenced, after(budget)).await {
                true => Ok(()),
                false => Err(Error::Unreachable {
                    segment: peer.to_string(),
                    message: format!("it has not confirmed the end of staging after {budget:?}"),
                }),
            }
        })
    }

    fn estimated_bandwidth(&self) -> Option<f64> {
        None
    }

    fn gauges(&self) -> LinkGauges {
        let Some(Installed(staging)) = self.installed.get() else {
            return LinkGauges::default();
        };
        let pools = [&staging.for_us, &staging.for_reads, &staging.for_writes];
        LinkGauges {
            stage_slots: pools.iter().map(|pool| pool.in_use() as u64).sum(),
            ..LinkGauges::default()
        }
    }
}

/// Keeps nothing of its own: tasks are found by their cells.
#[derive(Debug)]
struct StagingSubBatch(Arc<Staging>);

impl SubBatch for StagingSubBatch {
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> Result<()> {
        for task in tasks {
            if let Some(spec) = self.0.tasks.spec(*task) {
                Job::begin(&self.0, *task, spec);
            }
        }
        Ok(())
    }

    fn cancel_transfer_task(&self, task: TaskRef) {
        let job = self.0.jobs.lock().get(&task).cloned();
        if let Some(job) = job {
            job.stop(Stop::Cancelled);
        }
    }

    fn drive(&self, _budget: Duration) -> bool {
        false
    }

    fn hand_over(&self) {}

    fn recycle(&mut self) -> bool {
        true
    }
}
