//! An engine that ends leaves no thread and no open port behind.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{Permission, Reason, Request, TransferEngine};

fn refuses(address: SocketAddr) -> bool {
    let tried = TcpStream::connect(address);
    tried.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

// One test, since it counts the threads of the whole process.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_ends_leaves_no_thread_and_no_port() {
    assert_eq!(threads("tcp-"), 0);
    for gracefully in [true, false] {
        let (owner, engine) = (engine().await, engine().await);
        let remote = buffer(&owner, 8 << 20, Permission::PeersReadWrite).await;
        let local = buffer(&engine, 8 << 20, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        let data = segment.descriptor();
        let data: SocketAddr = data.peer().endpoint("tcp").unwrap().parse().unwrap();
        let control: SocketAddr = owner.segment_name().parse().unwrap();
        let read = || Request::read(local.all().unwrap(), &segment, address(&remote, 0));
        assert!(once(&engine, read()).await.is_completed());
        // An initiator ends with work under way.
        let batch = submit(&engine, vec![read()]);
        let start = Instant::now();
        match gracefully {
            true => {
                engine.shutdown(BUDGET).await.unwrap();
                let late = submit(&engine, vec![read()]);
                terminal(&late).await;
                assert_eq!(error(late.outcome(0)).reason, Reason::Stopped);
            }
            false => drop(engine),
        }
        terminal(&batch).await;
        assert!(batch.is_quiescent());
        match gracefully {
            true => owner.shutdown(BUDGET).await.unwrap(),
            false => drop(owner),
        }
        assert!(start.elapsed() < Duration::from_secs(2));
        eventually("no thread is left", || threads("tcp-") == 0).await;
        eventually("the ports are closed", || refuses(data) && refuses(control)).await;
    }
    ends_while_it_connects().await;
    ends_while_a_fence_is_not_proven().await;
}

async fn ends_while_it_connects() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(mute.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    for gracefully in [true, false] {
        let mut config = one_lane();
        config.connect_timeout = BUDGET;
        let engine = engine_with(config).await;
        let local = buffer(&engine, 4096, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
        let batch = submit(&engine, vec![write]);
        eventually("it connects", || threads("tcp-connect") == 1).await;
        let start = Instant::now();
        match gracefully {
            true => engine.shutdown(BUDGET).await.unwrap(),
            false => drop(engine),
        }
        terminal(&batch).await;
        assert_eq!(error(batch.outcome(0)).reason, Reason::Stopped);
        assert!(batch.is_quiescent());
        assert!(start.elapsed() < Duration::from_secs(1));
        eventually("no thread is left", || threads("tcp-connect") == 0).await;
    }
}

async fn ends_while_a_fence_is_not_proven() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    // Takes everything and answers nothing, fences included.
    fake_target(listener, owner.incarnation(), |_, socket| swallow(socket));
    let engine = engine_with(one_lane()).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let held = books(&local);
    let segment = open(&engine, &owner).await;
    engine.warm_up(&segment, BUDGET).await.unwrap();
    let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&engine, vec![write]);
    let start = Instant::now();
    let proof = engine.shutdown(Duration::from_millis(300)).await;
    assert!(proof.is_err(), "nobody has proven that the write is over");
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(batch.is_terminal() && !batch.is_quiescent());
    assert_eq!(engine.tasks_in_use(), 1, "quarantined, not freed");
    drop((batch, local));
    assert_eq!(engine.tasks_in_use(), 1, "quarantined, not freed");
    assert_eq!(held.leases(), 0, "nobody reads it any more");
    drop(engine);
    eventually("no thread is left", || threads("tcp-fence") == 0).await;
}
