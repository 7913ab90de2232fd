//! Processes end when told to, and the others cope when one dies.

use std::time::Duration;

use mooncake_store::core::PutOptions;
use mooncake_store::{Client, ClientOptions, RealClient};
use rustix::process::Signal;
use tokio::runtime::Runtime;

use super::processes::{END, Role, Store, run, until};

fn connect(runtime: &Runtime, store: &Store) -> RealClient {
    let client = RealClient::connect(store.address(), ClientOptions::default());
    runtime.block_on(client).unwrap()
}

fn put(runtime: &Runtime, client: &RealClient, key: &'static str) -> bool {
    let items = vec![(key.as_bytes().into(), &b"value"[..])];
    let results = runtime.block_on(client.put(items, PutOptions::default()));
    results[0].is_ok()
}

#[test]
fn roles_end_on_signals_also_while_a_client_is_connected() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut store = Store::start(2, "16MiB", &[]);
        let runtime = Runtime::new().unwrap();
        let client = connect(&runtime, &store);
        assert!(put(&runtime, &client, "k"));
        // One node while there is a master, one after it is gone.
        let (first, last) = (store.nodes.remove(0), store.nodes.remove(0));
        for role in [first, store.master, last] {
            let (code, took) = role.end(signal);
            assert_eq!(code, Some(0), "{signal:?}");
            assert!(took < END, "{took:?}");
        }
        drop(client);
    }
}

#[test]
fn roles_end_with_their_standard_input_if_asked_to() {
    let mut store = Store::start(1, "1MiB", &[]);
    assert_eq!(store.nodes.remove(0).abandon(), Some(0));
    let gone = store.run_with(&["put", "k"], b"v");
    gone.refused(&["no node lends any"], END);
    assert_eq!(store.master.abandon(), Some(0));
}

#[test]
fn a_node_shows_operators_that_it_serves_and_what_it_holds() {
    let store = Store::start(1, "16MiB", &[]);
    let node = &store.nodes[0];
    for path in ["/health", "/healthz"] {
        assert_eq!(node.page(path), r#"{"status":"serving"}"#);
    }
    assert_eq!(node.number("mooncake_tent_registrations"), 1, "its segment");
    assert_eq!(
        node.number("tent_registrations_total"),
        1,
        "what it has done"
    );
    let runtime = Runtime::new().unwrap();
    let client = connect(&runtime, &store);
    assert!(put(&runtime, &client, "k"));
    assert!(node.number("mooncake_tent_connections") > 0);
    runtime.block_on(client.close(END)).unwrap();
    store.assert_all_gauges_zero();
}

#[test]
fn objects_of_a_node_that_was_killed_are_gone_after_the_client_ttl() {
    let mut store = Store::start(2, "16MiB", &["--client-ttl", "1s"]);
    let holder = |key: &str| -> usize {
        let places = store.run(&["where", key, "-o", "json"]).json();
        let node = places["replicas"][0]["node"].as_str().unwrap();
        node.strip_prefix("node-").unwrap().parse().unwrap()
    };
    // Enough objects that both nodes have some.
    let keys: Vec<_> = (0..12).map(|at| format!("key-{at}")).collect();
    for key in &keys {
        assert_eq!(store.run_with(&["put", key], b"value").code, 0);
    }
    let (lost, kept): (Vec<_>, Vec<_>) = keys.iter().partition(|key| holder(key) == 0);
    assert!(!lost.is_empty() && !kept.is_empty(), "{lost:?} {kept:?}");

    let (code, _) = store.nodes.remove(0).end(Signal::KILL);
    assert_eq!(code, None, "it was killed");
    until("the object is gone", || {
        let got = store.run(&["get", lost[0]]);
        assert!(
            got.code != 0 && got.took < Duration::from_secs(7),
            "{got:?}"
        );
        if got.code == 2 {
            assert!(got.err.contains("client_ttl"), "{got:?}");
        }
        (got.code == 1).then_some(())
    });
    for key in lost {
        let got = store.run(&["get", key]);
        assert_eq!((got.code, got.err), (1, format!("{key}: no such object\n")));
    }
    for key in kept {
        assert_eq!(store.run(&["get", key]).out, b"value");
    }
    assert_eq!(store.run_with(&["put", "more"], b"value").code, 0);
    store.assert_all_gauges_zero();
}

#[test]
fn a_master_that_comes_back_finds_nodes_and_clients_again() {
    let Store {
        nodes,
        master,
        folder,
    } = Store::start(2, "16MiB", &[]);
    let address = master.field("address").to_owned();
    let restarted = || Store {
        nodes: Vec::new(),
        master: Role::master(&["--listen", &address]),
        folder: tempfile::tempdir().unwrap(),
    };
    let runtime = Runtime::new().unwrap();
    let client = RealClient::connect(&address, ClientOptions::default());
    let client = runtime.block_on(client).unwrap();
    assert!(put(&runtime, &client, "before"));
    master.end(Signal::KILL);

    let mut store = restarted();
    until("both nodes are back", || {
        let listed = store.run_with(&["put", "probe"], b"v");
        let _ = store.run(&["rm", "probe"]);
        (listed.code == 0).then_some(())
    });
    until("the client is back", || {
        put(&runtime, &client, "after").then_some(())
    });
    assert_eq!(store.run(&["get", "after"]).out, b"value");
    // A master without a log knows nothing of its earlier life.
    assert_eq!(store.run(&["get", "before"]).code, 1);
    assert_eq!(
        store.run(&["ls"]).text(),
        "key    size  replicas\nafter   5 B         1\n\n1 object\n"
    );
    runtime.block_on(client.close(END)).unwrap();
    store.nodes = nodes;
    store.assert_all_gauges_zero();
    drop(folder);
}

#[test]
fn a_store_is_reached_through_a_relay_until_that_cuts() {
    let store = Store::start(1, "16MiB", &[]);
    let relay = |words: &[&str]| {
        let to = ["dev", "relay", "--to", store.address()];
        Role::start(&[&to[..], words].concat())
    };
    assert_eq!(store.run_with(&["put", "k"], b"value").code, 0);
    let reach = |relay: &Role| run(&["ls"], b"", relay.field("address"));
    let kind = relay(&["--delay-ms", "1"]);
    assert_eq!(reach(&kind).code, 0);
    let cuts = relay(&["--cut-after", "100", "--cut", "close"]);
    assert_eq!(reach(&cuts).code, 2);
    store.assert_all_gauges_zero();
    let (code, took) = kind.end(Signal::TERM);
    assert_eq!(code, Some(0));
    assert!(took < END, "{took:?}");
    assert_eq!(cuts.abandon(), Some(0));
}
