//! What is sent and what is received.

use crate::{
    error::{Error, Result},
    identity::Incarnation,
};

/// A short message to another engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// What it is about, at most [`LONGEST_NAME`](Self::LONGEST_NAME) bytes.
    pub name: String,
    /// At most [`LONGEST_MESSAGE`](Self::LONGEST_MESSAGE) bytes.
    pub message: Vec<u8>,
}

impl Notification {
    /// Longest name, in bytes.
    pub const LONGEST_NAME: usize = 256;
    /// Longest message, in bytes.
    pub const LONGEST_MESSAGE: usize = 64 << 10;

    /// A notification; whether it is too long is found when it is sent.
    pub fn new(name: impl Into<String>, message: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            message: message.into(),
        }
    }

    /// # Errors
    ///
    /// It is too long.
    pub(crate) fn check(&self) -> Result<()> {
        let parts = [
            ("name", self.name.len(), Self::LONGEST_NAME),
            ("message", self.message.len(), Self::LONGEST_MESSAGE),
        ];
        match parts.into_iter().find(|(_, length, most)| length > most) {
            None => Ok(()),
            Some((what, length, most)) => Err(Error::Invalid(format!(
                "a notification's {what} of {length} bytes is longer than {most}"
            ))),
        }
    }
}

/// A notification, and who sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedNotification {
    /// The life of the process that sent it.
    pub sender: Incarnation,
    /// The name of the sender's segment, by which it can be answered; it says so itself.
    pub segment: String,
    /// What it sent.
    pub notification: Notification,
}

/// What became of notifications that came in, since the engine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotificationCounts {
    /// Put into the queue.
    pub accepted: u64,
    /// Repeats of one that was in the queue before.
    pub repeated: u64,
    /// Not taken because the queue was full; their senders were told.
    pub busy: u64,
    /// Not taken for any other reason: meant for another life, too late, too long.
    pub refused: u64,
}
