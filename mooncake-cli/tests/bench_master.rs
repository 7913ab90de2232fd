//! `mooncake bench master`, as short as it can be: what it measures and tells, not how fast it is.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::process::Command;

use serde_json::Value;

/// A report, whether or not the bars were reached.
fn bench(arguments: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooncake"));
    // Settings of whoever runs the tests are not ours.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MOONCAKE_") {
            command.env_remove(name);
        }
    }
    let output = command
        .args(["bench", "master", "--output=json"])
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    let figures = report["figures"].as_array().unwrap();
    let missed = figures.iter().any(|figure| figure["met"] == false);
    assert_eq!(output.status.code(), Some(i32::from(missed)), "{text}");
    report
}

fn value(report: &Value, name: &str) -> f64 {
    let figures = report["figures"].as_array().unwrap();
    let figure = figures.iter().find(|figure| figure["name"] == name);
    figure.unwrap()["value"].as_f64().unwrap()
}

#[test]
fn each_load_is_a_row_beside_its_limit() {
    let report = bench(
        "--case exist --case exist-unary --case exist-miss --case put --case put-batch --case query \
         --rounds 1 --seconds 0.02",
    );
    let rows = report["rows"].as_array().unwrap();
    let ops: Vec<_> = rows.iter().map(|row| row["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["exist", "exist", "exist_miss", "put", "put", "query"]);
    let transports = rows.iter().filter(|row| row["transport"] == "unary");
    assert_eq!(transports.count(), 1);
    for row in rows {
        assert_eq!(row["block_bytes"], 107);
        for field in ["ops_per_s", "p50_us", "limit_ops_per_s", "ratio"] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field} of {row}");
        }
        assert!(row["master_cpu_us_per_key"].is_number(), "{row}");
    }
    assert!(value(&report, "exist: rate") > 0.0);
}

#[test]
fn another_shape_has_no_bar_and_its_command_says_so() {
    let shape = "--batch 3 --depth 2 --clients 3 --key-bytes 40 --rounds 1 --seconds 0.02";
    let report = bench(&format!("--case exist-batch {shape}"));
    assert_eq!(report["figures"], Value::Array(Vec::new()));
    let row = &report["rows"][0];
    assert_eq!(
        (&row["batch"], &row["depth"], &row["threads"]),
        (&3.into(), &2.into(), &3.into())
    );
    assert_eq!(
        row["repeat"],
        "mooncake bench master --case exist-batch --rounds 1 --seconds 0.02 --key-bytes 40 --batch 3 \
         --depth 2 --clients 3"
    );
}

#[test]
fn objects_are_put_evicted_and_removed() {
    let report = bench(
        "--case memory --objects 5000 --case eviction --evictable 5000 --case start --seconds 0.05",
    );
    assert_eq!(value(&report, "memory: objects"), 5_000.0);
    assert!(value(&report, "memory: full") > 0.0);
    assert!(value(&report, "eviction: evicted") > 0.0);
    assert!(value(&report, "start: memory of the master") > 0.0);
}
