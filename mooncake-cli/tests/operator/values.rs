//! Values go in and come out as they were.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use mooncake_store::core::PutOptions;
use mooncake_store::{Client, ClientOptions, RealClient};

use super::page::{doc, fields, listed};
use super::processes::{Done, Store, noise, run};

#[test]
fn a_value_comes_back_as_it_was_put() {
    let store = Store::start(2, "32MiB", &[]);
    // 5 MiB and a bit: no power of two.
    let value = noise((5 << 20) + 12_345);
    let file = store.file_with("value", &value);
    let put = store.run(&["put", "big", &file]);
    assert_eq!((put.code, put.err.as_str()), (0, ""));
    assert!(put.text().starts_with("big: 5.01 MiB in "), "{put:?}");
    for words in [&["put", "piped"][..], &["put", "dashed", "-"]] {
        assert_eq!(store.run_with(words, &value).code, 0);
    }

    for key in ["big", "piped", "dashed"] {
        let got = store.run(&["get", key]);
        assert_eq!((got.code, got.err.as_str()), (0, ""));
        assert!(got.out == value, "{key}: {} bytes", got.out.len());
    }
    let to = store.file("to");
    assert_eq!(store.run(&["get", "big", "--to", &to]).code, 0);
    assert!(fs::read(&to).unwrap() == value);

    let again = store.run_with(&["put", "big"], b"other");
    assert_eq!((again.code, again.text().as_str()), (1, ""));
    assert!(again.err.contains("big: exists"), "{again:?}");
    assert!(
        store.run(&["get", "big"]).out == value,
        "a put that failed changed something"
    );
    store.assert_all_gauges_zero();
}

#[test]
fn objects_are_listed_described_located_and_removed() {
    let store = Store::start(2, "16MiB", &[]);
    for key in ["a/1", "a/2", "b/1"] {
        assert_eq!(store.run_with(&["put", key], b"0123456789").code, 0);
    }
    let ls = store.run(&["ls"]);
    assert_eq!(ls.code, 0);
    let expected = "key  size  replicas\na/1  10 B         1\na/2  10 B         1\nb/1  10 B         1\n\n3 objects\n";
    assert_eq!(ls.text(), expected);
    let ls = store.run(&["ls", "a/", "--limit", "1"]);
    assert!(ls.text().contains("a/1") && !ls.text().contains("a/2"));
    assert!(ls.text().contains("there are more"), "{ls:?}");
    let none = store.run(&["ls", "c/"]);
    assert_eq!((none.code, none.text().as_str()), (1, "0 objects\n"));
    let other = store.run(&["ls", "--tenant", "other"]);
    assert_eq!(other.code, 1, "tenants see each other's objects");

    let stat = store.run(&["stat", "a/1"]);
    assert_eq!(stat.code, 0);
    for line in [
        "tenant       default",
        "size         10 B (10 bytes)",
        "leases       0",
    ] {
        assert!(stat.text().contains(line), "{stat:?}");
    }
    let place = store.run(&["where", "a/1"]);
    assert_eq!(place.code, 0);
    let nodes = &store.nodes;
    let holds = |at: usize| {
        let text = place.text();
        text.contains(nodes[at].field("name")) && text.contains(nodes[at].field("segment"))
    };
    assert!(holds(0) != holds(1), "{place:?}");

    let rm = store.run(&["rm", "a/1", "nothing", "b/1"]);
    assert_eq!(rm.code, 1);
    assert_eq!(
        rm.text(),
        "a/1: removed\nnothing: not there\nb/1: removed\n"
    );
    assert_eq!(store.run(&["rm", "a/2"]).code, 0);
    for verb in ["get", "stat", "where"] {
        let gone = store.run(&[verb, "a/1"]);
        assert_eq!((gone.code, gone.text().as_str()), (1, ""));
        assert_eq!(gone.err, "a/1: no such object\n");
    }
    store.assert_all_gauges_zero();
}

#[test]
fn a_list_longer_than_a_page_is_complete_and_in_order() {
    const PAGES_AND_A_BIT: usize = 2_500;
    let store = Store::start(1, "16MiB", &[]);
    // Through the library: a process for each would take long.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = RealClient::connect(store.address(), ClientOptions::default());
        let client = client.await.unwrap();
        let keys: Vec<_> = (0..PAGES_AND_A_BIT)
            .map(|at| format!("key-{at:05}").into_bytes().into())
            .collect();
        // In batches, whose memory is used again.
        for keys in keys.chunks(100) {
            let items = keys
                .iter()
                .map(|key: &bytes::Bytes| (key.clone(), &b"v"[..]));
            let results = client.put(items.collect(), PutOptions::default()).await;
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        }
    });
    let list = |limit: &str| store.run(&["ls", "--limit", limit, "-o", "json"]).json();
    let all = list("1000000");
    let keys: Vec<_> = all["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["key"].as_str().unwrap())
        .collect();
    assert_eq!((keys.len(), &all["more"]), (PAGES_AND_A_BIT, &false.into()));
    assert!(keys.is_sorted());
    let some = list("2001");
    assert_eq!(
        (some["objects"].as_array().unwrap().len(), &some["more"]),
        (2_001, &true.into())
    );
    store.assert_all_gauges_zero();
}

#[test]
fn a_file_has_the_whole_value_or_what_it_had_before() {
    let store = Store::start(1, "16MiB", &[]);
    assert_eq!(store.run_with(&["put", "k"], b"new").code, 0);
    let file = store.file_with("file", b"old");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(store.run(&["get", "nothing", "--to", &file]).code, 1);
    assert_eq!(fs::read(&file).unwrap(), b"old");

    let link = store.file("link");
    symlink(&file, &link).unwrap();
    assert_eq!(store.run(&["get", "k", "--to", &link]).code, 0);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&file).unwrap(), b"new");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o640
    );
    let names = fs::read_dir(store.folder.path()).unwrap().count();
    assert_eq!(names, 2, "something was left behind");

    let nowhere = store.file("no/such/folder");
    let done = store.run(&["get", "k", "--to", &nowhere]);
    assert_eq!(done.code, 2);
    assert!(done.err.contains(&nowhere), "{done:?}");
    store.assert_all_gauges_zero();
}

#[test]
fn keys_may_be_any_bytes_and_are_shown_escaped() {
    let store = Store::start(1, "16MiB", &[]);
    let key = OsStr::from_bytes(b"\xff\n\x1b[2J");
    let done = |verb: &str| run(&[OsStr::new(verb), key], b"value", store.address());
    assert_eq!(done("put").code, 0);
    assert_eq!(done("get").out, b"value");
    assert!(store.run(&["ls"]).text().contains(r"\xff\n\x1b[2J"));
    let listing = store.run(&["ls", "-o", "json"]).json();
    assert_eq!(listing["objects"][0]["key_hex"], "ff0a1b5b324a");
    assert_eq!(done("rm").text(), "\\xff\\n\\x1b[2J: removed\n");
    store.assert_all_gauges_zero();
}

#[test]
fn documents_have_the_fields_of_the_page() {
    let Some(path) = doc("json.md") else { return };
    let page = fs::read_to_string(path).unwrap();
    let check = |form: &str, document: &serde_json::Value| {
        let mut found = BTreeSet::new();
        fields(document, "", &mut found);
        assert_eq!(listed(&page, form), found, "{form}");
    };
    let store = Store::start(1, "16MiB", &[]);
    check("master", &store.master.ready);
    check("node", &store.nodes[0].ready);

    let to = store.file("to");
    let json =
        |words: &[&str]| -> Done { store.run_with(&[words, &["-o", "json"]].concat(), b"value") };
    for (form, words, code) in [
        ("put", &["put", "k"][..], 0),
        ("No", &["put", "k"], 1),
        ("get", &["get", "k", "--to", &to], 0),
        ("No", &["get", "n", "--to", &to], 1),
        ("ls", &["ls"], 0),
        ("stat", &["stat", "k"], 0),
        ("No", &["stat", "n"], 1),
        ("where", &["where", "k"], 0),
        ("No", &["where", "n"], 1),
        ("rm", &["rm", "k", "n"], 1),
        ("Errors", &["get", "", "--to", &to], 2),
        ("Errors", &["get", "k"], 2),
    ] {
        let done = json(words);
        assert_eq!((done.code, done.err.as_str()), (code, ""), "{words:?}");
        check(form, &done.json());
    }
    assert_eq!(fs::read(&to).unwrap(), b"value");
    store.assert_all_gauges_zero();
}

#[test]
fn a_get_leaves_no_lease_behind() {
    let store = Store::start(1, "16MiB", &[]);
    assert_eq!(store.run_with(&["put", "k"], b"value").code, 0);
    for _ in 0..20 {
        assert_eq!(store.run(&["get", "k"]).code, 0);
    }
    let stat = store.run(&["stat", "k", "-o", "json"]).json();
    assert_eq!(stat["leases"], 0);
    store.assert_all_gauges_zero();
}
