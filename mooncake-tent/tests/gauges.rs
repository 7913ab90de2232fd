//! What an engine holds is counted, and returns to nothing whatever way the work ends.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    io::{Read, Write},
    net::TcpListener,
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    Batch, Buffer, Gauges, Permission, Request, Segment, TentEngine, TransferEngine,
    transport::{LinkGauges, Outcome},
};

const LEN: usize = 32 << 20;
const TASKS: u64 = 32;

/// What the engine holds besides registrations and connections, which last until they are closed.
fn work(engine: &TentEngine) -> Gauges {
    let mut gauges = engine.gauges();
    gauges.registrations = 0;
    for (_, link) in &mut gauges.links {
        link.connections = 0;
        link.peer_credit_bytes = 0;
        link.peer_credit_requests = 0;
    }
    gauges
}

fn nothing(engine: &TentEngine) -> Gauges {
    let mut nothing = Gauges::default();
    let links = engine.gauges().links;
    nothing.links = links
        .iter()
        .map(|(link, _)| (*link, LinkGauges::default()))
        .collect();
    nothing
}

async fn idle(engine: &TentEngine) {
    let nothing = nothing(engine);
    let start = Instant::now();
    while work(engine) != nothing {
        assert!(start.elapsed() < BUDGET, "{:?}", engine.gauges());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Closes what a test has opened; nothing at all is left.
async fn closed(engine: &TentEngine, local: Buffer) {
    idle(engine).await;
    engine.unregister_memory(local, BUDGET).await.unwrap();
    engine.shutdown(BUDGET).await.unwrap();
    assert_eq!(engine.gauges(), nothing(engine));
}

fn tcp(engine: &TentEngine) -> LinkGauges {
    let links = engine.gauges().links;
    links.iter().find(|(link, _)| *link == "tcp").unwrap().1
}

/// Moves all of `local`, in many tasks.
fn busy(engine: &TentEngine, segment: &Segment, local: &Buffer, to: u64, write: bool) -> Batch {
    let each = LEN as u64 / TASKS;
    let requests = (0..TASKS).map(|i| {
        let part = local.slice(i * each..(i + 1) * each).unwrap();
        let at = mooncake_tent::RemoteRange::Address(to + i * each);
        match write {
            true => Request::write(part, segment, at),
            false => Request::read(part, segment, at),
        }
    });
    submit(engine, requests.collect())
}

async fn underway(batch: &Batch) {
    eventually("the first ends", || {
        (0..TASKS as usize).any(|i| batch.outcome(i).is_some())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_13_a_target_that_died_in_mid_read_leaves_nothing() {
    let (owner, engine) = (engine().await, engine().await);
    let remote = buffer(&owner, LEN, Permission::PeersRead).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let batch = busy(&engine, &segment, &local, remote.memory().address(), false);
    underway(&batch).await;
    drop((owner, remote));
    terminal(&batch).await;
    assert_eq!(engine.gauges().open_batches, 1);
    drop(batch);
    closed(&engine, local).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_13_writes_to_a_target_that_died_are_quarantined_until_another_has_its_place() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    let owner = engine_at(place).await;
    let engine = engine_with(one_lane()).await;
    let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    let held = books(&local);
    let segment = open(&engine, &owner).await;
    let incarnation = owner.incarnation();
    let dies = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.read_exact(&mut [0; 48]).unwrap();
        socket.write_all(&hello_answer(0, incarnation)).unwrap();
        // With a part of the first write in its hands.
        socket.read_exact(&mut [0; 100_000]).unwrap();
    });
    let batch = busy(&engine, &segment, &local, remote.memory().address(), true);
    assert_eq!(engine.gauges().tasks_in_flight, TASKS);
    assert_eq!(engine.gauges().bytes_in_flight, LEN as u64);
    dies.join().unwrap();
    terminal(&batch).await;
    let gauges = engine.gauges();
    assert_eq!((gauges.tasks_in_flight, gauges.bytes_in_flight), (0, 0));
    assert!(gauges.quarantined_bytes > 0, "{gauges:?}");
    // Nothing of that changes when the caller loses interest.
    drop((batch, local));
    let kept = engine.gauges();
    assert_eq!((kept.open_batches, kept.registrations), (0, 0));
    assert_eq!(kept.quarantined_bytes, gauges.quarantined_bytes);
    // Their own memory is free: nothing is read from it since the socket is shut.
    assert_eq!(
        (kept.leases, held.leases(), kept.withdrawn_bytes),
        (0, 0, 0)
    );

    let mut config = one_lane();
    config.listen = Some(place);
    let _another = engine_with(config).await;
    idle(&engine).await;
    engine.shutdown(BUDGET).await.unwrap();
    assert_eq!(engine.gauges(), nothing(&engine));
}

#[tokio::test(flavor = "multi_thread")]
async fn law_13_a_dropped_batch_leaves_nothing() {
    let (owner, engine) = (engine().await, engine().await);
    let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    for write in [true, false, true, false] {
        let at = remote.memory().address();
        let batch = busy(&engine, &segment, &local, at, write);
        assert_eq!(engine.gauges().open_batches, 1);
        drop(batch);
        assert_eq!(engine.gauges().open_batches, 0);
    }
    idle(&engine).await;
    assert!(tcp(&engine).connections > 0);
    closed(&engine, local).await;
    // What the other side held for us is gone with our connections.
    eventually("the owner is alone", || {
        tcp(&owner) == LinkGauges::default()
    })
    .await;
    closed(&owner, remote).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_13_requests_that_are_late_or_refused_leave_nothing() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(mute.local_addr().unwrap()).await;
    let engine = engine_with(one_lane()).await;
    let remote = buffer(&owner, LEN, Permission::PeersRead).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    fake_target(mute, owner.incarnation(), |_, socket| swallow(socket));
    let late = Request::read(local.all().unwrap(), &segment, address(&remote, 0));
    let late = late.deadline(Instant::now() + Duration::from_millis(30));
    let batch = submit(&engine, vec![late]);
    assert!(engine.gauges().leases > 0);
    terminal(&batch).await;
    assert!(matches!(batch.outcome(0), Some(Outcome::TimedOut(_))));
    drop(batch);
    let refused = Request::write(local.all().unwrap(), &segment, address(&remote, LEN as u64));
    assert!(!once(&engine, refused).await.is_completed());
    closed(&engine, local).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_13_a_peer_that_vanishes_in_the_middle_of_its_write_leaves_nothing() {
    let (owner, opener) = (engine().await, engine().await);
    let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
    let segment = open(&opener, &owner).await;
    let mut lane = raw_lane(&owner, &segment, 1);
    assert_eq!(tcp(&owner).connections, 1);
    lane.write_all(&request(2, 0, &remote, 0, 1000)).unwrap();
    lane.write_all(&[1; 400]).unwrap();
    let underway = || tcp(&owner).peer_bytes_in_flight == 1000 && owner.gauges().leases == 1;
    eventually("the owner waits for the rest", underway).await;
    drop(lane);
    eventually("the lane is gone", || tcp(&owner) == LinkGauges::default()).await;
    closed(&owner, remote).await;
}
