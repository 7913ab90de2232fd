//! The file link: segments that are files.
//!
//! A [`FileSegment`] says which file, and how it is opened; its name is opened like that of any
//! other segment. The segment has one buffer, which is the file: address 0 is its first byte, its
//! length is what the file has when it is opened. Each opening is an incarnation of its own, which
//! no other process and no other link reaches.
//!
//! ```
//! use mooncake_tent::{
//!     FileSegment, FileTransport, Memory, Permission, RegisterOptions, RemoteRange, Request,
//!     TentEngine, TransferEngine,
//! };
//! use std::time::Duration;
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("greeting");
//! std::fs::write(&path, "hello, file")?;
//! let engine = TentEngine::builder().transport(FileTransport::default()).build().await?;
//! let local = Memory::allocate(4)?;
//! let local = engine.register_memory(local, RegisterOptions::new(Permission::Local)).await?;
//!
//! let file = FileSegment::new(&path);
//! let segment = engine.open_segment(&file.name(), Duration::from_secs(1)).await?;
//! let mut batch = engine.allocate_batch(1);
//! let read = Request::read(local.all()?, &segment, RemoteRange::Address(7));
//! engine.submit_transfer(&mut batch, vec![read])?;
//! batch.terminal().await;
//! assert!(batch.outcome(0).unwrap().is_completed());
//!
//! let mut word = [0; 4];
//! local.memory().read_at(0, &mut word);
//! assert_eq!(&word, b"file");
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! *Checks*: range, permission, registration and generation of each request are checked against what
//! was opened. With each submission the name must still lead to the file that was opened, in its
//! full length: one that was replaced, truncated or removed fails what comes then, and says so. A
//! file system that does not answer holds up whoever submits.
//! A file that ends early under a transfer fails it with offset and length.
//!
//! *Completed* means that the kernel has moved every byte. Written bytes are then in the page cache,
//! or with [`direct`](FileSegment::direct) with the disk, which a power failure may still take;
//! with [`sync`](FileSegment::sync) they are durable.
//!
//! *Quiet* means that the kernel has given back every part of the task, done or cancelled. A task
//! whose deadline passes, or that is cancelled, is called back first; if the kernel keeps a part of
//! it longer than a moment after the deadline, the task ends all the same, and its memory stays
//! leased until the kernel has done with it. The kernel may refuse to give back what is with a disk
//! already; then the cancelled task ends when that has landed.
//!
//! A write that is cancelled or fails may have been applied in part. Nothing orders two requests
//! that overlap.
//!
//! # How bytes move
//!
//! Through io_uring, on [`rings`](FileConfig::rings) that all callers share: a submission is one
//! call of the kernel, and whoever waits takes out what has landed. For batches that nobody waits
//! for, one thread of the link does. Files are known to the rings by number, and registered memory
//! is pinned, as far as the kernel allows; what it does not costs speed and nothing else. Where the
//! kernel allows no rings at all, `pread` and `pwrite` on some threads and on those of whoever waits
//! do the same. [`FileTransport::engine`] says which and why, and [`FileTransport::counts`] how much
//! went which way.

mod book;
mod calls;
mod carrier;
mod config;
mod cut;
mod job;
mod link;
mod memories;
mod name;
mod open;
mod pool;
mod ring;
mod slots;
mod uring;
mod watch;

pub use config::{FileConfig, FileEngine};
pub use link::FileTransport;
pub use name::FileSegment;

pub(crate) const NAME: &str = "file";

/// What a file link has done since it was installed, in parts: a part is one read or write of the
/// kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileCounts {
    /// Through the page cache.
    pub cached: u64,
    /// Between disk and memory.
    pub direct: u64,
    /// Between disk and a stage buffer, since the memory was not aligned as the file is.
    pub staged: u64,
    /// From or to memory that the kernel has pinned, of all parts.
    pub registered: u64,
    /// Buffers that the kernel did not pin, once for each ring: too large, too many, or too much.
    pub unregistered: u64,
    /// Parts that moved only some of their bytes and went on from there.
    pub short: u64,
    /// Parts that had to be begun anew.
    pub repeated: u64,
}

impl FileCounts {
    fn begun(&mut self, way: cut::Way) {
        *match way {
            cut::Way::Cached => &mut self.cached,
            cut::Way::Direct => &mut self.direct,
            cut::Way::Staged => &mut self.staged,
        } += 1;
    }

    fn add(&mut self, other: Self) {
        let Self {
            cached,
            direct,
            staged,
            registered,
            unregistered,
            short,
            repeated,
        } = other;
        self.cached += cached;
        self.direct += direct;
        self.staged += staged;
        self.registered += registered;
        self.unregistered += unregistered;
        self.short += short;
        self.repeated += repeated;
    }
}
