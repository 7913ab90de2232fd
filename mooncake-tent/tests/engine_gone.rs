//! The engine, or its runtime, goes away while tasks wait for something.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Wake, Waker},
};

use common::*;
use mooncake_tent::{Permission, RemoteRange, Request, TentEngine, TransferEngine};

#[test]
fn law_02_a_task_that_awaits_fresh_knowledge_ends_with_its_runtime() {
    let others = tokio::runtime::Runtime::new().unwrap();
    let owner = others.block_on(engine());
    let ours = tokio::runtime::Runtime::new().unwrap();
    let engine = ours.block_on(engine());
    let local = ours.block_on(buffer(&engine, 4096, Permission::Local));
    let segment = ours.block_on(open(&engine, &owner));
    drop(ours);
    // Nothing is known at this address, so the engine would look again.
    let nowhere = RemoteRange::Address(12);
    let read = Request::read(local.all().unwrap(), &segment, nowhere);
    let batch = submit(&engine, vec![read]);
    assert!(batch.wait(BUDGET));
    assert!(error(batch.outcome(0)).quiescent);
}

#[tokio::test(flavor = "multi_thread")]
async fn law_02_tasks_end_when_the_engine_is_dropped_before_their_refresh() {
    for _ in 0..20 {
        let (owner, engine) = (engine().await, engine().await);
        let local = buffer(&engine, 4096, Permission::Local).await;
        let remote = buffer(&owner, 4096, Permission::PeersRead).await;
        let segment = open(&engine, &owner).await;
        owner.renew_registration(&remote, BUDGET).await.unwrap();
        let requests = (0..10)
            .map(|_| Request::read(local.all().unwrap(), &segment, address(&remote, 0)))
            .collect();
        let batch = submit(&engine, requests);
        drop(engine);
        terminal(&batch).await;
        assert!(batch.is_quiescent());
        // A blocking waiter finishes tasks whose engine is gone without being caught in its end.
        assert!(batch.wait(BUDGET));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_may_be_dropped_by_whoever_was_woken() {
    let (owner, engine) = (engine().await, engine().await);
    let local = buffer(&engine, 1 << 20, Permission::Local).await;
    let remote = buffer(&owner, 1 << 20, Permission::PeersRead).await;
    let segment = open(&engine, &owner).await;
    let read = Request::read(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&engine, vec![read]);
    let (dropped, gone) = mpsc::channel();
    tokio::spawn(async move {
        terminal(&batch).await;
        drop((engine, batch));
        dropped.send(()).unwrap();
    });
    tokio::task::spawn_blocking(move || gone.recv_timeout(BUDGET).unwrap())
        .await
        .unwrap();
}

/// Lets go of an engine when it is called.
struct LetsGo {
    engine: Mutex<Option<TentEngine>>,
    gone: mpsc::Sender<()>,
}

impl Wake for LetsGo {
    fn wake(self: Arc<Self>) {
        drop(self.engine.lock().unwrap().take());
        // It may be called once more.
        let _heard = self.gone.send(());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_may_be_dropped_by_a_waker_on_the_thread_that_receives() {
    const LENGTH: usize = 16 << 20;
    let (owner, engine) = (engine().await, engine().await);
    let local = buffer(&engine, LENGTH, Permission::Local).await;
    let remote = buffer(&owner, LENGTH, Permission::PeersRead).await;
    let segment = open(&engine, &owner).await;
    let read = Request::read(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&engine, vec![read]);
    let (sender, gone) = mpsc::channel();
    let waker = Waker::from(Arc::new(LetsGo {
        engine: Mutex::new(Some(engine)),
        gone: sender,
    }));
    let mut ends = pin!(batch.terminal());
    let polled = ends.as_mut().poll(&mut Context::from_waker(&waker));
    if polled.is_pending() {
        tokio::task::spawn_blocking(move || gone.recv_timeout(BUDGET).unwrap())
            .await
            .unwrap();
    }
    assert!(batch.outcome(0).unwrap().is_completed());
    eventually("its threads end", || threads("tcp-link") <= 2).await;
}
