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
//! [`TentEngine`] (what callers see) → [`admission`] (when) and [`selector`] (over which link; both
//! pure) → [`transport`] (what a link must implement) → [`tcp`], [`shm`], [`cma`], [`mod@file`], [`loopback`], [`staging`]. Each layer knows only
//! those to its right.
//!
//! A link over several devices shares its slices among them with [`spray`], learns with [`rail`] which
//! of them work, and times slices with a [`TimerWheel`]. These know none of the layers.
//!
//! # Features
//!
//! `tcp` (on): the TCP link. `host` (on): the links between processes of one host. `file` (on): the
//! file link. `json`: policies, contracts and descriptions of machines in JSON. `http`, `redis`,
//! `etcd`: [registries](registry) of segments' names. `conformance`: the suites that every link and
//! every registry must pass, and test doubles.
//! `fuzzing`: ways in for the fuzz targets of this workspace, which may change at any time.
#![deny(unsafe_code)]

pub mod admission;
#[cfg(feature = "host")]
pub mod cma;
#[cfg(feature = "conformance")]
pub mod conformance;
mod control;
#[cfg(feature = "tcp")]
mod credit;
mod engine;
mod error;
#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "host")]
mod host;
mod identity;
#[cfg(feature = "json")]
mod json;
mod lane;
#[cfg(all(test, mooncake_loom))]
mod loom_models;
pub mod loopback;
mod memory;
mod metrics;
mod notify;
pub mod platform;
mod qos;
pub mod rail;
pub mod registry;
mod segment;
pub mod selector;
#[cfg(feature = "host")]
pub mod shm;
#[cfg(any(feature = "tcp", feature = "host"))]
mod spin;
pub mod spray;
pub mod staging;
mod stripes;
mod sync;
#[cfg(feature = "tcp")]
pub mod tcp;
mod time;
mod trace;
pub mod transport;
mod wheel;

#[cfg(feature = "host")]
pub use cma::CmaTransport;
pub use engine::{
    AbsentLink, Batch, Buffer, Conflict, Conflicts, Gauges, Liveness, Probe, RegisterOptions,
    Request, TentEngine, TentEngineBuilder, TransferEngine, WarmUp,
};
pub use error::{Applied, Error, Progress, Reason, Result, Retry, Stage, TransferError};
#[cfg(feature = "file")]
pub use file::{FileConfig, FileSegment, FileTransport};
#[cfg(feature = "host")]
pub use host::HostConfig;
pub use identity::{Generation, Incarnation, PeerId, RegistrationId};
pub use loopback::InProcess;
pub use memory::{
    BufferLease, HugePages, LocalBuffer, LocalSlice, Memory, MemoryOptions, Permission,
};
pub use metrics::{
    AdmissionMetrics, Failovers, Histogram, LinkMetrics, Metrics, RefreshMetrics,
    RegistrationMetrics, Served, ServedMetrics,
};
pub use notify::{Announcement, Delivery, Notification, NotificationCounts, ReceivedNotification};
pub use platform::host::machine;
pub use qos::{DeviceSet, Hint, Intent, Priority, Qos, Strength};
pub use segment::{
    BufferDescriptor, HandleError, RemoteRange, Segment, SegmentDescriptor, SegmentHandle,
};
#[cfg(feature = "host")]
pub use shm::ShmTransport;
pub use staging::{StagingConfig, StagingTransport};
#[cfg(feature = "tcp")]
pub use tcp::{TcpConfig, TcpTransport};
pub use time::Time;
pub use trace::{Trace, TraceEvent, TraceStep};
pub use wheel::{TimerToken, TimerWheel};

#[cfg(all(doctest, feature = "tcp"))]
#[doc = include_str!("../README.md")]
struct Readme;
