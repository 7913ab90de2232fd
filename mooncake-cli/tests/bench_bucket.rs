//! `mooncake bench bucket` as a user runs it, whatever the disk's speed.

use std::process::{Command, Stdio};

use serde_json::Value;

#[test]
fn each_part_of_a_bucket_storage_stands_beside_plain_files() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_mooncake"))
        .args(["bench", "bucket", "--quick", "--rounds=1", "--seconds=0.05"])
        .args(["--records=2000", "--without-fio", "--output=json"])
        .arg("--folder")
        .arg(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{told}"));
    assert!(matches!(output.status.code(), Some(0 | 1)), "{document}");
    let rows = document["rows"].as_array().unwrap();
    let ops: Vec<_> = rows.iter().map(|row| row["op"].as_str().unwrap()).collect();
    let expected = ["put", "put", "put", "get", "get", "remove", "start"];
    assert_eq!(ops[..7], expected);
    assert_eq!(ops[7..], ["get beside a collection"]);
    for row in rows {
        for field in [
            "ops_per_s",
            "p50_us",
            "limit_ops_per_s",
            "limit_p50_us",
            "ratio",
        ] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field}: {row}");
        }
        assert!(row["repeat"].as_str().unwrap().contains("--case"), "{row}");
    }
    let figures = document["figures"].as_array().unwrap();
    let figure = |name: &str| {
        let mut found = figures.iter().filter(|it| it["name"] == name);
        found.next().unwrap()["value"].as_f64().unwrap()
    };
    let overhead = figure("space beyond values of 4 KiB");
    assert!((0.0..100.0).contains(&overhead), "{overhead} %");
    assert!(figure("removals beside the sync") > 0.0);
    assert!(figure("start with 2,000 records") > 0.0);
    assert!(figure("index of a record") > 40.0);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "all is gone"
    );
}
