//! The free ranges of one segment: best fit, aligned, coalescing, exact to the byte.

use std::collections::{BTreeMap, BTreeSet};

/// Offsets and sizes are multiples of this.
///
/// A cache line: copies into an extent never share a line with its neighbour's, while a value of a
/// few hundred bytes does not cost a page.
pub(crate) const ALIGNMENT: u64 = 64;

/// Hands out ranges of `0..capacity` and takes them back.
#[derive(Debug)]
pub(crate) struct Extents {
    capacity: u64,
    alignment: u64,
    free_bytes: u64,
    /// Offset → size of each free range; no two of them touch.
    by_offset: BTreeMap<u64, u64>,
    /// The same ranges as (size, offset).
    by_size: BTreeSet<(u64, u64)>,
}

impl Extents {
    /// All of `length` free, but for a last part shorter than `alignment`.
    pub(crate) fn new(length: u64, alignment: u64) -> Self {
        let capacity = length - length % alignment;
        let mut extents = Self {
            capacity,
            alignment,
            free_bytes: capacity,
            by_offset: BTreeMap::new(),
            by_size: BTreeSet::new(),
        };
        if capacity > 0 {
            extents.add(0, capacity);
        }
        extents
    }

    /// What a segment can hold in all.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What an extent of `length` bytes takes; `None`: more than can be counted.
    pub(crate) fn size_of(&self, length: u64) -> Option<u64> {
        length.checked_next_multiple_of(self.alignment)
    }

    /// The longest free range.
    pub(crate) fn largest_free(&self) -> u64 {
        self.by_size.last().map_or(0, |&(size, _)| size)
    }

    /// The offset of a range for `length` bytes, from the smallest free range that holds it.
    pub(crate) fn allocate(&mut self, length: u64) -> Option<u64> {
        let size = self.size_of(length).filter(|&size| size > 0)?;
        let (range, offset) = self.by_size.range((size, 0)..).next().copied()?;
        self.take(offset, range);
        if range > size {
            self.add(offset + size, range - size);
        }
        self.free_bytes -= size;
        Some(offset)
    }

    /// Takes back what `allocate(length)` gave.
    pub(crate) fn release(&mut self, offset: u64, length: u64) {
        let size = self
            .size_of(length)
            .expect("it was small enough to be allocated");
        self.free_bytes += size;
        let (mut start, mut end) = (offset, offset + size);
        debug_assert!(end <= self.capacity, "released beyond the segment");
        if let Some((&before, &length)) = self.by_offset.range(..offset).next_back() {
            debug_assert!(before + length <= offset, "released twice");
            if before + length == offset {
                self.take(before, length);
                start = before;
            }
        }
        if let Some((&after, &length)) = self.by_offset.range(offset..).next() {
            debug_assert!(after >= end, "released twice");
            if after == end {
                self.take(after, length);
                end += length;
            }
        }
        self.add(start, end - start);
    }

    /// Bytes handed out.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.capacity - self.free_bytes
    }

    fn add(&mut self, offset: u64, size: u64) {
        self.by_offset.insert(offset, size);
        self.by_size.insert((size, offset));
    }

    fn take(&mut self, offset: u64, size: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(size, offset));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn extents_never_overlap_and_coalesce_back_to_one_range(
            capacity in 1u64..200_000,
            shift in 0u32..10,
            steps in prop::collection::vec((any::<bool>(), 1u64..9_001, any::<prop::sample::Index>()), 1..300),
        ) {
            let alignment = 1 << shift;
            let mut extents = Extents::new(capacity, alignment);
            let whole = capacity - capacity % alignment;
            // The naive model: all ranges that are out.
            let mut out: Vec<(u64, u64)> = Vec::new();
            for (allocate, length, which) in steps {
                if allocate {
                    let size = length.next_multiple_of(alignment);
                    match extents.allocate(length) {
                        Some(offset) => {
                            prop_assert_eq!(offset % alignment, 0);
                            prop_assert!(offset + size <= whole);
                            let apart = |&(o, l): &(u64, u64)| {
                                offset + size <= o || o + l.next_multiple_of(alignment) <= offset
                            };
                            prop_assert!(out.iter().all(apart));
                            out.push((offset, length));
                        }
                        None => prop_assert!(longest_gap(&out, whole, alignment) < size),
                    }
                } else if !out.is_empty() {
                    let (offset, length) = out.swap_remove(which.index(out.len()));
                    extents.release(offset, length);
                }
                let used: u64 = out.iter().map(|(_, l)| l.next_multiple_of(alignment)).sum();
                prop_assert_eq!(extents.used(), used);
                prop_assert_eq!(extents.largest_free(), longest_gap(&out, whole, alignment));
            }
            for (offset, length) in out {
                extents.release(offset, length);
            }
            prop_assert_eq!(extents.used(), 0);
            prop_assert_eq!(extents.largest_free(), whole);
            prop_assert!(extents.by_offset.len() <= 1);
        }
    }

    fn longest_gap(out: &[(u64, u64)], whole: u64, alignment: u64) -> u64 {
        let mut out = out.to_vec();
        out.sort_unstable();
        let mut at = 0;
        let mut longest = 0;
        for (offset, length) in out {
            longest = longest.max(offset - at);
            at = offset + length.next_multiple_of(alignment);
        }
        longest.max(whole - at)
    }

    #[test]
    fn lengths_that_cannot_be_rounded_up_do_not_fit() {
        let mut extents = Extents::new(1 << 20, ALIGNMENT);
        assert_eq!(extents.allocate(u64::MAX), None);
        assert_eq!(extents.allocate((1 << 20) + 1), None);
        assert_eq!(extents.allocate(1 << 20), Some(0));
    }
}
