//! What a start finds, and what it makes of it.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mooncake_bucket::{
    BucketConfig, BucketStorageBackend, Cursor, Disk, Flaw, GcConfig, GetError, Incarnation, Name,
    OpenError, OpenOptions, Put, PutError, Removal, Removed, SimDisk, Stored,
};

fn config() -> BucketConfig {
    let mut config = BucketConfig::default();
    config.bucket_bytes = 64 << 10;
    config.housekeeping = false;
    config
}

fn open(disk: &SimDisk) -> Result<BucketStorageBackend, OpenError> {
    OpenOptions::new(config()).open_on(Arc::new(disk.clone()))
}

fn life(seq: u64) -> Incarnation {
    Incarnation::new(1, seq)
}

fn put(backend: &BucketStorageBackend, key: &str, seq: u64) {
    let bytes = format!("{key} {seq} ").repeat(50);
    let stored = backend.put(Put::new(Name::key(key), life(seq), bytes.as_bytes()));
    assert_eq!(stored.unwrap(), Stored::Written);
}

fn get(backend: &BucketStorageBackend, key: &str) -> Option<u64> {
    match backend.get(Name::key(key), None) {
        Ok(found) => {
            let seq = found.incarnation.seq;
            assert_eq!(found.bytes, format!("{key} {seq} ").repeat(50).as_bytes());
            Some(seq)
        }
        Err(GetError::NotFound) => None,
        Err(error) => panic!("{key}: {error:?}"),
    }
}

fn remove(backend: &BucketStorageBackend, key: &str, seq: u64) -> Removed {
    let name = Name::key(key);
    let removal = Removal {
        name,
        incarnation: life(seq),
    };
    *backend.mark_removed(&[removal])[0].as_ref().unwrap()
}

fn names(disk: &SimDisk) -> Vec<String> {
    disk.list()
        .unwrap()
        .into_iter()
        .map(|file| file.name)
        .collect()
}

#[test]
fn a_tail_of_one_key_is_as_durable_as_a_full_bucket() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    put(&backend, "only", 1);
    disk.cut_power();
    for seed in 0..20 {
        let after = disk.after_power_loss(seed);
        let backend = open(&after).unwrap();
        assert_eq!(get(&backend, "only"), Some(1));
        assert_eq!(backend.recovery().reopened_buckets, 1);
    }
}

#[test]
fn an_older_life_does_not_come_back_when_the_one_that_replaced_it_is_removed_and_reclaimed() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    put(&backend, "key", 1);
    put(&backend, "other", 1);
    backend.seal();
    put(&backend, "key", 2);
    backend.seal();
    let [_, second] = backend.sealed_buckets()[..] else {
        panic!("two buckets")
    };
    assert_eq!(remove(&backend, "key", 2), Removed::Gone);
    backend.retire_bucket(second).unwrap();
    drop(backend);
    let backend = open(&disk.after_process_death()).unwrap();
    assert_eq!(get(&backend, "key"), None);
    assert_eq!(get(&backend, "other"), Some(1));
}

#[test]
fn a_life_that_is_put_anew_after_its_removal_is_there_after_a_restart() {
    for (lives, gone) in [(&[5][..], 5), (&[5, 7], 7)] {
        let disk = SimDisk::new();
        let backend = open(&disk).unwrap();
        for seq in lives {
            put(&backend, "key", *seq);
        }
        assert_eq!(remove(&backend, "key", gone), Removed::Gone);
        put(&backend, "key", 5);
        for restart in 0..3 {
            let backend = open(&disk.after_process_death()).unwrap();
            assert_eq!(
                get(&backend, "key"),
                Some(5),
                "restart {restart} of {lives:?}"
            );
        }
        // And it can be removed like any other.
        assert_eq!(remove(&backend, "key", 5), Removed::Gone);
        disk.cut_power();
        for seed in 0..10 {
            let backend = open(&disk.after_power_loss(seed)).unwrap();
            assert_eq!(get(&backend, "key"), None);
        }
    }
}

/// Of what is removed while it is written nobody knows where it is, so its tombstone is of every copy, until a start has
/// seen where they are and written that down.
#[test]
fn a_start_that_has_no_room_for_tombstones_acknowledges_no_put_that_the_old_ones_would_kill() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    put(&backend, "other", 1);
    disk.set_sync_time(Duration::from_millis(50));
    let syncs = disk.syncs();
    std::thread::scope(|scope| {
        let put = scope.spawn(|| backend.put(Put::new(Name::key("key"), life(5), b"value")));
        while disk.syncs() == syncs {
            std::thread::yield_now();
        }
        assert_eq!(remove(&backend, "key", 5), Removed::Gone);
        let put = put.join().unwrap();
        assert!(matches!(put, Err(PutError::Removed)), "{put:?}");
    });
    disk.set_sync_time(Duration::ZERO);
    drop(backend);
    let used = disk.list().unwrap().iter().map(|file| file.bytes).sum();
    disk.set_capacity(Some(used));
    let backend = open(&disk).unwrap();
    disk.set_capacity(None);
    let again = backend.put(Put::new(Name::key("key"), life(5), b"value"));
    assert!(matches!(again, Err(PutError::Removed)), "{again:?}");
    drop(backend);
    let backend = open(&disk).unwrap();
    put(&backend, "key", 5);
    drop(backend);
    assert_eq!(get(&open(&disk).unwrap(), "key"), Some(5));
}

#[test]
fn a_removal_refuses_another_life_and_can_be_repeated() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    put(&backend, "key", 2);
    assert_eq!(
        remove(&backend, "key", 1),
        Removed::OtherIncarnation(life(2))
    );
    assert_eq!(
        remove(&backend, "key", 3),
        Removed::OtherIncarnation(life(2))
    );
    assert_eq!(get(&backend, "key"), Some(2));
    assert_eq!(remove(&backend, "key", 2), Removed::Gone);
    assert_eq!(remove(&backend, "key", 2), Removed::Absent);
    assert_eq!(remove(&backend, "never", 2), Removed::Absent);
    put(&backend, "key", 3);
    assert_eq!(
        remove(&backend, "key", 2),
        Removed::OtherIncarnation(life(3)),
        "a late task"
    );
    assert_eq!(get(&backend, "key"), Some(3));
}

#[test]
fn a_removal_that_the_disk_fails_is_an_error_until_it_is_durable() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    put(&backend, "key", 1);
    let name = Name::key("key");
    let removal = [Removal {
        name,
        incarnation: life(1),
    }];
    for step in 0..4 {
        // The log is made, written and synced in several steps.
        disk.fail_at(disk.steps() + step, std::io::ErrorKind::Other);
        assert!(backend.mark_removed(&removal)[0].is_err(), "step {step}");
        assert_eq!(
            get(&backend, "key"),
            None,
            "it is in doubt, and doubt is a miss"
        );
    }
    assert_eq!(
        *backend.mark_removed(&removal)[0].as_ref().unwrap(),
        Removed::Gone
    );
    disk.cut_power();
    for seed in 0..20 {
        assert_eq!(
            get(&open(&disk.after_power_loss(seed)).unwrap(), "key"),
            None
        );
    }
}

#[test]
fn a_second_opener_is_told_who_has_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let first = BucketStorageBackend::open(directory.path(), config()).unwrap();
    let second = BucketStorageBackend::open(directory.path(), config());
    let Err(OpenError::Locked { holder }) = second else {
        panic!("{second:?}")
    };
    assert!(holder.contains(&std::process::id().to_string()), "{holder}");
    drop(first);
    BucketStorageBackend::open(directory.path(), config()).unwrap();
}

#[test]
fn a_directory_without_its_identity_is_refused_until_it_is_adopted() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    put(&backend, "kept", 1);
    put(&backend, "removed", 1);
    remove(&backend, "removed", 1);
    let identity = backend.identity();
    drop(backend);
    disk.remove("identity").unwrap();
    assert!(matches!(open(&disk), Err(OpenError::NoIdentity)));
    let adopted = OpenOptions::new(config())
        .adopt(true)
        .open_on(Arc::new(disk))
        .unwrap();
    assert_eq!(adopted.identity(), identity);
    assert_eq!(
        (get(&adopted, "kept"), get(&adopted, "removed")),
        (Some(1), None)
    );
}

#[test]
fn files_of_others_are_left_alone() {
    let disk = SimDisk::new();
    disk.plant("notes.txt", b"mine".to_vec());
    disk.plant("1.bucket", b"mine too".to_vec());
    let backend = open(&disk).unwrap();
    assert_eq!(backend.recovery().foreign_files, 2);
    put(&backend, "key", 1);
    drop(backend);
    assert_eq!(open(&disk).unwrap().recovery().foreign_files, 2);
    assert_eq!(disk.content("notes.txt").unwrap(), b"mine");
    assert_eq!(disk.content("1.bucket").unwrap(), b"mine too");
}

#[test]
fn a_bucket_of_another_storage_is_set_aside_and_counted() {
    let (disk, other) = (SimDisk::new(), SimDisk::new());
    put(&open(&other).unwrap(), "theirs", 1);
    put(&open(&disk).unwrap(), "ours", 1);
    let stranger = names(&other)
        .into_iter()
        .find(|name| name.ends_with(".bucket"))
        .unwrap();
    disk.plant("00000042.bucket", other.content(&stranger).unwrap());
    let backend = open(&disk).unwrap();
    assert_eq!(backend.recovery().quarantined_files, 1);
    assert_eq!(
        (get(&backend, "ours"), get(&backend, "theirs")),
        (Some(1), None)
    );
    assert!(names(&disk).contains(&"00000042.bucket.quarantined".to_string()));
    assert!(backend.accounting().quarantined_bytes > 0);
    drop(backend);
    assert_eq!(
        open(&disk).unwrap().recovery().quarantined_files,
        1,
        "it stays, and is still counted"
    );
}

#[test]
fn a_bucket_of_another_version_of_the_format_is_refused_and_left_as_it_is() {
    let disk = SimDisk::new();
    put(&open(&disk).unwrap(), "key", 1);
    let mut files = names(&disk).into_iter();
    let bucket = files.find(|name| name.ends_with(".bucket")).unwrap();
    let version = |version| {
        disk.damage(&bucket, |bytes| {
            bytes[8] = version;
            let sum = crc32c::crc32c(&bytes[..4092]);
            bytes[4092..4096].copy_from_slice(&sum.to_le_bytes());
        });
    };
    version(2);
    let before = names(&disk);
    let opened = open(&disk);
    let Err(OpenError::Damaged { file, flaw }) = opened else {
        panic!("{opened:?}")
    };
    assert_eq!((file, flaw), (bucket.clone(), Flaw::Version(2)));
    assert_eq!(names(&disk), before);
    version(1);
    assert_eq!(get(&open(&disk).unwrap(), "key"), Some(1));
    // One whose head is not whole may be of any version, and is set aside.
    disk.damage(&bucket, |bytes| bytes[8] = 2);
    assert_eq!(open(&disk).unwrap().recovery().quarantined_files, 1);
}

/// Three sealed buckets with a key each.
fn three(disk: &SimDisk) -> Vec<String> {
    let backend = open(disk).unwrap();
    for key in ["a", "b", "c"] {
        put(&backend, key, 1);
        backend.seal();
    }
    drop(backend);
    let files = names(disk).into_iter();
    files.filter(|name| name.ends_with(".bucket")).collect()
}

#[test]
fn a_bucket_with_a_part_of_another_version_is_refused_and_left_as_it_is() {
    // The end of a sealed bucket, and the head of a group in one that a crash left open.
    for sealed in [true, false] {
        let disk = SimDisk::new();
        let file = three(&disk).remove(1);
        let name = match sealed {
            true => file.clone(),
            false => file.replace(".bucket", ".open"),
        };
        let end = disk.content(&file).unwrap().len();
        let (at, version, sum) = match sealed {
            true => (end - 64, 4, 60),
            false => (4096, 4, 60),
        };
        disk.rename(&file, &name).unwrap();
        let change = |to: u8| {
            disk.damage(&name, |bytes| {
                bytes[at + version] = to;
                let checksum = crc32c::crc32c(&bytes[at..at + sum]);
                bytes[at + sum..at + sum + 4].copy_from_slice(&checksum.to_le_bytes());
            });
        };
        change(2);
        let before = disk.content(&name);
        let opened = open(&disk);
        let Err(OpenError::Damaged { file, flaw }) = opened else {
            panic!("{opened:?}")
        };
        assert_eq!((file, flaw), (name.clone(), Flaw::Version(2)));
        assert_eq!(disk.content(&name), before);
        change(1);
        let backend = open(&disk).unwrap();
        assert!(["a", "b", "c"].map(|key| get(&backend, key)) == [Some(1); 3]);
    }
}

#[test]
fn a_bucket_that_the_disk_cannot_read_does_not_keep_the_others_closed() {
    let disk = SimDisk::new();
    let files = three(&disk);
    let end = disk.content(&files[1]).unwrap().len() as u64;
    // Its index.
    disk.fail_reads(&files[1], end - 64..u64::MAX);
    let backend = open(&disk).unwrap();
    assert_eq!(backend.recovery().rebuilt_buckets, 1);
    assert!(["a", "b", "c"].map(|key| get(&backend, key)) == [Some(1); 3]);
    drop(backend);
    // A value of a bucket that a crash left open, beside another one.
    let opened = open(&disk).unwrap();
    for key in ["d", "e"] {
        put(&opened, key, 1);
    }
    let open_file = names(&disk)
        .into_iter()
        .find(|name| name.ends_with(".open"))
        .unwrap();
    disk.cut_power();
    drop(opened);
    let crashed = disk.after_power_loss(3);
    let at = crashed.content(&open_file).unwrap().len() as u64 - 4096;
    crashed.fail_reads(&open_file, at..u64::MAX);
    let backend = open(&crashed).unwrap();
    assert_eq!((get(&backend, "d"), get(&backend, "e")), (Some(1), None));
    drop(backend);
    let disk = disk.after_power_loss(4);
    // All of them: that is the disk, and nothing is touched.
    for file in &files {
        disk.fail_reads(file, 0..u64::MAX);
    }
    let before = names(&disk);
    assert!(matches!(open(&disk), Err(OpenError::Io { .. })));
    assert_eq!(names(&disk), before);
    // One of them.
    for file in [&files[0], &files[2]] {
        disk.fail_reads(file, 0..0);
    }
    let backend = open(&disk).unwrap();
    assert_eq!(backend.recovery().quarantined_files, 1);
    let found = ["a", "b", "c"].map(|key| get(&backend, key));
    assert_eq!(found, [Some(1), None, Some(1)]);
    // What is not served may be put and removed, and does not come back once it can be read.
    put(&backend, "b", 2);
    remove(&backend, "b", 2);
    drop(backend);
    disk.fail_reads(&format!("{}.quarantined", files[1]), 0..0);
    assert_eq!(get(&open(&disk).unwrap(), "b"), None);
}

#[test]
fn a_damaged_value_is_an_error_and_its_neighbours_are_served() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    for key in ["a", "b", "c"] {
        put(&backend, key, 1);
    }
    backend.seal();
    let file = names(&disk)
        .into_iter()
        .find(|name| name.ends_with(".bucket"))
        .unwrap();
    let at = {
        let bytes = disk.content(&file).unwrap();
        let middle = b"b 1 b 1 ";
        bytes
            .windows(middle.len())
            .position(|window| window == middle)
            .unwrap()
    };
    disk.damage(&file, |bytes| bytes[at + 20] ^= 1);
    let damaged = backend.get(Name::key("b"), None);
    assert!(
        matches!(damaged, Err(GetError::Damaged { .. })),
        "{damaged:?}"
    );
    assert_eq!((get(&backend, "a"), get(&backend, "c")), (Some(1), Some(1)));
    assert_eq!(backend.counts().failed_reads, 1);
    // A damaged record can be removed like any other.
    assert_eq!(remove(&backend, "b", 1), Removed::Gone);
    assert_eq!(get(&backend, "b"), None);
}

#[test]
fn a_sealed_bucket_with_a_damaged_index_is_looked_through() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    for key in ["a", "b", "c"] {
        put(&backend, key, 1);
    }
    remove(&backend, "c", 1);
    drop(backend);
    let file = names(&disk)
        .into_iter()
        .find(|name| name.ends_with(".bucket"))
        .unwrap();
    disk.damage(&file, |bytes| {
        let end = bytes.len();
        bytes[end - 40] ^= 1;
    });
    for rebuilt in [1, 0] {
        let backend = open(&disk).unwrap();
        assert_eq!(backend.recovery().rebuilt_buckets, rebuilt);
        assert_eq!(
            (get(&backend, "a"), get(&backend, "b"), get(&backend, "c")),
            (Some(1), Some(1), None)
        );
    }
}

#[test]
fn a_sealed_bucket_of_which_nothing_can_be_read_is_set_aside_and_counted() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    let texts = ["a", "b", "c"].map(|key| format!("{key} 1 ").repeat(50));
    let puts: Vec<_> = ["a", "b", "c"]
        .iter()
        .zip(&texts)
        .map(|(key, text)| Put::new(Name::key(key), life(1), text.as_bytes()))
        .collect();
    assert!(backend.put_batch(&puts).iter().all(Result::is_ok));
    drop(backend);
    let mut files = names(&disk).into_iter();
    let file = files.find(|name| name.ends_with(".bucket")).unwrap();
    // The footer is bad, and the head of the only group.
    disk.damage(&file, |bytes| {
        let end = bytes.len();
        bytes[end - 40] ^= 1;
        bytes[4096 + 20] ^= 1;
    });
    let before = disk.content(&file).unwrap();
    let backend = open(&disk).unwrap();
    let recovery = backend.recovery();
    assert_eq!((recovery.quarantined_files, recovery.buckets), (1, 0));
    assert_eq!(recovery.broken_records, 3, "those of the group are counted");
    let aside = disk.content(&format!("{file}.quarantined")).unwrap();
    assert!(aside == before, "and left as they are");
}

#[test]
fn records_of_a_group_whose_head_is_damaged_are_counted_and_its_neighbours_are_served() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    for key in ["a", "b", "c"] {
        put(&backend, key, 1);
    }
    drop(backend);
    let mut files = names(&disk).into_iter();
    let file = files.find(|name| name.ends_with(".bucket")).unwrap();
    let whole = disk.content(&file).unwrap();
    // The second of three groups, of one record each; and then not even its record can be made out.
    for (broken_record, at) in [(false, 2 * 4096), (true, 2 * 4096 + 64)] {
        disk.damage(&file, |bytes| {
            bytes.clone_from(&whole);
            let end = bytes.len();
            bytes[end - 40] ^= 1;
            bytes[2 * 4096 + 30] ^= 1;
            bytes[at] ^= u8::from(broken_record);
        });
        let copy = SimDisk::new();
        for name in names(&disk) {
            copy.plant(&name, disk.content(&name).unwrap());
        }
        let backend = open(&copy).unwrap();
        let recovery = backend.recovery();
        assert_eq!((recovery.rebuilt_buckets, recovery.broken_records), (1, 1));
        let found = ["a", "b", "c"].map(|key| get(&backend, key));
        assert_eq!(found, [Some(1), None, Some(1)]);
    }
}

#[test]
fn what_cannot_be_listed_is_told_and_the_rest_is_listed() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    for key in ["a", "b", "c"] {
        put(&backend, key, 1);
        if key != "c" {
            put(&backend, &key.repeat(2), 1);
        }
        backend.seal();
    }
    let [first, second, _] = backend.sealed_buckets()[..] else {
        panic!("three buckets")
    };
    // A header that went bad, and a footer.
    disk.damage(&format!("{first:08x}.bucket"), |bytes| {
        bytes[4096 + 64 + 20] ^= 1;
    });
    disk.damage(&format!("{second:08x}.bucket"), |bytes| {
        let end = bytes.len();
        bytes[end - 40] ^= 1;
    });
    for most in [1, 100] {
        let (mut next, mut keys, mut damaged, mut unlisted) =
            (Some(Cursor::default()), Vec::new(), 0, Vec::new());
        while let Some(cursor) = next {
            let page = backend.list(cursor, most);
            keys.extend(page.records.into_iter().map(|record| record.key));
            damaged += page.damaged;
            unlisted.extend(page.unlisted);
            next = page.next;
        }
        assert_eq!(keys, [&b"aa"[..], b"c"], "{most} at a time");
        assert_eq!(damaged, 1);
        let [bucket] = &unlisted[..] else {
            panic!("{unlisted:?}")
        };
        assert_eq!((bucket.bucket, bucket.records), (second, 2));
    }
}

/// The put that came too late wrote its record before it knew. What outlives it goes bad later, and nothing of that
/// brings it back.
#[test]
fn what_is_answered_as_stale_stays_dead_when_the_later_life_is_damaged_after_a_crash() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    let put_in = |group, key: &str, seq| {
        let bytes = format!("{key} {seq} ").repeat(50);
        backend.put(Put::new(Name::key(key), life(seq), bytes.as_bytes()).group(group))
    };
    for (group, key) in [(1, "one"), (2, "two")] {
        assert_eq!(put_in(group, key, 1).unwrap(), Stored::Written);
    }
    let late = std::thread::scope(|scope| {
        disk.set_sync_time(Duration::from_millis(300));
        let syncs = disk.syncs();
        let late = scope.spawn(|| put_in(1, "key", 6));
        while disk.syncs() == syncs {
            std::thread::yield_now();
        }
        disk.set_sync_time(Duration::ZERO);
        assert_eq!(put_in(2, "key", 7).unwrap(), Stored::Written);
        backend.seal();
        late.join().unwrap()
    });
    let Err(PutError::Stale { current }) = late else {
        panic!("it was too late: {late:?}")
    };
    assert_eq!(current, life(7));
    let newest = *backend.sealed_buckets().last().unwrap();
    disk.cut_power();
    for seed in 0..20 {
        let after = disk.after_power_loss(seed);
        let file = format!("{newest:08x}.bucket");
        after.damage(&file, |bytes| bytes[20] ^= 1);
        let backend = open(&after).unwrap();
        assert_eq!(backend.recovery().quarantined_files, 1);
        assert_eq!(get(&backend, "key"), None, "seed {seed}");
    }
}

/// Of what is removed while it is written the tombstone is of every copy. It goes once there are others.
#[test]
fn what_was_removed_while_it_was_put_can_be_put_anew_once_the_log_was_rewritten() {
    let disk = SimDisk::new();
    let mut config = config();
    config.log_bytes = 1;
    let opened = || OpenOptions::new(config.clone()).open_on(Arc::new(disk.clone()));
    let backend = opened().unwrap();
    put(&backend, "other", 1);
    disk.set_sync_time(Duration::from_millis(50));
    let syncs = disk.syncs();
    std::thread::scope(|scope| {
        let put = scope.spawn(|| backend.put(Put::new(Name::key("key"), life(5), b"value")));
        while disk.syncs() == syncs {
            std::thread::yield_now();
        }
        assert_eq!(remove(&backend, "key", 5), Removed::Gone);
        // Not while its end is open.
        backend.maintain();
        let put = put.join().unwrap();
        assert!(matches!(put, Err(PutError::Removed)), "{put:?}");
    });
    disk.set_sync_time(Duration::ZERO);
    for _ in 0..3 {
        // It is rewritten once it has grown.
        remove(&backend, "other", 1);
        put(&backend, "other", 1);
        backend.maintain();
    }
    let again = backend.put(Put::new(
        Name::key("key"),
        life(5),
        "key 5 ".repeat(50).as_bytes(),
    ));
    assert_eq!(again.unwrap(), Stored::Written);
    disk.cut_power();
    for seed in 0..10 {
        let backend = open(&disk.after_power_loss(seed)).unwrap();
        assert_eq!(get(&backend, "key"), Some(5));
        assert_eq!(remove(&backend, "key", 5), Removed::Gone);
    }
}

#[test]
fn a_damaged_log_of_removals_is_refused() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    for key in ["a", "b", "c"] {
        put(&backend, key, 1);
        put(&backend, &format!("{key}{key}"), 1);
    }
    for key in ["a", "b", "c"] {
        remove(&backend, key, 1);
    }
    drop(backend);
    let file = names(&disk)
        .into_iter()
        .find(|name| name.ends_with(".tombstones"))
        .unwrap();
    disk.damage(&file, |bytes| bytes[4096 + 50] ^= 1);
    let opened = open(&disk);
    assert!(
        matches!(opened, Err(OpenError::Damaged { .. })),
        "{opened:?}"
    );
    disk.damage(&file, |bytes| bytes[4096 + 50] ^= 1);
    assert_eq!(open(&disk).unwrap().len(), 3);
}

fn log(disk: &SimDisk) -> String {
    let mut logs = names(disk).into_iter();
    logs.find(|name| name.ends_with(".tombstones")).unwrap()
}

#[test]
fn a_log_that_was_whole_when_it_got_its_name_is_refused_when_it_is_not() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    for key in ["a", "b", "c"] {
        put(&backend, key, 1);
    }
    remove(&backend, "a", 1);
    drop(backend);
    // As the first removal wrote it, and as a start did.
    for start in 0..2 {
        let (log, bytes) = (log(&disk), disk.content(&log(&disk)).unwrap());
        assert_eq!(bytes.len(), 8192);
        let damages: [fn(&mut Vec<u8>); 5] = [
            |bytes| bytes[4096 + 40] ^= 1,
            |bytes| bytes[4096 + 8] ^= 1,
            |bytes| bytes[4096..].fill(0),
            |bytes| bytes.truncate(4096 + 50),
            |bytes| bytes.truncate(4096),
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            disk.damage(&log, damage);
            let opened = open(&disk);
            assert!(
                matches!(opened, Err(OpenError::Damaged { .. })),
                "start {start}, damage {number}: {opened:?}"
            );
            disk.damage(&log, |there| there.clone_from(&bytes));
        }
        let backend = open(&disk).unwrap();
        assert_eq!(get(&backend, "a"), None);
        assert_eq!(backend.recovery().torn_logs, 0);
    }
}

#[test]
fn a_life_that_was_replaced_stays_dead_when_the_bucket_with_the_later_one_is_damaged() {
    for closed in [true, false] {
        let disk = SimDisk::new();
        let backend = open(&disk).unwrap();
        put(&backend, "key", 5);
        backend.seal();
        put(&backend, "key", 7);
        backend.seal();
        let newest = *backend.sealed_buckets().last().unwrap();
        let disk = if closed {
            drop(backend);
            disk
        } else {
            backend.maintain();
            disk.after_power_loss(1)
        };
        disk.damage(&format!("{newest:08x}.bucket"), |bytes| bytes[20] ^= 1);
        let backend = open(&disk).unwrap();
        assert_eq!(backend.recovery().quarantined_files, 1);
        assert_eq!(get(&backend, "key"), None, "closed: {closed}");
    }
}

#[test]
fn a_last_frame_that_is_not_whole_is_left_out_and_counted() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    for key in ["a", "b", "c"] {
        put(&backend, key, 1);
    }
    remove(&backend, "a", 1);
    remove(&backend, "b", 1);
    drop(backend);
    disk.damage(&log(&disk), |bytes| bytes.truncate(2 * 4096 + 50));
    for torn in [1, 0] {
        let backend = open(&disk).unwrap();
        assert_eq!(backend.recovery().torn_logs, torn);
        assert_eq!((get(&backend, "a"), get(&backend, "b")), (None, Some(1)));
    }
}

#[test]
fn numbers_of_buckets_are_never_used_again() {
    let disk = SimDisk::new();
    let mut last = 0;
    for round in 0..5 {
        let backend = open(&disk).unwrap();
        put(&backend, "key", round + 1);
        backend.seal();
        let newest = *backend.sealed_buckets().last().unwrap();
        assert!(newest > last, "round {round}: {newest} after {last}");
        last = newest;
        // The newest goes: its number must not come again.
        backend.evict_bucket(newest).unwrap();
    }
}

#[test]
fn what_vanished_behind_our_back_is_an_error_and_no_panic() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config();
    config.open_files = 1;
    let backend = BucketStorageBackend::open(directory.path(), config).unwrap();
    for (seq, key) in ["a", "b", "c"].iter().enumerate() {
        put(&backend, key, seq as u64);
        backend.seal();
    }
    assert_eq!(get(&backend, "c"), Some(2));
    for file in std::fs::read_dir(directory.path())
        .unwrap()
        .map(Result::unwrap)
    {
        if file.file_name().to_str().unwrap().ends_with(".bucket") {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
    let gone = backend.get(Name::key("a"), None);
    assert!(matches!(gone, Err(GetError::Io { .. })), "{gone:?}");
    assert_eq!(backend.counts().vanished_reads, 1);
}

#[test]
fn ranges_of_small_and_large_values_are_what_was_put() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    for (seq, length) in [0usize, 1, 100, 65_535, 65_536, 65_537, 200_001]
        .into_iter()
        .enumerate()
    {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + at / 256) as u8).collect();
        let key = length.to_string();
        backend
            .put(Put::new(Name::key(&key), life(seq as u64), &bytes))
            .unwrap();
        for from in [0, 1, 65_535, 65_536, 131_072, length / 2] {
            for count in [0, 1, 4096, 70_000, length] {
                let mut part = vec![0; count];
                let read = backend.get_range(Name::key(&key), None, from as u32, &mut part);
                if from + count <= length {
                    assert_eq!(read.unwrap().value_bytes as usize, length);
                    assert!(
                        part == bytes[from..from + count],
                        "{length}: {from} + {count}"
                    );
                } else {
                    assert!(matches!(read, Err(GetError::Range { .. })));
                }
            }
        }
        let mut into = vec![7; length + 3];
        backend
            .get_into(Name::key(&key), Some(life(seq as u64)), &mut into)
            .unwrap();
        assert!(into[..length] == bytes[..] && into[length..] == [7; 3]);
        if length > 0 {
            let small = backend.get_into(Name::key(&key), None, &mut into[..length - 1]);
            assert!(matches!(small, Err(GetError::Room { .. })));
        }
        let other = backend.get(Name::key(&key), Some(life(99)));
        assert!(matches!(other, Err(GetError::OtherIncarnation { .. })));
    }
}

/// An eviction whose end the process did not see, and a removal that another process then answers.
#[test]
fn what_is_answered_as_absent_stays_absent_whatever_a_dead_process_left_undone() {
    for step in 0..3 {
        let disk = SimDisk::new();
        let backend = open(&disk).unwrap();
        put(&backend, "key", 1);
        backend.seal();
        let bucket = backend.sealed_buckets()[0];
        disk.cut_power_at(disk.steps() + step);
        let evicted = backend.evict_bucket(bucket);
        assert_eq!(evicted.is_err(), disk.is_power_lost());
        let disk = disk.after_process_death();
        let backend = open(&disk).unwrap();
        let removed = remove(&backend, "key", 1);
        disk.cut_power();
        for seed in 0..20 {
            let backend = open(&disk.after_power_loss(seed)).unwrap();
            assert_eq!(get(&backend, "key"), None, "step {step}: {removed:?}");
        }
    }
}

#[test]
fn an_older_life_that_lost_to_one_that_is_being_evicted_does_not_come_back_in_its_place() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    let put_in = |group, key: &str, seq| {
        let bytes = format!("{key} {seq} ").repeat(50);
        backend.put(Put::new(Name::key(key), life(seq), bytes.as_bytes()).group(group))
    };
    // Both lanes have their buckets, and there is a tombstone to be written.
    for (group, key, seq) in [(1, "one", 1), (2, "two", 1), (2, "two", 2)] {
        assert_eq!(put_in(group, key, seq).unwrap(), Stored::Written);
    }
    let (evicted, old) = std::thread::scope(|scope| {
        disk.set_sync_time(Duration::from_millis(150));
        let syncs = disk.syncs();
        let old = scope.spawn(|| put_in(1, "key", 6));
        while disk.syncs() == syncs {
            std::thread::yield_now();
        }
        disk.set_sync_time(Duration::ZERO);
        assert_eq!(put_in(2, "key", 7).unwrap(), Stored::Written);
        backend.seal();
        let bucket = backend.sealed_buckets()[0];
        // The older put ends while tombstones are being written for this.
        disk.set_sync_time(Duration::from_millis(500));
        (backend.evict_bucket(bucket), old.join().unwrap())
    });
    assert_eq!(evicted.unwrap(), 2);
    let expected = match old {
        Ok(_) => Some(6),
        Err(PutError::Stale { current }) if current == life(7) => None,
        Err(error) => panic!("{error:?}"),
    };
    disk.cut_power();
    for seed in 0..40 {
        let after = disk.after_power_loss(seed);
        after.set_sync_time(Duration::ZERO);
        assert_eq!(get(&open(&after).unwrap(), "key"), expected, "{old:?}");
    }
}

#[test]
fn what_a_failed_put_left_on_the_disk_does_not_outlive_a_removal() {
    // Its write fails, or its sync; and then the bucket cannot be sealed either, so that what it holds is all that
    // a start has.
    for step in 0..2 {
        let disk = SimDisk::new();
        let backend = open(&disk).unwrap();
        put(&backend, "other", 1);
        for failing in [step, step + 1] {
            disk.fail_at(disk.steps() + failing, std::io::ErrorKind::Other);
        }
        let bytes = "key 1 ".repeat(50);
        let failed = backend.put(Put::new(Name::key("key"), life(1), bytes.as_bytes()));
        assert!(failed.is_err());
        assert_eq!(backend.counts().seal_failures, 1);
        assert_eq!(remove(&backend, "key", 1), Removed::Absent);
        disk.cut_power();
        for seed in 0..40 {
            let backend = open(&disk.after_power_loss(seed)).unwrap();
            assert_eq!(
                (get(&backend, "key"), get(&backend, "other")),
                (None, Some(1)),
                "step {step}"
            );
        }
    }
}

#[test]
fn absent_is_not_answered_while_the_tombstone_that_makes_it_so_is_on_its_way_for_somebody_else() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    for key in ["other", "another"] {
        put(&backend, key, 1);
    }
    remove(&backend, "another", 1);
    // The put's sync fails, and the one that would have sealed the bucket.
    for step in 1..3 {
        disk.fail_at(disk.steps() + step, std::io::ErrorKind::Other);
    }
    let bytes = "key 5 ".repeat(50);
    let failed = backend.put(Put::new(Name::key("key"), life(5), bytes.as_bytes()));
    assert!(failed.is_err());
    disk.set_sync_time(Duration::from_millis(200));
    let syncs = disk.syncs();
    let after = std::thread::scope(|scope| {
        scope.spawn(|| remove(&backend, "other", 1));
        while disk.syncs() == syncs {
            std::thread::yield_now();
        }
        assert_eq!(remove(&backend, "key", 5), Removed::Absent);
        (0..60)
            .map(|seed| disk.after_power_loss(seed))
            .collect::<Vec<_>>()
    });
    for (seed, disk) in after.iter().enumerate() {
        disk.set_sync_time(Duration::ZERO);
        assert_eq!(get(&open(disk).unwrap(), "key"), None, "seed {seed}");
    }
}

#[test]
fn a_compaction_that_fails_at_any_step_loses_nothing_and_can_be_repeated() {
    for kind in [std::io::ErrorKind::Other, std::io::ErrorKind::StorageFull] {
        let mut step = 0;
        loop {
            let disk = SimDisk::new();
            let backend = open(&disk).unwrap();
            for key in ["a", "b", "c", "d"] {
                put(&backend, key, 1);
            }
            backend.seal();
            remove(&backend, "b", 1);
            let bucket = backend.sealed_buckets()[0];
            let fails_at = disk.steps() + step;
            disk.fail_at(fails_at, kind);
            let done = backend.compact_buckets(&[bucket]);
            if disk.steps() <= fails_at {
                assert!(done.is_ok(), "{done:?}");
                break;
            }
            let check = |backend: &BucketStorageBackend, what: &str| {
                let found = ["a", "b", "c", "d"].map(|key| get(backend, key));
                assert_eq!(
                    found,
                    [Some(1), None, Some(1), Some(1)],
                    "step {step}, {what}: {done:?}"
                );
            };
            check(&backend, "at once");
            // Another disk has the same fault and then loses its power.
            for seed in 0..10 {
                let after = disk.after_power_loss(seed);
                let backend = open(&after).unwrap();
                check(&backend, "after a power loss");
                assert_eq!(
                    backend.recovery().quarantined_files,
                    0,
                    "step {step}: {done:?}"
                );
            }
            backend.maintain();
            put(&backend, "e", 1);
            backend.seal();
            remove(&backend, "c", 1);
            for bucket in backend.sealed_buckets() {
                let again = backend.compact_buckets(&[bucket]);
                assert!(again.is_ok(), "step {step}: {again:?} after {done:?}");
            }
            let found = ["a", "c", "d", "e"].map(|key| get(&backend, key));
            assert_eq!(found, [Some(1), None, Some(1), Some(1)], "step {step}");
            step += 1;
        }
        assert!(step > 15, "{step} steps");
    }
}

#[test]
fn a_listing_has_every_record_that_stays_with_its_key() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    for key in 0..200 {
        put(&backend, &key.to_string(), key);
    }
    for key in (0..200).step_by(3) {
        remove(&backend, &key.to_string(), key);
    }
    let (mut cursor, mut found, mut pages) = (Cursor::default(), BTreeMap::new(), 0);
    loop {
        let page = backend.list(cursor, 7);
        assert!(page.records.len() <= 7 && page.damaged == 0);
        for record in page.records {
            assert!(record.tenant.is_empty());
            let key = String::from_utf8(record.key).unwrap();
            found.insert(key, record.incarnation.seq);
        }
        pages += 1;
        let Some(next) = page.next else { break };
        cursor = next;
        if pages == 5 {
            // Buckets go and others come meanwhile.
            backend.seal();
            let mut all = GcConfig::default();
            all.live_fraction = 1.0;
            for candidate in backend.gc_candidates(&all) {
                backend.compact_buckets(&[candidate.bucket]).unwrap();
            }
        }
    }
    for key in 0..200 {
        let expected = (key % 3 != 0).then_some(key);
        assert_eq!(found.get(&key.to_string()).copied(), expected, "{key}");
    }
    let (accounting, measured) = (backend.accounting(), backend.measure().unwrap());
    assert_eq!(accounting.file_bytes, measured.file_bytes);
    assert!(measured.allocated_bytes > 0);
}

/// The first fault may be in the commit itself, so that nobody knows whether it came through; what is done about that is
/// cut short as well.
#[test]
fn a_compaction_that_fails_and_then_loses_power_at_any_step_loses_nothing() {
    let mut undone = 0;
    for fault in 0..30 {
        for cut in fault + 1..40 {
            let disk = SimDisk::new();
            let backend = open(&disk).unwrap();
            for key in ["a", "b", "c"] {
                put(&backend, key, 1);
            }
            backend.seal();
            remove(&backend, "b", 1);
            let bucket = backend.sealed_buckets()[0];
            let begin = disk.steps();
            disk.fail_at(begin + fault, std::io::ErrorKind::Other);
            disk.cut_power_at(begin + cut);
            let done = backend.compact_buckets(&[bucket]);
            if !disk.is_power_lost() {
                break;
            }
            undone += 1;
            for seed in 0..12 {
                let backend = open(&disk.after_power_loss(seed)).unwrap();
                let found = ["a", "b", "c"].map(|key| get(&backend, key));
                let note = format!("fault {fault}, cut {cut}, seed {seed}: {done:?}");
                assert_eq!(found, [Some(1), None, Some(1)], "{note}");
                assert_eq!(backend.recovery().quarantined_files, 0, "{note}");
            }
        }
    }
    assert!(undone > 50, "{undone}");
}

#[test]
fn what_a_start_could_not_find_stays_dead_when_a_later_one_finds_it() {
    let disk = SimDisk::new();
    let backend = open(&disk).unwrap();
    put(&backend, "removed", 1);
    put(&backend, "kept", 1);
    remove(&backend, "removed", 1);
    disk.cut_power();
    drop(backend);
    let disk = disk.after_power_loss(1);
    let mut found = names(&disk).into_iter();
    let file = found.find(|name| name.ends_with(".open")).unwrap();
    // It cannot be read, and is not in the index that the start makes.
    disk.fail_reads(&file, 4096..8192);
    assert_eq!(get(&open(&disk).unwrap(), "kept"), Some(1));
    let file = file.replace(".open", ".bucket");
    disk.fail_reads(&file, 0..0);
    assert_eq!(get(&open(&disk).unwrap(), "kept"), Some(1));
    disk.damage(&file, |bytes| {
        let end = bytes.len();
        bytes[end - 64] = 0;
    });
    let backend = open(&disk).unwrap();
    assert_eq!(backend.recovery().rebuilt_buckets, 1);
    let found = ["removed", "kept"].map(|key| get(&backend, key));
    assert_eq!(found, [None, Some(1)]);
}
