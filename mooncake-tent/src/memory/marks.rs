//! A page on which peers of the same host see which registrations are alive.
//!
//! A peer that reads our memory without asking looks at a registration's mark before and after the
//! copy. As long as both times it finds the *edition* that we lent, the bytes were those of that
//! generation throughout. Editions never repeat within a process, so a mark that another
//! registration uses later never looks like an earlier one.

#![expect(
    unsafe_code,
    reason = "words that other processes look at are reached through a mapping"
)]

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering, fence},
    },
};

use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags};

/// Registrations that can have a mark at a time.
const MARKS: usize = 1 << 20;
/// Of the whole page.
const BYTES: usize = MARKS * size_of::<u64>();
/// What a mark holds while nobody may read.
const CLOSED: u64 = 0;

/// All marks of a process, in memory that peers map.
#[derive(Debug)]
pub(crate) struct MarkPage {
    map: MmapRaw,
    file: File,
    free: Mutex<FreeMarks>,
    next_edition: AtomicU64,
}

#[derive(Debug, Default)]
struct FreeMarks {
    places: Vec<u32>,
    /// Places from here on were never used.
    fresh: u32,
}

/// The mark of one registration; it is closed and free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Mark {
    page: Arc<MarkPage>,
    place: u32,
    edition: AtomicU64,
}

/// Where a peer finds a mark, and what it must read there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkRef {
    pub(crate) place: u32,
    pub(crate) edition: u64,
}

/// The marks of another process.
#[derive(Debug)]
pub(crate) struct PeerMarks {
    map: MmapRaw,
}

impl MarkPage {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("mooncake-marks", flags)?);
        file.set_len(BYTES as u64)?;
        let map = MmapOptions::new().len(BYTES).map_raw(&file)?;
        // Only our own mapping, which exists already, writes there.
        rustix::fs::fcntl_add_seals(&file, SEALS | SealFlags::FUTURE_WRITE)?;
        Ok(Self {
            map,
            file,
            free: Mutex::default(),
            next_edition: AtomicU64::new(CLOSED + 1),
        })
    }

    /// A closed mark; `None`: all are in use.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Mark> {
        let mut free = self.free.lock();
        let place = free.places.pop().or_else(|| {
            let fresh = free.fresh;
            free.fresh += u32::from((fresh as usize) < MARKS);
            ((fresh as usize) < MARKS).then_some(fresh)
        })?;
        Some(Mark {
            page: Arc::clone(self),
            place,
            edition: AtomicU64::new(CLOSED),
        })
    }

    fn word(&self, place: u32) -> &AtomicU64 {
        word(&self.map, place)
    }
}

impl AsFd for MarkPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Mark {
    /// Peers may read from now on, under a new edition.
    pub(crate) fn open(&self) {
        let edition = self.page.next_edition.fetch_add(1, Ordering::Relaxed);
        self.edition.store(edition, Ordering::Release);
        self.page.word(self.place).store(edition, Ordering::Release);
    }

    /// Whoever is reading finds afterwards that it must not count.
    pub(crate) fn close(&self) {
        self.edition.store(CLOSED, Ordering::Release);
        self.page.word(self.place).store(CLOSED, Ordering::Release);
        // What is written to the memory afterwards is seen after this, or not at all.
        fence(Ordering::SeqCst);
    }

    /// What a peer must find; `None` while it is closed.
    pub(crate) fn reference(&self) -> Option<MarkRef> {
        let edition = self.edition.load(Ordering::Acquire);
        (edition != CLOSED).then_some(MarkRef {
            place: self.place,
            edition,
        })
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.close();
        self.page.free.lock().places.push(self.place);
    }
}

impl PeerMarks {
    /// Maps what a peer sent.
    pub(crate) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        let map = map_sealed(file, BYTES as u64)?;
        Ok(Self { map })
    }

    /// The registration is in the life that was lent. Look before and after.
    pub(crate) fn is_open(&self, mark: MarkRef) -> bool {
        if mark.place as usize >= MARKS {
            return false;
        }
        // What was copied before is not read after this.
        fence(Ordering::Acquire);
        let found = word(&self.map, mark.place).load(Ordering::Acquire);
        found == mark.edition
    }
}

fn word(map: &MmapRaw, place: u32) -> &AtomicU64 {
    let place = place as usize;
    assert!(place < MARKS, "mark {place} of {MARKS}");
    let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address 0");
    // SAFETY: the mapping is at least `BYTES` long and aligned to pages, and `place` was just checked.
    let at = unsafe { base.cast::<u64>().add(place) };
    // SAFETY: the word lives as long as the mapping that the result borrows, and is only ever
    // reached as an atomic, by us and by other processes. A read-only mapping is only loaded from.
    unsafe { AtomicU64::from_ptr(at.as_ptr()) }
}

/// The size of such a file does not change any more, so touching its pages never faults.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Maps a peer's file to read from it, once it is certain that its size is `len` at least and never
/// shrinks.
pub(crate) fn map_sealed(file: BorrowedFd<'_>, len: u64) -> io::Result<MmapRaw> {
    let seals = rustix::fs::fcntl_get_seals(file)?;
    let stat = rustix::fs::fstat(file)?;
    // Of huge pages only whole ones are mapped.
    let block = u64::try_from(stat.st_blksize).unwrap_or(1).max(1);
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let whole = len.checked_next_multiple_of(block).filter(|_| len <= size);
    // Who could still write could also punch holes, and a hole that cannot be filled kills as well.
    let sealed = seals.contains(SealFlags::SHRINK)
        && seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
    let (Some(whole), true) = (whole, sealed) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a peer's file of {size} bytes with seals {seals:?}, for {len}"),
        ));
    };
    let len = usize::try_from(whole.min(size)).map_err(|_| io::ErrorKind::OutOfMemory)?;
    MmapOptions::new().len(len).map_raw_read_only(&file)
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use super::*;

    #[test]
    fn law_07_a_mark_tells_one_life_from_the_next_and_from_another_registration() {
        let page = Arc::new(MarkPage::new().unwrap());
        let peer = PeerMarks::map(page.as_fd()).unwrap();
        let mark = page.take().unwrap();
        assert_eq!(mark.reference(), None);
        mark.open();
        let first = mark.reference().unwrap();
        assert!(peer.is_open(first));
        mark.close();
        assert!(!peer.is_open(first));
        mark.open();
        assert!(!peer.is_open(first), "another life");
        let second = mark.reference().unwrap();
        assert!(peer.is_open(second));
        drop(mark);
        assert!(!peer.is_open(second));
        let other = page.take().unwrap();
        other.open();
        assert_eq!(other.reference().unwrap().place, second.place);
        assert!(!peer.is_open(second), "another registration");
    }

    #[test]
    fn law_04_a_peer_cannot_write_to_the_page_and_we_map_nothing_that_may_shrink() {
        let page = MarkPage::new().unwrap();
        let writable = MmapOptions::new().len(BYTES).map_raw(&page.file);
        assert!(writable.is_err());
        assert!(page.file.set_len(8).is_err());

        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("other", flags).unwrap());
        file.set_len(BYTES as u64).unwrap();
        assert!(PeerMarks::map(file.as_fd()).is_err(), "it may shrink");
        rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
        assert!(PeerMarks::map(file.as_fd()).is_err(), "it may get holes");
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).unwrap();
        assert!(PeerMarks::map(file.as_fd()).is_ok());
        assert!(
            map_sealed(file.as_fd(), BYTES as u64 + 1).is_err(),
            "too short"
        );
        let mark = MarkRef {
            place: u32::MAX,
            edition: 1,
        };
        assert!(!PeerMarks::map(file.as_fd()).unwrap().is_open(mark));
    }
}
