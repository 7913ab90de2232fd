//! Keeps a segment mounted at the master, also when the master forgets it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mooncake_proto::master::{MountSegmentRequest, Segment, UnmountSegmentRequest};
use mooncake_tent::{Buffer, TransferEngine};
use tokio::task::JoinHandle;

use crate::{
    Fault, Retry, StoreError,
    core::{MasterRequest, SegmentId},
    master::{MasterClient, SessionEvent, SessionEvents},
    time::Clock,
};

/// How long the master may take to mount.
const MOUNT_BUDGET: Duration = Duration::from_secs(5);
/// How long transfers of an old life may take to end.
const QUIET_BUDGET: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// A mounted segment.
#[derive(Debug)]
pub(super) struct Mount {
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
}

impl Mount {
    pub(super) async fn start(
        engine: Arc<dyn TransferEngine>,
        master: MasterClient,
        buffer: Buffer,
        owner: String,
    ) -> Result<Self, StoreError> {
        let events = master.subscribe();
        let shared = Arc::new(Shared {
            id: SegmentId(rand::random()),
            owner,
            engine,
            master,
            buffer,
        });
        shared.mount().await?;
        let task = tokio::spawn(Arc::clone(&shared).stay_mounted(events));
        Ok(Self { shared, task })
    }

    pub(super) fn id(&self) -> SegmentId {
        self.shared.id
    }

    /// Unmounts, if the master can still be asked.
    pub(super) async fn end(self, budget: Duration) {
        self.task.abort();
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
        Ok(())
    }

    /// A master that does not know us may hand our memory out anew: what the old life handed out
    /// has to answer *stale* before that.
    async fn mount_anew(&self) {
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
