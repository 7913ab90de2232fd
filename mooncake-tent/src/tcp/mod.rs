//! The TCP link: a data plane of its own beside the control service.
//!
//! An initiator keeps a few persistent connections, *lanes*, to each peer and pipelines requests
//! on them. A target serves each lane by one thread that checks every request against the
//! registrations, moves payload straight between socket and buffer, and answers in order: an
//! answer to a write says that its bytes have been applied.
//!
//! On the initiator's side whoever waits does the work: a submitter sends as much as the socket
//! takes, a blocking waiter receives. Only what nobody waits for is left to the link's own thread.

mod config;
mod dial;
mod fenced;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
mod inbox;
mod lane;
mod link;
mod outbox;
mod peers;
mod poller;
mod socket;
mod target;
mod tuner;
mod wire;

pub use config::TcpConfig;
pub use link::TcpTransport;
