//! The binary as a user meets it: what goes where, and which code it ends with.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn mooncake(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooncake"));
    // Settings of whoever runs the tests are not ours.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MOONCAKE_") {
            command.env_remove(name);
        }
    }
    command
        .args(line.split_whitespace())
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

fn run(mut command: Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    (
        status.code().unwrap(),
        String::from_utf8(stdout).unwrap(),
        String::from_utf8(stderr).unwrap(),
    )
}

#[test]
fn statistics_go_to_stdout_in_either_form() {
    let (code, out, err) = run(mooncake("trace stats tests/fixtures/small.jsonl"));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        out.contains("7 blocks hit: 50.00 % of blocks, 55.69 % of tokens"),
        "{out}"
    );

    let (code, out, err) = run(mooncake("-o json trace stats tests/fixtures/small.jsonl"));
    assert_eq!((code, err.as_str()), (0, ""));
    let stats: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&stats["blocks_hit"], &stats["ideal_ratio_blocks"]),
        (&7.into(), &0.5.into())
    );
}

#[test]
fn a_generated_trace_is_the_same_in_a_file_and_on_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made.jsonl");
    let mut command = mooncake("trace generate --requests 50 --seed 9 -o json --to");
    let (code, out, err) = run({
        command.arg(&file);
        command
    });
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["requests"], 50);
    let (code, out, _) = run(mooncake("trace generate --requests 50 --seed 9"));
    assert_eq!((code, out), (0, std::fs::read_to_string(&file).unwrap()));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut command = mooncake("trace generate --requests 20000");
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(0), &b""[..])
    );
}

#[test]
fn errors_end_with_2_and_say_what_to_try() {
    let (code, out, err) = run(mooncake("trace stats no-such-file"));
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(
        err.starts_with("error: no-such-file: cannot be read: "),
        "{err}"
    );

    let (code, out, err) = run(mooncake("trace stats no-such-file --output json"));
    assert_eq!((code, err.as_str()), (2, ""));
    assert!(serde_json::from_str::<Value>(&out).unwrap()["error"]["message"].is_string());

    let (code, out, err) = run(mooncake("trace stats --frobnicate --output json"));
    assert_eq!((code, err.as_str()), (2, ""));
    assert!(serde_json::from_str::<Value>(&out).unwrap()["error"]["message"].is_string());

    let (code, _, err) = run(mooncake("get key -o json"));
    assert_eq!((code, err.as_str()), (2, ""));
}

#[test]
fn the_configuration_tells_where_each_value_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        "[master]\nclient_ttl = \"3s\"\nput_deadline = \"9s\"\n[node]\nname = \"a\"\n",
    );
    let mut command = mooncake("config show master --put-deadline 7s -o json");
    command
        .env("MOONCAKE_CONFIG", &file)
        .env("MOONCAKE_MASTER_LISTEN", "0.0.0.0:1");
    let (code, out, err) = run(command);
    assert_eq!((code, err.as_str()), (0, ""));
    let shown: Value = serde_json::from_str(&out).unwrap();
    let of = |name: &str| {
        let setting = &shown["master"][name];
        [&setting["value"], &setting["source"], &setting["where"]]
            .map(|text| text.as_str().unwrap_or("").to_owned())
    };
    assert_eq!(of("listen"), ["0.0.0.0:1", "env", "MOONCAKE_MASTER_LISTEN"]);
    assert_eq!(
        of("client_ttl"),
        ["3s", "file", &format!("{}, line 2", file.display())]
    );
    assert_eq!(of("put_deadline"), ["7s", "flag", "--put-deadline"]);
    assert_eq!(of("allocation_strategy"), ["random", "default", ""]);
    assert!(shown.get("node").is_none());
}

#[test]
fn a_misspelt_setting_is_refused_by_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "[client]\ntennant = \"a\"\n");
    for line in [
        "config show",
        "master",
        "ls",
        "trace stats tests/fixtures/small.jsonl",
    ] {
        let mut command = mooncake(line);
        command.arg("--config").arg(&file);
        let (code, out, err) = run(command);
        assert_eq!((code, out.as_str()), (2, ""), "{line}");
        let expected = "line 2: there is no client setting \"tennant\", but there is \"tenant\"";
        assert!(err.contains(expected), "{line}: {err}");
    }
}

fn write(folder: &Path, text: &str) -> std::path::PathBuf {
    let file = folder.join("mooncake.toml");
    std::fs::write(&file, text).unwrap();
    file
}
