//! Short messages from engine to engine, by whatever way, into one queue.
//!
//! They travel with the control service, which every two engines have, so that both sides agree on
//! the way whatever links they share. A notification is in the receiver's queue once, or not at all:
//! a sender repeats until it knows, and the receiver keeps for each sender the number of the last one
//! that it took. What is meant for one life of a process is taken by no other.

mod announcement;
mod notification;
mod notifier;
mod queue;

pub use announcement::{Announcement, Delivery};
pub use notification::{Notification, NotificationCounts, ReceivedNotification};
pub(crate) use notifier::Notifier;
pub(crate) use queue::NotificationQueue;
