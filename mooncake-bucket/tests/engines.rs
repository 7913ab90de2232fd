//! Each way to read a real disk gives the same.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{path::Path, sync::Arc};

use mooncake_bucket::{
    BucketConfig, BucketStorageBackend, Disk, Engine, GetError, GetInto, Incarnation, Name,
    OpenOptions, Put, Read, RealDisk,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const LENGTHS: [usize; 12] = [
    0,
    1,
    100,
    4096,
    20_000,
    65_535,
    65_536,
    65_537,
    131_072,
    300_000,
    1 << 20,
    3_000_001,
];

fn life(seq: usize) -> Incarnation {
    Incarnation::new(1, seq as u64)
}

fn value(seq: usize) -> Vec<u8> {
    let mut bytes = vec![0; LENGTHS[seq % LENGTHS.len()]];
    StdRng::seed_from_u64(seq as u64).fill(&mut bytes[..]);
    bytes
}

fn backend(folder: &Path, direct: bool, uring: bool) -> BucketStorageBackend {
    let mut disk = RealDisk::open(folder).unwrap();
    if direct {
        disk = disk.direct();
    }
    if uring {
        disk = disk.uring();
        if let Engine::Calls(reason) = disk.engine() {
            skip(&format!("io_uring on a real disk: {reason}"));
        }
    }
    OpenOptions::new(BucketConfig::default())
        .open_on(Arc::new(disk))
        .unwrap()
}

/// Says that a test could not run here.
fn skip(reason: &str) {
    use std::io::Write;
    if let Some(path) = std::env::var_os("MOONCAKE_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        writeln!(log, "skipped: {reason}").unwrap();
    }
}

#[test]
fn batches_of_all_lengths_are_read_alike_by_every_engine() {
    for (direct, uring) in [(false, false), (true, false), (false, true), (true, true)] {
        let note = format!("direct {direct}, uring {uring}");
        let folder = tempfile::tempdir().unwrap();
        let backend = backend(folder.path(), direct, uring);
        let keys: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        for round in [0, 50] {
            let values: Vec<_> = (round..round + 50).map(value).collect();
            let puts: Vec<_> = (round..round + 50)
                .map(|seq| Put::new(Name::key(&keys[seq]), life(seq), &values[seq - round]))
                .collect();
            assert!(backend.put_batch(&puts).iter().all(Result::is_ok), "{note}");
            backend.seal();
        }
        // More than a ring takes at once, with some that are not there in between.
        let names: Vec<_> = (0..120)
            .map(|seq| {
                let asked = if seq % 10 == 9 { Some(life(999)) } else { None };
                (
                    keys.get(seq).map_or_else(|| Name::key("never"), Name::key),
                    asked,
                )
            })
            .collect();
        for (seq, result) in backend.get_batch(&names).into_iter().enumerate() {
            match result {
                Ok(found) => assert!(seq < 100 && found.bytes == value(seq), "{note}: {seq}"),
                Err(GetError::NotFound) => assert!(seq >= 100, "{note}: {seq}"),
                Err(GetError::OtherIncarnation { .. }) => assert!(seq % 10 == 9, "{note}: {seq}"),
                Err(error) => panic!("{note}: {seq}: {error:?}"),
            }
        }
        // Into memory that is aligned, and into such that is not.
        let mut memory: Vec<Vec<u8>> = (0..100)
            .map(|seq| vec![0; LENGTHS[seq % LENGTHS.len()] + 8192])
            .collect();
        let mut gets: Vec<_> = memory
            .iter_mut()
            .enumerate()
            .map(|(seq, memory)| {
                let skip = memory.as_ptr().align_offset(4096) + seq % 3;
                let length = LENGTHS[seq % LENGTHS.len()];
                GetInto {
                    name: Name::key(&keys[seq]),
                    incarnation: Some(life(seq)),
                    into: &mut memory[skip..skip + length],
                }
            })
            .collect();
        let results = backend.get_batch_into(&mut gets);
        for (seq, (get, result)) in gets.iter().zip(results).enumerate() {
            assert_eq!(
                result.unwrap().value_bytes as usize,
                get.into.len(),
                "{note}: {seq}"
            );
            assert!(*get.into == value(seq), "{note}: {seq}");
            let single = backend.get(get.name, get.incarnation).unwrap();
            assert!(single.bytes == value(seq), "{note}: {seq}");
        }
    }
}

#[test]
fn what_is_damaged_in_a_batch_is_an_error_of_its_own() {
    for (direct, uring) in [(false, false), (true, true)] {
        let folder = tempfile::tempdir().unwrap();
        let backend = backend(folder.path(), direct, uring);
        let keys: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        let values: Vec<_> = (0..40).map(value).collect();
        let puts: Vec<_> = (0..40)
            .map(|seq| Put::new(Name::key(&keys[seq]), life(seq), &values[seq]))
            .collect();
        assert!(backend.put_batch(&puts).iter().all(Result::is_ok));
        drop(backend);
        let file = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|file| file.unwrap().path());
        let file = file
            .into_iter()
            .find(|path| path.extension().is_some_and(|kind| kind == "bucket"))
            .unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        let (damaged, middle) = (10, &values[10][500_000..500_032]);
        let at = bytes
            .windows(32)
            .position(|window| window == middle)
            .unwrap();
        bytes[at] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let backend = self::backend(folder.path(), direct, uring);
        let names: Vec<_> = keys.iter().map(|key| (Name::key(key), None)).collect();
        for (seq, result) in backend.get_batch(&names).into_iter().enumerate() {
            if seq == damaged {
                assert!(
                    matches!(result, Err(GetError::Damaged { .. })),
                    "{result:?}"
                );
            } else {
                assert!(result.unwrap().bytes == values[seq], "{seq}");
            }
        }
    }
}

/// Whoever is told of a read may panic while others are under way: their memory stays until they have landed, and the
/// next batch finds everything in order.
#[test]
fn a_panic_in_the_middle_of_a_batch_leaves_the_engine_usable() {
    let folder = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(folder.path()).unwrap().direct().uring();
    let _held = disk.lock("this test").map_err(|_| "locked").unwrap();
    let file = disk.create("file").unwrap();
    let bytes: Vec<u8> = (0..4 << 20).map(|at: u32| (at >> 12) as u8).collect();
    file.write_at(0, &[&bytes]).unwrap();
    file.sync().unwrap();
    for round in 0..10 {
        let mut memory = vec![vec![0; 65_536]; 64];
        let mut heads = vec![vec![0; 8]; 64];
        let mut reads: Vec<_> = memory
            .iter_mut()
            .zip(&mut heads)
            .enumerate()
            .map(|(place, (second, first))| Read {
                file: &*file,
                at: place as u64 * 65_000,
                first,
                second,
                read: Ok(0),
            })
            .collect();
        let mut seen = 0;
        let panics = round % 2 == 0;
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            disk.read_many(&mut reads, &mut |_, read| {
                assert_eq!(*read.read.as_ref().unwrap(), 65_544);
                seen += 1;
                assert!(!panics || seen < 3, "as a caller's mistake would");
            });
        }));
        assert_eq!(done.is_err(), panics);
        if !panics {
            assert_eq!(seen, 64);
            drop(reads);
            for (place, (first, second)) in heads.iter().zip(&memory).enumerate() {
                let at = place * 65_000;
                assert!(
                    [&first[..], second].concat() == bytes[at..at + 65_544],
                    "{place}"
                );
            }
        }
    }
}
