//! Clients whose process lends memory itself: where their puts go, and what they cost.
#![expect(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod common;

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
    time::Duration,
};

use common::{BUDGET, Cluster, key, metric, operations, pattern, until};
use mooncake_master::{Master, MasterConfig};
use mooncake_store::{
    Client, ClientOptions, ErrorCode, GetInto, PutFrom, RealClient,
    core::{PutOptions, RemoveOptions, Replica},
};

const MIB: u64 = 1 << 20;

type Put = Result<(), ErrorCode>;

async fn lender(address: &str, segment_bytes: u64) -> RealClient {
    let mut options = ClientOptions::default();
    options.segment_bytes = segment_bytes;
    options.name = "lender".to_owned();
    RealClient::connect(address, options).await.unwrap()
}

async fn put(client: &RealClient, number: usize, value: &[u8], options: &PutOptions) -> Put {
    let items = vec![(key(number), value)];
    let result = client.put(items, options.clone()).await.remove(0);
    result.map(drop).map_err(|fault| fault.code)
}

/// Puts, starts of puts and ends of puts that the master has seen.
async fn puts(admin: SocketAddr) -> [u64; 3] {
    [
        operations(admin, "put").await,
        operations(admin, "put_start").await,
        operations(admin, "put_end").await,
    ]
}

async fn segments_of(client: &RealClient, number: usize) -> Vec<String> {
    let described = client.describe(vec![key(number)]).await.remove(0).unwrap();
    let names = described.replicas.into_iter().map(|replica| match replica {
        Replica::Memory(location) => location.segment.name.clone(),
        other => panic!("{other:?} is not in memory"),
    });
    names.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_into_memory_of_the_writer_s_own_is_one_round_trip() {
    let cluster = Cluster::start(1, 64 * MIB).await;
    let admin = cluster.master.admin_address();
    let client = lender(&cluster.master.address().to_string(), 64 * MIB).await;
    until(admin, "granted_bytes", |bytes| bytes > 0).await;
    let before = puts(admin).await;
    let value = pattern(3, 100_003);
    for number in 0..20 {
        let code = put(&client, number, &value, &PutOptions::default()).await;
        assert_eq!(code, Ok(()));
    }
    let [put, start, end] = before;
    assert_eq!(puts(admin).await, [put + 20, start, end]);

    // So is a batch, of copies or of registered memory.
    let buffer = client.allocate(32 * 4_096).await.unwrap();
    buffer.memory().write_at(0, &pattern(4, 32 * 4_096));
    let items = (0..32).map(|at| {
        let slice = buffer.slice(at * 4_096..(at + 1) * 4_096).unwrap();
        PutFrom::new(key(100 + at as usize), slice)
    });
    for result in client
        .put_from(items.collect(), PutOptions::default())
        .await
    {
        result.unwrap();
    }
    assert_eq!(puts(admin).await, [put + 21, start, end]);

    // They are where they should be, and what was put.
    let other = cluster.client().await;
    let own = client.engine().segment_name();
    for number in [0, 19, 100, 131] {
        assert_eq!(segments_of(&other, number).await, [own]);
    }
    let read = other.get(vec![key(7), key(131)]).await;
    let read: Vec<_> = read.into_iter().map(|one| one.unwrap().to_vec()).collect();
    assert_eq!(read[0], value);
    assert_eq!(read[1], pattern(4, 32 * 4_096)[31 * 4_096..]);
    client.close(BUDGET).await.unwrap();
    other.close(BUDGET).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_in_the_reader_s_own_process_is_read_without_a_connection() {
    let cluster = Cluster::start(1, 64 * MIB).await;
    let admin = cluster.master.admin_address();
    let node = &cluster.nodes[0];
    let client = node.client(BUDGET);
    until(admin, "granted_bytes", |bytes| bytes > 0).await;
    let value = pattern(5, 1_000_003);
    let items = vec![(key(0), &value[..])];
    client
        .put(items, PutOptions::default())
        .await
        .remove(0)
        .unwrap();
    assert_eq!(operations(admin, "put").await, 1);
    let target = client.allocate(value.len()).await.unwrap();
    let slice = target.slice(0..value.len() as u64).unwrap();
    let got = client.get_into(vec![GetInto::new(key(0), slice)]).await;
    got.into_iter().next().unwrap().unwrap();
    let mut read = vec![0; value.len()];
    target.memory().read_at(0, &mut read);
    assert_eq!(read, value);
    for (link, gauges) in node.engine().gauges().links {
        assert_eq!(gauges.connections, 0, "{link}");
    }
    // A client that ends gives back what was set aside for it, also without a word.
    drop(client);
    until(admin, "granted_bytes", |bytes| bytes == 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hinders_a_put_is_said_alike_wherever_its_bytes_go() {
    let cluster = Cluster::start(1, 64 * MIB).await;
    let admin = cluster.master.admin_address();
    let client = lender(&cluster.master.address().to_string(), 64 * MIB).await;
    until(admin, "granted_bytes", |bytes| bytes > 0).await;
    let there = cluster.client().await;
    let (once, value) = (PutOptions::default(), pattern(1, 1_000));
    assert_eq!(put(&there, 0, &value, &once).await, Ok(()));
    for client in [&client, &there] {
        let code = put(client, 0, &value, &once).await;
        assert_eq!(code, Err(ErrorCode::ObjectAlreadyExists));
        let none = put(client, 1, b"", &once).await;
        assert_eq!(none, Err(ErrorCode::InvalidParams));
        let long = vec![(vec![b'k'; 5_000].into(), &value[..])];
        let long = client.put(long, once.clone()).await.remove(0);
        assert_eq!(long.unwrap_err().code, ErrorCode::InvalidKey);
    }
    let upsert = PutOptions {
        upsert: true,
        ..PutOptions::default()
    };
    let newer = pattern(2, 2_000);
    let code = put(&client, 0, &newer, &upsert).await;
    assert_eq!(code, Ok(()));
    let read = there.get(vec![key(0)]).await.remove(0).unwrap();
    assert_eq!(read.to_vec(), newer);
    // The one that was there before, and each that was refused, took no space.
    drop(read);
    client.close(BUDGET).await.unwrap();
    let removed = there.remove(vec![key(0)], RemoveOptions::default()).await;
    let gone = removed[0].as_ref().map_err(|fault| fault.code);
    assert_eq!(
        gone,
        Err(ErrorCode::ObjectNotFound),
        "it went with its segment"
    );
    assert_eq!(metric(admin, "used_bytes").await, 0);
    assert_eq!(metric(admin, "granted_bytes").await, 0);
    there.close(BUDGET).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_a_grant_or_wants_more_replicas_is_put_in_two_steps() {
    let cluster = Cluster::start(1, 64 * MIB).await;
    let admin = cluster.master.admin_address();
    let client = lender(&cluster.master.address().to_string(), 64 * MIB).await;
    until(admin, "granted_bytes", |bytes| bytes > 0).await;
    let large = pattern(1, 20 << 20);
    let once = PutOptions::default();
    assert_eq!(put(&client, 0, &large, &once).await, Ok(()));
    let own = client.engine().segment_name().to_owned();
    assert_eq!(segments_of(&client, 0).await, [own.as_str()]);
    let twice = PutOptions {
        replicas: 2,
        ..PutOptions::default()
    };
    assert_eq!(put(&client, 1, b"twice", &twice).await, Ok(()));
    assert_eq!(segments_of(&client, 1).await.len(), 2);
    let node = cluster.nodes[0].segment_name().to_owned();
    let mut there = PutOptions {
        preferred_segments: vec![node.clone()],
        ..PutOptions::default()
    };
    assert_eq!(put(&client, 2, b"there", &there).await, Ok(()));
    assert_eq!(segments_of(&client, 2).await, [node]);
    assert_eq!(puts(admin).await, [0, 3, 3]);
    there.preferred_segments = vec![own.clone()];
    assert_eq!(put(&client, 3, b"here", &there).await, Ok(()));
    assert_eq!(segments_of(&client, 3).await, [own]);
    assert_eq!(puts(admin).await, [1, 3, 3]);
    client.close(BUDGET).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn space_that_was_set_aside_goes_to_whoever_needs_it() {
    let cluster = Cluster::start(0, 0).await;
    let admin = cluster.master.admin_address();
    let client = lender(&cluster.master.address().to_string(), 16 * MIB).await;
    until(admin, "granted_bytes", |bytes| bytes > 0).await;
    // To the writer itself at once, to others when it has been asked for.
    let all = pattern(1, 16 << 20);
    let once = PutOptions::default();
    assert_eq!(put(&client, 0, &all, &once).await, Ok(()));
    // It may have been evicted by now: it is more than the watermark allows.
    drop(client.remove(vec![key(0)], RemoveOptions::default()).await);
    until(admin, "granted_bytes", |bytes| bytes == 0).await;
    let wait = async {
        // Nothing is granted for a while; then the next put asks.
        for number in 1.. {
            put(&client, number, b"small", &once).await.unwrap();
            let keys = vec![key(number)];
            client.remove(keys, RemoveOptions::default()).await;
            if metric(admin, "granted_bytes").await > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .unwrap();
    let other = cluster
        .client()
        .await
        .with_deadline(Duration::from_secs(20));
    let patient = PutOptions {
        wait_for_space: true,
        ..PutOptions::default()
    };
    assert_eq!(put(&other, 0, &all, &patient).await, Ok(()));
    client.close(BUDGET).await.unwrap();
    other.close(BUDGET).await.unwrap();
    cluster.stop().await;
}

const ADDRESS: &str = "MOONCAKE_TEST_MASTER";

/// Not a test but the writer that [`a_killed_writer_takes_its_memory_along`] kills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_to_be_killed() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let client = lender(&address, 64 * MIB).await;
    let value = pattern(9, 1 << 20);
    let upsert = PutOptions {
        upsert: true,
        ..PutOptions::default()
    };
    for number in 0.. {
        let items = (0..4).map(|at| (key(number % 8 * 4 + at), &value[..]));
        client.put(items.collect(), upsert.clone()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_writer_takes_its_memory_along() {
    let config = MasterConfig {
        listen: "127.0.0.1:0".to_owned(),
        admin_listen: "127.0.0.1:0".to_owned(),
        client_ttl: 2,
        ping_interval_ms: 100,
        ..MasterConfig::default()
    };
    let master = Master::start(config).await.unwrap();
    let (address, admin) = (master.address().to_string(), master.admin_address());
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer_to_be_killed"])
        .env(ADDRESS, &address)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until(admin, "operations_total{kind=\"put\"}", |puts| puts > 20).await;
    writer.kill().unwrap();
    writer.wait().unwrap();
    let reader = RealClient::connect(&address, ClientOptions::default())
        .await
        .unwrap();
    until(admin, "segments", |segments| segments == 0).await;
    for read in reader.get((0..32).map(key).collect()).await {
        assert_eq!(read.unwrap_err().code, ErrorCode::ObjectNotFound);
    }
    for name in [
        "objects",
        "puts_in_progress",
        "used_bytes",
        "granted_bytes",
        "capacity_bytes",
    ] {
        assert_eq!(metric(admin, name).await, 0, "{name}");
    }
    reader.close(BUDGET).await.unwrap();
    master.shutdown().await;
}
