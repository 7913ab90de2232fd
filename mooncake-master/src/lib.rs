//! x
#![forbid(unsafe_code)]

mod alloc;
mod evict;
mod list;
mod slab;
pub mod state;
mod time;

pub use alloc::{AllocationStrategy, UnknownStrategy};
pub use time::Time;

