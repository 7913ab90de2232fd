//! `mooncake topology` and `mooncake transfer explain` as a user meets them.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs it; the code and what it says on stdout and stderr.
fn mooncake(line: &str, folder: &Path) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooncake"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MOONCAKE_") {
            command.env_remove(name);
        }
    }
    command.args(line.split_whitespace()).current_dir(folder);
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn document(line: &str, folder: &Path) -> (i32, Value) {
    let (code, out, err) = mooncake(&format!("{line} -o json"), folder);
    assert_eq!(err, "", "{line}");
    (code, serde_json::from_str(&out).unwrap())
}

fn file(root: &Path, path: &str, content: &str) -> PathBuf {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, content).unwrap();
    file
}

/// A copy of sysfs with two nodes and an RDMA device at each.
fn machine() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (id, cpus, distances) in [(0, "0-3", "10 21"), (1, "4-7", "21 10")] {
        let node = format!("sys/devices/system/node/node{id}");
        file(root, &format!("{node}/cpulist"), cpus);
        file(root, &format!("{node}/distance"), distances);
        let device = format!("sys/devices/pci0000:{id}0/0000:{id}0:01.0/0000:{id}1:00.0");
        file(root, &format!("{device}/numa_node"), &id.to_string());
        let own = format!("{device}/infiniband/mlx5_{id}");
        file(root, &format!("{own}/ports/1/state"), "4: ACTIVE");
        file(root, &format!("{own}/ports/1/rate"), "200 Gb/sec (4X HDR)");
        symlink("../..", root.join(&own).join("device")).unwrap();
        let class = root.join("sys/class/infiniband");
        fs::create_dir_all(&class).unwrap();
        symlink(root.join(own), class.join(format!("mlx5_{id}"))).unwrap();
    }
    folder
}

#[test]
fn a_machine_is_listed_and_drawn() {
    let machine = machine();
    let (code, out, err) = mooncake("topology --sysfs sys", machine.path());
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = "\
node  CPUs     memory  to 0  to 1
   0  0-3 (4)       ?    10    21
   1  4-7 (4)       ?    21    10

device  kind  node  PCI           state     speed  interface
mlx5_0  rdma     0  0000:01:00.0  up     200 Gb/s
mlx5_1  rdma     1  0000:11:00.0  up     200 Gb/s

memory  best           then  last
cpu:0   mlx5_0         -     mlx5_1
cpu:1   mlx5_1         -     mlx5_0
*       mlx5_0 mlx5_1  -     -

from, to  mlx5_0  mlx5_1
mlx5_0    -       SYS
mlx5_1    SYS     -

SYS   between NUMA nodes
";
    assert_eq!(out, expected);

    let (code, out, _) = mooncake("topology --sysfs sys --map", machine.path());
    let expected = "\
machine
├─ node 0  CPUs 0-3
│  └─ pci0000:00
│     └─ 0000:00:01.0
│        └─ 0000:01:00.0  mlx5_0 (rdma, up, 200 Gb/s)
└─ node 1  CPUs 4-7
   └─ pci0000:10
      └─ 0000:10:01.0
         └─ 0000:11:00.0  mlx5_1 (rdma, up, 200 Gb/s)

from, to  node 0  node 1
node 0        10      21
node 1        21      10
";
    assert_eq!((code, out.as_str()), (0, expected));
}

#[test]
fn a_matrix_that_was_printed_can_be_changed_and_given_back() {
    let machine = machine();
    let (_, shown) = document("topology --sysfs sys", machine.path());
    let mut matrix = shown["priority_matrix"].clone();
    assert_eq!(matrix["cpu:1"], json!([["mlx5_1"], ["mlx5_0"]]));
    matrix["cpu:1"] = json!([["mlx5_0"], ["mlx5_1"]]);
    file(machine.path(), "m.json", &matrix.to_string());
    let line = "topology --sysfs sys --priority-matrix m.json";
    let (code, shown) = document(line, machine.path());
    assert_eq!((code, &shown["priority_matrix"]), (0, &matrix));

    file(machine.path(), "m.json", r#"{"cpu:1": [["mlx5_7"], []]}"#);
    let (code, _, err) = mooncake(line, machine.path());
    assert_eq!(code, 2);
    assert!(
        err.starts_with("error: m.json: cpu:1: there is no device mlx5_7\n  try: "),
        "{err}"
    );
}

#[test]
fn a_machine_that_says_nothing_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = mooncake("topology --sysfs nothing", folder.path());
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("nothing/devices/system"), "{err}");
}

const LINKS: &str = "--link tcp,rate=2GB/s,latency=30us \
    --link rdma,rate=25GB/s,latency=3us,device=mlx5_0,device=mlx5_2 --link shm,rate=9GB/s";

fn policies() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"{"policy": [
        {"name": "bulk", "min_size": 1048576, "devices": ["mlx5_0", "mlx5_1"],
         "transports": ["rdma", "tcp"], "qp_pool": "wide", "service_level": 3},
        {"transports": ["shm", "tcp", "ub"], "order": "cost"}
    ]}"#;
    file(folder.path(), "p.json", text);
    folder
}

#[test]
fn a_ranking_is_explained() {
    let folder = policies();
    let line = format!("transfer explain --policies p.json {LINKS}");
    let (code, out, err) = mooncake(&line, folder.path());
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = "\
a read of 1.00 MiB from cpu to cpu, between machines; priority high

policy       why
\"bulk\"  yes  the first that fits
2       no   an earlier one fits

   link  takes  why
1  rdma  45 µs  number 1 of the policy, through mlx5_0
   tcp       -  cannot keep to a set of devices
   shm       -  policy \"bulk\" does not list it

for links that have these: pool wide, service level 3
";
    assert_eq!(out, expected);

    let line = format!("{line} --length 1000 --same-machine");
    let (code, shown) = document(&line, folder.path());
    assert_eq!(code, 0);
    let links = |list: &str| {
        let list = shown[list].as_array().unwrap();
        list.iter()
            .map(|row| row["link"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (links("ranked"), links("excluded")),
        (
            vec![json!("shm"), json!("tcp")],
            vec![json!("rdma"), json!("ub")],
        )
    );
    assert_eq!(
        shown["policies"][0]["why"],
        "the request does not pass min_size"
    );
    assert_eq!(shown["excluded"][1]["why"], "is not installed");
}

#[test]
fn a_request_that_nothing_carries_is_a_no() {
    let folder = policies();
    for (line, why) in [
        ("--only ub", "only ub is wanted"),
        (
            "--policies p.json --policy bulky",
            "there is no policy \"bulky\"",
        ),
        ("--device mlx5_9", "cannot keep to a set of devices"),
        (
            "--segment file",
            "does not join cpu here and a file segment",
        ),
        ("--local cuda:0", "does not join cuda here and cpu there"),
        ("--link tcp,failed=refused", "failed: refused"),
    ] {
        let (code, shown) = document(&format!("transfer explain {line}"), folder.path());
        assert_eq!((code, &shown["ranked"]), (1, &json!([])), "{line}");
        assert_eq!(shown["excluded"][0]["why"], why, "{line}");
    }
}

#[test]
fn policies_that_make_no_sense_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    for (text, says) in [
        (
            r#"[{"transport": []}]"#,
            "error: p.json: unknown field `transport`",
        ),
        (
            r#"[{"transports": []}]"#,
            "error: p.json: policy 1: transports names none",
        ),
        ("", "error: p.json: EOF"),
    ] {
        file(folder.path(), "p.json", text);
        let (code, out, err) = mooncake("transfer explain --policies p.json", folder.path());
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(err.starts_with(says), "{err}");
    }
    let (code, _, err) = mooncake("transfer explain --policies none.json", folder.path());
    assert_eq!(code, 2);
    assert!(
        err.starts_with("error: none.json cannot be read: "),
        "{err}"
    );
}
