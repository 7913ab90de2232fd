//! Objects with several replicas, while one of their nodes is killed or stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mooncake_store::core::PutOptions;
use mooncake_store::{BlockingClient, Client, ClientOptions, RealClient};
use rustix::process::Signal;
use tokio::runtime::Runtime;

use super::processes::{Store, noise, until};

const KEYS: usize = 16;
const DEADLINE: Duration = Duration::from_secs(5);
/// What the machine may be late by.
const MARGIN: Duration = Duration::from_secs(3);

fn key(at: usize) -> Bytes {
    Bytes::from(format!("key-{at}"))
}

fn twice() -> PutOptions {
    PutOptions {
        replicas: 2,
        ..PutOptions::default()
    }
}

async fn connect(store: &Store) -> RealClient {
    let mut options = ClientOptions::default();
    options.operation_deadline = DEADLINE;
    RealClient::connect(store.address(), options).await.unwrap()
}

async fn put_all(client: &RealClient, value: &[u8]) {
    let items = (0..KEYS).map(|at| (key(at), value)).collect();
    for result in client.put(items, twice()).await {
        result.unwrap();
    }
}

/// Reads until it is told to stop: each read brings the right bytes in time.
async fn read_on(
    client: RealClient,
    value: Arc<Vec<u8>>,
    reads: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) {
    let mut at = 0;
    while !stop.load(Ordering::Acquire) {
        let begun = Instant::now();
        let got = client.get(vec![key(at % KEYS)]).await.pop().unwrap();
        let took = begun.elapsed();
        let got = got.unwrap_or_else(|fault| panic!("read {at} failed after {took:?}: {fault}"));
        assert!(took < DEADLINE + MARGIN, "{took:?}");
        let mut bytes = vec![0; got.len() as usize];
        got.read_at(0, &mut bytes);
        assert!(bytes == *value, "wrong bytes");
        reads.fetch_add(1, Ordering::Relaxed);
        at += 1;
    }
}

/// Reads while `harm` is done, and until well after it.
fn reads_survive(store: &Store, harm: impl FnOnce()) {
    let runtime = Runtime::new().unwrap();
    let value = Arc::new(noise(100_003));
    let client = runtime.block_on(connect(store));
    runtime.block_on(put_all(&client, &value));
    let (reads, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let reader = runtime.spawn(read_on(
        client.clone(),
        value,
        Arc::clone(&reads),
        Arc::clone(&stop),
    ));
    let more = |count| {
        let goal = reads.load(Ordering::Relaxed) + count;
        until("it reads on", || {
            let there = reader.is_finished() || reads.load(Ordering::Relaxed) >= goal;
            there.then_some(())
        });
    };
    more(50);
    harm();
    // Each key many times.
    more(20 * KEYS as u64);
    stop.store(true, Ordering::Release);
    runtime.block_on(reader).unwrap();
    runtime
        .block_on(client.close(Duration::from_secs(2)))
        .unwrap();
}

#[test]
fn no_read_fails_while_one_of_two_replicas_is_killed() {
    let mut store = Store::start(2, "16MiB", &["--client-ttl", "2s"]);
    let victim = store.nodes.remove(0);
    reads_survive(&store, || {
        victim.end(Signal::KILL);
    });
    store.assert_all_gauges_zero();
}

#[test]
fn no_read_fails_while_one_of_two_replicas_is_stopped() {
    let store = Store::start(2, "16MiB", &[]);
    reads_survive(&store, || store.nodes[0].signal(Signal::STOP));
    store.nodes[0].signal(Signal::CONT);
    store.assert_all_gauges_zero();
}

/// A put of two replicas is under way when this signal comes to one of the nodes.
fn put_ends(signal: Signal) {
    const MIB: usize = 1 << 20;
    let settings = ["--client-ttl", "2s", "--put-deadline", "2s"];
    let mut store = Store::start(2, "256MiB", &settings);
    let victim = store.nodes.remove(0);
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(connect(&store));
    let value = Arc::new(noise(48 * MIB));
    let put = {
        let (client, value) = (client.clone(), Arc::clone(&value));
        runtime.spawn(async move {
            let begun = Instant::now();
            let items = vec![(key(0), value.as_slice())];
            let result = client.put(items, twice()).await.pop().unwrap();
            (result, begun.elapsed())
        })
    };
    until("it has begun", || {
        let puts = store.master.number("mooncake_master_puts_in_progress");
        (puts == 1 || put.is_finished()).then_some(())
    });
    victim.signal(signal);
    let (result, took) = runtime.block_on(put).unwrap();
    assert!(took < DEADLINE + MARGIN, "{took:?}");
    let got = runtime.block_on(client.get(vec![key(0)])).pop().unwrap();
    match result {
        Ok(_) => {
            let got = got.unwrap();
            let mut bytes = vec![0; got.len() as usize];
            got.read_at(0, &mut bytes);
            assert!(bytes == *value, "wrong bytes");
        }
        Err(fault) => {
            let said = fault.to_string();
            println!("the put failed: {said}");
            assert!(
                said.contains("key-0") && said.contains("in write"),
                "{said}"
            );
            assert!(got.is_err(), "a put that failed is read");
        }
    }
    // Others may go on at once, with the node that is left.
    let alive = value[..MIB].to_vec();
    until("one replica finds a place", || {
        let items = vec![(Bytes::from_static(b"more"), alive.as_slice())];
        let mut put = runtime.block_on(client.put(items, PutOptions::default()));
        put.pop().unwrap().is_ok().then_some(())
    });
    // What was written to a node that says nothing cannot be proven quiet.
    let _unproven = runtime.block_on(client.close(Duration::from_secs(2)));
    if signal == Signal::STOP {
        victim.signal(Signal::CONT);
        store.nodes.push(victim);
    }
    store.assert_all_gauges_zero();
}

#[test]
fn a_put_to_a_node_that_is_killed_ends_in_time_and_says_what_happened() {
    put_ends(Signal::KILL);
}

#[test]
fn a_put_to_a_node_that_is_stopped_ends_in_time_and_says_what_happened() {
    put_ends(Signal::STOP);
}

/// A thread that does the work of its calls itself is held up by no node that says nothing.
#[test]
fn of_a_batch_that_a_thread_waits_for_what_is_on_living_nodes_succeeds() {
    const DEADLINE: Duration = Duration::from_secs(2);
    let settings = ["--client-ttl", "30s", "--put-deadline", "3s"];
    let store = Store::start(2, "64MiB", &settings);
    let mut options = ClientOptions::default();
    options.operation_deadline = DEADLINE;
    let client = BlockingClient::connect(store.address(), options).unwrap();
    let value = noise(100_003);
    let keys = |of: &str| -> Vec<Bytes> {
        let name = |at| Bytes::from(format!("{of}-{at}"));
        (0..KEYS).map(name).collect()
    };
    let put = |of: &str| {
        let items = keys(of).into_iter().map(|key| (key, &value[..]));
        client.put(items.collect(), PutOptions::default())
    };
    assert!(put("before").iter().all(Result::is_ok));

    store.nodes[0].signal(Signal::STOP);
    let begun = Instant::now();
    let read = client.get(keys("before"));
    assert!(begun.elapsed() < DEADLINE + MARGIN, "{:?}", begun.elapsed());
    let read: Vec<_> = read.into_iter().flatten().collect();
    assert!((1..KEYS).contains(&read.len()), "{} of {KEYS}", read.len());
    assert!(read.iter().all(|got| got.to_vec() == value), "wrong bytes");

    let begun = Instant::now();
    let done = put("meanwhile");
    assert!(begun.elapsed() < DEADLINE + MARGIN, "{:?}", begun.elapsed());
    assert!(done.iter().any(Result::is_ok), "{done:?}");

    store.nodes[0].signal(Signal::CONT);
    let _unproven = client.close(Duration::from_secs(2));
    store.assert_all_gauges_zero();
}
