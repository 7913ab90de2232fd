//! What a link is silent about, or leaves half done, goes on over the next one: after the old attempt is
//! quiet, and from where it stands.
#![cfg(all(feature = "conformance", feature = "tcp"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    Applied, Buffer, Hint, InProcess, PeerId, Permission, Reason, Request, Segment, Stage,
    TcpTransport, TentEngine, TentEngineBuilder, TransferEngine, TransferError,
    conformance::{Chaos, Mischief, Relay, Rules},
    transport::{Op, Outcome},
};
use scripted::{Act, Scripted};

const LEN: usize = 300_007;
const ATTEMPT: Duration = Duration::from_millis(60);

struct Ground {
    engine: TentEngine,
    local: Buffer,
    remote: Buffer,
    segment: Segment,
    _owner: TentEngine,
}

impl Ground {
    async fn new(owner: TentEngineBuilder, engine: TentEngineBuilder) -> Self {
        let owner = owner.build().await.unwrap();
        let engine = engine.attempt_timeout(ATTEMPT).build().await.unwrap();
        Self {
            local: buffer(&engine, LEN, Permission::Local).await,
            remote: buffer(&owner, LEN, Permission::PeersReadWrite).await,
            segment: open(&engine, &owner).await,
            engine,
            _owner: owner,
        }
    }

    /// Within the process by a link that misbehaves, or else by TCP.
    async fn mischievous(mischief: Mischief) -> Self {
        let link = InProcess::new();
        let owner = TentEngine::builder().in_process(link.another_end());
        let engine = TentEngine::builder().transport(Chaos::new(link, mischief));
        let both = [owner, engine].map(|side| side.transport(TcpTransport::default()));
        let [owner, engine] = both;
        Self::new(owner, engine).await
    }

    /// Over links that do as they are told, in this order.
    async fn scripted(links: &[Scripted], most: u8) -> Self {
        let builders = [TentEngine::builder(), TentEngine::builder()];
        let [mut owner, mut engine] = builders;
        for link in links {
            let name = mooncake_tent::transport::Transport::name(link);
            owner = owner.transport(Scripted::new(name));
            engine = engine.transport(link.clone());
        }
        Self::new(owner, engine.max_failover_attempts(most)).await
    }

    fn request(&self, op: Op) -> Request {
        let local = [self.local.all().unwrap()].into_iter().collect();
        Request::scattered(op, local, &self.segment, place(&self.remote, 0))
    }

    /// Moves bytes both ways, and looks at them.
    async fn moves_bytes(&self, seed: u64) {
        self.local.memory().write_at(0, &pattern(seed, LEN));
        let written = once(&self.engine, self.request(Op::Write)).await;
        assert_eq!(written, Outcome::Completed { bytes: LEN as u64 });
        assert_same(&bytes(&self.remote, 0, LEN), &pattern(seed, LEN), "written");
        self.local.memory().write_at(0, &pattern(seed + 1, LEN));
        let read = once(&self.engine, self.request(Op::Read)).await;
        assert_eq!(read, Outcome::Completed { bytes: LEN as u64 });
        assert_same(&bytes(&self.local, 0, LEN), &pattern(seed, LEN), "read");
    }

    fn peer(&self) -> PeerId {
        self.segment.incarnation()
    }
}

fn broken(applied: Applied) -> Outcome {
    let reason = Reason::Broken("so it was told".into());
    let mut error = TransferError::unstarted(reason, Stage::Move, None);
    error.applied = applied;
    Outcome::Failed(error)
}

fn links<const N: usize>() -> [Scripted; N] {
    let names = ["a", "b", "c", "d", "e"];
    std::array::from_fn(|at| Scripted::new(names[at]))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_link_is_silent_about_goes_over_the_next_one() {
    let mut mischief = Mischief::none(1);
    mischief.silent_after = Some(0);
    let ground = Ground::mischievous(mischief).await;
    for seed in 0..5 {
        ground.moves_bytes(seed).await;
    }
    assert_eq!(ground.engine.gauges().tasks_in_flight, 0);
    assert_eq!(ground.local.leases(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_link_says_is_dead_or_full_goes_over_the_next_one() {
    for (busy, refuse, seed) in [(1000, 0, 1), (0, 1000, 2), (300, 500, 3)] {
        let mut mischief = Mischief::none(seed);
        (mischief.busy, mischief.refuse) = (busy, refuse);
        let ground = Ground::mischievous(mischief).await;
        for seed in 0..10 {
            ground.moves_bytes(seed).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_link_stopped_the_next_one_goes_on() {
    let mut mischief = Mischief::none(3);
    mischief.stop = 1000;
    let ground = Ground::mischievous(mischief).await;
    for seed in 0..10 {
        ground.moves_bytes(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_01_a_write_that_may_have_been_applied_is_not_applied_again_but_a_read_is_repeated() {
    for fault in [
        |mischief: &mut Mischief| mischief.lose_end = 1000,
        |mischief: &mut Mischief| mischief.part_loudly = 1000,
        |mischief: &mut Mischief| mischief.truncate = 1000,
    ] {
        let mut mischief = Mischief::none(5);
        fault(&mut mischief);
        let ground = Ground::mischievous(mischief).await;
        ground.remote.memory().write_at(0, &pattern(1, LEN));
        let read = once(&ground.engine, ground.request(Op::Read)).await;
        assert_eq!(read, Outcome::Completed { bytes: LEN as u64 });
        assert_same(&bytes(&ground.local, 0, LEN), &pattern(1, LEN), "read");

        ground.local.memory().write_at(0, &pattern(2, LEN));
        let batch = submit(&ground.engine, vec![ground.request(Op::Write)]);
        terminal(&batch).await;
        quiescent(&batch).await;
        let outcome = batch.outcome(0).unwrap();
        let error = outcome.error().unwrap();
        assert_eq!(error.applied, Applied::Unknown, "{error}");
        // Once it is quiet, the place is its owner's.
        ground.remote.memory().write_at(0, &pattern(3, LEN));
        tokio::time::sleep(2 * ATTEMPT).await;
        assert_same(&bytes(&ground.remote, 0, LEN), &pattern(3, LEN), "late");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_nothing_lands_late_from_an_attempt_that_another_link_has_followed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let data = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = data.local_addr().unwrap();
    drop(data);
    let address = listener.local_addr().unwrap();
    let mut paused = Rules::default();
    paused.up.pause_after = Some(0);
    let relay = Relay::over(listener, to, move |_| paused).unwrap();
    let mut theirs = mooncake_tent::TcpConfig::default();
    theirs.listen = Some(to);
    theirs.advertise = Some(address.to_string());
    let link = InProcess::new();
    let owner = TentEngine::builder()
        .in_process(link.another_end())
        .transport(TcpTransport::new(theirs));
    let engine = TentEngine::builder()
        .in_process(link)
        .transport(TcpTransport::default());
    let ground = Ground::new(owner, engine).await;
    for seed in 0..3 {
        ground.local.memory().write_at(0, &pattern(seed, LEN));
        let request = ground.request(Op::Write).hint(Hint::soft("tcp"));
        let written = once(&ground.engine, request).await;
        assert_eq!(written, Outcome::Completed { bytes: LEN as u64 });
        ground.remote.memory().write_at(0, &pattern(90, LEN));
        relay.resume();
        tokio::time::sleep(2 * ATTEMPT).await;
        assert_same(&bytes(&ground.remote, 0, LEN), &pattern(90, LEN), "late");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_link_gets_only_what_is_not_known_to_be_applied() {
    let [a, b, c] = links();
    let ground = Ground::scripted(&[a.clone(), b.clone(), c.clone()], 3).await;
    for (round, op) in [Op::Read, Op::Write].into_iter().enumerate() {
        a.does(|_, _| Act::End(broken(Applied::UpTo(1000)), true));
        b.does(|_, _| Act::End(broken(Applied::UpTo(7)), true));
        let outcome = once(&ground.engine, ground.request(op)).await;
        assert_eq!(outcome, Outcome::Completed { bytes: LEN as u64 });
        let parts = [&a, &b, &c].map(|link| {
            let spec = &link.came()[round];
            (spec.offset, spec.length)
        });
        let len = LEN as u64;
        let expected = [(0, len), (1000, len - 1000), (1007, len - 1007)];
        assert_eq!(parts, expected, "{op}");
    }
    // What nobody can bring to its end says how far it came.
    c.does(|_, _| Act::End(broken(Applied::Nothing), true));
    let outcome = once(&ground.engine, ground.request(Op::Write)).await;
    let error = outcome.error().unwrap();
    assert_eq!(error.applied, Applied::UpTo(1007), "{error}");
    let progress = error.progress.unwrap();
    assert_eq!((progress.length, progress.bytes), (LEN as u64, 1007));
    assert_eq!(ground.local.leases(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_applied_is_told_although_the_owner_cannot_be_asked_any_more() {
    let link = Scripted::new("a");
    let owner = TentEngine::builder().transport(Scripted::new("a"));
    let owner = owner.build().await.unwrap();
    let engine = TentEngine::builder().transport(link.clone());
    let engine = engine.build().await.unwrap();
    let local = buffer(&engine, 1000, Permission::Local).await;
    let remote = buffer(&owner, 1000, Permission::PeersReadWrite).await;
    let segment = open(&engine, &owner).await;
    let to = place(&remote, 0);
    link.does(|_, _| {
        let why = Reason::Unreachable("gone".into());
        let mut error = TransferError::unstarted(why, Stage::Move, None).underway(true);
        error.applied = Applied::UpTo(400);
        Act::End(Outcome::Failed(error), true)
    });
    owner.shutdown(BUDGET).await.unwrap();
    let request = Request::write(local.all().unwrap(), &segment, to);
    let outcome = once(&engine, request).await;
    let error = outcome.error().unwrap();
    assert_eq!(error.applied, Applied::UpTo(400), "{error}");
    let posted: Vec<_> = link.came().iter().map(|spec| spec.offset).collect();
    assert_eq!(posted, [0], "nothing is applied twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn law_05_parts_of_two_lives_of_a_buffer_are_never_put_together() {
    for op in [Op::Read, Op::Write] {
        let [a, b] = links();
        a.does(|_, _| Act::End(broken(Applied::UpTo(1000)), true));
        let stale = || {
            let reason = Reason::StaleGeneration;
            Outcome::Failed(TransferError::unstarted(reason, Stage::Admit, None))
        };
        b.does(move |_, number| match number {
            0 => Act::Hold,
            _ => Act::Complete,
        });
        let ground = Ground::scripted(&[a.clone(), b.clone()], 3).await;
        let local = [ground.local.all().unwrap()].into_iter().collect();
        let place = address(&ground.remote, 0);
        let request = Request::scattered(op, local, &ground.segment, place);
        let batch = submit(&ground.engine, vec![request]);
        eventually("the rest is at the next link", || b.count() == 1).await;
        let renewed = ground._owner.renew_registration(&ground.remote, BUDGET);
        renewed.await.unwrap();
        b.end(0, stale(), true);
        terminal(&batch).await;
        let outcome = batch.outcome(0).unwrap();
        assert!(outcome.error().is_some(), "{op}: {outcome:?}");
        assert_eq!(b.count(), 1, "{op}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_to_another_link_so_often_and_no_more() {
    for most in 0..4 {
        let links: [_; 5] = links();
        for link in &links {
            link.does(|_, _| Act::End(broken(Applied::Nothing), true));
        }
        let ground = Ground::scripted(&links, most).await;
        let outcome = once(&ground.engine, ground.request(Op::Write)).await;
        assert!(outcome.error().is_some());
        let tried: usize = links.iter().map(Scripted::count).sum();
        assert_eq!(tried, usize::from(most) + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_caller_ended_goes_nowhere_else() {
    let [a, b] = links();
    a.does(|_, _| Act::Hold);
    let ground = Ground::scripted(&[a.clone(), b.clone()], 3).await;
    for op in [Op::Read, Op::Write] {
        let batch = submit(&ground.engine, vec![ground.request(op)]);
        batch.cancel(0);
        terminal(&batch).await;
        assert!(batch.outcome(0).unwrap().is_cancelled());
    }
    // Nor if the link then says that it failed.
    let batch = submit(&ground.engine, vec![ground.request(Op::Read)]);
    let waits = a.count() - 1;
    a.ignores_cancel();
    batch.cancel(0);
    a.end(waits, broken(Applied::Nothing), true);
    terminal(&batch).await;
    assert_eq!(b.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_the_next_link_gets_nothing_before_the_last_one_is_quiet() {
    let [a, b] = links();
    let ground = Ground::scripted(&[a.clone(), b.clone()], 3).await;
    let peer = ground.peer();
    a.does(move |_, _| {
        let late = Outcome::timed_out(Stage::Move, peer).underway(false);
        Act::End(late, false)
    });
    let batch = submit(&ground.engine, vec![ground.request(Op::Read)]);
    tokio::time::sleep(ATTEMPT).await;
    assert!(!batch.is_terminal() && !batch.is_quiescent());
    assert_eq!(b.count(), 0, "the first may still write into the buffer");
    a.settle(0);
    terminal(&batch).await;
    let completed = Outcome::Completed { bytes: LEN as u64 };
    assert_eq!((batch.outcome(0), b.count()), (Some(completed), 1));

    // Where that never happens, the deadline is the end, and the memory stays leased.
    let deadline = Instant::now() + ATTEMPT;
    let request = ground.request(Op::Read).deadline(deadline);
    let batch = submit(&ground.engine, vec![request]);
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_timed_out());
    assert!(Instant::now() >= deadline && !batch.is_quiescent());
    assert_eq!((b.count(), ground.local.leases()), (1, 1));
    a.settle(1);
    quiescent(&batch).await;
    assert_eq!(ground.local.leases(), 0);
    // A write that is not quiet is never repeated.
    let batch = submit(&ground.engine, vec![ground.request(Op::Write)]);
    terminal(&batch).await;
    a.settle(2);
    quiescent(&batch).await;
    assert_eq!(b.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_task_tries_a_link_that_failed_and_its_success_brings_the_others_back() {
    let [a, b] = links();
    let ground = Ground::scripted(&[a.clone(), b.clone()], 3).await;
    let gone = || {
        let reason = Reason::Unreachable("so it was told".into());
        Act::End(
            Outcome::Failed(TransferError::unstarted(reason, Stage::Connect, None)),
            true,
        )
    };
    a.does(move |_, _| gone());
    let request = || ground.request(Op::Write);
    assert!(once(&ground.engine, request()).await.is_completed());
    assert_eq!((a.count(), b.count()), (1, 1));
    // From now on the one that tries it waits there.
    a.does(|_, _| Act::Hold);
    let explained = || {
        let qos = mooncake_tent::Qos::new();
        let ranking = ground
            .engine
            .explain(Op::Write, LEN as u64, &qos, &ground.segment);
        ranking.ranked[0].name.clone()
    };
    eventually("it may be tried", || explained() == "a").await;
    let all = submit(&ground.engine, (0..8).map(|_| request()).collect());
    assert_eq!((a.count(), b.count()), (2, 8), "one tries");
    assert_eq!(explained(), "b");
    a.does(|_, _| Act::Complete);
    a.complete(1);
    terminal(&all).await;
    assert_eq!(explained(), "a");
    eventually("all use it again", || {
        let batch = submit(&ground.engine, vec![request(), request()]);
        assert!(batch.is_terminal());
        a.count() >= 4
    })
    .await;
    assert_eq!(a.count(), 4, "both at once");
}
