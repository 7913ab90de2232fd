//! Where windows and contracts are set, requests go in order of urgency, or are refused with the reason.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use std::time::{Duration, Instant};

use common::*;
use mooncake_tent::{
    Error, Intent, Permission, Priority, Qos, Reason, RemoteRange, Request, Retry, Stage,
    TentEngine, TransferEngine, TransferError,
    admission::{AdmissionConfig, Contract, Contracts, Degraded, Tenant},
    selector::{Policies, Policy},
    transport::{Op, Outcome},
};
use scripted::{Act, pair::Pair};

const LEN: u64 = 1 << 16;

/// The first link holds what comes, the other one is the policy's for what is low.
async fn ground(config: AdmissionConfig) -> Pair {
    let mut low = Policy::named("low");
    low.intent_type = Some(Intent::Migration);
    low.priority = Some(Priority::Low);
    low.transports = Some(vec!["b".to_owned()]);
    let builder = TentEngine::builder().policies(Policies::new(vec![low]).unwrap());
    let pair = Pair::plain(builder.admission(config), LEN).await;
    pair.links[0].does(|_, _| Act::Hold);
    pair
}

fn windows(bytes: Option<u64>, requests: Option<usize>) -> AdmissionConfig {
    let mut config = AdmissionConfig::default();
    (config.most_bytes, config.most_requests) = (bytes, requests);
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_goes_by_urgency_and_then_by_deadline() {
    let ground = ground(windows(None, Some(2))).await;
    let soon = Instant::now() + BUDGET;
    let requests = [
        ground.write(1),
        ground.write(2),
        ground.write(3).priority(Priority::Low),
        ground.write(4).priority(Priority::Medium),
        ground.write(5),
        ground.write(6).deadline(soon),
        ground.write(7).priority(Priority::Medium),
    ];
    let batch = submit(&ground.engine, requests.to_vec());
    assert_eq!(ground.came(), [1, 2]);
    assert_eq!(ground.engine.gauges().waiting_requests, 5);
    ground.serve(0, 7).await;
    terminal(&batch).await;
    assert_eq!(ground.came(), [1, 2, 6, 5, 4, 7, 3]);
    assert!((0..7).all(|index| batch.outcome(index).unwrap().is_completed()));
    drop((batch, requests));
    ground.is_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_larger_than_the_window_and_cannot_be_divided_goes_alone() {
    let owner = engine().await;
    let builder = TentEngine::builder().admission(windows(Some(1000), None));
    let builder = builder.transport(mooncake_tent::TcpTransport::default());
    let engine = builder.build().await.unwrap();
    let remote = buffer(&owner, LEN as usize, Permission::PeersReadWrite).await;
    let local = buffer(&engine, LEN as usize, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    for length in [999, 1001, LEN] {
        local.memory().write_at(0, &pattern(length, LEN as usize));
        let from = local.slice(0..length).unwrap();
        let write = Request::write(from, &segment, place(&remote, 0));
        let write = write.op_id(length).checksum();
        assert!(once(&engine, write).await.is_completed());
        let told = owner.receive_arrivals();
        assert_eq!((told.len(), told[0].length), (1, length));
        let found = bytes(&remote, 0, length as usize);
        assert_same(
            &found,
            &pattern(length, LEN as usize)[..length as usize],
            "it",
        );
    }
}

/// A request that no link can be asked for is on no link's way, and nobody's turn.
#[tokio::test(flavor = "multi_thread")]
async fn who_goes_nowhere_neither_waits_nor_is_in_the_way() {
    let ground = ground(windows(Some(100), Some(1))).await;
    let held = submit(&ground.engine, vec![ground.write(1)]);
    assert_eq!(ground.came(), [1]);
    // Of what this process offers itself there is nothing to learn.
    let own = ground.engine.open_segment("", BUDGET).await.unwrap();
    let nowhere = || {
        let local = ground.local.slice(0..1).unwrap();
        Request::write(local, &own, RemoteRange::Address(1))
    };
    let lost = submit(&ground.engine, vec![nowhere(), nowhere()]);
    for task in 0..2 {
        let failed = error(lost.outcome(task));
        assert_eq!(failed.reason, Reason::UnknownRegistration);
    }
    assert_eq!(ground.engine.gauges().waiting_requests, 0);
    ground.links[0].complete(0);
    terminal(&held).await;

    // Behind them, too, the window is open.
    let mixed = submit(&ground.engine, vec![nowhere(), ground.write(2), nowhere()]);
    assert_eq!(ground.came(), [1, 2]);
    ground.links[0].complete(1);
    terminal(&mixed).await;
    assert!(mixed.outcome(1).unwrap().is_completed());
    drop((held, lost, mixed));
    ground.is_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_quiet_still_counts() {
    let ground = ground(windows(None, Some(1))).await;
    let batch = submit(&ground.engine, vec![ground.write(1), ground.write(2)]);
    let late = Outcome::timed_out(Stage::Move, ground.segment.incarnation());
    ground.links[0].end(0, late.underway(false), false);
    eventually("it ends", || batch.outcome(0).is_some()).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(ground.came(), [1], "its bytes may still move");
    ground.links[0].settle(0);
    ground.serve(1, 2).await;
    terminal(&batch).await;
    drop(batch);
    ground.is_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_02_whoever_waits_ends_by_cancel_deadline_fence_or_shutdown() {
    let ground = ground(windows(None, Some(1))).await;
    let deadline = Instant::now() + Duration::from_millis(30);
    let requests = vec![
        ground.write(1),
        ground.write(2),
        ground.write(3).deadline(deadline),
    ];
    let batch = submit(&ground.engine, requests);
    batch.cancel(1);
    assert!(batch.outcome(1).unwrap().is_cancelled());
    eventually("its deadline passes", || batch.outcome(2).is_some()).await;
    assert!(batch.outcome(2).unwrap().is_timed_out());
    assert_eq!(ground.came(), [1]);

    let fenced = submit(&ground.engine, vec![ground.write(4)]);
    ground.engine.fence(&ground.segment, BUDGET).await.unwrap();
    ground.links[0].complete(0);
    terminal(&fenced).await;
    let failed = error(fenced.outcome(0));
    assert!(matches!(failed.reason, Reason::Broken(_)), "{failed}");

    let held = submit(&ground.engine, vec![ground.write(5), ground.write(6)]);
    ground.engine.shutdown(BUDGET).await.unwrap();
    assert_eq!(error(held.outcome(1)).reason, Reason::Stopped);
    assert!(ground.try_submit(vec![ground.write(7)]).is_err());
    ground.links[0].complete(1);
    terminal(&held).await;
    drop((batch, fenced, held));
    ground.is_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_02_whoever_waits_ends_with_the_engine() {
    let ground = ground(windows(None, Some(1))).await;
    let batch = submit(&ground.engine, vec![ground.write(1), ground.write(2)]);
    let Pair { links, engine, .. } = ground;
    drop(engine);
    eventually("it is stopped", || batch.outcome(1).is_some()).await;
    assert_eq!(error(batch.outcome(1)).reason, Reason::Stopped);
    links[0].complete(0);
    terminal(&batch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_cannot_be_kept_is_refused_at_once_with_the_reason() {
    let ground = ground(windows(None, Some(8))).await;
    let now = Instant::now();
    // Nothing was measured yet.
    ground.links[0].does(|_, _| Act::Complete);
    let unknown = ground.try_submit(vec![ground.write(LEN).deadline(now)]);
    assert!(unknown.is_ok(), "what is unknown is not infeasible");
    for _ in 0..20 {
        assert!(once(&ground.engine, ground.write(LEN)).await.is_completed());
    }
    let came = ground.came().len();
    let late = ground.write(LEN).deadline(now);
    let refused = ground.try_submit(vec![ground.write(1), late.clone()]);
    let error = refused.unwrap_err();
    assert!(
        matches!(error, Error::Infeasible { length: LEN, .. }),
        "{error}"
    );
    assert_eq!(error.retry(), Retry::Elsewhere);
    assert_eq!(ground.came().len(), came, "none of them went");
    let in_time = late.deadline(Instant::now() + BUDGET);
    assert!(once(&ground.engine, in_time).await.is_completed());
}

fn contracts() -> Contracts {
    let mut bulk = Tenant::new("bulk");
    bulk.defaults.priority = Some(Priority::Low);
    bulk.defaults.max_inflight_requests = Some(2);
    let mut strict = Tenant::new("strict");
    strict.defaults.max_inflight_bytes = Some(100);
    strict.defaults.allowed_degraded_actions = Some(vec![Degraded::Reject]);
    Contracts::new(Contract::default(), vec![bulk, strict]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_gets_what_its_contract_says_and_no_more() {
    let mut config = AdmissionConfig::default();
    config.contracts = contracts();
    let ground = ground(config).await;
    let bulk = Qos::new().with_tenant("bulk");
    let of_bulk = |length| ground.write(length).qos(&bulk);
    let requests = vec![of_bulk(1), of_bulk(2), of_bulk(3), ground.write(4)];
    let batch = submit(&ground.engine, requests);
    assert_eq!(ground.came(), [1, 2, 4]);
    ground.links[0].complete(1);
    eventually("the third goes", || ground.came() == [1, 2, 4, 3]).await;

    // It may not be as urgent as it says, and policies and explanations go by what it is.
    let urgent = bulk
        .with_priority(Priority::High)
        .with_intent(Intent::Migration);
    let explained = ground
        .engine
        .explain(Op::Write, 5, &urgent, &ground.segment);
    assert_eq!(explained.ranked[0].name, "b");
    for number in [0, 3] {
        ground.links[0].complete(number);
    }
    let outcome = once(&ground.engine, ground.write(5).qos(&urgent)).await;
    assert!(outcome.is_completed());
    assert_eq!(ground.links[1].came()[0].qos.priority(), Priority::Low);

    // What may not wait is refused, and those with it.
    let strict = |length| ground.write(length).tenant("strict");
    let both = ground.try_submit(vec![strict(60), strict(50)]);
    let error = both.unwrap_err();
    assert!(
        matches!(&error, Error::OverLimit { tenant } if tenant == "strict"),
        "{error}"
    );
    assert!(matches!(error.retry(), Retry::Later(_)));
    let one = ground.try_submit(vec![strict(60), strict(40)]).unwrap();
    assert!(ground.try_submit(vec![strict(1)]).is_err());
    let came = ground.came();
    assert_eq!(
        came[came.len() - 2..],
        [60, 40],
        "the first two were released"
    );

    // Nor may it go elsewhere.
    let broken = TransferError::unstarted(Reason::Broken("told".into()), Stage::Post, None);
    let others = ground.links[1].count();
    ground.links[0].end(came.len() - 2, Outcome::Failed(broken), true);
    eventually("it fails", || one.outcome(0).is_some()).await;
    assert!(one.outcome(0).unwrap().error().is_some());
    assert_eq!(ground.links[1].count(), others);
    for number in [2, came.len() - 1] {
        ground.links[0].complete(number);
    }
    terminal(&batch).await;
    drop((batch, one));
    ground.is_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn through_a_narrow_window_all_bytes_arrive() {
    const BLOCK: usize = 5000;
    let owner = engine().await;
    let link = mooncake_tent::TcpTransport::default();
    let builder = TentEngine::builder().transport(link);
    let config = windows(Some(3 * BLOCK as u64), Some(4));
    let engine = builder.admission(config).build().await.unwrap();
    let all = 100 * BLOCK;
    let remote = buffer(&owner, all, Permission::PeersReadWrite).await;
    let local = buffer(&engine, all, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    for op in [Op::Write, Op::Read] {
        local.memory().write_at(0, &pattern(op as u64, all));
        let before = bytes(&remote, 0, all);
        let requests = (0..100).map(|at| {
            let start = (at * BLOCK) as u64;
            let part = local.slice(start..start + BLOCK as u64).unwrap();
            let parts = [part].into_iter().collect();
            Request::scattered(op, parts, &segment, place(&remote, start))
        });
        let batch = submit(&engine, requests.collect());
        assert!(tokio::task::block_in_place(|| batch.wait(BUDGET)));
        let ends = (0..100).filter_map(|index| batch.outcome(index));
        assert!(ends.clone().count() == 100 && ends.clone().all(|end| end.is_completed()));
        match op {
            Op::Write => assert_same(&bytes(&remote, 0, all), &pattern(1, all), "written"),
            Op::Read => assert_same(&bytes(&local, 0, all), &before, "read"),
        }
    }
    assert_eq!(engine.gauges().waiting_requests, 0);
}
