//! Room for what is put: capacity, and what goes when there is none.
//!
//! Puts leave some room to compactions and tombstones, or a storage that is full could never free any.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    bucket::{Bucket, Stage},
    config::Eviction,
    counters::Counters,
    error::{GcError, PutError, is_full},
    format::{BLOCK, file_name::FileName, footer, group::Plan},
    storage::Storage,
};

/// How long a put waits for a bucket to be sealed that could go then.
const SEAL_WAIT: Duration = Duration::from_secs(2);

/// What is known of a bucket when one has to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    pub(crate) id: u32,
    pub(crate) file_bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) dead_bytes: u64,
    /// Since it was read.
    pub(crate) idle_ms: u64,
}

/// Room that was promised and is not in the files yet.
pub(crate) struct Promise<'a> {
    total: &'a AtomicU64,
    bytes: u64,
    /// What others were promised before.
    others: u64,
}

impl<'a> Promise<'a> {
    fn new(total: &'a AtomicU64, bytes: u64) -> Self {
        let others = total.fetch_add(bytes, Ordering::AcqRel);
        Self {
            total,
            bytes,
            others,
        }
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// What compactions under way were granted, and how much of that they have written.
#[derive(Debug, Default)]
pub(crate) struct Collecting {
    granted: AtomicU64,
    written: AtomicU64,
}

/// Room of one compaction. It is given back when this goes, since by then either what it wrote is gone, or what that
/// replaces.
#[derive(Debug)]
pub(crate) struct Grant<'a> {
    storage: &'a Storage,
    granted: u64,
    written: u64,
}

impl Grant<'_> {
    /// `bytes` are about to be written, and `later` after that; what was not foreseen is granted if there is room.
    pub(crate) fn write(&mut self, bytes: u64, later: u64) -> Result<(), GcError> {
        let needed = self.written + bytes + later;
        let more = needed.saturating_sub(self.granted);
        if more > 0 {
            let room_bytes = self.storage.room_to_collect();
            if more > room_bytes {
                return Err(GcError::Full {
                    needed_bytes: more,
                    room_bytes,
                });
            }
            self.granted += more;
            let granted = &self.storage.collecting.granted;
            granted.fetch_add(more, Ordering::AcqRel);
        }
        self.written += bytes;
        let written = &self.storage.collecting.written;
        written.fetch_add(bytes, Ordering::AcqRel);
        Ok(())
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        let Collecting { granted, written } = &self.storage.collecting;
        written.fetch_sub(self.written, Ordering::AcqRel);
        granted.fetch_sub(self.granted, Ordering::AcqRel);
    }
}

/// How full it is, as somebody sees it.
#[derive(Clone, Copy, Debug)]
struct Fill {
    used_bytes: u64,
    capacity_bytes: u64,
}

/// Of so many bytes, what is kept for compactions and tombstones.
fn kept_bytes(total: u64, bucket_bytes: u64) -> u64 {
    (total / 8).min(bucket_bytes)
}

/// The bucket that goes first.
pub(crate) fn choose(policy: Eviction, buckets: &[Rank]) -> Option<u32> {
    let first = match policy {
        Eviction::None => None,
        Eviction::Fifo => buckets.iter().min_by_key(|rank| rank.id),
        Eviction::Lru => buckets
            .iter()
            .min_by_key(|rank| (u64::MAX - rank.idle_ms, rank.id)),
        Eviction::CostAware => buckets.iter().min_by_key(|rank| {
            // What it costs to lose a live byte falls with the time that nobody read one.
            let warmth = (1 << 20) / (1 + rank.idle_ms / 1000);
            let cost = u128::from(rank.live_bytes) * u128::from(warmth.max(1));
            (cost * 1024 / u128::from(rank.file_bytes.max(1)), rank.id)
        }),
    };
    first.map(|rank| rank.id)
}

impl Storage {
    /// Whether a group may be written. Room that is missing is made, if the policy says so.
    pub(crate) fn admit(&self, plan: &Plan, records: usize) -> Result<Promise<'_>, PutError> {
        let needed_bytes = plan.bytes + (records * footer::ENTRY) as u64;
        loop {
            let promise = Promise::new(&self.promised, needed_bytes);
            let fill = self.fill_for_puts();
            let used_bytes = fill.used_bytes + self.due_bytes() + promise.others;
            let capacity_bytes = fill.capacity_bytes;
            if used_bytes.saturating_add(needed_bytes) <= capacity_bytes {
                return Ok(promise);
            }
            drop(promise);
            // One makes room for all who wait for some, or each of them would evict a bucket.
            let room = needed_bytes <= capacity_bytes
                && self.config.eviction != Eviction::None
                && self.make_room(needed_bytes);
            if !room {
                Counters::add(&self.counters.refused_full, records as u64);
                return Err(PutError::Full {
                    needed_bytes,
                    used_bytes,
                    capacity_bytes,
                });
            }
        }
    }

    /// What the settings allow, or the file system, whichever is less.
    fn fill(&self) -> Fill {
        let used_bytes = self.used_bytes();
        let capacity_bytes = match self.disk.space() {
            Ok(space) => {
                let more = space.free_bytes.saturating_sub(self.config.reserve_bytes);
                let configured = self.config.capacity_bytes;
                configured.min(used_bytes.saturating_add(more))
            }
            // Unknown is neither full nor free.
            Err(_) => self.config.capacity_bytes,
        };
        Fill {
            used_bytes,
            capacity_bytes,
        }
    }

    /// The same without what is kept from puts. What a compaction writes is in there, as far as that goes: the files that
    /// it replaces are still there as well.
    fn fill_for_puts(&self) -> Fill {
        let written = self.collecting.written.load(Ordering::Acquire);
        let granted = self.collecting.granted.load(Ordering::Acquire).max(written);
        let (configured, bucket_bytes) = (self.config.capacity_bytes, self.config.bucket_bytes);
        let used_bytes = self.used_bytes().saturating_sub(written);
        let kept = kept_bytes(configured, bucket_bytes).max(granted);
        let mut capacity_bytes = configured.saturating_sub(kept);
        if let Ok(space) = self.disk.space() {
            let kept = kept_bytes(space.total_bytes, bucket_bytes).max(granted);
            let free = space.free_bytes.saturating_add(written);
            let more = free.saturating_sub(kept.saturating_add(self.config.reserve_bytes));
            capacity_bytes = capacity_bytes.min(used_bytes.saturating_add(more));
        }
        Fill {
            used_bytes,
            capacity_bytes,
        }
    }

    /// What compactions and tombstones may still write.
    pub(crate) fn room_to_collect(&self) -> u64 {
        let fill = self.fill();
        let written = self.collecting.written.load(Ordering::Acquire);
        let granted = self.collecting.granted.load(Ordering::Acquire);
        let others = self.promised.load(Ordering::Acquire) + granted.saturating_sub(written);
        let taken = fill.used_bytes + self.due_bytes() + others;
        fill.capacity_bytes.saturating_sub(taken)
    }

    /// Room for a compaction that writes about `needed_bytes`.
    pub(crate) fn grant(&self, needed_bytes: u64) -> Result<Grant<'_>, GcError> {
        let room_bytes = self.room_to_collect();
        if needed_bytes > room_bytes {
            return Err(GcError::Full {
                needed_bytes,
                room_bytes,
            });
        }
        let granted = &self.collecting.granted;
        granted.fetch_add(needed_bytes, Ordering::AcqRel);
        Ok(Grant {
            storage: self,
            granted: needed_bytes,
            written: 0,
        })
    }

    /// What buckets that grow will still need for themselves.
    fn due_bytes(&self) -> u64 {
        let buckets = self.buckets.read();
        let open = buckets.values().rev().take(4 * self.lanes.len());
        let open = open.filter(|bucket| bucket.stage() != Stage::Sealed);
        let footers =
            open.map(|bucket| footer::bytes_of(bucket.records.load(Ordering::Relaxed)) + BLOCK);
        // One that is about to be begun.
        footers.sum::<u64>() + 2 * BLOCK
    }

    /// The buckets that could go, with what is known of them.
    pub(crate) fn ranks(&self) -> Vec<Rank> {
        let now = self.now_ms();
        let buckets = self.buckets.read();
        let sealed = buckets
            .values()
            .filter(|bucket| bucket.stage() == Stage::Sealed && !bucket.is_claimed());
        let ranks = sealed.map(|bucket| Rank {
            id: bucket.id,
            file_bytes: bucket.file_bytes.load(Ordering::Relaxed),
            live_bytes: bucket.live_bytes.load(Ordering::Relaxed),
            dead_bytes: bucket.dead_bytes(),
            idle_ms: now.saturating_sub(bucket.read_at.load(Ordering::Relaxed)),
        });
        ranks.collect()
    }

    /// Evicts a bucket, unless somebody else has made the room meanwhile; `false`: there is none to evict.
    fn make_room(&self, needed_bytes: u64) -> bool {
        let _turn = self.making_room.lock();
        let until = Instant::now() + SEAL_WAIT;
        loop {
            let fill = self.fill_for_puts();
            let promised = self.promised.load(Ordering::Acquire);
            let used_bytes = fill.used_bytes + self.due_bytes() + promised;
            if used_bytes.saturating_add(needed_bytes) <= fill.capacity_bytes
                || self.evict_one().is_some()
            {
                return true;
            }
            // What is full may just be being sealed, and can be evicted then.
            if !self.is_sealing() || Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the housekeeping thread has buckets to seal.
    fn is_sealing(&self) -> bool {
        let closed = |bucket: &&Arc<Bucket>| bucket.stage() == Stage::Closed;
        let closed = self.buckets.read().values().filter(closed).count();
        self.sealer.lock().is_some() && closed > self.unsealed.lock().len()
    }

    /// Evicts one bucket, as the policy says; `None`: there is none.
    fn evict_one(&self) -> Option<u32> {
        let mut failed = HashSet::new();
        loop {
            let mut ranks = self.ranks();
            ranks.retain(|rank| !failed.contains(&rank.id));
            let id = choose(self.config.eviction, &ranks)?;
            match self.evict(id) {
                Ok(_) => return Some(id),
                // Somebody else has it, or made the room.
                Err(GcError::Unavailable { .. }) => {}
                Err(error) => {
                    tracing::warn!(bucket = id, %error, "a bucket could not be evicted");
                    if self.bucket(id).is_none() {
                        return Some(id);
                    }
                    // Another one may go, unless it is the log that keeps all of them.
                    self.log.commit(&[], &self.pen()).ok()?;
                    failed.insert(id);
                }
            }
        }
    }

    /// Drops a sealed bucket with all that is alive in it; says how many records that were.
    pub(crate) fn evict(&self, id: u32) -> Result<u64, GcError> {
        let bucket = self.claim(id)?;
        let gone = self.drop_bucket(&bucket);
        if gone.is_err() {
            bucket.unclaim();
        }
        let records = gone?;
        Counters::add(&self.counters.evicted_buckets, 1);
        Counters::add(&self.counters.evicted_records, records);
        Ok(records)
    }

    /// Takes a sealed bucket for oneself.
    pub(crate) fn claim(&self, id: u32) -> Result<Arc<Bucket>, GcError> {
        let bucket = self
            .bucket(id)
            .filter(|bucket| bucket.stage() == Stage::Sealed);
        let bucket = bucket.filter(|bucket| bucket.claim());
        bucket.ok_or(GcError::Unavailable { bucket: id })
    }

    /// Removes a claimed bucket: first from sight, then from the disk, durably.
    pub(crate) fn drop_bucket(&self, bucket: &Bucket) -> Result<u64, GcError> {
        let leaving = self.leaving.begin();
        let (mut records, mut gone) = (0, Vec::new());
        if bucket.live_records.load(Ordering::Relaxed) > 0 {
            let entries = self.entries_of(bucket);
            for entry in &entries {
                if self.index.purge(entry) {
                    bucket.count_dead(entry.span());
                    records += 1;
                }
            }
            gone = entries;
        }
        // What is dead in other buckets since something here is later must stay so without this one. Nothing dies of
        // what nobody finds any more, so by now all of that is noted.
        let durable = match self.log.commit(&[], &self.pen()) {
            Err(error) if is_full(&error) && gone.is_empty() && self.owes_nothing(bucket) => Ok(()),
            durable => durable,
        };
        let durable = durable.map_err(GcError::io("writing tombstones"));
        if let Err(error) = durable.and_then(|()| self.unlink(bucket)) {
            // The file may outlive this, but nothing in it.
            for entry in &gone {
                self.log.note(entry.tombstone());
            }
            return Err(error);
        }
        drop(leaving);
        Ok(records)
    }

    /// Whether none of the tombstones that have no room is of what a record of this bucket, in which nothing is alive, keeps
    /// dead: the later life of each is durable elsewhere. So the bucket may go, which is what makes room for them.
    fn owes_nothing(&self, bucket: &Bucket) -> bool {
        self.log.all_waiting(|stone| {
            stone.bucket == bucket.id
                || self.index.get(stone.hash).is_some_and(|later| {
                    let older =
                        (stone.incarnation, stone.bucket) < (later.incarnation, later.bucket);
                    older && later.bucket != bucket.id
                })
        })
    }

    /// Takes a bucket in which nothing is alive from the disk.
    pub(crate) fn unlink(&self, bucket: &Bucket) -> Result<(), GcError> {
        let names = [FileName::Sealed(bucket.id), FileName::Open(bucket.id)];
        let removed = names.map(|name| self.disk.remove(&name.text()));
        let failure = removed.into_iter().filter_map(Result::err);
        let mut failure = failure.filter(|error| error.kind() != std::io::ErrorKind::NotFound);
        if let Some(source) = failure.next() {
            return Err(GcError::Io {
                what: "removing a bucket",
                source,
            });
        }
        // It is out of the directory, and out of the books. A start that finds it nevertheless finds nothing alive in it.
        let synced = self.disk.sync();
        self.forget(bucket);
        synced.map_err(GcError::io("syncing the directory"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(id: u32, live_bytes: u64, idle_ms: u64) -> Rank {
        Rank {
            id,
            file_bytes: 1000,
            live_bytes,
            dead_bytes: 900 - live_bytes,
            idle_ms,
        }
    }

    #[test]
    fn each_policy_has_its_own_first_victim() {
        let buckets = [
            rank(1, 900, 5_000),
            rank(2, 900, 90_000),
            rank(3, 10, 10_000),
            rank(4, 900, 60_000),
        ];
        assert_eq!(choose(Eviction::None, &buckets), None);
        assert_eq!(choose(Eviction::Fifo, &buckets), Some(1));
        assert_eq!(choose(Eviction::Lru, &buckets), Some(2));
        assert_eq!(
            choose(Eviction::CostAware, &buckets),
            Some(3),
            "dead bytes first"
        );
        let alive = [buckets[0], buckets[3], buckets[1]];
        assert_eq!(
            choose(Eviction::CostAware, &alive),
            Some(2),
            "then the coldest"
        );
    }
}
