//! Ours: a transfer engine, and a segment that it reads and writes.

use std::sync::Arc;
use std::time::Duration;

use mooncake_tent::{
    Batch, Buffer, CmaTransport, FileSegment, FileTransport, HostConfig, LocalSlice, Memory,
    Permission, RegisterOptions, RemoteRange, Request, Segment, ShmTransport, TcpConfig,
    TcpTransport, TentEngine, TentEngineBuilder, TransferEngine,
};
use tokio::runtime::Handle;

use super::super::{Contender, Sample, own_cpu};
use super::Conditions;
use super::case::{Case, Op, Transport};
use super::contents::{check_and_wipe, fill, wipe};
use super::file::BenchFile;
use super::pace::{sample, together};
use super::peer::{Ask, Peer};
use super::walk::{Walk, Walked};
use crate::output::Failure;

/// How long something may take that takes no time where all is well.
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine with memory of its own, and memory that it reaches.
#[derive(Debug)]
pub(super) struct Engine<'a> {
    engine: TentEngine,
    segment: Segment,
    /// Where the segment's memory starts.
    address: u64,
    local: Buffer,
    far: Far<'a>,
    conditions: Conditions,
    /// What memory is prepared for.
    prepared: Option<Op>,
}

/// Who has the memory that is reached.
#[derive(Debug)]
enum Far<'a> {
    File(Arc<BenchFile>),
    Ourselves(Buffer),
    Peer(&'a Peer),
}

impl<'a> Engine<'a> {
    /// An engine that reaches the segment of `peer` over TCP.
    pub(super) fn tcp(
        runtime: &Handle,
        peer: &'a Peer,
        poll: bool,
        conditions: &Conditions,
    ) -> Result<Self, Failure> {
        let mut config = TcpConfig::default();
        config.listen = None;
        config.lanes_per_peer = conditions.lanes as usize;
        if poll {
            config.spin = PATIENCE;
        }
        let builder = TentEngine::builder().transport(TcpTransport::new(config));
        Self::to(runtime, builder, peer, conditions)
    }

    /// An engine that reaches the segment of `peer`, a process of this host, over the link of `case`.
    pub(super) fn on_host(
        runtime: &Handle,
        peer: &'a Peer,
        case: &Case,
        conditions: &Conditions,
    ) -> Result<Self, Failure> {
        let mut config = HostConfig::default();
        if case.poll {
            config.spin = PATIENCE;
        }
        let builder = TentEngine::builder();
        let builder = match case.transport {
            Transport::Cma => builder.transport(CmaTransport::new(config)),
            _ => builder.transport(ShmTransport::new(config)),
        };
        Self::to(runtime, builder, peer, conditions)
    }

    fn to(
        runtime: &Handle,
        builder: TentEngineBuilder,
        peer: &'a Peer,
        conditions: &Conditions,
    ) -> Result<Self, Failure> {
        let window = conditions.window;
        let opened = async {
            let engine = builder.without_control().build().await.map_err(unusable)?;
            let local = register(&engine, window, Permission::Local).await?;
            let segment = engine.open_segment(peer.address(), PATIENCE).await;
            let segment = segment.map_err(unusable)?;
            let warm = engine.warm_up(&segment, PATIENCE).await;
            warm.map_err(unusable)?;
            Ok::<_, Failure>((engine, local, segment))
        };
        let (engine, local, segment) = runtime.block_on(opened)?;
        let address = segment.descriptor().buffers().next().map(|it| it.address);
        let missing = || Failure::new("the target offers no memory");
        Ok(Self {
            address: address.ok_or_else(missing)?,
            engine,
            segment,
            local,
            far: Far::Peer(peer),
            conditions: *conditions,
            prepared: None,
        })
    }

    /// An engine that reaches its own segment.
    pub(super) fn in_process(runtime: &Handle, conditions: &Conditions) -> Result<Self, Failure> {
        let window = conditions.window;
        let opened = async {
            let engine = TentEngine::builder().without_control().build().await;
            let engine = engine.map_err(unusable)?;
            let local = register(&engine, window, Permission::Local).await?;
            let far = register(&engine, window, Permission::PeersReadWrite).await?;
            let segment = engine.open_segment(engine.segment_name(), PATIENCE).await;
            let segment = segment.map_err(unusable)?;
            Ok::<_, Failure>((engine, local, far, segment))
        };
        let (engine, local, far, segment) = runtime.block_on(opened)?;
        Ok(Self {
            address: far.memory().address(),
            engine,
            segment,
            local,
            far: Far::Ourselves(far),
            conditions: *conditions,
            prepared: None,
        })
    }

    /// An engine that reads and writes a file past the page cache.
    pub(super) fn file(
        runtime: &Handle,
        file: &Arc<BenchFile>,
        conditions: &Conditions,
    ) -> Result<Self, Failure> {
        let window = conditions.window;
        let opened = async {
            let engine = TentEngine::builder()
                .without_control()
                .transport(FileTransport::default())
                .build()
                .await
                .map_err(unusable)?;
            let local = register(&engine, window, Permission::Local).await?;
            let name = FileSegment::new(file.path()).writable().direct().name();
            let segment = engine.open_segment(&name, PATIENCE).await;
            Ok::<_, Failure>((engine, local, segment.map_err(unusable)?))
        };
        let (engine, local, segment) = runtime.block_on(opened)?;
        Ok(Self {
            address: 0,
            engine,
            segment,
            local,
            far: Far::File(Arc::clone(file)),
            conditions: *conditions,
            prepared: None,
        })
    }

    /// Where the memory that is reached begins in its process.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// All of our own memory.
    pub(super) fn memory(&self) -> Result<LocalSlice, Failure> {
        self.local.all().map_err(unusable)
    }

    /// Fills the memory that `op` takes blocks from, and wipes where they arrive.
    pub(super) fn prepare(&mut self, op: Op) -> Result<(), Failure> {
        if self.prepared == Some(op) {
            return Ok(());
        }
        let window = self.conditions.window;
        let far = match op {
            Op::Write => Ask::Wipe,
            _ => Ask::Fill,
        };
        prepare(self.local.memory(), op == Op::Write, window);
        match &self.far {
            Far::File(file) => file.prepare(op != Op::Write, self.conditions.spoil.is_some())?,
            Far::Peer(peer) => peer.ask(&far)?,
            Far::Ourselves(buffer) => prepare(buffer.memory(), op != Op::Write, window),
        }
        self.prepared = Some(op);
        Ok(())
    }

    /// Somebody else uses its target.
    pub(super) fn forget(&mut self) {
        self.prepared = None;
    }

    /// As many callers as `case` has, after [`prepare`](Self::prepare).
    pub(super) fn callers(&self, case: &Case) -> Result<Callers<'_>, Failure> {
        let region = self.conditions.reach(case) / case.threads;
        let walk = |number| {
            Walk::new(number * region, region, case.block, case.batch)
                .ok_or_else(|| case.too_large(self.conditions.window))
        };
        Ok(Callers {
            engine: self,
            case: *case,
            walks: (0..case.threads).map(walk).collect::<Result<_, _>>()?,
        })
    }

    fn cpu(&self) -> Result<Duration, Failure> {
        match self.far {
            Far::Peer(peer) => Ok(own_cpu() + peer.cpu()?),
            Far::File(_) | Far::Ourselves(_) => Ok(own_cpu()),
        }
    }

    fn check(&self, op: Op, all: Vec<Walked>) -> Result<(), Failure> {
        let (mut memory, whose) = match (op, &self.far) {
            (Op::Write, Far::Peer(peer)) => return peer.ask(&Ask::Check(all)),
            (Op::Write, Far::File(file)) => return file.check(all, "the file"),
            (Op::Write, Far::Ourselves(buffer)) => (buffer.memory(), "the target's memory"),
            _ => (self.local.memory(), "what was read"),
        };
        all.into_iter()
            .try_for_each(|walked| check_and_wipe(&mut memory, walked, whose))
    }

    fn transfer(&self, case: &Case, walk: Walk, number: u64) -> Result<(), Failure> {
        let first = number * case.batch;
        let requests = (first..first + case.batch).map(|i| self.request(case.op, walk, i));
        let requests = requests
            .collect::<mooncake_tent::Result<Vec<_>>>()
            .map_err(unusable)?;
        let mut batch = self.engine.allocate_batch(requests.len());
        self.engine
            .submit_transfer(&mut batch, requests)
            .map_err(unusable)?;
        batch.wait(PATIENCE);
        completed(&batch)
    }

    fn request(&self, op: Op, walk: Walk, i: u64) -> mooncake_tent::Result<Request> {
        let (local, remote) = match op {
            Op::Write => (walk.source(i), walk.dest(i)),
            _ => (walk.dest(i), walk.source(i)),
        };
        let local = self.local.slice(local..local + walk.block())?;
        let remote = RemoteRange::Address(self.address + remote);
        Ok(match op {
            Op::Write => Request::write(local, &self.segment, remote),
            _ => Request::read(local, &self.segment, remote),
        })
    }
}

fn prepare(mut memory: &Memory, is_source: bool, len: u64) {
    if is_source {
        fill(memory, len);
    } else {
        wipe(&mut memory, 0, len);
    }
}

/// Registers `window` bytes with an engine.
pub(super) async fn register(
    engine: &TentEngine,
    window: u64,
    permission: Permission,
) -> Result<Buffer, Failure> {
    let memory = Memory::allocate(window as usize).map_err(|error| {
        Failure::new(format!("there is no memory of {window} bytes")).because(error)
    })?;
    let options = RegisterOptions::new(permission);
    let registered = engine.register_memory(memory, options).await;
    registered.map_err(unusable)
}

pub(super) fn unusable(error: mooncake_tent::Error) -> Failure {
    Failure::new("the transfer engine cannot be used").because(error)
}

fn completed(batch: &Batch) -> Result<(), Failure> {
    for index in 0..batch.len() {
        match batch.outcome(index) {
            Some(outcome) if outcome.is_completed() => {}
            other => {
                let what = format!("transfer {index} of a batch did not complete: {other:?}");
                return Err(Failure::new(what));
            }
        }
    }
    Ok(())
}

/// Threads that call an engine.
#[derive(Debug)]
pub(super) struct Callers<'a> {
    engine: &'a Engine<'a>,
    case: Case,
    walks: Vec<Walk>,
}

impl Contender for Callers<'_> {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let Self {
            engine,
            case,
            walks,
        } = self;
        let pace = case.pace();
        let cpu = engine.cpu()?;
        let (tallies, wall) = together(walks, |walk| {
            pace.run(budget, |number| engine.transfer(case, *walk, number))
        })?;
        let cpu = engine.cpu()? - cpu;
        if engine.conditions.verify {
            let walked = walks.iter().zip(&tallies).map(|(walk, tally)| Walked {
                walk: *walk,
                done: tally.batches * case.batch,
            });
            engine.check(case.op, walked.collect())?;
        }
        let tallies = tallies.iter().map(|tally| (tally, case.batch));
        Ok(sample(tallies, case.block, wall, cpu))
    }
}
