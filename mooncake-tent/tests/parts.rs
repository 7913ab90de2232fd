//! A request that is larger than the window goes in parts, and is one task all the same.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use std::time::{Duration, Instant};

use common::*;
use mooncake_tent::{
    Applied, Batch, Permission, Priority, Reason, RemoteRange, Request, Retry, Stage, TcpTransport,
    TentEngine, TransferEngine, TransferError,
    admission::{AdmissionConfig, Contract, Contracts, Degraded, Tenant},
    transport::{Op, Outcome, TaskSpec},
};
use scripted::{Act, pair::Pair};

const LEN: u64 = 1 << 16;

fn window(bytes: u64) -> AdmissionConfig {
    let mut config = AdmissionConfig::default();
    config.most_bytes = Some(bytes);
    config
}

/// The first link holds what comes.
async fn ground(config: AdmissionConfig) -> Pair {
    let pair = Pair::plain(TentEngine::builder().admission(config), LEN).await;
    pair.links[0].does(|_, _| Act::Hold);
    pair
}

fn broken(applied: Applied, retry: Retry) -> Outcome {
    let reason = Reason::Broken("told".into());
    let mut error = TransferError::unstarted(reason, Stage::Move, None).underway(true);
    (error.applied, error.retry) = (applied, retry);
    Outcome::Failed(error)
}

/// Where each task that came begins, and its length.
fn places(came: &[TaskSpec]) -> Vec<(u64, u64)> {
    came.iter().map(|spec| (spec.offset, spec.length)).collect()
}

async fn comes(ground: &Pair, count: usize) {
    eventually("the next one comes", || ground.came().len() >= count).await;
    assert_eq!(ground.came().len(), count);
}

/// What of a task is done, as far as its error tells.
fn told(batch: &Batch) -> (Applied, u64, u64) {
    let outcome = batch.outcome(0).unwrap();
    let error = outcome.error().unwrap().clone();
    let progress = error.progress.unwrap();
    (error.applied, progress.bytes, progress.length)
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_go_one_by_one_and_more_urgent_ones_go_between() {
    let ground = ground(window(100)).await;
    let large = ground.write(250).priority(Priority::Medium);
    let like_it = ground.write(20).priority(Priority::Medium);
    let batch = submit(&ground.engine, vec![large, like_it]);
    assert_eq!(ground.came(), [84], "what is more would not fit");
    assert_eq!(ground.engine.gauges().bytes_in_flight, 270);
    let urgent = ground.write(90).priority(Priority::High);
    let urgent = submit(&ground.engine, vec![urgent]);
    let later = submit(
        &ground.engine,
        vec![ground.write(3).priority(Priority::Low)],
    );
    ground.links[0].complete(0);
    comes(&ground, 2).await;
    assert_eq!(batch.outcome(0), None, "a part is not all of it");
    ground.serve(1, 6).await;
    terminal(&batch).await;
    assert_eq!(batch.outcome(0), Some(Outcome::Completed { bytes: 250 }));
    terminal(&urgent).await;
    terminal(&later).await;
    let came = ground.links[0].came();
    let of_large = |spec: &&TaskSpec| spec.length > 80 && spec.length < 90;
    let large: Vec<_> = came.iter().filter(of_large).cloned().collect();
    assert_eq!(places(&large), [(0, 84), (84, 84), (168, 82)]);
    let order: Vec<_> = came.iter().map(|spec| spec.length).collect();
    assert_eq!(order, [84, 90, 20, 84, 3, 82]);
    drop((batch, urgent, later));
    ground.is_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_fails_ends_the_task_and_tells_what_is_there() {
    for (applied, said) in [
        (Applied::Nothing, Applied::UpTo(100)),
        (Applied::UpTo(30), Applied::UpTo(130)),
        (Applied::Unknown, Applied::Unknown),
    ] {
        let ground = ground(window(100)).await;
        let batch = submit(&ground.engine, vec![ground.write(300)]);
        ground.links[0].complete(0);
        comes(&ground, 2).await;
        ground.links[0].end(1, broken(applied, Retry::Never), true);
        terminal(&batch).await;
        assert_eq!(told(&batch), (said, 100, 300), "{applied:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(ground.came().len(), 2);
        drop(batch);
        ground.is_empty().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_goes_over_to_another_link_at_its_first_byte_that_is_not_there() {
    let ground = ground(window(100)).await;
    let batch = submit(&ground.engine, vec![ground.write(300)]);
    ground.links[0].complete(0);
    comes(&ground, 2).await;
    let failed = broken(Applied::UpTo(30), Retry::Elsewhere);
    ground.links[0].end(1, failed, true);
    terminal(&batch).await;
    assert_eq!(batch.outcome(0), Some(Outcome::Completed { bytes: 300 }));
    let places = [0, 1].map(|link| places(&ground.links[link].came()));
    assert_eq!(places[0], [(0, 100), (100, 100)]);
    assert_eq!(places[1], [(130, 70), (200, 100)], "the rest follows there");
    drop(batch);
    ground.is_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_02_a_task_in_parts_ends_by_cancel_deadline_fence_or_shutdown() {
    // Cancelled while a part is on its way, and while one waits.
    let config = || {
        let mut config = window(100);
        config.most_requests = Some(1);
        config
    };
    let busy = ground(config()).await;
    let batch = submit(&busy.engine, vec![busy.write(300)]);
    busy.links[0].complete(0);
    comes(&busy, 2).await;
    batch.cancel(0);
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_cancelled());
    assert_eq!(told(&batch), (Applied::UpTo(100), 100, 300));
    drop(batch);
    busy.is_empty().await;

    let waiting = ground(config()).await;
    let large = || waiting.write(300).priority(Priority::Low);
    let deadline = Instant::now() + Duration::from_millis(150);
    for request in [large(), large().deadline(deadline)] {
        let first = waiting.came().len();
        let batch = submit(&waiting.engine, vec![request]);
        let other = submit(&waiting.engine, vec![waiting.write(7)]);
        comes(&waiting, first + 1).await;
        waiting.links[0].complete(first);
        comes(&waiting, first + 2).await;
        eventually("it waits", || waiting.engine.gauges().waiting_requests == 1).await;
        if first == 0 {
            batch.cancel(0);
            assert!(batch.outcome(0).unwrap().is_cancelled(), "at once");
        } else {
            terminal(&batch).await;
            assert!(batch.outcome(0).unwrap().is_timed_out());
        }
        assert_eq!(told(&batch), (Applied::UpTo(100), 100, 300));
        waiting.links[0].complete(first + 1);
        terminal(&other).await;
    }
    waiting.is_empty().await;

    let fenced = ground(config()).await;
    let batch = submit(&fenced.engine, vec![fenced.write(300)]);
    fenced.engine.fence(&fenced.segment, BUDGET).await.unwrap();
    fenced.links[0].complete(0);
    terminal(&batch).await;
    assert_eq!(told(&batch), (Applied::UpTo(100), 100, 300));
    assert_eq!(fenced.came().len(), 1, "nothing follows a fence");

    let stopped = ground(config()).await;
    let batch = submit(&stopped.engine, vec![stopped.write(300)]);
    stopped.engine.shutdown(BUDGET).await.unwrap();
    stopped.links[0].complete(0);
    terminal(&batch).await;
    assert_eq!(error(batch.outcome(0)).reason, Reason::Stopped);
    assert_eq!(told(&batch), (Applied::UpTo(100), 100, 300));
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_the_next_part_waits_until_the_one_before_is_quiet() {
    let ground = ground(window(100)).await;
    let batch = submit(&ground.engine, vec![ground.write(150)]);
    ground.links[0].end(0, Outcome::Completed { bytes: 75 }, false);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!((ground.came(), batch.outcome(0)), (vec![75], None));
    ground.links[0].settle(0);
    ground.serve(1, 2).await;
    terminal(&batch).await;
    assert_eq!(batch.outcome(0), Some(Outcome::Completed { bytes: 150 }));

    // It ends in time, too, if that never comes.
    let deadline = Instant::now() + Duration::from_millis(50);
    let batch = submit(&ground.engine, vec![ground.write(150).deadline(deadline)]);
    ground.links[0].end(2, Outcome::Completed { bytes: 75 }, false);
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_timed_out());
    assert!(!batch.is_quiescent());
    ground.links[0].settle(2);
    quiescent(&batch).await;
    drop(batch);
    ground.is_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_may_not_wait_is_not_refused_in_the_middle() {
    let mut strict = Tenant::new("strict");
    strict.defaults.max_inflight_bytes = Some(100);
    strict.defaults.allowed_degraded_actions = Some(vec![Degraded::Reject]);
    let mut config = AdmissionConfig::default();
    config.contracts = Contracts::new(Contract::default(), vec![strict]).unwrap();
    let ground = ground(config).await;
    let batch = submit(&ground.engine, vec![ground.write(300).tenant("strict")]);
    // Another tenant's requests are not in its way, nor it in theirs.
    let other = submit(&ground.engine, vec![ground.write(500)]);
    assert_eq!(ground.came(), [100, 500]);
    for number in [0, 2, 3] {
        comes(&ground, number.max(1) + 1).await;
        let second = ground.try_submit(vec![ground.write(1).tenant("strict")]);
        assert!(second.is_err(), "it has all that it may have");
        ground.links[0].complete(number);
    }
    terminal(&batch).await;
    assert_eq!(batch.outcome(0), Some(Outcome::Completed { bytes: 300 }));
    ground.links[0].complete(1);
    terminal(&other).await;
    drop((batch, other));
    ground.is_empty().await;
}

/// With real bytes, from pieces at odd places, within the process and between engines.
#[tokio::test(flavor = "multi_thread")]
async fn all_bytes_of_all_parts_arrive() {
    const ALL: usize = 3_000_017;
    let owner = engine().await;
    let builder = TentEngine::builder().transport(TcpTransport::default());
    let engine = builder.admission(window(10_001)).build().await.unwrap();
    let remote = buffer(&owner, ALL, Permission::PeersReadWrite).await;
    let mine = buffer(&engine, ALL, Permission::PeersReadWrite).await;
    let local = buffer(&engine, ALL, Permission::Local).await;
    let theirs = open(&engine, &owner).await;
    let own = engine.open_segment("", BUDGET).await.unwrap();
    for (segment, there) in [(&theirs, &remote), (&own, &mine)] {
        for (round, length) in [10_002, 99_999, ALL as u64 - 8].into_iter().enumerate() {
            for op in [Op::Write, Op::Read] {
                let seed = round as u64 * 2 + op as u64;
                let (from, to) = match op {
                    Op::Write => (&local, there),
                    Op::Read => (there, &local),
                };
                from.memory().write_at(0, &pattern(seed, ALL));
                to.memory().write_at(0, &vec![0; ALL]);
                let cut = [0, 1, length / 3, length];
                let pieces = cut
                    .windows(2)
                    .map(|cut| local.slice(cut[0]..cut[1]).unwrap());
                let at = RemoteRange::Address(there.memory().address() + 5);
                let request = Request::scattered(op, pieces.collect(), segment, at);
                let batch = submit(&engine, vec![request]);
                terminal(&batch).await;
                let bytes_moved = Outcome::Completed { bytes: length };
                assert_eq!(batch.outcome(0), Some(bytes_moved));
                let (begins, ends) = match op {
                    Op::Write => (0, 5),
                    Op::Read => (5, 0),
                };
                let found = bytes(to, ends, length as usize);
                let sent = bytes(from, begins, length as usize);
                assert_same(&found, &sent, "all parts");
                let rest = bytes(to, ends + length, 3);
                assert_eq!(rest, [0; 3], "and no more");
            }
        }
    }
    let gauges = engine.gauges();
    assert_eq!((gauges.waiting_requests, gauges.tasks_in_flight), (0, 0));
    let moved: u64 = engine.metrics().links.iter().map(|link| link.bytes).sum();
    assert_eq!(moved, 4 * (10_002 + 99_999 + ALL as u64 - 8));
}
