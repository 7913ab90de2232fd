//! The control plane of Mooncake Store: which objects exist, where their bytes lie, who may read
//! and write them now.
//!
//! Bytes never come here. A writer asks for memory ([`PutStart`](state::PutStart)), writes to the
//! segments that the answer names, and says when it is done; a reader looks objects up and reads
//! from the segments directly, under a lease that keeps the bytes where they are.
//!
//! ```
//! use mooncake_master::{Master, MasterConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), mooncake_master::StartError> {
//! let config = MasterConfig {
//!     listen: "127.0.0.1:0".into(),
//!     admin_listen: "127.0.0.1:0".into(),
//!     ..MasterConfig::default()
//! };
//! let master = Master::start(config).await?;
//! println!("gRPC on {}, pages on {}", master.address(), master.admin_address());
//! master.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! [`Master`] (listeners, clock, end) → [`MasterService`] (gRPC: single calls and pipelined
//! sessions) and the admin pages (HTTP) → [`state`] (all decisions, in one deterministic machine) →
//! allocation and eviction. Each knows only those to its right. Everything below [`MasterService`]
//! is free of clocks, I/O and chance.
#![forbid(unsafe_code)]

mod admin;
mod alloc;
mod config;
mod evict;
mod list;
mod log;
mod mapped;
mod metrics;
mod server;
mod service;
mod slab;
pub mod state;
mod time;

pub use alloc::{AllocationStrategy, UnknownStrategy};
pub use config::{InvalidConfig, MasterConfig};
pub use log::LogError;
pub use server::{Master, RunningMaster, StartError};
pub use service::{MasterService, SessionStream, wire};
pub use time::Time;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
