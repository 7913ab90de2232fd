//! Tells a peer what changes in our segment, for as long as it listens.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use mooncake_proto::{
    Fault, Retry,
    status::ErrorCode,
    tent::{GetSegmentRequest, GetSegmentResponse},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::Describe;

/// So many peers are told at once.
const MOST: usize = 4096;
/// What changes within this time goes into one message.
const TOGETHER: Duration = Duration::from_millis(2);

/// How long a peer may leave unread what it is told.
const UNREAD: Duration = Duration::from_secs(10);

/// What is told to one peer.
pub(crate) type Changes = ReceiverStream<Result<GetSegmentResponse, Status>>;

/// Room for the peers that are told.
#[derive(Debug)]
pub(super) struct Watchers {
    room: Arc<Semaphore>,
}

impl Default for Watchers {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(MOST)),
        }
    }
}

impl Watchers {
    /// Begins to tell a peer what it does not know by what it asks.
    pub(super) fn tell(
        &self,
        asked: &GetSegmentRequest,
        engine: &Arc<dyn Describe>,
        stopped: watch::Receiver<bool>,
    ) -> Result<Changes, Status> {
        let incarnation = engine.descriptor().incarnation().get();
        if asked.incarnation != incarnation {
            let message = format!("this is incarnation {incarnation:016x}");
            let never = Retry::Never;
            return Err(Fault::new(ErrorCode::SegmentNotFound, never, message).into());
        }
        let room = Arc::clone(&self.room).try_acquire_owned();
        let room = room.map_err(|_| {
            let message = format!("{MOST} peers are told already");
            let later = Retry::Later(Duration::from_secs(1));
            Fault::new(ErrorCode::UnavailableInCurrentStatus, later, message)
        })?;
        let versions = engine.versions();
        // Whoever does not read is told later, and all at once.
        let (told, changes) = mpsc::channel(1);
        let teller = Teller {
            engine: Arc::downgrade(engine),
            incarnation,
            versions,
            stopped,
            told,
            _room: room,
        };
        tokio::spawn(teller.tell(asked.version));
        Ok(ReceiverStream::new(changes))
    }
}

struct Teller {
    engine: Weak<dyn Describe>,
    incarnation: u64,
    versions: watch::Receiver<u64>,
    stopped: watch::Receiver<bool>,
    told: mpsc::Sender<Result<GetSegmentResponse, Status>>,
    _room: OwnedSemaphorePermit,
}

impl Teller {
    async fn tell(mut self, mut known: u64) {
        loop {
            self.versions.mark_unchanged();
            let Some(engine) = self.engine.upgrade() else {
                return;
            };
            let lacks = engine.since(self.incarnation, known);
            drop(engine);
            let step = async {
                if let Some(lacks) = lacks {
                    known = version(&lacks);
                    let told = self.told.send_timeout(Ok(lacks), UNREAD).await;
                    if told.is_err() {
                        // Another one may need its place; it can ask again.
                        return false;
                    }
                    tokio::time::sleep(TOGETHER).await;
                }
                tokio::select! {
                    changed = self.versions.changed() => changed.is_ok(),
                    () = self.told.closed() => false,
                }
            };
            tokio::select! {
                goes_on = step => if !goes_on { return },
                _ = self.stopped.wait_for(|stopped| *stopped) => return,
            }
        }
    }
}

fn version(answer: &GetSegmentResponse) -> u64 {
    let whole = answer.segment.as_ref().map(|segment| segment.version);
    let delta = answer.delta.as_ref().map(|delta| delta.version);
    whole.or(delta).unwrap_or_default()
}
