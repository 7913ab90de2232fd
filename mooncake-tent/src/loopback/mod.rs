//! The in-process link: copies between engines of one process, on the caller's thread.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::{
    error::{Error, Reason, Result, Stage, TransferError},
    identity::{PeerId, RegistrationId},
    memory::{Access, BufferTable, LocalBuffer, LocalSlice, checksum},
    metrics::Served,
    platform::after,
    selector::LinkDevices,
    transport::{
        Arrival, ArrivalBook, Attachment, BoxFuture, Capabilities, InstallContext, LinkGauges, Op,
        Outcome, Peer, Posting, SubBatch, TaskRef, Tasks, Transport,
    },
};

pub(crate) const NAME: &str = "in-process";

/// Engines that hold clones of one value reach each other.
///
/// Each engine has one of its own without being asked, for its own segment.
#[derive(Clone, Default)]
pub struct InProcess {
    engines: Arc<Mutex<FxHashMap<PeerId, Arc<End>>>>,
    installed: Arc<OnceLock<Installed>>,
    /// Shared by copies; whoever takes it alone has waited for all that had begun.
    copying: Arc<RwLock<()>>,
}

/// What an engine offers to the others.
struct End {
    buffers: Arc<BufferTable>,
    arrivals: Arc<ArrivalBook>,
    served: Arc<Served>,
}

/// Leaves the others when its engine is gone, whether that was shut down or not.
struct Installed {
    me: PeerId,
    tasks: Tasks,
    engines: Arc<Mutex<FxHashMap<PeerId, Arc<End>>>>,
}

impl Drop for Installed {
    fn drop(&mut self) {
        self.engines.lock().remove(&self.me);
    }
}

impl InProcess {
    /// A link that reaches nobody else yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same link for another engine.
    #[must_use]
    pub fn another_end(&self) -> Self {
        Self {
            engines: Arc::clone(&self.engines),
            installed: Arc::default(),
            copying: Arc::default(),
        }
    }

    /// Waits for copies that other threads have begun.
    async fn until_copied(&self, budget: Duration) -> Result<()> {
        if self.copying.try_write().is_some() {
            return Ok(());
        }
        let copying = Arc::clone(&self.copying);
        let waited = tokio::task::spawn_blocking(move || {
            let end = after(budget);
            copying.try_write_until(end).is_some()
        });
        match waited.await {
            Ok(true) => Ok(()),
            _ => Err(Error::Unreachable {
                segment: NAME.to_owned(),
                message: format!("a copy has not ended after {budget:?}"),
            }),
        }
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InProcess({} engines)", self.engines.lock().len())
    }
}

impl Transport for InProcess {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            within_process: true,
            // A task has ended before anyone can ask for that.
            cancellation: true,
            receipts: true,
            ..Capabilities::read_write()
        }
    }

    fn install(&self, engine: InstallContext) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let installed = Installed {
                me: engine.incarnation,
                tasks: engine.tasks,
                engines: Arc::clone(&self.engines),
            };
            self.installed.set(installed).map_err(|_| Error::Install {
                link: NAME,
                message: "it serves another engine already: give each `another_end`".to_owned(),
            })?;
            let end = End {
                buffers: engine.buffers,
                arrivals: engine.arrivals,
                served: engine.served,
            };
            self.engines
                .lock()
                .insert(engine.incarnation, Arc::new(end));
            Ok(())
        })
    }

    fn endpoint(&self) -> Option<String> {
        None
    }

    fn uninstall(&self, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if let Some(installed) = self.installed.get() {
                self.engines.lock().remove(&installed.me);
            }
            self.until_copied(budget).await
        })
    }

    fn add_memory_buffer<'a>(
        &'a self,
        _buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, Result<Attachment>> {
        Box::pin(async { Ok(Attachment::Attached) })
    }

    fn remove_memory_buffer(&self, _id: RegistrationId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn allocate_sub_batch(&self, _capacity: usize) -> Result<Box<dyn SubBatch>> {
        let installed = self.installed.get().ok_or_else(|| Error::Install {
            link: NAME,
            message: "it is not installed".to_owned(),
        })?;
        Ok(Box::new(InProcessSubBatch {
            link: self.clone(),
            tasks: Arc::clone(&installed.tasks),
        }))
    }

    fn devices(&self) -> LinkDevices<'_> {
        LinkDevices::NotNeeded
    }

    fn reaches(&self, peer: &Peer) -> bool {
        self.engines.lock().contains_key(&peer.id())
    }

    fn warm_up<'a>(&'a self, _peer: &'a Arc<Peer>, _budget: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn fence(&self, _peer: PeerId, budget: Duration) -> BoxFuture<'_, Result<()>> {
        // Copies to others are not worth books of their own: they end soon.
        Box::pin(self.until_copied(budget))
    }

    fn estimated_bandwidth(&self) -> Option<f64> {
        None
    }

    fn gauges(&self) -> LinkGauges {
        LinkGauges::default()
    }
}

#[derive(Debug)]
struct InProcessSubBatch {
    link: InProcess,
    tasks: Tasks,
}

impl InProcessSubBatch {
    fn run(&self, spec: &Posting) -> Outcome {
        let peer = spec.peer;
        let failed =
            |reason| Outcome::Failed(TransferError::unstarted(reason, Stage::Admit, Some(peer)));
        if spec.deadline.is_some_and(|end| end <= Instant::now()) {
            return Outcome::timed_out(Stage::Post, peer);
        }
        let Some(there) = self.link.engines.lock().get(&peer).cloned() else {
            return failed(Reason::OtherIncarnation);
        };
        let access = match spec.op {
            Op::Read => Access::Read,
            Op::Write => Access::Write,
        };
        let Some(end) = spec.offset.checked_add(spec.length) else {
            return failed(Reason::OutOfBounds);
        };
        let outcome =
            match there
                .buffers
                .admit(spec.registration, spec.generation, spec.offset..end, access)
            {
                Ok(remote) => self.apply(spec, &remote, &there),
                Err(refusal) => failed(refusal.into()),
            };
        match outcome.is_completed() {
            true => there.served.done(spec.op, spec.length),
            false => there.served.refused(spec.op),
        }
        outcome
    }

    fn apply(&self, spec: &Posting, remote: &LocalSlice, there: &End) -> Outcome {
        let _copying = self.link.copying.read();
        let done = match spec.receipt.is_none() {
            true => {
                copy(spec, remote);
                Ok(())
            }
            false => self.write_with_receipt(spec, remote, &there.arrivals),
        };
        match done {
            Ok(()) => Outcome::Completed { bytes: spec.length },
            Err(error) => Outcome::Failed(error),
        }
    }
}

impl InProcessSubBatch {
    fn write_with_receipt(
        &self,
        spec: &Posting,
        remote: &LocalSlice,
        arrivals: &Arc<ArrivalBook>,
    ) -> Result<(), TransferError> {
        let failed = |reason, stage| TransferError::unstarted(reason, stage, Some(spec.peer));
        let seat = match spec.receipt.op_id {
            None => None,
            Some(op_id) => {
                let seat = arrivals.reserve();
                let seat = seat.ok_or_else(|| failed(Reason::ArrivalsFull, Stage::Admit))?;
                Some((seat, op_id))
            }
        };
        let check = spec.receipt.checksum;
        let sent = check.then(|| checksum(&spec.local, 0));
        copy(spec, remote);
        let arrived = check.then(|| remote.checksum(0));
        if arrived != sent {
            return Err(failed(Reason::Corrupted, Stage::Move).underway(true));
        }
        if let (Some((seat, op_id)), Some(me)) = (seat, self.link.installed.get()) {
            seat.report(Arrival {
                checksum: arrived,
                ..Arrival::new(me.me, op_id, spec.length)
            });
        }
        Ok(())
    }
}

fn copy(spec: &Posting, remote: &LocalSlice) {
    let mut at = 0;
    for local in &spec.local {
        let remote = remote.part(at..at + local.len());
        match spec.op {
            Op::Read => local.piece().copy_from(remote.piece()),
            Op::Write => remote.piece().copy_from(local.piece()),
        }
        at += local.len();
    }
}

impl SubBatch for InProcessSubBatch {
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> Result<()> {
        for task in tasks {
            if let Some(spec) = self.tasks.posting(*task) {
                self.tasks.finish(*task, self.run(&spec), true);
            }
        }
        Ok(())
    }

    fn cancel_transfer_task(&self, _task: TaskRef) {
        // A task has ended before anyone can ask for that.
    }

    fn drive(&self, _budget: Duration) -> bool {
        false
    }

    fn hand_over(&self) {}
}
