//! A client whose stream to the master breaks, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mooncake_store::core::{PutOptions, RemoveOptions};
use mooncake_store::master::SessionEvent;
use mooncake_store::{Client, ClientOptions, RealClient};
use tokio::runtime::Runtime;

use super::processes::{Role, Store};

const KEYS: usize = 120;

fn key(at: usize) -> Bytes {
    Bytes::from(format!("key-{at:03}"))
}

fn value(at: usize) -> Vec<u8> {
    format!("{at} ").repeat(100).into_bytes()
}

/// Connections that are cut; later ones are not.
const CUTS: u64 = 8;

/// Puts, reads and removes objects over a stream that is cut now and then, and returns how often it
/// came back.
async fn work(store: &Store, relay: &Role) -> u64 {
    let mut options = ClientOptions::default();
    options.operation_deadline = Duration::from_secs(15);
    let client = RealClient::connect(relay.field("address"), options)
        .await
        .unwrap();
    let resumed = Arc::new(AtomicU64::new(0));
    let mut events = client.master().subscribe();
    let counted = Arc::clone(&resumed);
    let counting = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if let SessionEvent::Connected { resumed, .. } = event {
                assert!(resumed, "the master has forgotten the client");
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    // Several at a time, so that some are always under way when the stream breaks.
    for keys in (0..KEYS).collect::<Vec<_>>().chunks(6) {
        let puts = keys.iter().map(|at| {
            let client = client.clone();
            let at = *at;
            tokio::spawn(async move {
                let value = value(at);
                let items = vec![(key(at), value.as_slice())];
                // A put that were done twice would find that its key exists.
                let put = client.put(items, PutOptions::default()).await;
                put[0].as_ref().unwrap();
            })
        });
        for put in puts.collect::<Vec<_>>() {
            put.await.unwrap();
        }
    }
    for at in 0..KEYS {
        let got = client.get(vec![key(at)]).await.pop().unwrap().unwrap();
        let mut bytes = vec![0; got.len() as usize];
        got.read_at(0, &mut bytes);
        assert_eq!(bytes, value(at));
    }
    let listed = store.run(&["ls", "-o", "json"]).json();
    assert_eq!(listed["objects"].as_array().unwrap().len(), KEYS);
    for at in (0..KEYS).step_by(2) {
        // One that were done twice would find nothing.
        client.remove(vec![key(at)], RemoveOptions::default()).await[0]
            .as_ref()
            .unwrap();
    }
    client.close(Duration::from_secs(2)).await.unwrap();
    counting.abort();
    resumed.load(Ordering::Relaxed)
}

#[test]
fn a_client_whose_stream_breaks_again_and_again_changes_everything_exactly_once() {
    for (direction, cut, after) in [
        ("up", "reset", "2300"),
        ("down", "reset", "1700"),
        ("both", "close", "2900"),
    ] {
        // A look-up whose answer is lost leaves a lease, which ends by itself.
        let store = Store::start(1, "16MiB", &["--default-kv-lease-ttl", "1s"]);
        let relay = Role::start(&[
            "dev",
            "relay",
            "--to",
            store.address(),
            "--direction",
            direction,
            "--cut",
            cut,
            "--cut-after",
            after,
            "--connections",
            &CUTS.to_string(),
        ]);
        let runtime = Runtime::new().unwrap();
        let resumed = runtime.block_on(work(&store, &relay));
        println!("{direction} {cut}: {resumed} times");
        assert!(resumed >= CUTS / 2, "the stream came back {resumed} times");
        let listed = store.run(&["ls", "-o", "json"]).json();
        let left: Vec<_> = listed["objects"].as_array().unwrap().iter().collect();
        assert_eq!(left.len(), KEYS / 2, "{direction} {cut}");
        let objects = store.master.number("mooncake_master_objects");
        assert_eq!(objects, KEYS as u64 / 2);
        let abandoned = store.master.number("mooncake_master_abandoned_puts_total");
        assert_eq!(abandoned, 0, "{direction} {cut}");
        store.assert_all_gauges_zero();
    }
}
