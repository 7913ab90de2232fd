//! The free ranges of one segment: best fit, aligned, coalescing, exact to the byte.

use std::collections::BTreeMap;

use crate::list::{Linked, Links, List, NONE};

/// Offsets and sizes are multiples of this.
///
/// A cache line: copies into an extent never share a line with its neighbour's, while a value of a
/// few hundred bytes does not cost a page.
pub(crate) const ALIGNMENT: u64 = 64;

/// What an owner of taken ranges knows of them, by ids of its choice.
pub(crate) trait Ground {
    fn start(&self, id: u32) -> u64;
    /// As it was asked for.
    fn length(&self, id: u32) -> u64;
    /// The taken ranges before and after it, by address.
    fn neighbours(&mut self, id: u32) -> &mut Links;
    fn neighbours_of(&self, id: u32) -> Links;
}

struct ByAddress<'a, G>(&'a mut G);

impl<G: Ground> Linked for ByAddress<'_, G> {
    fn links(&mut self, id: u32) -> &mut Links {
        self.0.neighbours(id)
    }
}

/// A free range that is long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    pub(crate) offset: u64,
    range: u64,
}

#[derive(Clone, Copy, Debug)]
struct Free {
    size: u64,
    offset: u64,
    /// The taken range that follows.
    next: u32,
}

impl Free {
    fn of_entry((&(size, offset), &next): (&(u64, u64), &u32)) -> Self {
        Self { size, offset, next }
    }

    fn order(&self) -> (u64, u64) {
        (self.size, self.offset)
    }
}

/// Hands out ranges of `0..capacity` and takes them back.
#[derive(Debug)]
pub(crate) struct Extents {
    capacity: u64,
    alignment: u64,
    free_bytes: u64,
    /// Free ranges as (size, offset), and the taken one that follows; no two of them touch.
    free: BTreeMap<(u64, u64), u32>,
    /// One more of them, the latest that changed: where objects come and go side by side it is the
    /// next to change, too.
    latest: Option<Free>,
    /// Taken ranges, by address.
    taken: List,
}

impl Extents {
    /// All of `length` free, but for a last part shorter than `alignment`.
    pub(crate) fn new(length: u64, alignment: u64) -> Self {
        let capacity = length - length % alignment;
        let whole = Free {
            size: capacity,
            offset: 0,
            next: NONE,
        };
        Self {
            capacity,
            alignment,
            free_bytes: capacity,
            free: BTreeMap::new(),
            latest: (capacity > 0).then_some(whole),
            taken: List::EMPTY,
        }
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
        self.longest().map_or(0, |free| free.size)
    }

    fn longest(&self) -> Option<Free> {
        let other = self.free.last_key_value().map(Free::of_entry);
        let both = other.into_iter().chain(self.latest);
        both.max_by_key(Free::order)
    }

    /// The taken ranges on both sides of the longest free one.
    pub(crate) fn beside_largest_free(&self, ground: &impl Ground) -> [Option<u32>; 2] {
        let next = self.longest().map_or(NONE, |free| free.next);
        [self.before(ground, next), next].map(|id| (id != NONE).then_some(id))
    }

    /// The taken range with the lowest offset.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.taken.front != NONE).then_some(self.taken.front)
    }

    /// The smallest free range that holds `length` bytes.
    pub(crate) fn fit(&self, length: u64) -> Option<Fit> {
        let size = self.size_of(length).filter(|&size| size > 0)?;
        let latest = self.latest.filter(|latest| latest.size >= size);
        let other = self.free.range((size, 0)..).next().map(Free::of_entry);
        let both = latest.into_iter().chain(other);
        let best = both.min_by_key(Free::order)?;
        Some(Fit {
            offset: best.offset,
            range: best.size,
        })
    }

    /// Takes a free range out.
    fn pull(&mut self, size: u64, offset: u64) -> Option<u32> {
        match self.latest {
            Some(latest) if latest.offset == offset => {
                self.latest = None;
                Some(latest.next)
            }
            _ => self.free.remove(&(size, offset)),
        }
    }

    /// Takes a free range in, as the latest.
    fn push(&mut self, free: Free) {
        if let Some(Free { size, offset, next }) = self.latest.replace(free) {
            self.free.insert((size, offset), next);
        }
    }

    /// Takes the beginning of a free range for `id`, which starts there.
    pub(crate) fn take(&mut self, ground: &mut impl Ground, id: u32, fit: Fit) {
        let Fit { offset, range } = fit;
        let next = self.pull(range, offset);
        let next = next.expect("what fits is free");
        let prev = self.before(ground, next);
        let size = self.size(ground, id);
        self.taken.insert(&mut ByAddress(ground), id, prev, next);
        if range > size {
            self.push(Free {
                size: range - size,
                offset: offset + size,
                next,
            });
        }
        self.free_bytes -= size;
    }

    /// Takes back what `id` has.
    pub(crate) fn release(&mut self, ground: &mut impl Ground, id: u32) {
        let Links { prev, next } = ground.neighbours_of(id);
        let size = self.size(ground, id);
        let start = ground.start(id);
        let end = start + size;
        let (left, right) = (self.end(ground, prev), self.start(ground, next));
        debug_assert!(left <= start && end <= right, "ranges that overlap");
        if left < start {
            self.pull(start - left, left);
        }
        if end < right {
            self.pull(right - end, end);
        }
        self.taken.remove(&mut ByAddress(ground), id);
        self.push(Free {
            size: right - left,
            offset: left,
            next,
        });
        self.free_bytes += size;
    }

    /// Lets `rest` have what `id` no longer has at its end.
    pub(crate) fn split(&mut self, ground: &mut impl Ground, id: u32, rest: u32) {
        let next = ground.neighbours_of(id).next;
        self.taken.insert(&mut ByAddress(ground), rest, id, next);
    }

    /// Lets `by` have all that `id` has.
    pub(crate) fn replace(&mut self, ground: &mut impl Ground, id: u32, by: u32) {
        let Links { prev, next } = ground.neighbours_of(id);
        let (left, start) = (self.end(ground, prev), ground.start(id));
        if left < start {
            let size = start - left;
            self.pull(size, left);
            self.push(Free {
                size,
                offset: left,
                next: by,
            });
        }
        self.taken.remove(&mut ByAddress(ground), id);
        self.taken.insert(&mut ByAddress(ground), by, prev, next);
    }

    /// What would be free side by side without the taken ranges from `first` to `last`.
    pub(crate) fn room(&self, ground: &impl Ground, first: u32, last: u32) -> u64 {
        let before = ground.neighbours_of(first).prev;
        let after = ground.neighbours_of(last).next;
        self.start(ground, after) - self.end(ground, before)
    }

    fn before(&self, ground: &impl Ground, next: u32) -> u32 {
        match next {
            NONE => self.taken.back,
            next => ground.neighbours_of(next).prev,
        }
    }

    fn size(&self, ground: &impl Ground, id: u32) -> u64 {
        let size = self.size_of(ground.length(id));
        size.expect("it was small enough to be allocated")
    }

    /// Where a taken range ends, or the segment begins.
    fn end(&self, ground: &impl Ground, id: u32) -> u64 {
        match id {
            NONE => 0,
            id => ground.start(id) + self.size(ground, id),
        }
    }

    /// Where a taken range begins, or the segment ends.
    fn start(&self, ground: &impl Ground, id: u32) -> u64 {
        match id {
            NONE => self.capacity,
            id => ground.start(id),
        }
    }

    /// Bytes handed out.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.capacity - self.free_bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ranges as (start, length, neighbours), by their place in the vector.
    #[derive(Debug, Default)]
    pub(crate) struct Plots(Vec<(u64, u64, Links)>);

    impl Ground for Plots {
        fn start(&self, id: u32) -> u64 {
            self.0[id as usize].0
        }

        fn length(&self, id: u32) -> u64 {
            self.0[id as usize].1
        }

        fn neighbours(&mut self, id: u32) -> &mut Links {
            &mut self.0[id as usize].2
        }

        fn neighbours_of(&self, id: u32) -> Links {
            self.0[id as usize].2
        }
    }

    fn taken(extents: &mut Extents, plots: &mut Plots, length: u64) -> Option<u32> {
        let fit = extents.fit(length)?;
        let id = plots.0.len() as u32;
        plots.0.push((fit.offset, length, Links::LOOSE));
        extents.take(plots, id, fit);
        Some(id)
    }

    proptest! {
        #[test]
        fn extents_never_overlap_and_coalesce_back_to_one_range(
            capacity in 1u64..200_000,
            shift in 0u32..10,
            steps in prop::collection::vec((any::<bool>(), 1u64..9_001, any::<prop::sample::Index>()), 1..300),
        ) {
            let alignment = 1 << shift;
            let mut extents = Extents::new(capacity, alignment);
            let mut plots = Plots::default();
            let whole = capacity - capacity % alignment;
            // The naive model: all ranges that are out.
            let mut out: Vec<(u64, u64)> = Vec::new();
            let mut ids = Vec::new();
            for (allocate, length, which) in steps {
                if allocate {
                    let size = length.next_multiple_of(alignment);
                    match taken(&mut extents, &mut plots, length) {
                        Some(id) => {
                            let offset = plots.start(id);
                            ids.push(id);
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
                    let which = which.index(out.len());
                    out.swap_remove(which);
                    extents.release(&mut plots, ids.swap_remove(which));
                }
                let used: u64 = out.iter().map(|(_, l)| l.next_multiple_of(alignment)).sum();
                prop_assert_eq!(extents.used(), used);
                prop_assert_eq!(extents.largest_free(), longest_gap(&out, whole, alignment));
            }
            let mut by_address: Vec<u32> = ids.clone();
            by_address.sort_unstable_by_key(|id| plots.start(*id));
            for pair in by_address.windows(2) {
                prop_assert_eq!(plots.neighbours_of(pair[0]).next, pair[1]);
            }
            prop_assert_eq!(extents.first(), by_address.first().copied());
            for id in ids {
                extents.release(&mut plots, id);
            }
            prop_assert_eq!(extents.used(), 0);
            prop_assert_eq!(extents.largest_free(), whole);
            prop_assert!(extents.free.is_empty());
        }
    }

    #[test]
    fn parts_of_a_taken_range_come_free_one_by_one() {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let mut extents = Extents::new(64, 1);
            let mut plots = Plots::default();
            let below = taken(&mut extents, &mut plots, 10).unwrap();
            let whole = taken(&mut extents, &mut plots, 30).unwrap();
            let above = taken(&mut extents, &mut plots, 4).unwrap();
            // So that a free range lies before what is split and replaced.
            extents.release(&mut plots, below);
            let split = |extents: &mut Extents, plots: &mut Plots, id: u32, first: u64| {
                let (start, length, _) = plots.0[id as usize];
                plots.0[id as usize].1 = first;
                plots.0.push((start + first, length - first, Links::LOOSE));
                let rest = plots.0.len() as u32 - 1;
                extents.split(plots, id, rest);
                rest
            };
            let middle = split(&mut extents, &mut plots, whole, 7);
            let last = split(&mut extents, &mut plots, middle, 5);
            let first = plots.0.len() as u32;
            plots.0.push((10, 7, Links::LOOSE));
            extents.replace(&mut plots, whole, first);
            assert_eq!((extents.used(), extents.first()), (34, Some(first)));
            assert_eq!(extents.beside_largest_free(&plots), [Some(above), None]);
            for id in order.map(|at| [first, middle, last][at]) {
                extents.release(&mut plots, id);
            }
            assert_eq!((extents.used(), extents.largest_free()), (4, 40));
            assert_eq!(extents.first(), Some(above));
            extents.release(&mut plots, above);
            assert_eq!(extents.largest_free(), 64);
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
        let mut plots = Plots::default();
        assert_eq!(taken(&mut extents, &mut plots, u64::MAX), None);
        assert_eq!(taken(&mut extents, &mut plots, (1 << 20) + 1), None);
        assert_eq!(taken(&mut extents, &mut plots, 1 << 20), Some(0));
    }
}
