//! A running master: its listeners, its clock and its end.

mod lanes;
mod vigil;

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

pub(crate) use self::vigil::Vigil;

use self::lanes::Lanes;
use crate::{
    InvalidConfig, LogError, MasterConfig, MasterService, Time, admin,
    log::{Directory, Files, Log, recover},
    service::epoch_by_date,
    state::{Command, Settings, State},
};

/// Open streams have so long to hear of the end.
const GRACE: Duration = Duration::from_secs(2);

/// Starts masters.
#[derive(Debug)]
pub struct Master;

impl Master {
    /// Binds both listeners, then serves.
    pub async fn start(config: MasterConfig) -> Result<RunningMaster, StartError> {
        let settings = config.settings(rand::random())?;
        let (listener, address) = bind("listen", &config.listen).await?;
        let (admin_listener, admin_address) = bind("admin_listen", &config.admin_listen).await?;
        let (state, log) = restored(&config.state_dir, settings)?;
        let ping_interval = Duration::from_millis(config.ping_interval_ms);
        let service = MasterService::with_log(state, ping_interval, log);
        let (stop, stopped) = watch::channel(false);

        let ticking = service.clone();
        let ticks = tokio::spawn(async move { ticking.run_ticks().await });
        let lanes = Lanes::start(&service, &stopped, GRACE).map_err(StartError::Threads)?;
        let grpc = tokio::spawn(lanes.serve(listener, stopped.clone()));
        let pages = admin::pages(service.shared());
        let admin = tokio::spawn(async move {
            let mut stopped = stopped;
            let stop = async move { on_stop(&mut stopped).await };
            let served = axum::serve(admin_listener, pages).with_graceful_shutdown(stop);
            if let Err(error) = served.await {
                tracing::warn!(%error, "the admin pages are gone");
            }
        });
        tracing::info!(%address, %admin_address, epoch = service.shared().epoch(), "serving");
        Ok(RunningMaster {
            service,
            address,
            admin_address,
            stop,
            tasks: Tasks(vec![ticks, grpc, admin]),
        })
    }
}

/// The state of a new life, which knows what earlier ones logged.
fn restored(state_dir: &str, settings: Settings) -> Result<(State, Option<Log>), StartError> {
    if state_dir.is_empty() {
        return Ok((State::new(epoch_by_date(), settings), None));
    }
    let files: Arc<dyn Files> = Arc::new(Directory::open(Path::new(state_dir))?);
    let begun = Instant::now();
    // The epoch is known once all is read; the records of it are not about this life.
    let mut all = Vec::new();
    let recovered = recover(&*files, |records| all.push(records))?;
    let epoch = epoch_by_date().max(recovered.epoch + 1);
    let mut state = State::new(epoch, settings);
    for records in all {
        state.apply(Time::ZERO, &Command::Replay(records));
    }
    state.apply(Time::ZERO, &Command::Replayed);
    let log = Log::start(files, &recovered, epoch)?;
    tracing::info!(
        state_dir,
        epoch,
        records = recovered.records,
        replicas = state.counters().disk_replicas,
        cut_off = recovered.torn_bytes,
        took = ?begun.elapsed(),
        "the log is read"
    );
    Ok((state, Some(log)))
}

/// A master that serves until it is shut down or dropped.
#[derive(Debug)]
pub struct RunningMaster {
    service: MasterService,
    address: SocketAddr,
    admin_address: SocketAddr,
    stop: watch::Sender<bool>,
    tasks: Tasks,
}

impl RunningMaster {
    /// Where the gRPC service listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the pages for operators are.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Of this life of the master.
    pub fn epoch(&self) -> u64 {
        self.service.shared().epoch()
    }

    /// Fences the sessions, ends their streams and closes the listeners, all within two seconds.
    pub async fn shutdown(mut self) {
        self.service.shared().stop();
        // Nobody listens when all servers have ended by themselves.
        let _ = self.stop.send(true);
        let mut servers = self.tasks.0.split_off(1);
        let all = async {
            for server in &mut servers {
                // A server that panicked has ended, too.
                let _ = server.await;
            }
        };
        if tokio::time::timeout(GRACE, all).await.is_err() {
            tracing::debug!("some connections did not end in time");
        }
        self.tasks.0.append(&mut servers);
        self.service.shared().close_log();
    }
}

/// Tasks that end with their owner.
#[derive(Debug)]
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

async fn on_stop(stopped: &mut watch::Receiver<bool>) {
    // An error means that the master was dropped, which stops it as well.
    let _ = stopped.wait_for(|&stop| stop).await;
}

async fn bind(
    setting: &'static str,
    address: &str,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen {
        setting,
        address: address.to_owned(),
        remedy: remedy(&source),
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "it is in use: stop whoever listens there, or choose another port (0 takes a free one)"
        }
        io::ErrorKind::PermissionDenied => "it is not allowed: choose a port above 1023",
        io::ErrorKind::AddrNotAvailable => "this machine does not have that address",
        _ => "it must be `host:port` of this machine",
    }
}

/// Why a master did not start.
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A value of the configuration makes no sense.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} ({setting}); {remedy}")]
    Listen {
        setting: &'static str,
        address: String,
        remedy: &'static str,
        source: io::Error,
    },
    /// The state directory cannot be used.
    #[error("the state directory is of no use")]
    Log(#[from] LogError),
    /// The system has no threads left.
    #[error("the threads that serve connections cannot start")]
    Threads(#[source] io::Error),
}
