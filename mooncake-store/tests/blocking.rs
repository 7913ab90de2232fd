//! The client of threads that wait.
#![expect(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod common;

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use common::{BUDGET, Cluster, key, operations, until};
use mooncake_store::{
    BlockingClient, Client, ClientOptions, ErrorCode, GetInto, PutFrom, RealClient,
    core::{PutOptions, RemoveOptions},
};
use tokio::runtime::Runtime;

const MIB: u64 = 1 << 20;

/// A store that this test's runtime serves.
struct Store {
    runtime: Runtime,
    cluster: Cluster,
}

impl Store {
    fn start(nodes: usize) -> Self {
        let runtime = Runtime::new().unwrap();
        let cluster = runtime.block_on(Cluster::start(nodes, 64 * MIB));
        Self { runtime, cluster }
    }

    fn client(&self, change: impl FnOnce(&mut ClientOptions)) -> BlockingClient {
        let mut options = ClientOptions::default();
        change(&mut options);
        BlockingClient::connect(&self.cluster.master.address().to_string(), options).unwrap()
    }

    fn admin(&self) -> SocketAddr {
        self.cluster.master.admin_address()
    }

    fn look_ups(&self) -> u64 {
        self.runtime.block_on(operations(self.admin(), "lookup"))
    }
}

fn pattern(number: usize, len: usize) -> Vec<u8> {
    common::pattern(number as u64, len)
}

fn put(client: &BlockingClient, number: usize, value: &[u8]) {
    let put = client.put(vec![(key(number), value)], PutOptions::default());
    assert!(put[0].is_ok(), "{put:?}");
}

fn get(client: &BlockingClient, number: usize) -> Result<Vec<u8>, ErrorCode> {
    let got = client.get(vec![key(number)]).remove(0);
    got.map(|value| value.to_vec()).map_err(|fault| fault.code)
}

#[test]
fn many_threads_put_get_and_remove_through_one_client() {
    let store = Store::start(2);
    let client = store.client(|_| ());
    thread::scope(|scope| {
        for number in 0..6 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..60 {
                    let number = number * 1000 + round;
                    let value = pattern(number, 1 + number * 37 % 200_000);
                    put(client, number, &value);
                    assert!(client.exist(vec![key(number)])[0].as_ref().unwrap().exists);
                    assert_eq!(get(client, number).unwrap(), value);
                    let removed = client.remove(vec![key(number)], RemoveOptions::default());
                    assert!(removed[0].is_ok(), "{removed:?}");
                    assert_eq!(get(client, number), Err(ErrorCode::ObjectNotFound));
                }
            });
        }
    });
    client.close(BUDGET).unwrap();
}

#[test]
fn batches_that_span_nodes_and_large_blocks_arrive_whole() {
    let store = Store::start(3);
    let client = store.client(|_| ());
    let (source, target) = (
        client.allocate(24 << 20).unwrap(),
        client.allocate(24 << 20).unwrap(),
    );
    let value = pattern(9, 24 << 20);
    source.memory().write_at(0, &value);
    let place = |number: u64| number * MIB..(number + 1) * MIB;
    let puts = (0..24).map(|n| PutFrom::new(key(n as usize), source.slice(place(n)).unwrap()));
    for result in client.put_from(puts.collect(), PutOptions::default()) {
        result.unwrap();
    }
    let gets = (0..24).map(|n| GetInto::new(key(n as usize), target.slice(place(n)).unwrap()));
    for result in client.get_into(gets.collect()) {
        assert_eq!(result.unwrap().length, MIB);
    }
    let mut read = vec![0; 24 << 20];
    target.memory().read_at(0, &mut read);
    assert!(read == value, "wrong bytes");
}

#[test]
fn what_was_read_a_moment_ago_is_read_again_without_the_master() {
    let store = Store::start(1);
    let client = store.client(|options| options.keep_look_ups = Duration::from_secs(5));
    put(&client, 1, b"the first life");
    assert_eq!(get(&client, 1).unwrap(), b"the first life");
    let before = store.look_ups();
    for _ in 0..20 {
        assert_eq!(get(&client, 1).unwrap(), b"the first life");
    }
    assert_eq!(store.look_ups(), before);

    // Another client's change is known as soon as the master says so.
    let other = store.client(|_| ());
    other
        .remove(vec![key(1)], RemoveOptions::default())
        .remove(0)
        .unwrap();
    put(&other, 1, b"the second life");
    let began = Instant::now();
    while get(&client, 1).ok().as_deref() != Some(b"the second life") {
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "it goes by what is gone"
        );
    }
    // A barrier waits for it to be forgotten, not for the lease's end.
    let began = Instant::now();
    let barrier = RemoveOptions { barrier: true };
    other.remove(vec![key(1)], barrier).remove(0).unwrap();
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(get(&client, 1), Err(ErrorCode::ObjectNotFound));
    client.close(BUDGET).unwrap();
    store
        .runtime
        .block_on(until(store.admin(), "leases", |leases| leases == 0));
}

#[test]
fn a_client_that_keeps_nothing_asks_each_time() {
    let store = Store::start(1);
    let client = store.client(|options| options.keep_look_ups = Duration::ZERO);
    put(&client, 1, b"bytes");
    let before = store.look_ups();
    for _ in 0..3 {
        get(&client, 1).unwrap();
    }
    assert_eq!(store.look_ups(), before + 3);
}

#[test]
fn its_session_lives_while_nobody_calls() {
    let store = Store::start(1);
    let client = store.client(|_| ());
    put(&client, 1, b"bytes");
    thread::sleep(Duration::from_secs(3));
    assert!(client.master().session().connected);
    assert_eq!(get(&client, 1).unwrap(), b"bytes");
}

#[test]
fn memory_that_it_lends_is_read_by_others_while_nobody_calls() {
    let store = Store::start(0);
    let lender = store.client(|options| options.segment_bytes = 32 * MIB);
    let value = pattern(4, 3_000_000);
    put(&lender, 4, &value);
    let sibling = lender.sibling();
    assert_eq!(get(&sibling, 4).unwrap(), value);
    let reader = store.client(|_| ());
    assert_eq!(get(&reader, 4).unwrap(), value);
    put(&reader, 5, &value);
    assert_eq!(get(&lender, 5).unwrap(), value);
    sibling.close(BUDGET).unwrap();
    reader.close(BUDGET).unwrap();
    lender.close(BUDGET).unwrap();
}

#[test]
fn a_call_ends_at_its_deadline_though_nobody_answers() {
    let store = Store::start(1);
    let client = store.client(|_| ());
    put(&client, 1, b"bytes");
    store.runtime.block_on(store.cluster.master.shutdown());
    let patient = client.with_deadline(Duration::from_millis(300));
    let began = Instant::now();
    let result = patient.exist(vec![key(1)]).remove(0);
    assert!(result.is_err(), "{result:?}");
    assert!(began.elapsed() < Duration::from_secs(3));
    drop(client);
}

#[test]
fn clones_read_side_by_side() {
    let store = Store::start(2);
    let client = store.client(|_| ());
    for number in 0..16 {
        put(&client, number, &pattern(number, 300_000));
    }
    thread::scope(|scope| {
        let calls: Vec<_> = (0..16)
            .map(|number| {
                let client = client.clone();
                scope.spawn(move || get(&client, number) == Ok(pattern(number, 300_000)))
            })
            .collect();
        for call in calls {
            assert!(call.join().unwrap());
        }
    });
}

#[test]
fn a_mute_node_holds_up_no_block_of_another_one() {
    let store = Store::start(1);
    let (_mute, owner) = store.runtime.block_on(store.cluster.mount_mute());
    let client = store.client(|_| ()).with_deadline(BUDGET);
    let value = pattern(5, 4096);
    let items = (0..32).map(|i| (key(i), &value[..])).collect();
    for result in client.put(items, PutOptions::default()) {
        result.expect("what cannot go there goes to the other one");
    }
    store.runtime.block_on(owner.close(BUDGET));
}

#[test]
fn a_dropped_client_leaves_nothing_behind() {
    let store = Store::start(1);
    for _ in 0..10 {
        let client = store.client(|options| options.keep_look_ups = Duration::from_secs(5));
        put(&client, 1, b"bytes");
        get(&client, 1).unwrap();
        client
            .remove(vec![key(1)], RemoveOptions::default())
            .remove(0)
            .unwrap();
        drop(client);
    }
    store
        .runtime
        .block_on(until(store.admin(), "leases", |leases| leases == 0));
}

#[test]
fn a_client_for_async_code_keeps_what_it_found_as_well() {
    let store = Store::start(1);
    store.runtime.block_on(async {
        let address = store.cluster.master.address().to_string();
        let client = RealClient::connect(&address, ClientOptions::default())
            .await
            .unwrap();
        let put = client
            .put(vec![(key(1), &b"bytes"[..])], PutOptions::default())
            .await;
        assert!(put[0].is_ok(), "{put:?}");
        drop(client.get(vec![key(1)]).await.remove(0).unwrap());
        let before = operations(store.admin(), "lookup").await;
        drop(client.get(vec![key(1)]).await.remove(0).unwrap());
        assert_eq!(operations(store.admin(), "lookup").await, before);
        client.close(BUDGET).await.unwrap();
    });
}
