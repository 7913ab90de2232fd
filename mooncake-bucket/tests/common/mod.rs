//! A seeded workload, and an oracle that knows what it may find.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mooncake_bucket::{
    BucketConfig, BucketStorageBackend, CandidateKind, Disk, Eviction, GcConfig, GetError,
    Incarnation, Name, OpenOptions, Put, PutError, Removal, Removed, SimDisk, Stored,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Small buckets, so that a few dozen operations meet all that can happen.
pub(crate) fn config() -> BucketConfig {
    let mut config = BucketConfig::default();
    config.bucket_bytes = 96 << 10;
    config.bucket_records = 24;
    config.lanes = 2;
    config.aligned_from = 8 << 10;
    config.log_bytes = 12 << 10;
    config.open_files = 3;
    config.open_threads = 1;
    config.housekeeping = false;
    config.eviction = Eviction::None;
    config
}

/// The value of a life of a key: its bytes are those of no other.
pub(crate) fn value(key: u32, incarnation: Incarnation) -> Vec<u8> {
    let mut rng =
        StdRng::seed_from_u64(u64::from(key) << 40 ^ incarnation.seq << 8 ^ incarnation.epoch);
    let length = match rng.random_range(0..10) {
        0 => 0,
        1..=5 => rng.random_range(1..600),
        6..=7 => rng.random_range(600..6000),
        _ => rng.random_range(8192..20_000),
    };
    let (mut bytes, word) = (vec![0; length], rng.random::<u64>());
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = (word.rotate_left(place as u32) as u8).wrapping_add(place as u8);
    }
    bytes
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// What a put was acknowledged of, and not removed since.
    acked: Option<Incarnation>,
    /// What may be found instead: puts whose end is not known.
    maybe: BTreeSet<Incarnation>,
    /// What must never be found again.
    dead: BTreeSet<Incarnation>,
    /// What was acknowledged may be gone: a removal of it did not end, or it was evicted.
    may_be_gone: bool,
}

/// What is known of all keys.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// What storages have done that were looked at.
    pub(crate) done: Done,
    keys: BTreeMap<u32, Known>,
    next: u64,
}

/// What a workload met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) found: u64,
    pub(crate) crashes: u64,
    pub(crate) reopened: u64,
    pub(crate) transitions: u64,
    pub(crate) broken: u64,
    pub(crate) tombstones: u64,
    pub(crate) removed: u64,
    pub(crate) retired: u64,
    pub(crate) compacted: u64,
    pub(crate) moved: u64,
    pub(crate) evicted: u64,
    pub(crate) revived: u64,
}

impl Done {
    pub(crate) fn add(&mut self, backend: &BucketStorageBackend) {
        let (counts, recovery) = (backend.counts(), backend.recovery());
        self.reopened += recovery.reopened_buckets;
        self.transitions += recovery.transitions;
        self.broken += recovery.broken_records;
        self.tombstones += recovery.tombstones;
        self.removed += counts.removed;
        self.retired += counts.retired_buckets;
        self.compacted += counts.compacted_buckets;
        self.moved += counts.moved_bytes;
        self.evicted += counts.evicted_buckets;
    }

    pub(crate) fn sum(&mut self, other: Self) {
        self.found += other.found;
        self.crashes += other.crashes;
        self.reopened += other.reopened;
        self.transitions += other.transitions;
        self.broken += other.broken;
        self.tombstones += other.tombstones;
        self.removed += other.removed;
        self.retired += other.retired;
        self.compacted += other.compacted;
        self.moved += other.moved;
        self.evicted += other.evicted;
        self.revived += other.revived;
    }
}

/// What one look at a storage counted.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) found: u64,
    pub(crate) absent: u64,
}

pub(crate) fn key_bytes(key: u32) -> String {
    format!("key-{key:03}")
}

pub(crate) fn tenant_bytes(key: u32) -> &'static str {
    if key.is_multiple_of(3) { "tenant" } else { "" }
}

impl Oracle {
    /// Looks for every key. `settled`: the storage was just opened, so what is not found now is never found.
    pub(crate) fn check(
        &mut self,
        backend: &BucketStorageBackend,
        settled: bool,
        note: &str,
    ) -> Seen {
        let mut seen = Seen::default();
        for (key, known) in &mut self.keys {
            let text = key_bytes(*key);
            let name = Name::new(tenant_bytes(*key), &text);
            match backend.get(name, None) {
                Ok(found) => {
                    let life = found.incarnation;
                    assert!(
                        !known.dead.contains(&life),
                        "{note}: key {key}: {life} came back; {known:?}"
                    );
                    let expected = known.acked == Some(life) || known.maybe.contains(&life);
                    assert!(
                        expected,
                        "{note}: key {key}: {life} is not expected; {known:?}"
                    );
                    assert!(
                        Some(life) >= known.acked || known.may_be_gone,
                        "{note}: key {key}: {life} is old; {known:?}"
                    );
                    assert_eq!(
                        found.bytes,
                        value(*key, life),
                        "{note}: key {key}: {life} has other bytes"
                    );
                    seen.found += 1;
                    if settled {
                        let lost = std::mem::take(&mut known.maybe);
                        known.dead.extend(lost.into_iter().chain(known.acked));
                        known.dead.remove(&life);
                        known.acked = Some(life);
                        known.may_be_gone = false;
                    }
                }
                Err(GetError::NotFound) => {
                    let expected = known.acked.is_none() || known.may_be_gone;
                    assert!(expected, "{note}: key {key} is lost; {known:?}");
                    seen.absent += 1;
                    if settled {
                        let lost = std::mem::take(&mut known.maybe);
                        known
                            .dead
                            .extend(lost.into_iter().chain(known.acked.take()));
                        known.may_be_gone = false;
                    }
                }
                Err(error) => panic!("{note}: key {key}: {error:?}"),
            }
        }
        seen
    }

    fn put(&mut self, backend: &BucketStorageBackend, rng: &mut StdRng) {
        let count = rng.random_range(1..=6);
        let mut batch = Vec::new();
        for _ in 0..count {
            let key = rng.random_range(0..40);
            let known = self.keys.entry(key).or_default();
            let again = known.acked.filter(|_| rng.random_range(0..8) == 0);
            // A life that is dead may come anew, which its old tombstones say nothing of.
            let revived = known.dead.iter().rev().nth(rng.random_range(0..3));
            let revived = revived.filter(|_| rng.random_range(0..4) == 0).copied();
            let life = again.or(revived).unwrap_or_else(|| {
                self.next += 1;
                Incarnation::new(1, self.next)
            });
            batch.push((
                key,
                key_bytes(key),
                life,
                value(key, life),
                rng.random_range(0..3),
            ));
        }
        let mut was_dead = Vec::new();
        for (key, _, life, ..) in &batch {
            let known = self.keys.get_mut(key).expect("it was made above");
            was_dead.push(known.dead.remove(life));
            if known.acked != Some(*life) {
                known.maybe.insert(*life);
            }
        }
        let puts: Vec<_> = batch
            .iter()
            .map(|(key, text, life, value, group)| {
                let put = Put::new(Name::new(tenant_bytes(*key), text), *life, value);
                if *group == 0 { put } else { put.group(*group) }
            })
            .collect();
        let results = backend.put_batch(&puts);
        for (((key, _, life, ..), was_dead), result) in batch.iter().zip(was_dead).zip(results) {
            let known = self.keys.get_mut(key).expect("it was made above");
            match result {
                Ok(Stored::Written | Stored::AlreadyHere) => {
                    known.maybe.remove(life);
                    // What is in doubt and older never shows again.
                    let newer = known.maybe.split_off(life);
                    known
                        .dead
                        .extend(std::mem::replace(&mut known.maybe, newer));
                    if known.acked.is_none_or(|acked| acked <= *life) {
                        known.dead.extend(known.acked.filter(|acked| acked != life));
                        known.acked = Some(*life);
                        known.may_be_gone = false;
                    } else if known.may_be_gone {
                        // It is gone for now, and whether for good is not known.
                        known.maybe.extend(known.acked.replace(*life));
                        known.may_be_gone = false;
                    } else {
                        known.dead.insert(*life);
                    }
                    self.done.revived += u64::from(was_dead);
                }
                // It was not written, or a later life that is durable hides it for good.
                Err(PutError::Removed | PutError::Stale { .. }) if was_dead => {
                    known.maybe.remove(life);
                    known.dead.insert(*life);
                }
                // The batch had a later life of the key, or the disk failed: either way nobody promised anything.
                Err(_) => {}
            }
        }
    }

    fn remove(&mut self, backend: &BucketStorageBackend, rng: &mut StdRng) {
        let count = if rng.random_range(0..3) == 0 {
            1
        } else {
            rng.random_range(1..=8)
        };
        let mut batch = Vec::new();
        for _ in 0..count {
            let key = rng.random_range(0..40);
            let known = self.keys.entry(key).or_default();
            let doubtful = known.maybe.iter().next().copied();
            let life = match rng.random_range(0..6) {
                0 => known.dead.iter().next().copied(),
                1 | 2 => doubtful.or(known.acked),
                _ => known.acked.or(doubtful),
            };
            let life = life.unwrap_or(Incarnation::new(1, 0));
            known.may_be_gone |= known.acked == Some(life);
            batch.push((key, key_bytes(key), life));
        }
        let removals: Vec<_> = batch
            .iter()
            .map(|(key, text, incarnation)| Removal {
                name: Name::new(tenant_bytes(*key), text),
                incarnation: *incarnation,
            })
            .collect();
        let results = backend.mark_removed(&removals);
        for ((key, _, life), result) in batch.iter().zip(results) {
            let known = self.keys.get_mut(key).expect("it was made above");
            let Ok(result) = result else {
                continue;
            };
            if let Removed::OtherIncarnation(other) = result {
                assert_ne!(other, *life);
            }
            known.maybe.remove(life);
            known.dead.insert(*life);
            if known.acked == Some(*life) {
                known.acked = None;
                known.may_be_gone = false;
            }
        }
    }

    fn get(&self, backend: &BucketStorageBackend, rng: &mut StdRng) {
        let key = rng.random_range(0..40);
        let Some(known) = self.keys.get(&key) else {
            return;
        };
        let text = key_bytes(key);
        if let Ok(found) = backend.get(Name::new(tenant_bytes(key), &text), known.acked) {
            assert!(
                !known.dead.contains(&found.incarnation),
                "key {key}: {known:?}"
            );
            let whole = value(key, found.incarnation);
            assert_eq!(found.bytes, whole);
            let from = rng.random_range(0..=whole.len());
            let mut part = vec![0; rng.random_range(0..=whole.len() - from)];
            let name = Name::new(tenant_bytes(key), &text);
            if backend
                .get_range(name, None, from as u32, &mut part)
                .is_ok()
            {
                assert_eq!(part, whole[from..from + part.len()]);
            }
        }
    }

    /// Everything that is alive may be gone now.
    fn evict(&mut self, backend: &BucketStorageBackend, rng: &mut StdRng) {
        let sealed = backend.sealed_buckets();
        if sealed.is_empty() {
            return;
        }
        for known in self.keys.values_mut() {
            known.may_be_gone |= known.acked.is_some();
        }
        let evicted = backend.evict_bucket(sealed[rng.random_range(0..sealed.len())]);
        if evicted.is_err() {
            return;
        }
        for (key, known) in &mut self.keys {
            let text = key_bytes(*key);
            match backend.stat(Name::new(tenant_bytes(*key), &text)) {
                Some(stat) if known.acked == Some(stat.incarnation) => known.may_be_gone = false,
                Some(_) => {}
                None => known.dead.extend(known.acked.take()),
            }
            known.may_be_gone &= known.acked.is_some();
        }
    }

    /// One operation.
    pub(crate) fn step(&mut self, backend: &BucketStorageBackend, rng: &mut StdRng) {
        match rng.random_range(0..100) {
            0..50 => self.put(backend, rng),
            50..65 => self.remove(backend, rng),
            65..75 => self.get(backend, rng),
            75..80 => backend.seal(),
            80..81 => self.evict(backend, rng),
            81..85 => backend.maintain(),
            _ => self.collect(backend, rng),
        }
    }

    /// Nothing that anybody could see may change.
    fn collect(&mut self, backend: &BucketStorageBackend, rng: &mut StdRng) {
        let mut config = GcConfig::default();
        config.live_fraction = rng.random_range(0..=10) as f64 / 10.0;
        let found = backend.gc_candidates(&config);
        if found.is_empty() {
            return;
        }
        let from = rng.random_range(0..found.len());
        let some = &found[from..found.len().min(from + rng.random_range(1..4))];
        // The disk may fail at any point of it.
        if some[0].kind == CandidateKind::Dead {
            let _failed_or_not = backend.retire_bucket(some[0].bucket);
        } else {
            let ids: Vec<_> = some.iter().map(|candidate| candidate.bucket).collect();
            // Others go on meanwhile, between any two of its reads and writes.
            let _failed_or_not = backend.compact_buckets_paced(&ids, &mut |_, _| {
                match rng.random_range(0..12) {
                    0..2 => self.put(backend, rng),
                    2..5 => self.remove(backend, rng),
                    5 => self.evict(backend, rng),
                    6 => self.get(backend, rng),
                    _ => {}
                }
                rng.random_range(0..30) > 0
            });
        }
    }
}

pub(crate) fn open(disk: &SimDisk) -> Result<BucketStorageBackend, mooncake_bucket::OpenError> {
    OpenOptions::new(config()).open_on(Arc::new(disk.clone()))
}

/// Whether the books are what the directory says.
pub(crate) fn check_accounting(disk: &SimDisk, backend: &BucketStorageBackend, note: &str) {
    let accounting = backend.accounting();
    let sum = accounting.live_bytes + accounting.dead_bytes + accounting.overhead_bytes;
    let files = disk.list().expect("the disk is alive");
    let ours = files
        .iter()
        .filter(|file| !file.name.ends_with(".quarantined"));
    let measured: u64 = ours.map(|file| file.bytes).sum();
    assert_eq!(sum, accounting.file_bytes, "{note}: {accounting:?}");
    assert_eq!(
        measured, accounting.file_bytes,
        "{note}: {accounting:?} {files:?}"
    );
    assert_eq!(
        accounting.live_records,
        backend.len(),
        "{note}: {accounting:?}"
    );
}
