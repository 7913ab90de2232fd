//! Which neighbours to evict where enough memory would come free, but not side by side.

use std::{collections::VecDeque, ops::Range};

/// A taken range of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken<U> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// When its object was last used; `None`: it must stay.
    pub(crate) used: Option<U>,
    pub(crate) slot: u32,
}

/// The neighbours in `taken`, which is sorted and lies in `0..capacity`, without which `size` bytes
/// are free side by side; of all such windows the one whose latest use is the longest ago.
pub(crate) fn cheapest<U: Copy + Ord>(
    taken: &[Taken<U>],
    capacity: u64,
    size: u64,
) -> Option<(U, Range<usize>)> {
    // What would be free if all of `from..to` were evicted.
    let room = |from: usize, to: usize| {
        let left = from.checked_sub(1).map_or(0, |before| taken[before].end);
        let right = taken.get(to).map_or(capacity, |after| after.start);
        right - left
    };
    let mut best: Option<(U, Range<usize>)> = None;
    // The window's uses that no later one exceeds; the greatest is in front.
    let mut greatest: VecDeque<(usize, U)> = VecDeque::new();
    let mut to = 0;
    for from in 0..taken.len() {
        to = to.max(from);
        while room(from, to) < size
            && let Some(used) = taken.get(to).and_then(|next| next.used)
        {
            while greatest.back().is_some_and(|(_, other)| *other <= used) {
                greatest.pop_back();
            }
            greatest.push_back((to, used));
            to += 1;
        }
        if room(from, to) >= size
            && let Some((_, used)) = greatest.front()
            && best.as_ref().is_none_or(|(least, _)| used < least)
        {
            best = Some((*used, from..to));
        }
        if greatest.front().is_some_and(|(at, _)| *at == from) {
            greatest.pop_front();
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_other_window_is_cheaper(
            parts in prop::collection::vec((0u64..4, 1u64..5, prop::option::weighted(0.8, 0u32..50)), 0..12),
            tail in 0u64..4,
            size in 1u64..20,
        ) {
            let mut at = 0;
            let mut taken = Vec::new();
            for (slot, (gap, length, used)) in parts.into_iter().enumerate() {
                let start = at + gap;
                at = start + length;
                taken.push(Taken { start, end: at, used, slot: slot as u32 });
            }
            let capacity = at + tail;
            let mut least: Option<u32> = None;
            for from in 0..taken.len() {
                for to in from + 1..=taken.len() {
                    let left = if from == 0 { 0 } else { taken[from - 1].end };
                    let right = if to == taken.len() { capacity } else { taken[to].start };
                    let uses: Option<Vec<u32>> = taken[from..to].iter().map(|one| one.used).collect();
                    if let Some(uses) = uses && right - left >= size {
                        let latest = uses.into_iter().max();
                        least = least.min(latest).or(latest);
                    }
                }
            }
            let found = cheapest(&taken, capacity, size);
            let free_already = |range: &Range<usize>| range.is_empty();
            prop_assert!(found.as_ref().is_none_or(|(_, range)| !free_already(range)));
            // Where a gap is large enough already, nobody asks.
            let mut ends = vec![0];
            ends.extend(taken.iter().map(|one| one.end));
            let starts = taken.iter().map(|one| one.start).chain([capacity]);
            let asked = ends.iter().zip(starts).all(|(end, start)| start - end < size);
            if asked {
                prop_assert_eq!(found.map(|(used, _)| used), least);
            }
        }
    }
}
