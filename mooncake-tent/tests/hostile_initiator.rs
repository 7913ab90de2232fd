//! Whatever arrives at the data listener, only its own connection ends.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::io::{Read, Write};

use common::*;
use mooncake_tent::{Buffer, Permission, Request, Segment, TentEngine, TransferEngine};

struct Stage {
    owner: TentEngine,
    engine: TentEngine,
    segment: Segment,
    remote: Buffer,
    private: Buffer,
    local: Buffer,
}

impl Stage {
    async fn set() -> Self {
        let (owner, engine) = (engine().await, engine().await);
        let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
        let private = buffer(&owner, 4096, Permission::Local).await;
        remote.memory().write_at(0, &pattern(1, 4096));
        private.memory().write_at(0, &pattern(2, 4096));
        let local = buffer(&engine, 4096, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        Self {
            owner,
            engine,
            segment,
            remote,
            private,
            local,
        }
    }

    /// Other lanes live on and no byte has changed.
    async fn is_unharmed(&self, what: &str) {
        let local = self.local.all().unwrap();
        let read = Request::read(local, &self.segment, address(&self.remote, 0));
        assert!(once(&self.engine, read).await.is_completed(), "{what}");
        assert_same(&bytes(&self.local, 0, 4096), &pattern(1, 4096), what);
        assert_same(&bytes(&self.private, 0, 4096), &pattern(2, 4096), what);
        let books = books(&self.remote);
        eventually("leases return", || books.leases() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_04_nonsense_instead_of_a_hello_ends_the_connection() {
    let stage = Stage::set().await;
    let target = stage.owner.incarnation();
    let other = stage.engine.incarnation();
    let mut with_flags = hello(VERSION, 7, target, 1);
    with_flags[6] = 2;
    let mut nobody = hello(VERSION, 0, target, 1);
    nobody[8..16].fill(0);
    let cases = [
        ("garbage", vec![0x5a; 48]),
        ("zeros", vec![0; 48]),
        (
            "a request for a web page",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n                ".to_vec(),
        ),
        ("version 0", hello(0, 7, target, 1)),
        ("version 1", hello(1, 7, target, 1)),
        ("version 2", hello(2, 7, target, 1)),
        ("unknown flags", with_flags),
        ("incarnation 0", nobody),
    ];
    for (what, bytes) in cases {
        let mut socket = raw_socket(&stage.segment);
        socket.write_all(&bytes).unwrap();
        let mut rest = Vec::new();
        // The end of the connection, in order or not, without a word.
        let _reset = socket.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{what}");
        stage.is_unharmed(what).await;
    }
    // Half a hello.
    let mut socket = raw_socket(&stage.segment);
    socket
        .write_all(&hello(VERSION, 7, target, 1)[..20])
        .unwrap();
    drop(socket);
    stage.is_unharmed("half a hello").await;

    let mut socket = raw_socket(&stage.segment);
    socket.write_all(&hello(VERSION, 7, other, 1)).unwrap();
    let mut turned_away = Vec::new();
    socket.read_to_end(&mut turned_away).unwrap();
    assert_eq!(turned_away, hello_answer(1, target));
    stage.is_unharmed("a hello for another").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_04_nonsense_instead_of_a_request_ends_its_lane_only() {
    let stage = Stage::set().await;
    let remote = &stage.remote;
    let mut with_flags = request(1, 0, remote, 0, 8);
    with_flags[1] = 1;
    let mut with_reserved = request(1, 0, remote, 0, 8);
    with_reserved[3] = 1;
    let cases = [
        ("verb 0", request(0, 0, remote, 0, 8)),
        (
            "credit back, with a registration",
            request(4, 0, remote, 0, 8),
        ),
        ("verb 5", request(5, 0, remote, 0, 8)),
        ("verb 255", request(255, 0, remote, 0, 8)),
        ("a huge read", request(1, 0, remote, 0, u64::MAX)),
        ("a huge write", request(2, 0, remote, 0, (1 << 40) + 1)),
        ("a huge fence", request(3, 0, remote, 0, u64::MAX)),
        ("flags", with_flags),
        ("a reserved field", with_reserved),
    ];
    for (lane, (what, bytes)) in cases.into_iter().enumerate() {
        let mut socket = raw_lane(&stage.owner, &stage.segment, lane as u64);
        socket.write_all(&bytes).unwrap();
        let mut rest = Vec::new();
        let _reset = socket.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{what}");
        stage.is_unharmed(what).await;
    }
    // Stops in the middle of a write that was let in.
    let mut socket = raw_lane(&stage.owner, &stage.segment, 100);
    socket.write_all(&request(2, 0, remote, 0, 4096)).unwrap();
    socket.write_all(&pattern(1, 1000)).unwrap();
    drop(socket);
    stage.is_unharmed("half a write").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_is_passed_over_whole() {
    const PAYLOAD: usize = 10 << 20;
    let stage = Stage::set().await;
    let mut socket = raw_lane(&stage.owner, &stage.segment, 1);
    let length = PAYLOAD as u64;
    for (tag, offset) in [(0, 0), (1, u64::MAX - 5)] {
        let refused = request(2, tag, &stage.private, offset, length);
        socket.write_all(&refused).unwrap();
        // Were any of it taken for requests, the lane would end.
        socket.write_all(&vec![0xff; PAYLOAD]).unwrap();
        let mut status = [0; ANSWER];
        socket.read_exact(&mut status).unwrap();
        // Out of bounds before permission where the end cannot even be counted.
        assert_eq!(said(&status), said(&answer(2 - tag as u8, 2, tag, 0)));
    }
    let read = request(1, 2, &stage.remote, 0, 4096);
    socket.write_all(&read).unwrap();
    let mut found = vec![0; ANSWER + 4096];
    socket.read_exact(&mut found).unwrap();
    assert_same(&found[ANSWER..], &pattern(1, 4096), "the lane goes on");
    stage.is_unharmed("10 MiB into nothing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_whatever_its_tag() {
    let stage = Stage::set().await;
    let mut socket = raw_lane(&stage.owner, &stage.segment, 1);
    for tag in [7, u64::MAX, 0] {
        let read = request(1, tag, &stage.remote, 0, 8);
        socket.write_all(&read).unwrap();
        let mut found = vec![0; ANSWER + 8];
        socket.read_exact(&mut found).unwrap();
        assert_eq!(said(&found), said(&answer(0, 1, tag, 8)));
        assert_same(&found[ANSWER..], &pattern(1, 8), "the payload");
    }
    stage.is_unharmed("tags").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_is_known_by_one_name_and_a_fenced_one_never_comes_back() {
    let stage = Stage::set().await;
    let first = raw_lane(&stage.owner, &stage.segment, 1);
    let say_hello = |lane| {
        let mut socket = raw_socket(&stage.segment);
        let hello = hello(VERSION, 0xabcd, stage.owner.incarnation(), lane);
        socket.write_all(&hello).unwrap();
        let mut welcome = [0; 48];
        socket.read_exact(&mut welcome).unwrap();
        (welcome[6], socket)
    };
    assert_eq!(say_hello(1).0, 2, "the name is taken");
    let (status, mut errand) = say_hello(2);
    assert_eq!(status, 0);
    // Lane 1 by name, and one that never was.
    for (tag, lane) in [(0_u64, 1_u64), (1, 77)] {
        errand.write_all(&fence(tag, lane)).unwrap();
        let mut confirmed = [0; ANSWER];
        errand.read_exact(&mut confirmed).unwrap();
        assert_eq!(said(&confirmed), said(&answer(0, 3, tag, 0)));
    }
    let mut first = first;
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "its connection has ended");
    assert_eq!(say_hello(1).0, 2);
    assert_eq!(say_hello(77).0, 2);
    stage.is_unharmed("fences").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_11_a_peer_gets_so_many_lanes_and_no_more() {
    let stage = Stage::set().await;
    let lanes: Vec<_> = (0..16)
        .map(|lane| raw_lane(&stage.owner, &stage.segment, lane))
        .collect();
    let mut socket = raw_socket(&stage.segment);
    let hello = hello(VERSION, 0xabcd, stage.owner.incarnation(), 16);
    socket.write_all(&hello).unwrap();
    let mut welcome = [0; 48];
    socket.read_exact(&mut welcome).unwrap();
    assert_eq!(welcome[6], 2);
    stage.is_unharmed("many lanes").await;
    drop(lanes);
}
