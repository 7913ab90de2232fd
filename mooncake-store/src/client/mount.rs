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
        let session = shared.master.session().session;
        shared.mount().await?;
        let task = tokio::spawn(Arc::clone(&shared).stay_mounted(events, session));
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
    /// has to answer *stale* before that. Returns the session that was asked, or an earlier one.
    async fn mount_anew(&self) -> u64 {
        self.life.send_replace(None);
        loop {
            let session = self.master.session().session;
            let renewed = self
                .engine
                .renew_registration(&self.buffer, QUIET_BUDGET)
                .await;
            match renewed {
                Ok(generation) => {
                    tracing::info!(%generation, "the master does not know this node: mounting anew");
                    match self.mount().await {
                        Ok(()) => return session,
                        Err(fault) if fault.retry == Retry::Never => {
                            tracing::error!(%fault, "the master refuses this node's segment");
                            return session;
                        }
                        Err(fault) => tracing::warn!(%fault, "mounting failed; trying again"),
                    }
                }
                Err(error) => tracing::warn!(%error, "old transfers have not ended; waiting"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// `session`: in which it is mounted.
    async fn stay_mounted(self: Arc<Self>, mut events: SessionEvents, mut session: u64) {
        while let Some(event) = events.next().await {
            // Missing events may have been anything, a new session included.
            let perhaps = matches!(
                event,
                SessionEvent::Connected { .. } | SessionEvent::Missed(_)
            );
            if perhaps && self.master.session().session != session {
                session = self.mount_anew().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mooncake_tent::TentEngine;

    use super::*;
    use crate::master::{
        ConnectOptions, Hello,
        fake::{Fake, Mood},
    };

    /// A segment that is mounted in the first session; nobody has looked at events yet.
    async fn mounted(address: &str) -> (Arc<Shared>, SessionEvents) {
        let hello = Hello {
            client_incarnation: 7,
            tenant: String::new(),
            name: "test".into(),
        };
        let master = MasterClient::connect(address, hello, ConnectOptions::default()).await;
        let master = master.unwrap();
        let engine = TentEngine::builder().build().await.unwrap();
        let permission = RegisterOptions::new(Permission::PeersReadWrite);
        let memory = Memory::allocate(4096).unwrap();
        let buffer = engine.register_memory(memory, permission).await.unwrap();
        let events = master.subscribe();
        let shared = Arc::new(Shared {
            id: SegmentId([1; 16]),
            owner: String::new(),
            engine: Arc::new(engine),
            master,
            buffer,
            life: watch::Sender::new(None),
        });
        shared.mount().await.unwrap();
        (shared, events)
    }

    /// The streams and generations in which it is mounted; when the stream with this number is there
    /// the events are looked at, and it must be mounted in it.
    async fn mounts(script: &[(Mood, bool)], until: usize) -> Vec<(usize, u32)> {
        let (fake, address) = Fake::serve(script).await;
        let (shared, events) = mounted(&address).await;
        while shared.master.session().epoch <= until as u64 {
            tokio::task::yield_now().await;
        }
        let mut life = shared.life.subscribe();
        let task = tokio::spawn(Arc::clone(&shared).stay_mounted(events, 1));
        fake.until(|seen| seen.mounts.iter().any(|(stream, _)| *stream == until))
            .await;
        let is_mounted = |life: &Option<SegmentInfo>| life.is_some();
        life.wait_for(is_mounted).await.unwrap();
        // Ends with the events, when it has looked at all of them.
        shared.master.close(MOUNT_BUDGET).await;
        let ended = tokio::time::timeout(MOUNT_BUDGET, task).await;
        ended.expect("nothing is left to be mounted").unwrap();
        let mounts = fake.seen.lock().mounts.clone();
        let last = mounts.last().map(|(_, generation)| *generation);
        assert_eq!(last, Some(shared.buffer.generation().0), "it was renewed");
        mounts
    }

    #[tokio::test]
    async fn missed_events_alone_do_not_cost_the_segment_its_life() {
        let script = [(Mood::Floods(1), false), (Mood::Kind, false)];
        // Once anew, and that for the new session.
        assert_eq!(mounts(&script, 1).await, [(0, 1), (1, 2)]);
    }

    #[tokio::test]
    async fn a_new_session_whose_beginning_was_missed_is_found_though_it_was_resumed_since() {
        let script = [
            (Mood::Floods(1), false),
            (Mood::Floods(0), false),
            (Mood::Kind, true),
        ];
        assert_eq!(mounts(&script, 2).await, [(0, 1), (2, 2)]);
    }
}
