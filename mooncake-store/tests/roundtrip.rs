//! A master, two nodes and a client over real sockets: what was put is what is read.

mod common;

use std::time::Duration;

use common::{BUDGET, Cluster, key, pattern};
use mooncake_store::{
    Client, ClientOptions, ErrorCode, GetInto, PutFrom, RealClient,
    core::{PutOptions, RemoveOptions},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_put_is_read_byte_by_byte_until_it_is_removed() {
    let cluster = Cluster::start(2, 64 << 20).await;
    let client = cluster.client().await;
    let sizes = [1_usize, 47, 4_096, 65_537, 1_000_003, 5 << 20];
    let values: Vec<_> = sizes
        .iter()
        .map(|size| pattern(*size as u64, *size))
        .collect();
    let items = values
        .iter()
        .enumerate()
        .map(|(i, value)| (key(i), &value[..]))
        .collect();
    for result in client.put(items, PutOptions::default()).await {
        result.unwrap();
    }
    let keys: Vec<_> = (0..sizes.len()).map(key).collect();
    assert!(
        client
            .exist(keys.clone())
            .await
            .into_iter()
            .all(|result| result.unwrap().exists)
    );
    let other = cluster.client().await;
    for (result, value) in other.get(keys.clone()).await.into_iter().zip(&values) {
        assert_eq!(&result.unwrap().to_vec(), value);
    }

    let results = client
        .put(vec![(key(0), &b"x"[..])], PutOptions::default())
        .await;
    assert_eq!(
        results[0].as_ref().unwrap_err().code,
        ErrorCode::ObjectAlreadyExists
    );
    assert!(
        client
            .remove(keys.clone(), RemoveOptions { barrier: true })
            .await
            .into_iter()
            .all(|result| result.is_ok())
    );
    // The other client had just read them, and has heard of it before the barrier passed.
    for result in other.get(keys).await {
        assert_eq!(result.unwrap_err().code, ErrorCode::ObjectNotFound);
    }
    client.close(BUDGET).await.unwrap();
    other.close(BUDGET).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_client_has_given_its_leases_back() {
    let cluster = Cluster::start(1, 8 << 20).await;
    let client = cluster.client().await;
    client
        .put(vec![(key(0), &b"value"[..])], PutOptions::default())
        .await
        .remove(0)
        .unwrap();
    let leases = async || {
        client
            .describe(vec![key(0)])
            .await
            .remove(0)
            .unwrap()
            .leases
    };
    let reader = cluster.client().await;
    let value = reader.get(vec![key(0)]).await.remove(0).unwrap();
    assert_eq!(value.to_vec(), b"value");
    reader.close(BUDGET).await.unwrap();
    assert_eq!(leases().await, 0);
    client.close(BUDGET).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_thousands_of_small_values_goes_through() {
    const VALUES: usize = 3_000;
    let cluster = Cluster::start(1, 8 << 20).await;
    let client = cluster.client().await;
    let values: Vec<_> = (0..VALUES)
        .map(|i| pattern(i as u64, 1 + i % 700))
        .collect();
    let items = values
        .iter()
        .enumerate()
        .map(|(i, value)| (key(i), &value[..]))
        .collect();
    for result in client.put(items, PutOptions::default()).await {
        result.unwrap();
    }
    let read = client.get((0..VALUES).map(key).collect()).await;
    for (value, read) in values.iter().zip(read) {
        assert_eq!(&read.unwrap().to_vec(), value);
    }
    client.close(BUDGET).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registered_memory_goes_to_the_store_and_back_without_a_copy_of_ours() {
    const BLOCK: u64 = 100_003;
    const BLOCKS: u64 = 64;
    let cluster = Cluster::start(2, 64 << 20).await;
    let client = cluster.client().await;
    let source = client.allocate((BLOCK * BLOCKS) as usize).await.unwrap();
    let value = pattern(7, (BLOCK * BLOCKS) as usize);
    source.memory().write_at(0, &value);
    let slice = |i: u64| i * BLOCK..(i + 1) * BLOCK;
    let puts = (0..BLOCKS)
        .map(|i| PutFrom::new(key(i as usize), source.slice(slice(i)).unwrap()))
        .collect();
    for result in client.put_from(puts, PutOptions::default()).await {
        result.unwrap();
    }
    let target = client.allocate((BLOCK * BLOCKS) as usize).await.unwrap();
    let gets = (0..BLOCKS)
        .rev()
        .map(|i| GetInto::new(key(i as usize), target.slice(slice(i)).unwrap()))
        .collect();
    for result in client.get_into(gets).await {
        assert_eq!(result.unwrap().length, BLOCK);
    }
    let mut back = vec![0; value.len()];
    target.memory().read_at(0, &mut back);
    assert!(back == value);

    let short = target.slice(0..BLOCK - 1).unwrap();
    let results = client.get_into(vec![GetInto::new(key(1), short)]).await;
    let fault = results[0].as_ref().unwrap_err();
    assert_eq!(fault.code, ErrorCode::InvalidParams, "{fault}");
    assert_eq!((source.leases(), target.leases()), (0, 0));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_takes_its_objects_along_and_nothing_hangs() {
    let mut cluster = Cluster::start(2, 8 << 20).await;
    let client = cluster.client().await;
    let value = pattern(3, 1 << 20);
    let items = (0..10).map(|i| (key(i), &value[..])).collect();
    for result in client.put(items, PutOptions::default()).await {
        result.unwrap();
    }
    let leaving = cluster.nodes.pop().unwrap();
    leaving.shutdown(BUDGET).await.unwrap();
    let mut hits = 0;
    for result in client.get((0..10).map(key).collect()).await {
        match result {
            Ok(read) => {
                assert!(read.to_vec() == value);
                hits += 1;
            }
            Err(fault) => assert_eq!(fault.code, ErrorCode::ObjectNotFound),
        }
    }
    assert!(hits < 10, "both nodes had objects");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_says_nothing_holds_up_no_block_of_another_one() {
    let cluster = Cluster::start(1, 8 << 20).await;
    let (_mute, owner) = cluster.mount_mute().await;
    let client = cluster.client().await.with_deadline(BUDGET);
    let value = pattern(5, 4096);
    // So many that, one after the other, those of the mute node would take all the time.
    let items = (0..32).map(|i| (key(i), &value[..])).collect();
    let results = client.put(items, PutOptions::default()).await;
    for result in results {
        result.expect("what cannot go there goes to the other one");
    }
    owner.close(BUDGET).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_master_that_is_not_there_is_named_within_two_seconds() {
    let start = std::time::Instant::now();
    let error = RealClient::connect("127.0.0.1:1", ClientOptions::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(2));
}
