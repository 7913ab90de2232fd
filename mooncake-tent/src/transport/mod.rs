//! The contract between the engine and its links.

mod arrivals;
mod batch;
mod free_cells;
mod link;
mod peer;
mod rest;
mod slab;
mod task;
mod terms;

pub use arrivals::{Arrival, ArrivalBook, ArrivalSeat};
pub use batch::BatchState;
pub use link::{
    Attachment, BoxFuture, Capabilities, Claim, InstallContext, LinkGauges, Opened, SubBatch,
    Transport,
};
pub use peer::Peer;
pub(crate) use rest::{NextPart, Rest, RestTerms};
pub(crate) use slab::{FAILOVERS, RetryHook, Ticket, Turn};
pub use slab::{TaskSlab, Tasks};
pub(crate) use task::Origin;
pub use task::{Op, Outcome, Posting, Receipt, TaskRef, TaskSpec};
pub use terms::Terms;
