//! What does not work is said at once, with what is concerned and what to try.

use std::net::TcpListener;
use std::time::Duration;

use mooncake_proto::master::LookupRequest;
use mooncake_store::core::{MasterAnswer, MasterRequest};
use mooncake_store::{ClientOptions, Clock, RealClient};

use super::processes::{Role, Store, nobody, run};

const SOON: Duration = Duration::from_secs(2);

#[test]
fn a_master_that_does_not_answer_is_named_within_two_seconds() {
    // Takes connections and says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = mute.local_addr().unwrap().to_string();
    for address in [nobody(), mute] {
        for words in [
            &["put", "k"][..],
            &["get", "k"],
            &["ls"],
            &["stat", "k"],
            &["where", "k"],
            &["rm", "k"],
            &["node", "--master", &address, "--segment-size", "1MiB"],
        ] {
            let said = [
                &format!("the master at {address}"),
                "mooncake master",
                "--master",
            ];
            run(words, b"v", &address).refused(&said, SOON);
        }
    }
}

#[test]
fn keys_that_are_empty_or_too_long_are_refused() {
    let long = "k".repeat(4_097);
    for verb in ["put", "get", "stat", "where", "rm"] {
        // Before anybody is asked.
        run(&[verb, ""], b"v", &nobody()).refused(&["the key is empty", "1 to 4,096"], SOON);
        let said = ["kkk", "4,097 bytes", "1 to 4,096"];
        run(&[verb, &long], b"v", &nobody()).refused(&said, SOON);
    }
    let store = Store::start(1, "1MiB", &[]);
    assert_eq!(store.run_with(&["put", &long[1..]], b"v").code, 0);
    store.assert_all_gauges_zero();
}

#[test]
fn values_that_are_empty_or_too_large_are_refused() {
    let store = Store::start(0, "", &[]);
    let empty = store.run(&["put", "k", "/dev/null"]);
    empty.refused(&["no node lends any", "mooncake node"], SOON);

    let _small = Role::node(store.address(), "small", "1MiB");
    let _large = Role::node(store.address(), "large", "2MiB");
    store
        .run(&["put", "k"])
        .refused(&["standard input is empty"], SOON);
    let file = store.file_with("empty", b"");
    store
        .run(&["put", "k", &file])
        .refused(&[&file, "is empty"], SOON);
    let nowhere = store.file("nowhere");
    store
        .run(&["put", "k", &nowhere])
        .refused(&[&nowhere, "cannot be read"], SOON);

    let value = vec![7; (2 << 20) + 1];
    let said = ["2097152", "largest segment", "--segment-size"];
    store.run_with(&["put", "k"], &value).refused(&said, SOON);
    let file = store.file_with("large", &value);
    store
        .run(&["put", "k", &file])
        .refused(&[&said[..], &[&file, "2097153"]].concat(), SOON);
    assert_eq!(store.run_with(&["put", "k"], &value[1..]).code, 0);
    store.assert_all_gauges_zero();
}

#[test]
fn a_full_store_says_so() {
    let store = Store::start(1, "1MiB", &[]);
    assert_eq!(store.run_with(&["put", "read"], &[1; 900 << 10]).code, 0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let reader = runtime.block_on(async {
        let reader = RealClient::connect(store.address(), ClientOptions::default())
            .await
            .unwrap();
        // A reader that holds its lease keeps the object from being evicted.
        let request = MasterRequest::Lookup(LookupRequest {
            keys: vec![(&b"read"[..]).into()],
            ..LookupRequest::default()
        });
        let deadline = Clock.now() + SOON;
        let answer = reader.master().call(request, deadline).await.unwrap();
        assert!(matches!(answer, MasterAnswer::Lookup(found) if found.lease != 0));
        reader
    });
    let done = store.run_with(&["put", "more"], &[2; 500 << 10]);
    done.refused(
        &[
            "more (500 KiB)",
            "nothing can be evicted",
            "mooncake rm",
            "node",
        ],
        Duration::from_secs(6),
    );
    drop(reader);
}

#[test]
fn unknown_settings_and_values_that_make_no_sense_are_refused() {
    for (words, said) in [
        (
            &["put", "k", "--mastr", "a:1"][..],
            &["--mastr", "--master"][..],
        ),
        (
            &["master", "--client-ttl", "1500ms"],
            &["client_ttl", "whole seconds"],
        ),
        (
            &["node", "--listen", "0.0.0.0:7777"],
            &["listen is 0.0.0.0:7777", "can reach"],
        ),
        (
            &["node", "--data-listen", "[::]:0"],
            &["data_listen is [::]:0"],
        ),
        (&["node", "--segment-size", "0"], &["segment_size is 0"]),
        (&["ls", "--tenant", "_x"], &["tenant"]),
    ] {
        run(words, b"", &nobody()).refused(said, SOON);
    }
}

#[test]
fn an_address_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken
        .local_addr()
        .map(|address| (taken, address.to_string()))
        .unwrap();
    let address = taken.1.as_str();
    let master = Role::master(&[]);
    let free = "127.0.0.1:0";
    let node = [
        "node",
        "--segment-size",
        "1MiB",
        "--master",
        master.field("address"),
    ];
    for (words, flag) in [
        (
            &["master", "--listen", address, "--admin-listen", free][..],
            "--listen",
        ),
        (
            &["master", "--admin-listen", address, "--listen", free],
            "--admin-listen",
        ),
        (&[&node[..], &["--listen", address]].concat(), "--listen"),
        (
            &[&node[..], &["--data-listen", address]].concat(),
            "--data-listen",
        ),
        (
            &[&node[..], &["--admin-listen", address]].concat(),
            "--admin-listen",
        ),
    ] {
        run(words, b"", &nobody()).refused(&[address, "in use", flag, "another port"], SOON);
    }
}

#[test]
fn a_segment_that_does_not_fit_into_memory_is_refused() {
    let words = ["node", "--segment-size", "64TiB", "--master", &nobody()];
    let said = [
        "64.0 TiB does not fit into memory",
        "are available",
        "--segment-size",
    ];
    run(&words, b"", &nobody()).refused(&said, SOON);
}

#[test]
fn a_cluster_that_does_not_fit_into_memory_is_refused_with_the_reason_of_its_node() {
    let nobody = nobody();
    let said = ["node-", "does not fit into memory", "--segment-size"];
    let demo = run(&["demo", "--segment-size", "512TiB"], b"", &nobody);
    demo.refused(&said, SOON);
}
