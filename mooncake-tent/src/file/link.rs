//! The link as the engine sees it.

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use tokio::task::spawn_blocking;

use super::{
    FileConfig, FileCounts, FileEngine, NAME,
    carrier::{Carrier, until_idle},
    cut::BLOCK,
    job::{Job, Progress},
    name::FileSegment,
    open::{Files, OpenFile},
    pool::Pool,
    slots::{Forgets, Slot, Table},
    uring::{FILES, RingCarrier},
    watch::Watch,
};
use crate::{
    error::{Error, Reason, Result, Retry, Stage, TransferError},
    identity::{PeerId, RegistrationId},
    memory::LocalBuffer,
    platform::after,
    selector::LinkDevices,
    transport::{
        Attachment, BoxFuture, Capabilities, InstallContext, LinkGauges, Opened, Outcome, Peer,
        Posting, SubBatch, TaskRef, Tasks, Transport,
    },
};

/// Memory above this takes so long to pin that it is not done on the caller's thread.
const LARGE: usize = 4 << 20;

/// Reads and writes files. See the [module](crate::file). Clones are the same link.
#[derive(Clone)]
pub struct FileTransport {
    config: FileConfig,
    installed: Arc<OnceLock<Installed>>,
}

struct Installed {
    tasks: Tasks,
    files: Arc<RwLock<Files>>,
    /// Has a clone for each file that is open.
    open: Arc<()>,
    carriers: Arc<[Arc<dyn Carrier>]>,
    known: Arc<dyn Forgets>,
    places: Arc<Table>,
    threads: Threads,
    next: AtomicUsize,
    /// Of the engine that was chosen.
    why: String,
}

/// What works when nobody waits.
enum Threads {
    Pool(Arc<Pool>),
    Watch(Arc<Watch>),
}

impl FileTransport {
    /// A link with these settings.
    pub fn new(config: FileConfig) -> Self {
        Self {
            config,
            installed: Arc::default(),
        }
    }

    /// What moves the bytes, once it is installed, and why.
    pub fn engine(&self) -> Option<(FileEngine, &str)> {
        let installed = self.installed.get()?;
        let engine = match installed.threads {
            Threads::Pool(_) => FileEngine::Portable,
            Threads::Watch(_) => FileEngine::Uring,
        };
        Some((engine, &installed.why))
    }

    /// What it has done so far.
    pub fn counts(&self) -> FileCounts {
        let mut counts = FileCounts::default();
        if let Some(installed) = self.installed.get() {
            let carriers = installed.carriers.iter();
            carriers.for_each(|carrier| counts.add(carrier.counts()));
        }
        counts
    }

    fn installed(&self) -> Result<&Installed> {
        self.installed.get().ok_or_else(|| Error::Install {
            link: NAME,
            message: "it is not installed".to_owned(),
        })
    }
}

impl Default for FileTransport {
    fn default() -> Self {
        Self::new(FileConfig::default())
    }
}

impl fmt::Debug for FileTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileTransport")
            .field("config", &self.config)
            .field("engine", &self.engine())
            .finish_non_exhaustive()
    }
}

impl Transport for FileTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            cancellation: true,
            ..Capabilities::read_write()
        }
    }

    fn install(&self, engine: InstallContext) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let installed = Installed::new(&self.config, engine.tasks().clone())?;
            tracing::debug!(engine = %installed.why, "the file link is installed");
            self.installed.set(installed).map_err(|_| Error::Install {
                link: NAME,
                message: "it serves another engine already".to_owned(),
            })
        })
    }

    fn endpoint(&self) -> Option<String> {
        None
    }

    fn uninstall(&self, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            match self.installed.get() {
                Some(installed) => installed.stop(budget),
                None => Ok(()),
            }
        })
    }

    fn add_memory_buffer<'a>(
        &'a self,
        buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, Result<Attachment>> {
        Box::pin(async move {
            let installed = self.installed()?;
            if !self.config.register_memory {
                return Ok(Attachment::Attached);
            }
            let (carriers, buffer) = (Arc::clone(&installed.carriers), Arc::clone(buffer));
            let large = buffer.memory().len() > LARGE;
            let register = move || {
                carriers
                    .iter()
                    .for_each(|carrier| carrier.register(&buffer))
            };
            if large {
                // Memory that is not pinned is read and written all the same.
                let _pinned = spawn_blocking(register).await;
            } else {
                register();
            }
            Ok(Attachment::Attached)
        })
    }

    fn remove_memory_buffer(&self, id: RegistrationId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if let Some(installed) = self.installed.get() {
                let carriers = installed.carriers.iter();
                carriers.for_each(|carrier| carrier.unregister(id));
            }
            Ok(())
        })
    }

    fn allocate_sub_batch(&self, _capacity: usize) -> Result<Box<dyn SubBatch>> {
        let installed = self.installed()?;
        let next = installed.next.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(FileSubBatch {
            tasks: Arc::clone(&installed.tasks),
            files: Arc::clone(&installed.files),
            carrier: Arc::clone(&installed.carriers[next % installed.carriers.len()]),
            jobs: Mutex::default(),
        }))
    }

    fn joins(&self) -> &[(&str, &str)] {
        &[("cpu", "file")]
    }

    fn devices(&self) -> LinkDevices<'_> {
        LinkDevices::NotNeeded
    }

    fn reaches(&self, peer: &Peer) -> bool {
        let installed = self.installed.get();
        installed.is_some_and(|installed| installed.files.read().contains_key(&peer.id()))
    }

    fn open<'a>(&'a self, name: &'a str) -> Option<BoxFuture<'a, Result<Opened>>> {
        FileSegment::is_named(name).then(|| -> BoxFuture<'a, Result<Opened>> {
            Box::pin(async move {
                let installed = self.installed()?;
                let (segment, all) = (FileSegment::parse(name)?, Arc::clone(&installed.open));
                let opened = spawn_blocking(move || OpenFile::open(&segment, &all)).await;
                let lost = |_| Error::Install {
                    link: NAME,
                    message: "the runtime ended while a file was opened".to_owned(),
                };
                Ok(installed.publish(name, opened.map_err(lost)??))
            })
        })
    }

    fn close(&self, peer: PeerId) {
        if let Some(installed) = self.installed.get() {
            let closed = installed.files.write().remove(&peer);
            drop(closed);
        }
    }

    fn warm_up<'a>(&'a self, _peer: &'a Arc<Peer>, _budget: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn fence(&self, peer: PeerId, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let end = after(budget);
            let carriers = Arc::clone(&self.installed()?.carriers);
            carriers.iter().for_each(|carrier| carrier.fence(peer));
            let idle = spawn_blocking(move || until_idle(&carriers, Some(peer), end)).await;
            match idle {
                Ok(true) => Ok(()),
                _ => Err(still_busy(&peer.to_string(), budget)),
            }
        })
    }

    fn estimated_bandwidth(&self) -> Option<f64> {
        None
    }

    fn gauges(&self) -> LinkGauges {
        let mut gauges = LinkGauges::default();
        if let Some(installed) = self.installed.get() {
            gauges.files = Arc::strong_count(&installed.open) as u64 - 1;
            let carriers = installed.carriers.iter();
            gauges.pinned_buffers = carriers.map(|carrier| carrier.registered()).sum();
        }
        gauges
    }
}

fn still_busy(who: &str, budget: Duration) -> Error {
    Error::Unreachable {
        segment: who.to_owned(),
        message: format!("reads or writes are still under way after {budget:?}"),
    }
}

impl Installed {
    fn new(config: &FileConfig, tasks: Tasks) -> Result<Self> {
        let part_bytes = (config.part_bytes / BLOCK).clamp(1, 1 << 18) * BLOCK;
        let rings = match config.engine {
            FileEngine::Portable => None,
            _ => Some(rings(config, part_bytes, &tasks)),
        };
        let refused = |error: std::io::Error| Error::Install {
            link: NAME,
            message: format!("no io_uring: {error}"),
        };
        let (carriers, threads, why) = match rings {
            Some(Ok((carriers, watch))) => {
                let why = format!("io_uring, {} rings", carriers.len());
                (carriers, Threads::Watch(watch), why)
            }
            Some(Err(error)) if config.engine == FileEngine::Uring => return Err(refused(error)),
            refusal => {
                let why = match refusal {
                    Some(Err(error)) => {
                        tracing::info!(%error, "files are read and written by plain calls");
                        format!("plain calls, since io_uring is refused: {error}")
                    }
                    _ => "plain calls, as it was asked for".to_owned(),
                };
                let pool = Pool::start(config, part_bytes, &tasks);
                let pool = pool.map_err(Error::system("file: no thread"))?;
                let carriers: Vec<Arc<dyn Carrier>> = vec![Arc::<Pool>::clone(&pool)];
                (carriers, Threads::Pool(pool), why)
            }
        };
        let carriers: Arc<[Arc<dyn Carrier>]> = carriers.into();
        let places = Arc::new(Table::new(FILES));
        let known = Known {
            carriers: carriers.iter().map(Arc::downgrade).collect(),
            places: Arc::clone(&places),
        };
        Ok(Self {
            tasks,
            files: Arc::default(),
            open: Arc::default(),
            carriers,
            known: Arc::new(known),
            places,
            threads,
            next: AtomicUsize::new(0),
            why,
        })
    }

    /// From here on tasks find the file.
    fn publish(&self, name: &str, file: OpenFile) -> Opened {
        if let Some(place) = self.places.take() {
            // All of them know it, or none is asked to.
            let slot = Slot::new(place, &self.known);
            if self
                .carriers
                .iter()
                .all(|carrier| carrier.open(place, &file))
            {
                let fresh = file.slot.set(slot);
                debug_assert!(fresh.is_ok(), "a file is published once");
            }
        }
        let (id, descriptor) = (file.id(), file.describe(name));
        tracing::debug!(path = %file.path().display(), direct = file.is_direct(), "a file is open");
        self.files.write().insert(id, Arc::new(file));
        let keep = Keep {
            id,
            files: Arc::downgrade(&self.files),
        };
        Opened {
            descriptor,
            keep: Box::new(keep),
        }
    }

    fn stop(&self, budget: Duration) -> Result<()> {
        let end = after(budget);
        self.files.write().clear();
        self.carriers.iter().for_each(|carrier| carrier.close());
        let idle = until_idle(&self.carriers, None, end);
        match &self.threads {
            Threads::Pool(pool) => pool.stop(idle),
            Threads::Watch(watch) => watch.stop(),
        }
        match idle {
            true => Ok(()),
            false => Err(still_busy("of files", budget)),
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        if let Err(error) = self.stop(Duration::from_secs(1)) {
            tracing::warn!(%error, "the file link did not stop");
        }
    }
}

type Rings = (Vec<Arc<dyn Carrier>>, Arc<Watch>);

fn rings(config: &FileConfig, part_bytes: u64, tasks: &Tasks) -> std::io::Result<Rings> {
    let count = config.rings.max(1);
    let watch = Watch::new(count)?;
    let rings = (0..count).map(|number| {
        let ring = RingCarrier::new(number, config, part_bytes, tasks, &watch);
        ring.map(Arc::new)
    });
    let rings: Vec<_> = rings.collect::<std::io::Result<_>>()?;
    watch.start(rings.clone())?;
    let carriers = rings.into_iter().map(|ring| -> Arc<dyn Carrier> { ring });
    Ok((carriers.collect(), watch))
}

/// Where rings know files.
#[derive(Debug)]
struct Known {
    carriers: Vec<Weak<dyn Carrier>>,
    places: Arc<Table>,
}

impl Forgets for Known {
    fn forget(&self, place: u32) {
        let carriers = self.carriers.iter().filter_map(Weak::upgrade);
        carriers.for_each(|carrier| carrier.forget_file(place));
        self.places.give_back(place);
    }
}

/// Closes a file with its segment.
struct Keep {
    id: PeerId,
    files: Weak<RwLock<Files>>,
}

impl Drop for Keep {
    fn drop(&mut self) {
        let files = self.files.upgrade();
        let closed = files.and_then(|files| files.write().remove(&self.id));
        drop(closed);
    }
}

/// Tasks of one batch, all on one ring.
#[derive(Debug)]
struct FileSubBatch {
    tasks: Tasks,
    files: Arc<RwLock<Files>>,
    carrier: Arc<dyn Carrier>,
    /// Empty between submissions.
    jobs: Mutex<Vec<Job>>,
}

impl FileSubBatch {
    /// What is to be done for a task; otherwise how it ends.
    fn plan(
        &self,
        task: TaskRef,
        asked: Posting,
        last: &mut Option<Checked>,
    ) -> Result<Job, Outcome> {
        let peer = asked.peer;
        if asked.deadline.is_some_and(|end| end <= Instant::now()) {
            return Err(Outcome::timed_out(Stage::Post, peer));
        }
        let checked = match last {
            Some(checked) if checked.peer == peer => checked,
            place => place.insert(self.look_up(peer)),
        };
        let file = checked
            .file
            .as_ref()
            .map_err(|error| Outcome::Failed(error.clone()))?;
        if let Err(reason) = file.admit(&asked) {
            let error = TransferError::unstarted(reason, Stage::Admit, Some(peer));
            return Err(Outcome::Failed(error));
        }
        Ok(Job {
            task,
            op: asked.op,
            file: Arc::clone(file),
            local: asked.local,
            offset: asked.offset,
            length: asked.length,
            deadline: asked.deadline,
            progress: Progress::default(),
        })
    }

    fn look_up(&self, peer: PeerId) -> Checked {
        let file = self.files.read().get(&peer).cloned();
        let closed = || {
            let reason = Reason::File("segment was closed".into());
            let mut error = TransferError::unstarted(reason, Stage::Admit, Some(peer));
            error.retry = Retry::AfterRefresh;
            error
        };
        let file = file.ok_or_else(closed);
        Checked {
            peer,
            file: file.and_then(|file| file.check().map(|()| file)),
        }
    }
}

/// A file as it was found for the tasks of one submission.
struct Checked {
    peer: PeerId,
    file: Result<Arc<OpenFile>, TransferError>,
}

impl SubBatch for FileSubBatch {
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> Result<()> {
        let mut last = None;
        let mut jobs = std::mem::take(&mut *self.jobs.lock());
        for task in tasks {
            let Some(asked) = self.tasks.posting(*task) else {
                continue;
            };
            match self.plan(*task, asked, &mut last) {
                Ok(job) => jobs.push(job),
                Err(end) => self.tasks.finish(*task, end, true),
            }
        }
        self.carrier.post(&mut jobs);
        *self.jobs.lock() = jobs;
        Ok(())
    }

    fn cancel_transfer_task(&self, task: TaskRef) {
        self.carrier.cancel(task);
    }

    fn drive(&self, budget: Duration) -> bool {
        self.carrier.drive(budget)
    }

    fn hand_over(&self) {
        self.carrier.hand_over();
    }

    fn recycle(&mut self) -> bool {
        true
    }
}
