//! Files of each version of the format stay readable, byte for byte.
//!
//! `MOONCAKE_BLESS=1` writes the files of the present version anew; they are to change with the version alone.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{path::PathBuf, sync::Arc};

use mooncake_bucket::{
    BucketConfig, BucketStorageBackend, Disk, GetError, Incarnation, Name, OpenOptions, Put,
    Removal, SimDisk,
};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")
}

fn config() -> BucketConfig {
    let mut config = BucketConfig::default();
    config.housekeeping = false;
    config.aligned_from = 4096;
    config
}

fn open(disk: &SimDisk) -> BucketStorageBackend {
    OpenOptions::new(config())
        .open_on(Arc::new(disk.clone()))
        .unwrap()
}

fn life(seq: u64) -> Incarnation {
    Incarnation::new(7, seq)
}

/// Bytes that a change of the code does not change.
fn value(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// A sealed bucket, one that a crash left open, tombstones, an identity.
fn write() -> SimDisk {
    let disk = SimDisk::new();
    let backend = open(&disk);
    let (small, large) = (value(100), value(5000));
    let puts = [
        Put::new(Name::new("tenant", "small"), life(1), &small),
        Put::new(Name::key("empty"), life(2), &[]),
        Put::new(Name::new("tenant", "large"), life(3), &large),
        Put::new(Name::key("removed"), life(4), &small),
    ];
    assert!(backend.put_batch(&puts).iter().all(Result::is_ok));
    backend.seal();
    let removal = Removal {
        name: Name::key("removed"),
        incarnation: life(4),
    };
    assert!(backend.mark_removed(&[removal])[0].is_ok());
    backend
        .put(Put::new(Name::key("tail"), life(5), &small))
        .unwrap();
    // Not closed: the open bucket stays as it is.
    disk.cut_power();
    drop(backend);
    disk.after_process_death()
}

#[test]
fn files_of_version_1_are_read() {
    if std::env::var_os("MOONCAKE_BLESS").is_some() {
        let disk = write();
        std::fs::create_dir_all(folder()).unwrap();
        for file in disk.list().unwrap() {
            std::fs::write(folder().join(&file.name), disk.content(&file.name).unwrap()).unwrap();
        }
    }
    let disk = SimDisk::new();
    let mut kinds = Vec::new();
    for file in std::fs::read_dir(folder()).unwrap().map(Result::unwrap) {
        let name = file.file_name().into_string().unwrap();
        kinds.push(name.rsplit('.').next().unwrap().to_string());
        disk.plant(&name, std::fs::read(file.path()).unwrap());
    }
    kinds.sort();
    assert_eq!(kinds, ["bucket", "identity", "ids", "open", "tombstones"]);
    let before = disk.clone();
    let sealed = |disk: &SimDisk| {
        let names = disk.list().unwrap().into_iter().map(|file| file.name);
        let name = names
            .into_iter()
            .find(|name| name.ends_with(".bucket"))
            .unwrap();
        disk.content(&name).unwrap()
    };
    let golden = sealed(&before);
    let backend = open(&disk);
    let recovery = backend.recovery();
    assert_eq!(
        (
            recovery.records,
            recovery.tombstones,
            recovery.reopened_buckets
        ),
        (4, 1, 1),
        "{recovery:?}"
    );
    let read = |tenant: &str, key: &str, seq| {
        backend
            .get(Name::new(tenant, key), Some(life(seq)))
            .unwrap()
            .bytes
    };
    assert_eq!(read("tenant", "small", 1), value(100));
    assert_eq!(read("", "empty", 2), value(0));
    assert_eq!(read("tenant", "large", 3), value(5000));
    assert_eq!(read("", "tail", 5), value(100));
    assert!(matches!(
        backend.get(Name::key("removed"), None),
        Err(GetError::NotFound)
    ));
    // What is written now is what was written then, but for what is random: identity, stamp, time, and so
    // hashes and checksums.
    let now = sealed(&write());
    assert_eq!(now.len(), golden.len());
    let (head, group) = (4096, 4096 + 64);
    assert_eq!(now[..16], golden[..16]);
    for range in [
        head..head + 8,
        head + 16..head + 36,
        group..group + 32,
        group + 48..group + 48 + 11 + 1 + 4,
    ] {
        assert_eq!(now[range.clone()], golden[range.clone()], "bytes {range:?}");
    }
}
