//! The client of the Mooncake store: immutable blocks by key, in the pooled memory of many machines.
//!
//! # Layers
//!
//! [`Client`] is what applications hold, [`RealClient`] the one that talks to the store itself.
//! Inside it, [`core`] decides what a put or a get does next, without a clock and without I/O, and
//! a driver does what the core says over [`master`], our end of the session with the master, and a
//! transfer engine. [`Node`] lends memory that objects are kept in.
#![deny(unsafe_code)]
#![expect(
    clippy::result_large_err,
    reason = "a fault tells its whole story, and batches hold it by value beside their successes"
)]

mod client;
pub mod core;
mod error;
mod holder;
mod key;
pub mod master;
mod node;
mod time;

pub use client::{BlockingClient, Client, ClientOptions, GetInto, PutFrom, RealClient, Value};
pub use error::StoreError;
pub use holder::{HolderCounts, StorageOptions};
pub use key::Key;
pub use mooncake_proto::{Applied, Fault, Retry, status::ErrorCode};
pub use node::{Node, NodeOptions};
pub use time::{Clock, Time};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
