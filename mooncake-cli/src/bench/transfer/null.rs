//! The engine alone: over a link that calls every task done and moves nothing.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mooncake_tent::transport::{
    Attachment, BoxFuture, Capabilities, InstallContext, LinkGauges, Outcome, Peer, SubBatch,
    TaskRef, Tasks, Transport,
};
use mooncake_tent::{
    Buffer, Error, LocalBuffer, PeerId, Permission, RegistrationId, RemoteRange, Request, Segment,
    TentEngine, TransferEngine,
};
use tokio::runtime::Handle;

use super::super::{Contender, Sample, own_cpu};
use super::case::{Case, Op};
use super::engine::{register, unusable};
use super::pace::{sample, together};
use crate::output::Failure;

const NAME: &str = "null";
/// Enough for whatever does not happen.
const PATIENCE: Duration = Duration::from_secs(30);
/// Nothing moves, so the memory may be small.
const REGION: u64 = 1 << 20;

/// Moves nothing.
#[derive(Debug, Default)]
struct NullTransport {
    tasks: OnceLock<Tasks>,
}

impl Transport for NullTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::read_write()
    }

    fn install(&self, engine: InstallContext) -> BoxFuture<'_, mooncake_tent::Result<()>> {
        Box::pin(async move {
            let taken = |_| Error::Install {
                link: NAME,
                message: "it serves another engine already".to_owned(),
            };
            self.tasks.set(Arc::clone(engine.tasks())).map_err(taken)
        })
    }

    fn endpoint(&self) -> Option<String> {
        Some("nowhere".to_owned())
    }

    fn uninstall(&self, _budget: Duration) -> BoxFuture<'_, mooncake_tent::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn add_memory_buffer<'a>(
        &'a self,
        _buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, mooncake_tent::Result<Attachment>> {
        Box::pin(async { Ok(Attachment::Attached) })
    }

    fn remove_memory_buffer(
        &self,
        _id: RegistrationId,
    ) -> BoxFuture<'_, mooncake_tent::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn allocate_sub_batch(&self, _capacity: usize) -> mooncake_tent::Result<Box<dyn SubBatch>> {
        let tasks = self.tasks.get().ok_or_else(|| Error::Install {
            link: NAME,
            message: "it is not installed".to_owned(),
        })?;
        Ok(Box::new(NullSubBatch(Arc::clone(tasks))))
    }

    fn reaches(&self, peer: &Peer) -> bool {
        peer.endpoint(NAME).is_some()
    }

    fn warm_up<'a>(
        &'a self,
        _peer: &'a Arc<Peer>,
        _budget: Duration,
    ) -> BoxFuture<'a, mooncake_tent::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn fence(&self, _peer: PeerId, _budget: Duration) -> BoxFuture<'_, mooncake_tent::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn estimated_bandwidth(&self) -> Option<f64> {
        None
    }

    fn gauges(&self) -> LinkGauges {
        LinkGauges::default()
    }
}

#[derive(Debug)]
struct NullSubBatch(Tasks);

impl SubBatch for NullSubBatch {
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> mooncake_tent::Result<()> {
        for task in tasks {
            // As any link, it asks what there is to do.
            if let Some(posting) = self.0.posting(*task) {
                let bytes = posting.length;
                self.0.finish(*task, Outcome::Completed { bytes }, true);
            }
        }
        Ok(())
    }

    fn cancel_transfer_task(&self, _task: TaskRef) {}

    fn drive(&self, _budget: Duration) -> bool {
        false
    }

    fn hand_over(&self) {}

    fn recycle(&mut self) -> bool {
        true
    }
}

/// An engine over the null link, and a segment that it reaches by it.
#[derive(Debug)]
struct Alone {
    engine: TentEngine,
    far: Buffer,
    /// Whose segment it is.
    owner: TentEngine,
}

impl Alone {
    async fn start() -> Result<Self, Failure> {
        let engine = || TentEngine::builder().transport(NullTransport::default());
        let owner = engine().build().await.map_err(unusable)?;
        let engine = engine().without_control().build().await;
        let engine = engine.map_err(unusable)?;
        let far = register(&owner, REGION, Permission::PeersReadWrite).await?;
        Ok(Self { engine, far, owner })
    }

    /// As a caller of its own.
    async fn open(&self) -> Result<Segment, Failure> {
        let name = self.owner.segment_name();
        let segment = self.engine.open_segment(name, PATIENCE).await;
        segment.map_err(unusable)
    }

    fn transfer(&self, case: &Case, (segment, buffer): &(Segment, Buffer)) -> Result<(), Failure> {
        let request = |i: u64| {
            let at = i * case.block % (REGION - case.block + 1);
            let local = buffer.slice(at..at + case.block)?;
            let place = RemoteRange::Address(self.far.memory().address() + at);
            Ok(match case.op {
                Op::Write => Request::write(local, segment, place),
                _ => Request::read(local, segment, place),
            })
        };
        let requests: mooncake_tent::Result<Vec<_>> = (0..case.batch).map(request).collect();
        let mut batch = self.engine.allocate_batch(case.batch as usize);
        let requests = requests.map_err(unusable)?;
        let submitted = self.engine.submit_transfer(&mut batch, requests);
        submitted.map_err(unusable)?;
        match batch.is_terminal() {
            true => Ok(()),
            false => Err(Failure::new("a task without bytes has not ended")),
        }
    }
}

/// Callers of one engine, or of one each.
#[derive(Debug)]
pub(super) struct EngineAlone {
    case: Case,
    engines: Vec<Alone>,
    callers: Vec<usize>,
    /// Of each caller its own, so that those of one engine share nothing else.
    ends: Vec<(Segment, Buffer)>,
}

impl EngineAlone {
    /// All callers of `case` on one engine.
    pub(super) fn shared(runtime: &Handle, case: &Case) -> Result<Self, Failure> {
        Self::with(runtime, case, 1)
    }

    /// An engine for each caller of `case`.
    pub(super) fn each(runtime: &Handle, case: &Case) -> Result<Self, Failure> {
        Self::with(runtime, case, case.threads as usize)
    }

    fn with(runtime: &Handle, case: &Case, engines: usize) -> Result<Self, Failure> {
        if case.block > REGION {
            return Err(case.too_large(REGION));
        }
        let threads = case.threads as usize;
        runtime.block_on(async {
            let mut alone = Vec::with_capacity(engines);
            for _ in 0..engines {
                alone.push(Alone::start().await?);
            }
            let mut ends = Vec::with_capacity(threads);
            for number in 0..threads {
                let alone = &alone[number % engines];
                let buffer = register(&alone.engine, REGION, Permission::Local).await?;
                ends.push((alone.open().await?, buffer));
            }
            Ok(Self {
                case: *case,
                engines: alone,
                callers: (0..threads).collect(),
                ends,
            })
        })
    }
}

impl Contender for EngineAlone {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let Self {
            case,
            engines,
            callers,
            ends,
        } = self;
        let (case, pace, cpu) = (*case, case.pace(), own_cpu());
        let (tallies, wall) = together(callers, |caller| {
            let (engine, ends) = (&engines[*caller % engines.len()], &ends[*caller]);
            pace.run(budget, |_| engine.transfer(&case, ends))
        })?;
        let tallies = tallies.iter().map(|tally| (tally, case.batch));
        Ok(sample(tallies, case.block, wall, own_cpu() - cpu))
    }
}
