//! Segments: what a process offers, and how others learn of it.

mod descriptor;
mod manager;
mod remote;
mod route;

pub(crate) use descriptor::Span;
pub use descriptor::{BufferDescriptor, SegmentDescriptor};
pub(crate) use manager::SegmentManager;
pub(crate) use remote::{Fences, Known};
pub use remote::{RemoteRange, Segment};
pub(crate) use route::{Held, Route, RouteKey, Routes, Way};
