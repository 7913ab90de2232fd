//! Memory stays as long as a transfer holds it, and no longer.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    net::TcpListener,
    sync::{Arc, Barrier},
    time::Duration,
};

use common::*;
use mooncake_tent::{Error, Permission, Request, TransferEngine};

/// A target that answers the first read only after `until`.
async fn slow_read(
    until: Arc<Barrier>,
) -> (
    mooncake_tent::TentEngine,
    mooncake_tent::TentEngine,
    mooncake_tent::Buffer,
    mooncake_tent::Batch,
) {
    use std::io::{Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    fake_target(listener, owner.incarnation(), move |_, mut socket| {
        let mut request = [0; 48];
        socket.read_exact(&mut request).unwrap();
        until.wait();
        socket.write_all(&answer(0, 1, 0, 4096)).unwrap();
        socket.write_all(&pattern(5, 4096)).unwrap();
        swallow(socket);
    });
    let engine = engine_with(one_lane()).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let read = Request::read(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&engine, vec![read]);
    (owner, engine, local, batch)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffer_in_use_is_not_unregistered_until_its_transfers_end() {
    let answers = Arc::new(Barrier::new(2));
    let (_owner, engine, local, batch) = slow_read(Arc::clone(&answers)).await;
    let held = books(&local);
    let renewed = engine.renew_registration(&local, Duration::from_millis(20));
    assert!(matches!(renewed.await, Err(Error::InUse { .. })));
    let early = engine.unregister_memory(local, Duration::from_millis(20));
    assert!(matches!(early.await, Err(Error::InUse { .. })));
    answers.wait();
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_completed());
    eventually("the lease returns", || held.leases() == 0).await;
    let mut found = vec![0; 4096];
    held.memory().read_at(0, &mut found);
    assert_same(&found, &pattern(5, 4096), "its memory lived until then");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffer_may_be_dropped_under_a_transfer() {
    let answers = Arc::new(Barrier::new(2));
    let (_owner, engine, local, batch) = slow_read(Arc::clone(&answers)).await;
    let held = Arc::downgrade(&books(&local));
    drop(local);
    assert!(held.upgrade().unwrap().leases() > 0);
    // So may its batch.
    drop(batch);
    assert_eq!(engine.tasks_in_use(), 1);
    answers.wait();
    eventually("the cell returns", || engine.tasks_in_use() == 0).await;
    eventually("the memory is freed", || held.strong_count() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_renewals_at_once_are_one_or_two_but_no_mistake() {
    let engine = engine().await;
    let offered = buffer(&engine, 4096, Permission::PeersRead).await;
    let lease = offered.slice(0..1).unwrap();
    let first = engine.renew_registration(&offered, BUDGET);
    let second = engine.renew_registration(&offered, BUDGET);
    let release = async { drop(lease) };
    let (first, second, ()) = tokio::join!(first, second, release);
    let latest = first.unwrap().max(second.unwrap());
    assert_eq!(offered.generation(), latest);
}
