//! The client of the Mooncake store: immutable blocks by key, in the pooled memory of many machines.
//!
//! # Layers
//!
//! [`core`] decides what a put or a get does next, without a clock and without I/O. [`master`] is
//! our end of the session with the master. A driver stands between them: it does what the core
//! says, and tells it what happened.
#![deny(unsafe_code)]
#![expect(
    clippy::result_large_err,
    reason = "a fault tells its whole story, and batches hold it by value beside their successes"
)]

pub mod core;
mod error;
mod key;
pub mod master;
mod time;

pub use error::StoreError;
pub use key::Key;
pub use mooncake_proto::{Applied, Fault, Retry, status::ErrorCode};
pub use time::{Clock, Time};
