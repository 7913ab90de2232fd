//! The link itself, for either medium.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{
    HostConfig, Medium,
    keeper::Keeper,
    place::Place,
    server::Server,
    session::Session,
    sub_batch::HostSubBatch,
    work::{Pool, Work},
};
use crate::{
    error::{Error, Reason, Result},
    identity::{Incarnation, PeerId},
    memory::{BufferTable, LocalBuffer},
    platform::after,
    transport::{
        Attachment, BoxFuture, Capabilities, InstallContext, LinkGauges, Peer, SubBatch, Tasks,
    },
};

/// Everything of a link but its name.
#[derive(Debug)]
pub(crate) struct HostLink<M: Medium> {
    config: HostConfig,
    installed: OnceLock<Installed<M>>,
}

/// Stops when the engine lets go of it, whether that was shut down or not.
#[derive(Debug)]
struct Installed<M: Medium> {
    inner: Arc<Inner<M>>,
    server: Server,
}

/// What its threads share.
#[derive(Debug)]
pub(super) struct Inner<M: Medium> {
    incarnation: Incarnation,
    place: Place,
    config: HostConfig,
    tasks: Tasks,
    buffers: Arc<BufferTable>,
    sessions: ArcSwap<FxHashMap<PeerId, Arc<Session<M>>>>,
    /// Orders those who add one.
    adding: Mutex<()>,
    stopped: AtomicBool,
    pool: Arc<Pool<M>>,
    keeper: Arc<Keeper<M>>,
}

impl<M: Medium> HostLink<M> {
    pub(crate) fn new(config: HostConfig) -> Self {
        Self {
            config,
            installed: OnceLock::new(),
        }
    }

    fn installed(&self) -> Result<&Installed<M>> {
        let installed = self.installed.get();
        installed.ok_or_else(|| error::<M>("it is not installed"))
    }

    pub(crate) fn capabilities() -> Capabilities {
        Capabilities {
            cancellation: true,
            target_applies: true,
            same_host: true,
            sources: true,
            receipts: true,
            ..Capabilities::read_write()
        }
    }

    pub(crate) fn install(&self, engine: InstallContext) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let system = |what: &str| Error::system(format!("{}: {what}", M::NAME));
            let place = Place::ours().ok_or_else(|| error::<M>("this machine has no identity"))?;
            let marks = engine.buffers.marks().map_err(system("marks"))?;
            // What cannot stop by itself comes last.
            let keeper = Arc::new(Keeper::new().map_err(system("events"))?);
            let server = Server::start::<M>(&engine, marks, self.config.clone())?;
            let inner = Arc::new(Inner {
                incarnation: engine.incarnation,
                place,
                config: self.config.clone(),
                pool: Pool::new(Arc::clone(&engine.tasks)),
                tasks: engine.tasks,
                buffers: engine.buffers,
                sessions: ArcSwap::default(),
                adding: Mutex::new(()),
                stopped: AtomicBool::new(false),
                keeper,
            });
            let installed = Installed { inner, server };
            let inner = &installed.inner;
            inner
                .pool
                .start(self.config.threads)
                .map_err(system("no thread"))?;
            let started = inner.keeper.start(Arc::downgrade(inner));
            started.map_err(system("no thread"))?;
            self.installed
                .set(installed)
                .map_err(|_| error::<M>("it serves another engine already"))
        })
    }

    pub(crate) fn endpoint(&self) -> Option<String> {
        let inner = &self.installed.get()?.inner;
        Some(inner.place.endpoint(own_user(), inner.incarnation))
    }

    pub(crate) fn uninstall(&self, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            match self.installed.get() {
                Some(installed) => installed.stop(budget),
                None => Ok(()),
            }
        })
    }

    pub(crate) fn add_memory_buffer(&self, buffer: &LocalBuffer) -> Result<Attachment> {
        self.installed()?;
        Ok(match M::accepts(buffer.memory()) {
            Ok(()) if buffer.has_mark() => Attachment::Attached,
            Ok(()) => Attachment::Declined("as many buffers as can have a mark have one"),
            Err(why) => Attachment::Declined(why),
        })
    }

    pub(crate) fn allocate_sub_batch(&self) -> Result<Box<dyn SubBatch>> {
        Ok(Box::new(HostSubBatch::new(&self.installed()?.inner)))
    }

    pub(crate) fn reaches(&self, peer: &Peer) -> bool {
        let Some(installed) = self.installed.get() else {
            return false;
        };
        let Some(endpoint) = peer.endpoint(M::NAME) else {
            return false;
        };
        let mut users = self.config.users.clone();
        users.push(own_user());
        installed.inner.place.reaches(endpoint, &users, peer.id())
    }

    pub(crate) fn warm_up<'a>(
        &'a self,
        peer: &'a Arc<Peer>,
        budget: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let end = after(budget);
            let unreachable = |message: String| Error::Unreachable {
                segment: peer.id().to_string(),
                message,
            };
            let session = self.installed()?.inner.session(peer.id());
            let session = session.map_err(|reason| unreachable(reason.to_string()))?;
            let greeted = tokio::task::spawn_blocking(move || session.greet(end)).await;
            match greeted {
                Ok(Ok(())) => Ok(()),
                Ok(Err(reason)) => Err(unreachable(reason.to_string())),
                Err(error) => Err(unreachable(error.to_string())),
            }
        })
    }

    pub(crate) fn fence(&self, peer: PeerId, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let end = after(budget);
            let Some(session) = self.installed()?.inner.sessions.load().get(&peer).cloned() else {
                return Ok(());
            };
            let fenced = tokio::task::spawn_blocking(move || session.fence(end)).await;
            match fenced {
                Ok(true) => Ok(()),
                _ => Err(Error::Unreachable {
                    segment: peer.to_string(),
                    message: format!("it has not confirmed the fence after {budget:?}"),
                }),
            }
        })
    }

    pub(crate) fn gauges(&self) -> LinkGauges {
        let Some(installed) = self.installed.get() else {
            return LinkGauges::default();
        };
        let mut gauges = installed.server.gauges();
        let sessions = installed.inner.sessions.load();
        gauges.connections += sessions
            .values()
            .map(|session| session.connections())
            .sum::<u64>();
        gauges
    }
}

impl<M: Medium> Installed<M> {
    fn stop(&self, budget: Duration) -> Result<()> {
        let end = after(budget);
        let inner = &self.inner;
        {
            // Who adds a session looks at it under the lock.
            let _adding = inner.adding.lock();
            inner.stopped.store(true, Ordering::Release);
        }
        let sessions = inner.sessions();
        for session in &sessions {
            session.stop();
        }
        let served = self
            .server
            .stop(end.saturating_duration_since(Instant::now()));
        let mut quiet = inner.pool.stop(end) & inner.keeper.stop(end);
        for session in &sessions {
            // What was sent gets a part of the time to be answered in, and the rest to break off.
            let left = end.saturating_duration_since(Instant::now());
            let _drained = session.drain(after(left / 2));
            session.writes.close();
            quiet &= session.drain(end);
        }
        served?;
        match quiet {
            true => Ok(()),
            false => Err(error::<M>(
                "a peer has not confirmed the end of what it copies",
            )),
        }
    }
}

impl<M: Medium> Drop for Installed<M> {
    fn drop(&mut self) {
        if let Err(error) = self.stop(Duration::from_secs(1)) {
            tracing::warn!(link = M::NAME, %error, "the link did not stop");
        }
    }
}

impl<M: Medium> Inner<M> {
    pub(super) fn config(&self) -> &HostConfig {
        &self.config
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    pub(super) fn sessions(&self) -> Vec<Arc<Session<M>>> {
        self.sessions.load().values().cloned().collect()
    }

    /// The session with a peer, which connects when it is first used.
    pub(super) fn session(&self, peer: PeerId) -> Result<Arc<Session<M>>, Reason> {
        if let Some(session) = self.sessions.load().get(&peer) {
            return Ok(Arc::clone(session));
        }
        let _adding = self.adding.lock();
        if self.stopped.load(Ordering::Acquire) {
            return Err(Reason::Stopped);
        }
        if let Some(session) = self.sessions.load().get(&peer) {
            return Ok(Arc::clone(session));
        }
        let tasks = Arc::clone(&self.tasks);
        let session = Arc::new(Session::new(peer, self.incarnation, tasks, &self.config));
        let mut sessions = FxHashMap::clone(&self.sessions.load());
        sessions.insert(peer, Arc::clone(&session));
        self.sessions.store(Arc::new(sessions));
        Ok(session)
    }

    pub(super) fn give(&self, work: &Arc<Work<M>>) {
        self.pool.give(work);
    }

    pub(super) fn watch(&self, session: &Arc<Session<M>>) {
        self.keeper.watch(session);
    }

    /// Something will be lent, by us or to us.
    pub(super) fn lends(&self) {
        self.keeper.sweep();
    }

    /// Gives back what is not lent any more. `true`: there is more to look after.
    pub(super) fn sweep(&self) -> bool {
        // A session itself stays, for whoever fences or stops what it has begun.
        let mut more = false;
        for session in self.sessions() {
            session
                .writes
                .forget(|source| !self.buffers.contains(source));
            session.writes.sweep();
            more |= session.sweep();
        }
        more
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn error<M: Medium>(message: impl Into<String>) -> Error {
    Error::Install {
        link: M::NAME,
        message: message.into(),
    }
}

/// Makes `$link` a [`Transport`](crate::transport::Transport) that works as a [`HostLink`].
macro_rules! host_transport {
    ($link:ident, $medium:ty) => {
        impl $link {
            /// A link with these settings.
            pub fn new(config: $crate::host::HostConfig) -> Self {
                Self($crate::host::HostLink::new(config))
            }
        }

        impl Default for $link {
            fn default() -> Self {
                Self::new($crate::host::HostConfig::default())
            }
        }

        impl std::fmt::Debug for $link {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($link))
                    .field("endpoint", &self.0.endpoint())
                    .finish_non_exhaustive()
            }
        }

        impl $crate::transport::Transport for $link {
            fn name(&self) -> &'static str {
                <$medium as $crate::host::Medium>::NAME
            }

            fn capabilities(&self) -> $crate::transport::Capabilities {
                $crate::host::HostLink::<$medium>::capabilities()
            }

            fn install(
                &self,
                engine: $crate::transport::InstallContext,
            ) -> $crate::transport::BoxFuture<'_, $crate::Result<()>> {
                self.0.install(engine)
            }

            fn endpoint(&self) -> Option<String> {
                self.0.endpoint()
            }

            fn uninstall(
                &self,
                budget: std::time::Duration,
            ) -> $crate::transport::BoxFuture<'_, $crate::Result<()>> {
                self.0.uninstall(budget)
            }

            fn add_memory_buffer<'a>(
                &'a self,
                buffer: &'a std::sync::Arc<$crate::LocalBuffer>,
            ) -> $crate::transport::BoxFuture<'a, $crate::Result<$crate::transport::Attachment>>
            {
                Box::pin(async { self.0.add_memory_buffer(buffer) })
            }

            fn remove_memory_buffer(
                &self,
                _id: $crate::RegistrationId,
            ) -> $crate::transport::BoxFuture<'_, $crate::Result<()>> {
                // Its mark is closed, and peers are told in the next sweep.
                Box::pin(async { Ok(()) })
            }

            fn allocate_sub_batch(
                &self,
                _capacity: usize,
            ) -> $crate::Result<Box<dyn $crate::transport::SubBatch>> {
                self.0.allocate_sub_batch()
            }

            fn devices(&self) -> $crate::selector::LinkDevices<'_> {
                $crate::selector::LinkDevices::NotNeeded
            }

            fn reaches(&self, peer: &$crate::transport::Peer) -> bool {
                self.0.reaches(peer)
            }

            fn warm_up<'a>(
                &'a self,
                peer: &'a std::sync::Arc<$crate::transport::Peer>,
                budget: std::time::Duration,
            ) -> $crate::transport::BoxFuture<'a, $crate::Result<()>> {
                self.0.warm_up(peer, budget)
            }

            fn fence(
                &self,
                peer: $crate::PeerId,
                budget: std::time::Duration,
            ) -> $crate::transport::BoxFuture<'_, $crate::Result<()>> {
                self.0.fence(peer, budget)
            }

            fn estimated_bandwidth(&self) -> Option<f64> {
                None
            }

            fn gauges(&self) -> $crate::transport::LinkGauges {
                self.0.gauges()
            }
        }
    };
}

pub(crate) use host_transport;
