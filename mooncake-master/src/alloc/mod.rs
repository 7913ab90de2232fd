//! Where bytes of objects go: ranges within a segment, and the choice of segments.

mod extents;
mod strategy;

pub(crate) use extents::{ALIGNMENT, Extents, Ground};
pub use strategy::{AllocationStrategy, UnknownStrategy};
