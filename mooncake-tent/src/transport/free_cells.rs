//! Which cells of the table no task has.

use super::TaskRef;
use crate::{stripes::Stripes, sync::Mutex};

/// For so many a thread has room from its first one on.
const ROOM: usize = 1024;

/// Cells go back to the thread that gave them up, which has them in its cache.
#[derive(Debug, Default)]
pub(super) struct FreeCells {
    given_up: Stripes<Mutex<Vec<u32>>>,
    /// Cells from here on were never used.
    fresh: Mutex<u32>,
}

impl FreeCells {
    /// Adds `count` cells below `limit` to `refs`, or none.
    pub(super) fn take(&self, count: usize, limit: u32, refs: &mut Vec<TaskRef>) -> bool {
        let first = refs.len();
        let end = first + count;
        let task = |slot| TaskRef {
            slot,
            generation: 0,
        };
        // What others have given up before what nobody has used: there is no more memory than at the
        // worst moment.
        for given_up in self.given_up.all() {
            let mut slots = given_up.lock();
            let kept = slots.len().saturating_sub(end - refs.len());
            refs.extend(slots.drain(kept..).rev().map(task));
            if refs.len() == end {
                return true;
            }
        }
        let missing = (end - refs.len()) as u64;
        let mut fresh = self.fresh.lock();
        if u64::from(*fresh) + missing <= u64::from(limit) {
            let from = *fresh;
            *fresh += missing as u32;
            refs.extend((from..*fresh).map(task));
            return true;
        }
        drop(fresh);
        let back: Vec<u32> = refs.drain(first..).map(|task| task.slot).collect();
        self.give_up(&back);
        false
    }

    /// Tasks use these no more.
    pub(super) fn give_up(&self, slots: &[u32]) {
        let mut given_up = self.given_up.own().lock();
        if given_up.capacity() == 0 {
            // Once, rather than at each doubling.
            given_up.reserve(ROOM);
        }
        given_up.extend_from_slice(slots);
    }

    /// Cells that some task has or had.
    pub(super) fn used(&self) -> u32 {
        *self.fresh.lock()
    }

    /// Cells that some task has.
    pub(super) fn taken(&self) -> usize {
        let free = self.given_up.all().map(|slots| slots.lock().len());
        let free: usize = free.sum();
        // One that is on its way from one thread to another may have been counted twice.
        (self.used() as usize).saturating_sub(free)
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use std::{collections::HashSet, thread};

    use super::*;

    #[test]
    fn all_that_were_given_up_are_found_by_any_thread_before_fresh_ones() {
        let free = FreeCells::default();
        let mut refs = Vec::new();
        assert!(free.take(6, 8, &mut refs));
        thread::scope(|scope| {
            for part in refs.chunks(2) {
                let slots: Vec<u32> = part.iter().map(|task| task.slot).collect();
                let free = &free;
                scope.spawn(move || free.give_up(&slots));
            }
        });
        assert_eq!(free.taken(), 0);
        let mut again = Vec::new();
        assert!(free.take(5, 8, &mut again));
        let slots: HashSet<u32> = again.iter().map(|task| task.slot).collect();
        assert_eq!((slots.len(), free.used(), free.taken()), (5, 6, 5));
    }

    #[test]
    fn who_asks_for_more_than_there_are_gets_none_and_loses_none() {
        let free = FreeCells::default();
        let mut refs = Vec::new();
        assert!(free.take(3, 8, &mut refs));
        free.give_up(&[refs.pop().unwrap().slot]);
        assert!(!free.take(7, 8, &mut refs));
        assert_eq!((refs.len(), free.taken()), (2, 2));
        assert!(free.take(6, 8, &mut refs));
        let slots: HashSet<u32> = refs.iter().map(|task| task.slot).collect();
        assert_eq!((slots.len(), free.taken()), (8, 8));
    }
}

#[cfg(all(test, mooncake_loom))]
mod loom_models {
    use std::{collections::HashSet, sync::Arc};

    use loom::{model, thread};

    use super::*;
    use crate::stripes::sit_at;

    const LIMIT: u32 = 3;

    fn slots(refs: &[TaskRef]) -> HashSet<u32> {
        refs.iter().map(|task| task.slot).collect()
    }

    /// One thread gives up what it has and takes `one`, another likewise with `other`; then all cells
    /// are found, each once.
    fn give_and_take(one: usize, other: usize) {
        model(move || {
            let free = Arc::new(FreeCells::default());
            let mut had = Vec::new();
            assert!(free.take(2, LIMIT, &mut had));
            let both = [(0, one), (1, other)].map(|(at, count)| {
                let (free, slot) = (Arc::clone(&free), had[at].slot);
                move || {
                    sit_at(at);
                    free.give_up(&[slot]);
                    let mut taken = Vec::new();
                    let all = free.take(count, LIMIT, &mut taken);
                    assert_eq!(taken.len(), if all { count } else { 0 });
                    taken
                }
            });
            let [here, there] = both;
            let there = thread::spawn(there);
            let mut taken = here();
            taken.extend(there.join().unwrap());
            assert_eq!(free.taken(), taken.len());
            let rest = LIMIT as usize - taken.len();
            assert!(free.take(rest, LIMIT, &mut taken), "one is lost");
            assert_eq!(slots(&taken).len(), LIMIT as usize, "one is had twice");
            assert!(!free.take(1, LIMIT, &mut taken));
        });
    }

    #[test]
    fn no_free_cell_is_had_twice_and_none_is_lost() {
        give_and_take(1, 1);
    }

    #[test]
    fn who_finds_too_few_free_cells_leaves_them_to_others() {
        give_and_take(2, 2);
    }
}
