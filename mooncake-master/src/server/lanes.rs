//! Threads that serve connections, each with a runtime of its own.
//!
//! All that a connection needs stays on one thread: between reading a request and writing its answer
//! no other thread is woken, which would cost more than the answer.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    thread::{Builder, available_parallelism},
    time::Duration,
};

use hyper::{body::Incoming, rt::Executor, server::conn::http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use mooncake_proto::master::{
    master_server::MasterServer,
    storages_server::{SERVICE_NAME as STORAGES, StoragesServer},
};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
};
use tonic::codegen::{Service, http};

use super::Vigil;
use crate::MasterService;

/// The longest message that is taken in: a batch of several thousand of the longest keys.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// What one stream, and one connection, may have in flight.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// A batch of a thousand keys of the usual length comes in one frame, and is read by few calls: of
/// frames of the 16 KiB that peers may send unasked, each takes two.
const MAX_FRAME_BYTES: u32 = 256 << 10;
/// A connection whose peer is gone is noticed after twice this.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The state machine has one lock: more lanes than this would wait for it.
const MOST_LANES: usize = 4;
/// How long to wait when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections on their way to the lanes; without it, lanes end when their connections have.
#[derive(Debug)]
pub(super) struct Lanes {
    queues: Vec<mpsc::UnboundedSender<std::net::TcpStream>>,
    /// Closed once all lanes have ended.
    ended: mpsc::Receiver<Infallible>,
}

impl Lanes {
    /// Starts the threads. From the moment that `stopped` says so, or nobody is left to say it,
    /// connections have `grace` to end.
    pub(super) fn start(
        service: &MasterService,
        stopped: &watch::Receiver<bool>,
        grace: Duration,
    ) -> io::Result<Self> {
        let count = available_parallelism().map_or(1, |cores| cores.get().min(MOST_LANES));
        let (alive, ended) = mpsc::channel(1);
        let mut queues = Vec::new();
        for number in 0..count {
            let (queue, connections) = mpsc::unbounded_channel();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let lane = Lane {
                service: Calls::new(service),
                stopped: stopped.clone(),
            };
            let alive = alive.clone();
            let work = move || {
                let vigil = Vigil::of_thread();
                runtime.block_on(async {
                    tokio::select! {
                        () = lane.run(connections, grace) => {}
                        () = vigil.keep() => {}
                    }
                });
                drop(alive);
            };
            Builder::new()
                .name(format!("master-lane-{number}"))
                .spawn(work)?;
            queues.push(queue);
        }
        Ok(Self { queues, ended })
    }

    /// Deals out what `listener` accepts until it is time to stop; returns when all have ended.
    pub(super) async fn serve(mut self, listener: TcpListener, mut stopped: watch::Receiver<bool>) {
        let mut turns = (0..self.queues.len()).cycle();
        let mut stop = pin!(super::on_stop(&mut stopped));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stop => break,
            };
            let stream = match accepted.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let lane = turns.next().expect("it never ends");
            if self.queues[lane].send(stream).is_err() {
                tracing::warn!(lane, "a lane is gone");
            }
        }
        drop(listener);
        self.queues.clear();
        self.ended.recv().await;
    }
}

struct Lane {
    service: Calls,
    stopped: watch::Receiver<bool>,
}

impl Lane {
    async fn run(
        self,
        mut connections: mpsc::UnboundedReceiver<std::net::TcpStream>,
        grace: Duration,
    ) {
        let mut open = JoinSet::new();
        let mut stopped = self.stopped.clone();
        let mut stop = pin!(super::on_stop(&mut stopped));
        loop {
            tokio::select! {
                next = connections.recv() => match next {
                    Some(stream) => {
                        let (service, stopped) = (self.service.clone(), self.stopped.clone());
                        open.spawn(connection(stream, service, stopped));
                    }
                    None => break,
                },
                Some(_) = open.join_next() => {}
                () = &mut stop => break,
            }
        }
        let all = async { while open.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, all).await.is_err() {
            tracing::debug!("some connections did not end in time");
        }
    }
}

/// Serves one connection to its end.
async fn connection(
    stream: std::net::TcpStream,
    service: Calls,
    mut stopped: watch::Receiver<bool>,
) {
    let stream = stream
        .set_nodelay(true)
        .and_then(|()| TcpStream::from_std(stream));
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "a connection is of no use");
            return;
        }
    };
    let calls = Begun::default();
    let served = http2::Builder::new(calls.clone())
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME_BYTES)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = poll_fn(|cx| calls.poll_with(served.as_mut(), cx)) => ended,
        () = super::on_stop(&mut stopped) => {
            served.as_mut().graceful_shutdown();
            poll_fn(|cx| calls.poll_with(served.as_mut(), cx)).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// Calls that have begun on a connection and were not looked at yet.
///
/// Most need no second look: they are answered within the connection's own task, and what they
/// answer goes out together. Others become tasks.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<Vec<Call>>>);

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Begun {
    fn execute(&self, call: F) {
        self.0.lock().push(Box::pin(call));
    }
}

impl Begun {
    fn poll_with<C: Future>(
        &self,
        mut connection: Pin<&mut C>,
        cx: &mut Context<'_>,
    ) -> Poll<C::Output> {
        loop {
            let ended = connection.as_mut().poll(cx);
            let calls = std::mem::take(&mut *self.0.lock());
            if ended.is_ready() || calls.is_empty() {
                return ended;
            }
            for mut call in calls {
                if call.as_mut().poll(cx).is_pending() {
                    // Polled again, it says whom to wake from now on.
                    tokio::spawn(call);
                }
            }
        }
    }
}

/// The services as `hyper` calls them.
#[derive(Clone)]
struct Calls {
    master: MasterServer<MasterService>,
    storages: StoragesServer<MasterService>,
}

impl Calls {
    fn new(service: &MasterService) -> Self {
        Self {
            master: MasterServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES),
            storages: StoragesServer::new(service.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
        }
    }
}

impl hyper::service::Service<http::Request<Incoming>> for Calls {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = <MasterServer<MasterService> as Service<http::Request<Incoming>>>::Future;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        // Paths are `/service/method`.
        if request.uri().path().split('/').nth(1) == Some(STORAGES) {
            return self.storages.clone().call(request);
        }
        self.master.clone().call(request)
    }
}
