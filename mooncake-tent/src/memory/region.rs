//! A region of memory that outlives whatever moves bytes in it.

#![expect(
    unsafe_code,
    reason = "the one place that turns regions into raw copies"
)]

use std::{
    any::Any,
    fmt,
    fs::File,
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

use super::{HugePages, MemoryOptions, numa};

/// Owned memory. Its bytes are reached by copies only: peers may change them at any moment, so no
/// slice over them is ever made.
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// Keeps the bytes mapped.
enum Owner {
    Shared {
        map: MmapRaw,
        file: File,
        pages: Option<HugePages>,
    },
    Foreign {
        _keep: Box<dyn Any + Send + Sync>,
    },
}

// SAFETY: a region is an address range without interior state of its own. All access goes through
// raw copies, whose races are the documented contract of shared memory.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory of `len` bytes, backed by an anonymous shared file.
    ///
    /// # Errors
    ///
    /// `len` is 0, or the system refuses the file or its mapping.
    pub fn allocate(len: usize) -> io::Result<Self> {
        Self::allocate_with(&MemoryOptions::new(len))
    }

    /// Zeroed memory as `options` say, backed by an anonymous shared file whose length is fixed.
    ///
    /// # Errors
    ///
    /// The length is 0, the system refuses the file or its mapping, or it cannot have what the
    /// options ask for: the message says what and what may help.
    pub fn allocate_with(options: &MemoryOptions) -> io::Result<Self> {
        if options.len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a region has at least one byte",
            ));
        }
        let ordinary = || Self::furnish(options, None);
        let Some(huge) = options.huge else {
            return ordinary();
        };
        match Self::furnish(options, Some(huge)) {
            Err(error) if options.or_ordinary => {
                tracing::debug!(%huge, %error, "ordinary pages take the place of huge ones");
                ordinary()
            }
            furnished => furnished,
        }
    }

    /// Memory as `options` say, but of these pages.
    fn furnish(options: &MemoryOptions, pages: Option<HugePages>) -> io::Result<Self> {
        let no_pages = |error| match pages {
            Some(huge) => no_huge_pages(huge, options.len, &error),
            None => error,
        };
        let memory = Self::map(options.len, pages).map_err(no_pages)?;
        if let (Some(node), Owner::Shared { map, .. }) = (options.node, &memory.owner) {
            // SAFETY: the mapping was made just now, and mappings start with a page.
            let bound = unsafe { numa::bind(memory.base, map.len(), node) };
            bound.map_err(|error| not_bound(node, &error))?;
        }
        // Huge pages were reserved, but not in the node: touching one that is not there would kill.
        if options.prefault || pages.is_some() && options.node.is_some() {
            memory.prefault().map_err(no_pages)?;
        }
        Ok(memory)
    }

    /// Maps a new file whose pages come when they are touched.
    fn map(len: usize, pages: Option<HugePages>) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let (flags, whole) = match pages {
            None => (flags, len),
            Some(huge) => {
                let whole = len.checked_next_multiple_of(huge.bytes());
                let size = match huge {
                    HugePages::TwoMiB => MemfdFlags::HUGE_2MB,
                    HugePages::OneGiB => MemfdFlags::HUGE_1GB,
                };
                let whole = whole.ok_or(io::ErrorKind::InvalidInput)?;
                (flags | MemfdFlags::HUGETLB | size, whole)
            }
        };
        let file = File::from(rustix::fs::memfd_create("mooncake", flags)?);
        file.set_len(whole as u64)?;
        // Whoever is given the file could otherwise cut it, which kills those who then touch it.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let map = MmapOptions::new().len(whole).map_raw(&file)?;
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address 0");
        Ok(Self {
            base,
            len,
            owner: Owner::Shared { map, file, pages },
        })
    }

    /// Takes over the bytes of `vec`.
    ///
    /// # Errors
    ///
    /// `vec` is empty.
    pub fn from_vec(vec: Vec<u8>) -> io::Result<Self> {
        if vec.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a region has at least one byte",
            ));
        }
        // As a raw box nothing claims the bytes exclusively while a peer changes them.
        let len = vec.len();
        let raw = VecBytes(Box::into_raw(vec.into_boxed_slice()));
        let base = NonNull::new(raw.0.cast::<u8>()).expect("a box is never null");
        Ok(Self {
            base,
            len,
            owner: Owner::Foreign {
                _keep: Box::new(raw),
            },
        })
    }

    /// Memory of somebody else, kept alive by `keep`.
    ///
    /// # Safety
    ///
    /// `base..base + len` must stay mapped until `keep` is dropped, and while this value lives no
    /// `&[u8]` or `&mut [u8]` over it may be used at a moment when a peer could write there.
    pub unsafe fn foreign(base: NonNull<u8>, len: usize, keep: impl Any + Send + Sync) -> Self {
        Self {
            base,
            len,
            owner: Owner::Foreign {
                _keep: Box::new(keep),
            },
        }
    }

    /// Length in bytes, never 0 unless foreign.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a region has at least one byte"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The file that the bytes are in, from its beginning, for others to map; `None`: they are in
    /// none.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.owner {
            Owner::Shared { file, .. } => Some(file.as_fd()),
            Owner::Foreign { .. } => None,
        }
    }

    /// The huge pages that it is made of; `None`: ordinary ones.
    pub fn huge_pages(&self) -> Option<HugePages> {
        match &self.owner {
            Owner::Shared { pages, .. } => *pages,
            Owner::Foreign { .. } => None,
        }
    }

    /// Touches every page now, so that no transfer pays for it.
    ///
    /// # Errors
    ///
    /// The system has no memory left for it.
    pub fn prefault(&self) -> io::Result<()> {
        match &self.owner {
            Owner::Shared { map, .. } => map.advise(Advice::PopulateWrite),
            Owner::Foreign { .. } => Ok(()),
        }
    }

    /// Whoever gets the file from now on can only read it; our own mapping stays as it is.
    #[cfg(feature = "host")]
    pub(crate) fn seal_for_readers(&self) -> io::Result<()> {
        match &self.owner {
            Owner::Shared { file, .. } => {
                let sealed = rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SEAL);
                let last = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
                match sealed || rustix::fs::fcntl_add_seals(file, last).is_ok() {
                    true => Ok(()),
                    // Another thread may have been faster.
                    false if rustix::fs::fcntl_get_seals(file)?.contains(last) => Ok(()),
                    false => Err(io::ErrorKind::PermissionDenied.into()),
                }
            }
            Owner::Foreign { .. } => Ok(()),
        }
    }

    /// The raw piece of `range`.
    ///
    /// # Panics
    ///
    /// `range` is not within the region.
    pub(crate) fn piece(&self, range: Range<u64>) -> Piece {
        assert!(
            range.start <= range.end && range.end <= self.len as u64,
            "{range:?} is outside of a region of {} bytes",
            self.len
        );
        // SAFETY: the range was just checked to lie within the region.
        let at = unsafe { self.base.add(range.start as usize) };
        Piece {
            at,
            len: (range.end - range.start) as usize,
        }
    }

    /// Copies out of the region, from `offset` on.
    ///
    /// # Panics
    ///
    /// The range is not within the region.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) {
        let piece = self.piece(offset..offset + into.len() as u64);
        // SAFETY: the piece lies in live memory of this length, and `into` is exclusively ours, so
        // the two do not overlap.
        unsafe {
            piece
                .at
                .as_ptr()
                .copy_to_nonoverlapping(into.as_mut_ptr(), piece.len)
        };
    }

    /// Copies into the region, from `offset` on.
    ///
    /// # Panics
    ///
    /// The range is not within the region.
    pub fn write_at(&self, offset: u64, from: &[u8]) {
        let piece = self.piece(offset..offset + from.len() as u64);
        // SAFETY: the piece lies in live memory of this length; a region is never lent as a slice,
        // so `from` does not overlap it.
        unsafe {
            piece
                .at
                .as_ptr()
                .copy_from_nonoverlapping(from.as_ptr(), piece.len)
        };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:p}, {} bytes)", self.base, self.len)
    }
}

fn no_huge_pages(huge: HugePages, len: usize, error: &io::Error) -> io::Error {
    let wanted = len.div_ceil(huge.bytes());
    let why = match huge.free() {
        Some(free) => format!(
            "{wanted} needed, {free} free on all nodes; the operator sets them aside in vm.nr_hugepages"
        ),
        None => "the system has none of this size".to_owned(),
    };
    io::Error::new(
        error.kind(),
        format!("no huge pages of {huge}: {why}: {error}"),
    )
}

fn not_bound(node: u32, error: &io::Error) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::InvalidInput => "there is no such node, or it has no memory".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(
        error.kind(),
        format!("memory cannot be bound to NUMA node {node}: {why}"),
    )
}

/// The bytes of a vector, freed on drop.
struct VecBytes(*mut [u8]);

// SAFETY: it owns the box, which may be freed from any thread.
unsafe impl Send for VecBytes {}
// SAFETY: it offers no access at all.
unsafe impl Sync for VecBytes {}

impl Drop for VecBytes {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::into_raw` and is dropped once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// A raw range within a live region. Whoever holds one also holds a lease on its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; access is by the raw copies below and by system calls.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

/// What links need that reach memory in other ways than by a plain copy.
#[cfg(any(feature = "file", feature = "host", feature = "tcp"))]
impl Piece {
    pub(crate) fn len(self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// The part of it from `from` on.
    pub(crate) fn skip(self, from: usize) -> Self {
        assert!(from <= self.len, "skipping {from} of {} bytes", self.len);
        // SAFETY: `from` was just checked to lie within the piece.
        let at = unsafe { self.at.add(from) };
        Self {
            at,
            len: self.len - from,
        }
    }

    /// The first `len` bytes of it.
    #[cfg(any(feature = "file", feature = "host"))]
    pub(crate) fn first(self, len: usize) -> Self {
        assert!(len <= self.len, "the first {len} of {} bytes", self.len);
        Self { at: self.at, len }
    }

    /// A range of a mapping, which must outlive it.
    #[cfg(feature = "host")]
    pub(crate) fn of_map(map: &MmapRaw, from: u64, len: usize) -> Self {
        let from = usize::try_from(from).expect("a mapping is smaller than memory");
        let end = from.checked_add(len);
        assert!(end.is_some_and(|end| end <= map.len()), "beyond a mapping");
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address 0");
        // SAFETY: the range was just checked to lie within the mapping.
        let at = unsafe { base.add(from) };
        Self { at, len }
    }

    /// Fills the beginning of the piece from private bytes.
    #[cfg(feature = "tcp")]
    pub(crate) fn fill(self, from: &[u8]) {
        assert!(from.len() <= self.len, "filling beyond a piece");
        // SAFETY: the piece is live (its holder has a lease), long enough, and `from` is private
        // memory that no region overlaps.
        unsafe {
            self.at
                .as_ptr()
                .copy_from_nonoverlapping(from.as_ptr(), from.len())
        };
    }
}

impl Piece {
    /// Copies the whole of `from` to the beginning of this piece.
    pub(crate) fn copy_from(self, from: Self) {
        assert!(from.len <= self.len, "copying beyond a piece");
        // SAFETY: both pieces are live and long enough; `copy` allows them to overlap.
        unsafe { self.at.as_ptr().copy_from(from.at.as_ptr(), from.len) };
    }
}

#[cfg(test)]
mod tests;
