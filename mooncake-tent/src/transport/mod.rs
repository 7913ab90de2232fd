//! The contract between the engine and its links.

mod batch;
mod link;
mod peer;
mod slab;
mod task;
mod terms;

pub use batch::BatchState;
pub use link::{
    Attachment, BoxFuture, Capabilities, InstallContext, LinkGauges, Opened, SubBatch, Transport,
};
pub use peer::Peer;
pub(crate) use slab::{FAILOVERS, RetryHook, Ticket, Turn};
pub use slab::{TaskSlab, Tasks};
pub(crate) use task::Origin;
pub use task::{Op, Outcome, Posting, TaskRef, TaskSpec};
pub use terms::Terms;
