//! Which objects are on disks, or on their way there: a table beside that of bodies, which most do
//! without.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::bodies::Bodies;
use crate::{
    list::{Linked, Links, List, NONE},
    slab::{Ref, Slab},
};

/// Where a replica stands. What is dispatched or on the disk is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A task for it waits to be fetched.
    Queued,
    /// The holder may be writing it, or may have written it.
    Dispatched,
    /// The holder has said so.
    OnDisk,
}

/// A replica of an object on a disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The object's body.
    pub(crate) body: u32,
    /// In `Storages`.
    pub(crate) storage: u32,
    pub(crate) stage: Stage,
    /// How often its offload was tried in vain.
    pub(crate) failures: u8,
    /// The reconciliation that found it.
    pub(crate) round: u32,
    /// The task that brings it to the disk, if there is one.
    pub(crate) task: u64,
    /// The body's next one.
    next: u32,
    /// Among those of its storage.
    links: Links,
}

impl Linked for Slab<Entry> {
    fn links(&mut self, slot: u32) -> &mut Links {
        &mut self[slot].links
    }
}

/// All replicas on disks.
#[derive(Debug)]
pub(crate) struct Disks {
    entries: Slab<Entry>,
    /// The first one of each body that has any.
    of: FxHashMap<u32, u32>,
}

impl Disks {
    pub(crate) fn new() -> Self {
        Self {
            entries: Slab::new(),
            of: FxHashMap::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn insert(
        &mut self,
        bodies: &mut Bodies,
        list: &mut List,
        (body, storage): (u32, u32),
        (stage, round, task): (Stage, u32, u64),
    ) -> Ref {
        let next = self.of.get(&body).copied().unwrap_or(NONE);
        let at = self.entries.insert(Entry {
            body,
            storage,
            stage,
            failures: 0,
            round,
            task,
            next,
            links: Links::LOOSE,
        });
        self.of.insert(body, at.slot);
        bodies[body].set_disk(true);
        list.push_front(&mut self.entries, at.slot);
        at
    }

    /// `list` is that of the entry's storage.
    pub(crate) fn remove(&mut self, bodies: &mut Bodies, list: &mut List, at: u32) -> Entry {
        list.remove(&mut self.entries, at);
        let entry = self.entries.remove(at);
        let first = self.of.get_mut(&entry.body);
        let first = first.expect("a body with entries is known");
        if *first != at {
            let mut before = *first;
            while self.entries[before].next != at {
                before = self.entries[before].next;
            }
            self.entries[before].next = entry.next;
        } else if entry.next != NONE {
            *first = entry.next;
        } else {
            self.of.remove(&entry.body);
            bodies[entry.body].set_disk(false);
        }
        entry
    }

    /// Puts an entry first in its storage's list.
    pub(crate) fn move_to_front(&mut self, list: &mut List, at: u32) {
        list.remove(&mut self.entries, at);
        list.push_front(&mut self.entries, at);
    }

    pub(crate) fn at(&self, at: u32) -> &Entry {
        &self.entries[at]
    }

    pub(crate) fn at_mut(&mut self, at: u32) -> &mut Entry {
        &mut self.entries[at]
    }

    pub(crate) fn get(&self, at: Ref) -> Option<&Entry> {
        self.entries.get(at)
    }

    pub(crate) fn reference(&self, at: u32) -> Ref {
        self.entries.reference(at)
    }

    /// The entries of a body that is marked to have some.
    pub(crate) fn of(&self, body: u32) -> impl Iterator<Item = (u32, &Entry)> {
        let first = self.of.get(&body).copied();
        let taken = |at: u32| (at != NONE).then_some(at);
        let slots = std::iter::successors(first, move |&at| taken(self.entries[at].next));
        slots.map(|at| (at, &self.entries[at]))
    }

    /// The places of these.
    pub(crate) fn places(&self, body: u32) -> SmallVec<[u32; 2]> {
        self.of(body).map(|(at, _)| at).collect()
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.entries.iter()
    }

    /// Those in these places.
    pub(crate) fn range(&self, places: std::ops::Range<u32>) -> impl Iterator<Item = &Entry> {
        places.filter_map(|at| self.entries.at(at))
    }

    /// One past the last place that may be taken.
    pub(crate) fn end(&self) -> u32 {
        self.entries.end()
    }
}
