//! The owner of a segment changes after its descriptor was fetched.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::net::SocketAddr;

use common::*;
use mooncake_tent::{
    Generation, Incarnation, Permission, Reason, RemoteRange, Request, Retry, TcpConfig,
    TcpTransport, TentEngine, TransferEngine,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_found_again_after_its_buffer_was_renewed() {
    let (owner, engine) = (engine().await, engine().await);
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let old = remote.generation();
    assert_eq!(
        owner.renew_registration(&remote, BUDGET).await.unwrap(),
        Generation(old.0 + 1)
    );
    local.memory().write_at(0, &pattern(1, 4096));
    let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    assert!(once(&engine, write).await.is_completed());
    assert_same(&bytes(&remote, 0, 4096), &pattern(1, 4096), "written");

    // Who names a generation means that one and no other.
    local.memory().write_at(0, &pattern(2, 4096));
    let at = RemoteRange::Registered {
        registration: remote.id(),
        generation: Some(old),
        offset: 0,
    };
    let batch = submit(
        &engine,
        vec![Request::write(local.all().unwrap(), &segment, at)],
    );
    assert!(batch.wait(BUDGET));
    let error = error(batch.outcome(0));
    assert_eq!(error.reason, Reason::StaleGeneration);
    assert_eq!(error.retry, Retry::AfterRefresh);
    assert_same(&bytes(&remote, 0, 4096), &pattern(1, 4096), "untouched");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_found_again_after_its_buffer_was_registered_anew() {
    let (owner, engine) = (engine().await, engine().await);
    let segment = open(&engine, &owner).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    // The segment's descriptor knows none of these, each new one at an address of its own.
    for seed in 0..3 {
        let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
        local.memory().write_at(0, &pattern(seed, 4096));
        let requests = (0..30)
            .map(|_| Request::write(local.all().unwrap(), &segment, address(&remote, 0)))
            .collect();
        let batch = submit(&engine, requests);
        terminal(&batch).await;
        assert!((0..30).all(|i| batch.outcome(i).unwrap().is_completed()));
        assert_same(&bytes(&remote, 0, 4096), &pattern(seed, 4096), "written");
    }
    assert_eq!(engine.tasks_in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_owner_took_back_stays_away() {
    let (owner, engine) = (engine().await, engine().await);
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let (at, registered) = (address(&remote, 0), place(&remote, 0));
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    owner.unregister_memory(remote, BUDGET).await.unwrap();
    for at in [at, registered] {
        let batch = submit(
            &engine,
            vec![Request::read(local.all().unwrap(), &segment, at)],
        );
        terminal(&batch).await;
        let error = error(batch.outcome(0));
        assert_eq!(error.reason, Reason::UnknownRegistration);
        assert!(error.quiescent);
    }
}

async fn engine_on(control: SocketAddr, data: Option<SocketAddr>) -> TentEngine {
    let mut config = TcpConfig::default();
    config.listen = data.or(config.listen);
    let builder = TentEngine::builder()
        .listen(control)
        .transport(TcpTransport::new(config));
    builder.build().await.unwrap()
}

async fn replaced(same_data_port: bool) {
    let owner = engine().await;
    let engine = engine().await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let control: SocketAddr = owner.segment_name().parse().unwrap();
    let data: SocketAddr = segment
        .descriptor()
        .peer()
        .endpoint("tcp")
        .unwrap()
        .parse()
        .unwrap();
    let old = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let request = Request::write(local.all().unwrap(), &segment, address(&old, 0));
    assert!(once(&engine, request).await.is_completed());
    let first_life: Incarnation = segment.incarnation();
    let (old_place, old_address) = (place(&old, 0), address(&old, 0));
    owner.shutdown(BUDGET).await.unwrap();
    drop(owner);

    // Another life at the same control address; the old memory is still there.
    let successor = engine_on(control, same_data_port.then_some(data)).await;
    let new = buffer(&successor, 4096, Permission::PeersReadWrite).await;
    local.memory().write_at(0, &pattern(7, 4096));
    for gone in [old_place, old_address] {
        // Twice: the first may find nothing but the end of its lane.
        for _ in 0..2 {
            let request = Request::write(local.all().unwrap(), &segment, gone);
            let batch = submit(&engine, vec![request]);
            terminal(&batch).await;
            error(batch.outcome(0));
        }
    }
    assert_ne!(segment.incarnation(), first_life);
    assert_eq!(segment.incarnation(), successor.incarnation());
    assert_eq!(bytes(&old, 0, 4096), vec![0; 4096]);
    assert_eq!(bytes(&new, 0, 4096), vec![0; 4096]);
    let request = Request::write(local.all().unwrap(), &segment, address(&new, 0));
    assert!(once(&engine, request).await.is_completed());
    assert_same(&bytes(&new, 0, 4096), &pattern(7, 4096), "written");
    assert_eq!(bytes(&old, 0, 4096), vec![0; 4096]);
}

#[tokio::test(flavor = "multi_thread")]
async fn law_07_a_successor_on_the_same_ports_is_told_from_its_predecessor() {
    replaced(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_on_another_data_port_is_found() {
    replaced(false).await;
}
