//! Memory that links may reach: regions, registered buffers and the leases on them.

#[cfg(feature = "tcp")]
mod admission;
mod buffer;
mod numa;
mod options;
mod region;
mod table;

#[cfg(feature = "tcp")]
pub(crate) use admission::Admission;
pub use buffer::{BufferLease, LocalBuffer, LocalSlice, Permission};
pub use options::{HugePages, MemoryOptions};
pub use region::Memory;
pub(crate) use region::Piece;
#[cfg(feature = "tcp")]
pub(crate) use table::Refusal;
pub(crate) use table::{Access, BufferTable};
