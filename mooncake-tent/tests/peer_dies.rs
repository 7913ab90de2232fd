//! The peer goes away in the middle of transfers.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    Applied, Permission, Reason, Request, Retry, TcpConfig, TransferEngine, transport::Outcome,
};

const LEN: usize = 64 << 20;
/// Long enough to begin, short enough to wait for.
const DEADLINE: Duration = Duration::from_secs(2);

async fn dies(write: bool, gracefully: bool) {
    let (owner, engine) = (engine().await, engine().await);
    let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let deadline = Instant::now() + DEADLINE;
    let requests = (0..32)
        .map(|i| {
            let each = LEN as u64 / 32;
            let part = local.slice(i * each..(i + 1) * each).unwrap();
            let request = match write {
                true => Request::write(part, &segment, address(&remote, i * each)),
                false => Request::read(part, &segment, address(&remote, i * each)),
            };
            request.deadline(deadline)
        })
        .collect();
    let batch = submit(&engine, requests);
    eventually("the first ends", || {
        (0..32).any(|i| batch.outcome(i).is_some())
    })
    .await;
    match gracefully {
        true => owner.shutdown(BUDGET).await.unwrap(),
        false => drop(owner),
    }
    terminal(&batch).await;
    let mut failed = 0;
    for i in 0..32 {
        let Outcome::Failed(error) = batch.outcome(i).unwrap() else {
            continue;
        };
        failed += 1;
        assert!(!matches!(error.reason, Reason::Protocol(_)), "{error}");
        if matches!(error.reason, Reason::Broken(_)) {
            assert_eq!(error.retry, Retry::Here, "{error}");
        }
        if error.applied == Applied::Nothing || !write {
            assert!(error.quiescent && batch.is_task_quiescent(i), "{error}");
        }
    }
    assert!(
        write || batch.is_quiescent(),
        "a read is quiet when it ends"
    );
    println!("{failed} of 32 failed");
    // Nothing is read from the memory any more, whether or not the bytes may still land.
    engine.unregister_memory(local, BUDGET).await.unwrap();
    // Nobody is left to confirm a fence: once the deadlines are over, that is proof enough.
    quiescent(&batch).await;
    drop(batch);
    assert_eq!(engine.tasks_in_use(), 0);
    engine.fence(&segment, BUDGET).await.unwrap();
    engine.shutdown(BUDGET).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_end_when_their_peer_shuts_down() {
    dies(false, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_end_when_their_peer_is_dropped() {
    dies(false, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_end_when_their_peer_shuts_down() {
    dies(true, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_end_when_their_peer_is_dropped() {
    dies(true, false).await;
}

/// A target that takes everything and answers nothing, until it is told to close its lanes.
#[tokio::test(flavor = "multi_thread")]
async fn law_03_a_write_is_loud_until_its_lane_is_fenced() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let engine = engine_with(one_lane()).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let held = books(&local);
    let segment = open(&engine, &owner).await;
    let may_fence = Arc::new(std::sync::Barrier::new(2));
    let fences = Arc::clone(&may_fence);
    fake_target(listener, owner.incarnation(), move |number, socket| {
        use std::io::{Read, Write};
        let mut socket = socket;
        let mut request = [0; 48];
        socket.read_exact(&mut request).unwrap();
        if number == 0 {
            // Dies with a write in its hands.
            assert_eq!(request[0], 2);
            let mut payload = [0; 100];
            socket.read_exact(&mut payload).unwrap();
            return;
        }
        assert_eq!(request[0], 3, "a fence");
        fences.wait();
        socket.write_all(&answer(0, 3, 0, 0)).unwrap();
    });
    let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&engine, vec![write]);
    terminal(&batch).await;
    let error = error(batch.outcome(0));
    assert!(matches!(error.reason, Reason::Broken(_)), "{error}");
    assert_eq!(
        (error.retry, error.applied, error.quiescent),
        (Retry::Here, Applied::Unknown, false)
    );
    assert!(!batch.is_quiescent() && !batch.is_task_quiescent(0));
    let fence = engine.fence(&segment, Duration::from_millis(50)).await;
    assert!(fence.is_err(), "nothing is proven yet");
    assert_eq!(held.leases(), 0, "nothing is read from it any more");
    may_fence.wait();
    engine.fence(&segment, BUDGET).await.unwrap();
    assert!(batch.is_quiescent());
    engine.unregister_memory(local, BUDGET).await.unwrap();
    assert_eq!(held.leases(), 0);
}

/// A process that is gone, with many lanes that died in the middle of writes.
#[tokio::test(flavor = "multi_thread")]
async fn law_13_a_dead_peer_costs_one_thread_and_that_only_until_the_deadlines_are_over() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let remote = buffer(&owner, 256 << 10, Permission::PeersReadWrite).await;
    let mut config = TcpConfig::default();
    config.lanes_per_peer = 8;
    // Nobody else in this process has such short ones.
    config.connect_timeout = Duration::from_millis(300);
    let engine = engine_with(config).await;
    let local = buffer(&engine, 256 << 10, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let dials = Arc::new(AtomicUsize::new(0));
    let dialled = Arc::clone(&dials);
    let all_there = std::sync::Barrier::new(8);
    fake_target(listener, owner.incarnation(), move |number, mut socket| {
        use std::io::Read;
        dialled.fetch_add(1, Ordering::Relaxed);
        if number < 8 {
            all_there.wait();
            // Dies with a write in its hands.
            let _request = socket.read_exact(&mut [0; 48]);
        }
    });
    engine.warm_up(&segment, BUDGET).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(2);
    let write = |_| {
        let all = local.slice(0..256 << 10).unwrap();
        Request::write(all, &segment, address(&remote, 0)).deadline(deadline)
    };
    let writes = (0..8).map(write).collect();
    let batch = submit(&engine, writes);
    terminal(&batch).await;
    let loud = (0..8).filter(|i| !batch.is_task_quiescent(*i)).count();
    assert!(loud > 1, "several lanes died in the middle: {loud}");
    quiescent(&batch).await;
    assert!(Instant::now() >= deadline, "there was no other proof");
    drop(batch);
    assert_eq!(engine.tasks_in_use(), 0);
    // A thread for each lane, trying every 10 ms and then less often, would come to far more.
    let dials = dials.load(Ordering::Relaxed);
    assert!(dials <= 8 + 12, "{dials} connections");
    engine.unregister_memory(local, BUDGET).await.unwrap();
    engine.shutdown(BUDGET).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_ends_what_is_under_way_and_the_next_transfer_works() {
    let (owner, engine) = (engine().await, engine().await);
    let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    for _ in 0..5 {
        let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
        let batch = submit(&engine, vec![write]);
        // At once: some lanes are still connecting.
        engine.fence(&segment, BUDGET).await.unwrap();
        assert!(batch.is_quiescent(), "{:?}", batch.outcome(0));
        terminal(&batch).await;
        let read = Request::read(local.slice(0..100).unwrap(), &segment, address(&remote, 0));
        assert!(once(&engine, read).await.is_completed());
    }
    assert_eq!(engine.tasks_in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_nobody_runs_any_more_is_unreachable() {
    let (owner, engine) = (engine().await, engine().await);
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let at = address(&remote, 0);
    owner.shutdown(BUDGET).await.unwrap();
    drop(owner);
    let start = Instant::now();
    let requests = (0..50)
        .map(|_| Request::write(local.all().unwrap(), &segment, at))
        .collect();
    let batch = submit(&engine, requests);
    terminal(&batch).await;
    for i in 0..50 {
        let error = error(batch.outcome(i));
        assert!(matches!(error.reason, Reason::Unreachable(_)), "{error}");
        assert_eq!((error.applied, error.quiescent), (Applied::Nothing, true));
    }
    assert!(batch.is_quiescent());
    assert!(start.elapsed() < Duration::from_secs(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_ends_lanes_that_are_still_connecting() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(mute.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let mut config = one_lane();
    config.connect_timeout = 2 * BUDGET;
    let engine = engine_with(config).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&engine, vec![write]);
    engine.fence(&segment, BUDGET).await.unwrap();
    terminal(&batch).await;
    let error = error(batch.outcome(0));
    assert_eq!((error.applied, error.quiescent), (Applied::Nothing, true));
    // Accepting now would bring nothing back.
    fake_target(mute, owner.incarnation(), |_, mut socket| {
        use std::io::Read;
        assert_eq!(
            socket.read(&mut [0]).unwrap_or(0),
            0,
            "a request after the fence"
        );
    });
    assert!(batch.is_quiescent());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_right_after_a_read_broke_off_finds_nothing_that_could_land() {
    use std::io::Read;
    for _ in 0..200 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let owner = engine_at(listener.local_addr().unwrap()).await;
        let remote = buffer(&owner, 4096, Permission::PeersRead).await;
        fake_target(listener, owner.incarnation(), |_, mut socket| {
            let _closes_after = socket.read(&mut [0; 48]);
        });
        let engine = engine_with(one_lane()).await;
        let local = buffer(&engine, 4096, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        let read = Request::read(local.all().unwrap(), &segment, address(&remote, 0));
        assert!(!once(&engine, read).await.is_completed());
        engine.shutdown(BUDGET).await.unwrap();
    }
}
