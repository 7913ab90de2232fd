//! What an engine has done is counted exactly, by link, peer and direction.
#![cfg(all(feature = "conformance", feature = "tcp", feature = "host"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use std::{
    thread,
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    Buffer, Failovers, LinkMetrics, Metrics, Permission, Reason, Request, Retry, Segment,
    ShmTransport, Stage, TcpTransport, TentEngine, TentEngineBuilder, TransferEngine,
    TransferError,
    admission::AdmissionConfig,
    conformance::{Chaos, Mischief},
    transport::{Op, Outcome},
};
use scripted::{Act, Scripted};

const LEN: usize = 1 << 16;

struct Ground {
    engine: TentEngine,
    local: Buffer,
    remote: Buffer,
    segment: Segment,
    owner: TentEngine,
}

impl Ground {
    async fn new(engine: TentEngine, owner: TentEngine) -> Self {
        Self {
            local: buffer(&engine, LEN, Permission::Local).await,
            remote: buffer(&owner, LEN, Permission::PeersReadWrite).await,
            segment: open(&engine, &owner).await,
            engine,
            owner,
        }
    }

    fn request(&self, op: Op, length: u64) -> Request {
        let local = [self.local.slice(0..length).unwrap()];
        let at = place(&self.remote, 0);
        Request::scattered(op, local.into_iter().collect(), &self.segment, at)
    }

    fn of(&self, transport: &str, op: Op) -> LinkMetrics {
        let metrics = self.engine.metrics();
        let found = metrics
            .links
            .iter()
            .find(|it| it.transport == transport && it.op == op);
        found
            .unwrap_or_else(|| panic!("{transport} {op}: {metrics:#?}"))
            .clone()
    }
}

/// Completed, failed, cancelled, timed out.
fn ends(link: &LinkMetrics) -> [u64; 4] {
    [link.completed, link.failed, link.cancelled, link.timed_out]
}

fn sum(metrics: &Metrics, number: impl Fn(&LinkMetrics) -> u64) -> u64 {
    metrics.links.iter().map(number).sum()
}

/// Over shared memory that is like this, and TCP.
async fn both(mischief: Mischief) -> TentEngine {
    let shm = Chaos::new(ShmTransport::default(), mischief);
    let builder = TentEngine::builder().transport(shm);
    let builder = builder.transport(TcpTransport::default());
    builder.build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_task_and_every_byte_is_counted_once_from_whatever_thread() {
    let ground = Ground::new(engine().await, engine().await).await;
    assert_eq!(ground.engine.metrics().links, []);
    tokio::task::block_in_place(|| {
        thread::scope(|scope| {
            for worker in 0..4_u64 {
                let ground = &ground;
                scope.spawn(move || {
                    for round in 0..50 {
                        let op = if round % 2 == 0 { Op::Read } else { Op::Write };
                        let tasks = (0..10).map(|i| ground.request(op, 1 + worker + i));
                        let batch = submit(&ground.engine, tasks.collect());
                        assert!(batch.wait(BUDGET));
                    }
                });
            }
        });
    });
    // For each worker 25 rounds of tasks of 1 to 10 bytes and `worker` more.
    let bytes = 4 * 25 * 55 + 25 * 10 * (1 + 2 + 3);
    for op in [Op::Read, Op::Write] {
        let link = ground.of("tcp", op);
        assert_eq!(link.peer.as_deref(), Some(ground.owner.segment_name()));
        assert_eq!(ends(&link), [1000, 0, 0, 0]);
        assert_eq!((link.bytes, link.retries), (bytes, 0));
        // Of each batch the engine measures the first task, if any.
        let measured = link.latency.count();
        assert!((1..=100).contains(&measured), "{measured}");
        assert!(link.latency.sum() > Duration::ZERO);
    }
    let metrics = ground.engine.metrics();
    assert_eq!(metrics.links.len(), 2);
    assert_eq!(metrics.failovers, []);
    assert_eq!(ground.owner.metrics().links, [], "it has asked for nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn failovers_are_counted_by_where_from_and_where_to() {
    let mut mischief = Mischief::none(1);
    mischief.busy = 1_000;
    let ground = Ground::new(both(mischief).await, both(Mischief::none(2)).await).await;
    let tasks = (0..10).map(|_| ground.request(Op::Write, 100));
    let batch = submit(&ground.engine, tasks.collect());
    terminal(&batch).await;
    let metrics = ground.engine.metrics();
    let [
        Failovers {
            from, to, tasks, ..
        },
    ] = metrics.failovers[..]
    else {
        panic!("{metrics:#?}");
    };
    assert_eq!((from, to, tasks), ("shm", "tcp", 10));
    assert_eq!(ends(&ground.of("tcp", Op::Write)), [10, 0, 0, 0]);
    assert_eq!(sum(&metrics, |it| it.bytes), 1000);
    let text = metrics.text();
    assert!(
        text.contains("tent_failovers_total{from=\"shm\",to=\"tcp\"} 10"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_arrived_before_a_failover_counts_where_it_went() {
    let mut mischief = Mischief::none(3);
    mischief.stop = 1_000;
    let ground = Ground::new(both(mischief).await, both(Mischief::none(4)).await).await;
    let write = ground.request(Op::Write, LEN as u64);
    assert!(once(&ground.engine, write).await.is_completed());
    let metrics = ground.engine.metrics();
    let (before, after) = (ground.of("shm", Op::Write), ground.of("tcp", Op::Write));
    assert_eq!((before.completed, after.completed), (0, 1));
    assert!(before.bytes > 0 && after.bytes > 0, "{metrics:#?}");
    assert_eq!(before.bytes + after.bytes, LEN as u64);
    assert_eq!(metrics.failovers[0].tasks, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_do_not_complete_are_counted_by_how_they_ended() {
    let link = Scripted::new("a");
    let build = async |link: &Scripted| {
        let builder = TentEngine::builder().transport(link.clone());
        builder.build().await.unwrap()
    };
    let ground = Ground::new(build(&link).await, build(&Scripted::new("a")).await).await;
    let peer = ground.segment.incarnation();
    link.does(move |spec, _| match spec.length {
        1 => Act::End(Outcome::timed_out(Stage::Move, peer), true),
        2 => Act::End(Outcome::cancelled(Stage::Move, peer), true),
        3 => {
            let reason = Reason::Broken("it is".into());
            let stage = Stage::Move;
            let mut error = TransferError::unstarted(reason, stage, Some(peer));
            error.retry = Retry::Never;
            Act::End(Outcome::Failed(error), true)
        }
        _ => Act::Complete,
    });
    let lengths = [1, 2, 2, 3, 3, 3, 4, 4, 4, 4];
    let tasks = lengths.map(|length| ground.request(Op::Read, length));
    let batch = submit(&ground.engine, tasks.to_vec());
    terminal(&batch).await;
    let link = ground.of("a", Op::Read);
    assert_eq!(ends(&link), [4, 3, 2, 1]);
    assert_eq!(link.bytes, 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_refreshes_and_registrations_are_counted() {
    let ground = Ground::new(engine().await, engine().await).await;
    // From here on nobody tells what changes there.
    ground.engine.close_segment(&ground.segment);
    let (owner, remote) = (&ground.owner, &ground.remote);
    owner.renew_registration(remote, BUDGET).await.unwrap();
    let local = ground.local.slice(0..64).unwrap();
    let read = Request::read(local, &ground.segment, address(remote, 0));
    assert!(once(&ground.engine, read).await.is_completed());
    let metrics = ground.engine.metrics();
    let link = ground.of("tcp", Op::Read);
    assert_eq!((ends(&link), link.retries), ([1, 0, 0, 0], 1));
    assert_eq!(
        (metrics.refreshes.fetched, metrics.refreshes.failed),
        (1, 0)
    );
    assert_eq!(metrics.failovers, []);

    let late = buffer(owner, 64, Permission::PeersReadWrite).await;
    let registrations = owner.metrics().registrations;
    assert_eq!(
        (registrations.registered, registrations.unregistered),
        (2, 0)
    );
    owner.unregister_memory(late, BUDGET).await.unwrap();
    let registrations = owner.metrics().registrations;
    assert_eq!(
        (registrations.registered, registrations.unregistered),
        (2, 1)
    );
    assert_eq!((registrations.renewed, registrations.refused), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_and_refusals_of_admission_are_counted() {
    let link = Scripted::new("a");
    link.does(|_, _| Act::Hold);
    let mut config = AdmissionConfig::default();
    config.most_requests = Some(1);
    let builder = TentEngine::builder().transport(link.clone());
    let engine = builder.admission(config).build().await.unwrap();
    let owner = TentEngine::builder().transport(Scripted::new("a"));
    let ground = Ground::new(engine, owner.build().await.unwrap()).await;
    let soon = Instant::now() + Duration::from_millis(50);
    let requests = vec![
        ground.request(Op::Write, 1),
        ground.request(Op::Write, 2),
        ground.request(Op::Write, 3).deadline(soon),
    ];
    let batch = submit(&ground.engine, requests);
    let late = || ground.engine.metrics().admission.waited_too_long == 1;
    eventually("the third is too late", late).await;
    link.complete(0);
    eventually("the second goes", || link.count() == 2).await;
    link.complete(1);
    terminal(&batch).await;
    let admission = ground.engine.metrics().admission;
    assert_eq!(admission.waits.count(), 1);
    assert!(
        admission.waits.sum() >= Duration::from_millis(30),
        "{admission:?}"
    );
    assert_eq!((admission.refused, admission.infeasible), (0, 0));
    assert_eq!(ends(&ground.of("a", Op::Write)), [2, 0, 0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_count_what_peers_do_with_their_memory() {
    async fn served_over(link: fn() -> TentEngineBuilder, name: &'static str, reads: bool) {
        let (engine, owner) = (link().build().await, link().build().await);
        let ground = Ground::new(engine.unwrap(), owner.unwrap()).await;
        let mut wanted = Vec::new();
        for (op, lengths) in [(Op::Read, [1, 700, 5000]), (Op::Write, [2, 40, 600])] {
            for length in lengths {
                let outcome = once(&ground.engine, ground.request(op, length)).await;
                assert!(outcome.is_completed());
            }
            // What the owner does not let them do is refused by it, or not asked at all.
            let closed = buffer(&ground.owner, 10, Permission::PeersRead).await;
            let local = ground.local.slice(0..10).unwrap();
            let refused = Request::write(local, &ground.segment, place(&closed, 0));
            if op == Op::Write {
                assert!(!once(&ground.engine, refused).await.is_completed());
            }
            if op == Op::Write || reads {
                let refused = u64::from(op == Op::Write);
                wanted.push((name, op, 3, lengths.iter().sum::<u64>(), refused));
            }
        }
        let served = ground.owner.metrics().served;
        let told: Vec<_> = served
            .iter()
            .map(|it| (it.transport, it.op, it.requests, it.bytes, it.refused))
            .collect();
        assert_eq!(told, wanted);
        assert!(ground.engine.metrics().served.is_empty(), "nobody asked it");
        let text = ground.owner.metrics().text();
        let line = format!("tent_served_bytes_total{{transport=\"{name}\",op=\"write\"}} 642");
        assert!(text.lines().any(|it| it == line), "{text}");
    }

    let tcp = || TentEngine::builder().transport(TcpTransport::default());
    served_over(tcp, "tcp", true).await;
    #[cfg(feature = "host")]
    {
        use mooncake_tent::{CmaTransport, ShmTransport};
        // Readers of the same host copy by themselves.
        let shm = || TentEngine::builder().transport(ShmTransport::default());
        served_over(shm, "shm", false).await;
        let cma = || TentEngine::builder().transport(CmaTransport::default());
        served_over(cma, "cma", false).await;
    }
}
