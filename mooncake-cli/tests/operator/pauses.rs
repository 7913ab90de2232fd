//! Processes that are stopped for a while, as a debugger or an overloaded machine stops them.

use std::thread;
use std::time::Duration;

use mooncake_cli::trace::TraceWriter;
use mooncake_cli::workload::{Shape, Workload};
use rustix::process::Signal;
use serde_json::Value;

use super::processes::{Done, Role, Running, Store, until};

/// Longer than twice the TTL of these tests.
const LONG: Duration = Duration::from_millis(2_500);
const TTL: [&str; 2] = ["--client-ttl", "1s"];

fn put_all(store: &Store, keys: &[String]) {
    for key in keys {
        assert_eq!(store.run_with(&["put", key], key.as_bytes()).code, 0);
    }
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("key-{at}")).collect()
}

fn pause(role: &Role, length: Duration) {
    role.signal(Signal::STOP);
    thread::sleep(length);
    role.signal(Signal::CONT);
}

#[test]
fn law_10_a_master_that_was_stopped_for_twice_the_ttl_expires_nobody() {
    let store = Store::start(2, "16MiB", &TTL);
    let keys = keys(8);
    put_all(&store, &keys);
    pause(&store.master, LONG);
    // Whatever it does when it finds out how late it is, it has done by the second look.
    for _ in 0..2 {
        for key in &keys {
            let got = store.run(&["get", key]);
            assert_eq!(
                (got.code, got.out.as_slice()),
                (0, key.as_bytes()),
                "{got:?}"
            );
        }
        thread::sleep(Duration::from_millis(300));
    }
    store.assert_all_gauges_zero();
}

#[test]
fn a_node_that_was_stopped_beyond_the_ttl_comes_back_empty_and_never_lies() {
    let store = Store::start(1, "16MiB", &TTL);
    let keys = keys(4);
    put_all(&store, &keys);
    let node = &store.nodes[0];
    node.signal(Signal::STOP);
    until("its objects are forgotten", || {
        let listed = store.run(&["ls", "-o", "json"]).json();
        (listed["objects"].as_array()?.is_empty()).then_some(())
    });
    node.signal(Signal::CONT);
    until("it lends memory again", || {
        let done = store.run_with(&["put", "fresh"], b"new");
        (done.code == 0).then_some(())
    });
    assert_eq!(store.run(&["get", "fresh"]).out, b"new");
    for key in &keys {
        assert_eq!(store.run(&["get", key]).code, 1, "{key} was forgotten");
    }
    store.assert_all_gauges_zero();
}

#[test]
fn a_replay_survives_stops_of_everybody_without_a_wrong_byte() {
    let store = Store::start(2, "64MiB", &[]);
    let trace = store.file("trace.jsonl");
    let mut writer = TraceWriter::new(std::fs::File::create(&trace).unwrap());
    let shape = Shape {
        requests: 3_000,
        users: 8,
        seed: 11,
    };
    for request in Workload::new(shape) {
        writer.write(&request).unwrap();
    }
    writer.finish().unwrap();
    let words = [
        "bench",
        "replay",
        "--trace",
        &trace,
        "--block-bytes",
        "1KiB",
        "--operation-deadline",
        "30s",
        "-o",
        "json",
    ];
    let replay = Running::start(&words, b"", store.address());
    for _ in 0..2 {
        for role in [&store.nodes[0], &store.master, &store.nodes[1]] {
            pause(role, Duration::from_millis(300));
            thread::sleep(Duration::from_millis(50));
        }
        replay.signal(Signal::STOP);
        thread::sleep(Duration::from_millis(300));
        replay.signal(Signal::CONT);
    }
    let Done { code, out, err, .. } = replay.done(Duration::from_secs(120));
    let summary: Value = serde_json::from_slice(&out).unwrap_or_else(|_| panic!("{err}"));
    assert_eq!(summary["byte_errors"], 0);
    assert_eq!(summary["requests"], 3_000);
    // Nobody was away for as long as an operation may take.
    assert_eq!(
        (code, &summary["errors"]),
        (0, &0.into()),
        "{summary} {err}"
    );
    store.assert_all_gauges_zero();
}
