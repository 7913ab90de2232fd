//! Removing records, so that they never come back.

use std::sync::atomic::Ordering;

use crate::{
    counters::Counters,
    error::{RemoveError, copy},
    format::tombstone::{ANY_BUCKET, Tombstone},
    hash::KeyHash,
    index::BeginRemove,
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
        let mut hashes: Vec<Option<KeyHash>> = Vec::with_capacity(removals.len());
        let mut results = Vec::with_capacity(removals.len());
        let mut absent = false;
        for Removal { name, incarnation } in removals {
            let hash = self.hasher.hash(name);
            let mut bury = |bucket| {
                stones.push(Tombstone {
                    bucket,
                    hash,
                    incarnation: *incarnation,
                });
            };
            let found = self.index.begin_remove(hash, *incarnation, |id| {
                bury(u64::from(id));
                // A copy that a compaction is making, or has just made, is as dead.
                if let Some(bucket) = self.bucket(id) {
                    match bucket.moving_to.load(Ordering::SeqCst) {
                        0 => {}
                        target => bury(u64::from(target)),
                    }
                }
            });
            let result = match found {
                BeginRemove::Found(_) => Removed::Gone,
                BeginRemove::InFlight => {
                    bury(ANY_BUCKET);
                    Removed::Gone
                }
                BeginRemove::Absent => Removed::Absent,
                BeginRemove::Other(current) => Removed::OtherIncarnation(current),
            };
            absent |= result != Removed::Gone;
            hashes.push((result == Removed::Gone).then_some(hash));
            results.push(result);
        }
        if absent {
            // What is absent since it is being evicted could come back until that is durable.
            self.leaving.wait();
        }
        // Even if nothing of this was here: what is noted may be what is absent.
        let waits = !stones.is_empty() || self.log.waiting() > 0;
        let durable = if waits {
            Counters::add(&self.counters.tombstone_batches, 1);
            self.log.commit(&stones, &self.pen())
        } else {
            Ok(())
        };
        let mut outcomes = Vec::with_capacity(results.len());
        for ((removal, hash), result) in removals.iter().zip(hashes).zip(results) {
            if let Err(error) = &durable {
                outcomes.push(Err(RemoveError(copy(error))));
                continue;
            }
            if let Some(hash) = hash
                && let Some(entry) = self.index.end_remove(hash, removal.incarnation)
            {
                self.count_dead(&entry);
                Counters::add(&self.counters.removed, 1);
            }
            outcomes.push(Ok(result));
        }
        outcomes
    }
}
