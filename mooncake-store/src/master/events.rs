//! What the session tells its subscribers.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::broadcast::{self, error::RecvError};

use crate::core::Incarnation;

/// Something that holds for all operations of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEvent {
    /// A stream is open again. Not sent for the first one, which [`MasterClient::connect`] returns.
    ///
    /// [`MasterClient::connect`]: super::MasterClient::connect
    Connected {
        /// Of the master: grows with each of its lives.
        epoch: u64,
        /// The master still holds our state; otherwise segments must be mounted again.
        resumed: bool,
    },
    /// The master ended the session, for this reason; a new one is sought.
    Fenced(String),
    /// Cached facts about these objects are void: these incarnations and all before them.
    Invalidate(Vec<(Bytes, Incarnation)>),
    /// The stream broke: cached facts are suspect until there is a new one.
    Lost,
    /// The subscriber was too slow for this many events: cached facts are void.
    Missed(u64),
    /// Work waits for us at the master.
    Nudge,
    /// The master is short of space: what it has set aside for us and is not in use should go back.
    Reclaim,
}

/// A subscription.
#[derive(Debug)]
pub struct SessionEvents(pub(super) broadcast::Receiver<SessionEvent>);

impl SessionEvents {
    /// The next event; `None` once the client is closed.
    pub async fn next(&mut self) -> Option<SessionEvent> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(count)) => Some(SessionEvent::Missed(count)),
            Err(RecvError::Closed) => None,
        }
    }
}

/// `false`: it wants to hear no more.
type Listener = dyn Fn(&SessionEvent) -> bool + Send + Sync;

/// Who hears of events in the order of the stream.
#[derive(Default)]
pub(super) struct Listeners(Mutex<Vec<Arc<Listener>>>);

impl Listeners {
    pub(super) fn add(&self, listener: impl Fn(&SessionEvent) -> bool + Send + Sync + 'static) {
        self.0.lock().push(Arc::new(listener));
    }

    pub(super) fn tell(&self, event: &SessionEvent) {
        // They may ask the master, or add others.
        let all = self.0.lock().clone();
        for listener in all {
            if !listener(event) {
                self.0.lock().retain(|one| !Arc::ptr_eq(one, &listener));
            }
        }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} listeners", self.0.lock().len())
    }
}
