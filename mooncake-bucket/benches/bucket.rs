//! Times a storage beside what the same files do by themselves, in one run. Figures of a busy machine say little;
//! what is beside each other says more.
//!
//! `cargo bench -p mooncake-bucket --bench bucket [-- DIRECTORY]`
#![expect(clippy::unwrap_used, reason = "a measurement that fails may stop")]

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use mooncake_bucket::{
    BucketConfig, BucketStorageBackend, Disk, GetInto, Incarnation, Name, Put, RealDisk, Removal,
};

fn life(seq: u64) -> Incarnation {
    Incarnation::new(1, seq)
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e9 / time.as_secs_f64()
}

fn main() {
    let given = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let folder = given.map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("bench-bucket-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    println!("{:?}", RealDisk::open(&folder).unwrap().uring().engine());
    for _ in 0..3 {
        puts_of_a_megabyte(&folder);
    }
    for _ in 0..3 {
        small_puts(&folder);
    }
    for (bytes, count) in [(128 << 10, 6000), (1 << 20, 1500)] {
        gets(&folder, bytes, count);
    }
    removals(&folder);
    restart(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
}

fn fresh(folder: &Path) -> PathBuf {
    let path = folder.join("storage");
    if path.exists() {
        std::fs::remove_dir_all(&path).unwrap();
    }
    path
}

/// One after the other, each durable.
fn puts_of_a_megabyte(folder: &Path) {
    let value: Vec<u8> = (0..1 << 20)
        .map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    const COUNT: u64 = 400;
    let plain = RealDisk::open(folder.join("plain")).unwrap();
    let file = plain.create("file").unwrap();
    let begun = Instant::now();
    for number in 0..COUNT {
        file.write_at(number << 20, &[&value]).unwrap();
        file.sync().unwrap();
    }
    let limit = begun.elapsed();
    plain.remove("file").unwrap();
    let storage = BucketStorageBackend::open(fresh(folder), BucketConfig::default()).unwrap();
    let begun = Instant::now();
    for number in 0..COUNT {
        let key = number.to_string();
        storage
            .put(Put::new(Name::key(&key), life(number), &value))
            .unwrap();
    }
    let ours = begun.elapsed();
    println!(
        "put 1 MiB, one at a time: {:.2} GB/s; plain write and sync {:.2} GB/s; {:.2} of it",
        rate(COUNT << 20, ours),
        rate(COUNT << 20, limit),
        limit.as_secs_f64() / ours.as_secs_f64()
    );
}

/// Eight callers with batches of 128 records of 4 KiB.
fn small_puts(folder: &Path) {
    const BATCHES: u64 = 40;
    let value = vec![7; 4096];
    let batch = vec![7; 128 * 4096];
    let plain = RealDisk::open(folder.join("plain")).unwrap();
    let file = plain.create("file").unwrap();
    let begun = Instant::now();
    let storage = BucketStorageBackend::open(fresh(folder), BucketConfig::default()).unwrap();
    let opened = begun.elapsed();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for caller in 0..8u64 {
            let (storage, value) = (&storage, &value);
            scope.spawn(move || {
                for number in 0..BATCHES {
                    let keys: Vec<_> = (0..128)
                        .map(|place| format!("model/layer/{caller:04}/{number:08}/{place:04}"))
                        .collect();
                    let puts: Vec<_> = keys
                        .iter()
                        .map(|key| Put::new(Name::key(key), life(1), value))
                        .collect();
                    assert!(storage.put_batch(&puts).iter().all(Result::is_ok));
                }
            });
        }
    });
    let ours = begun.elapsed();
    // As many bytes in as many syncs as if all eight shared each.
    let begun = Instant::now();
    for number in 0..BATCHES {
        for caller in 0..8 {
            file.write_at((number * 8 + caller) * batch.len() as u64, &[&batch])
                .unwrap();
        }
        file.sync().unwrap();
    }
    let limit = begun.elapsed();
    plain.remove("file").unwrap();
    let bytes = 8 * BATCHES * batch.len() as u64;
    println!(
        "put 4 KiB x 128, 8 callers: {:.2} GB/s; plain writes, a sync for 8 of them {:.2} GB/s; {:.2} of it (opened in {opened:?})",
        rate(bytes, ours),
        rate(bytes, limit),
        limit.as_secs_f64() / ours.as_secs_f64()
    );
}

/// Random reads by 32 callers, past the page cache.
fn gets(folder: &Path, bytes: usize, count: u64) {
    let path = fresh(folder);
    let value: Vec<u8> = (0..bytes as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let storage = BucketStorageBackend::open(&path, BucketConfig::default()).unwrap();
    for number in (0..count).step_by(32) {
        let keys: Vec<_> = (number..number + 32)
            .map(|number| number.to_string())
            .collect();
        let puts: Vec<_> = keys
            .iter()
            .map(|key| Put::new(Name::key(key), life(1), &value))
            .collect();
        assert!(storage.put_batch(&puts).iter().all(Result::is_ok));
    }
    storage.seal();
    let plain = RealDisk::open(&path).unwrap().direct();
    let names: Vec<_> = plain
        .list()
        .unwrap()
        .into_iter()
        .filter(|file| file.name.ends_with(".bucket"))
        .collect();
    for round in 0..3u64 {
        let ours = together(
            count / 2,
            |number, into| {
                let key = (scatter(number + round * count) % count).to_string();
                storage.get_into(Name::key(&key), None, into).unwrap();
            },
            bytes,
        );
        let files: Vec<_> = names
            .iter()
            .map(|file| (direct(&path.join(&file.name)), file.bytes))
            .collect();
        let limit = together(
            count / 2,
            |number, into| {
                let place = scatter(number + round * count);
                let (file, length) = &files[(place % files.len() as u64) as usize];
                let at = (place >> 8) % (length / 4096 - bytes as u64 / 4096) * 4096;
                std::os::unix::fs::FileExt::read_exact_at(file, into, at).unwrap();
            },
            bytes,
        );
        let batches = batches(&storage, count, bytes, round);
        let total = count / 2 * bytes as u64;
        println!(
            "get {} KiB, 32 callers: {:.2} GB/s; 1 caller, 32 at once: {:.2} GB/s; plain O_DIRECT reads of 32 callers {:.2} GB/s; {:.2} of it",
            bytes >> 10,
            rate(total, ours),
            rate(total, batches),
            rate(total, limit),
            limit.as_secs_f64() / ours.as_secs_f64()
        );
    }
}

fn batches(storage: &BucketStorageBackend, count: u64, bytes: usize, round: u64) -> Duration {
    let mut memory = vec![0; 32 * bytes + 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let begun = Instant::now();
    for first in (0..count / 2).step_by(32) {
        let places = first..(first + 32).min(count / 2);
        let keys: Vec<_> = places
            .map(|number| (scatter(number + round * count + 7) % count).to_string())
            .collect();
        let parts = memory[skip..].chunks_exact_mut(bytes);
        let mut gets: Vec<_> = keys
            .iter()
            .zip(parts)
            .map(|(key, into)| GetInto {
                name: Name::key(key),
                incarnation: None,
                into,
            })
            .collect();
        assert!(storage.get_batch_into(&mut gets).iter().all(Result::is_ok));
    }
    begun.elapsed()
}

fn direct(path: &Path) -> std::fs::File {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .unwrap()
}

fn scatter(number: u64) -> u64 {
    (number ^ 0x55).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

fn together(count: u64, read: impl Fn(u64, &mut [u8]) + Sync, bytes: usize) -> Duration {
    let (next, begun) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                let mut memory = vec![0; bytes + 4096];
                let skip = memory.as_ptr().align_offset(4096);
                let into = &mut memory[skip..skip + bytes];
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    read(number, into);
                }
            });
        }
    });
    begun.elapsed()
}

fn removals(folder: &Path) {
    let storage = BucketStorageBackend::open(fresh(folder), BucketConfig::default()).unwrap();
    let keys: Vec<_> = (0..100_000u64).map(|number| number.to_string()).collect();
    for keys in keys.chunks(10_000) {
        let puts: Vec<_> = keys
            .iter()
            .map(|key| Put::new(Name::key(key), life(1), b"value"))
            .collect();
        assert!(storage.put_batch(&puts).iter().all(Result::is_ok));
    }
    let begun = Instant::now();
    for keys in keys.chunks(1000) {
        let all: Vec<_> = keys
            .iter()
            .map(|key| Removal {
                name: Name::key(key),
                incarnation: life(1),
            })
            .collect();
        assert!(storage.mark_removed(&all).iter().all(Result::is_ok));
    }
    println!(
        "remove 1000 at a time: {:.0} records/s, {:?} a batch",
        1e5 / begun.elapsed().as_secs_f64(),
        begun.elapsed() / 100
    );
}

fn restart(folder: &Path) {
    let path = fresh(folder);
    let storage = BucketStorageBackend::open(&path, BucketConfig::default()).unwrap();
    let value = vec![7; 200];
    for batch in 0..1000u64 {
        let keys: Vec<_> = (0..1000)
            .map(|place| format!("{batch:08}/{place:08}"))
            .collect();
        let puts: Vec<_> = keys
            .iter()
            .map(|key| Put::new(Name::key(key), life(1), &value))
            .collect();
        assert!(storage.put_batch(&puts).iter().all(Result::is_ok));
    }
    drop(storage);
    for _ in 0..3 {
        let begun = Instant::now();
        let storage = BucketStorageBackend::open(&path, BucketConfig::default()).unwrap();
        let took = begun.elapsed();
        assert_eq!(storage.len(), 1_000_000);
        println!(
            "open with 1,000,000 records in {} buckets: {took:?}, {:.1} bytes of index each",
            storage.accounting().buckets,
            storage.index_memory_bytes() as f64 / 1e6
        );
    }
}
