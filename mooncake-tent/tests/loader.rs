//! Links that cannot be installed yet, links that never can, and links that do not go together.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use common::*;
use mooncake_tent::{
    Conflict, Error, Hint, Memory, Permission, Qos, RegisterOptions, Request, TcpConfig,
    TcpTransport, TentEngine, TransferEngine,
    selector::{Exclusion, Policies, Policy},
    transport::{Claim, Op, Outcome},
};
use scripted::Scripted;

fn in_use() -> Error {
    Error::System {
        what: "its address".to_owned(),
        source: io::ErrorKind::AddrInUse.into(),
    }
}

fn forbidden() -> Error {
    Error::System {
        what: "its memory".to_owned(),
        source: io::ErrorKind::PermissionDenied.into(),
    }
}

fn not_yet(link: &'static str) -> Error {
    let message = "its device is not there".to_owned();
    Error::NotYet { link, message }
}

/// TCP links that want the port of `listener`.
fn at(listener: &TcpListener) -> TcpTransport {
    let mut config = TcpConfig::default();
    config.listen = Some(listener.local_addr().unwrap());
    TcpTransport::new(config)
}

fn taken_port() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_cannot_be_installed_yet_is_tried_again() {
    let link = Scripted::new("own");
    link.installs_like([Err(in_use()), Err(not_yet("own")), Err(in_use())]);
    let engine = TentEngine::builder().transport(link.clone()).build().await;
    assert_eq!(link.installations(), 4);
    assert_eq!(engine.unwrap().absent_links(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_its_last_owner_gives_up_is_waited_for() {
    let last = taken_port();
    let builder = TentEngine::builder().transport(at(&last));
    let builder = builder.install_budget(BUDGET);
    let freed = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(last);
    };
    let (engine, ()) = tokio::join!(builder.build(), freed);
    assert!(engine.is_ok(), "{engine:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_will_not_pass_is_tried_once_and_leaves_nothing() {
    let (first, second) = (Scripted::new("first"), Scripted::new("second"));
    let absent = Scripted::new("absent");
    second.installs_like([Err(forbidden())]);
    absent.installs_like([Err(forbidden())]);
    let builder = TentEngine::builder()
        .transport(first.clone())
        .transport_if_possible(absent.clone())
        .transport(second.clone());
    let refused = builder.build().await.unwrap_err();
    assert!(refused.to_string().contains("its memory"), "{refused}");
    assert_eq!((second.installations(), second.uninstallations()), (1, 0));
    assert_eq!((first.installations(), first.uninstallations()), (1, 1));
    assert_eq!(absent.uninstallations(), 0, "it never was there");
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_end_with_their_budget_and_the_error_tells_how_many_there_were() {
    let taken = taken_port();
    for (budget, said) in [(40, "attempt 3"), (0, "")] {
        let budget = Duration::from_millis(budget);
        let builder = TentEngine::builder().install_budget(budget);
        let refused = builder.transport(at(&taken)).build().await.unwrap_err();
        let Error::System { what, source } = &refused else {
            panic!("{refused}");
        };
        assert_eq!(source.kind(), io::ErrorKind::AddrInUse);
        assert!(what.contains(said), "{refused}");
        assert_eq!(what.contains("attempt"), !said.is_empty(), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_link_comes_when_it_can_with_all_buffers_and_carries_requests() {
    let (usual, late) = (Scripted::new("usual"), Scripted::new("late"));
    late.installs_like([Err(not_yet("late")), Err(in_use())]);
    let builder = TentEngine::builder().transport_if_possible(late.clone());
    let engine = builder.transport(usual.clone()).build().await.unwrap();
    let [absent] = &engine.absent_links()[..] else {
        panic!("one is absent");
    };
    assert_eq!((absent.name, absent.retried), ("late", true));
    assert!(absent.why.contains("its device is not there"), "{absent:?}");

    let own = engine.open_segment("", BUDGET).await.unwrap();
    let explain = || engine.explain(Op::Write, 1, &Qos::new(), &own);
    let why = explain().excluded[0].why.clone();
    assert!(matches!(why, Exclusion::Absent { .. }), "{why}");
    let local = buffer(&engine, 8, Permission::Local).await;
    let remote = buffer(&engine, 8, Permission::PeersReadWrite).await;
    let write = || Request::write(local.slice(0..8).unwrap(), &own, address(&remote, 0));
    let qos = Qos::new().with_hint(Hint::soft("late"));
    let written = once(&engine, write().qos(&qos)).await;
    assert_eq!(written, Outcome::Completed { bytes: 8 });
    assert_eq!((late.count(), late.installations().min(1)), (0, 1));

    eventually("it comes", || engine.absent_links().is_empty()).await;
    assert_eq!(late.installations(), 3);
    let mut given = late.given();
    given.sort_unstable_by_key(|id| id.0);
    assert_eq!(given, [local.id(), remote.id()]);
    let told = own.descriptor();
    let links = &told.buffer(remote.id()).unwrap().links;
    assert!(links.contains(&"late".to_owned()), "{links:?}");
    let goes = async || {
        while late.count() == 0 {
            let written = once(&engine, write().qos(&qos)).await;
            assert_eq!(written, Outcome::Completed { bytes: 8 });
        }
    };
    let went = tokio::time::timeout(BUDGET, goes()).await;
    assert!(went.is_ok(), "routes do not see it");
    engine.unregister_memory(local, BUDGET).await.unwrap();
    assert_eq!(late.held(), [remote.id()]);
    engine.shutdown(BUDGET).await.unwrap();
    assert_eq!(late.uninstallations(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_opened_the_segment_before_reach_it_over_the_link_that_came_late() {
    let taken = taken_port();
    let owner = TentEngine::builder()
        .transport_if_possible(at(&taken))
        .build();
    let owner = owner.await.unwrap();
    let remote = buffer(&owner, 64, Permission::PeersReadWrite).await;
    let engine = engine().await;
    let segment = open(&engine, &owner).await;
    let local = buffer(&engine, 64, Permission::Local).await;
    let write = || {
        let local = local.slice(0..64).unwrap();
        Request::write(local, &segment, place(&remote, 0))
    };
    let mut batch = engine.allocate_batch(1);
    let refused = engine.submit_transfer(&mut batch, vec![write()]);
    assert!(matches!(refused, Err(Error::NoRoute { .. })), "{refused:?}");

    drop(taken);
    eventually("it comes", || owner.absent_links().is_empty()).await;
    let later = buffer(&owner, 64, Permission::PeersRead).await;
    eventually("the peer is told", || {
        segment.descriptor().peer().endpoint("tcp").is_some()
    })
    .await;
    local.memory().write_at(0, &pattern(1, 64));
    let written = once(&engine, write()).await;
    assert_eq!(written, Outcome::Completed { bytes: 64 });
    assert_same(&bytes(&remote, 0, 64), &pattern(1, 64), "over tcp");
    eventually("deltas go on", || {
        segment.descriptor().buffer(later.id()).is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn buffers_that_come_and_go_while_a_link_comes_are_given_to_it_once_and_taken_back() {
    for round in 0..20 {
        let late = Scripted::new("late");
        late.installs_like([Err(in_use())]);
        let builder = TentEngine::builder().transport_if_possible(late.clone());
        let engine = builder.transport(Scripted::new("usual")).build().await;
        let engine = engine.unwrap();
        let comings = (0..4).map(|_| {
            let (engine, late) = (engine.clone(), late.clone());
            tokio::spawn(async move {
                let mut kept = Vec::new();
                let mut gone = false;
                while !gone || late.installations() < 2 {
                    gone = engine.absent_links().is_empty();
                    let options = RegisterOptions::new(Permission::PeersRead);
                    let memory = Memory::allocate(64).unwrap();
                    let buffer = engine.register_memory(memory, options).await.unwrap();
                    match kept.len() < 40 {
                        true => kept.push(buffer),
                        false => engine.unregister_memory(buffer, BUDGET).await.unwrap(),
                    }
                }
                kept
            })
        });
        let mut kept = Vec::new();
        for coming in comings.collect::<Vec<_>>() {
            kept.extend(coming.await.unwrap());
        }
        let mut given = late.given();
        let count = given.len();
        given.sort_unstable_by_key(|id| id.0);
        given.dedup();
        assert_eq!(given.len(), count, "round {round}: some were given twice");
        let mut held = late.held();
        held.sort_unstable_by_key(|id| id.0);
        let mut ids: Vec<_> = kept.iter().map(|buffer| buffer.id()).collect();
        ids.sort_unstable_by_key(|id| id.0);
        assert_eq!(held, ids, "round {round}");
        let own = engine.open_segment("", BUDGET).await.unwrap().descriptor();
        for buffer in own.buffers() {
            assert!(buffer.links.contains(&"late".to_owned()), "round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_this_machine_will_never_have_is_not_tried_again() {
    let link = Scripted::new("never");
    link.installs_like([Err(forbidden())]);
    let builder = TentEngine::builder().transport_if_possible(link.clone());
    let engine = builder.build().await.unwrap();
    let [absent] = &engine.absent_links()[..] else {
        panic!("one is absent");
    };
    assert_eq!((absent.attempts, absent.retried), (1, false));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(link.installations(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_comes_after_the_shutdown() {
    let link = Scripted::new("late");
    link.installs_like([Err(in_use())]);
    let builder = TentEngine::builder().transport_if_possible(link.clone());
    let engine = builder.build().await.unwrap();
    engine.shutdown(BUDGET).await.unwrap();
    assert!(!engine.absent_links()[0].retried);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((link.installations(), link.uninstallations()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_does_not_go_together_is_told_at_once_and_nothing_was_begun() {
    let control: SocketAddr = taken_port().local_addr().unwrap();
    let device = Claim::Device("nic0".to_owned());
    let (twice, again) = (Scripted::new("twice"), Scripted::new("twice"));
    let other = Scripted::claiming("other", std::slice::from_ref(&device));
    let third = Scripted::claiming("third", &[device, Claim::Address(control)]);
    let refused = TentEngine::builder()
        .listen(control)
        .segment_name("no:name")
        .transport(twice.clone())
        .transport(again)
        .transport(other)
        .transport(third)
        .build()
        .await
        .unwrap_err();
    let said = refused.to_string();
    for part in [
        "two links are called twice",
        "other and third both want the device nic0",
        "the control service and third both want the address 127.0.0.1",
        "colon",
        "there is no registry",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let Error::Conflicts(conflicts) = refused else {
        panic!("{said}");
    };
    assert_eq!(conflicts.iter().count(), 5, "{said}");
    assert_eq!(twice.installations(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_that_name_links_which_are_not_there_are_told_and_hold_for_the_others() {
    let mut some = Policy::named("some");
    some.transports = Some(vec!["rdma".into(), "tcp".into()]);
    let mut none = Policy::named("none");
    none.transports = Some(vec!["rdma".into()]);
    let policies = Policies::new(vec![some, none]).unwrap();
    let builder = TentEngine::builder().policies(policies);
    let builder = builder
        .transport(TcpTransport::default())
        .attempt_timeout(Duration::from_secs(1))
        .max_failover_attempts(0);
    let engine = builder.build().await.unwrap();
    let told: Vec<_> = engine.conflicts().iter().cloned().collect();
    let policy = |name: &str, alone| Conflict::Policy {
        policy: format!("policy {name:?}"),
        link: "rdma".to_owned(),
        alone,
    };
    assert_eq!(told[..2], [policy("some", false), policy("none", true)]);
    assert!(matches!(told[2..], [Conflict::NoEffect(_)]), "{told:?}");
    let said = engine.conflicts().to_string();
    assert!(
        said.contains("and no other; ") && said.contains("no other may follow it"),
        "{said}"
    );
}
