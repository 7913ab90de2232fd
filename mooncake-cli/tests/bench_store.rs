//! `mooncake bench store` as a user runs it: own processes, every byte checked.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mooncake"))
        .args(["bench", "store", "--quick", "--rounds=1", "--output=json"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The only row of a run that worked, whatever its speed.
fn row(arguments: &[&str]) -> Value {
    let output = bench(arguments);
    let document: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let rows = document["rows"]
        .as_array()
        .unwrap_or_else(|| panic!("{document}"));
    assert_eq!(rows.len(), 1);
    assert!(matches!(output.status.code(), Some(0 | 1)));
    rows[0].clone()
}

fn positive(row: &Value, fields: &[&str]) {
    for field in fields {
        assert!(row[*field].as_f64().unwrap() > 0.0, "{field}: {row}");
    }
}

const FIGURES: [&str; 13] = [
    "gb_per_s",
    "ops_per_s",
    "p50_us",
    "p99_us",
    "p999_us",
    "cpu_s_per_gb",
    "cpu_us_per_op",
    "limit_gb_per_s",
    "limit_ops_per_s",
    "limit_p50_us",
    "limit_cpu_s_per_gb",
    "ratio",
    "block_bytes",
];

#[test]
fn gets_and_puts_of_a_node_stand_beside_plain_sockets() {
    let get = row(&["--op=get", "--value-bytes=64KiB", "--batch=16"]);
    positive(&get, &FIGURES);
    let case = (&get["transport"], &get["op"], &get["batch"], &get["lookup"]);
    assert_eq!(
        case,
        (&"tcp".into(), &"get".into(), &16.into(), &"fresh".into())
    );
    assert_eq!(get["limit"], "2 plain streams");

    let put = row(&["--op=put", "--value-bytes=100003"]);
    positive(&put, &FIGURES);
    assert_eq!(
        (&put["op"], &put["limit"]),
        (&"put".into(), &"3 round trips".into())
    );
    assert!(put.get("lookup").is_none());
}

#[test]
fn several_clients_and_memory_of_ones_own_are_cases_too() {
    let several = row(&[
        "--op=put",
        "--value-bytes=40000",
        "--batch=8",
        "--clients=3",
    ]);
    positive(&several, &FIGURES);
    assert_eq!(several["threads"], 3);

    let local = row(&[
        "--op=get",
        "--value-bytes=64KiB",
        "--placement=local",
        "--lookup=cached",
    ]);
    positive(&local, &FIGURES);
    assert_eq!(
        (&local["transport"], &local["limit"]),
        (&"memory".into(), &"memcpy".into())
    );
}

#[test]
fn a_python_without_the_wheel_is_refused() {
    let output = bench(&["--op=get", "--vs-cpp=/nowhere/python"]);
    assert_eq!(output.status.code(), Some(2));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let message = said["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("the C++ store cannot be measured"),
        "{said}"
    );
    assert!(
        said["error"]["try"]
            .as_str()
            .unwrap()
            .contains("pip install")
    );
}
