//! Reads past the page cache: whole blocks, into memory that is aligned, by way of a stage where it is not.

use std::{
    cell::RefCell,
    fs::{File, OpenOptions},
    io::{self, IoSliceMut},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
};

use rustix::{
    fs::OFlags,
    io::{Errno, preadv},
};

/// What file systems and disks ask of offsets, lengths and memory: those with large sectors ask as much of all three.
const BLOCK: usize = 4096;
/// A stage that grew beyond this is not kept.
const KEPT: usize = 8 << 20;

thread_local! {
    static STAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// How a read is done in whole blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// What comes before the first byte that is wanted.
    pub(super) skip: usize,
    /// Where the read begins.
    pub(super) begin: u64,
    /// The second part goes where it belongs at once.
    pub(super) straight: bool,
    /// What goes to a stage before that.
    pub(super) staged: usize,
}

impl Shape {
    /// `blocks`: only whole ones can be read, to memory that is aligned.
    pub(super) fn new(at: u64, first: &[u8], second: &[u8], blocks: bool) -> Self {
        if !blocks {
            return Self {
                skip: 0,
                begin: at,
                straight: true,
                staged: first.len(),
            };
        }
        let skip = at as usize % BLOCK;
        let front = skip + first.len();
        let straight = front.is_multiple_of(BLOCK)
            && second.len().is_multiple_of(BLOCK)
            && second.as_ptr().addr().is_multiple_of(BLOCK);
        let whole = (front + second.len()).next_multiple_of(BLOCK);
        Self {
            skip,
            begin: at - skip as u64,
            straight,
            staged: if straight { front } else { whole },
        }
    }
}

/// A file that is read past the page cache.
#[derive(Debug)]
pub(super) struct DirectFile(File);

impl DirectFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)?;
        Ok(Self(file))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Fills `first` and then `second` from `at` on; says how much it was.
    pub(super) fn read(&self, at: u64, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let Shape {
            skip,
            begin,
            straight,
            staged,
        } = Shape::new(at, first, second, true);
        let (wanted, front) = (first.len() + second.len(), skip + first.len());
        STAGE.with_borrow_mut(|memory| {
            let stage = aligned(memory, staged);
            let read = if straight {
                self.fill(begin, stage, second)?
            } else {
                self.fill(begin, stage, &mut [])?
            };
            let read = read.saturating_sub(skip).min(wanted);
            let head = read.min(first.len());
            first[..head].copy_from_slice(&stage[skip..skip + head]);
            if !straight {
                let rest = read - head;
                second[..rest].copy_from_slice(&stage[front..front + rest]);
            }
            if memory.len() > KEPT {
                *memory = Vec::new();
            }
            Ok(read)
        })
    }

    fn fill(&self, at: u64, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let room = first.len() + second.len();
        let mut both = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let (mut slices, mut done) = (&mut both[..], 0);
        IoSliceMut::advance_slices(&mut slices, 0);
        while done < room {
            match preadv(&self.0, slices, at + done as u64) {
                Ok(0) => break,
                Ok(read) => {
                    done += read;
                    // What ends within a block ends with the file.
                    if !read.is_multiple_of(BLOCK) {
                        break;
                    }
                    IoSliceMut::advance_slices(&mut slices, read);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }
}

/// `bytes` of `memory` that begin on a block.
pub(super) fn aligned(memory: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if memory.len() < bytes + BLOCK {
        *memory = vec![0; bytes + BLOCK];
    }
    let skip = memory.as_ptr().align_offset(BLOCK);
    &mut memory[skip..skip + bytes]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_begins_on_a_block_of_memory_is_read_to_at_once() {
        let mut memory = Vec::new();
        let whole = aligned(&mut memory, 3 * BLOCK);
        for (from, straight) in [(0, true), (512, false), (2048, false), (BLOCK, true)] {
            let shape = Shape::new(0, &[], &whole[from..from + BLOCK], true);
            assert_eq!(shape.straight, straight, "{from}");
        }
    }

    #[test]
    fn whatever_is_asked_for_is_what_the_file_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..100_000u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        std::fs::write(&path, &bytes).unwrap();
        let Ok(file) = DirectFile::open(&path) else {
            return; // This file system has no such thing, and files on it are read otherwise.
        };
        let mut memory = vec![0; 70_000 + BLOCK];
        for at in [0u64, 1, 8, 4000, 4096, 8184, 8192, 99_999] {
            for head in [0, 1, 96, 4096, 4000] {
                for length in [0, 1, 4096, 8192, 65_536, 5000] {
                    for shift in [0, 1] {
                        let mut first = vec![0; head];
                        let second = aligned(&mut memory, 66_000);
                        let second = &mut second[shift..shift + length];
                        let read = file.read(at, &mut first, second).unwrap();
                        let expected =
                            &bytes[at as usize..bytes.len().min(at as usize + head + length)];
                        let note = format!("{at} {head} {length} {shift}");
                        assert_eq!(read, expected.len(), "{note}");
                        let found = [&first[..], second].concat();
                        assert!(found[..read] == *expected, "{note}");
                    }
                }
            }
        }
    }
}
