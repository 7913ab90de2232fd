//! The client of a process that talks to the store itself.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use mooncake_tent::{
    Buffer, CmaTransport, Memory, Permission, RegisterOptions, ShmTransport, TcpConfig,
    TcpTransport, TentEngine, TransferEngine,
};
use tokio::sync::{oneshot, watch};

use super::{
    asked::{self, Asked},
    call::{BoxFuture, Client, GetInto, PutFrom, Value},
    driver::{Driver, Finished},
    mount::Mount,
};
use crate::{
    ErrorCode, Fault, Retry, StoreError,
    core::{
        ClientCore, Description, Existence, Got, Incarnation, Operation, PutOptions, RemoveOptions,
        SegmentInfo, Settings,
    },
    master::{ConnectOptions, Hello, MasterClient},
    time::Clock,
};

/// How a client connects and how patient it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Whose objects are meant; empty: `default`.
    pub tenant: String,
    /// For people: shown in lists and logs.
    pub name: String,
    /// How long one operation may take, all its attempts included.
    pub operation_deadline: Duration,
    /// How long one attempt to connect may take.
    pub connect_deadline: Duration,
    /// How long the client goes by what a look-up has found, so that reading an object again asks
    /// nothing of the master; at most half of a lease. Zero: not at all.
    pub keep_look_ups: Duration,
    /// Nodes of the same host and user are reached through their memory, without a network.
    pub host_links: bool,
    /// Memory that the client's process lends to the store; 0: none. Puts go there first.
    pub segment_bytes: u64,
    /// Where the engine's control service listens if memory is lent; its address is the segment's
    /// name.
    pub listen: SocketAddr,
    /// Where peers' data connections are accepted if memory is lent.
    pub data_listen: SocketAddr,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            tenant: String::new(),
            name: format!("client-{}", std::process::id()),
            operation_deadline: Duration::from_secs(5),
            connect_deadline: Duration::from_secs(1),
            keep_look_ups: Settings::default().keep,
            host_links: true,
            segment_bytes: 0,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data_listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        }
    }
}

/// Puts and gets objects over a transfer engine and a session with the master. Clones are the same
/// client.
#[derive(Clone, Debug)]
pub struct RealClient {
    driver: Arc<Driver>,
    engine: Arc<dyn TransferEngine>,
    master: MasterClient,
    operation_deadline: Duration,
    settings: Settings,
    /// Engine and session end with the client.
    owned: bool,
    /// What the client itself lends.
    mount: Option<Arc<Mount>>,
}

impl RealClient {
    /// Connects to the master at `address`, with an engine of its own that reaches nodes through
    /// shared memory or over TCP, and offers nothing itself, unless [memory is lent](ClientOptions::segment_bytes). Call it
    /// within a tokio runtime.
    ///
    /// # Errors
    ///
    /// The master does not answer, the engine cannot start, or there is no memory to lend.
    pub async fn connect(address: &str, options: ClientOptions) -> Result<Self, StoreError> {
        let lends = options.segment_bytes > 0;
        let mut tcp = TcpConfig::default();
        tcp.listen = lends.then_some(options.data_listen);
        tcp.connect_timeout = options.connect_deadline;
        let mut builder = TentEngine::builder().install_budget(Duration::ZERO);
        if options.host_links {
            builder = builder
                .transport_if_possible(ShmTransport::default())
                .transport_if_possible(CmaTransport::default());
        }
        let builder = builder.transport(TcpTransport::new(tcp));
        let builder = match lends {
            true => builder.listen(options.listen),
            false => builder.without_control(),
        };
        let engine = builder.build().await?;
        let engine: Arc<dyn TransferEngine> = Arc::new(engine);
        let connect = ConnectOptions {
            connect_timeout: options.connect_deadline,
            ..ConnectOptions::default()
        };
        let hello = Hello {
            client_incarnation: engine.incarnation().get(),
            tenant: options.tenant.clone(),
            name: options.name.clone(),
        };
        let master = MasterClient::connect(address, hello, connect).await?;
        let settings = Settings {
            keep: options.keep_look_ups,
            ..Settings::default()
        };
        let mut client = Self::with(engine, master, options.operation_deadline, settings);
        client.owned = true;
        if lends {
            let (engine, master) = (Arc::clone(&client.engine), client.master.clone());
            let mount = Mount::start(engine, master, options.segment_bytes, options.name).await?;
            client.lend(mount.life());
            client.mount = Some(Arc::new(mount));
        }
        Ok(client)
    }

    /// A client over an engine and a session that exist already, and go on after it. The session
    /// must have been opened under the engine's incarnation.
    pub fn over(
        engine: Arc<dyn TransferEngine>,
        master: MasterClient,
        operation_deadline: Duration,
    ) -> Self {
        Self::with(engine, master, operation_deadline, Settings::default())
    }

    fn with(
        engine: Arc<dyn TransferEngine>,
        master: MasterClient,
        operation_deadline: Duration,
        settings: Settings,
    ) -> Self {
        let mut core = ClientCore::new(settings.clone());
        core.set_put_deadline(master.session().put_deadline);
        let driver = Driver::start(core, master.clone(), Arc::clone(&engine));
        Self {
            driver,
            engine,
            master,
            operation_deadline,
            settings,
            owned: false,
            mount: None,
        }
    }

    /// Another client over the same engine and session, which puts into the same memory first.
    pub(super) fn sibling(&self) -> Self {
        let (engine, master) = (Arc::clone(&self.engine), self.master.clone());
        let settings = self.settings.clone();
        let sibling = Self::with(engine, master, self.operation_deadline, settings);
        if let Some(mount) = &self.mount {
            sibling.lend(mount.life());
        }
        sibling
    }

    /// Puts into this segment of the process first, through all its lives.
    pub(crate) fn lend(&self, life: watch::Receiver<Option<SegmentInfo>>) {
        self.driver.follow(life);
    }

    /// The same client with another patience.
    #[must_use]
    pub fn with_deadline(&self, operation_deadline: Duration) -> Self {
        Self {
            operation_deadline,
            ..self.clone()
        }
    }

    /// The engine that moves its bytes.
    pub fn engine(&self) -> &Arc<dyn TransferEngine> {
        &self.engine
    }

    /// Its session with the master.
    pub fn master(&self) -> &MasterClient {
        &self.master
    }

    /// Memory of `len` bytes for [`put_from`](Client::put_from) and [`get_into`](Client::get_into).
    ///
    /// # Errors
    ///
    /// The system has no memory, or a link refuses it.
    pub async fn allocate(&self, len: usize) -> Result<Buffer, StoreError> {
        let memory = Memory::allocate(len).map_err(|source| mooncake_tent::Error::System {
            what: format!("{len} bytes of memory"),
            source,
        })?;
        let options = RegisterOptions::new(Permission::Local);
        Ok(self.engine.register_memory(memory, options).await?)
    }

    /// Gives all leases back, and ends what [`connect`](Self::connect) has opened: the session and
    /// the engine. Those that the client was [given](Self::over) go on.
    ///
    /// # Errors
    ///
    /// Transfers could not be proven quiet within the budget.
    pub async fn close(&self, budget: Duration) -> Result<(), StoreError> {
        let end = Clock.now() + budget;
        self.driver.withdraw();
        self.driver.settle(budget / 2).await;
        if !self.owned {
            return Ok(());
        }
        if let Some(mount) = &self.mount {
            mount.end(end.since(Clock.now()) / 4).await;
        }
        let quiet = self.engine.shutdown(end.since(Clock.now()) / 2).await;
        let left = end.since(Clock.now());
        self.master.goodbye(quiet.is_ok(), left).await;
        Ok(quiet?)
    }

    pub(super) const fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(super) const fn deadline(&self) -> Duration {
        self.operation_deadline
    }

    /// Runs an operation; `outcome` says what came of it.
    fn run<T: 'static>(&self, asked: Asked, outcome: fn(Finished) -> T) -> BoxFuture<'static, T> {
        let receiver = self.driver.run(asked, self.operation_deadline);
        Box::pin(async move { outcome(finished(receiver).await) })
    }
}

async fn finished(receiver: oneshot::Receiver<Finished>) -> Finished {
    receiver
        .await
        .expect("the driver lives as long as its client and finishes every operation")
}

/// No memory could be lent for values that are to be put.
pub(super) fn no_memory(
    items: Vec<(Bytes, &[u8])>,
    error: &mooncake_tent::Error,
) -> Vec<Result<Incarnation, Fault>> {
    let fault = Fault::new(ErrorCode::Internal, Retry::Never, error.to_string());
    let fault = fault.with_stage("memory");
    let failed = |(key, _)| Err(fault.clone().with_key(key));
    items.into_iter().map(failed).collect()
}

impl Client for RealClient {
    fn put_from(
        &self,
        items: Vec<PutFrom>,
        options: PutOptions,
    ) -> BoxFuture<'_, Vec<Result<Incarnation, Fault>>> {
        self.run(Asked::put_from(items, options), asked::put)
    }

    fn get_into(&self, items: Vec<GetInto>) -> BoxFuture<'_, Vec<Result<Got, Fault>>> {
        self.run(Asked::get_into(items), asked::got)
    }

    fn get(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Result<Value, Fault>>> {
        self.run(Asked::get(keys), asked::values)
    }

    fn put<'a>(
        &'a self,
        items: Vec<(Bytes, &'a [u8])>,
        options: PutOptions,
    ) -> BoxFuture<'a, Vec<Result<Incarnation, Fault>>> {
        Box::pin(async move {
            let lent = self.driver.scratch().lend(&asked::lengths(&items)).await;
            match lent {
                Ok(loans) => {
                    let asked = Asked::put(items, loans, options);
                    self.run(asked, asked::put).await
                }
                Err(error) => no_memory(items, &error),
            }
        })
    }

    fn exist(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Result<Existence, Fault>>> {
        self.run(Asked::query(Operation::Exist { keys }), asked::exist)
    }

    fn remove_all(&self) -> BoxFuture<'_, Result<u64, Fault>> {
        self.run(Asked::query(Operation::RemoveAll), asked::removed_all)
    }

    fn remove(
        &self,
        keys: Vec<Bytes>,
        options: RemoveOptions,
    ) -> BoxFuture<'_, Vec<Result<(), Fault>>> {
        let asked = Asked::query(Operation::Remove { keys, options });
        self.run(asked, asked::removed)
    }

    fn describe(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Result<Description, Fault>>> {
        self.run(Asked::query(Operation::Describe { keys }), asked::described)
    }
}
