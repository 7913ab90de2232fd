//! The files of one directory, as a storage sees them. Whatever it does to the disk goes through here, so that
//! tests can put a disk there that loses everything it may lose.

mod direct;
mod real;
mod sim;
mod uring;

use std::{fmt, io, os::fd::BorrowedFd, sync::Arc};

pub use real::{Engine, RealDisk};
pub use sim::{PowerLost, SimDisk};

/// A file of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name, in the directory.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// What it takes on the disk.
    pub allocated_bytes: u64,
    /// A plain file; anything else is not ours.
    pub is_file: bool,
}

/// What the file system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// In total.
    pub total_bytes: u64,
    /// For us.
    pub free_bytes: u64,
}

/// Why a directory could not be locked.
#[derive(Debug)]
pub enum LockFailure {
    /// Somebody else has it, who left these words.
    Held(String),
    /// The file system failed.
    Io(io::Error),
}

/// A directory of files. Nothing is durable before it was synced: content by its file, names by the directory.
pub trait Disk: fmt::Debug + Send + Sync + 'static {
    /// Makes a new file; one that is there already is an error.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// All that is in the directory.
    fn list(&self) -> io::Result<Vec<Found>>;
    /// Gives a file another name, in place of whatever has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Takes a name away; who has the file open goes on reading it.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes durable which names there are.
    fn sync(&self) -> io::Result<()>;
    /// What there is room for.
    fn space(&self) -> io::Result<Space>;
    /// Carries out reads, side by side if the disk can. `landed` is called once for each, with its place among them,
    /// when what became of it is known, and while others may still be under way.
    fn read_many(&self, reads: &mut [Read<'_>], landed: &mut dyn FnMut(usize, &mut Read<'_>)) {
        for (place, read) in reads.iter_mut().enumerate() {
            read.carry_out();
            landed(place, read);
        }
    }
    /// Keeps others out of the directory until what it returns is dropped; `words` tell them who does.
    fn lock(&self, words: &str) -> Result<Box<dyn Send + Sync>, LockFailure>;
}

/// One of several reads that are asked for at once.
#[derive(Debug)]
pub struct Read<'a> {
    /// Of which file.
    pub file: &'a dyn DiskFile,
    /// From where on.
    pub at: u64,
    /// What is filled first.
    pub first: &'a mut [u8],
    /// What is filled after it.
    pub second: &'a mut [u8],
    /// How much was read.
    pub read: io::Result<usize>,
}

impl Read<'_> {
    /// Reads now, on this thread.
    pub fn carry_out(&mut self) {
        self.read = self.file.read_two_at(self.at, self.first, self.second);
    }
}

/// An open file. It stays readable when its name is taken away.
pub trait DiskFile: fmt::Debug + Send + Sync + 'static {
    /// Reads until `into` is full or the file ends; says how much it was.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Fills `first` and then `second` with what follows each other from `at` on.
    fn read_two_at(&self, at: u64, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(at, first)?;
        if read < first.len() {
            return Ok(read);
        }
        Ok(read + self.read_at(at + read as u64, second)?)
    }
    /// Writes all pieces, one after the other.
    fn write_at(&self, at: u64, pieces: &[&[u8]]) -> io::Result<()>;
    /// Makes durable what was written before the call, and the length.
    fn sync(&self) -> io::Result<()>;
    /// Cuts the file, or lengthens it with zeros.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// The length.
    fn len(&self) -> io::Result<u64>;
    /// What the file takes on the disk.
    fn allocated(&self) -> io::Result<u64>;
    /// The kernel's file to read from, if there is one; `true`: in whole blocks only.
    fn descriptor(&self) -> Option<(BorrowedFd<'_>, bool)> {
        None
    }
    /// How many of the process's descriptors it takes.
    fn descriptors(&self) -> usize {
        1
    }
    /// Whether there is nothing in it.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|bytes| bytes == 0)
    }
}

/// Reads exactly `bytes`; an end before that is an error.
pub(crate) fn read_exact(file: &dyn DiskFile, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut into = vec![0; bytes];
    let read = file.read_at(at, &mut into)?;
    if read < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(into)
}

/// Reads all of a small file.
pub(crate) fn read_all(disk: &dyn Disk, name: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let mut into = vec![0; file.len()? as usize];
    let read = file.read_at(0, &mut into)?;
    into.truncate(read);
    Ok(into)
}

/// What a file is called before it is finished.
pub(crate) fn temporary(name: &str) -> String {
    format!("{name}.tmp")
}

/// Puts `content` under `name`, so that after any crash there is either what was there or all of this.
pub(crate) fn replace(disk: &dyn Disk, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = temporary(name);
    match disk.remove(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = disk.create(&temporary).and_then(|file| {
        file.write_at(0, &[content])?;
        file.sync()
    });
    if let Err(error) = written.and_then(|()| disk.rename(&temporary, name)) {
        // What could not be written must not take the space of what can.
        let _gone_or_found_at_the_next_start = disk.remove(&temporary);
        return Err(error);
    }
    disk.sync()
}
