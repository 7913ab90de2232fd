//! `mooncake demo` and `mooncake bench replay` as a user runs them: real processes, every byte checked.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use mooncake_cli::trace::{Ideal, TraceReader, TraceWriter};
use mooncake_cli::workload::{Shape, Workload};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

fn mooncake(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooncake"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{error}: {text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// Writes a made-up trace, and returns what an infinite cache would hit of it.
fn trace(path: &Path, requests: u64) -> Ideal {
    let mut writer = TraceWriter::new(fs::File::create(path).unwrap());
    let mut ideal = Ideal::default();
    let shape = Shape {
        requests,
        users: 8,
        seed: 5,
    };
    for request in Workload::new(shape) {
        ideal.observe(&request);
        writer.write(&request).unwrap();
    }
    writer.finish().unwrap();
    ideal
}

/// Process ids as the demo names them: `processes: the master 12, node-0 13, …`.
fn processes(line: &str) -> Vec<(String, Pid)> {
    let list = line.strip_prefix("processes: ").unwrap();
    list.split(", ")
        .map(|member| {
            let (what, id) = member.rsplit_once(' ').unwrap();
            (what.to_owned(), Pid::from_raw(id.parse().unwrap()).unwrap())
        })
        .collect()
}

fn is_alive(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}

#[test]
fn the_demo_shows_a_clean_run_and_leaves_no_process_behind() {
    let output = mooncake(&["demo", "--requests", "80", "--output", "json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let summary = json(&output);
    assert_eq!(summary["requests"], 80);
    assert_eq!(summary["byte_errors"], 0);
    assert_eq!(summary["errors"], 0);
    assert_eq!(summary["nodes"].as_array().unwrap().len(), 2);
    let (hit, ideal) = (
        summary["hit_ratio_blocks"].as_f64().unwrap(),
        summary["ideal_ratio_blocks"].as_f64().unwrap(),
    );
    assert!(hit > 0.5 * ideal && hit <= ideal, "{hit} of {ideal}");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = words
        .lines()
        .find(|line| line.starts_with("processes: "))
        .unwrap();
    let processes = processes(line);
    assert_eq!(processes.len(), 5);
    for (what, pid) in processes {
        assert!(!is_alive(pid), "{what} still runs");
    }
}

#[test]
fn a_node_killed_in_mid_demo_costs_hits_but_no_byte_and_nothing_hangs() {
    // Few bytes a block, so that there are enough requests to be in the middle of.
    let arguments = [
        "demo",
        "--requests",
        "3000",
        "--block-bytes",
        "4KiB",
        "--output",
        "json",
    ];
    let mut demo = mooncake(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = BufReader::new(demo.stderr.take().unwrap()).lines();
    let line = words
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.starts_with("processes: "))
        .unwrap();
    // What it says from now on must not block it.
    let rest = std::thread::spawn(move || words.map_while(Result::ok).collect::<Vec<_>>());
    let processes = processes(&line);
    let node = processes
        .iter()
        .find(|(what, _)| what == "node-1")
        .unwrap()
        .1;
    kill_process(node, Signal::KILL).unwrap();
    let output = demo.wait_with_output().unwrap();
    let summary = json(&output);
    assert_eq!(summary["byte_errors"], 0);
    assert_eq!(summary["requests"], 3000);
    let hit = summary["hit_ratio_blocks"].as_f64().unwrap();
    assert!(hit < summary["ideal_ratio_blocks"].as_f64().unwrap());
    // Only puts that were under way to the node may have failed: the master sends no more there.
    let errors = summary["errors"].as_u64().unwrap();
    assert!(errors < 500, "{summary}");
    assert_eq!(output.status.code(), Some(i32::from(errors != 0)));
    for (what, pid) in processes {
        assert!(!is_alive(pid), "{what} still runs");
    }
    drop(rest.join().unwrap());
}

#[test]
fn a_demo_that_is_told_to_end_takes_its_processes_along() {
    let mut demo = mooncake(&["demo", "--requests", "1000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = BufReader::new(demo.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let line = words.find(|line| line.starts_with("processes: ")).unwrap();
    let rest = std::thread::spawn(move || words.collect::<Vec<_>>());
    let pid = Pid::from_raw(demo.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let start = std::time::Instant::now();
    assert_eq!(demo.wait().unwrap().code(), Some(2));
    assert!(start.elapsed().as_secs() < 5);
    for (what, pid) in processes(&line) {
        // Killed at once, but not reaped by the demo, which is gone.
        while is_alive(pid) && !is_zombie(pid) {
            assert!(start.elapsed().as_secs() < 10, "{what} still runs");
            std::thread::yield_now();
        }
    }
    drop(rest.join().unwrap());
}

fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.map_or(true, |stat| stat.contains(") Z"))
}

#[test]
fn a_replay_without_eviction_hits_exactly_what_an_infinite_cache_hits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let ideal = trace(&path, 150);
    let output = mooncake(&[
        "bench",
        "replay",
        "--block-bytes",
        "1KiB",
        "-o",
        "json",
        "--trace",
    ])
    .arg(&path)
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let summary = json(&output);
    assert_eq!(summary["blocks_total"], ideal.blocks_total);
    assert_eq!(summary["blocks_hit"], ideal.blocks_hit);
    assert_eq!(summary["bytes_get"], ideal.blocks_hit * 1024);
    assert_eq!(summary["bytes_put"], ideal.blocks_distinct * 1024);
    assert_eq!(
        (&summary["byte_errors"], &summary["errors"]),
        (&0.into(), &0.into())
    );
}

#[test]
fn several_clients_replay_a_trace_that_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let ideal = trace(&path, 150);
    let capacity = (ideal.blocks_distinct / 3).to_string();
    let arguments = ["bench", "replay", "--clients", "3", "--block-bytes", "1001"];
    let output = mooncake(&arguments)
        .args(["--capacity-blocks", &capacity, "-o", "json", "--trace"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let summary = json(&output);
    assert!(summary["evicted_objects"].as_u64().unwrap() > 0);
    assert!(summary["blocks_hit"].as_u64().unwrap() < ideal.blocks_hit);
    assert_eq!(summary["byte_errors"], 0);
}

#[test]
fn a_bad_line_of_a_trace_is_named_before_anything_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    trace(&path, 3);
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    writeln!(file, "{{\"timestamp\": 1}}").unwrap();
    let output = mooncake(&["bench", "replay", "--trace"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        words.contains("line 4") && words.contains("trace.jsonl"),
        "{words}"
    );
}

#[test]
fn a_production_trace_gives_the_published_hits() {
    let Some(fixtures) = std::env::var_os("MOONCAKE_FIXTURES") else {
        return skipped("MOONCAKE_FIXTURES is not set: no production trace");
    };
    let path = PathBuf::from(fixtures).join("traces/conversation.jsonl");
    if !path.is_file() {
        return skipped("there is no conversation trace");
    }
    let run = |more: &[&str]| {
        let arguments = [
            "bench",
            "replay",
            "--block-bytes",
            "512",
            "-o",
            "json",
            "--trace",
        ];
        let output = mooncake(&arguments).arg(&path).args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        json(&output)
    };
    let whole = run(&[]);
    assert_eq!(whole["blocks_total"], 288_500);
    assert_eq!(whole["blocks_hit"], 105_710);
    // The trace's own facts, so that a failure above is ours.
    let requests = TraceReader::open(&path).unwrap().map(Result::unwrap);
    assert_eq!(requests.count(), 12_031);

    let exact = [
        "--capacity-blocks",
        "10000",
        "--eviction-high-watermark-ratio",
        "1.0",
    ];
    let ratio = run(&exact)["hit_ratio_blocks"].as_f64().unwrap();
    assert!(ratio >= 0.211, "{ratio}");
    let ratio = run(&["--capacity-blocks", "10000"])["hit_ratio_blocks"]
        .as_f64()
        .unwrap();
    assert!(ratio >= 0.190, "{ratio}");
}

fn skipped(reason: &str) {
    println!("skipped: {reason}");
    if let Some(log) = std::env::var_os("MOONCAKE_SKIP_LOG") {
        let mut log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .unwrap();
        writeln!(log, "skipped: {reason}").unwrap();
    }
}

#[test]
fn a_demo_with_disks_reads_from_them_and_nothing_that_was_removed_comes_back() {
    let words = "demo --ssd --requests 150 --segment-size 24MiB -o json";
    let words: Vec<_> = words.split(' ').collect();
    let output = mooncake(&words).output().unwrap();
    let summary = json(&output);
    assert_eq!(output.status.code(), Some(0), "{summary:#}");
    let disks = &summary["disks"];
    assert_eq!(summary["byte_errors"], 0);
    assert_eq!(disks["removed_objects"], 64);
    assert_eq!(disks["returned_objects"], 0);
    assert_eq!(disks["restarted_nodes"], 1);
    assert_eq!(disks["books_agree"], true);
    assert!(
        disks["disk_blocks_hit"].as_u64().unwrap() > 0,
        "{summary:#}"
    );
    assert_eq!(disks["storages"].as_array().unwrap().len(), 2);
}
