//! Thousands of small transfers, waited for in every way at once: nobody is forgotten.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{Permission, Request};

#[test]
fn nobody_is_forgotten_among_thousands_of_transfers() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 400;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for lanes in [1, 2] {
        let mut config = one_lane();
        config.lanes_per_peer = lanes;
        config.window = 8;
        let (owner, engine) =
            runtime.block_on(async { (engine().await, engine_with(config).await) });
        let remote = runtime.block_on(buffer(&owner, 1 << 16, Permission::PeersReadWrite));
        let local = runtime.block_on(buffer(&engine, 1 << 16, Permission::Local));
        let segment = runtime.block_on(open(&engine, &owner));
        let shared = Arc::new((engine, segment, local, remote));
        let slowest = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (shared, runtime) = (Arc::clone(&shared), &runtime);
                    scope.spawn(move || {
                        let (engine, segment, local, remote) = &*shared;
                        let mut slowest = Duration::ZERO;
                        for round in 0..ROUNDS {
                            let requests = (0..1 + round % 13)
                                .map(|i| {
                                    let at = (thread << 14) + i * 64;
                                    let part = local.slice(at..at + 1 + (round + i) % 64).unwrap();
                                    match (round + i) % 2 {
                                        0 => Request::read(part, segment, address(remote, at)),
                                        _ => Request::write(part, segment, address(remote, at)),
                                    }
                                })
                                .collect();
                            let start = Instant::now();
                            let batch = submit(engine, requests);
                            match (round + thread) % 4 {
                                0 => assert!(batch.wait(BUDGET)),
                                1 => runtime.block_on(terminal(&batch)),
                                2 => {
                                    while !batch.is_terminal() {
                                        assert!(start.elapsed() < BUDGET);
                                        std::thread::yield_now();
                                    }
                                }
                                // Lets go of it.
                                _ => continue,
                            }
                            slowest = slowest.max(start.elapsed());
                            let ended =
                                (0..batch.len()).all(|i| batch.outcome(i).unwrap().is_completed());
                            assert!(ended);
                        }
                        slowest
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .max()
        });
        println!("{lanes} lanes: the slowest took {slowest:?}");
        let (engine, _, local, remote) = &*shared;
        let (here, there) = (books(local), books(remote));
        runtime.block_on(eventually("the books are closed", || {
            engine.tasks_in_use() == 0 && here.leases() == 0 && there.leases() == 0
        }));
    }
}
