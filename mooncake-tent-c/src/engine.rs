//! An engine with what C knows of it.

#![expect(unsafe_code, reason = "memory of the caller's is registered")]

use std::{
    ffi::c_int,
    net::{SocketAddr, ToSocketAddrs},
    ptr::NonNull,
    sync::Arc,
    time::Duration,
};

use mooncake_tent::{
    CmaTransport, FileTransport, Hint, HostConfig, Memory, MemoryOptions as Pages, Notification,
    Priority, RegisterOptions, RemoteRange, Request, ShmTransport, TcpConfig, TcpTransport,
    TentEngine, TransferEngine, selector::Policies,
};
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use crate::{
    batches::Batches,
    buffers::{Buffers, Entry, Leave, wait_until_untouched},
    failure::{Failure, Result},
    raw::lend,
    segments::Segments,
    settings::Settings,
    structures::{
        self, BufferInfo, MemoryOptions, NotifiRecord, SegmentInfo, TYPE_FILE, TYPE_MEMORY,
    },
};

/// For what takes no time where all is well.
const PATIENCE: Duration = Duration::from_secs(10);

/// `tent_engine_t` points to one.
#[derive(Debug)]
pub struct CEngine {
    runtime: Runtime,
    engine: TentEngine,
    address: SocketAddr,
    segments: Segments,
    buffers: Buffers,
    /// Held while memory is registered, so that nobody registers the same meanwhile.
    registering: Mutex<()>,
    pub(crate) batches: Batches,
}

impl CEngine {
    pub(crate) fn create() -> Result<Self> {
        let settings = Settings::staged()?;
        for key in &settings.ignored {
            tracing::warn!(key, "a setting means nothing here and is ignored");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("tent")
            .enable_all()
            .build()
            .map_err(|error| Failure::new(format!("no runtime starts: {error}")))?;
        let engine = runtime.block_on(start(&settings))?;
        let own = runtime.block_on(engine.open_segment("", PATIENCE))?;
        let address = engine.segment_name().to_socket_addrs();
        let address = address.ok().and_then(|mut all| all.next());
        let no_address = || Failure::new("the engine has no address");
        Ok(Self {
            address: address.ok_or_else(no_address)?,
            runtime,
            engine,
            segments: Segments::new(own),
            buffers: Buffers::default(),
            registering: Mutex::default(),
            batches: Batches::default(),
        })
    }

    pub(crate) fn destroy(self) -> Result<()> {
        self.batches.clear();
        let stopped = self.runtime.block_on(self.engine.shutdown(PATIENCE));
        for life in self.buffers.clear() {
            if !wait_until_untouched(&life.touched, PATIENCE) {
                let address = life.address;
                let why = format!("the memory at {address:#x} may still be touched: it must stay");
                return Err(Failure::new(why));
            }
        }
        Ok(stopped?)
    }

    pub(crate) fn segment_name(&self) -> &str {
        self.engine.segment_name()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn open_segment(&self, name: &str) -> Result<u64> {
        let opened = self
            .runtime
            .block_on(self.engine.open_segment(name, PATIENCE));
        Ok(self.segments.add(opened?))
    }

    pub(crate) fn close_segment(&self, id: u64) -> Result<()> {
        if let Some(last) = self.segments.remove(id)? {
            self.engine.close_segment(&last);
        }
        Ok(())
    }

    pub(crate) fn segment_info(&self, id: u64) -> Result<SegmentInfo> {
        let segment = self.segments.get(id)?;
        let descriptor = segment.descriptor();
        let buffers = descriptor.buffers();
        let buffers: Vec<_> = buffers
            .map(|buffer| BufferInfo::new(buffer.address, buffer.length, &buffer.location))
            .collect();
        let count = c_int::try_from(buffers.len());
        Ok(SegmentInfo {
            kind: match segment.name().starts_with("file:") {
                true => TYPE_FILE,
                false => TYPE_MEMORY,
            },
            num_buffers: count.map_err(|_| Failure::new("the segment has too many buffers"))?,
            buffers: lend(buffers),
        })
    }

    pub(crate) fn allocate(&self, size: usize, options: &MemoryOptions) -> Result<u64> {
        let (location, permission) = (options.location()?, options.permission()?);
        let mut pages = Pages::new(size);
        if let Some(node) = node(&location)? {
            pages = pages.numa_node(node);
        }
        let memory = Memory::allocate_with(&pages)
            .map_err(|error| Failure::new(format!("no memory of {size} bytes: {error}")))?;
        let address = memory.address();
        let touched = Arc::new(());
        let entry = Entry {
            size: size as u64,
            permission,
            touched: Arc::downgrade(&touched),
            buffer: Some(self.register_memory(memory, options)?),
            owned: true,
            count: 1,
        };
        self.buffers.add(address, entry);
        Ok(address)
    }

    pub(crate) fn register(
        &self,
        address: *mut u8,
        size: usize,
        options: &MemoryOptions,
    ) -> Result<()> {
        let permission = options.permission()?;
        let base = NonNull::new(address).ok_or_else(|| crate::raw::null("the address"))?;
        if size == 0 {
            return Err(Failure::new("registered memory has at least one byte"));
        }
        let address = base.as_ptr() as u64;
        let _registering = self.registering.lock();
        if self.buffers.again(address, size as u64, permission)? {
            return Ok(());
        }
        let touched = Arc::new(());
        let weak = Arc::downgrade(&touched);
        // SAFETY: the header asks the caller to keep the memory until it is unregistered, which ends
        // only when nothing touches it; C has no references that claim it for themselves.
        let memory = unsafe { Memory::foreign(base, size, touched) };
        let entry = Entry {
            size: size as u64,
            permission,
            buffer: Some(self.register_memory(memory, options)?),
            touched: weak,
            owned: false,
            count: 1,
        };
        self.buffers.add(address, entry);
        Ok(())
    }

    fn register_memory(
        &self,
        memory: Memory,
        options: &MemoryOptions,
    ) -> Result<mooncake_tent::Buffer> {
        let mut how = RegisterOptions::new(options.permission()?);
        how.location = options.location()?;
        let registered = self.engine.register_memory(memory, how);
        Ok(self.runtime.block_on(registered)?)
    }

    /// Ends when nothing touches it any more.
    pub(crate) fn leave(&self, address: u64, size: u64, owned: bool) -> Result<()> {
        let (life, ended) = match self.buffers.leave(address, size, owned)? {
            Leave::Stays => return Ok(()),
            Leave::Unregister(buffer, life) => {
                let left = self.engine.unregister_memory(buffer, PATIENCE);
                (life, self.runtime.block_on(left).map_err(Failure::from))
            }
            Leave::Wait(life) => match wait_until_untouched(&life.touched, PATIENCE) {
                true => (life, Ok(())),
                false => (life, Err(Failure::new("transfers still hold the memory"))),
            },
        };
        // What we allocated we free when it is quiet: the caller has nothing more to do with it.
        if ended.is_ok() || owned {
            self.buffers.forget(&life);
        }
        ended
    }

    pub(crate) fn allocate_batch(&self, capacity: usize) -> u64 {
        self.batches.add(self.engine.allocate_batch(capacity))
    }

    pub(crate) fn submit(&self, batch: u64, requests: &[structures::Request]) -> Result<()> {
        let requests = self.requests(requests)?;
        let batch = self.batches.get(batch)?;
        let submitted = self.engine.submit_transfer(&mut batch.write(), requests);
        Ok(submitted?)
    }

    /// Tells the targets once all of it has completed.
    pub(crate) fn submit_and_notify(
        &self,
        batch: u64,
        requests: &[structures::Request],
        notification: Notification,
    ) -> Result<()> {
        let requests = self.requests(requests)?;
        let batch = self.batches.get(batch)?;
        let mut batch = batch.write();
        let submitted = self
            .engine
            .submit_transfer_and_notify(&mut batch, requests, notification);
        let announced = submitted?;
        self.runtime.spawn(async move {
            for delivery in announced.deliveries().await {
                if let Err(error) = delivery.result {
                    let segment = delivery.segment.name();
                    tracing::warn!(segment, %error, "a notification was not delivered");
                }
            }
        });
        Ok(())
    }

    pub(crate) fn notify(&self, segment: u64, notification: Notification) -> Result<()> {
        let segment = self.segments.get(segment)?;
        let sent = self
            .engine
            .send_notification(&segment, notification, PATIENCE);
        Ok(self.runtime.block_on(sent)?)
    }

    /// All that have come, each with the number of its sender's segment, or else 0.
    pub(crate) fn notifications(&self) -> Vec<NotifiRecord> {
        let come = self.engine.receive_notifications().into_iter();
        come.map(|come| {
            let sender = self.segments.find(&come.segment);
            NotifiRecord::new(sender.unwrap_or(0), &come.notification)
        })
        .collect()
    }

    fn requests(&self, requests: &[structures::Request]) -> Result<Vec<Request>> {
        requests
            .iter()
            .map(|request| self.request(request))
            .collect()
    }

    fn request(&self, request: &structures::Request) -> Result<Request> {
        let segment = self.segments.get(request.target_id)?;
        let local = self.buffers.slice(request.source as u64, request.length)?;
        let place = RemoteRange::Address(request.target_offset);
        let wanted = match request.opcode {
            0 => Request::read(local, &segment, place),
            1 => Request::write(local, &segment, place),
            other => return Err(Failure::new(format!("there is no opcode {other}"))),
        };
        let wanted = match structures::priority(request.priority)? {
            // What a request is that says nothing.
            Priority::High => wanted,
            other => wanted.priority(other),
        };
        Ok(match structures::transport(request.transport_hint)? {
            Some(link) => wanted.hint(Hint::soft(link)),
            None => wanted,
        })
    }
}

async fn start(settings: &Settings) -> Result<TentEngine> {
    let Settings { host, port, .. } = settings;
    let listen = tokio::net::lookup_host((host.as_str(), *port)).await;
    let listen = listen
        .ok()
        .and_then(|mut all| all.next())
        .ok_or_else(|| Failure::new(format!("rpc_server_hostname: {host} has no address")))?;
    let mut builder = TentEngine::builder().listen(listen);
    if let Some(policies) = &settings.policies {
        let policies = Policies::from_json(policies)
            .map_err(|error| Failure::new(format!("policy: {error}")))?;
        builder = builder.policies(policies);
    }
    if settings.shm {
        builder = builder.transport_if_possible(ShmTransport::new(HostConfig::default()));
    }
    if settings.cma {
        builder = builder.transport_if_possible(CmaTransport::new(HostConfig::default()));
    }
    if settings.tcp {
        let mut config = TcpConfig::default();
        config.listen = Some(SocketAddr::new(listen.ip(), 0));
        builder = builder.transport(TcpTransport::new(config));
    }
    if settings.file {
        builder = builder.transport(FileTransport::default());
    }
    Ok(builder.build().await?)
}

/// The NUMA node of "cpu:N"; `None`: any.
fn node(location: &str) -> Result<Option<u32>> {
    match location {
        "*" | "cpu" => Ok(None),
        other => other
            .strip_prefix("cpu:")
            .and_then(|node| node.parse().ok())
            .map(Some)
            .ok_or_else(|| Failure::new(format!("no memory can be allocated in {other:?}"))),
    }
}
