//! Puts, reads, removes and collects a few thousand objects in a directory, and says where the bytes are.
//!
//! `cargo run -p mooncake-bucket --example embedded_bucket [DIRECTORY]`

use std::{error::Error, path::PathBuf, time::Instant};

use mooncake_bucket::{
    Accounting, BucketConfig, BucketStorageBackend, CandidateKind, GcConfig, Incarnation, Name,
    Put, Removal,
};

const OBJECTS: u64 = 2000;
const LEN: usize = 16 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = std::env::temp_dir().join(format!("embedded-bucket-{}", std::process::id()));
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let directory = given.clone().unwrap_or_else(|| temporary.clone());
    let mut config = BucketConfig::default();
    config.bucket_bytes = 4 << 20;
    let storage = BucketStorageBackend::open(&directory, config)?;
    let recovery = storage.recovery();
    println!(
        "{}: {} records found in {:?}",
        directory.display(),
        recovery.records,
        recovery.took
    );

    // Objects of one conversation die together: they lie together.
    let begun = Instant::now();
    let life = Incarnation::new(
        u64::from(std::process::id()),
        recovery.took.as_nanos() as u64,
    );
    let keys: Vec<String> = (0..OBJECTS)
        .map(|number| format!("{}/{number}", number % 8))
        .collect();
    let value = vec![7; LEN];
    for (batch, keys) in keys.chunks(64).enumerate() {
        let puts: Vec<_> = keys
            .iter()
            .enumerate()
            .map(|(place, key)| {
                let conversation = (batch * 64 + place) as u64 % 8;
                Put::new(Name::new("demo", key), life, &value).group(conversation)
            })
            .collect();
        for result in storage.put_batch(&puts) {
            result?;
        }
    }
    println!(
        "put {OBJECTS} objects of {LEN} bytes in {:?}, each durable",
        begun.elapsed()
    );

    let read = storage.get(Name::new("demo", &keys[17]), Some(life))?;
    assert_eq!(read.bytes, value);
    let mut part = [0; 100];
    storage.get_range(Name::new("demo", &keys[17]), None, 5000, &mut part)?;
    assert_eq!(part, [7; 100]);

    // Six of the eight conversations end.
    let over: Vec<_> = keys.iter().filter(|key| key.as_bytes()[0] < b'6').collect();
    let removals: Vec<_> = over
        .iter()
        .map(|key| Removal {
            name: Name::new("demo", key),
            incarnation: life,
        })
        .collect();
    for result in storage.mark_removed(&removals) {
        result?;
    }
    storage.seal();
    tell("removed three quarters", &storage.accounting());

    for candidate in storage.gc_candidates(&GcConfig::default()) {
        let report = match candidate.kind {
            CandidateKind::Dead => storage.retire_bucket(candidate.bucket)?,
            CandidateKind::Sparse => storage.compact_buckets(&[candidate.bucket])?,
        };
        println!(
            "bucket {} ({:?}): {} bytes back, {} copied",
            candidate.bucket, candidate.kind, report.reclaimed_bytes, report.moved_bytes
        );
    }
    tell("collected", &storage.accounting());
    drop(storage);
    if given.is_none() {
        std::fs::remove_dir_all(temporary)?;
    }
    Ok(())
}

fn tell(what: &str, accounting: &Accounting) {
    let Accounting {
        live_bytes,
        dead_bytes,
        overhead_bytes,
        file_bytes,
        buckets,
        ..
    } = accounting;
    println!(
        "{what}: {live_bytes} live + {dead_bytes} dead + {overhead_bytes} overhead = {file_bytes} bytes in {buckets} buckets"
    );
    assert_eq!(live_bytes + dead_bytes + overhead_bytes, *file_bytes);
}
