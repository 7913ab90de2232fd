//! Segments that are found by a name in a registry.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use common::{names::Shelf, *};
use mooncake_tent::{
    Error, Incarnation, Permission, Request, TcpConfig, TcpTransport, TentEngine,
    TentEngineBuilder, TransferEngine, registry::Entry,
};
use scripted::{Act, Scripted};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(300);

fn builder(shelf: &Shelf) -> TentEngineBuilder {
    let tcp = TcpTransport::new(TcpConfig::default());
    TentEngine::builder().transport(tcp).registry(shelf.clone())
}

async fn named(shelf: &Shelf, name: &str, lease: Duration) -> TentEngine {
    let builder = builder(shelf).segment_name(name).registry_lease(lease);
    builder.build().await.unwrap()
}

async fn reader(shelf: &Shelf) -> TentEngine {
    builder(shelf).build().await.unwrap()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + BUDGET;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_is_opened_by_its_name() {
    let shelf = Shelf::default();
    let owner = named(&shelf, "node/ä", LONG).await;
    let reader = reader(&shelf).await;
    assert_eq!(owner.segment_name(), "node/ä");
    let remote = buffer(&owner, 4096, Permission::PeersRead).await;
    remote.memory().write_at(0, &pattern(1, 4096));
    let local = buffer(&reader, 4096, Permission::Local).await;
    let segment = open(&reader, &owner).await;
    assert_eq!(segment.incarnation(), owner.incarnation());
    let read = Request::read(local.all().unwrap(), &segment, address(&remote, 0));
    assert!(once(&reader, read).await.is_completed());
    assert_same(&bytes(&local, 0, 4096), &pattern(1, 4096), "read");

    // Its address is as good, and no registry is asked for that.
    let asked = shelf.look_ups();
    let address = owner.control_address().unwrap();
    let same = reader.open_segment(address, BUDGET).await.unwrap();
    assert_eq!(same.incarnation(), owner.incarnation());
    assert_eq!(shelf.look_ups(), asked);
    assert_eq!(reader.segment_name(), reader.control_address().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_goes_at_once_when_given_back_and_by_itself_otherwise() {
    let shelf = Shelf::default();
    let orderly = named(&shelf, "orderly", LONG).await;
    let silent = named(&shelf, "silent", SHORT).await;
    assert!(shelf.holder("orderly").is_some());
    orderly.shutdown(BUDGET).await.unwrap();
    assert_eq!(shelf.holder("orderly"), None);
    tokio::time::sleep(SHORT * 3).await;
    assert!(shelf.holder("silent").is_some(), "it is claimed anew");
    drop(silent);
    until("the lease ends", || shelf.holder("silent").is_none()).await;
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(shelf.holder("silent"), None, "nobody claims it any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_a_registry_lost_is_there_again_soon() {
    let shelf = Shelf::default();
    let owner = named(&shelf, "kept", SHORT).await;
    let entry = shelf.holder("kept");
    shelf.forget("kept");
    until("it is claimed anew", || shelf.holder("kept") == entry).await;
    // Somebody else had it for a while.
    let stranger = Entry {
        control: "127.0.0.1:1".to_owned(),
        incarnation: Incarnation::random(),
    };
    shelf.put("kept", stranger, SHORT);
    until("the other's lease ends", || shelf.holder("kept") == entry).await;
    shelf.away(true);
    tokio::time::sleep(SHORT * 2).await;
    shelf.away(false);
    until("the registry is back", || shelf.holder("kept") == entry).await;
    drop(owner);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_a_living_process_has_is_refused() {
    let shelf = Shelf::default();
    let first = named(&shelf, "one", SHORT).await;
    let second = builder(&shelf).segment_name("one").registry_lease(SHORT);
    let refused = second.build().await.unwrap_err();
    let Error::NameTaken { name, holder } = &refused else {
        panic!("{refused}")
    };
    assert_eq!(name, "one");
    assert_eq!(Some(&**holder), first.control_address());
    let entry = shelf.holder("one").unwrap();
    assert_eq!(entry.incarnation, first.incarnation());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_waited_for_while_its_former_owner_may_be_a_dead_one() {
    let shelf = Shelf::default();
    let dead = Entry {
        control: "127.0.0.1:1".to_owned(),
        incarnation: Incarnation::random(),
    };
    shelf.put("restarted", dead, SHORT);
    let owner = named(&shelf, "restarted", SHORT).await;
    let entry = shelf.holder("restarted").unwrap();
    assert_eq!(entry.incarnation, owner.incarnation());
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_cannot_be_are_refused_with_the_reason() {
    let shelf = Shelf::default();
    let anywhere: SocketAddr = ([0, 0, 0, 0], 0).into();
    let bare = TentEngine::builder().segment_name("a");
    for (builder, said) in [
        (bare, "no registry"),
        (builder(&shelf).segment_name("a:1"), "colon"),
        (builder(&shelf).segment_name(""), "bytes"),
        (
            builder(&shelf).segment_name("a").without_control(),
            "control service",
        ),
        (
            builder(&shelf).segment_name("a").listen(anywhere),
            "advertised",
        ),
        (
            builder(&shelf)
                .segment_name("a")
                .registry_lease(Duration::ZERO),
            "too short",
        ),
        (
            builder(&shelf)
                .segment_name("a")
                .registry_lease(Duration::MAX),
            "too long",
        ),
    ] {
        let refused = builder.build().await.unwrap_err();
        assert!(matches!(refused, Error::Conflicts(_)), "{refused}");
        assert!(refused.to_string().contains(said), "{refused}");
    }
    let unknown = reader(&shelf).await.open_segment("nobody", BUDGET).await;
    let unknown = unknown.unwrap_err().to_string();
    assert!(unknown.contains("a shelf has no such name"), "{unknown}");
    let nowhere = engine().await.open_segment("nobody", BUDGET).await;
    let nowhere = nowhere.unwrap_err().to_string();
    assert!(nowhere.contains("no registry"), "{nowhere}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_away_is_an_error_and_known_peers_stay_in_reach() {
    let shelf = Shelf::default();
    let owner = named(&shelf, "known", LONG).await;
    let reader = reader(&shelf).await;
    let segment = open(&reader, &owner).await;
    shelf.away(true);
    for failed in [
        reader.open_segment("other", BUDGET).await.unwrap_err(),
        builder(&shelf)
            .segment_name("new")
            .build()
            .await
            .unwrap_err(),
    ] {
        assert!(matches!(failed, Error::Registry { .. }), "{failed}");
        assert!(failed.to_string().contains("a shelf"), "{failed}");
        assert!(failed.to_string().contains("it is away"), "{failed}");
    }
    // It was not there when the segment was opened, so it has to be asked for.
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let local = buffer(&reader, 4096, Permission::Local).await;
    let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    assert!(once(&reader, write).await.is_completed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_makes_no_sense_is_an_error_for_its_name_alone() {
    let shelf = Shelf::default();
    let (bad, good) = (
        named(&shelf, "bad", LONG).await,
        named(&shelf, "good", LONG).await,
    );
    let reader = reader(&shelf).await;
    shelf.garble("bad");
    let failed = reader.open_segment("bad", BUDGET).await.unwrap_err();
    assert!(failed.to_string().contains("it is garbled"), "{failed}");
    assert!(matches!(&failed, Error::Registry { name, .. } if name == "bad"));
    open(&reader, &good).await;
    bad.shutdown(BUDGET).await.unwrap();
}

/// A peer that comes back under its name is another one: what was meant for the former life is
/// written there or nowhere, and then everything goes to the new one.
async fn heals(shelf: &Shelf, old: TentEngine, anew: impl Fn() -> TentEngineBuilder, decoy: bool) {
    let reader = reader(shelf).await;
    let remote = buffer(&old, 4096, Permission::PeersReadWrite).await;
    let local = buffer(&reader, 4096, Permission::Local).await;
    let segment = open(&reader, &old).await;
    local.memory().write_at(0, &pattern(1, 4096));
    let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    assert!(once(&reader, write).await.is_completed());
    let data = segment
        .descriptor()
        .peer()
        .endpoint("tcp")
        .unwrap()
        .to_owned();
    // It goes without a word, and somebody else listens where it did.
    let (former, at_former) = (books(&remote), place(&remote, 0));
    drop((old, remote));
    let squatter = async || {
        let mut config = TcpConfig::default();
        config.listen = Some(data.parse().unwrap());
        let squatter = TentEngine::builder().transport(TcpTransport::new(config));
        squatter.build().await.ok()
    };
    let squatter = match decoy {
        true => {
            let squatter = built(squatter).await;
            let offered = buffer(&squatter, 4096, Permission::PeersReadWrite).await;
            Some((squatter, offered))
        }
        false => None,
    };
    local.memory().write_at(0, &pattern(3, 4096));
    let stray = Request::write(local.all().unwrap(), &segment, at_former);
    assert!(!once(&reader, stray).await.is_completed());
    let new = built(async || anew().build().await.ok()).await;
    let renewed = buffer(&new, 4096, Permission::PeersReadWrite).await;
    local.memory().write_at(0, &pattern(2, 4096));
    let end = Instant::now() + BUDGET;
    let write = || Request::write(local.all().unwrap(), &segment, address(&renewed, 0));
    while !once(&reader, write()).await.is_completed() {
        assert!(Instant::now() < end, "the link heals by itself");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_same(&bytes(&renewed, 0, 4096), &pattern(2, 4096), "the new life");
    assert_eq!(segment.incarnation(), new.incarnation());
    let mut before = vec![0; 4096];
    former.memory().read_at(0, &mut before);
    assert_same(&before, &pattern(1, 4096), "the old life");
    if let Some((_, offered)) = &squatter {
        assert_same(&bytes(offered, 0, 4096), &[0; 4096], "who is in its place");
    }
}

/// What can be built once all of the former owner's sockets are closed.
async fn built<T>(mut build: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + BUDGET;
    loop {
        if let Some(built) = build().await {
            return built;
        }
        assert!(Instant::now() < end, "its addresses are free");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_comes_back_at_its_address_has_its_name_at_once() {
    let shelf = Shelf::default();
    let old = named(&shelf, "back", LONG).await;
    let listen: SocketAddr = old.control_address().unwrap().parse().unwrap();
    let anew = || {
        let builder = builder(&shelf).segment_name("back").listen(listen);
        builder.registry_lease(LONG)
    };
    heals(&shelf, old, anew, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_comes_back_elsewhere_is_found_there_and_nowhere_else() {
    let shelf = Shelf::default();
    let old = named(&shelf, "moved", SHORT).await;
    let anew = || {
        let builder = builder(&shelf).segment_name("moved");
        builder.registry_lease(SHORT)
    };
    heals(&shelf, old, anew, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_not_taken_back_from_who_says_to_be_at_our_address() {
    let shelf = Shelf::default();
    let twin = || {
        let twin = builder(&shelf).segment_name("twin").registry_lease(SHORT);
        twin.advertise("127.0.0.1:1").build()
    };
    let _first = twin().await.unwrap();
    let second = twin().await.unwrap();
    let end = Instant::now() + SHORT * 4;
    while Instant::now() < end {
        let holder = shelf.holder("twin").map(|entry| entry.incarnation);
        assert_eq!(holder, Some(second.incarnation()));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_a_fence_covers_former_lives_of_the_owner() {
    let shelf = Shelf::default();
    let owner = || builder(&shelf).segment_name("a").registry_lease(LONG);
    let owner = || owner().transport(Scripted::new("s")).build();
    let old = owner().await.unwrap();
    let link = Scripted::new("s");
    link.does(|_, _| Act::Hold);
    let reader = TentEngine::builder().transport(link.clone());
    let reader = reader.registry(shelf.clone()).build().await.unwrap();
    let remote = buffer(&old, 64, Permission::PeersReadWrite).await;
    let local = buffer(&reader, 64, Permission::Local).await;
    let segment = open(&reader, &old).await;
    let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&reader, vec![write]);
    let former = old.incarnation();
    drop((old, remote));
    shelf.forget("a");
    let new = owner().await.unwrap();
    until("it is found anew", || {
        segment.incarnation() == new.incarnation()
    })
    .await;
    reader.fence(&segment, BUDGET).await.unwrap();
    assert_eq!(link.fenced(), [new.incarnation(), former]);
    link.end(
        0,
        mooncake_tent::transport::Outcome::Completed { bytes: 64 },
        true,
    );
    terminal(&batch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_closes_a_segment_does_not_close_it_for_others() {
    let shelf = Shelf::default();
    let owner = named(&shelf, "shared", LONG).await;
    let reader = reader(&shelf).await;
    let (one, other) = (open(&reader, &owner).await, open(&reader, &owner).await);
    drop(open(&reader, &owner).await);
    // Twice is as good as once.
    reader.close_segment(&one);
    reader.close_segment(&one);
    let later = buffer(&owner, 64, Permission::PeersRead).await;
    let told = || other.descriptor().buffer(later.id()).is_some();
    until("the other is still told", told).await;
    reader.close_segment(&other);
    let again = open(&reader, &owner).await;
    reader.close_segment(&one);
    let last = buffer(&owner, 64, Permission::PeersRead).await;
    let told = || again.descriptor().buffer(last.id()).is_some();
    until("an old opening closes no later one", told).await;
    assert!(other.descriptor().buffer(last.id()).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_handle_does_not_move_a_known_place() {
    let shelf = Shelf::default();
    let old = named(&shelf, "here", LONG).await;
    let own = old.open_segment("", BUDGET).await.unwrap();
    let handle = old.export_segment(&own).unwrap();
    drop((old, own));
    shelf.forget("here");
    let new = named(&shelf, "here", LONG).await;
    let reader = reader(&shelf).await;
    let segment = open(&reader, &new).await;
    let imported = reader.import_segment(&handle).unwrap();
    assert_eq!(imported.incarnation(), new.incarnation());
    shelf.away(true);
    let probe = reader.probe(&segment, BUDGET).await.unwrap();
    assert!(probe.is_alive(), "{probe:?}");
}
