//! What one link cannot carry goes over the next one.
#![cfg(all(feature = "conformance", feature = "tcp", feature = "host"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use common::*;
use mooncake_tent::{
    Buffer, CmaTransport, Hint, HostConfig, Permission, Qos, Reason, Request, Retry, Segment,
    ShmTransport, TcpConfig, TcpTransport, TentEngine, TransferEngine,
    conformance::{Chaos, Mischief, Rules},
    selector::{CircuitConfig, Exclusion, Merit},
    transport::Op,
};

const LEN: usize = 1 << 20;

/// Takes nobody's sessions.
fn closed() -> HostConfig {
    let mut config = HostConfig::default();
    config.peers = 0;
    config
}

struct Ground {
    engine: TentEngine,
    local: Buffer,
    remote: Buffer,
    segment: Segment,
}

impl Ground {
    async fn new(engine: TentEngine, owner: &TentEngine) -> Self {
        Self {
            local: buffer(&engine, LEN, Permission::Local).await,
            remote: buffer(owner, LEN, Permission::PeersReadWrite).await,
            segment: open(&engine, owner).await,
            engine,
        }
    }

    fn request(&self, op: Op) -> Request {
        let local = [self.local.all().unwrap()];
        Request::scattered(
            op,
            local.into_iter().collect(),
            &self.segment,
            place(&self.remote, 0),
        )
    }

    async fn moves_bytes(&self, seed: u64) {
        self.local.memory().write_at(0, &pattern(seed, LEN));
        let written = once(&self.engine, self.request(Op::Write)).await;
        assert!(written.is_completed(), "{written:?}");
        assert_same(&bytes(&self.remote, 0, LEN), &pattern(seed, LEN), "written");
        self.local.memory().write_at(0, &pattern(seed + 1, LEN));
        let read = once(&self.engine, self.request(Op::Read)).await;
        assert!(read.is_completed(), "{read:?}");
        assert_same(&bytes(&self.local, 0, LEN), &pattern(seed, LEN), "read");
    }

    fn first(&self) -> String {
        let ranking = self
            .engine
            .explain(Op::Read, LEN as u64, &Qos::new(), &self.segment);
        ranking.ranked[0].name.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_link_cannot_carry_goes_over_the_next_one_and_the_link_is_tried_again_later() {
    let owner = TentEngine::builder().transport(ShmTransport::new(closed()));
    let owner = owner.transport(CmaTransport::new(closed()));
    let owner = owner
        .transport(TcpTransport::default())
        .build()
        .await
        .unwrap();
    let engine = TentEngine::builder().transport(ShmTransport::default());
    let engine = engine.transport(CmaTransport::default());
    let engine = engine
        .transport(TcpTransport::default())
        .build()
        .await
        .unwrap();
    let ground = Ground::new(engine, &owner).await;
    assert_eq!(ground.first(), "shm");
    ground.moves_bytes(1).await;

    // It is known now, and told until a later request finds otherwise.
    let ranking = ground
        .engine
        .explain(Op::Read, LEN as u64, &Qos::new(), &ground.segment);
    let barred = ranking.excluded.iter().filter_map(|link| match &link.why {
        Exclusion::Open { why, .. } => Some((&link.name, why)),
        _ => None,
    });
    let on_trial = ranking.ranked.iter().flat_map(|link| {
        link.merits.iter().filter_map(|merit| match merit {
            Merit::HalfOpen(why) => Some((&link.name, why)),
            _ => None,
        })
    });
    let mut known: Vec<_> = barred.chain(on_trial).collect();
    known.sort();
    let names: Vec<_> = known.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["cma", "shm"], "{ranking}");
    assert!(
        known.iter().all(|(_, why)| why.contains("sessions")),
        "{ranking}"
    );
    ground.moves_bytes(2).await;
    eventually("it is tried again", || ground.first() == "shm").await;
    ground.moves_bytes(3).await;
    assert_eq!(ground.engine.gauges().tasks_in_flight, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_whose_connection_breaks_goes_on_behind_what_has_come() {
    const WHOLE: usize = 16 << 20;
    let plan = |_| {
        let mut rules = Rules::default();
        rules.down.cut_after = Some(WHOLE as u64 / 2 + 100_000);
        rules
    };
    let mut config = TcpConfig::default();
    config.lanes_per_peer = 1;
    let (owner, _relay) = relayed_beside(config.clone(), plan, |engine| {
        engine.transport(ShmTransport::default())
    })
    .await;
    let engine = TentEngine::builder()
        .transport(TcpTransport::new(config))
        .transport(ShmTransport::default());
    let engine = engine.build().await.unwrap();
    let local = buffer(&engine, WHOLE, Permission::Local).await;
    let remote = buffer(&owner, WHOLE, Permission::PeersRead).await;
    remote.memory().write_at(0, &pattern(7, WHOLE));
    let segment = open(&engine, &owner).await;
    let read = Request::read(local.all().unwrap(), &segment, place(&remote, 0));
    let outcome = once(&engine, read.hint(Hint::soft("tcp"))).await;
    assert!(outcome.is_completed(), "{outcome:?}");
    assert_same(&bytes(&local, 0, WHOLE), &pattern(7, WHOLE), "read");
    let links = engine.metrics().links;
    let bytes = |name| {
        let of = links.iter().filter(|link| link.transport == name);
        of.map(|link| link.bytes).sum::<u64>()
    };
    let (first, second) = (bytes("tcp"), bytes("shm"));
    assert_eq!(first + second, WHOLE as u64);
    // All but the slice that was cut had come.
    let slice = 1 << 20;
    assert!(first >= WHOLE as u64 / 2 - slice, "{first} and {second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_link_is_left_the_first_failure_is_told() {
    let owner = TentEngine::builder().transport(ShmTransport::new(closed()));
    let owner = owner
        .transport(CmaTransport::new(closed()))
        .build()
        .await
        .unwrap();
    let engine = TentEngine::builder().transport(ShmTransport::default());
    let engine = engine
        .transport(CmaTransport::default())
        .build()
        .await
        .unwrap();
    let ground = Ground::new(engine, &owner).await;
    for round in 0..5 {
        for op in [Op::Read, Op::Write] {
            let outcome = once(&ground.engine, ground.request(op)).await;
            let error = error(Some(outcome));
            assert!(
                matches!(error.reason, Reason::Unreachable(_)),
                "{round}: {error}"
            );
            assert_eq!(error.retry, Retry::Elsewhere, "{round}: {error}");
        }
    }
    assert_eq!(ground.engine.tasks_in_use(), 0);
    assert_eq!(ground.local.leases(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_takes_no_task_is_passed_over() {
    let mut mischief = Mischief::none(1);
    mischief.busy = 1_000;
    let owner = TentEngine::builder().transport(ShmTransport::default());
    let owner = owner
        .transport(TcpTransport::default())
        .build()
        .await
        .unwrap();
    let engine = TentEngine::builder().transport(Chaos::new(ShmTransport::default(), mischief));
    let engine = engine
        .transport(TcpTransport::default())
        .build()
        .await
        .unwrap();
    let ground = Ground::new(engine, &owner).await;
    for seed in 0..5 {
        ground.moves_bytes(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_is_not_blamed_for_what_a_fence_ended() {
    let both = async || {
        let builder = TentEngine::builder().transport(ShmTransport::default());
        let builder = builder.transport(TcpTransport::default());
        builder.build().await.unwrap()
    };
    let (owner, engine) = (both().await, both().await);
    let ground = Ground::new(engine, &owner).await;
    for _ in 0..4 {
        // Nobody drives the first read of a registration, so it waits.
        let batch = submit(&ground.engine, vec![ground.request(Op::Read)]);
        ground.engine.fence(&ground.segment, BUDGET).await.unwrap();
        assert!(tokio::task::block_in_place(|| batch.wait(BUDGET)));
        let error = error(batch.outcome(0));
        assert!(matches!(error.reason, Reason::Broken(_)), "{error}");
    }
    // A link that was blamed is on trial once it is let in again.
    tokio::time::sleep(CircuitConfig::default().cooldown * 2).await;
    let ranking = ground
        .engine
        .explain(Op::Read, LEN as u64, &Qos::new(), &ground.segment);
    let mut merits = ranking.ranked.iter().flat_map(|link| &link.merits);
    let blamed = merits.any(|merit| matches!(merit, Merit::HalfOpen(_)));
    assert!(!blamed && ranking.ranked.len() == 2, "{ranking}");
    ground.moves_bytes(1).await;
}
