//! Targets that are silent at different moments: a task with a deadline ends at it.
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
    Buffer, Permission, Request, TcpConfig, TcpTransport, TentEngine, TransferEngine,
    transport::Outcome,
};

const DEADLINE: Duration = Duration::from_millis(150);
/// How long noticing may take.
const SLACK: Duration = Duration::from_millis(200);

fn is_late(outcome: Option<Outcome>) -> bool {
    outcome.is_some_and(|outcome| outcome.is_timed_out())
}

/// Where a target falls silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silent {
    BeforeHello,
    AfterHello,
    WithinPayload,
    Trickling,
}

async fn ends_at_its_deadline(silent: Silent) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    if silent == Silent::BeforeHello {
        std::thread::spawn(move || {
            let _held: Vec<_> = listener.incoming().collect();
        });
    } else {
        fake_target(listener, owner.incarnation(), move |_, mut socket| {
            let mut request = [0; 48];
            if silent == Silent::AfterHello || socket.read_exact(&mut request).is_err() {
                return swallow(socket);
            }
            let tag = u64::from_le_bytes(request[8..16].try_into().unwrap());
            if request[0] == 1 {
                let _sent = socket.write_all(&answer(0, 1, tag, 4096));
                let _sent = socket.write_all(&[1; 1000]);
            }
            let trickles = silent == Silent::Trickling && request[0] == 1;
            while trickles && socket.write_all(&[1]).is_ok() {
                std::thread::sleep(Duration::from_millis(3));
            }
            swallow(socket);
        });
    }
    for (blocking, write) in [(false, true), (false, false), (true, true), (true, false)] {
        // On a crowded machine we may be the ones who are late.
        let mut tries = 0..10;
        while !in_time(silent, &owner, &remote, blocking, write).await {
            assert!(tries.next().is_some(), "{silent:?}: late each time");
        }
    }
}

/// `false`: it ended as it should, but late.
async fn in_time(
    silent: Silent,
    owner: &TentEngine,
    remote: &Buffer,
    blocking: bool,
    write: bool,
) -> bool {
    let mut config = one_lane();
    config.connect_timeout = BUDGET;
    let engine = engine_with(config).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, owner).await;
    let start = Instant::now();
    let all = local.all().unwrap();
    let request = match write {
        true => Request::write(all, &segment, address(remote, 0)),
        false => Request::read(all, &segment, address(remote, 0)),
    };
    let batch = submit(&engine, vec![request.deadline(start + DEADLINE)]);
    match blocking {
        true => assert!(batch.wait(BUDGET)),
        false => terminal(&batch).await,
    }
    let took = start.elapsed();
    let what = format!("{silent:?}, blocking: {blocking}, write: {write}: {took:?}");
    assert!(is_late(batch.outcome(0)), "{what}");
    assert!(took >= DEADLINE, "{what}");
    if !write {
        assert!(batch.is_quiescent(), "{what}");
    }
    took < DEADLINE + SLACK
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_hello() {
    ends_at_its_deadline(Silent::BeforeHello).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_hello() {
    ends_at_its_deadline(Silent::AfterHello).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn within_a_payload() {
    ends_at_its_deadline(Silent::WithinPayload).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_payload_trickles_in() {
    ends_at_its_deadline(Silent::Trickling).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_has_passed_already_costs_the_others_nothing() {
    let (owner, engine) = (engine().await, engine_with(one_lane()).await);
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let write = || Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(
        &engine,
        vec![write(), write().deadline(Instant::now()), write()],
    );
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_completed());
    assert!(is_late(batch.outcome(1)));
    assert!(batch.outcome(2).unwrap().is_completed());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_passes_before_anything_was_sent_costs_the_others_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let mut config = one_lane();
    config.connect_timeout = BUDGET;
    let engine = engine_with(config).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let write = || Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(
        &engine,
        vec![
            write(),
            write().deadline(Instant::now() + DEADLINE),
            write(),
        ],
    );
    eventually("it ends", || batch.outcome(1).is_some()).await;
    assert!(is_late(batch.outcome(1)));
    assert_eq!(batch.outcome(0), None);
    // Now the target wakes up, and sees two requests.
    fake_target(listener, owner.incarnation(), |_, mut socket| {
        for tag in [0, 2] {
            let mut request = [0; 48 + 4096];
            socket.read_exact(&mut request).unwrap();
            assert_eq!(request[8], tag);
            socket.write_all(&answer(0, 2, tag.into(), 0)).unwrap();
        }
        swallow(socket);
    });
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_completed());
    assert!(batch.outcome(2).unwrap().is_completed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_09_a_request_without_a_deadline_ends_when_the_engines_patience_does() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let remote = buffer(&owner, 64, Permission::PeersRead).await;
    fake_target(listener, owner.incarnation(), |_, socket| swallow(socket));
    let engine = TentEngine::builder()
        .transport(TcpTransport::new(one_lane()))
        .patience(DEADLINE)
        .build()
        .await
        .unwrap();
    let local = buffer(&engine, 64, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let request = Request::read(local.all().unwrap(), &segment, address(&remote, 0));
    assert!(once(&engine, request).await.is_timed_out());
}

#[tokio::test(flavor = "multi_thread")]
async fn patience_may_be_without_end() {
    let owner = engine().await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let link = TcpTransport::new(TcpConfig::default());
    let builder = TentEngine::builder().transport(link);
    let engine = builder.patience(Duration::MAX).build().await.unwrap();
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let write = Request::write(local.all().unwrap(), &segment, place(&remote, 0));
    assert!(once(&engine, write).await.is_completed());
}
