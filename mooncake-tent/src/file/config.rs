//! How the file link works.

/// How the file link works. See the [module](crate::file).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FileConfig {
    /// What moves the bytes.
    pub engine: FileEngine,
    /// Rings, over which batches are dealt out. Callers on different rings do not meet; each ring
    /// registers memory anew. 1 if 0.
    pub rings: usize,
    /// Reads and writes that a ring, or all threads together, have under way at once. At least 1.
    pub depth: usize,
    /// Bytes that one read or write moves at most: a multiple of 4 KiB, at least that.
    pub part_bytes: u64,
    /// Registers memory with the kernel, which saves it some work for each direct read or write, and
    /// pins it. What cannot be registered is read and written all the same.
    pub register_memory: bool,
    /// Threads for the calls of the portable engine; whoever waits helps. 1 if 0.
    pub threads: usize,
}

/// What moves the bytes of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileEngine {
    /// io_uring where the kernel allows it, and otherwise plain calls.
    #[default]
    Best,
    /// `pread` and `pwrite` on some threads.
    Portable,
    /// io_uring, or no link at all.
    Uring,
}

impl Default for FileConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            engine: FileEngine::Best,
            rings: cores.min(4),
            depth: 128,
            part_bytes: 1 << 20,
            register_memory: true,
            threads: 4,
        }
    }
}
