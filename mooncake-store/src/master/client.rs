//! The client: what callers hold.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use mooncake_proto::{
    Fault,
    master::{self, GoodbyeRequest},
};
use parking_lot::Mutex;
use tokio::{
    sync::{broadcast, oneshot},
    task::JoinHandle,
};

use super::{
    SessionEvent, SessionEvents,
    outbound::Shared,
    session::Session,
    table::{Kind, Pending, closed},
};
use crate::{
    core::{MasterAnswer, MasterRequest},
    error::StoreError,
    time::{Clock, Time},
};

/// Who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Random, never 0, the same for the life of this process.
    pub client_incarnation: u64,
    /// Whose objects; empty: "default".
    pub tenant: String,
    /// For people.
    pub name: String,
}

/// How to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Until the master has answered hello; also for each later attempt.
    pub connect_timeout: Duration,
    /// Operations without an answer at most; one more is answered with `Busy`.
    pub max_in_flight: usize,
    /// The wait before the first attempt to connect again; it doubles with each.
    pub first_backoff: Duration,
    /// The longest such wait.
    pub last_backoff: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            max_in_flight: 65_536,
            first_backoff: Duration::from_millis(10),
            last_backoff: Duration::from_secs(1),
        }
    }
}

/// What the master said when it last answered hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// A stream is open at this moment.
    pub connected: bool,
    /// Of the master: grows with each of its lives.
    pub epoch: u64,
    /// The master still held our state.
    pub resumed: bool,
    /// Grows with each hello after which it did not: what was told to an earlier one is forgotten.
    pub session: u64,
    /// How often we ping; the client does that by itself.
    pub ping_interval: Duration,
    /// How long a silent client keeps its state.
    pub client_ttl: Duration,
    /// How long a put may take from PutStart to PutEnd.
    pub put_deadline: Duration,
}

/// A session with the master, which lives as long as one of its clones does.
#[derive(Clone, Debug)]
pub struct MasterClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    events: broadcast::WeakSender<SessionEvent>,
    info: Arc<ArcSwap<SessionInfo>>,
    task: Mutex<Option<JoinHandle<()>>>,
    hello: Hello,
}

impl MasterClient {
    /// Opens a session with the master at `address` (`host:port`).
    ///
    /// # Errors
    ///
    /// [`StoreError::Connect`] when nothing has answered hello within the connect timeout.
    pub async fn connect(
        address: &str,
        hello: Hello,
        options: ConnectOptions,
    ) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::new(address.to_owned(), options.max_in_flight));
        let (session, info, stream) = Session::open(shared.clone(), hello.clone(), options).await?;
        let events = session.events().downgrade();
        let task = tokio::spawn(session.run(stream));
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                events,
                info,
                task: Mutex::new(Some(task)),
                hello,
            }),
        })
    }

    /// Asks the master. The request is queued at once, in the order of the calls; the future only
    /// waits for the answer, and may be dropped.
    ///
    /// # Errors
    ///
    /// What the master answered instead; `RpcTimeout` at the deadline (by [`Clock`]); `Busy`;
    /// `UnknownOutcome` for a mutation that a lost master did not answer.
    ///
    /// [`Clock`]: crate::Clock
    pub fn call(
        &self,
        request: MasterRequest,
        deadline: Time,
    ) -> impl Future<Output = Result<MasterAnswer, Fault>> + Send + 'static {
        let (sender, receiver) = oneshot::channel();
        self.submit(request, deadline, move |result| {
            // Whoever asked may have lost interest.
            drop(sender.send(result));
        });
        let address = self.inner.shared.address.clone();
        async move { receiver.await.unwrap_or_else(|_| Err(closed(&address))) }
    }

    /// As [`call`](Self::call), without a future: `on_answer` runs once, on the session's own task
    /// so that no other needs to wake up. It must be short and must not block. It runs before
    /// `submit` returns if the request is refused (`Busy`, closed, deadline over), so callers hold
    /// no lock that it takes.
    pub fn submit(
        &self,
        request: MasterRequest,
        deadline: Time,
        on_answer: impl FnOnce(Result<MasterAnswer, Fault>) + Send + 'static,
    ) {
        self.inner.shared.submit(Pending {
            kind: Kind::of(&request),
            request,
            deadline,
            on_answer: Box::new(on_answer),
        });
    }

    /// Events from now on; at most 1,024 wait, then [`SessionEvent::Missed`] says so.
    ///
    /// [`SessionEvent::Missed`]: super::SessionEvent::Missed
    #[must_use]
    pub fn subscribe(&self) -> SessionEvents {
        let receiver = self.inner.events.upgrade().map_or_else(
            || broadcast::channel(1).1, // closed: ends at once
            |events| events.subscribe(),
        );
        SessionEvents(receiver)
    }

    /// Has `listener` called with each event from now on, until it says `false`: on the session's own
    /// task and in the order of the stream, after the answers that came before. It must be short
    /// and must not block.
    pub fn listen(&self, listener: impl Fn(&SessionEvent) -> bool + Send + Sync + 'static) {
        self.inner.shared.listeners.add(listener);
    }

    /// What the master said when it last answered hello.
    #[must_use]
    pub fn session(&self) -> SessionInfo {
        **self.inner.info.load()
    }

    /// Who we said we are.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.inner.hello
    }

    /// Where the master is.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.inner.shared.address
    }

    /// Takes leave of the master, so that it does not wait for us to come back, and
    /// [closes](Self::close) the session. `quiet`: no byte of our reads and writes moves any more.
    pub async fn goodbye(&self, quiet: bool, budget: Duration) {
        let end = Clock.now() + budget;
        if self.session().connected {
            let request = MasterRequest::Goodbye(GoodbyeRequest {
                quiet,
                ..GoodbyeRequest::default()
            });
            // One that is not heard is as good as one that was not said: our time to live ends.
            let _unheard = self.call(request, Clock.now() + budget / 2).await;
        }
        self.close(end.since(Clock.now())).await;
    }

    /// Ends the session for all clones, and every call with it; returns when its task has ended,
    /// but not after the budget.
    pub async fn close(&self, budget: Duration) {
        self.inner.shared.close();
        let task = self.inner.task.lock().take();
        if let Some(mut task) = task
            && tokio::time::timeout(budget, &mut task).await.is_err()
        {
            task.abort();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl From<Hello> for master::Hello {
    fn from(hello: Hello) -> Self {
        Self {
            protocol: 1,
            client_incarnation: hello.client_incarnation,
            tenant: hello.tenant,
            name: hello.name,
            capabilities: 0,
        }
    }
}

impl SessionInfo {
    pub(super) const fn first(hello: &master::HelloAnswer) -> Self {
        Self {
            connected: true,
            epoch: hello.epoch,
            resumed: hello.resumed,
            session: 1,
            ping_interval: Duration::from_micros(hello.ping_interval_us),
            client_ttl: Duration::from_micros(hello.client_ttl_us),
            put_deadline: Duration::from_micros(hello.put_deadline_us),
        }
    }

    pub(super) fn next(&self, hello: &master::HelloAnswer) -> Self {
        Self {
            session: self.session + u64::from(!hello.resumed),
            ..Self::first(hello)
        }
    }
}
