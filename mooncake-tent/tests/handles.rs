//! Segments that are handed from process to process as strings.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use common::{names::Shelf, servers::free, *};
use mooncake_tent::{
    Error, Permission, Request, Segment, TcpTransport, TentEngine, TransferEngine,
};

async fn writes(engine: &TentEngine, segment: &Segment, to: &mooncake_tent::Buffer, seed: u64) {
    let local = buffer(engine, 4096, Permission::Local).await;
    local.memory().write_at(0, &pattern(seed, 4096));
    let write = Request::write(local.all().unwrap(), segment, address(to, 0));
    let outcome = once(engine, write).await;
    assert!(outcome.is_completed(), "{outcome:?}");
    assert_same(&bytes(to, 0, 4096), &pattern(seed, 4096), "written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_is_used_by_its_handle_alone() {
    // Nobody answers for it: what the handle says must do.
    let owner = TentEngine::builder().transport(TcpTransport::default());
    let owner = owner.advertise(free().to_string()).build().await.unwrap();
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let own = owner.open_segment("", BUDGET).await.unwrap();
    let handle = owner.export_segment(&own).unwrap();
    let reader = engine().await;
    let segment = reader.import_segment(&handle).unwrap();
    assert_eq!(segment.incarnation(), owner.incarnation());
    writes(&reader, &segment, &remote, 1).await;
    assert!(reader.open_segment("127.0.0.1:1", BUDGET).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_changed_since_is_learned_from_the_owner() {
    let shelf = Shelf::default();
    let named = TentEngine::builder().transport(TcpTransport::default());
    let named = named
        .registry(shelf)
        .segment_name("named")
        .build()
        .await
        .unwrap();
    for owner in [engine().await, named] {
        let own = owner.open_segment("", BUDGET).await.unwrap();
        let handle = owner.export_segment(&own).unwrap();
        let later = buffer(&owner, 4096, Permission::PeersReadWrite).await;
        // It needs no registry, and may hand it on.
        let (second, third) = (engine().await, engine().await);
        let segment = second.import_segment(&handle).unwrap();
        assert_eq!(segment.name(), owner.segment_name());
        writes(&second, &segment, &later, 2).await;
        let handle = second.export_segment(&segment).unwrap();
        writes(&third, &third.import_segment(&handle).unwrap(), &later, 3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_or_our_own_stays_the_same_segment() {
    let (owner, reader) = (engine().await, engine().await);
    let opened = open(&reader, &owner).await;
    let handle = reader.export_segment(&opened).unwrap();
    let later = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let imported = reader.import_segment(&handle).unwrap();
    writes(&reader, &opened, &later, 1).await;
    assert!(imported.descriptor().buffer(later.id()).is_some());
    let ours = owner.import_segment(&handle).unwrap();
    assert!(ours.descriptor().buffer(later.id()).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_handle_or_makes_none_is_refused() {
    let (owner, reader) = (engine().await, engine().await);
    let own = owner.open_segment("", BUDGET).await.unwrap();
    let handle = owner.export_segment(&own).unwrap();
    let damaged = format!("{}A", &handle[..handle.len() - 1]);
    for bad in [
        "",
        "tent1.",
        "tent2.AAAA",
        "127.0.0.1:1",
        &damaged,
        &handle[..20],
    ] {
        if bad == handle {
            continue;
        }
        let refused = reader.import_segment(bad).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{bad}: {refused}");
    }
    let alone = TentEngine::builder()
        .without_control()
        .build()
        .await
        .unwrap();
    let own = alone.open_segment("", BUDGET).await.unwrap();
    let refused = alone.export_segment(&own).unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
}

#[cfg(feature = "file")]
#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_not_handed_on() {
    use mooncake_tent::{FileSegment, FileTransport};

    let folder = tempfile::tempdir().unwrap();
    let file = FileTransport::default();
    let engine = TentEngine::builder().transport(file).build().await.unwrap();
    let name = FileSegment::new(folder.path().join("f"))
        .create(4096)
        .name();
    let segment = engine.open_segment(&name, BUDGET).await.unwrap();
    let refused = engine.export_segment(&segment).unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
}
