//! What the session tells its subscribers.

use bytes::Bytes;
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
