//! A target that does not keep to the protocol loses its lane, and nothing else happens.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    io::{Read, Write},
    net::TcpListener,
};

use common::*;
use mooncake_tent::{Permission, Reason, Request, Retry, TransferEngine};

/// What the target sends for a request with this verb and tag.
type Lie = fn(u8, u64) -> Vec<u8>;

#[tokio::test(flavor = "multi_thread")]
async fn law_04_each_lie_ends_its_lane() {
    let honest = engine().await;
    let truth = buffer(&honest, 4096, Permission::PeersRead).await;
    let lies: [(&str, Lie); 10] = [
        ("a wrong tag", |verb, tag| answer(0, verb, tag + 1, 0)),
        ("a wrong verb", |verb, tag| answer(0, 3 - verb, tag, 0)),
        ("an unknown verb", |_, tag| answer(0, 9, tag, 0)),
        ("an unknown status", |verb, tag| answer(9, verb, tag, 0)),
        ("a wrong status", |verb, tag| answer(5, verb, tag, 0)),
        ("too long", |verb, tag| answer(0, verb, tag, 4097)),
        ("far too long", |verb, tag| answer(0, verb, tag, u64::MAX)),
        ("too short", |verb, tag| {
            answer(0, verb, tag, if verb == 1 { 4095 } else { 1 })
        }),
        ("a refusal with payload", |verb, tag| {
            answer(1, verb, tag, 8)
        }),
        ("garbage", |_, _| vec![0xff; 4096]),
    ];
    for (what, lie) in lies {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let owner = engine_at(listener.local_addr().unwrap()).await;
        let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
        fake_target(listener, owner.incarnation(), move |_, mut socket| {
            let mut request = [0; 48];
            if socket.read_exact(&mut request).is_err() {
                return;
            }
            let tag = u64::from_le_bytes(request[8..16].try_into().unwrap());
            if request[0] == 3 {
                let _sent = socket.write_all(&answer(0, 3, tag, 0));
            } else {
                let _sent = socket.write_all(&lie(request[0], tag));
            }
            swallow(socket);
        });
        let engine = engine_with(one_lane()).await;
        let local = buffer(&engine, 4096, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        for write in [false, true] {
            for blocking in [false, true] {
                let all = local.all().unwrap();
                let request = match write {
                    true => Request::write(all, &segment, address(&remote, 0)),
                    false => Request::read(all, &segment, address(&remote, 0)),
                };
                let batch = submit(&engine, vec![request]);
                match blocking {
                    true => assert!(batch.wait(BUDGET), "{what}"),
                    false => terminal(&batch).await,
                }
                let error = error(batch.outcome(0));
                assert!(
                    matches!(error.reason, Reason::Protocol(_)),
                    "{what}: {error}"
                );
                assert_eq!(error.retry, Retry::Elsewhere, "{what}");
                quiescent(&batch).await;
            }
        }
        assert_eq!(bytes(&local, 0, 4096), vec![0; 4096], "{what}");
        assert_eq!(engine.tasks_in_use(), 0, "{what}");
        // The engine's other peers do not notice.
        let segment = open(&engine, &honest).await;
        let read = Request::read(local.all().unwrap(), &segment, address(&truth, 0));
        assert!(once(&engine, read).await.is_completed(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_asked_for_ends_its_lane_before_it_can_answer_anything() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    fake_target(listener, owner.incarnation(), |_, mut socket| {
        let _sent = socket.write_all(&answer(0, 2, 5, 0));
        swallow(socket);
    });
    let engine = engine_with(one_lane()).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let read = Request::read(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&engine, vec![read]);
    terminal(&batch).await;
    let error = error(batch.outcome(0));
    assert!(matches!(error.reason, Reason::Protocol(_)), "{error}");
}

/// Of two writes the window lets one be sent; both are answered.
#[tokio::test(flavor = "multi_thread")]
async fn law_01_an_answer_to_what_was_not_sent_ends_its_lane_and_completes_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    fake_target(listener, owner.incarnation(), move |_, mut socket| {
        let mut request = [0; 48 + 4096];
        if socket.read_exact(&mut request).is_ok() {
            let tag = u64::from_le_bytes(request[8..16].try_into().unwrap());
            let both = [answer(0, 2, tag, 0), answer(0, 2, tag + 1, 0)].concat();
            let _sent = socket.write_all(&both);
        }
        swallow(socket);
    });
    let mut config = one_lane();
    config.window = 1;
    let engine = engine_with(config).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let write = || Request::write(local.all().unwrap(), &segment, place(&remote, 0));
    let batch = submit(&engine, vec![write(), write()]);
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_completed());
    let error = error(batch.outcome(1));
    assert!(matches!(error.reason, Reason::Protocol(_)), "{error}");
    // It was never sent, so there is nothing to fence.
    assert!(error.quiescent, "{error}");
}

/// What it says instead of a hello that accepts.
type Hello = fn(mooncake_tent::Incarnation) -> Vec<u8>;

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_says_an_odd_hello_is_left_alone() {
    let hellos: [(&str, Hello); 4] = [
        ("garbage", |_| vec![0x77; 48]),
        ("an unknown status", |id| hello_answer(7, id)),
        ("a full house", |id| hello_answer(2, id)),
        ("the end", |_| Vec::new()),
    ];
    for (what, says) in hellos {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let owner = engine_at(listener.local_addr().unwrap()).await;
        let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
        let answer = says(owner.incarnation());
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                let _hello = socket.read_exact(&mut [0; 48]);
                let _sent = socket.write_all(&answer);
            }
        });
        let engine = engine().await;
        let local = buffer(&engine, 4096, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
        let batch = submit(&engine, vec![write]);
        terminal(&batch).await;
        let error = error(batch.outcome(0));
        assert!(error.quiescent && batch.is_quiescent(), "{what}: {error}");
        assert_eq!(error.retry, Retry::Elsewhere, "{what}: {error}");
    }
}
