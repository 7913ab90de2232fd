//! The client of a process that talks to the store itself.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use mooncake_tent::{
    Buffer, Memory, Permission, RegisterOptions, TcpConfig, TcpTransport, TentEngine,
    TransferEngine,
};
use tokio::sync::{oneshot, watch};

use super::{
    call::{BoxFuture, Client, GetInto, PutFrom, Value},
    driver::{Driver, Finished, Place},
    mount::Mount,
};
use crate::{
    ErrorCode, Fault, Retry, StoreError,
    core::{
        ClientCore, Description, Existence, GetItem, Got, Incarnation, Operation, Outcome, PutItem,
        PutOptions, RemoveOptions, SegmentInfo, Settings,
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
    /// Engine and session end with the client.
    owned: bool,
    /// What the client itself lends.
    mount: Option<Arc<Mount>>,
}

impl RealClient {
    /// Connects to the master at `address`, with an engine of its own that reaches nodes over TCP
    /// and offers nothing itself, unless [memory is lent](ClientOptions::segment_bytes). Call it
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
        let builder = TentEngine::builder().transport(TcpTransport::new(tcp));
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
        let mut client = Self::over(engine, master, options.operation_deadline);
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
        let mut core = ClientCore::new(Settings::default());
        core.set_put_deadline(master.session().put_deadline);
        let driver = Driver::start(core, master.clone(), Arc::clone(&engine));
        Self {
            driver,
            engine,
            master,
            operation_deadline,
            owned: false,
            mount: None,
        }
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

    fn run(&self, operation: Operation, places: Vec<Place>) -> oneshot::Receiver<Finished> {
        self.driver.run(operation, places, self.operation_deadline)
    }
}

async fn finished(receiver: oneshot::Receiver<Finished>) -> Finished {
    receiver
        .await
        .expect("the driver lives as long as its client and finishes every operation")
}

fn local_failure(error: &mooncake_tent::Error) -> Fault {
    Fault::new(ErrorCode::Internal, Retry::Never, error.to_string()).with_stage("memory")
}

impl Client for RealClient {
    fn put_from(
        &self,
        items: Vec<PutFrom>,
        options: PutOptions,
    ) -> BoxFuture<'_, Vec<Result<Incarnation, Fault>>> {
        let (items, places) = items
            .into_iter()
            .map(|item| {
                let length = item.from.iter().map(mooncake_tent::LocalSlice::len).sum();
                let key = item.key;
                (PutItem { key, length }, Place::Given(item.from))
            })
            .unzip();
        let receiver = self.run(Operation::Put { items, options }, places);
        Box::pin(async move {
            match finished(receiver).await.outcome {
                Outcome::Put(results) => results,
                other => unreachable!("a put ended as {other:?}"),
            }
        })
    }

    fn get_into(&self, items: Vec<GetInto>) -> BoxFuture<'_, Vec<Result<Got, Fault>>> {
        let (items, places) = items
            .into_iter()
            .map(|item| {
                let capacity = item.into.iter().map(mooncake_tent::LocalSlice::len).sum();
                let item_of_core = GetItem {
                    key: item.key,
                    capacity: Some(capacity),
                };
                (item_of_core, Place::Given(item.into))
            })
            .unzip();
        let receiver = self.run(Operation::Get { items }, places);
        Box::pin(async move {
            match finished(receiver).await.outcome {
                Outcome::Get(results) => results,
                other => unreachable!("a get ended as {other:?}"),
            }
        })
    }

    fn get(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Result<Value, Fault>>> {
        let places = vec![Place::Lent(None); keys.len()];
        let items = keys
            .into_iter()
            .map(|key| GetItem {
                key,
                capacity: None,
            })
            .collect();
        let receiver = self.run(Operation::Get { items }, places);
        Box::pin(async move {
            let finished = finished(receiver).await;
            let Outcome::Get(results) = finished.outcome else {
                unreachable!("a get ended as {:?}", finished.outcome);
            };
            results
                .into_iter()
                .zip(finished.places)
                .map(|(result, place)| {
                    let got = result?;
                    let Place::Lent(Some(loan)) = place else {
                        unreachable!("what was read has a place");
                    };
                    Ok(Value { loan, got })
                })
                .collect()
        })
    }

    fn put<'a>(
        &'a self,
        items: Vec<(Bytes, &'a [u8])>,
        options: PutOptions,
    ) -> BoxFuture<'a, Vec<Result<Incarnation, Fault>>> {
        Box::pin(async move {
            // The core refuses empty values, naming the key; they need no memory.
            let lengths: Vec<_> = items
                .iter()
                .map(|(_, value)| value.len().max(1) as u64)
                .collect();
            let lent = self.driver.scratch().lend(&lengths).await;
            let loans = match lent {
                Ok(loans) => loans,
                Err(error) => {
                    let fault = local_failure(&error);
                    let failed = |(key, _)| Err(fault.clone().with_key(key));
                    return items.into_iter().map(failed).collect();
                }
            };
            let mut core_items = Vec::with_capacity(items.len());
            let mut places = Vec::with_capacity(items.len());
            for ((key, value), loan) in items.into_iter().zip(loans) {
                loan.write(value);
                let length = value.len() as u64;
                core_items.push(PutItem { key, length });
                places.push(Place::Lent(Some(loan)));
            }
            let receiver = self.run(
                Operation::Put {
                    items: core_items,
                    options,
                },
                places,
            );
            match finished(receiver).await.outcome {
                Outcome::Put(results) => results,
                other => unreachable!("a put ended as {other:?}"),
            }
        })
    }

    fn exist(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Result<Existence, Fault>>> {
        let receiver = self.run(Operation::Exist { keys }, Vec::new());
        Box::pin(async move {
            match finished(receiver).await.outcome {
                Outcome::Exist(results) => results,
                other => unreachable!("an exist ended as {other:?}"),
            }
        })
    }

    fn remove_all(&self) -> BoxFuture<'_, Result<u64, Fault>> {
        let receiver = self.run(Operation::RemoveAll, Vec::new());
        Box::pin(async move {
            match finished(receiver).await.outcome {
                Outcome::RemoveAll(result) => result,
                other => unreachable!("a removal of all ended as {other:?}"),
            }
        })
    }

    fn remove(
        &self,
        keys: Vec<Bytes>,
        options: RemoveOptions,
    ) -> BoxFuture<'_, Vec<Result<(), Fault>>> {
        let receiver = self.run(Operation::Remove { keys, options }, Vec::new());
        Box::pin(async move {
            match finished(receiver).await.outcome {
                Outcome::Remove(results) => results,
                other => unreachable!("a remove ended as {other:?}"),
            }
        })
    }

    fn describe(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Result<Description, Fault>>> {
        let receiver = self.run(Operation::Describe { keys }, Vec::new());
        Box::pin(async move {
            match finished(receiver).await.outcome {
                Outcome::Describe(results) => results,
                other => unreachable!("a describe ended as {other:?}"),
            }
        })
    }
}
