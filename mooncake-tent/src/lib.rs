//! Moves bytes between registered buffers of different processes over whatever links they share.
//!
//! A process registers memory, which makes up its *segment*; others open that segment by name and
//! submit batches of reads and writes to it. Each link checks what peers ask for against the
//! registrations, and a transfer is completed only when its bytes are where they should be.
//!
//! ```
//! use mooncake_tent::{
//!     Memory, Permission, RegisterOptions, RemoteRange, Request, TcpTransport, TentEngine,
//!     TransferEngine,
//! };
//! use std::time::Duration;
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let budget = Duration::from_secs(1);
//! // One process offers a kilobyte that others may read and write …
//! let owner = TentEngine::builder().transport(TcpTransport::default()).build().await?;
//! let options = RegisterOptions::new(Permission::PeersReadWrite);
//! let offered = owner.register_memory(Memory::allocate(1024)?, options).await?;
//!
//! // … another writes ten bytes into it.
//! let writer = TentEngine::builder().transport(TcpTransport::default()).build().await?;
//! let options = RegisterOptions::new(Permission::Local);
//! let source = Memory::from_vec(b"0123456789".to_vec())?;
//! let source = writer.register_memory(source, options).await?;
//! let segment = writer.open_segment(owner.segment_name(), budget).await?;
//! let at = RemoteRange::Address(offered.memory().address() + 7);
//! let mut batch = writer.allocate_batch(1);
//! writer.submit_transfer(&mut batch, vec![Request::write(source.all()?, &segment, at)])?;
//! batch.terminal().await;
//! assert!(batch.outcome(0).unwrap().is_completed());
//!
//! let mut written = [0; 10];
//! offered.memory().read_at(7, &mut written);
//! assert_eq!(&written, b"0123456789");
//! # Ok(()) }
//! ```
//!
//! # Layers
//!
//! [`TentEngine`] (what callers see) → [`selector`] (which link; pure) → [`transport`] (what a
//! link must implement) → [`tcp`], [`mod@file`], [`loopback`]. Each layer knows only those to its right.
//!
//! # Features
//!
//! `tcp` (on): the TCP link. `file` (on): the file link. `conformance`: the suite that every link must pass, and test doubles.
//! `fuzzing`: ways in for the fuzz targets of this workspace, which may change at any time.
#![deny(unsafe_code)]

#[cfg(feature = "conformance")]
pub mod conformance;
mod control;
mod engine;
mod error;
#[cfg(feature = "file")]
pub mod file;
mod identity;
#[cfg(all(test, mooncake_loom))]
mod loom_models;
pub mod loopback;
mod memory;
mod platform;
mod segment;
pub mod selector;
mod sync;
#[cfg(feature = "tcp")]
pub mod tcp;
pub mod transport;

pub use engine::{
    Batch, Buffer, Gauges, RegisterOptions, Request, TentEngine, TentEngineBuilder, TransferEngine,
};
pub use error::{Applied, Error, Progress, Reason, Result, Retry, Stage, TransferError};
#[cfg(feature = "file")]
pub use file::{FileConfig, FileSegment, FileTransport};
pub use identity::{Generation, Incarnation, PeerId, RegistrationId};
pub use loopback::InProcess;
pub use memory::{BufferLease, LocalBuffer, LocalSlice, Memory, Permission};
pub use platform::machine;
pub use segment::{BufferDescriptor, RemoteRange, Segment, SegmentDescriptor};
#[cfg(feature = "tcp")]
pub use tcp::{TcpConfig, TcpTransport};

#[cfg(all(doctest, feature = "tcp"))]
#[doc = include_str!("../README.md")]
struct Readme;
