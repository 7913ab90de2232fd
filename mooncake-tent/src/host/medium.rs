//! How bytes of another process are reached.

use std::{
    fmt, io,
    os::fd::{BorrowedFd, OwnedFd},
};

use super::Process;
use crate::memory::{Memory, Piece};

/// Memory that a process lends to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    /// In bytes.
    pub(crate) length: u64,
    /// In the memory of the owner.
    pub(crate) address: u64,
}

/// One way of reading the memory of another process.
pub(crate) trait Medium: fmt::Debug + Send + Sync + 'static {
    /// Names the link.
    const NAME: &'static str;

    /// What a process keeps to read from what was lent to it.
    type View: fmt::Debug + Send + Sync;

    /// Others can reach this memory; otherwise why not.
    fn accepts(memory: &Memory) -> Result<(), &'static str>;

    /// What others need besides the address.
    fn file(memory: &Memory) -> io::Result<Option<BorrowedFd<'_>>>;

    /// Makes `lent` readable.
    fn view(lent: Lent, file: Option<OwnedFd>, owner: &Process) -> io::Result<Self::View>;

    /// Allows `reader` to read our memory, as far as that is ours to allow.
    fn admit(reader: &Process) -> io::Result<()>;

    /// Fills `into` from the byte `from` on, which the caller has checked to lie within what was
    /// lent.
    fn copy(view: &Self::View, owner: &Process, from: u64, into: Piece) -> io::Result<()>;
}
