//! Power losses and process deaths at any step of a workload.

mod common;

use std::{collections::BTreeSet, io::ErrorKind, ops::ControlFlow, sync::Arc};

use common::{Done, Oracle, check_accounting, open};
use mooncake_bucket::{BucketStorageBackend, Cursor, Inspection, OpenError, RecordState, SimDisk};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Several lives of one storage, each ended by a crash at a random step.
fn lives(seed: u64) -> Done {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut oracle, mut disk) = (Oracle::default(), SimDisk::new());
    for life in 0..8 {
        let note = format!("seed {seed}, life {life}");
        // Who only looks sees what a start will find.
        let looked = match Inspection::open_on(Arc::new(disk.clone())) {
            Ok(looked) => Some(looked),
            Err(OpenError::NoStorage) => None,
            Err(error) => panic!("{note}: {error:?}"),
        };
        assert_eq!(disk.steps(), 0, "{note}: and changes nothing");
        disk.cut_power_at(rng.random_range(0..150));
        if let Ok(backend) = open(&disk) {
            if !disk.is_power_lost() {
                oracle.done.found += oracle.check(&backend, true, &note).found;
                check_accounting(&disk, &backend, &note);
                compare(&backend, looked.as_ref(), &note);
            }
            // In some lives the disk fails now and then, and goes on.
            let faulty = rng.random_range(0..3) == 0;
            for _ in 0..rng.random_range(5..60) {
                if faulty && rng.random_range(0..6) == 0 {
                    let kind = [ErrorKind::Other, ErrorKind::StorageFull][rng.random_range(0..2)];
                    disk.fail_at(disk.steps() + rng.random_range(0..12), kind);
                }
                oracle.step(&backend, &mut rng);
                if disk.is_power_lost() {
                    break;
                }
            }
            if !disk.is_power_lost() {
                oracle.done.found += oracle.check(&backend, false, &note).found;
                if faulty {
                    // What the disk did not let end is tried again.
                    for _ in 0..16 {
                        backend.maintain();
                    }
                }
                if !disk.is_power_lost() {
                    check_accounting(&disk, &backend, &note);
                }
            }
            oracle.done.add(&backend);
            // A crash asks nobody: not even to seal.
            if rng.random_range(0..4) > 0 {
                disk.cut_power();
            }
        } else {
            assert!(
                disk.is_power_lost(),
                "{note}: it opens unless the power fails"
            );
        }
        oracle.done.crashes += u64::from(disk.is_power_lost());
        disk = if rng.random_range(0..3) == 0 {
            disk.after_process_death()
        } else {
            disk.after_power_loss(rng.random())
        };
    }
    oracle.done
}

/// Whether a look at the directory found the records that a start has found.
fn compare(backend: &BucketStorageBackend, looked: Option<&Inspection>, note: &str) {
    let mut seen = BTreeSet::new();
    for bucket in looked.map(Inspection::buckets).unwrap_or_default() {
        if bucket.live_records == 0 {
            continue;
        }
        let shown = looked
            .expect("it has buckets")
            .records(bucket.id, &mut |record| {
                if record.state == RecordState::Live {
                    let (tenant, key) = record.name.clone().expect("it is whole");
                    seen.insert((tenant, key, record.incarnation));
                }
                ControlFlow::Continue(())
            });
        // A start gives some of them other names.
        if let Err(error) = shown {
            panic!("{note}: {error:?}");
        }
    }
    let found = backend.list(Cursor::default(), usize::MAX).records;
    let found: BTreeSet<_> = found
        .into_iter()
        .map(|record| (record.tenant, record.key, record.incarnation))
        .collect();
    assert_eq!(seen, found, "{note}");
}

/// How many seeds, and from which on: `MOONCAKE_CRASH_SEEDS`, `MOONCAKE_CRASH_FIRST`.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_removed_comes_back_after_any_crash() {
    survive(number("MOONCAKE_CRASH_SEEDS").unwrap_or(1000));
}

#[test]
#[ignore = "takes long"]
fn nothing_is_lost_or_comes_back_in_a_hundred_thousand_workloads() {
    survive(100_000);
}

fn survive(seeds: u64) {
    let first = number("MOONCAKE_CRASH_FIRST").unwrap_or(0);
    let begun = std::time::Instant::now();
    let mut done = Done::default();
    for seed in first..first + seeds {
        done.sum(lives(seed));
    }
    println!("{seeds} seeds in {:?}: {done:?}", begun.elapsed());
    let met = [
        done.crashes,
        done.found,
        done.reopened,
        done.transitions,
        done.broken,
        done.tombstones,
        done.removed,
        done.retired,
        done.compacted,
        done.moved,
        done.evicted,
        done.revived,
    ];
    assert!(
        seeds < 200 || met.iter().all(|count| *count > 20),
        "the workload meets everything: {done:?}"
    );
}

/// The same workload, cut at each of its steps, and found in several states after each.
#[test]
fn a_cut_at_every_write_sync_and_rename_is_survived() {
    for seed in 0..3 {
        let mut cut = 0;
        loop {
            let mut rng = StdRng::seed_from_u64(seed);
            let (mut oracle, disk) = (Oracle::default(), SimDisk::new());
            disk.cut_power_at(cut);
            if let Ok(backend) = open(&disk) {
                for _ in 0..40 {
                    if disk.is_power_lost() {
                        break;
                    }
                    oracle.step(&backend, &mut rng);
                }
            }
            let through = !disk.is_power_lost();
            let note = format!("seed {seed}, cut {cut}");
            let after = disk.after_power_loss(cut);
            let backend = open(&after).unwrap_or_else(|error| panic!("{note}: {error:?}"));
            oracle.check(&backend, true, &note);
            check_accounting(&after, &backend, &note);
            // What the start has done is durable as well.
            drop(backend);
            let after = after.after_power_loss(cut + 1);
            let backend = open(&after).unwrap_or_else(|error| panic!("{note}: {error:?}"));
            oracle.check(&backend, true, &note);
            if through {
                break;
            }
            cut += 1;
        }
        assert!(cut > 50, "the workload has steps: {cut}");
    }
}
