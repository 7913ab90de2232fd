//! Cuts what a task asks into parts of which each is one call of the kernel.

use smallvec::SmallVec;

use crate::memory::LocalSlice;

/// What direct reads and writes begin and end at: in the file, in memory, and in length.
///
/// Most disks would take less. Whole pages, so that none is ever written both directly and through
/// the page cache at the same time.
pub(super) const BLOCK: u64 = 4096;

/// How a part gets from the file to memory or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Through the page cache.
    Cached,
    /// Between disk and memory.
    Direct,
    /// Between disk and an aligned stage buffer, and from there to memory that is not aligned.
    Staged,
}

/// What one call moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) way: Way,
    /// Where in the file.
    pub(super) at: u64,
    /// Which piece of local memory.
    pub(super) piece: usize,
    /// Where in that piece.
    pub(super) within: u64,
    pub(super) length: u64,
}

/// Walks through a task, part by part.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// What was cut off already.
    cut: u64,
    piece: usize,
    within: u64,
}

/// What parts look like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Whole blocks.
    pub(super) most: u64,
    /// The file is open for direct access.
    pub(super) direct: bool,
}

impl Cutter {
    /// The next part of a task that moves all of `local` from or to `offset` on.
    pub(super) fn next(&mut self, offset: u64, local: &[LocalSlice], shape: Shape) -> Option<Part> {
        let piece = local.get(self.piece)?;
        let at = offset + self.cut;
        let (way, length) = cut(at, piece.len() - self.within, shape, || {
            piece.piece().skip(self.within as usize).as_ptr() as u64
        });
        let part = Part {
            way,
            at,
            piece: self.piece,
            within: self.within,
            length,
        };
        self.cut += length;
        self.within += length;
        if self.within == piece.len() {
            (self.piece, self.within) = (self.piece + 1, 0);
        }
        Some(part)
    }

    /// Nothing is left.
    pub(super) fn is_done(&self, local: &SmallVec<[LocalSlice; 1]>) -> bool {
        self.piece >= local.len()
    }
}

/// How to begin with `left` bytes from `at` on, of which the first comes to or from `address`.
fn cut(at: u64, left: u64, shape: Shape, address: impl FnOnce() -> u64) -> (Way, u64) {
    if !shape.direct {
        return (Way::Cached, left.min(shape.most));
    }
    let into_block = at % BLOCK;
    if into_block != 0 {
        return (Way::Cached, left.min(BLOCK - into_block));
    }
    let whole = left.min(shape.most) / BLOCK * BLOCK;
    if whole == 0 {
        return (Way::Cached, left);
    }
    let way = match address().is_multiple_of(BLOCK) {
        true => Way::Direct,
        false => Way::Staged,
    };
    (way, whole)
}

impl Part {
    /// What is left of it after `done` bytes.
    pub(super) fn rest(self, done: u64) -> Self {
        let aligned = done.is_multiple_of(BLOCK);
        Self {
            // Wherever it stopped, the page cache takes it from there.
            way: if aligned { self.way } else { Way::Cached },
            at: self.at + done,
            within: self.within + done,
            length: self.length - done,
            ..self
        }
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::{BufferTable, Memory, Permission};

    proptest! {
        #[test]
        fn parts_tile_the_task_and_those_past_the_cache_are_aligned(
            offset in 0..20_000u64,
            pieces in proptest::collection::vec((0..9_000u64, 1..30_000u64), 1..5),
            blocks in 1..6u64,
            direct: bool,
        ) {
            let table = BufferTable::new();
            let memory = Memory::allocate(40_000).unwrap();
            let base = memory.address();
            let buffer = table.prepare(memory, Permission::Local, String::new());
            let local: SmallVec<[LocalSlice; 1]> = pieces
                .iter()
                .map(|(start, len)| {
                    let lease = buffer.lease(None).unwrap();
                    LocalSlice::new(lease, *start..start + len).unwrap()
                })
                .collect();
            let shape = Shape { most: blocks * BLOCK, direct };
            let mut cutter = Cutter::default();
            let (mut at, mut piece, mut within) = (offset, 0, 0);
            while let Some(part) = cutter.next(offset, &local, shape) {
                prop_assert_eq!((part.at, part.piece, part.within), (at, piece, within));
                prop_assert!((1..=shape.most).contains(&part.length));
                let address = base + pieces[piece].0 + within;
                match part.way {
                    Way::Cached => {
                        // Never a whole block that could have gone past the cache.
                        let first = at.next_multiple_of(BLOCK);
                        prop_assert!(!direct || first + BLOCK > at + part.length);
                    }
                    way => {
                        prop_assert!(direct);
                        prop_assert!(at.is_multiple_of(BLOCK) && part.length.is_multiple_of(BLOCK));
                        prop_assert_eq!(way == Way::Direct, address.is_multiple_of(BLOCK));
                    }
                }
                at += part.length;
                within += part.length;
                if within == pieces[piece].1 {
                    (piece, within) = (piece + 1, 0);
                }
            }
            prop_assert!(cutter.is_done(&local));
            prop_assert_eq!(at - offset, pieces.iter().map(|(_, len)| len).sum::<u64>());
        }

        #[test]
        fn what_is_left_of_a_part_is_where_it_stopped(
            blocks in 1..9u64, done in 1..40_000u64,
        ) {
            let part = Part {
                way: Way::Direct, at: 3 * BLOCK, piece: 1, within: 5, length: blocks * BLOCK,
            };
            prop_assume!(done < part.length);
            let rest = part.rest(done);
            prop_assert_eq!(rest.at + rest.length, part.at + part.length);
            prop_assert_eq!(rest.within - part.within, done);
            prop_assert!(rest.way == Way::Cached || rest.at.is_multiple_of(BLOCK));
        }
    }
}
