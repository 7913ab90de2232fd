//! Our end of the session with the master: pipelined, and resumed when the stream breaks.
//!
//! [`MasterClient`] sends operations in the order in which they were submitted, as many in one
//! frame as are ready, and completes each when its answer arrives, in whatever order that is.
//!
//! # When the stream breaks
//!
//! It is opened again with the same identity. A master that still holds our state gets the
//! unanswered operations again under their numbers, and answers each once. If it lost our state,
//! unanswered mutations fail with `UnknownOutcome`, and reads are asked again. Every call ends at
//! its deadline whatever the stream does.

mod client;
mod events;
#[cfg(test)]
pub(crate) mod fake;
mod outbound;
mod session;
pub mod table;
#[cfg(test)]
mod tests;

pub use client::{ConnectOptions, Hello, MasterClient, SessionInfo};
pub use events::{SessionEvent, SessionEvents};
