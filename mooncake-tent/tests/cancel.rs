//! What becomes of a transfer whose caller wants it no more, wherever it is just then.
#![cfg(all(feature = "conformance", feature = "tcp"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{net::TcpListener, time::Duration};

use common::*;
use mooncake_tent::{
    Applied, Buffer, Permission, Request, Segment, TcpConfig, TentEngine, TransferEngine,
    conformance::{Relay, Rules},
    transport::Outcome,
};

/// More than sockets and relay hold.
const LEN: usize = 32 << 20;

/// An engine that reaches another through a relay, over one lane.
struct Stage {
    engine: TentEngine,
    owner: TentEngine,
    relay: Relay,
    segment: Segment,
    local: Buffer,
    remote: Buffer,
}

impl Stage {
    /// The first connection is under `rules`, later ones are left alone.
    async fn set(rules: Rules) -> Self {
        let plan = move |number| match number {
            0 => rules,
            _ => Rules::default(),
        };
        let (owner, relay) = relayed(TcpConfig::default(), plan).await;
        let mut config = one_lane();
        config.slice_bytes = LEN as u64;
        let engine = engine_with(config).await;
        let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        local.memory().write_at(0, &pattern(1, LEN));
        remote.memory().write_at(0, &pattern(2, LEN));
        let segment = open(&engine, &owner).await;
        Self {
            engine,
            owner,
            relay,
            segment,
            local,
            remote,
        }
    }

    fn read(&self, len: u64) -> Request {
        let local = self.local.slice(0..len).unwrap();
        Request::read(local, &self.segment, place(&self.remote, 0))
    }

    fn write(&self, len: u64) -> Request {
        let local = self.local.slice(0..len).unwrap();
        Request::write(local, &self.segment, place(&self.remote, 0))
    }

    async fn close(self) {
        assert_eq!(self.engine.tasks_in_use(), 0);
        let local = self.engine.unregister_memory(self.local, BUDGET).await;
        let remote = self.owner.unregister_memory(self.remote, BUDGET).await;
        assert!(local.is_ok() && remote.is_ok(), "{local:?} {remote:?}");
        self.engine.shutdown(BUDGET).await.unwrap();
        self.owner.shutdown(BUDGET).await.unwrap();
    }
}

fn is_cancelled(outcome: Option<Outcome>) -> bool {
    outcome.is_some_and(|outcome| outcome.is_cancelled())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_sent_is_cancelled_and_quiet_at_once() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(mute.local_addr().unwrap()).await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let mut config = TcpConfig::default();
    config.connect_timeout = BUDGET;
    let engine = engine_with(config).await;
    let local = buffer(&engine, 4096, Permission::Local).await;
    let held = books(&local);
    let segment = open(&engine, &owner).await;
    let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&engine, vec![write.clone(), write]);
    batch.cancel(1);
    assert!(is_cancelled(batch.outcome(1)) && batch.is_task_quiescent(1));
    let outcome = batch.outcome(1).unwrap();
    assert_eq!(outcome.error().unwrap().applied, Applied::Nothing);
    assert_eq!(batch.outcome(0), None);
    batch.cancel_all();
    assert!(batch.is_terminal() && batch.is_quiescent());
    assert!(is_cancelled(batch.outcome(0)));
    drop(batch);
    assert_eq!((held.leases(), engine.tasks_in_use()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_the_rest_of_a_cancelled_read_is_dropped_and_its_lane_goes_on() {
    for blocking in [false, true] {
        let mut rules = Rules::default();
        rules.down.pause_after = Some(48 + ANSWER as u64 + 1_000_000);
        let stage = Stage::set(rules).await;
        let batch = submit(
            &stage.engine,
            vec![stage.read(LEN as u64), stage.read(4096)],
        );
        let relay = &stage.relay;
        eventually("it is under way", || relay.counts().down_bytes >= 1_000_000).await;
        let batch = std::sync::Arc::new(batch);
        let waiter = blocking.then(|| {
            // Has the lane in its hands when the read is cancelled.
            let batch = std::sync::Arc::clone(&batch);
            std::thread::spawn(move || assert!(batch.wait(BUDGET)))
        });
        batch.cancel_all();
        terminal(&batch).await;
        assert!(is_cancelled(batch.outcome(0)) && is_cancelled(batch.outcome(1)));
        assert!(batch.is_quiescent(), "a cancelled read is quiet");
        waiter.into_iter().for_each(|waiter| waiter.join().unwrap());
        // Its memory is for other things now.
        stage.local.memory().write_at(0, &pattern(3, LEN));
        relay.resume();
        let there = stage.remote.memory();
        there.write_at(LEN as u64 - 64, &[9; 64]);
        let tail = stage.local.slice(LEN as u64 - 64..LEN as u64).unwrap();
        let read = Request::read(tail, &stage.segment, place(&stage.remote, LEN as u64 - 64));
        assert!(once(&stage.engine, read).await.is_completed());
        let front = bytes(&stage.local, 0, LEN - 64);
        assert_same(&front, &pattern(3, LEN)[..LEN - 64], "a cancelled read");
        assert_eq!(relay.counts().connections, 1, "its lane goes on");
        drop(batch);
        stage.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_a_cancelled_write_that_the_peer_does_not_take_ends_its_lane() {
    let mut rules = Rules::default();
    rules.up.pause_after = Some(48 + 48 + 1_000_000);
    let stage = Stage::set(rules).await;
    let held = books(&stage.local);
    let batch = submit(&stage.engine, vec![stage.write(LEN as u64)]);
    let relay = &stage.relay;
    eventually("it is under way", || relay.counts().up_bytes >= 1_000_000).await;
    batch.cancel(0);
    terminal(&batch).await;
    assert!(is_cancelled(batch.outcome(0)), "{:?}", batch.outcome(0));
    assert_eq!(held.leases(), 0, "nothing is read any more");
    // The fence finds its way beside what is held back.
    quiescent(&batch).await;
    let after = bytes(&stage.remote, 0, LEN);
    relay.resume();
    assert!(once(&stage.engine, stage.read(64)).await.is_completed());
    let later = bytes(&stage.remote, 0, LEN);
    assert_same(&later, &after, "it landed after the fence");
    drop(batch);
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_01_a_write_that_was_handed_over_whole_ends_as_the_target_says() {
    let mut rules = Rules::default();
    rules.up.pause_after = Some(48 + 48 + 1_000);
    let stage = Stage::set(rules).await;
    let batch = submit(&stage.engine, vec![stage.write(64 << 10), stage.read(64)]);
    let relay = &stage.relay;
    eventually("it is under way", || relay.counts().up_bytes >= 1_000).await;
    batch.cancel_all();
    // The read behind it ends at once.
    assert!(is_cancelled(batch.outcome(1)) && batch.is_task_quiescent(1));
    let early = tokio::time::timeout(Duration::from_millis(200), batch.terminal()).await;
    assert!(early.is_err(), "nobody knows yet what becomes of it");
    relay.resume();
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_completed());
    let found = bytes(&stage.remote, 0, 64 << 10);
    assert_same(&found, &pattern(1, LEN)[..64 << 10], "it was applied");
    assert_eq!(relay.counts().connections, 1);
    drop(batch);
    stage.close().await;
}
