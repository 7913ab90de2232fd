//! Objects that are replaced, removed behind a barrier, or put where no space is.
#![expect(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{collections::BTreeSet, time::Duration};

use common::{BUDGET, Cluster, key, metric, pattern};
use mooncake_proto::master::{LookupRequest, ReleaseRequest};
use mooncake_store::{
    Client, Clock, ErrorCode, RealClient,
    core::{MasterAnswer, MasterRequest, PutOptions, RemoveOptions},
};

const UPSERT: PutOptions = PutOptions {
    replicas: 1,
    preferred_segments: Vec::new(),
    upsert: true,
    wait_for_space: false,
};

/// Looks keys up as a reader that dies before it reads; the lease.
async fn lease(client: &RealClient, keys: Vec<bytes::Bytes>) -> u64 {
    let request = MasterRequest::Lookup(LookupRequest {
        keys,
        ..LookupRequest::default()
    });
    match client.master().call(request, Clock.now() + BUDGET).await {
        Ok(MasterAnswer::Lookup(answer)) => answer.lease,
        other => panic!("{other:?}"),
    }
}

async fn release(client: &RealClient, lease: u64) {
    let leases = vec![lease];
    let request = MasterRequest::Release(ReleaseRequest { leases });
    let released = client.master().call(request, Clock.now() + BUDGET).await;
    released.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_key_that_is_replaced_see_whole_versions_that_grow() {
    let cluster = Cluster::start(2, 64 << 20).await;
    let (writer, reader) = (cluster.client().await, cluster.client().await);
    let versions = 40_u64;
    // Of different lengths, and with their number in front.
    let value = |version: u64| {
        let mut value = pattern(version, 10_000 + 3_000 * (version as usize % 7));
        value[..8].copy_from_slice(&version.to_le_bytes());
        value
    };
    let first = value(0);
    let put = writer.put(vec![(key(0), &first[..])], UPSERT).await;
    put.into_iter().next().unwrap().unwrap();
    let writing = tokio::spawn(async move {
        for version in 1..=versions {
            let value = value(version);
            let put = writer.put(vec![(key(0), &value[..])], UPSERT).await;
            put.into_iter().next().unwrap().unwrap();
        }
    });
    let mut seen = BTreeSet::new();
    while seen.last() != Some(&versions) {
        let read = reader.get(vec![key(0)]).await.remove(0).unwrap().to_vec();
        let version = u64::from_le_bytes(read[..8].try_into().unwrap());
        assert!(read == value(version), "a mix, or torn");
        assert!(seen.last().is_none_or(|last| *last <= version));
        seen.insert(version);
    }
    writing.await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_a_remove_with_a_barrier_ends_when_the_last_reader_is_gone() {
    let cluster = Cluster::start(1, 8 << 20).await;
    let (client, reader) = (cluster.client().await, cluster.client().await);
    let value = pattern(1, 1_000);
    let items = vec![(key(0), &value[..])];
    client
        .put(items, PutOptions::default())
        .await
        .remove(0)
        .unwrap();
    let held = lease(&reader, vec![key(0)]).await;
    let remover = client.clone();
    let options = RemoveOptions { barrier: true };
    let mut removing = tokio::spawn(async move { remover.remove(vec![key(0)], options).await });
    while client.exist(vec![key(0)]).await[0].as_ref().unwrap().exists {
        tokio::task::yield_now().await;
    }
    let early = tokio::time::timeout(Duration::from_millis(100), &mut removing).await;
    assert!(early.is_err(), "a reader may still be reading");
    release(&reader, held).await;
    removing.await.unwrap().remove(0).unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_a_tenant_has_can_be_removed() {
    let cluster = Cluster::start(2, 32 << 20).await;
    let client = cluster.client().await;
    let value = pattern(1, 64);
    let items = (0..10_000).map(|n| (key(n), &value[..])).collect();
    for result in client.put(items, PutOptions::default()).await {
        result.unwrap();
    }
    let held = lease(&client, vec![key(7)]).await;
    let remover = client.clone();
    let removing = tokio::spawn(async move { remover.remove_all().await });
    while client.exist(vec![key(9_999)]).await[0]
        .as_ref()
        .unwrap()
        .exists
    {
        tokio::task::yield_now().await;
    }
    let put = client.put(vec![(key(3), &value[..])], PutOptions::default());
    put.await.remove(0).unwrap();
    release(&client, held).await;
    assert_eq!(removing.await.unwrap(), Ok(10_000));
    assert!(client.exist(vec![key(3)]).await[0].as_ref().unwrap().exists);
    assert_eq!(client.remove_all().await, Ok(1));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_waits_gets_the_space_that_readers_leave() {
    let cluster = Cluster::start(1, 1 << 20).await;
    let (client, reader) = (cluster.client().await, cluster.client().await);
    let value = pattern(1, 3 << 17);
    let items = (0..2).map(|n| (key(n), &value[..])).collect();
    for result in client.put(items, PutOptions::default()).await {
        result.unwrap();
    }
    let held = lease(&reader, (0..2).map(key).collect()).await;
    let full = client.put(vec![(key(4), &value[..])], PutOptions::default());
    let fault = full.await.remove(0).unwrap_err();
    assert_eq!(fault.code, ErrorCode::NoSpace, "{fault}");
    let options = PutOptions {
        wait_for_space: true,
        ..PutOptions::default()
    };
    let waiting = client.put(vec![(key(4), &value[..])], options);
    let (result, ()) = tokio::join!(waiting, async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        release(&reader, held).await;
    });
    result.into_iter().next().unwrap().unwrap();
    assert!(client.exist(vec![key(4)]).await[0].as_ref().unwrap().exists);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_clients_and_nodes_that_end_leave_nothing_at_the_master() {
    let cluster = Cluster::start(2, 8 << 20).await;
    let client = cluster.client().await;
    let value = pattern(1, 10_000);
    let items = (0..50).map(|n| (key(n), &value[..])).collect();
    for result in client.put(items, PutOptions::default()).await {
        result.unwrap();
    }
    drop(client.get((0..50).map(key).collect()).await);
    lease(&client, vec![key(0)]).await;
    client.close(BUDGET).await.unwrap();
    let watcher = cluster.client().await;
    for node in cluster.nodes {
        node.shutdown(BUDGET).await.unwrap();
    }
    let admin = cluster.master.admin_address();
    for name in [
        "objects",
        "puts_in_progress",
        "used_bytes",
        "quarantined_bytes",
        "granted_bytes",
        "capacity_bytes",
        "segments",
        "leases",
        "reservations",
        "reserved_bytes",
        "promised_answers",
    ] {
        assert_eq!(metric(admin, name).await, 0, "{name}");
    }
    assert_eq!(metric(admin, "clients").await, 1, "the one that watches");
    watcher.close(BUDGET).await.unwrap();
    cluster.master.shutdown().await;
}
