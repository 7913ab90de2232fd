//! Answers other engines that ask about this one.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use mooncake_proto::{
    Fault, Retry,
    status::ErrorCode,
    tent::{
        GetSegmentRequest, GetSegmentResponse, NotifyRequest, NotifyResponse, ProbeRequest,
        ProbeResponse, StageRequest, StageResponse,
        control_server::{self, Control},
    },
};
use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use super::watch::{Changes, Watchers};
use crate::{
    error::{Error, Result},
    registry,
    segment::SegmentDescriptor,
    transport::BoxFuture,
};

/// How often a peer that is silent is asked whether it is there, and how long it may take to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// What the service tells about its engine.
pub(crate) trait Describe: Send + Sync + 'static {
    /// The segment as it is now.
    fn descriptor(&self) -> SegmentDescriptor;
    /// What somebody lacks of it who knows this version of this incarnation; `None`: nothing.
    fn since(&self, incarnation: u64, version: u64) -> Option<GetSegmentResponse>;
    /// Its version, whenever that changes.
    fn versions(&self) -> watch::Receiver<u64>;
    /// A peer has something to say.
    fn notified(&self, request: NotifyRequest) -> NotifyResponse;
    /// A peer has bytes go through our stage.
    fn staged(&self, request: StageRequest) -> BoxFuture<'static, StageResponse>;
}

/// A running control service.
#[derive(Debug)]
pub(crate) struct ControlServer {
    address: SocketAddr,
    engine: Arc<OnceLock<Weak<dyn Describe>>>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Service {
    engine: Arc<OnceLock<Weak<dyn Describe>>>,
    watchers: Watchers,
    stopped: watch::Receiver<bool>,
}

impl ControlServer {
    pub(crate) async fn start(listen: SocketAddr) -> Result<Self> {
        let what = format!("control service: cannot listen on {listen}");
        let listener = TcpListener::bind(listen)
            .await
            .map_err(Error::system(what))?;
        let address = listener
            .local_addr()
            .map_err(Error::system("control service: own address"))?;
        let engine = Arc::new(OnceLock::new());
        let (stop, mut stopped) = watch::channel(false);
        let service = control_server::ControlServer::new(Service {
            engine: Arc::clone(&engine),
            watchers: Watchers::default(),
            stopped: stopped.clone(),
        });
        // An answer is small, and would wait for the peer's delayed acknowledgement.
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let task = tokio::spawn(async move {
            let stopped = async move {
                // An error means that the engine is gone, which is as good a reason.
                let _gone = stopped.wait_for(|stop| *stop).await;
            };
            let served = Server::builder()
                .http2_keepalive_interval(Some(KEEP_ALIVE))
                .http2_keepalive_timeout(Some(KEEP_ALIVE))
                .add_service(service)
                .serve_with_incoming_shutdown(incoming, stopped)
                .await;
            if let Err(error) = served {
                tracing::error!(%error, "the control service ended");
            }
        });
        Ok(Self {
            address,
            engine,
            stop,
            task: Mutex::new(Some(task)),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests are answered from now on.
    pub(crate) fn speak_for(&self, engine: Weak<dyn Describe>) {
        if self.engine.set(engine).is_err() {
            unreachable!("a control service speaks for one engine");
        }
    }

    /// Stops listening; calls under way get a moment to end.
    pub(crate) async fn stop(&self, budget: Duration) {
        self.stop.send_replace(true);
        let task = self.task.lock().take();
        if let Some(mut task) = task
            && tokio::time::timeout(budget, &mut task).await.is_err()
        {
            task.abort();
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Service {
    fn engine(&self) -> Result<Arc<dyn Describe>, Status> {
        let engine = self.engine.get().and_then(Weak::upgrade);
        let engine = engine.ok_or_else(|| {
            let later = Retry::Later(Duration::from_millis(10));
            Fault::new(ErrorCode::SegmentNotFound, later, "the engine is not ready")
        })?;
        Ok(engine)
    }

    /// The engine, if it is the one that is asked for.
    fn named(&self, asked: &str) -> Result<Arc<dyn Describe>, Status> {
        let engine = self.engine()?;
        let segment = engine.descriptor();
        // A host has many addresses; who reached us by another one means us all the same, which a
        // name that is no address does not.
        if asked.is_empty() || asked == segment.name() || registry::is_address(asked) {
            return Ok(engine);
        }
        let message = format!("this process offers {}, not {asked}", segment.name());
        Err(Fault::new(ErrorCode::SegmentNotFound, Retry::Never, message).into())
    }
}

#[tonic::async_trait]
impl Control for Service {
    type WatchSegmentStream = Changes;

    async fn get_segment(
        &self,
        request: Request<GetSegmentRequest>,
    ) -> Result<Response<GetSegmentResponse>, Status> {
        let asked = request.into_inner();
        let engine = self.named(&asked.name)?;
        let lacks = engine.since(asked.incarnation, asked.version);
        Ok(Response::new(lacks.unwrap_or_default()))
    }

    async fn watch_segment(
        &self,
        request: Request<GetSegmentRequest>,
    ) -> Result<Response<Changes>, Status> {
        let asked = request.into_inner();
        let engine = self.named(&asked.name)?;
        let stopped = self.stopped.clone();
        Ok(Response::new(self.watchers.tell(&asked, &engine, stopped)?))
    }

    async fn probe(
        &self,
        _request: Request<ProbeRequest>,
    ) -> Result<Response<ProbeResponse>, Status> {
        let incarnation = self.engine()?.descriptor().incarnation().get();
        Ok(Response::new(ProbeResponse { incarnation }))
    }

    async fn notify(
        &self,
        request: Request<NotifyRequest>,
    ) -> Result<Response<NotifyResponse>, Status> {
        let answer = self.engine()?.notified(request.into_inner());
        Ok(Response::new(answer))
    }
    async fn stage(
        &self,
        request: Request<StageRequest>,
    ) -> Result<Response<StageResponse>, Status> {
        let answer = self.engine()?.staged(request.into_inner());
        Ok(Response::new(answer.await))
    }
}
