//! A region of memory that outlives whatever moves bytes in it.

#![expect(
    unsafe_code,
    reason = "the one place that turns regions into raw copies"
)]

use std::{any::Any, fmt, fs::File, io, ops::Range, ptr::NonNull};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::MemfdFlags;

/// Owned memory. Its bytes are reached by copies only: peers may change them at any moment, so no
/// slice over them is ever made.
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// Keeps the bytes mapped.
enum Owner {
    Shared { map: MmapRaw, _file: File },
    Foreign { _keep: Box<dyn Any + Send + Sync> },
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
        if len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a region has at least one byte",
            ));
        }
        let file = File::from(rustix::fs::memfd_create("mooncake", MemfdFlags::CLOEXEC)?);
        file.set_len(len as u64)?;
        let map = MmapOptions::new().len(len).map_raw(&file)?;
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address 0");
        Ok(Self {
            base,
            len,
            owner: Owner::Shared { map, _file: file },
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

/// What sockets and files need.
#[cfg(any(feature = "file", feature = "tcp"))]
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
    #[cfg(feature = "file")]
    pub(crate) fn first(self, len: usize) -> Self {
        assert!(len <= self.len, "the first {len} of {} bytes", self.len);
        Self { at: self.at, len }
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
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_from_each_kind_of_region() {
        for memory in [
            Memory::allocate(10_007).unwrap(),
            Memory::from_vec(vec![0; 10_007]).unwrap(),
        ] {
            memory.prefault().unwrap();
            let data: Vec<u8> = (0..5_003).map(|i| (i % 251) as u8).collect();
            memory.write_at(5_004, &data);
            let mut back = vec![0; 5_003];
            memory.read_at(5_004, &mut back);
            assert_eq!(back, data);
            memory.read_at(0, &mut back);
            assert!(back.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn an_empty_region_is_refused() {
        assert!(Memory::allocate(0).is_err());
        assert!(Memory::from_vec(Vec::new()).is_err());
    }

    #[test]
    #[should_panic(expected = "outside of a region")]
    fn a_range_beyond_the_end_panics_before_it_touches_memory() {
        Memory::allocate(10).unwrap().write_at(6, &[0; 5]);
    }
}
