//! What the laws read and write at the other side: memory of the target, or a file.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::fixture::books;
use crate::{
    Buffer, BufferDescriptor, Generation, Memory, RegistrationId, RemoteRange, Segment,
    memory::LocalBuffer,
};

/// Either of them.
#[derive(Debug)]
pub(super) enum Remote {
    Memory(Buffer),
    File { file: File, segment: Segment },
}

/// Bytes that the laws look at and change by themselves.
pub(super) trait Bytes: Send + Sync {
    fn write_at(&self, offset: u64, from: &[u8]);
    fn read_at(&self, offset: u64, into: &mut [u8]);
}

impl Bytes for Memory {
    fn write_at(&self, offset: u64, from: &[u8]) {
        Self::write_at(self, offset, from);
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) {
        Self::read_at(self, offset, into);
    }
}

impl Bytes for File {
    fn write_at(&self, offset: u64, from: &[u8]) {
        self.write_all_at(from, offset).expect("the disk takes it");
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) {
        self.read_exact_at(into, offset).expect("it is that long");
    }
}

fn whole(segment: &Segment) -> BufferDescriptor {
    let descriptor = segment.descriptor();
    let whole = descriptor.buffers().next();
    whole.expect("one buffer is the file").clone()
}

impl Remote {
    pub(super) fn id(&self) -> RegistrationId {
        match self {
            Self::Memory(buffer) => buffer.id(),
            Self::File { segment, .. } => whole(segment).registration,
        }
    }

    pub(super) fn generation(&self) -> Generation {
        match self {
            Self::Memory(buffer) => buffer.generation(),
            Self::File { segment, .. } => whole(segment).generation,
        }
    }

    pub(super) fn bytes(&self) -> &dyn Bytes {
        match self {
            Self::Memory(buffer) => buffer.memory(),
            Self::File { file, .. } => file,
        }
    }

    /// The address of its first byte.
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Memory(buffer) => buffer.memory().address(),
            Self::File { .. } => 0,
        }
    }

    /// Of memory, the books, which outlive it.
    pub(super) fn books(&self) -> Option<Arc<LocalBuffer>> {
        match self {
            Self::Memory(buffer) => Some(books(buffer)),
            Self::File { .. } => None,
        }
    }

    pub(super) fn place(&self, offset: u64) -> RemoteRange {
        RemoteRange::Registered {
            registration: self.id(),
            generation: Some(self.generation()),
            offset,
        }
    }
}

/// Makes files and their names.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    name: fn(&Path, bool) -> String,
    next: AtomicU64,
}

impl Files {
    pub(super) fn new(folder: PathBuf, name: fn(&Path, bool) -> String) -> Self {
        Self {
            folder,
            name,
            next: AtomicU64::new(0),
        }
    }

    /// A new file, and what it is opened as.
    pub(super) fn make(&self, bytes: u64, write: bool) -> (File, String) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("segment-{number}"));
        let made = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let file = made.expect("the folder is ours");
        file.set_len(bytes).expect("there is room");
        (file, (self.name)(&path, write))
    }
}
