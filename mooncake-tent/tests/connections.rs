//! How many connections transfers take, and what becomes of those that fail.
#![cfg(all(feature = "conformance", feature = "tcp"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    future::Future,
    io::{Read, Write},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Wake, Waker},
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    Applied, Permission, Reason, Request, Retry, TcpConfig, TransferEngine, conformance::Rules,
    transport::Outcome,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_transfers_share_a_few_connections_and_one_that_was_cut_is_replaced() {
    let (owner, relay) = relayed(TcpConfig::default(), |_| Rules::default()).await;
    let engine = engine().await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let read = || Request::read(local.all().unwrap(), &segment, place(&remote, 0));
    for _ in 0..100 {
        let batch = submit(&engine, (0..10).map(|_| read()).collect());
        terminal(&batch).await;
        assert!((0..10).all(|i| batch.outcome(i).unwrap().is_completed()));
    }
    let most = TcpConfig::default().lanes_per_peer as u64;
    assert!(relay.counts().connections <= most, "{:?}", relay.counts());
    // With one lane none is connecting just then.
    let engine = engine_with(one_lane()).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let read = || Request::read(local.all().unwrap(), &segment, place(&remote, 0));
    let most = relay.counts().connections;
    for round in 1..=5 {
        assert!(once(&engine, read()).await.is_completed());
        relay.cut_all();
        // The idle lanes may notice a moment later; then it is worth another try, and says so.
        let start = Instant::now();
        loop {
            match once(&engine, read()).await {
                Outcome::Completed { .. } => break,
                Outcome::Failed(error) => assert_eq!(error.retry, Retry::Here, "{error}"),
                other => panic!("{other:?}"),
            }
            assert!(start.elapsed() < BUDGET, "it is not replaced");
        }
        let connections = relay.counts().connections;
        assert!(connections <= most + 1 + round, "{connections}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_lane_is_replaced_and_costs_no_transfer() {
    let mut config = one_lane();
    config.lane_life = Duration::from_millis(150);
    let (owner, relay) = relayed(TcpConfig::default(), |_| Rules::default()).await;
    let engine = engine_with(config).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let start = Instant::now();
    while relay.counts().connections < 4 {
        let read = Request::read(local.all().unwrap(), &segment, place(&remote, 0));
        let outcome = once(&engine, read).await;
        assert!(outcome.is_completed(), "{outcome:?}");
        assert!(start.elapsed() < BUDGET, "it is not replaced");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_lane_is_replaced_without_breaking_a_read_though_reads_are_always_under_way() {
    const LENGTH: usize = 16 << 20;
    let mut config = TcpConfig::default();
    config.lane_life = Duration::from_millis(100);
    let (owner, relay) = relayed(TcpConfig::default(), |_| Rules::default()).await;
    let engine = engine_with(config).await;
    let remote = buffer(&owner, LENGTH, Permission::PeersReadWrite).await;
    let segment = open(&engine, &owner).await;
    let start = Instant::now();
    let mut readers = Vec::new();
    for _ in 0..3 {
        let local = buffer(&engine, LENGTH, Permission::Local).await;
        readers.push((local, None));
    }
    while relay.counts().connections < 12 {
        for (local, under_way) in &mut readers {
            let read = Request::read(local.all().unwrap(), &segment, place(&remote, 0));
            // The others' are under way meanwhile.
            if let Some(before) = under_way.replace(submit(&engine, vec![read])) {
                assert!(before.wait(BUDGET));
                let outcome = before.outcome(0).unwrap();
                assert!(outcome.is_completed(), "{outcome:?}");
            }
        }
        assert!(start.elapsed() < BUDGET, "they are not replaced");
    }
}

/// A peer whose process is gone while its control service still describes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_peer_is_dialled_now_and_then_however_much_is_submitted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap();
    let owner = engine_at(endpoint).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let engine = engine().await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let dials = Arc::new(AtomicUsize::new(0));
    let dialled = Arc::clone(&dials);
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            drop(socket);
            dialled.fetch_add(1, Ordering::Relaxed);
        }
    });
    let start = Instant::now();
    for _ in 0..1_000 {
        let write = Request::write(local.all().unwrap(), &segment, place(&remote, 0));
        let error = error(Some(once(&engine, write).await));
        assert!(matches!(error.reason, Reason::Unreachable(_)), "{error}");
        assert_eq!(error.retry, Retry::Elsewhere, "{error}");
        assert!(error.to_string().contains(&endpoint.to_string()), "{error}");
    }
    let took = start.elapsed();
    assert!(took < BUDGET, "{took:?}");
    // The first pauses are short, later ones about a second.
    let most = 16 + 2 * took.as_secs() as usize;
    let dials = dials.load(Ordering::Relaxed);
    assert!(dials <= most, "{dials} dials in {took:?}");
}

/// One lane applies its part of a write, the other is never connected.
#[tokio::test(flavor = "multi_thread")]
async fn law_01_a_write_of_which_a_part_was_applied_is_never_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    // So many slices that each of the lanes gets some.
    const SLICE: u64 = 1 << 20;
    const ALL: u64 = 4 * SLICE;
    let remote = buffer(&owner, ALL as usize, Permission::PeersReadWrite).await;
    let mut config = TcpConfig::default();
    config.slice_bytes = SLICE;
    let engine = engine_with(config).await;
    let local = buffer(&engine, ALL as usize, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let payloads = Arc::new(AtomicUsize::new(0));
    // Nothing is answered while the other lane may still connect: one with time takes over what
    // another has not begun.
    let turned_away = Arc::new(AtomicBool::new(false));
    let (target, counted) = (owner.incarnation(), Arc::clone(&payloads));
    let waits_for = Arc::clone(&turned_away);
    std::thread::spawn(move || {
        for (number, socket) in listener.incoming().enumerate() {
            let mut socket = socket.unwrap();
            if number == 1 {
                continue;
            }
            let counted = Arc::clone(&counted);
            let waits_for = Arc::clone(&waits_for);
            std::thread::spawn(move || {
                socket.read_exact(&mut [0; 48]).unwrap();
                socket.write_all(&hello_answer(0, target)).unwrap();
                let mut request = [0; 48];
                while socket.read_exact(&mut request).is_ok() {
                    let number =
                        |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().unwrap());
                    let mut payload = vec![0; number(32) as usize];
                    socket.read_exact(&mut payload).unwrap();
                    counted.fetch_add(1, Ordering::Relaxed);
                    while !waits_for.load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    socket.write_all(&answer(0, 2, number(8), 0)).unwrap();
                }
            });
        }
    });
    // By registration or by address: neither is sent again.
    let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&engine, vec![write]);
    // What the lane that is turned away should have carried has failed by the time that it is gone.
    eventually("a part is applied", || payloads.load(Ordering::Relaxed) > 0).await;
    eventually("the other lane is gone", || {
        let links = engine.gauges().links;
        let tcp = links.iter().find(|(name, _)| *name == "tcp");
        tcp.is_some_and(|(_, link)| link.connections == 1)
    })
    .await;
    turned_away.store(true, Ordering::Release);
    terminal(&batch).await;
    let error = error(batch.outcome(0));
    assert!(matches!(error.reason, Reason::Unreachable(_)), "{error}");
    assert_eq!(error.applied, Applied::Unknown, "{error}");
    let progress = error.progress.unwrap();
    assert!(progress.bytes > 0 && progress.bytes < ALL, "{error}");
    let sent = payloads.load(Ordering::Relaxed) as u64;
    assert_eq!(sent * SLICE, progress.bytes, "each part once");
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of a user");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waker_that_panics_does_not_end_the_link() {
    let (owner, engine) = (engine().await, engine().await);
    let remote = buffer(&owner, 1 << 20, Permission::PeersReadWrite).await;
    let local = buffer(&engine, 1 << 20, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let read = || Request::read(local.all().unwrap(), &segment, place(&remote, 0));
    for _ in 0..3 {
        let batch = submit(&engine, vec![read()]);
        {
            let waker = Waker::from(Arc::new(Panics));
            let mut ends = std::pin::pin!(batch.terminal());
            let mut context = Context::from_waker(&waker);
            // Left registered, or ended already.
            let _polled = ends.as_mut().poll(&mut context);
        }
        eventually("it ends", || batch.is_terminal()).await;
        assert!(batch.outcome(0).unwrap().is_completed());
    }
    assert!(threads("tcp-link") >= 2, "both links' threads live");
    let after = once(&engine, read()).await;
    assert!(after.is_completed(), "{after:?}");
}
