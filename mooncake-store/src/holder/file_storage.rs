//! A storage that is held, and the loops that serve it.

use std::{
    fmt,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mooncake_bucket::OpenOptions;
use mooncake_proto::{Fault, status::ErrorCode, store::holder_server::HolderServer};
use mooncake_tent::TransferEngine;
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};

use super::{
    counts::{Counters, HolderCounts},
    desk::Desk,
    in_flight::InFlight,
    incoming::Incoming,
    losses::{LOSSES, Loss},
    options::StorageOptions,
    records::{Held, Records},
    staging::{Door, Staging},
};
use crate::{
    StoreError,
    client::Scratch,
    master::{MasterClient, SessionEvent},
    time::{Clock, Time},
};

/// After a failure a loop waits so long before it tries again.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// A directory of buckets that this node holds for the store. See the [module](super).
pub(crate) struct FileStorage {
    holder: Arc<Holder>,
    tasks: Vec<JoinHandle<()>>,
    /// Readers are answered as long as it is there.
    _open: watch::Sender<()>,
    endpoint: SocketAddr,
}

/// What the loops share.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) records: Held,
    pub(super) desk: Desk,
    pub(super) engine: Arc<dyn TransferEngine>,
    pub(super) master: MasterClient,
    pub(super) scratch: Arc<Scratch>,
    pub(super) in_flight: Mutex<InFlight>,
    pub(super) staging: Arc<Staging>,
    pub(super) counters: Counters,
    pub(super) losses: mpsc::Sender<Loss>,
    pub(super) options: StorageOptions,
    /// Where readers are answered, the name of our segment, and our own.
    pub(super) names: (String, String, String),
    /// Which mounting of it the master knows and has reconciled; 0: none.
    pub(super) standing: watch::Sender<u64>,
    /// It ends: readers are not answered any more.
    pub(super) over: AtomicBool,
    pub(super) wake: Wake,
    /// Held by who tells the master what is here, or what goes: neither sees half of the other's work.
    pub(super) telling: tokio::sync::Mutex<()>,
    /// The operator was told that the master does not know the storage.
    pub(super) complained: AtomicBool,
}

/// What has a loop look before its time.
#[derive(Debug, Default)]
pub(super) struct Wake {
    pub(super) removals: Notify,
    pub(super) offloads: Notify,
    pub(super) evictions: Notify,
    pub(super) standing: Notify,
    /// Nothing is on its way to the disk any more.
    pub(super) landed: Notify,
}

/// A directory that is open, and nobody knows of yet.
#[derive(Debug)]
pub(crate) struct Opened {
    options: StorageOptions,
    records: Held,
    listener: TcpListener,
    endpoint: SocketAddr,
}

impl Opened {
    /// Opens the directory, and listens for readers.
    pub(crate) async fn open(options: StorageOptions) -> Result<Self, StoreError> {
        let path = options.path.display().to_string();
        let refused = |reason: String| StoreError::Storage {
            path: path.clone(),
            reason,
        };
        let listener = TcpListener::bind(options.listen).await;
        let listener = listener.map_err(|error| {
            refused(format!(
                "readers cannot be heard at {}: {error}",
                options.listen
            ))
        })?;
        let endpoint = listener
            .local_addr()
            .map_err(|error| refused(error.to_string()))?;
        let settings = options.clone();
        let opened = tokio::task::spawn_blocking(move || open(&settings)).await;
        let records = opened.expect("opening does not panic").map_err(&refused)?;
        Ok(Self {
            options,
            records: Held::new(records),
            listener,
            endpoint,
        })
    }
}

impl FileStorage {
    /// Goes on to mount what is open. `name`: of the node, for people.
    pub(crate) fn start(
        engine: Arc<dyn TransferEngine>,
        master: MasterClient,
        opened: Opened,
        name: String,
    ) -> Result<Self, StoreError> {
        let Opened {
            options,
            records,
            listener,
            endpoint,
        } = opened;
        let desk = Desk::new(
            master.address(),
            records.identity(),
            engine.incarnation().get(),
        )?;
        let names = (endpoint.to_string(), engine.segment_name().to_owned(), name);
        let (losses, lost) = mpsc::channel(LOSSES);
        let holder = Arc::new(Holder {
            records,
            desk,
            scratch: Scratch::new(Arc::clone(&engine)),
            staging: Staging::new(Arc::clone(&engine), options.staging_bytes),
            engine,
            master,
            in_flight: Mutex::default(),
            counters: Counters::default(),
            losses,
            options,
            names,
            standing: watch::Sender::new(0),
            over: AtomicBool::new(false),
            wake: Wake::default(),
            telling: tokio::sync::Mutex::default(),
            complained: AtomicBool::new(false),
        });
        holder.listen();
        let (open, closed) = watch::channel(());
        let mut storage = Self {
            _open: open,
            endpoint,
            tasks: Vec::new(),
            holder,
        };
        storage.spawn(Holder::stand);
        storage.spawn(Holder::remove);
        storage.spawn(Holder::offload);
        storage.spawn(Holder::evict);
        storage.spawn(Holder::report);
        storage.spawn(|holder| holder.tell_losses(lost));
        let door = Door(Arc::downgrade(&storage.holder));
        tokio::spawn(serve(door, Incoming::new(listener), closed));
        Ok(storage)
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        task: impl FnOnce(Arc<Holder>) -> F,
    ) {
        self.tasks
            .push(tokio::spawn(task(Arc::clone(&self.holder))));
    }

    /// Where readers are answered.
    pub(crate) fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    pub(crate) fn identity(&self) -> [u8; 16] {
        self.holder.records.identity()
    }

    pub(crate) fn counts(&self) -> HolderCounts {
        self.holder.counters.counts()
    }

    /// Whether the master announces what is on the disk.
    pub(crate) fn is_announced(&self) -> bool {
        *self.holder.standing.borrow() != 0
    }

    /// Has the master announce nothing of it any more, and closes the directory when what the disk has begun is
    /// done. What is not done within the budget goes on without us.
    pub(crate) async fn end(mut self, budget: Duration) {
        let end = Clock.now() + budget;
        let mut tasks = std::mem::take(&mut self.tasks);
        let holder = Arc::clone(&self.holder);
        // What the master was told to go does go, if that takes no long.
        let telling = tokio::time::timeout(budget / 4, holder.telling.lock()).await;
        for task in &tasks {
            task.abort();
        }
        drop(telling);
        // Nobody is answered any more, and no loop begins anything.
        self.holder.over.store(true, Ordering::Relaxed);
        self.holder.standing.send_replace(0);
        let unmounted = tokio::time::timeout(budget / 4, self.holder.desk.unmount()).await;
        if !matches!(unmounted, Ok(Ok(()))) {
            tracing::warn!("the master has not heard that this node's storage ends");
        }
        for task in &mut tasks {
            let left = end.since(Clock.now());
            let _aborted = tokio::time::timeout(left, task).await;
        }
        self.holder.staging.clear(end.since(Clock.now()) / 2).await;
        drop(self);
        let Some(holder) = alone(holder, end).await else {
            tracing::warn!("somebody still uses the storage: it closes when they are done");
            return;
        };
        let closed = tokio::task::spawn_blocking(move || holder.records.close());
        let left = end.since(Clock.now());
        if tokio::time::timeout(left, closed).await.is_err() {
            tracing::warn!("the disk has not done what it has begun: it goes on");
        }
    }
}

impl Drop for FileStorage {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for FileStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStorage")
            .field("path", &self.holder.options.path)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

fn open(options: &StorageOptions) -> Result<Records, String> {
    let how = OpenOptions::new(options.bucket_config());
    let backend = match &options.disk {
        Some(disk) => how.open_on(Arc::clone(disk)),
        None => how.open(&options.path),
    };
    let backend = backend.map_err(|error| with_causes(&error))?;
    Records::open(backend, options.threads, options.gc)
        .map_err(|error| format!("its threads cannot be started: {error}"))
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Waits until requests of readers have ended, but not beyond `end`.
async fn alone(mut holder: Arc<Holder>, end: Time) -> Option<Holder> {
    loop {
        match Arc::try_unwrap(holder) {
            Ok(holder) => return Some(holder),
            Err(_) if Clock.now() >= end => return None,
            Err(shared) => holder = shared,
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Answers readers until the storage ends.
async fn serve(door: Door, incoming: Incoming, mut closed: watch::Receiver<()>) {
    let closed = async move {
        // Nothing is ever sent.
        let _gone = closed.changed().await;
    };
    let server = tonic::transport::Server::builder()
        .add_service(HolderServer::new(door))
        .serve_with_incoming_shutdown(incoming, closed);
    if let Err(error) = server.await {
        tracing::error!(%error, "readers of this node's disk are not answered any more");
    }
}

impl Holder {
    /// Looks for tasks when the master says that there are some.
    fn listen(self: &Arc<Self>) {
        let me = Arc::downgrade(self);
        self.master.listen(move |event| {
            let Some(holder) = me.upgrade() else {
                return false;
            };
            match event {
                SessionEvent::Nudge | SessionEvent::Missed(_) => holder.look(),
                SessionEvent::Connected { .. } => holder.wake.standing.notify_one(),
                _ => {}
            }
            true
        });
    }

    /// Has all loops look for tasks.
    pub(super) fn look(&self) {
        self.wake.removals.notify_one();
        self.wake.offloads.notify_one();
    }

    /// Waits until the master takes part; which mounting it is.
    pub(super) async fn mounted(&self) -> u64 {
        let mut standing = self.standing.subscribe();
        let mounted = standing.wait_for(|mount| *mount != 0).await;
        *mounted.expect("the sender is ours")
    }

    /// Waits for a wake-up, or as long as it takes to report once.
    pub(super) async fn rest(&self, wake: &Notify) {
        let interval = self.master.session().ping_interval;
        let _woken = tokio::time::timeout(interval, wake.notified()).await;
    }

    /// Draws the conclusions from a call that failed, and waits a little.
    pub(super) async fn failed(&self, what: &str, fault: &Fault) {
        if fault.code == ErrorCode::SegmentNotFound {
            tracing::info!(%fault, "the master does not know this node's storage: mounting anew");
            self.standing.send_replace(0);
            self.wake.standing.notify_one();
        } else {
            tracing::warn!(%fault, "{what} failed; trying again");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
