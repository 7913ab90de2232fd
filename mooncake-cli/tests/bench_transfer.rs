//! `mooncake bench transfer`: every row has its figures, and no wrong byte goes unnoticed.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::process::{Command, Output};

use serde_json::Value;

/// The code, and the document on stdout. Turns are short: nothing here looks at how fast it is.
fn bench(line: &str) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooncake"));
    // Settings of whoever runs the tests are not ours.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MOONCAKE_") {
            command.env_remove(name);
        }
    }
    command.args("bench transfer -o json --rounds 1".split(' '));
    if !line.contains("--seconds") {
        command.args(["--seconds", "0.005"]);
    }
    command.args(line.split_whitespace());
    let Output { status, stdout, .. } = command.output().unwrap();
    let document = serde_json::from_slice(&stdout).unwrap();
    (status.code().unwrap(), document)
}

fn rows(line: &str) -> Vec<Value> {
    let (code, document) = bench(line);
    assert!(code < 2, "{document:#}");
    document["rows"].as_array().unwrap().clone()
}

const POSITIVE: [&str; 13] = [
    "block_bytes",
    "batch",
    "threads",
    "gb_per_s",
    "ops_per_s",
    "p50_us",
    "p99_us",
    "p999_us",
    "cpu_s_per_gb",
    "limit_gb_per_s",
    "limit_ops_per_s",
    "limit_p50_us",
    "ratio",
];

#[test]
fn the_suite_has_every_case_with_every_figure() {
    // Turns are even shorter than that; what it takes from here is the shorter walk.
    let rows = rows("--quick");
    for row in &rows {
        for field in POSITIVE {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field} of {row:#}");
        }
        assert!(
            row["limit"].is_string() && row["poll"].is_boolean(),
            "{row:#}"
        );
    }
    let count = |transport: &str, op: &str| {
        let of = |row: &&Value| row["transport"] == transport && row["op"] == op;
        rows.iter().filter(of).count()
    };
    assert_eq!(count("tcp", "read"), count("tcp", "write"));
    assert_eq!(
        (count("in-process", "read"), count("in-process", "write")),
        (2, 2)
    );
    assert_eq!((count("file", "read"), count("file", "write")), (4, 4));
    let alone = rows.iter().filter(|row| row["transport"] == "null");
    let alone: Vec<_> = alone.map(|row| (&row["threads"], &row["limit"])).collect();
    let limit = "own engines".into();
    assert_eq!(alone, [(&1.into(), &limit), (&2.into(), &limit)]);
    let of = |transport: &str, op: &str, bytes: u64, batch: u64| {
        let mut rows = rows.iter().filter(|row| row["transport"] == transport);
        rows.find(|row| row["op"] == op && row["block_bytes"] == bytes && row["batch"] == batch)
    };
    let find = |op: &str, bytes: u64, batch: u64| of("tcp", op, bytes, batch);
    let file = of("file", "read", 128 << 10, 32).unwrap();
    assert_eq!(
        (&file["limit"], &file["bar"]["least_ratio"]),
        (&"file loop".into(), &0.95.into())
    );
    for op in ["read", "write"] {
        for batch in [1, 16] {
            for bytes in [16, 18, 20, 22, 24].map(|bits| 1 << bits) {
                let row = find(op, bytes, batch).unwrap();
                assert_eq!(row["bar"]["least_ratio"], 0.9, "{row:#}");
            }
        }
        let streams = find(op, 1 << 20, 16).unwrap();
        assert_eq!(streams["limit"], "2 sockets");
        assert_eq!(streams["cpu_bar"]["most_ratio"], 1.15);
        let small = find(op, 4 << 10, 128).unwrap();
        assert_eq!(
            (&small["ratio_of"], &small["bar"]["least_ratio"]),
            (&"ops_per_s".into(), &0.6.into())
        );
    }
}

#[test]
fn a_row_says_how_to_measure_it_again() {
    let line = "--op write --block-size 4097 --batch 3 --threads 2 --window 1MiB";
    let first = rows(line);
    let [row] = first.as_slice() else {
        panic!("{first:#?}")
    };
    let repeat = row["repeat"].as_str().unwrap();
    assert_eq!(repeat, format!("mooncake bench transfer {line}"));
}

#[test]
fn odd_blocks_in_odd_batches_move_over_every_link_and_any_number_of_lanes() {
    for lanes in 1..=3 {
        let line = format!(
            "--transport tcp,in-process,memory --block-size 1,4097,65537 --batch 1,7 --window 1MiB --lanes {lanes}"
        );
        assert_eq!(rows(&line).len(), 2 * 6 + 2 * 6 + 6);
    }
}

#[test]
fn a_file_is_where_it_was_asked_for_and_only_for_as_long_as_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let line = format!(
        "--transport file --block-size 1,4096,4097,65537 --batch 1,7 --threads 2 --window 1MiB --folder {place}"
    );
    let rows = rows(&line);
    assert_eq!(rows.len(), 2 * 8);
    for row in rows {
        let aligned = row["block_bytes"] == 4096;
        assert_eq!(row["limit"] == "file loop", aligned, "{row:#}");
        let repeat = row["repeat"].as_str().unwrap();
        assert!(repeat.contains(&format!("--folder {place}")), "{repeat}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let (code, document) = bench("--transport file --folder /nowhere");
    assert_eq!(code, 2, "{document:#}");
    assert!(document["error"]["try"].is_string(), "{document:#}");
}

#[test]
fn callers_may_look_and_may_keep_a_pace() {
    let polled = rows("--poll --block-size 4096 --window 1MiB");
    assert!(polled.iter().all(|row| row["poll"] == true));
    let paced = rows("--open-loop 2000 --seconds 0.05 --batch 2 --block-size 4096 --window 1MiB");
    for row in paced {
        assert_eq!(row["ratio_of"], "p50_us", "{row:#}");
        assert!(row["ops_per_s"].as_f64().unwrap() <= 2_100.0, "{row:#}");
    }
    let one = rows("--threads 3 --against one-thread --block-size 4096 --window 1MiB");
    assert!(one.iter().all(|row| row["limit"] == "1 thread"));
}

#[test]
fn bytes_that_a_target_has_wrong_are_noticed() {
    for (op, target, whose) in [
        ("read", "engine", "what was read"),
        ("write", "engine", "the target's memory"),
        ("read", "plain", "what a plain socket has read"),
        ("write", "plain", "a plain socket has written"),
        ("read --transport file", "engine", "what was read"),
    ] {
        let line = format!("--op {op} --block-size 4096 --window 1MiB --spoil {target}");
        let (code, document) = bench(&line);
        assert_eq!(code, 2, "{document:#}");
        let message = document["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("wrong") && message.contains(whose),
            "{message}"
        );
        // Who does not look does not see.
        assert_eq!(rows(&format!("{line} --no-verify")).len(), 1);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for line in [
        "--block-size 0",
        "--block-size 2MiB --window 1MiB",
        "--block-size 64KiB --batch 16 --threads 2 --window 1MiB",
    ] {
        let (code, document) = bench(line);
        assert_eq!(code, 2, "{line}: {document:#}");
        assert!(document["error"]["try"].is_string(), "{line}: {document:#}");
    }
}

/// `mooncake bench transfer --serve`, until it is dropped.
struct Target(std::process::Child, String);

impl Target {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_mooncake"))
            .args("bench transfer -o json --serve --total-buffer-size 4MiB".split(' '))
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let segment = ready["ready"]["segment"].as_str().unwrap().to_owned();
        Self(child, segment)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn an_initiator_reads_and_writes_what_a_target_offers_in_the_flags_that_people_know() {
    let target = Target::start();
    let cases =
        "--start_block_size 3000 --max-block-size 13000 --max_batch_size 2 --max_num_threads 2";
    for link in ["all", "tcp", "shm", "cma"] {
        for op in ["read", "write", "mix", "read"] {
            let line = format!(
                "--target_seg_name {} --xport_type {link} --op_type {op} {cases} --duration 0.01",
                target.1
            );
            let rows = rows(&line);
            assert_eq!(rows.len(), 3 * 2 * 2);
            for row in rows {
                assert_eq!(row["failed"], 0, "{row:#}");
                for field in ["gb_per_s", "avg_tx_us", "p999_tx_us", "checked_bytes"] {
                    assert!(row[field].as_f64().unwrap() > 0.0, "{field} of {row:#}");
                }
                let shares = row["shares"].as_array().unwrap();
                let all: f64 = shares.iter().map(|it| it["share"].as_f64().unwrap()).sum();
                assert!((all - 1.0).abs() < 1e-9, "{row:#}");
                let only = |it: &Value| link == "all" || it["link"] == link;
                assert!(shares.iter().all(only), "{row:#}");
            }
        }
    }
}

#[test]
fn a_target_that_is_killed_in_mid_run_is_counted_and_ends_nothing() {
    let mut target = Target::start();
    let line = format!(
        "--target-seg-name {} --start-block-size 64KiB --max-block-size 64KiB --duration 2",
        target.1
    );
    let (code, document) = std::thread::scope(|scope| {
        let ran = scope.spawn(|| bench(&line));
        std::thread::sleep(std::time::Duration::from_millis(700));
        target.0.kill().unwrap();
        ran.join().unwrap()
    });
    let row = &document["rows"][0];
    assert_eq!(code, 1, "{document:#}");
    assert!(row["failed"].as_u64().unwrap() > 0, "{row:#}");
    assert!(row["gb_per_s"].as_f64().unwrap() > 0.0, "{row:#}");
    assert!(row["longest_stall_ms"].as_f64().unwrap() > 300.0, "{row:#}");
}

#[test]
fn roles_that_make_no_sense_are_refused() {
    for line in [
        "--target-seg-name 127.0.0.1:1 --duration 0.1",
        "--serve --seg-name 192.0.2.1:1",
    ] {
        let (code, document) = bench(line);
        assert_eq!(code, 2, "{line}: {document:#}");
        assert!(
            document["error"]["message"].is_string(),
            "{line}: {document:#}"
        );
    }
    let target = Target::start();
    let line = format!(
        "--target-seg-name {} --start-block-size 8KiB --max-block-size 4KiB",
        target.1
    );
    let (code, document) = bench(&line);
    assert_eq!(code, 2);
    let message = document["error"]["message"].as_str().unwrap();
    assert!(message.contains("--start-block-size"), "{message}");
}
