//! Finds slots by the hashes of their keys.
//!
//! Linear hashing: the table grows and shrinks by one line at a time, with the insertion or removal
//! that made it too full or too empty, so that no operation pays for the size of the table. A line
//! is a cache line, and a look-up mostly needs one.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::mapped::{Pool, Row};

const ENTRIES: usize = 7;

/// Entries per two lines: above the first figure a line is added, below the second one goes.
const FULL: u64 = 9;
const EMPTY: u64 = 6;

/// Holds the hash beside the slot: passing by a neighbour does not go to the bodies, of which each
/// is a cache miss.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Entry {
    hash: u32,
    slot: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Line {
    entries: [Entry; ENTRIES],
    len: u32,
    /// The line for what does not fit, counted from 1; 0: there is none.
    more: u32,
}

/// Where a line is.
#[derive(Clone, Copy)]
enum At {
    Main(u32),
    More(u32),
}

#[derive(Debug)]
pub(crate) struct Index {
    main: Row<Line>,
    more: Pool,
    /// In use of `main`: between a power of two and the next.
    lines: u32,
    len: u64,
}

impl Index {
    pub(crate) fn new() -> Self {
        let mut main = Row::new();
        main.resize(1);
        Self {
            main,
            more: Pool::new(size_of::<Line>()),
            lines: 1,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    #[inline]
    fn home(&self, hash: u32) -> u32 {
        let mask = (self.lines - 1)
            .checked_ilog2()
            .map_or(0, |top| (2 << top) - 1);
        let line = hash & mask;
        if line < self.lines {
            line
        } else {
            line & mask >> 1
        }
    }

    fn line(&self, at: At) -> &Line {
        match at {
            At::Main(at) => self.main.at(at),
            At::More(at) => Line::ref_from_bytes(self.more.bytes(at)).expect("it is aligned"),
        }
    }

    fn line_mut(&mut self, at: At) -> &mut Line {
        match at {
            At::Main(at) => self.main.at_mut(at),
            At::More(at) => Line::mut_from_bytes(self.more.bytes_mut(at)).expect("it is aligned"),
        }
    }

    /// The first slot under the hash that is meant.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut meant: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut line = self.main.at(self.home(hash));
        loop {
            for entry in &line.entries[..(line.len as usize).min(ENTRIES)] {
                if entry.hash == hash && meant(entry.slot) {
                    return Some(entry.slot);
                }
            }
            let more = line.more.checked_sub(1)?;
            line = self.line(At::More(more));
        }
    }

    /// Reads the line that a look-up begins with, so that it is at hand then.
    #[inline]
    pub(crate) fn touch(&self, hash: u32) -> u32 {
        self.main.at(self.home(hash)).len
    }

    pub(crate) fn insert(&mut self, hash: u32, slot: u32) {
        self.add(self.home(hash), Entry { hash, slot });
        self.len += 1;
        if self.len * 2 > u64::from(self.lines) * FULL {
            self.split();
        }
    }

    /// `true`: it was there.
    pub(crate) fn remove(&mut self, hash: u32, slot: u32) -> bool {
        let Some((at, place)) = self.place(hash, slot) else {
            return false;
        };
        self.take_out(self.home(hash), at, place);
        self.len -= 1;
        if self.lines > 1 && self.len * 2 < u64::from(self.lines) * EMPTY {
            self.merge();
        }
        true
    }

    /// `true`: it was there.
    pub(crate) fn replace(&mut self, hash: u32, slot: u32, by: u32) -> bool {
        let found = self.place(hash, slot);
        if let Some((at, place)) = found {
            self.line_mut(at).entries[place].slot = by;
        }
        found.is_some()
    }

    fn place(&self, hash: u32, slot: u32) -> Option<(At, usize)> {
        let mut at = At::Main(self.home(hash));
        loop {
            let line = self.line(at);
            let entries = &line.entries[..line.len as usize];
            if let Some(place) = entries.iter().position(|entry| entry.slot == slot) {
                return Some((at, place));
            }
            at = At::More(line.more.checked_sub(1)?);
        }
    }

    /// Adds to the end of a chain, whose lines but the last are full.
    fn add(&mut self, home: u32, entry: Entry) {
        let mut at = At::Main(home);
        while let Some(more) = self.line(at).more.checked_sub(1) {
            at = At::More(more);
        }
        if self.line(at).len as usize == ENTRIES {
            let more = self.more.take();
            self.line_mut(at).more = more + 1;
            at = At::More(more);
            *self.line_mut(at) = Line::new_zeroed();
        }
        let line = self.line_mut(at);
        line.entries[line.len as usize] = entry;
        line.len += 1;
    }

    /// Fills the place with the last of the chain.
    fn take_out(&mut self, home: u32, at: At, place: usize) {
        let (mut before, mut last) = (None, At::Main(home));
        while let Some(more) = self.line(last).more.checked_sub(1) {
            before = Some(last);
            last = At::More(more);
        }
        let line = self.line_mut(last);
        line.len -= 1;
        let entry = line.entries[line.len as usize];
        let emptied = line.len == 0;
        self.line_mut(at).entries[place] = entry;
        if let (true, Some(before), At::More(more)) = (emptied, before, last) {
            self.line_mut(before).more = 0;
            self.more.give(more);
        }
    }

    /// Empties a line and gives its chain back.
    fn drain(&mut self, home: u32, mut each: impl FnMut(&mut Self, Entry)) {
        let mut line = std::mem::replace(self.main.at_mut(home), Line::new_zeroed());
        loop {
            for &entry in &line.entries[..line.len as usize] {
                each(self, entry);
            }
            let Some(more) = line.more.checked_sub(1) else {
                return;
            };
            line = *self.line(At::More(more));
            self.more.give(more);
        }
    }

    fn split(&mut self) {
        let from = self.lines - (1 << self.lines.ilog2());
        self.lines += 1;
        self.main.resize(self.lines);
        self.drain(from, |index, entry| {
            index.add(index.home(entry.hash), entry)
        });
    }

    fn merge(&mut self) {
        self.lines -= 1;
        let into = self.lines - (1 << self.lines.ilog2());
        self.drain(self.lines, |index, entry| index.add(into, entry));
        self.main.resize(self.lines);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(steps in prop::collection::vec((any::<bool>(), any::<u32>(), 0u32..400), 1..40)) {
            let mut index = Index::new();
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            let mut next = 0;
            for (grow, hash, count) in steps {
                for n in 0..count {
                    if grow {
                        // Many share a hash.
                        let hash = hash.wrapping_mul(n / 3);
                        index.insert(hash, next);
                        model.insert(next, hash);
                        next += 1;
                    } else if let Some((slot, hash)) = model.pop_first() {
                        prop_assert!(index.remove(hash, slot));
                        prop_assert!(!index.remove(hash, slot));
                    }
                }
                prop_assert_eq!(index.len(), model.len() as u64);
                for (&slot, &hash) in &model {
                    prop_assert_eq!(index.find(hash, |found| found == slot), Some(slot));
                }
            }
        }
    }

    #[test]
    fn it_grows_and_shrinks_by_one_line_at_a_time_and_stays_dense() {
        let mut index = Index::new();
        let hash = |slot: u32| slot.wrapping_mul(0x9e37_79b9);
        let mut before = index.lines;
        for slot in 0..200_000 {
            index.insert(hash(slot), slot);
            assert!(
                index.lines - before <= 1,
                "{} lines at once",
                index.lines - before
            );
            before = index.lines;
        }
        assert!((40_000..50_000).contains(&index.lines), "{}", index.lines);
        for slot in 0..200_000 {
            index.remove(hash(slot), slot);
            assert!(before - index.lines <= 1);
            before = index.lines;
        }
        assert_eq!((index.len, index.more.mapped_pages()), (0, 0));
        assert!(index.lines <= 2);
    }
}
