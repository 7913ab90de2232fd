//! A running node.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use mooncake_tent::{
    CmaTransport, ShmTransport, TcpConfig, TcpTransport, TentEngine, TransferEngine,
};

use crate::{
    StoreError,
    client::{Mount, RealClient},
    core::{SegmentId, StorageId},
    holder::{FileStorage, HolderCounts, Opened, StorageOptions},
    master::{ConnectOptions, Hello, MasterClient},
    time::Clock,
};

/// What a node lends, and where it is reached.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeOptions {
    /// For people: shown in lists and logs.
    pub name: String,
    /// Memory that it lends.
    pub segment_bytes: u64,
    /// Where the engine's control service listens; its address is the segment's name.
    pub listen: SocketAddr,
    /// Where peers' data connections are accepted.
    pub data_listen: SocketAddr,
    /// How long one attempt to reach the master may take.
    pub connect_deadline: Duration,
    /// What it keeps on its disk; `None`: nothing.
    pub storage: Option<StorageOptions>,
}

impl NodeOptions {
    /// A node of this name that lends so many bytes and listens on free loopback ports.
    pub fn new(name: impl Into<String>, segment_bytes: u64) -> Self {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            name: name.into(),
            segment_bytes,
            listen: free,
            data_listen: free,
            connect_deadline: Duration::from_secs(1),
            storage: None,
        }
    }
}

/// A process's part in the store: memory that objects are kept in.
#[derive(Debug)]
pub struct Node {
    engine: TentEngine,
    master: MasterClient,
    mount: Mount,
    storage: Option<FileStorage>,
}

impl Node {
    /// Allocates the memory, touches all of it, and joins the master at `master`. When this ends,
    /// objects may be placed here. Call it within a tokio runtime.
    ///
    /// # Errors
    ///
    /// The master does not answer or refuses, an address is taken, or there is no memory.
    pub async fn start(master: &str, options: NodeOptions) -> Result<Self, StoreError> {
        let mut tcp = TcpConfig::default();
        tcp.listen = Some(options.data_listen);
        let engine = TentEngine::builder()
            .listen(options.listen)
            // Who starts it is told at once.
            .install_budget(Duration::ZERO)
            .transport_if_possible(ShmTransport::default())
            .transport_if_possible(CmaTransport::default())
            .transport(TcpTransport::new(tcp))
            .build()
            .await?;
        let connect = ConnectOptions {
            connect_timeout: options.connect_deadline,
            ..ConnectOptions::default()
        };
        let hello = Hello {
            client_incarnation: engine.incarnation().get(),
            tenant: String::new(),
            name: options.name.clone(),
        };
        // Before the memory, which takes long to touch: a wrong address should be known at once.
        let master = MasterClient::connect(master, hello, connect).await?;
        // Before others count on the memory: a directory that cannot be opened ends all of it.
        let opened = match options.storage {
            Some(storage) => Some(Opened::open(storage).await?),
            None => None,
        };
        let (shared, bytes): (Arc<dyn TransferEngine>, _) =
            (Arc::new(engine.clone()), options.segment_bytes);
        let name = options.name.clone();
        let mount = Mount::start(Arc::clone(&shared), master.clone(), bytes, name).await?;
        let start = |opened| FileStorage::start(shared, master.clone(), opened, options.name);
        let storage = opened.map(start).transpose()?;
        Ok(Self {
            engine,
            master,
            mount,
            storage,
        })
    }

    /// The name under which others open its segment.
    pub fn segment_name(&self) -> &str {
        self.engine.segment_name()
    }

    /// The identity of its segment.
    pub fn segment_id(&self) -> SegmentId {
        self.mount.id()
    }

    /// The identity of the storage on its disk.
    pub fn storage_id(&self) -> Option<StorageId> {
        let identity = self.storage.as_ref().map(FileStorage::identity);
        identity.map(StorageId)
    }

    /// Where readers of its disk are answered.
    pub fn storage_endpoint(&self) -> Option<SocketAddr> {
        self.storage.as_ref().map(FileStorage::endpoint)
    }

    /// The master announces what is on its disk.
    pub fn storage_is_announced(&self) -> bool {
        self.storage.as_ref().is_some_and(FileStorage::is_announced)
    }

    /// What was done with its disk.
    pub fn storage_counts(&self) -> Option<HolderCounts> {
        self.storage.as_ref().map(FileStorage::counts)
    }

    /// The engine that moves its bytes.
    pub fn engine(&self) -> &TentEngine {
        &self.engine
    }

    /// A client in the same process, which reaches the node's own memory by plain copies, and puts
    /// there first.
    pub fn client(&self, operation_deadline: Duration) -> RealClient {
        let client = RealClient::over(
            Arc::new(self.engine.clone()),
            self.master.clone(),
            operation_deadline,
        );
        client.lend(self.mount.life());
        client
    }

    /// Takes the memory out of the store, so that nobody is sent here any more, and ends.
    ///
    /// # Errors
    ///
    /// Transfers could not be proven quiet within the budget.
    pub async fn shutdown(self, budget: Duration) -> Result<(), StoreError> {
        let end = Clock.now() + budget;
        if let Some(storage) = self.storage {
            storage.end(budget / 4).await;
        }
        self.mount.end(budget / 4).await;
        let quiet = self.engine.shutdown(end.since(Clock.now()) / 2).await;
        let left = end.since(Clock.now());
        self.master.goodbye(quiet.is_ok(), left).await;
        Ok(quiet?)
    }
}
