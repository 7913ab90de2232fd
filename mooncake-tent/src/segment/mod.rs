//! Segments: what a process offers, and how others learn of it.

mod chunks;
mod descriptor;
mod fences;
mod handle;
mod manager;
mod own;
mod remote;
mod route;
mod watch;

use chunks::{Chunks, Reach};
pub(crate) use descriptor::Span;
pub use descriptor::{BufferDescriptor, SegmentDescriptor};
pub(crate) use fences::Fences;
pub use handle::{HandleError, SegmentHandle};
pub(crate) use manager::SegmentManager;
pub(crate) use own::OwnSegment;
pub(crate) use remote::Known;
pub use remote::{RemoteRange, Segment};
pub(crate) use route::{Held, Route, RouteKey, Routes, Way};
