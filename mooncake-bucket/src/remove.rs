//! Removing records, so that they never come back.

use std::{io, sync::atomic::Ordering};

use crate::{
    counters::Counters,
    error::{RemoveError, copy},
    format::{
        BLOCK,
        tombstone::{self, ANY_BUCKET, ANY_UNIT, Tombstone},
    },
    index::{BeginRemove, Entry},
    name::{Incarnation, Name},
    storage::Storage,
};

/// One life of an object that is to be removed.
#[derive(Clone, Copy, Debug)]
pub struct Removal<'a> {
    /// Whose and which.
    pub name: Name<'a>,
    /// Which life of it; no other one is touched.
    pub incarnation: Incarnation,
}

/// What was there to be removed. Whatever it was, after it this incarnation is not served again, also not after a
/// crash; unless it is put anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It was not here.
    Absent,
    /// It was here, and its tombstone is durable.
    Gone,
    /// Another life of the object is here, and stays.
    OtherIncarnation(Incarnation),
}

impl Storage {
    /// Makes all that is named unreadable, durably, with one sync for the whole batch.
    pub(crate) fn mark_removed(
        &self,
        removals: &[Removal<'_>],
    ) -> Vec<Result<Removed, RemoveError>> {
        let mut stones = Vec::with_capacity(removals.len());
        // Which of the tombstones are of which removal.
        let mut parts = Vec::with_capacity(removals.len());
        let mut results = Vec::with_capacity(removals.len());
        let mut absent = false;
        for Removal { name, incarnation } in removals {
            let hash = self.hasher.hash(name);
            let first = stones.len();
            let found = self.index.begin_remove(hash, *incarnation, |entry| {
                self.tombstones(entry, |stone| stones.push(stone));
            });
            let result = match found {
                BeginRemove::Found => Removed::Gone,
                BeginRemove::InFlight => {
                    stones.push(Tombstone {
                        bucket: ANY_BUCKET,
                        unit: ANY_UNIT,
                        hash,
                        incarnation: *incarnation,
                    });
                    Removed::Gone
                }
                BeginRemove::Absent => Removed::Absent,
                BeginRemove::Other(current) => Removed::OtherIncarnation(current),
            };
            absent |= result != Removed::Gone;
            parts.push(first..stones.len());
            results.push(result);
        }
        if absent {
            // What is absent since it is being evicted could come back until that is durable.
            self.leaving.wait();
        }
        // Even if nothing of this was here: what is noted, or just being written for others, may be what is absent.
        let durable = self
            .admit_tombstones(stones.len())
            .and_then(|()| self.log.commit(&stones, &self.pen()));
        let batches = u64::from(!stones.is_empty());
        Counters::add(&self.counters.tombstone_batches, batches);
        let mut outcomes = Vec::with_capacity(results.len());
        for (part, result) in parts.into_iter().zip(results) {
            if let Err(error) = &durable {
                outcomes.push(Err(RemoveError(copy(error))));
                continue;
            }
            if let Some(entry) = self.index.end_remove(&stones[part]) {
                self.count_dead(&entry);
                Counters::add(&self.counters.removed, 1);
            }
            outcomes.push(Ok(result));
        }
        outcomes
    }

    /// Whether so many tombstones may be written. They have the room that puts leave.
    fn admit_tombstones(&self, count: usize) -> io::Result<()> {
        if count == 0 {
            return Ok(());
        }
        // With the head of a log, if there is none, and a new number for it.
        let needed = tombstone::frame_bytes(count) + 2 * BLOCK;
        let fits = || needed <= self.room_to_collect();
        if !fits() {
            self.trim_log_from(0)?;
        }
        if fits() {
            return Ok(());
        }
        let words = format!("{needed} bytes of tombstones do not fit");
        Err(io::Error::new(io::ErrorKind::StorageFull, words))
    }

    /// All that it takes to say that a record is dead. Called with its shard locked, so that what compactions do
    /// meanwhile comes wholly before this or after it.
    pub(crate) fn tombstones(&self, entry: &Entry, mut bury: impl FnMut(Tombstone)) {
        let stone = entry.tombstone();
        bury(stone);
        let moving_to = self
            .bucket(entry.bucket)
            .map_or(0, |bucket| bucket.moving_to.load(Ordering::SeqCst));
        if moving_to != 0 {
            // So is the copy that a compaction is making, or has just made, wherever in its target that is.
            bury(Tombstone {
                bucket: moving_to,
                unit: ANY_UNIT,
                ..stone
            });
        }
    }
}
