//! Peers that are slow, mute or many hold no seat for long, and lock nobody out.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    Buffer, Permission, Request, Segment, TcpConfig, TcpTransport, TentEngine, TransferEngine,
};

fn impatient() -> TcpConfig {
    let mut config = TcpConfig::default();
    config.message_timeout = Duration::from_millis(300);
    config
}

struct Stage {
    owner: TentEngine,
    remote: Buffer,
    segment: Segment,
    _opener: TentEngine,
}

async fn stage(config: TcpConfig) -> Stage {
    let (owner, opener) = (engine_with(config).await, engine().await);
    let remote = buffer(&owner, 8 << 20, Permission::PeersReadWrite).await;
    let segment = open(&opener, &owner).await;
    Stage {
        owner,
        remote,
        segment,
        _opener: opener,
    }
}

/// The other side ends the connection, though nobody here ever does.
fn is_closed(mut socket: TcpStream) {
    let start = Instant::now();
    let mut sink = [0; 4096];
    // An error that is no time-out is a reset.
    while socket.read(&mut sink).is_ok_and(|read| read > 0) {}
    assert!(start.elapsed() < BUDGET, "a slow peer keeps its seat");
}

/// Says `first`, then `drop` again and again, for as long as it is let.
fn drips(mut socket: TcpStream, first: &[u8], drip: &[u8]) {
    socket.write_all(first).unwrap();
    let other = socket.try_clone().unwrap();
    let drip = drip.to_vec();
    let dripping = thread::spawn(move || {
        let start = Instant::now();
        for byte in drip {
            if (&other).write_all(&[byte]).is_err() || start.elapsed() > BUDGET {
                break;
            }
            thread::sleep(Duration::from_millis(30));
        }
    });
    is_closed(socket.try_clone().unwrap());
    let _gone = socket.shutdown(Shutdown::Both);
    dripping.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn law_09_a_message_is_whole_in_time_or_its_seat_returns() {
    let stage = Arc::new(stage(impatient()).await);
    let idle = raw_lane(&stage.owner, &stage.segment, 1);
    let slow = Arc::clone(&stage);
    let played = tokio::task::spawn_blocking(move || {
        let Stage {
            owner,
            remote,
            segment,
            ..
        } = &*slow;
        let hello = hello(VERSION, 7, owner.incarnation(), 2);
        let lane = |number| raw_lane(owner, segment, number);
        let write = request(2, 0, remote, 0, 4 << 20);
        let read = request(1, 0, remote, 0, 8 << 20);
        is_closed(raw_socket(segment));
        drips(raw_socket(segment), &[], &hello);
        drips(lane(3), &write[..47], &[]);
        drips(lane(4), &[], &write);
        drips(lane(5), &write, &[]);
        drips(lane(6), &write, &[1; 1_000]);
        let half: Vec<_> = write.iter().copied().chain(pattern(1, 1 << 20)).collect();
        drips(lane(7), &half, &[]);
        // Refused, but its payload has to come all the same.
        drips(lane(8), &request(2, 0, remote, u64::MAX - 9, 4 << 20), &[1]);
        // Takes nothing of what it asked for.
        let mut deaf = lane(9);
        deaf.write_all(&read).unwrap();
        let books = books(remote);
        let start = Instant::now();
        while books.leases() > 0 {
            assert!(start.elapsed() < BUDGET, "who does not read keeps memory");
            thread::sleep(Duration::from_millis(5));
        }
    });
    played.await.unwrap();
    // One that is idle between messages is left in peace.
    let mut idle = idle;
    idle.write_all(&request(1, 0, &stage.remote, 0, 8)).unwrap();
    idle.read_exact(&mut [0; ANSWER + 8]).unwrap();
    drop(idle);
    let stage = Arc::into_inner(stage).unwrap();
    let remote = stage.owner.unregister_memory(stage.remote, BUDGET).await;
    remote.unwrap();
    stage.owner.shutdown(BUDGET).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mute_strangers_keep_no_honest_peer_out() {
    let mut config = TcpConfig::default();
    config.lanes_accepted = 4;
    let stage = stage(config).await;
    let strangers: Vec<_> = (0..300).map(|_| raw_socket(&stage.segment)).collect();
    let engine = engine().await;
    let local = buffer(&engine, 64, Permission::Local).await;
    let segment = open(&engine, &stage.owner).await;
    let read = Request::read(local.all().unwrap(), &segment, place(&stage.remote, 0));
    assert!(once(&engine, read).await.is_completed());
    drop(strangers);
}

#[tokio::test(flavor = "multi_thread")]
async fn law_11_more_peers_than_seats_all_get_their_turn() {
    let mut config = TcpConfig::default();
    config.lanes_accepted = 3;
    let stage = Arc::new(stage(config).await);
    let mut peers = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let stage = Arc::clone(&stage);
        peers.spawn(async move {
            let engine = engine_with(one_lane()).await;
            let local = buffer(&engine, 64, Permission::Local).await;
            let segment = open(&engine, &stage.owner).await;
            let read = Request::read(local.all().unwrap(), &segment, place(&stage.remote, 0));
            let outcome = once(&engine, read.deadline(Instant::now() + BUDGET)).await;
            assert!(outcome.is_completed(), "{outcome:?}");
            engine.shutdown(BUDGET).await.unwrap();
        });
    }
    while let Some(ended) = peers.join_next().await {
        ended.unwrap();
    }
    // A hello says so, too.
    let seats: Vec<_> = (0..3)
        .map(|lane| raw_lane(&stage.owner, &stage.segment, lane))
        .collect();
    let mut socket = raw_socket(&stage.segment);
    let target = stage.owner.incarnation();
    socket
        .write_all(&hello(VERSION, 0xbeef, target, 1))
        .unwrap();
    let mut welcome = [0; 48];
    socket.read_exact(&mut welcome).unwrap();
    assert_eq!(welcome[6], 3, "busy");
    drop(seats);
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_initiators_at_once_all_end_connected() {
    let stage = Arc::new(stage(TcpConfig::default()).await);
    let mut peers = tokio::task::JoinSet::new();
    for _ in 0..240 {
        let stage = Arc::clone(&stage);
        peers.spawn(async move {
            let mut config = one_lane();
            config.listen = None;
            let builder = TentEngine::builder().without_control();
            let link = TcpTransport::new(config);
            let engine = builder.transport(link).build().await.unwrap();
            let local = buffer(&engine, 64, Permission::Local).await;
            let read = Request::read(
                local.all().unwrap(),
                &stage.segment,
                place(&stage.remote, 0),
            );
            let outcome = once(&engine, read).await;
            assert!(outcome.is_completed(), "{outcome:?}");
            engine
        });
    }
    let mut connected = Vec::new();
    while let Some(engine) = peers.join_next().await {
        connected.push(engine.unwrap());
    }
    assert_eq!(connected.len(), 240);
    tokio::task::spawn_blocking(move || drop(connected))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_a_peer_with_all_its_lanes_taken_can_still_fence_them() {
    let stage = stage(TcpConfig::default()).await;
    let target = stage.owner.incarnation();
    let mut lanes: Vec<_> = (0..16)
        .map(|lane| raw_lane(&stage.owner, &stage.segment, lane))
        .collect();
    let say_hello = |hello: Vec<u8>| {
        let mut socket = raw_socket(&stage.segment);
        socket.write_all(&hello).unwrap();
        let mut welcome = [0; 48];
        socket.read_exact(&mut welcome).unwrap();
        (welcome[6], socket)
    };
    assert_eq!(
        say_hello(hello(VERSION, 0xabcd, target, 100)).0,
        2,
        "all taken"
    );
    let (status, first) = say_hello(errand(0xabcd, target, 101));
    assert_eq!(status, 0);
    let (status, mut second) = say_hello(errand(0xabcd, target, 102));
    assert_eq!(status, 0);
    is_closed(first);
    for (tag, lane) in lanes.iter_mut().enumerate() {
        second.write_all(&fence(tag as u64, tag as u64)).unwrap();
        let mut confirmed = [0; ANSWER];
        second.read_exact(&mut confirmed).unwrap();
        assert_eq!(said(&confirmed), said(&answer(0, 3, tag as u64, 0)));
        assert_eq!(lane.read(&mut [0]).unwrap_or(0), 0, "its lane has ended");
    }
    assert_eq!(say_hello(hello(VERSION, 0xabcd, target, 103)).0, 0);
    // It carries nothing else.
    second
        .write_all(&request(1, 99, &stage.remote, 0, 8))
        .unwrap();
    is_closed(second);
}
