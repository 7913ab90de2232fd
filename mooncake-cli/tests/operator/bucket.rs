//! Directories of buckets, with and without somebody who has them open.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mooncake_bucket::{BucketConfig, BucketStorageBackend, Incarnation, Name, Put, Removal};
use serde_json::Value;

use super::processes::{Done, Role, nobody, run};

const SOON: Duration = Duration::from_secs(5);

struct Storage {
    folder: tempfile::TempDir,
}

impl Storage {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("storage")
    }

    fn open(&self) -> BucketStorageBackend {
        let mut config = BucketConfig::default();
        config.bucket_bytes = 64 << 10;
        BucketStorageBackend::open(self.path(), config).unwrap()
    }

    /// The storage with 100 keys in several buckets, of which every third was removed.
    fn filled() -> (Self, BucketStorageBackend) {
        let storage = Self::new();
        let backend = storage.open();
        for number in 0..100u64 {
            let (key, value) = (format!("layer/{number:02}"), vec![number as u8; 2_000]);
            let name = Name::new(tenant(number), &key);
            let put = Put::new(name, Incarnation::new(7, number), &value);
            backend.put(put).unwrap();
        }
        backend.seal();
        for number in (0..100).step_by(3) {
            remove(&backend, number);
        }
        (storage, backend)
    }

    fn run(&self, verb: &str, words: &[&str]) -> Done {
        let path = self.path();
        let words = [&["bucket", verb, path.to_str().unwrap()], words].concat();
        run(&words, b"", &nobody())
    }

    fn json(&self, verb: &str, words: &[&str]) -> (i32, Value) {
        let done = self.run(verb, &[words, &["-o", "json"]].concat());
        (done.code, serde_json::from_str(&done.text()).unwrap())
    }

    /// All files and their bytes.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files = std::fs::read_dir(self.path()).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let mut all: Vec<_> = paths
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect();
        all.sort();
        all
    }

    fn file(&self, ending: &str) -> PathBuf {
        let mut files = self.files().into_iter().map(|(path, _)| path);
        let found = files.find(|path| path.extension().is_some_and(|it| it == ending));
        found.unwrap()
    }
}

fn tenant(number: u64) -> &'static str {
    if number < 10 { "small" } else { "" }
}

fn remove(backend: &BucketStorageBackend, number: u64) {
    let key = format!("layer/{number:02}");
    let removal = Removal {
        name: Name::new(tenant(number), &key),
        incarnation: Incarnation::new(7, number),
    };
    assert!(backend.mark_removed(&[removal])[0].is_ok());
}

fn flip(path: &Path, find: &[u8]) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(find.len()).position(|window| window == find);
    bytes[at.unwrap() + find.len() / 2] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_directory_is_told_listed_verified_and_dumped_while_somebody_has_it_open() {
    let (storage, backend) = Storage::filled();
    let before = storage.files();

    let (code, stat) = storage.json("stat", &[]);
    assert_eq!(code, 0);
    let books = backend.accounting();
    for (field, expected) in [
        ("live_bytes", books.live_bytes),
        ("dead_bytes", books.dead_bytes),
        ("overhead_bytes", books.overhead_bytes),
        ("file_bytes", books.file_bytes),
        ("live_records", 66),
        ("dead_records", 34),
        ("tombstones", 34),
        ("damaged_buckets", 0),
    ] {
        assert_eq!(stat[field].as_u64(), Some(expected), "{field}: {stat}");
    }
    let pid = std::process::id().to_string();
    assert!(stat["holder"].as_str().unwrap().contains(&pid), "{stat}");
    assert_eq!(
        stat["buckets"].as_array().unwrap().len() as u64,
        books.buckets
    );
    let told = storage.run("stat", &[]);
    for said in [&*pid, "66 records can be read", "34 are dead", "sealed"] {
        assert!(told.text().contains(said), "{said}: {}", told.text());
    }

    let (code, all) = storage.json("ls", &[]);
    let records = all["records"].as_array().unwrap();
    assert_eq!(
        (code, records.len(), &all["more"]),
        (0, 66, &Value::Bool(false))
    );
    assert_eq!(records[0]["key"], "layer/01");
    assert_eq!(records[0]["key_hex"], "6c617965722f3031");
    assert_eq!(
        (&records[0]["tenant"], records[0]["sequence"].as_u64()),
        (&"small".into(), Some(1))
    );
    let (_, some) = storage.json("ls", &["layer/0", "--tenant", "small", "--limit", "4"]);
    assert_eq!(
        (some["records"].as_array().unwrap().len(), &some["more"]),
        (4, &Value::Bool(true))
    );
    assert_eq!(storage.json("ls", &["nothing"]).0, 1);
    assert!(storage.run("ls", &["layer/9"]).text().contains("6 records"));

    let (code, verified) = storage.json("verify", &[]);
    assert_eq!(
        (code, verified["records"].as_u64()),
        (0, Some(66)),
        "{verified}"
    );
    assert_eq!(verified["bytes"].as_u64(), Some(66 * 2_000));

    let (code, dump) = storage.json("dump", &[]);
    let buckets = dump["buckets"].as_array().unwrap();
    let states = buckets
        .iter()
        .flat_map(|it| it["records"].as_array().unwrap());
    let dead = states.filter(|record| record["state"] == "dead").count();
    assert_eq!(
        (code, dead, dump["tombstones"].as_array().unwrap().len()),
        (0, 34, 34)
    );
    let first = buckets[0]["bucket"].as_str().unwrap();
    let (code, one) = storage.json("dump", &["--bucket", first]);
    assert_eq!((code, one["buckets"].as_array().unwrap().len()), (0, 1));
    assert_eq!(storage.json("dump", &["--bucket", "ffffff"]).0, 1);
    assert!(storage.run("dump", &[]).text().contains("layer/00"));

    assert_eq!(storage.files(), before, "nothing was changed");
    assert_eq!(backend.accounting(), books);
}

#[test]
fn a_directory_is_compacted_once_nobody_has_it_open() {
    let (storage, backend) = Storage::filled();
    let holder = format!("process {}", std::process::id());
    let said = ["is in use by", &holder, "stop it first"];
    storage.run("compact", &[]).refused(&said, SOON);
    drop(backend);
    let (code, done) = storage.json("compact", &["--live-fraction", "1"]);
    assert_eq!(code, 0);
    let number = |field: &str| done[field].as_u64().unwrap();
    assert!(number("compacted_buckets") >= 3, "{done}");
    assert_eq!(number("moved_records"), 66);
    assert!(
        number("file_bytes") + 34 * 2_000 < number("file_bytes_before"),
        "{done}"
    );
    assert_eq!(storage.json("verify", &[]).1["records"].as_u64(), Some(66));
    let again = storage.run(
        "compact",
        &["--live-fraction", "1", "--bytes-per-second", "64MiB"],
    );
    assert!(again.text().contains("0 rewritten"), "{}", again.text());
    assert_eq!(storage.open().len(), 66);
}

#[test]
fn what_is_damaged_is_named_and_a_damaged_log_is_taken_only_when_told() {
    let (storage, backend) = Storage::filled();
    drop(backend);
    let bucket = storage.file("bucket");
    flip(&bucket, &[4; 100]);
    let (code, verified) = storage.json("verify", &[]);
    assert_eq!((code, verified["whole"].as_bool()), (1, Some(false)));
    let damaged = &verified["damaged"][0];
    assert_eq!(
        (&damaged["key"], &damaged["tenant"]),
        (&"layer/04".into(), &"small".into())
    );
    let told = storage.run("verify", &[]);
    assert_eq!(told.code, 1);
    assert!(told.text().contains("layer/04") && told.text().contains("checksum of its value"));

    let log = storage.file("tombstones");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[4096 + 50] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let name = log.file_name().unwrap().to_str().unwrap();
    storage.run("compact", &[]).refused(
        &[
            name,
            "damaged",
            "mooncake bucket verify",
            "--accept-damaged-logs",
        ],
        SOON,
    );
    let (code, verified) = storage.json("verify", &[]);
    assert_eq!((code, &verified["files"][0]["file"]), (1, &name.into()));
    let stat = storage.run("stat", &[]);
    assert!(
        stat.text().contains("1 logs of tombstones are damaged"),
        "{}",
        stat.text()
    );
    let (code, done) = storage.json("compact", &["--accept-damaged-logs"]);
    assert_eq!((code, done["damaged_logs"].as_u64()), (0, Some(1)));
    let (_, stat) = storage.json("stat", &[]);
    assert_eq!(stat["quarantined_files"].as_u64(), Some(1));
    // Each removal has a block of the log, and one could not be read.
    assert_eq!(stat["live_records"].as_u64(), Some(67));
}

#[test]
fn a_place_without_a_storage_is_refused_and_left_alone() {
    let storage = Storage::new();
    for verb in ["stat", "ls", "verify", "dump", "compact"] {
        let path = storage.path();
        let words = [path.to_str().unwrap(), "that was given to the node"];
        storage.run(verb, &[]).refused(&words, SOON);
        assert!(!path.exists(), "{verb} makes none");
    }
    std::fs::create_dir(storage.path()).unwrap();
    std::fs::write(storage.path().join("notes.txt"), b"mine").unwrap();
    for verb in ["stat", "ls", "verify", "dump", "compact"] {
        storage
            .run(verb, &[])
            .refused(&["there is no storage in"], SOON);
        assert_eq!(storage.files().len(), 1, "{verb} leaves it as it is");
    }
}

#[test]
fn a_master_is_told_to_keep_a_storage_that_it_does_not_know() {
    let (storage, backend) = Storage::filled();
    let identity: String = backend
        .identity()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let path = storage.path();
    let words = ["bucket", "adopt", path.to_str().unwrap(), "-o", "json"];
    run(&words[..3], b"", &nobody()).refused(&["does not answer", "mooncake master"], SOON);

    let master = Role::master(&[]);
    assert!(!master.page("/storages").contains(&identity));
    // Also while its node has it open, and once more.
    for _ in 0..2 {
        let done = run(&words, b"", master.field("address"));
        let adopted: Value = serde_json::from_str(&done.text()).unwrap();
        assert_eq!(done.code, 0);
        assert_eq!(adopted["storage"], identity);
        assert_eq!(adopted["live_records"], 66);
        assert!(master.page("/storages").contains(&identity));
    }
    drop(backend);
    let nothing = storage.folder.path().join("elsewhere");
    let words = ["bucket", "adopt", nothing.to_str().unwrap()];
    run(&words, b"", master.field("address")).refused(&["elsewhere", "cannot be read"], SOON);
}

#[test]
fn records_that_went_bad_in_an_open_bucket_are_told_from_those_of_a_put_under_way() {
    let (storage, backend) = Storage::filled();
    for number in [200u64, 201] {
        let (key, value) = (format!("open/{number}"), vec![number as u8; 2_000]);
        let put = Put::new(Name::key(&key), Incarnation::new(7, number), &value);
        backend.put(put).unwrap();
    }
    let open = storage.file("open");
    let whole = std::fs::read(&open).unwrap();
    // As a put under way would leave it: nothing is known to be wrong.
    flip(&open, &[201; 100]);
    let (code, verified) = storage.json("verify", &[]);
    let broken = |verified: &Value| verified["broken_records"].as_u64();
    assert_eq!((code, broken(&verified)), (0, Some(1)), "{verified}");
    let told = storage.run("verify", &[]);
    assert!(told.text().contains("1 of puts"), "{}", told.text());
    std::fs::write(&open, whole).unwrap();
    flip(&open, &[200; 100]);
    let (code, verified) = storage.json("verify", &[]);
    assert_eq!((code, broken(&verified)), (1, Some(1)), "{verified}");
    let name = open.file_name().unwrap().to_str().unwrap();
    assert_eq!(verified["files"][0]["file"], name, "{verified}");
    let told = storage.run("verify", &[]).text();
    assert!(told.contains("whole ones lie behind"), "{told}");
}

#[test]
fn a_bucket_that_is_not_there_is_not_compacted() {
    let (storage, backend) = Storage::filled();
    drop(backend);
    let before = storage.json("stat", &[]).1["dead_bytes"].clone();
    let said = ["there is no bucket 00ffffff", "mooncake bucket stat"];
    storage
        .run("compact", &["--bucket", "ffffff"])
        .refused(&said, SOON);
    let (code, stat) = storage.json("stat", &[]);
    assert_eq!((code, &stat["dead_bytes"]), (0, &before));
    let told = (&stat["holder"], &stat["holder_known"]);
    assert_eq!(told, (&Value::Null, &Value::Bool(true)), "{stat}");
}
