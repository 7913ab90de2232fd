//! Which record is where: 48 bytes for each, and a table of their numbers.

use std::collections::{HashMap, HashSet};

use hashbrown::HashTable;
use parking_lot::RwLock;

use crate::{
    format::{UNIT, footer::FooterEntry, record::Layout, tombstone::Tombstone},
    hash::KeyHash,
    name::Incarnation,
};

const SHARDS: usize = 64;
const CHUNK: usize = 256;
const ALIGNED: u8 = 1;
const REMOVING: u8 = 2;

/// One record that can be read, or is just being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) hash: KeyHash,
    pub(crate) incarnation: Incarnation,
    /// Never 0.
    pub(crate) bucket: u32,
    unit: u32,
    value_bytes: u32,
    name_bytes: u16,
    flags: u8,
}

const _: () = assert!(size_of::<Entry>() == 48);

impl Entry {
    pub(crate) fn new(bucket: u32, record: &FooterEntry) -> Self {
        let unit = record.layout.unit();
        Self {
            hash: record.hash,
            incarnation: record.incarnation,
            bucket,
            unit: unit
                .expect("nothing is written that far on, and whatever reads a bucket refuses it"),
            value_bytes: record.layout.value_bytes,
            name_bytes: record.layout.name_bytes,
            flags: if record.layout.aligned { ALIGNED } else { 0 },
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout {
            at: u64::from(self.unit) * UNIT,
            name_bytes: self.name_bytes,
            value_bytes: self.value_bytes,
            aligned: self.flags & ALIGNED != 0,
        }
    }

    pub(crate) fn span(&self) -> u64 {
        self.layout().span()
    }

    /// What says that this copy is dead.
    pub(crate) fn tombstone(&self) -> Tombstone {
        Tombstone {
            bucket: self.bucket,
            unit: self.unit,
            hash: self.hash,
            incarnation: self.incarnation,
        }
    }

    /// Its removal has begun: nobody is served it any more.
    pub(crate) fn is_removing(&self) -> bool {
        self.flags & REMOVING != 0
    }
}

/// Whether a put may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeginPut {
    Go,
    /// The same record is there.
    Here,
    /// A put of it has begun and not ended.
    InFlight,
    /// It was removed.
    Removed,
    /// A later life is there.
    Stale(Incarnation),
}

/// What became of a record that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndPut {
    Live,
    /// It was removed before it could be read.
    Removed,
    /// A later life came first.
    Stale(Incarnation),
}

/// Whether there is something to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeginRemove {
    /// It is here, and nobody is served it any more.
    Found,
    /// It is being written. It will never be served.
    InFlight,
    Absent,
    /// Another life is there.
    Other(Incarnation),
}

/// All records, in parts that are locked one by one.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[RwLock<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    table: HashTable<u32>,
    chunks: Vec<Box<[Entry; CHUNK]>>,
    /// The first of the places that nobody has, linked by their `unit`; 0 ends it.
    free: u32,
    len: u32,
    /// Puts that have begun, and whether each was removed meanwhile.
    begun: HashMap<KeyHash, Vec<(Incarnation, bool)>>,
    /// Removed while they were written: their tombstones are of every copy, so none is put until they are gone. `true`: the
    /// put has ended, and what it wrote has a tombstone of its own, so they can go.
    removed: HashMap<(KeyHash, Incarnation), bool>,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
        }
    }

    fn shard(&self, hash: KeyHash) -> &RwLock<Shard> {
        &self.shards[(hash.high >> 58) as usize]
    }

    pub(crate) fn get(&self, hash: KeyHash) -> Option<Entry> {
        let shard = self.shard(hash).read();
        shard.find(hash).filter(|entry| !entry.is_removing())
    }

    pub(crate) fn len(&self) -> u64 {
        let lens = self.shards.iter().map(|shard| u64::from(shard.read().len));
        lens.sum()
    }

    /// What the index takes, as far as its own parts know.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let parts = self.shards.iter().map(|shard| {
            let shard = shard.read();
            // A control byte for each place of the table.
            let places = shard.table.capacity() * 8 / 7;
            shard.chunks.len() * size_of::<[Entry; CHUNK]>() + places * (size_of::<u32>() + 1)
        });
        parts.sum::<usize>() as u64
    }

    pub(crate) fn begin_put(&self, hash: KeyHash, incarnation: Incarnation) -> BeginPut {
        let mut shard = self.shard(hash).write();
        if let Some(entry) = shard.find(hash) {
            if entry.incarnation > incarnation {
                return BeginPut::Stale(entry.incarnation);
            }
            if entry.incarnation == incarnation {
                let removing = entry.is_removing();
                return if removing {
                    BeginPut::Removed
                } else {
                    BeginPut::Here
                };
            }
        }
        if shard.removed.contains_key(&(hash, incarnation)) {
            return BeginPut::Removed;
        }
        let begun = shard.begun.entry(hash).or_default();
        if begun.iter().any(|(life, _)| *life == incarnation) {
            return BeginPut::InFlight;
        }
        begun.push((incarnation, false));
        BeginPut::Go
    }

    /// A tombstone of every copy of a record is there to stay until the log is rewritten.
    pub(crate) fn refuse(&self, hash: KeyHash, incarnation: Incarnation) {
        let mut shard = self.shard(hash).write();
        shard.removed.insert((hash, incarnation), true);
    }

    /// What is refused and has tombstones for each copy there is.
    pub(crate) fn refused(&self) -> HashSet<(KeyHash, Incarnation)> {
        let mut all = HashSet::new();
        for shard in &self.shards {
            let shard = shard.read();
            let ended = shard.removed.iter().filter(|(_, ended)| **ended);
            all.extend(ended.map(|(record, _)| *record));
        }
        all
    }

    /// The tombstone of every copy is gone.
    pub(crate) fn allow(&self, hash: KeyHash, incarnation: Incarnation) {
        let mut shard = self.shard(hash).write();
        shard.removed.remove(&(hash, incarnation));
    }

    /// A put that began has failed, and what it may have written has a tombstone, or it panicked and nobody knows;
    /// `true`: it was removed meanwhile.
    pub(crate) fn cancel_put(&self, hash: KeyHash, incarnation: Incarnation) -> bool {
        let mut shard = self.shard(hash).write();
        let removed = shard.end(hash, incarnation);
        if removed && !std::thread::panicking() {
            shard.removed.insert((hash, incarnation), true);
        }
        removed
    }

    /// A put that began has ended with a durable record. `dead` is told of what cannot be read from now on, be
    /// it the former life or the new record itself, before anybody else can know.
    pub(crate) fn end_put(&self, entry: Entry, dead: impl FnOnce(&Entry)) -> EndPut {
        let mut shard = self.shard(entry.hash).write();
        if shard.end(entry.hash, entry.incarnation) {
            dead(&entry);
            let record = (entry.hash, entry.incarnation);
            shard.removed.insert(record, true);
            return EndPut::Removed;
        }
        match shard.find_mut(entry.hash) {
            Some(there) if there.incarnation > entry.incarnation => {
                let later = there.incarnation;
                dead(&entry);
                EndPut::Stale(later)
            }
            Some(there) => {
                dead(there);
                *there = entry;
                EndPut::Live
            }
            None => {
                shard.insert(entry);
                EndPut::Live
            }
        }
    }

    /// Hides a record whose tombstone is about to be written.
    pub(crate) fn begin_remove(
        &self,
        hash: KeyHash,
        incarnation: Incarnation,
        found: impl FnOnce(&Entry),
    ) -> BeginRemove {
        let mut shard = self.shard(hash).write();
        let begun = shard.begun.get_mut(&hash);
        let begun = begun.and_then(|all| all.iter_mut().find(|(life, _)| *life == incarnation));
        if let Some((_, removed)) = begun {
            *removed = true;
            shard.removed.insert((hash, incarnation), false);
            return BeginRemove::InFlight;
        }
        match shard.find_mut(hash) {
            Some(entry) if entry.incarnation == incarnation => {
                entry.flags |= REMOVING;
                // Under the lock: what compactions do meanwhile comes wholly before this or after it.
                found(entry);
                BeginRemove::Found
            }
            Some(entry) => BeginRemove::Other(entry.incarnation),
            None => BeginRemove::Absent,
        }
    }

    /// Forgets a record of which `durable` speak, and says where it was by now. A copy that was put anew meanwhile, and is
    /// being removed by somebody else, is theirs.
    pub(crate) fn end_remove(&self, durable: &[Tombstone]) -> Option<Entry> {
        let hash = durable.first()?.hash;
        let mut shard = self.shard(hash).write();
        let entry = shard.find(hash)?;
        let place = entry.tombstone();
        let ours = entry.is_removing() && durable.iter().any(|stone| stone.covers(&place));
        ours.then(|| {
            shard.remove(hash);
            entry
        })
    }

    /// Whether this very record is what readers are served.
    pub(crate) fn is_live(&self, record: &Entry) -> bool {
        let found = self.get(record.hash);
        found.is_some_and(|entry| entry.bucket == record.bucket && entry.unit == record.unit)
    }

    /// Whether this very record is known, be it to readers or only to the removal of it.
    pub(crate) fn is_here(&self, record: &Entry) -> bool {
        let found = self.shard(record.hash).read().find(record.hash);
        found.is_some_and(|entry| entry.bucket == record.bucket && entry.unit == record.unit)
    }

    /// Has readers find a record at another place, if it is still at the old one.
    pub(crate) fn relocate(&self, from: &Entry, to: &Entry) -> bool {
        let mut shard = self.shard(from.hash).write();
        match shard.find_mut(from.hash) {
            Some(entry) if entry.bucket == from.bucket && entry.unit == from.unit => {
                let removing = entry.flags & REMOVING;
                *entry = *to;
                entry.flags |= removing;
                true
            }
            _ => false,
        }
    }

    /// Forgets a record, if it is still there.
    pub(crate) fn purge(&self, record: &Entry) -> bool {
        let mut shard = self.shard(record.hash).write();
        let there = shard
            .find(record.hash)
            .is_some_and(|entry| entry.bucket == record.bucket && entry.unit == record.unit);
        if there {
            shard.remove(record.hash);
        }
        there
    }

    /// All that is known to lie in a bucket, in the order in which it does. Looks at every record there is.
    pub(crate) fn of_bucket(&self, bucket: u32) -> Vec<Entry> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let entries = shard.table.iter().map(|number| *shard.entry(*number));
            all.extend(entries.filter(|entry| entry.bucket == bucket));
        }
        all.sort_unstable_by_key(|entry| entry.unit);
        all
    }

    /// Takes in a record that a start has found. Of two of the same key the later life stays; what does not is
    /// returned.
    pub(crate) fn recover(&self, entry: Entry) -> Option<Entry> {
        let mut shard = self.shard(entry.hash).write();
        let Some(there) = shard.find_mut(entry.hash) else {
            shard.insert(entry);
            return None;
        };
        let rank = |entry: &Entry| (entry.incarnation, entry.bucket, entry.unit);
        if rank(there) < rank(&entry) {
            Some(std::mem::replace(there, entry))
        } else {
            Some(entry)
        }
    }
}

impl Shard {
    fn entry(&self, number: u32) -> &Entry {
        &self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    fn entry_mut(&mut self, number: u32) -> &mut Entry {
        &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    fn number(&self, hash: KeyHash) -> Option<u32> {
        let found = self
            .table
            .find(hash.low, |number| self.entry(*number).hash == hash);
        found.copied()
    }

    fn find(&self, hash: KeyHash) -> Option<Entry> {
        self.number(hash).map(|number| *self.entry(number))
    }

    fn find_mut(&mut self, hash: KeyHash) -> Option<&mut Entry> {
        self.number(hash).map(|number| self.entry_mut(number))
    }

    /// Ends a put that began; `true`: it was removed meanwhile.
    fn end(&mut self, hash: KeyHash, incarnation: Incarnation) -> bool {
        let Some(begun) = self.begun.get_mut(&hash) else {
            return false;
        };
        let mut removed = false;
        begun.retain(|(life, gone)| {
            removed |= *life == incarnation && *gone;
            *life != incarnation
        });
        if begun.is_empty() {
            self.begun.remove(&hash);
        }
        removed
    }

    fn insert(&mut self, entry: Entry) {
        // Place 0 of a shard is nobody's, so that 0 can end the list of free ones.
        if self.free == 0 {
            let first = (self.chunks.len() * CHUNK) as u32;
            let mut chunk = Box::new([Entry { unit: 0, ..entry }; CHUNK]);
            for (place, free) in chunk.iter_mut().enumerate().take(CHUNK - 1) {
                free.unit = first + place as u32 + 1;
            }
            self.chunks.push(chunk);
            self.free = first.max(1);
        }
        let number = self.free;
        self.free = self.entry(number).unit;
        *self.entry_mut(number) = entry;
        let chunks = &self.chunks;
        self.table.insert_unique(entry.hash.low, number, |number| {
            chunks[*number as usize / CHUNK][*number as usize % CHUNK]
                .hash
                .low
        });
        self.len += 1;
    }

    fn remove(&mut self, hash: KeyHash) {
        let Some(number) = self.number(hash) else {
            return;
        };
        if let Ok(place) = self.table.find_entry(hash.low, |other| *other == number) {
            place.remove();
        }
        let free = self.free;
        self.entry_mut(number).unit = free;
        self.free = number;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u64, seq: u64, bucket: u32) -> Entry {
        let record = FooterEntry {
            hash: KeyHash {
                high: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                low: key,
            },
            incarnation: Incarnation::new(1, seq),
            layout: Layout {
                at: 4160,
                name_bytes: 3,
                value_bytes: 10,
                aligned: false,
            },
        };
        Entry::new(bucket, &record)
    }

    fn put(index: &Index, entry: Entry) -> (EndPut, Vec<Entry>) {
        assert_eq!(index.begin_put(entry.hash, entry.incarnation), BeginPut::Go);
        let mut dead = Vec::new();
        let end = index.end_put(entry, |entry| dead.push(*entry));
        (end, dead)
    }

    #[test]
    fn a_million_records_take_less_than_64_bytes_each() {
        let index = Index::new();
        for key in 0..1_000_000 {
            assert_eq!(index.recover(entry(key, 1, 1)), None);
        }
        let each = index.memory_bytes() as f64 / 1e6;
        assert!(each <= 64.0, "{each} bytes");
        for key in 0..1_000_000 {
            assert!(index.purge(&entry(key, 1, 1)));
        }
        assert_eq!(index.len(), 0);
        let before = index.memory_bytes();
        for key in 0..1_000_000 {
            index.recover(entry(key, 2, 1));
        }
        assert_eq!(index.memory_bytes(), before, "places are used again");
        assert_eq!(index.get(entry(77, 2, 1).hash), Some(entry(77, 2, 1)));
    }

    #[test]
    fn a_later_life_replaces_an_earlier_one_and_not_the_other_way_round() {
        let index = Index::new();
        assert_eq!(put(&index, entry(1, 5, 1)), (EndPut::Live, vec![]));
        assert_eq!(
            put(&index, entry(1, 7, 2)),
            (EndPut::Live, vec![entry(1, 5, 1)])
        );
        let old = entry(1, 6, 3);
        let stale = BeginPut::Stale(Incarnation::new(1, 7));
        assert_eq!(index.begin_put(old.hash, old.incarnation), stale);
        let same = entry(1, 7, 3);
        assert_eq!(index.begin_put(same.hash, same.incarnation), BeginPut::Here);
    }

    #[test]
    fn of_two_puts_at_once_the_later_life_stays_whichever_ends_first() {
        let index = Index::new();
        let (old, new) = (entry(1, 5, 1), entry(1, 7, 2));
        assert_eq!(index.begin_put(old.hash, old.incarnation), BeginPut::Go);
        assert_eq!(
            index.begin_put(old.hash, old.incarnation),
            BeginPut::InFlight
        );
        assert_eq!(put(&index, new), (EndPut::Live, vec![]));
        let mut dead = Vec::new();
        let end = index.end_put(old, |entry| dead.push(*entry));
        assert_eq!((end, dead), (EndPut::Stale(new.incarnation), vec![old]));
        assert_eq!(index.get(new.hash), Some(new));
    }

    #[test]
    fn what_is_removed_while_it_is_written_is_never_served() {
        let index = Index::new();
        let one = entry(1, 5, 1);
        assert_eq!(index.begin_put(one.hash, one.incarnation), BeginPut::Go);
        let remove = index.begin_remove(one.hash, one.incarnation, |_| unreachable!());
        assert_eq!(remove, BeginRemove::InFlight);
        assert_eq!(index.end_put(one, |_| {}), EndPut::Removed);
        assert_eq!(index.get(one.hash), None);
        assert_eq!(
            index.begin_put(one.hash, one.incarnation),
            BeginPut::Removed
        );
    }

    #[test]
    fn a_removal_follows_a_record_that_moves() {
        let index = Index::new();
        let (one, moved) = (entry(1, 5, 1), entry(1, 5, 9));
        put(&index, one);
        let mut found = 0;
        let remove = index.begin_remove(one.hash, one.incarnation, |entry| found = entry.bucket);
        assert_eq!((remove, found), (BeginRemove::Found, 1));
        assert_eq!(index.get(one.hash), None, "nobody is served it");
        assert!(index.relocate(&one, &moved));
        assert_eq!(index.get(one.hash), None, "nor at the new place");
        assert_eq!(
            index.end_remove(&[one.tombstone()]),
            None,
            "not of this copy"
        );
        let durable = [one.tombstone(), moved.tombstone()];
        assert_eq!(index.end_remove(&durable).unwrap().bucket, 9);
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn another_life_is_not_removed() {
        let index = Index::new();
        let one = entry(1, 5, 1);
        put(&index, one);
        let other = index.begin_remove(one.hash, Incarnation::new(1, 4), |_| unreachable!());
        assert_eq!(other, BeginRemove::Other(one.incarnation));
        assert_eq!(index.get(one.hash), Some(one));
    }
}
