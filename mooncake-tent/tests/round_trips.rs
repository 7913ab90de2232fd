//! Bytes arrive as they were, both ways, however they are cut and waited for.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::sync::Arc;

use common::*;
use mooncake_tent::{Buffer, Permission, Request, Segment, TentEngine, transport::Op};

const SIZES: [usize; 12] = [
    1,
    47,
    48,
    49,
    4095,
    (64 << 10) - 1,
    (64 << 10) + 1,
    (256 << 10) - 1,
    (256 << 10) + 1,
    1_000_003,
    2 << 20,
    (5 << 20) + 3,
];

struct Pair {
    owner: TentEngine,
    engine: TentEngine,
    segment: Segment,
    remote: Buffer,
    local: Buffer,
}

impl Pair {
    async fn new(len: usize) -> Self {
        let (owner, engine) = (engine().await, engine().await);
        let remote = buffer(&owner, len, Permission::PeersReadWrite).await;
        let local = buffer(&engine, len, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        Self {
            owner,
            engine,
            segment,
            remote,
            local,
        }
    }

    /// Law 13.
    async fn nothing_is_held(&self) {
        assert_eq!(self.engine.tasks_in_use(), 0);
        for buffer in [&self.remote, &self.local] {
            let books = books(buffer);
            eventually("leases return", || books.leases() == 0).await;
        }
        assert_eq!(self.owner.tasks_in_use(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_size_arrives_byte_exact_both_ways_and_either_way_of_waiting() {
    let pair = Pair::new(8 << 20).await;
    for (round, blocking) in [false, true].into_iter().enumerate() {
        for size in SIZES {
            let offset = 1_003 + size as u64 % 17;
            let data = pattern(size as u64 + round as u64, size);
            let what = format!("{size} bytes, blocking: {blocking}");
            pair.local.memory().write_at(7, &data);
            pair.remote.memory().write_at(offset - 1, &[0xee; 1]);
            pair.remote
                .memory()
                .write_at(offset + size as u64, &[0xee; 1]);
            let range = 7..7 + size as u64;
            for write in [true, false] {
                if !write {
                    pair.local.memory().write_at(0, &vec![0; size + 100]);
                }
                let local = pair.local.slice(range.clone()).unwrap();
                let at = address(&pair.remote, offset);
                let request = match write {
                    true => Request::write(local, &pair.segment, at),
                    false => Request::read(local, &pair.segment, at),
                };
                let batch = submit(&pair.engine, vec![request]);
                match blocking {
                    true => assert!(batch.wait(BUDGET), "{what}"),
                    false => terminal(&batch).await,
                }
                assert!(batch.outcome(0).unwrap().is_completed(), "{what}");
                assert!(batch.is_quiescent(), "{what}");
                if write {
                    let there = bytes(&pair.remote, offset, size);
                    assert_same(&there, &data, &what);
                    for beside in [offset - 1, offset + size as u64] {
                        assert_eq!(bytes(&pair.remote, beside, 1), [0xee], "{what}");
                    }
                }
            }
            assert_same(&bytes(&pair.local, 7, size), &data, &what);
            assert_eq!(bytes(&pair.local, 7 + size as u64, 1), [0], "{what}");
        }
    }
    pair.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scattered_local_memory_of_many_pieces_is_gathered_and_filled_in_order() {
    let pair = Pair::new(8 << 20).await;
    for (pieces, each) in [(2, 3_u64), (65, 100), (200, 1), (333, 9_001), (130, 40_003)] {
        let total = (pieces * each) as usize;
        let data = pattern(each, total);
        // The pieces lie backwards, with gaps.
        let start = |i: u64| (pieces - 1 - i) * (each + 5);
        let scattered = || {
            (0..pieces)
                .map(|i| pair.local.slice(start(i)..start(i) + each).unwrap())
                .collect()
        };
        let put = |i: u64, from: &[u8]| pair.local.memory().write_at(start(i), from);
        for (i, part) in data.chunks(each as usize).enumerate() {
            put(i as u64, part);
        }
        let at = address(&pair.remote, 11);
        let write = Request::scattered(Op::Write, scattered(), &pair.segment, at);
        assert!(once(&pair.engine, write).await.is_completed());
        let what = format!("{pieces} pieces of {each} bytes");
        assert_same(&bytes(&pair.remote, 11, total), &data, &what);

        (0..pieces).for_each(|i| put(i, &vec![0; each as usize + 5]));
        let read = Request::scattered(Op::Read, scattered(), &pair.segment, at);
        let batch = submit(&pair.engine, vec![read]);
        assert!(batch.wait(BUDGET), "{what}");
        assert!(batch.outcome(0).unwrap().is_completed(), "{what}");
        drop(batch);
        for (i, part) in data.chunks(each as usize).enumerate() {
            let found = bytes(&pair.local, start(i as u64), each as usize + 5);
            assert_same(&found[..each as usize], part, &what);
            assert!(found[each as usize..].iter().all(|byte| *byte == 0));
        }
    }
    pair.nothing_is_held().await;
}

/// Writes and reads of odd sizes in turns, each in a place of its own.
fn mixed(pair: &Pair, count: u64, first: u64) -> (Vec<Request>, Vec<(u64, usize, bool)>) {
    const PLACE: u64 = 8 << 10;
    let mut requests = Vec::new();
    let mut places = Vec::new();
    for i in first..first + count {
        let (offset, size) = (i * PLACE, 1 + (i * 977) as usize % (PLACE as usize - 1));
        let is_write = i % 3 != 0;
        let local = pair.local.slice(offset..offset + size as u64).unwrap();
        let at = address(&pair.remote, offset);
        let (from, request) = match is_write {
            true => (&pair.local, Request::write(local, &pair.segment, at)),
            false => (&pair.remote, Request::read(local, &pair.segment, at)),
        };
        from.memory().write_at(offset, &pattern(i, size));
        requests.push(request);
        places.push((offset, size, is_write));
    }
    (requests, places)
}

fn check(pair: &Pair, places: &[(u64, usize, bool)], first: u64) {
    for (i, (offset, size, is_write)) in (first..).zip(places) {
        let there = match is_write {
            true => &pair.remote,
            false => &pair.local,
        };
        let found = bytes(there, *offset, *size);
        assert_same(&found, &pattern(i, *size), &format!("request {i}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_300_mixed_requests_ends_as_one() {
    let pair = Pair::new(8 << 20).await;
    for blocking in [true, false] {
        let (requests, places) = mixed(&pair, 300, 0);
        let batch = submit(&pair.engine, requests);
        match blocking {
            true => assert!(batch.wait(BUDGET)),
            false => terminal(&batch).await,
        }
        assert!((0..300).all(|i| batch.outcome(i).unwrap().is_completed()));
        check(&pair, &places, 0);
        drop(batch);
        pair.nothing_is_held().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_batches_are_in_flight_at_once() {
    let pair = Pair::new(8 << 20).await;
    let batches: Vec<_> = (0..50)
        .map(|i| {
            let (requests, places) = mixed(&pair, 20, i * 20);
            (submit(&pair.engine, requests), places)
        })
        .collect();
    for (i, (batch, places)) in batches.iter().enumerate().rev() {
        terminal(batch).await;
        check(&pair, places, i as u64 * 20);
    }
    drop(batches);
    pair.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_threads_share_one_engine_and_one_peer() {
    let pair = Arc::new(Pair::new(8 << 20).await);
    let threads: Vec<_> = (0..4_u64)
        .map(|thread| {
            let pair = Arc::clone(&pair);
            std::thread::spawn(move || {
                for _ in 0..20 {
                    let (requests, places) = mixed(&pair, 25, thread * 25);
                    let batch = submit(&pair.engine, requests);
                    assert!(batch.wait(BUDGET));
                    check(&pair, &places, thread * 25);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    pair.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_exceeds_the_window_goes_out_after_answers_came() {
    for config in [1, 3].map(|window| {
        let mut config = one_lane();
        config.window = window;
        config
    }) {
        let (owner, engine) = (engine().await, engine_with(config).await);
        let remote = buffer(&owner, 8 << 20, Permission::PeersReadWrite).await;
        let local = buffer(&engine, 8 << 20, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        let pair = Pair {
            owner,
            engine,
            segment,
            remote,
            local,
        };
        for round in 0..3 {
            let (requests, places) = mixed(&pair, 200, 0);
            let batch = submit(&pair.engine, requests);
            match round {
                0 => terminal(&batch).await,
                1 => assert!(batch.wait(BUDGET)),
                _ => eventually("polling sees the end", || batch.is_terminal()).await,
            }
            check(&pair, &places, 0);
        }
        pair.nothing_is_held().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_02_a_task_ends_even_if_nobody_looks() {
    let pair = Pair::new(8 << 20).await;
    for _ in 0..3 {
        let (requests, _) = mixed(&pair, 10, 0);
        let batch = submit(&pair.engine, requests);
        let books = books(&pair.local);
        eventually("all leases return", || books.leases() == 0).await;
        assert!(batch.is_terminal());
        let (requests, _) = mixed(&pair, 10, 0);
        drop(submit(&pair.engine, requests));
        eventually("all cells return", || pair.engine.tasks_in_use() == 10).await;
    }
    pair.nothing_is_held().await;
}
