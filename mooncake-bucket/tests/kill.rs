//! A real process under load, killed without warning.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::Duration,
};

use mooncake_bucket::{
    BucketConfig, BucketGcWorker, BucketStorageBackend, GcConfig, GetError, Incarnation, Name, Put,
    Removal,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const DIRECTORY: &str = "MOONCAKE_KILL_DIRECTORY";
const WRITERS: u64 = 4;
const KEYS: u64 = 30;

fn config() -> BucketConfig {
    let mut config = BucketConfig::default();
    config.bucket_bytes = 512 << 10;
    config.aligned_from = 16 << 10;
    config
}

fn value(key: u64, life: u64) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(key << 32 ^ life);
    let length = if rng.random_range(0..4) == 0 {
        16_384..60_000
    } else {
        0..5000
    };
    let (length, first) = (rng.random_range(length), rng.random::<u8>());
    (0..length)
        .map(|at: usize| first.wrapping_add((at / 7) as u8))
        .collect()
}

/// What the killed process does: says what it is about to do, does it, says that it is done.
#[test]
#[ignore = "it is the process that others kill"]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let backend = BucketStorageBackend::open(directory, config()).unwrap();
    let mut gc = GcConfig::default();
    gc.live_fraction = 0.7;
    gc.bytes_per_second = 0;
    gc.operations_per_second = 0;
    gc.interval = Duration::from_millis(5);
    let _worker = BucketGcWorker::start(&backend, gc).unwrap();
    let base = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes()).unwrap();
        out.flush().unwrap();
    };
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (backend, say) = (&backend, &say);
            scope.spawn(move || {
                let mut life = base.as_nanos() as u64;
                let mut rng = StdRng::seed_from_u64(life ^ writer);
                let mut here = BTreeMap::new();
                loop {
                    let key = writer * KEYS + rng.random_range(0..KEYS);
                    let text = key.to_string();
                    match here.remove(&key) {
                        Some(life) if rng.random_range(0..3) > 0 => {
                            say(format!("\n= r {key} {life}\n"));
                            let removal = Removal {
                                name: Name::key(&text),
                                incarnation: Incarnation::new(1, life),
                            };
                            backend.mark_removed(&[removal])[0].as_ref().unwrap();
                            say(format!("\n= R {key} {life}\n"));
                        }
                        _ => {
                            life += 1;
                            let bytes = value(key, life);
                            say(format!("\n= p {key} {life}\n"));
                            let incarnation = Incarnation::new(1, life);
                            backend
                                .put(Put::new(Name::key(&text), incarnation, &bytes))
                                .unwrap();
                            say(format!("\n= P {key} {life}\n"));
                            here.insert(key, life);
                        }
                    }
                }
            });
        }
    });
}

/// What may be found of a key: its lives that were acknowledged and not removed, and what is in doubt.
#[derive(Debug, Default)]
struct Known {
    acked: Option<u64>,
    putting: Option<u64>,
    removing: bool,
}

fn rounds(count: u64) {
    let directory = tempfile::tempdir().unwrap();
    let mut all: BTreeMap<u64, Known> = BTreeMap::new();
    let mut rng = StdRng::seed_from_u64(count);
    let (mut acknowledged, mut reopened, mut transitions, mut moved) = (0, 0, 0, 0);
    for round in 0..count {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let least = rng.random_range(100..600);
        let mut lines = 0;
        for line in out.lines() {
            let line = line.unwrap();
            let mut words = line.split(' ');
            if words.next() != Some("=") {
                continue;
            }
            let (Some(what), Some(key), Some(life)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            // The last line may be cut short, and then says nothing.
            let (Ok(key), Ok(life)) = (key.parse(), life.parse::<u64>()) else {
                continue;
            };
            let known = all.entry(key).or_default();
            match what {
                "p" => known.putting = Some(life),
                "P" => {
                    *known = Known {
                        acked: Some(life),
                        ..Known::default()
                    }
                }
                "r" => known.removing = true,
                _ => *known = Known::default(),
            }
            lines += 1;
            if lines == least {
                process.kill().unwrap();
            }
        }
        process.wait().unwrap();
        assert!(
            lines >= least,
            "round {round}: the process ended by itself after {lines} lines"
        );
        let backend = BucketStorageBackend::open(directory.path(), config()).unwrap();
        let recovery = backend.recovery();
        assert_eq!(recovery.quarantined_files, 0, "round {round}: {recovery:?}");
        reopened += recovery.reopened_buckets;
        transitions += recovery.transitions;
        moved += backend.counts().moved_bytes;
        for (key, known) in &mut all {
            let text = key.to_string();
            let here = match backend.get(Name::key(&text), None) {
                Ok(found) => {
                    let life = found.incarnation.seq;
                    let expected = known.putting == Some(life) || known.acked == Some(life);
                    assert!(
                        expected,
                        "round {round}, key {key}: {life} is not expected: {known:?}"
                    );
                    assert!(
                        found.bytes == value(*key, life),
                        "round {round}, key {key}: other bytes"
                    );
                    Some(life)
                }
                Err(GetError::NotFound) => {
                    let expected = known.acked.is_none() || known.removing;
                    assert!(expected, "round {round}, key {key} is lost: {known:?}");
                    None
                }
                Err(error) => panic!("round {round}, key {key}: {error:?}"),
            };
            acknowledged += u64::from(known.acked.is_some());
            *known = Known {
                acked: here,
                ..Known::default()
            };
        }
    }
    println!(
        "{count} rounds, {acknowledged} values found again, {reopened} open buckets, {transitions} transitions, {moved}"
    );
    assert!(acknowledged > 10 * count && reopened >= count);
}

#[test]
fn ten_kills_under_load_lose_nothing() {
    rounds(10);
}

#[test]
#[ignore = "takes long"]
fn two_hundred_kills_under_load_lose_nothing() {
    rounds(200);
}
