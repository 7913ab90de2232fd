//! Memory that links may reach: regions, registered buffers and the leases on them.

#[cfg(feature = "tcp")]
mod admission;
mod buffer;
#[cfg(feature = "host")]
mod marks;
mod numa;
mod options;
mod region;
mod table;

#[cfg(feature = "tcp")]
pub(crate) use admission::Admission;
pub(crate) use buffer::checksum;
pub use buffer::{BufferLease, LocalBuffer, LocalSlice, Permission};
#[cfg(feature = "host")]
pub(crate) use marks::{Mark, MarkPage, MarkRef, PeerMarks, map_sealed};
pub use options::{HugePages, MemoryOptions};
pub use region::Memory;
pub(crate) use region::Piece;
pub(crate) use table::{Access, BufferTable, Refusal};
