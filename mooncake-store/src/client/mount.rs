//! Keeps a segment mounted at the master, also when the master forgets it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mooncake_proto::master::{MountSegmentRequest, Segment, UnmountSegmentRequest};
use mooncake_tent::{Buffer, Memory, Permission, RegisterOptions, TransferEngine};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    Fault, Retry, StoreError,
    core::{MasterRequest, SegmentId, SegmentInfo},
    master::{MasterClient, SessionEvent, SessionEvents},
    time::Clock,
};

/// How long the master may take to mount.
const MOUNT_BUDGET: Duration = Duration::from_secs(5);
/// How long transfers of an old life may take to end.
const QUIET_BUDGET: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// A mounted segment. When it is dropped, nobody keeps it mounted any more.
#[derive(Debug)]
pub(crate) struct Mount {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    id: SegmentId,
    owner: String,
    engine: Arc<dyn TransferEngine>,
    master: MasterClient,
    buffer: Buffer,
    /// The life in which it is mounted, for clients in this process.
    life: watch::Sender<Option<SegmentInfo>>,
}

impl Mount {
    /// Allocates so many bytes, touches all of them, and mounts them.
    pub(crate) async fn start(
        engine: Arc<dyn TransferEngine>,
        master: MasterClient,
        bytes: u64,
        owner: String,
    ) -> Result<Self, StoreError> {
        let memory = tokio::task::spawn_blocking(move || {
            let memory = Memory::allocate(bytes as usize)?;
            memory.prefault()?;
            std::io::Result::Ok(memory)
        });
        let memory = memory.await.expect("allocation does not panic");
        let memory = memory.map_err(|source| mooncake_tent::Error::System {
            what: format!("a segment of {bytes} bytes"),
            source,
        })?;
        let permission = RegisterOptions::new(Permission::PeersReadWrite);
        let buffer = engine.register_memory(memory, permission).await?;
        let events = master.subscribe();
        let shared = Arc::new(Shared {
            id: SegmentId(rand::random()),
            owner,
            engine,
            master,
            buffer,
            life: watch::Sender::new(None),
        });
        shared.mount().await?;
        let task = tokio::spawn(Arc::clone(&shared).stay_mounted(events));
        Ok(Self { shared, task })
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.shared.id
    }

    /// Follows the segment through its lives; `None`: it is not mounted.
    pub(crate) fn life(&self) -> watch::Receiver<Option<SegmentInfo>> {
        self.shared.life.subscribe()
    }

    /// Unmounts, if the master can still be asked.
    pub(crate) async fn end(&self, budget: Duration) {
        self.task.abort();
        self.shared.life.send_replace(None);
        let request = MasterRequest::UnmountSegment(UnmountSegmentRequest {
            id: Bytes::copy_from_slice(&self.shared.id.0),
            ..UnmountSegmentRequest::default()
        });
        let asked = self.shared.master.call(request, Clock.now() + budget).await;
        if let Err(fault) = asked {
            tracing::warn!(%fault, "the master has not heard that this node ends");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    async fn mount(&self) -> Result<(), Fault> {
        let segment = Segment {
            id: Bytes::copy_from_slice(&self.id.0),
            name: self.engine.segment_name().to_owned(),
            owner_incarnation: self.engine.incarnation().get(),
            registration: self.buffer.id().0,
            generation: self.buffer.generation().0,
            length: self.buffer.len(),
            owner: self.owner.clone(),
        };
        let request = MasterRequest::MountSegment(MountSegmentRequest {
            segment: Some(segment),
        });
        self.master
            .call(request, Clock.now() + MOUNT_BUDGET)
            .await?;
        self.life.send_replace(Some(SegmentInfo {
            id: self.id,
            name: self.engine.segment_name().to_owned(),
            owner_incarnation: self.engine.incarnation().get(),
            registration: self.buffer.id().0,
            generation: self.buffer.generation().0,
            length: self.buffer.len(),
        }));
        Ok(())
    }

    /// A master that does not know us may hand our memory out anew: what the old life handed out
    /// has to answer *stale* before that.
    async fn mount_anew(&self) {
        self.life.send_replace(None);
        loop {
            let renewed = self
                .engine
                .renew_registration(&self.buffer, QUIET_BUDGET)
                .await;
            match renewed {
                Ok(generation) => {
                    tracing::info!(%generation, "the master does not know this node: mounting anew");
                    match self.mount().await {
                        Ok(()) => return,
                        Err(fault) if fault.retry == Retry::Never => {
                            tracing::error!(%fault, "the master refuses this node's segment");
                            return;
                        }
                        Err(fault) => tracing::warn!(%fault, "mounting failed; trying again"),
                    }
                }
                Err(error) => tracing::warn!(%error, "old transfers have not ended; waiting"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn stay_mounted(self: Arc<Self>, mut events: SessionEvents) {
        while let Some(event) = events.next().await {
            match event {
                SessionEvent::Connected { resumed: false, .. } => self.mount_anew().await,
                // Missing events may have been anything, this one included.
                SessionEvent::Missed(_) if !self.master.session().resumed => {
                    self.mount_anew().await;
                }
                _ => {}
            }
        }
    }
}
