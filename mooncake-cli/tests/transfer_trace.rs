//! `mooncake transfer trace` against a target that is another process.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn mooncake() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooncake"));
    // Settings of whoever runs the tests are not ours.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MOONCAKE_") {
            command.env_remove(name);
        }
    }
    command
}

/// The code, and what it says on stdout.
fn trace(line: &str) -> (i32, String) {
    let mut command = mooncake();
    command.args(["transfer", "trace"]);
    command.args(line.split_whitespace());
    let Output { status, stdout, .. } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap())
}

fn document(line: &str) -> (i32, Value) {
    let (code, out) = trace(&format!("{line} -o json"));
    (code, serde_json::from_str(&out).unwrap())
}

/// `mooncake bench transfer --serve`, until it is dropped.
struct Target(Child, String);

impl Target {
    fn start() -> Self {
        let mut child = mooncake()
            .args("bench transfer -o json --serve --total-buffer-size 4MiB".split(' '))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
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
fn a_transfer_is_told_step_by_step_with_the_reasons_for_its_link() {
    let target = Target::start();
    for op in ["read", "write"] {
        for link in ["tcp", "shm"] {
            let line = format!(
                "--target {} --op {op} --size 3000 --transport {link}",
                target.1
            );
            let (code, report) = document(&line);
            assert_eq!(code, 0, "{report:#}");
            assert_eq!(
                (&report["op"], &report["bytes"]),
                (&op.into(), &3000.into())
            );
            assert_eq!(report["outcome"], "completed");
            let steps = report["steps"].as_array().unwrap();
            let names: Vec<_> = steps.iter().map(|step| &step["step"]).collect();
            let expected = ["submitted", "ranked", "posted", "completed", "quiet"];
            assert_eq!(names, expected, "{report:#}");
            assert_eq!(steps[2]["link"], link);
            let links = steps[1]["links"].as_array().unwrap();
            assert_eq!(
                (&links[0]["link"], &links[0]["place"]),
                (&link.into(), &1.into())
            );
            // What is not told of a link is not known of it either.
            let why = |it: &Value| !it["why"].as_str().unwrap().is_empty();
            assert!(links.len() > 1 && links.iter().all(why), "{report:#}");
            let times: Vec<_> = steps
                .iter()
                .map(|step| step["at_us"].as_f64().unwrap())
                .collect();
            assert!(times[0] == 0.0 && times.is_sorted(), "{times:?}");
        }
    }
    // The writes have changed nothing: an initiator finds what the target has filled in.
    let check = format!(
        "bench transfer --target-seg-name {} --op-type read --duration 0.01 \
         --start-block-size 4KiB --max-block-size 4KiB",
        target.1
    );
    let ran = mooncake().args(check.split_whitespace()).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

#[test]
fn people_get_a_table() {
    let target = Target::start();
    let (code, out) = trace(&format!("--target {} --transport tcp", target.1));
    assert_eq!(code, 0, "{out}");
    assert!(out.starts_with("a read of 1.00 MiB, segment "), "{out}");
    for step in [
        "submitted",
        "the best of these:",
        "1 tcp: ",
        "posted",
        "completed",
        "quiet",
    ] {
        assert!(out.contains(step), "{step}: {out}");
    }
}

#[test]
fn what_cannot_be_traced_is_refused_with_the_reason() {
    let (code, report) = document("--target 127.0.0.1:1");
    assert_eq!(code, 2, "{report:#}");
    let target = Target::start();
    let (code, report) = document(&format!("--target {} --size 5MiB", target.1));
    assert_eq!(code, 2, "{report:#}");
    assert!(report["error"]["try"].as_str().unwrap().contains("--size"));
    let (code, _) = trace(&format!("--target {} --size 0", target.1));
    assert_eq!(code, 2);
}
