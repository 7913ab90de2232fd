//! Writers that are killed, and writers that race for a key.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use mooncake_store::{Client, ClientOptions, ErrorCode, RealClient};
use rustix::process::Signal;
use tokio::runtime::Runtime;

use super::processes::{PATIENCE, Running, Store, noise, until};

const MIB: usize = 1 << 20;

/// A writer of the store's only key, stopped while its bytes arrive at the node.
fn stopped_in_mid_put(store: &Store, key: &str, file: &str) -> Running {
    let of_master = |name| store.master.number(name);
    let arriving = || store.nodes[0].number("mooncake_tent_peer_bytes_in_flight");
    // One that was too fast has put its object, which is removed before the next tries.
    until("a writer is caught in the middle", || {
        let writer = Running::start(&["put", key, file], b"", store.address());
        until("it writes", || {
            let writes = arriving() > 0 || of_master("mooncake_master_objects") > 0;
            writes.then_some(())
        });
        writer.signal(Signal::STOP);
        // What it had said before is heard by now.
        let _settled = store.run(&["ls"]);
        if of_master("mooncake_master_puts_in_progress") == 1 {
            return Some(writer);
        }
        writer.signal(Signal::CONT);
        assert_eq!(writer.done(PATIENCE).code, 0);
        assert_eq!(store.run(&["rm", key]).code, 0);
        None
    })
}

#[test]
fn a_killed_writer_frees_its_key_when_its_deadline_is_over() {
    let store = Store::start(1, "512MiB", &["--put-deadline", "2s"]);
    let file = store.file_with("first", &noise(64 * MIB));
    let second = noise(48 * MIB);
    let writer = stopped_in_mid_put(&store, "k", &file);
    let connections = || store.nodes[0].number("mooncake_tent_connections");
    assert!(connections() > 0, "it is connected to the node");
    writer.kill();
    until("its connections are gone", || {
        (connections() == 0).then_some(())
    });

    let mut refused = 0;
    until("another may write", || {
        let got = store.run(&["get", "k"]);
        assert_eq!(
            (got.code, got.err.as_str()),
            (1, "k: no such object\n"),
            "a put that nobody ended was read"
        );
        let put = store.run_with(&["put", "k"], &second);
        if put.code == 0 {
            return Some(());
        }
        put.refused(
            &["k (48.0 MiB)", "being written", "the other writer"],
            PATIENCE,
        );
        refused += 1;
        None
    });
    assert!(refused > 0, "the key was free before the deadline");
    let got = store.run(&["get", "k"]);
    assert!(got.code == 0 && got.out == second, "{:?}", got.err);
    store.assert_all_gauges_zero();
}

/// What a reader finds who never stops reading.
struct Reader {
    stop: Arc<AtomicBool>,
    found: thread::JoinHandle<BTreeSet<Vec<u8>>>,
}

impl Reader {
    fn start(address: &str, key: String) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, address) = (Arc::clone(&stop), address.to_owned());
        let found = thread::spawn(move || {
            let runtime = Runtime::new().unwrap();
            runtime.block_on(async {
                let options = ClientOptions::default();
                let client = RealClient::connect(&address, options).await.unwrap();
                let mut found = BTreeSet::new();
                while !stopped.load(Ordering::Acquire) {
                    let mut got = client.get(vec![Bytes::from(key.clone())]).await;
                    match got.pop().unwrap() {
                        Ok(value) => {
                            let mut bytes = vec![0; value.len() as usize];
                            value.read_at(0, &mut bytes);
                            found.insert(bytes);
                        }
                        Err(fault) => assert_eq!(fault.code, ErrorCode::ObjectNotFound, "{fault}"),
                    }
                }
                client.close(Duration::from_secs(2)).await.unwrap();
                found
            })
        });
        Self { stop, found }
    }

    fn end(self) -> BTreeSet<Vec<u8>> {
        self.stop.store(true, Ordering::Release);
        self.found.join().unwrap()
    }
}

#[test]
fn of_two_writers_of_a_key_exactly_one_wins_and_the_other_is_told_why() {
    const ROUNDS: usize = 20;
    let store = Store::start(1, "256MiB", &[]);
    let values = [vec![1; 4 * MIB + 1], vec![2; 4 * MIB + 1]];
    let mut told = BTreeSet::new();
    for round in 0..ROUNDS {
        let key = format!("key-{round}");
        let reader = Reader::start(store.address(), key.clone());
        let words = ["put", &key];
        let writers = [0, 1].map(|_| Running::start_unfed(&words, store.address()));
        // The node, the reader and both writers: these now wait for their input.
        until("all are there", || {
            let sessions = store.master.number("mooncake_master_sessions");
            (sessions == 4).then_some(())
        });
        let done = thread::scope(|scope| {
            let feed =
                |((writer, mut stdin), value): ((Running, std::process::ChildStdin), &Vec<u8>)| {
                    let value = value.clone();
                    scope.spawn(move || {
                        stdin.write_all(&value).unwrap();
                        drop(stdin);
                        writer.done(PATIENCE)
                    })
                };
            let running: Vec<_> = writers.into_iter().zip(&values).map(feed).collect();
            running
                .into_iter()
                .map(|writer| writer.join().unwrap())
                .collect::<Vec<_>>()
        });
        let won: Vec<_> = (0..2).filter(|at| done[*at].code == 0).collect();
        let [winner] = won[..] else {
            panic!("{} have won round {round}: {done:?}", won.len());
        };
        let loser = &done[1 - winner];
        let exists = loser.code == 1 && loser.err.contains("exists");
        let in_progress = loser.code == 2 && loser.err.contains("the other writer");
        assert!(exists || in_progress, "{loser:?}");
        told.insert(exists);
        let got = store.run(&["get", &key]);
        assert!(got.code == 0 && got.out == values[winner], "{:?}", got.err);
        for found in reader.end() {
            assert!(found == values[winner], "the reader saw another version");
        }
        assert_eq!(store.run(&["rm", &key]).code, 0);
    }
    println!("losers were told: {told:?}");
    store.assert_all_gauges_zero();
}
