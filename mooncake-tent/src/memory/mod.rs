//! Memory that links may reach: regions, registered buffers and the leases on them.

mod buffer;
mod region;
mod table;

pub use buffer::{BufferLease, LocalBuffer, LocalSlice, Permission};
pub use region::Memory;
pub(crate) use region::Piece;
#[cfg(feature = "tcp")]
pub(crate) use table::Refusal;
pub(crate) use table::{Access, BufferTable};
