//! Transfers by way of stage buffers, between memories of a made-up kind that no other link joins.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use common::*;
use mooncake_proto::tent::{
    StageOutcome, StageRequest, StageResponse, StageStep, control_client::ControlClient,
};
use mooncake_tent::{
    Applied, Buffer, Error, Hint, LocalSlice, Memory, Permission, Qos, Reason, RegisterOptions,
    RemoteRange, Request, Segment, StagingConfig, StagingTransport, TcpTransport, TentEngine,
    TransferEngine, TransferError,
    admission::AdmissionConfig,
    staging::{Mover, PlainMover},
    transport::{Op, Outcome},
};
use parking_lot::{Condvar, Mutex};

const SLOT: u64 = 64 << 10;
const FAKE: &str = "fake:0";

/// Copies when it may, and counts.
#[derive(Clone, Debug, Default)]
struct Gate {
    shut: Arc<(Mutex<bool>, Condvar)>,
    inside: Arc<AtomicUsize>,
    copies: Arc<AtomicUsize>,
    broken: Arc<Mutex<bool>>,
}

impl Gate {
    fn shut(&self) {
        *self.shut.0.lock() = true;
    }

    fn open(&self) {
        *self.shut.0.lock() = false;
        self.shut.1.notify_all();
    }

    fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }
}

impl Mover for Gate {
    fn copy(&self, from: &LocalSlice, into: &LocalSlice) -> io::Result<()> {
        self.copies.fetch_add(1, Ordering::SeqCst);
        self.inside.fetch_add(1, Ordering::SeqCst);
        {
            let mut shut = self.shut.0.lock();
            // A test that fails ends all the same.
            while *shut && !self.shut.1.wait_for(&mut shut, BUDGET).timed_out() {}
        }
        let copied = match *self.broken.lock() {
            true => Err(io::Error::other("the device is gone")),
            false => PlainMover.copy(from, into),
        };
        self.inside.fetch_sub(1, Ordering::SeqCst);
        copied
    }
}

fn config() -> StagingConfig {
    let mut config = StagingConfig::default();
    (config.slot_bytes, config.slots, config.window) = (SLOT, 4, 3);
    config.lease = Duration::from_secs(1);
    config
}

async fn staged(config: StagingConfig) -> TentEngine {
    let builder = TentEngine::builder().transport(TcpTransport::default());
    let builder = builder.transport(StagingTransport::new(config));
    builder.build().await.unwrap()
}

async fn at(engine: &TentEngine, location: &str, len: usize, permission: Permission) -> Buffer {
    let mut options = RegisterOptions::new(permission);
    options.location = location.to_owned();
    let memory = Memory::allocate(len).unwrap();
    engine.register_memory(memory, options).await.unwrap()
}

fn slots(engine: &TentEngine) -> u64 {
    let gauges = engine.gauges();
    let mut links = gauges.links.iter();
    links
        .find(|(name, _)| *name == "staging")
        .unwrap()
        .1
        .stage_slots
}

async fn all_back(engines: [&TentEngine; 2]) {
    for engine in engines {
        eventually("all slots come back", || slots(engine) == 0).await;
    }
}

/// Two engines that can stage, and memory of the made-up kind at both ends.
struct Ground {
    here: Gate,
    there: Gate,
    engine: TentEngine,
    owner: TentEngine,
    local: Buffer,
    remote: Buffer,
    segment: Segment,
}

impl Ground {
    async fn new(len: usize) -> Self {
        Self::with(config(), config(), len).await
    }

    async fn with(ours: StagingConfig, theirs: StagingConfig, len: usize) -> Self {
        let (here, there) = (Gate::default(), Gate::default());
        let engine = staged(ours.mover("fake", here.clone())).await;
        let owner = staged(theirs.mover("fake", there.clone())).await;
        let local = at(&engine, FAKE, len, Permission::Local).await;
        let remote = at(&owner, FAKE, len, Permission::PeersReadWrite).await;
        let segment = open(&engine, &owner).await;
        Self {
            here,
            there,
            engine,
            owner,
            local,
            remote,
            segment,
        }
    }

    fn request(&self, op: Op, range: std::ops::Range<u64>) -> Request {
        let local = self.local.slice(range.clone()).unwrap();
        let at = place(&self.remote, range.start);
        Request::scattered(op, [local].into_iter().collect(), &self.segment, at)
    }

    async fn close(self) {
        all_back([&self.engine, &self.owner]).await;
        self.engine
            .unregister_memory(self.local, BUDGET)
            .await
            .unwrap();
        self.owner
            .unregister_memory(self.remote, BUDGET)
            .await
            .unwrap();
        assert_eq!(self.engine.tasks_in_use(), 0);
        for engine in [&self.engine, &self.owner] {
            let gauges = engine.gauges();
            assert_eq!((gauges.registrations, gauges.leases), (0, 0), "{gauges:?}");
            assert_eq!(gauges.withdrawn_bytes, 0);
        }
        self.engine.shutdown(BUDGET).await.unwrap();
        self.owner.shutdown(BUDGET).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_any_size_come_and_go_between_all_kinds() {
    const MARGIN: usize = 13;
    let sizes = [1, 2, 63, 4_095, 65_535, 65_536, 65_537, 196_609, 1_000_003];
    let most = 1_000_003 + 2 * MARGIN;
    let engine = staged(config().mover("fake", PlainMover)).await;
    // Slots of another size.
    let mut theirs = config();
    theirs.slot_bytes = 50_000;
    let owner = staged(theirs.mover("other", PlainMover)).await;
    for (here, there) in [(FAKE, "other:1"), (FAKE, "cpu:0"), ("*", "other:0")] {
        let local = at(&engine, here, most, Permission::Local).await;
        let remote = at(&owner, there, most, Permission::PeersReadWrite).await;
        let segment = open(&engine, &owner).await;
        for (round, size) in sizes.into_iter().enumerate() {
            for op in [Op::Write, Op::Read] {
                let (ours, others) = (pattern(round as u64, most), pattern(99, most));
                local.memory().write_at(0, &ours);
                remote.memory().write_at(0, &others);
                let range = MARGIN as u64..(MARGIN + size) as u64;
                let slice = local.slice(range).unwrap();
                let to = place(&remote, MARGIN as u64);
                let request = Request::scattered(op, [slice].into_iter().collect(), &segment, to);
                let outcome = once(&engine, request).await;
                let what = format!("{op} of {size} between {here} and {there}");
                assert_eq!(outcome, Outcome::Completed { bytes: size as u64 }, "{what}");
                let (into, wanted, before, from) = match op {
                    Op::Write => (&remote, &ours, &others, &local),
                    Op::Read => (&local, &others, &ours, &remote),
                };
                let mut expected = before.clone();
                expected[MARGIN..MARGIN + size].copy_from_slice(&wanted[MARGIN..MARGIN + size]);
                assert_same(&bytes(into, 0, most), &expected, &what);
                assert_same(&bytes(from, 0, most), wanted, &what);
            }
        }
        engine.unregister_memory(local, BUDGET).await.unwrap();
        owner.unregister_memory(remote, BUDGET).await.unwrap();
    }
    all_back([&engine, &owner]).await;
    let counted = engine.metrics();
    let staged = counted
        .links
        .iter()
        .find(|link| link.transport == "staging");
    assert!(staged.is_some(), "they went through the stage: {counted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_of_local_memory_follow_each_other() {
    let ground = Ground::new(1 << 20).await;
    let parts = [
        700_000..700_001,
        5..100_003,
        300_000..500_001,
        100_003..100_100,
    ];
    let length: u64 = parts.iter().map(|part| part.end - part.start).sum();
    ground.local.memory().write_at(0, &pattern(1, 1 << 20));
    let gather = || -> Vec<u8> {
        let parts = parts.iter();
        parts
            .flat_map(|part| bytes(&ground.local, part.start, (part.end - part.start) as usize))
            .collect()
    };
    let sent = gather();
    for op in [Op::Write, Op::Read] {
        let slices = parts.iter().map(|part| ground.local.slice(part.clone()));
        let slices = slices.map(Result::unwrap).collect();
        let to = place(&ground.remote, 7);
        let request = Request::scattered(op, slices, &ground.segment, to);
        let outcome = once(&ground.engine, request).await;
        assert!(outcome.is_completed(), "{outcome:?}");
        assert_same(&bytes(&ground.remote, 7, length as usize), &sent, "there");
        assert_same(&gather(), &sent, "here");
        ground.local.memory().write_at(0, &vec![0; 1 << 20]);
    }
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stage_is_a_detour_that_only_memories_without_a_link_take() {
    let ground = Ground::new(4096).await;
    let ranking = ground
        .engine
        .explain(Op::Read, 1 << 20, &Qos::new(), &ground.segment);
    let names: Vec<_> = ranking.ranked.iter().map(|link| &*link.name).collect();
    assert_eq!(names, ["tcp"], "{ranking}");
    // No other link is made to touch such memory.
    let hint = Hint::hard("tcp");
    let request = ground.request(Op::Write, 0..4096).hint(hint);
    let mut batch = ground.engine.allocate_batch(1);
    let refused = ground.engine.submit_transfer(&mut batch, vec![request]);
    assert!(matches!(refused, Err(Error::NoRoute { .. })), "{refused:?}");
    drop(batch);
    // Nor is there a way for those who do not stage, or not this.
    let plain = engine().await;
    let local = at(&plain, "*", 4096, Permission::Local).await;
    let segment = open(&plain, &ground.owner).await;
    let request = Request::read(local.all().unwrap(), &segment, place(&ground.remote, 0));
    let mut batch = plain.allocate_batch(1);
    let refused = plain.submit_transfer(&mut batch, vec![request]);
    assert!(matches!(refused, Err(Error::NoRoute { .. })), "{refused:?}");
    drop(batch);
    let far = at(&ground.owner, "unheard:0", 4096, Permission::PeersReadWrite).await;
    let segment = open(&ground.engine, &ground.owner).await;
    eventually("it is told of", || {
        segment.descriptor().buffer(far.id()).is_some()
    })
    .await;
    let request = Request::read(ground.local.all().unwrap(), &segment, place(&far, 0));
    let mut batch = ground.engine.allocate_batch(1);
    let refused = ground.engine.submit_transfer(&mut batch, vec![request]);
    let Err(Error::NoRoute { reasons, .. }) = refused else {
        panic!("it has no mover there: {refused:?}")
    };
    assert!(reasons.contains("not registered with it"), "{reasons}");
    drop((batch, local, far));
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_tasks_than_credits_all_end() {
    const EACH: u64 = 150_001;
    const TASKS: u64 = 24;
    let mut narrow = config();
    narrow.slots = 2;
    let len = (EACH * TASKS) as usize;
    let ground = Ground::with(narrow.clone(), narrow, len).await;
    for op in [Op::Write, Op::Read] {
        ground.local.memory().write_at(0, &pattern(1, len));
        ground.remote.memory().write_at(0, &pattern(2, len));
        let requests = (0..TASKS).map(|i| ground.request(op, i * EACH..(i + 1) * EACH));
        let batch = submit(&ground.engine, requests.collect());
        terminal(&batch).await;
        for i in 0..TASKS as usize {
            let outcome = batch.outcome(i).unwrap();
            assert!(outcome.is_completed(), "{outcome:?}");
        }
        let wanted = pattern(if op == Op::Write { 1 } else { 2 }, len);
        assert_same(&bytes(&ground.local, 0, len), &wanted, "here");
        assert_same(&bytes(&ground.remote, 0, len), &wanted, "there");
        assert!(slots(&ground.engine) <= 2 && slots(&ground.owner) <= 2);
    }
    ground.close().await;
}

/// Each waits for slots here and there, more often than there are any.
#[tokio::test(flavor = "multi_thread")]
async fn transfers_of_many_pieces_do_not_wait_for_each_other_in_a_circle() {
    const EACH: u64 = SLOT * 8;
    for (slots, tasks) in [(1, 2), (4, 8)] {
        for op in [Op::Write, Op::Read] {
            let mut narrow = config();
            (narrow.slots, narrow.window) = (slots, slots);
            // Nobody gets on by this.
            narrow.lease = 10 * BUDGET;
            let ground = Ground::with(narrow.clone(), narrow, (EACH * tasks) as usize).await;
            let requests = (0..tasks).map(|i| ground.request(op, i * EACH..(i + 1) * EACH));
            let batch = submit(&ground.engine, requests.collect());
            terminal(&batch).await;
            for i in 0..tasks as usize {
                let outcome = batch.outcome(i).unwrap();
                assert!(outcome.is_completed(), "{op} {i}: {outcome:?}");
            }
            drop(batch);
            ground.close().await;
        }
    }
}

/// A slot that is just being copied goes when the copy has ended, not when its lease has.
#[tokio::test(flavor = "multi_thread")]
async fn who_shuts_down_waits_for_a_copy_and_no_longer() {
    let mut lasting = config();
    lasting.lease = 10 * BUDGET;
    let ground = Ground::with(lasting.clone(), lasting, SLOT as usize * 4).await;
    ground.there.shut();
    let batch = submit(&ground.engine, vec![ground.request(Op::Write, 0..SLOT * 4)]);
    eventually("the peer copies", || ground.there.inside() > 0).await;
    let owner = ground.owner.clone();
    let down = tokio::spawn(async move { owner.shutdown(BUDGET).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!down.is_finished(), "a copy is under way");
    ground.there.open();
    down.await.unwrap().unwrap();
    assert_eq!(slots(&ground.owner), 0);
    drop(batch);
}

/// A transfer that was let in does not wait behind itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_staged_passes_the_gate_once() {
    let mut admission = AdmissionConfig::default();
    admission.most_requests = Some(1);
    let builder = TentEngine::builder().transport(TcpTransport::default());
    let builder = builder.transport(StagingTransport::new(config().mover("fake", PlainMover)));
    let engine = builder.admission(admission).build().await.unwrap();
    let owner = staged(config().mover("fake", PlainMover)).await;
    let local = at(&engine, FAKE, 300_000, Permission::Local).await;
    let remote = at(&owner, FAKE, 300_000, Permission::PeersReadWrite).await;
    let segment = open(&engine, &owner).await;
    let requests = (0..6).map(|i| {
        let slice = local.slice(i * 50_000..(i + 1) * 50_000).unwrap();
        Request::write(slice, &segment, place(&remote, i * 50_000))
    });
    local.memory().write_at(0, &pattern(5, 300_000));
    let batch = submit(&engine, requests.collect());
    terminal(&batch).await;
    assert!((0..6).all(|i| batch.outcome(i).unwrap().is_completed()));
    assert_same(&bytes(&remote, 0, 300_000), &pattern(5, 300_000), "there");
}

#[tokio::test(flavor = "multi_thread")]
async fn law_04_what_the_owner_does_not_offer_is_refused_and_untouched() {
    let ground = Ground::new(1 << 20).await;
    let len = 200_000;
    let readable = at(&ground.owner, FAKE, len, Permission::PeersRead).await;
    let private = at(&ground.owner, FAKE, len, Permission::Local).await;
    let segment = open(&ground.engine, &ground.owner).await;
    let known = || segment.descriptor().buffer(readable.id()).is_some();
    eventually("it is told of", known).await;
    for buffer in [&readable, &private] {
        buffer.memory().write_at(0, &pattern(3, len));
    }
    ground.local.memory().write_at(0, &pattern(4, 1 << 20));
    let other = RemoteRange::Registered {
        registration: readable.id(),
        generation: Some(mooncake_tent::Generation(readable.generation().0 + 1)),
        offset: 0,
    };
    let cases = [
        (Op::Write, place(&readable, 0), 150_000, Reason::Permission),
        (Op::Write, place(&private, 0), 7, Reason::Permission),
        (Op::Read, place(&private, 0), 150_000, Reason::Permission),
        (
            Op::Read,
            place(&readable, 100_000),
            100_001,
            Reason::OutOfBounds,
        ),
        (
            Op::Read,
            place(&readable, u64::MAX - 3),
            9,
            Reason::OutOfBounds,
        ),
        (Op::Read, other, 150_000, Reason::StaleGeneration),
    ];
    for (op, to, length, reason) in cases {
        let slice = ground.local.slice(0..length).unwrap();
        let request = Request::scattered(op, [slice].into_iter().collect(), &segment, to);
        let refused = error(Some(once(&ground.engine, request).await));
        let what = format!("{op} of {length} at {to:?}: {refused}");
        assert_eq!(refused.reason, reason, "{what}");
        assert_eq!(
            (refused.applied, refused.quiescent),
            (Applied::Nothing, true)
        );
        for buffer in [&readable, &private] {
            assert_same(&bytes(buffer, 0, len), &pattern(3, len), &what);
        }
        let here = bytes(&ground.local, 0, 1 << 20);
        assert_same(&here, &pattern(4, 1 << 20), &what);
    }
    drop((readable, private));
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_what_is_cancelled_is_quiet_only_when_the_peer_has_stopped_copying() {
    const LEN: usize = 1_000_000;
    let ground = Ground::new(LEN).await;
    ground.local.memory().write_at(0, &pattern(1, LEN));
    ground.there.shut();
    let batch = submit(
        &ground.engine,
        vec![ground.request(Op::Write, 0..LEN as u64)],
    );
    eventually("the peer copies", || ground.there.inside() > 0).await;
    batch.cancel_all();
    terminal(&batch).await;
    let Some(Outcome::Cancelled(error)) = batch.outcome(0) else {
        panic!("{:?}", batch.outcome(0))
    };
    assert_eq!(
        (error.applied, error.quiescent),
        (Applied::Unknown, false),
        "{error}"
    );
    assert!(!batch.is_quiescent());
    let fence = ground
        .engine
        .fence(&ground.segment, Duration::from_millis(50));
    assert!(fence.await.is_err(), "the peer still copies");
    // Nothing reads the source any more.
    assert_eq!(ground.local.leases(), 0);
    ground.there.open();
    quiescent(&batch).await;
    let there = bytes(&ground.remote, 0, LEN);
    ground.engine.fence(&ground.segment, BUDGET).await.unwrap();
    drop(batch);
    all_back([&ground.engine, &ground.owner]).await;
    assert_same(&bytes(&ground.remote, 0, LEN), &there, "after quiet");
    assert!(there.contains(&0), "it was ended early");
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_a_read_that_is_cancelled_is_quiet_only_when_our_own_copy_has_ended() {
    let ground = Ground::new(300_000).await;
    ground.remote.memory().write_at(0, &pattern(1, 300_000));
    ground.here.shut();
    let batch = submit(&ground.engine, vec![ground.request(Op::Read, 0..300_000)]);
    eventually("we copy", || ground.here.inside() > 0).await;
    batch.cancel_all();
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_cancelled());
    assert!(!batch.is_quiescent());
    assert!(ground.local.leases() > 0, "it may still be written");
    ground.here.open();
    quiescent(&batch).await;
    drop(batch);
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_09_a_deadline_ends_it_wherever_it_hangs() {
    for op in [Op::Write, Op::Read] {
        for here in [true, false] {
            let ground = Ground::new(300_000).await;
            let gate = if here { &ground.here } else { &ground.there };
            gate.shut();
            let deadline = Instant::now() + Duration::from_millis(200);
            let request = ground.request(op, 0..300_000).deadline(deadline);
            let batch = submit(&ground.engine, vec![request]);
            terminal(&batch).await;
            let outcome = batch.outcome(0).unwrap();
            assert!(outcome.is_timed_out(), "{op}, {here}: {outcome:?}");
            gate.open();
            quiescent(&batch).await;
            drop(batch);
            ground.close().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_credits_a_task_waits_no_longer_than_its_deadline() {
    let mut narrow = config();
    (narrow.slots, narrow.window) = (1, 1);
    let ground = Ground::with(config(), narrow, 200_000).await;
    ground.there.shut();
    let first = submit(&ground.engine, vec![ground.request(Op::Write, 0..100_000)]);
    eventually("the peer copies", || ground.there.inside() > 0).await;
    let deadline = Instant::now() + Duration::from_millis(200);
    let request = ground.request(Op::Write, 100_000..200_000);
    let outcome = once(&ground.engine, request.deadline(deadline)).await;
    let Outcome::TimedOut(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((error.applied, error.quiescent), (Applied::Nothing, true));
    ground.there.open();
    terminal(&first).await;
    assert!(first.outcome(0).unwrap().is_completed());
    drop(first);
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_fails_the_transfer_and_nothing_else() {
    for here in [true, false] {
        let ground = Ground::new(300_000).await;
        let gate = if here { &ground.here } else { &ground.there };
        *gate.broken.lock() = true;
        for op in [Op::Write, Op::Read] {
            let outcome = once(&ground.engine, ground.request(op, 0..300_000)).await;
            let error = error(Some(outcome));
            assert!(matches!(error.reason, Reason::Mover(_)), "{error}");
            assert!(error.to_string().contains("the device is gone"), "{error}");
            let touched = here == (op == Op::Read);
            assert_eq!(error.applied == Applied::Nothing, !touched, "{op}: {error}");
        }
        *gate.broken.lock() = false;
        let again = once(&ground.engine, ground.request(Op::Write, 0..300_000)).await;
        assert!(again.is_completed(), "{again:?}");
        ground.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_07_a_new_generation_waits_for_copies_and_refuses_the_old_one() {
    let ground = Ground::new(300_000).await;
    let old = place(&ground.remote, 0);
    ground.there.shut();
    let batch = submit(&ground.engine, vec![ground.request(Op::Write, 0..SLOT)]);
    eventually("the peer copies", || ground.there.inside() > 0).await;
    let early = Duration::from_millis(20);
    let renewed = ground.owner.renew_registration(&ground.remote, early).await;
    assert!(matches!(renewed, Err(Error::InUse { .. })), "{renewed:?}");
    ground.there.open();
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_completed());
    drop(batch);
    let renewed = ground.owner.renew_registration(&ground.remote, BUDGET);
    renewed.await.unwrap();
    ground.remote.memory().write_at(0, &pattern(8, 300_000));
    let slice = ground.local.slice(0..300_000).unwrap();
    let request = Request::write(slice, &ground.segment, old);
    let error = error(Some(once(&ground.engine, request).await));
    assert_eq!(error.reason, Reason::StaleGeneration);
    assert_same(
        &bytes(&ground.remote, 0, 300_000),
        &pattern(8, 300_000),
        "there",
    );
    // Who names none follows.
    let follows = RemoteRange::Address(ground.remote.memory().address());
    let slice = ground.local.slice(0..300_000).unwrap();
    let request = Request::write(slice, &ground.segment, follows);
    assert!(once(&ground.engine, request).await.is_completed());
    ground.close().await;
}

async fn dies(gracefully: bool, op: Op) {
    const LEN: usize = 4 << 20;
    let Ground {
        there,
        engine,
        owner,
        local,
        remote,
        segment,
        ..
    } = Ground::new(LEN).await;
    let request = |range: std::ops::Range<u64>| {
        let slice = local.slice(range.clone()).unwrap();
        let to = place(&remote, range.start);
        let request = Request::scattered(op, [slice].into_iter().collect(), &segment, to);
        request.deadline(Instant::now() + Duration::from_secs(3))
    };
    let batch = submit(&engine, vec![request(0..LEN as u64)]);
    eventually("it has begun", || {
        there.copies.load(Ordering::SeqCst) > 3 || batch.is_terminal()
    })
    .await;
    match gracefully {
        true => owner.shutdown(BUDGET).await.unwrap(),
        false => drop(owner),
    }
    terminal(&batch).await;
    quiescent(&batch).await;
    match batch.outcome(0).unwrap() {
        Outcome::Completed { .. } => {}
        Outcome::Failed(error) | Outcome::TimedOut(error) => {
            assert!(!matches!(error.reason, Reason::Protocol(_)), "{error}");
        }
        other => panic!("{other:?}"),
    }
    drop(batch);
    let again = once(&engine, request(0..100)).await;
    assert!(!again.is_completed());
    eventually("all slots come back", || slots(&engine) == 0).await;
    engine.fence(&segment, BUDGET).await.unwrap();
    drop(remote);
    engine.unregister_memory(local, BUDGET).await.unwrap();
    engine.shutdown(BUDGET).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_end_when_their_peer_goes() {
    for gracefully in [true, false] {
        for op in [Op::Write, Op::Read] {
            dies(gracefully, op).await;
        }
    }
}

/// The same address, and another life behind it.
#[tokio::test(flavor = "multi_thread")]
async fn law_07_another_life_of_the_peer_gets_nothing_that_was_meant_for_the_former() {
    let ground = Ground::new(300_000).await;
    let old = place(&ground.remote, 0);
    let Ground {
        engine,
        owner,
        local,
        remote,
        segment,
        ..
    } = ground;
    let listen = owner.control_address().unwrap().parse().unwrap();
    let known = owner.incarnation();
    owner.shutdown(BUDGET).await.unwrap();
    drop((remote, owner));
    let builder = TentEngine::builder().transport(TcpTransport::default());
    let link = StagingTransport::new(config().mover("fake", PlainMover));
    let owner = builder
        .transport(link)
        .listen(listen)
        .build()
        .await
        .unwrap();
    assert_ne!(owner.incarnation(), known);
    let remote = at(&owner, FAKE, 300_000, Permission::PeersReadWrite).await;
    let request = Request::write(local.all().unwrap(), &segment, old);
    let outcome = once(&engine, request).await;
    assert!(!outcome.is_completed(), "{outcome:?}");
    assert_same(&bytes(&remote, 0, 300_000), &vec![0; 300_000], "there");
    local.memory().write_at(0, &pattern(1, 300_000));
    let request = Request::write(local.all().unwrap(), &segment, place(&remote, 0));
    let outcome = once(&engine, request).await;
    assert!(outcome.is_completed(), "{outcome:?}");
    assert_same(&bytes(&remote, 0, 300_000), &pattern(1, 300_000), "there");
}

const CHILD: &str = "STAGING_TEST_CHILD";

/// Part of the test below, in a process of its own.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a parent"]
async fn an_owner() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let engine = staged(config().mover("fake", PlainMover)).await;
    let _offered = at(&engine, FAKE, 4 << 20, Permission::PeersReadWrite).await;
    println!("offers {}", engine.segment_name());
    tokio::time::sleep(Duration::from_secs(60)).await;
}

/// Ends the process that it stands for.
struct Owner(std::process::Child);

impl Drop for Owner {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_ends_its_transfers_and_costs_no_slot() {
    use std::io::{BufRead, BufReader};

    const LEN: usize = 4 << 20;
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_owner", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut owner = Owner(child.unwrap());
    let lines = BufReader::new(owner.0.stdout.take().unwrap()).lines();
    let mut names = lines.map_while(Result::ok).filter_map(|line| {
        let (_, name) = line.split_once("offers ")?;
        Some(name.to_owned())
    });
    let name = names.next().expect("it says what it offers");
    let engine = staged(config().mover("fake", PlainMover)).await;
    let local = at(&engine, FAKE, LEN, Permission::Local).await;
    let segment = engine.open_segment(&name, BUDGET).await.unwrap();
    let descriptor = segment.descriptor();
    let remote = descriptor.buffers().next().unwrap();
    let to = RemoteRange::Registered {
        registration: remote.registration,
        generation: Some(remote.generation),
        offset: 0,
    };
    let deadline = || Instant::now() + Duration::from_secs(3);
    let write = || Request::write(local.all().unwrap(), &segment, to).deadline(deadline());
    let read = || Request::read(local.all().unwrap(), &segment, to).deadline(deadline());
    local.memory().write_at(0, &pattern(1, LEN));
    assert!(once(&engine, write()).await.is_completed());
    local.memory().write_at(0, &pattern(2, LEN));
    assert!(once(&engine, read()).await.is_completed());
    assert_same(&bytes(&local, 0, LEN), &pattern(1, LEN), "what was written");
    let batch = submit(&engine, (0..8).flat_map(|_| [write(), read()]).collect());
    eventually("it has begun", || slots(&engine) > 0).await;
    owner.0.kill().unwrap();
    terminal(&batch).await;
    quiescent(&batch).await;
    for i in 0..16 {
        let outcome = batch.outcome(i).unwrap();
        assert!(!outcome.is_cancelled(), "{outcome:?}");
    }
    drop(batch);
    eventually("all slots come back", || slots(&engine) == 0).await;
    engine.unregister_memory(local, BUDGET).await.unwrap();
    engine.shutdown(BUDGET).await.unwrap();
}

/// The way to a peer's control service is cut while the peer copies.
#[cfg(feature = "conformance")]
#[tokio::test(flavor = "multi_thread")]
async fn law_03_a_write_whose_peer_is_out_of_reach_is_quiet_when_the_lease_is_over() {
    use mooncake_tent::conformance::{Relay, Rules};

    let ground = Ground::new(SLOT as usize).await;
    let to = ground.owner.control_address().unwrap().parse().unwrap();
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let relay = Relay::start(anywhere, to, |_| Rules::default()).unwrap();
    let name = relay.address().to_string();
    let segment = ground.engine.open_segment(&name, BUDGET).await.unwrap();
    ground.there.shut();
    let all = ground.local.all().unwrap();
    let request = Request::write(all, &segment, place(&ground.remote, 0));
    let batch = submit(&ground.engine, vec![request]);
    eventually("the peer copies", || ground.there.inside() > 0).await;
    relay.cut_all();
    drop(relay);
    let cut = Instant::now();
    terminal(&batch).await;
    let error = error(batch.outcome(0));
    assert!(matches!(error.reason, Reason::Broken(_)), "{error}");
    assert_eq!((error.applied, error.quiescent), (Applied::Unknown, false));
    assert!(!batch.is_quiescent());
    quiescent(&batch).await;
    assert!(cut.elapsed() >= config().lease, "it was not over before");
    ground.there.open();
    drop(batch);
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_what_is_under_way_or_says_that_it_cannot() {
    let ground = Ground::new(300_000).await;
    ground.here.shut();
    let batch = submit(&ground.engine, vec![ground.request(Op::Write, 0..300_000)]);
    eventually("we copy", || ground.here.inside() > 0).await;
    let early = ground.engine.shutdown(Duration::from_millis(100)).await;
    assert!(early.is_err(), "our copy is under way");
    terminal(&batch).await;
    assert!(!batch.is_quiescent());
    ground.here.open();
    ground.engine.shutdown(BUDGET).await.unwrap();
    assert!(batch.is_quiescent());
    let late = ground.request(Op::Write, 0..1);
    assert!(!once(&ground.engine, late).await.is_completed());
}

/// Whoever names memory that it has not been told of yet takes it for ordinary memory, and learns.
#[tokio::test(flavor = "multi_thread")]
async fn memory_that_is_not_known_yet_is_found_to_be_staged() {
    let ground = Ground::new(4096).await;
    let plain = at(&ground.engine, "*", 200_000, Permission::Local).await;
    let fake = at(&ground.engine, FAKE, 200_000, Permission::Local).await;
    for local in [&plain, &fake] {
        for round in 0..4 {
            let remote = at(&ground.owner, FAKE, 200_000, Permission::PeersReadWrite).await;
            local.memory().write_at(0, &pattern(round, 200_000));
            let to = place(&remote, 0);
            let write = Request::write(local.all().unwrap(), &ground.segment, to);
            let outcome = once(&ground.engine, write).await;
            assert!(outcome.is_completed(), "{outcome:?}");
            let there = bytes(&remote, 0, 200_000);
            assert_same(&there, &pattern(round, 200_000), "there");
        }
    }
    drop((plain, fake));
    ground.close().await;
}

/// Asks like a peer, by hand.
struct Hand {
    client: ControlClient<tonic::transport::Channel>,
    target: u64,
    buffer: u64,
    generation: u32,
}

impl Hand {
    async fn of(owner: &TentEngine, buffer: &Buffer) -> Self {
        let place = format!("http://{}", owner.control_address().unwrap());
        let endpoint = tonic::transport::Endpoint::from_shared(place).unwrap();
        Self {
            client: ControlClient::new(endpoint.connect().await.unwrap()),
            target: owner.incarnation().get(),
            buffer: buffer.id().0,
            generation: buffer.generation().0,
        }
    }

    fn step(&self, step: StageStep, ticket: u64) -> StageRequest {
        StageRequest {
            target: self.target,
            sender: 7,
            ticket,
            step: step.into(),
            registration: self.buffer,
            generation: self.generation,
            length: 1000,
            budget_ms: 1000,
            ..StageRequest::default()
        }
    }

    async fn ask(&self, request: StageRequest) -> StageResponse {
        let answer = self.client.clone().stage(request).await;
        answer.unwrap().into_inner()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_13_the_slots_of_who_vanishes_come_back() {
    let ground = Ground::new(4096).await;
    let hand = Hand::of(&ground.owner, &ground.remote).await;
    for ticket in 1..=4 {
        let answer = hand.ask(hand.step(StageStep::Reserve, ticket)).await;
        assert_eq!(answer.outcome(), StageOutcome::Done, "{answer:?}");
        assert_eq!((answer.length, answer.lease_ms), (SLOT, 1000));
    }
    let full = hand.ask(hand.step(StageStep::Reserve, 5)).await;
    assert_eq!(full.outcome(), StageOutcome::Busy);
    assert_eq!(slots(&ground.owner), 4);
    // Its owner does what it is there for meanwhile, and honest peers wait.
    let outcome = once(&ground.engine, ground.request(Op::Write, 0..4096)).await;
    assert!(outcome.is_completed(), "{outcome:?}");
    let late = hand.ask(hand.step(StageStep::Drain, 1)).await;
    assert_eq!(late.outcome(), StageOutcome::NoTicket);
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_04_steps_without_sense_or_right_do_nothing() {
    let ground = Ground::new(4096).await;
    ground.remote.memory().write_at(0, &pattern(1, 4096));
    let readable = at(&ground.owner, FAKE, 4096, Permission::PeersRead).await;
    let plain = at(&ground.owner, "*", 4096, Permission::PeersReadWrite).await;
    let hand = Hand::of(&ground.owner, &ground.remote).await;
    let reserved = hand.ask(hand.step(StageStep::Reserve, 1)).await;
    assert_eq!(reserved.outcome(), StageOutcome::Done);
    let filled = hand.ask(hand.step(StageStep::Fill, 2)).await;
    assert_eq!(filled.outcome(), StageOutcome::Done);
    let with = |step, ticket, change: &dyn Fn(&mut StageRequest)| {
        let mut request = hand.step(step, ticket);
        change(&mut request);
        request
    };
    let cases = [
        (with(StageStep::Drain, 3, &|_| ()), StageOutcome::NoTicket),
        (
            with(StageStep::Drain, 1, &|it| it.sender = 8),
            StageOutcome::NoTicket,
        ),
        (with(StageStep::Drain, 2, &|_| ()), StageOutcome::NoTicket),
        (with(StageStep::Fill, 1, &|_| ()), StageOutcome::NoTicket),
        (with(StageStep::Reserve, 1, &|_| ()), StageOutcome::Refused),
        (with(StageStep::Reserve, 0, &|_| ()), StageOutcome::Refused),
        (
            with(StageStep::Reserve, 9, &|it| it.sender = 0),
            StageOutcome::Refused,
        ),
        (
            with(StageStep::Unspecified, 9, &|_| ()),
            StageOutcome::Refused,
        ),
        (
            with(StageStep::Drain, 1, &|it| it.target += 1),
            StageOutcome::OtherIncarnation,
        ),
        (
            with(StageStep::Drain, 1, &|it| it.generation += 1),
            StageOutcome::StaleGeneration,
        ),
        (
            with(StageStep::Drain, 1, &|it| it.registration ^= 1 << 40),
            StageOutcome::UnknownRegistration,
        ),
        (
            with(StageStep::Drain, 1, &|it| it.length = 4097),
            StageOutcome::OutOfBounds,
        ),
        (
            with(StageStep::Drain, 1, &|it| it.length = 0),
            StageOutcome::OutOfBounds,
        ),
        (
            with(StageStep::Drain, 1, &|it| (it.length, it.behind) = (0, 1)),
            StageOutcome::OutOfBounds,
        ),
        (
            with(StageStep::Drain, 1, &|it| it.before = 1),
            StageOutcome::OutOfBounds,
        ),
        (
            with(StageStep::Drain, 1, &|it| it.behind = 4000),
            StageOutcome::OutOfBounds,
        ),
        (
            with(StageStep::Drain, 1, &|it| it.offset = u64::MAX),
            StageOutcome::OutOfBounds,
        ),
        (
            with(StageStep::Drain, 1, &|it| it.registration = readable.id().0),
            StageOutcome::Permission,
        ),
        (
            with(StageStep::Drain, 1, &|it| it.registration = plain.id().0),
            StageOutcome::Refused,
        ),
        // The stage itself is no memory that is staged.
        (
            with(StageStep::Drain, 1, &|it| {
                (it.registration, it.generation) = (reserved.registration, reserved.generation);
            }),
            StageOutcome::Refused,
        ),
    ];
    for (request, outcome) in cases {
        let answer = hand.ask(request).await;
        assert_eq!(answer.outcome(), outcome, "{request:?}: {answer:?}");
        let there = bytes(&ground.remote, 0, 4096);
        assert_same(&there, &pattern(1, 4096), "nothing was written");
    }
    for (ticket, clean) in [(1, false), (2, true), (1, false), (77, true)] {
        let release = with(StageStep::Release, ticket, &|it| it.clean = clean);
        let answer = hand.ask(release).await;
        assert_eq!(answer.outcome(), StageOutcome::Done);
    }
    assert_eq!(slots(&ground.owner), 0);
    drop((readable, plain));
    ground.close().await;
}

/// What a slot held that was not given back cleanly is out of everybody's reach.
#[tokio::test(flavor = "multi_thread")]
async fn law_03_a_slot_that_may_be_written_is_not_lent_again() {
    let ground = Ground::new(4096).await;
    let hand = Hand::of(&ground.owner, &ground.remote).await;
    let reserved = hand.ask(hand.step(StageStep::Reserve, 1)).await;
    let release = hand.step(StageStep::Release, 1);
    assert_eq!(hand.ask(release).await.outcome(), StageOutcome::Done);
    let other = hand.ask(hand.step(StageStep::Reserve, 2)).await;
    assert_ne!(other.registration, reserved.registration);
    let plain = engine().await;
    let local = at(&plain, "*", 100, Permission::Local).await;
    let segment = open(&plain, &ground.owner).await;
    let slot = |answer: &StageResponse| RemoteRange::Registered {
        registration: mooncake_tent::RegistrationId(answer.registration),
        generation: Some(mooncake_tent::Generation(answer.generation)),
        offset: answer.offset,
    };
    let write = |to| Request::write(local.all().unwrap(), &segment, to);
    let late: TransferError = error(Some(once(&plain, write(slot(&reserved))).await));
    assert_eq!(late.reason, Reason::UnknownRegistration);
    assert!(once(&plain, write(slot(&other))).await.is_completed());
    // A slot to be read cannot be written by anybody.
    let filled = hand.ask(hand.step(StageStep::Fill, 3)).await;
    let refused = error(Some(once(&plain, write(slot(&filled))).await));
    assert_eq!(refused.reason, Reason::Permission);
    drop(local);
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_allocated_before_it_is_used() {
    let engine = staged(StagingConfig::default().mover("fake", PlainMover)).await;
    let gauges = engine.gauges();
    assert_eq!((gauges.registrations, slots(&engine)), (0, 0));
    engine.shutdown(BUDGET).await.unwrap();
}
