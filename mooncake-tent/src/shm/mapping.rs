//! Memory of another process, mapped into ours.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use memmap2::MmapRaw;

use super::copy::stream;
use crate::{
    host::{Lent, Medium, Process},
    memory::{Memory, Piece, map_sealed},
};

/// By mappings that can only be read.
#[derive(Debug)]
pub(crate) struct Mapped;

impl Medium for Mapped {
    const NAME: &'static str = "shm";

    type View = MmapRaw;

    fn accepts(memory: &Memory) -> Result<(), &'static str> {
        match memory.file() {
            Some(_) => Ok(()),
            None => Err("it was not allocated by the engine, so no file backs it"),
        }
    }

    fn file(memory: &Memory) -> io::Result<Option<BorrowedFd<'_>>> {
        memory.seal_for_readers()?;
        Ok(memory.file())
    }

    fn view(lent: Lent, file: Option<OwnedFd>, _owner: &Process) -> io::Result<MmapRaw> {
        let file = file.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "no file came with what is lent")
        })?;
        map_sealed(file.as_fd(), lent.length)
    }

    fn admit(_reader: &Process) -> io::Result<()> {
        // A file that was handed over is enough.
        Ok(())
    }

    fn copy(view: &MmapRaw, _owner: &Process, from: u64, into: Piece) -> io::Result<()> {
        stream(Piece::of_map(view, from, into.len()), into);
        Ok(())
    }
}
