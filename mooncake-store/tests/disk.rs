//! Objects on a node's disk, with a master and sockets: what was put comes back, what was removed does not.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "helpers of these tests fail as the tests do"
)]

mod common;

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::{BUDGET, key, pattern};
use mooncake_bucket::{
    BucketConfig, BucketStorageBackend, Disk, DiskFile, Found, LockFailure, Name, RealDisk, Space,
};
use mooncake_master::{Master, MasterConfig, RunningMaster};
use mooncake_proto::master::{AdoptStorageRequest, storages_client::StoragesClient};
use mooncake_store::{
    Client, ClientOptions, ErrorCode, HolderCounts, Node, NodeOptions, RealClient, StorageOptions,
    core::{PutOptions, RemoveOptions, Replica},
};
use tonic::transport::Endpoint;

/// Generous: a disk of this machine may be busy with others.
const PATIENCE: Duration = Duration::from_secs(60);

async fn master(state: &Path, listen: &str) -> RunningMaster {
    let config = MasterConfig {
        listen: listen.to_owned(),
        admin_listen: "127.0.0.1:0".to_owned(),
        state_dir: state.display().to_string(),
        enable_offload: true,
        ..MasterConfig::default()
    };
    Master::start(config).await.unwrap()
}

async fn node(master: &str, disk: &Path) -> Node {
    node_with(master, StorageOptions::new(disk, 256 << 20)).await
}

async fn node_with(master: &str, storage: StorageOptions) -> Node {
    let mut options = NodeOptions::new("node", 64 << 20);
    options.storage = Some(storage);
    Node::start(master, options).await.unwrap()
}

async fn client(master: &str) -> RealClient {
    let options = ClientOptions::default();
    RealClient::connect(master, options).await.unwrap()
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn counted(node: &Node, what: &str, holds: impl Fn(&HolderCounts) -> bool) {
    until(what, async || holds(&node.storage_counts().unwrap())).await;
}

async fn put(client: &RealClient, values: &[Vec<u8>]) {
    let items = values.iter().enumerate();
    let items = items.map(|(i, value)| (key(i), &value[..])).collect();
    for result in client.put(items, PutOptions::default()).await {
        result.unwrap();
    }
}

fn values(count: usize) -> Vec<Vec<u8>> {
    let size = |i| [1, 700, 4096, 65_537, 300_001][i % 5];
    (0..count).map(|i| pattern(i as u64, size(i))).collect()
}

fn on_the_disk(path: &Path) -> BucketStorageBackend {
    BucketStorageBackend::open(path, BucketConfig::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_offloaded_is_on_the_disk_and_what_is_removed_is_not_after_a_restart() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let holder = node(&address, disk.path()).await;
    until("announced", async || holder.storage_is_announced()).await;
    let client = client(&address).await;
    let values = values(20);
    put(&client, &values).await;
    counted(&holder, "all are on the disk", |it| {
        it.offloaded_objects == 20
    })
    .await;
    let described = client.describe((0..20).map(key).collect()).await;
    for description in described {
        let replicas = description.unwrap().replicas;
        let on_disk = |it: &Replica| matches!(it, Replica::LocalDisk(_));
        assert!(replicas.iter().any(on_disk), "{replicas:?}");
    }

    let removed: Vec<_> = (0..10).map(key).collect();
    for result in client.remove(removed, RemoveOptions::default()).await {
        result.unwrap();
    }
    counted(&holder, "tombstones are durable", |it| {
        it.remove_tasks == 10
    })
    .await;
    holder.shutdown(BUDGET).await.unwrap();
    {
        let records = on_the_disk(disk.path());
        assert_eq!(records.len(), 10);
        for (i, value) in values.iter().enumerate() {
            let name = key(i);
            let found = records.get(Name::new("default", &name), None);
            match i < 10 {
                true => assert!(found.is_err(), "{i} came back"),
                false => assert_eq!(&found.unwrap().bytes, value),
            }
        }
    }
    // The master still knows what is there.
    let holder = node(&address, disk.path()).await;
    until("announced again", async || holder.storage_is_announced()).await;
    assert_eq!(holder.storage_counts().unwrap().strangers, 0);
    client.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
    assert_eq!(on_the_disk(disk.path()).len(), 10);
}

/// Of all whose disk was asked.
async fn read_all(client: &RealClient, values: &[Vec<u8>]) {
    let keys = (0..values.len()).map(key).collect();
    for (i, (result, value)) in client.get(keys).await.into_iter().zip(values).enumerate() {
        let found = result.unwrap_or_else(|fault| panic!("{i}: {fault:?}"));
        assert!(found.to_vec() == *value, "{i} has other bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_comes_back_elsewhere_is_read_at_once_and_what_was_removed_is_not() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let holder = node(&address, disk.path()).await;
    until("announced", async || holder.storage_is_announced()).await;
    let before = holder.storage_endpoint();
    let client = client(&address).await;
    let values = values(25);
    put(&client, &values).await;
    counted(&holder, "all are on the disk", |it| {
        it.offloaded_objects == 25
    })
    .await;
    read_all(&client, &values).await;
    assert_eq!(
        holder.storage_counts().unwrap().reads,
        0,
        "memory comes first"
    );
    holder.shutdown(BUDGET).await.unwrap();

    // While nobody holds it, the first is removed.
    for result in client.remove(vec![key(24)], RemoveOptions::default()).await {
        result.unwrap();
    }
    let holder = node(&address, disk.path()).await;
    assert_ne!(holder.storage_endpoint(), before);
    until("announced", async || holder.storage_is_announced()).await;
    read_all(&client, &values[..24]).await;
    let counts = holder.storage_counts().unwrap();
    assert_eq!((counts.reads, counts.failed_reads), (24, 0));
    assert_eq!(counts.strangers, 1, "the master told it to remove one");
    let gone = client.get(vec![key(24)]).await.remove(0);
    assert_eq!(gone.unwrap_err().code, ErrorCode::ObjectNotFound);
    client.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
    assert_eq!(on_the_disk(disk.path()).len(), 24);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_memory_has_no_room_for_is_read_from_the_disk() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let mut options = NodeOptions::new("node", 8 << 20);
    options.storage = Some(StorageOptions::new(disk.path(), 256 << 20));
    let holder = Node::start(&address, options).await.unwrap();
    until("announced", async || holder.storage_is_announced()).await;
    let client = client(&address).await;
    let values: Vec<_> = (0..32).map(|i| pattern(i, 1 << 20)).collect();
    for (i, value) in values.iter().enumerate() {
        // Full memory is busy until something of it is evicted.
        until("there is room", async || {
            let items = vec![(key(i), &value[..])];
            let put = client.put(items, PutOptions::default()).await.remove(0);
            put.is_ok()
        })
        .await;
        let count = i as u64 + 1;
        counted(&holder, "it is on the disk", |it| {
            it.offloaded_objects == count
        })
        .await;
    }
    read_all(&client, &values).await;
    let counts = holder.storage_counts().unwrap();
    assert!(counts.reads >= 24, "memory has room for 8: {counts:?}");
    assert_eq!(counts.read_bytes, counts.reads << 20);
    client.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_record_is_an_error_and_soon_not_announced() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let holder = node(&address, disk.path()).await;
    until("announced", async || holder.storage_is_announced()).await;
    let client = client(&address).await;
    let values = [pattern(1, 300_000), pattern(2, 300_000)];
    put(&client, &values).await;
    counted(&holder, "all are on the disk", |it| {
        it.offloaded_objects == 2
    })
    .await;
    holder.shutdown(BUDGET).await.unwrap();
    let mut damaged = 0;
    for entry in std::fs::read_dir(disk.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = values[0][100_000..100_064].to_vec();
        let at = bytes.windows(64).position(|window| window == middle);
        if let Some(at) = at {
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);

    let holder = node(&address, disk.path()).await;
    until("announced", async || holder.storage_is_announced()).await;
    assert_eq!(holder.storage_counts().unwrap().strangers, 0);
    let mut results = client.get(vec![key(0), key(1)]).await;
    assert_eq!(results.pop().unwrap().unwrap().to_vec(), values[1]);
    assert!(results.pop().unwrap().is_err());
    until("the master knows", async || {
        let found = client.exist(vec![key(0)]).await.remove(0).unwrap();
        !found.exists
    })
    .await;
    assert_eq!(
        client.get(vec![key(1)]).await.remove(0).unwrap().to_vec(),
        values[1]
    );
    client.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_knows_nothing_gets_no_disk_until_an_operator_says_so() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let holder = node(&address, disk.path()).await;
    until("announced", async || holder.storage_is_announced()).await;
    let first = client(&address).await;
    let values = values(5);
    put(&first, &values).await;
    counted(&holder, "all are on the disk", |it| {
        it.offloaded_objects == 5
    })
    .await;
    first.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;

    let other = tempfile::tempdir().unwrap();
    let running = master(other.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let holder = node(&address, disk.path()).await;
    let client = client(&address).await;
    // Its memory takes part all the same.
    let items = vec![(key(100), &b"in memory"[..])];
    client
        .put(items, PutOptions::default())
        .await
        .remove(0)
        .unwrap();
    assert!(!holder.storage_is_announced());
    let storage = holder.storage_id().unwrap().0.to_vec().into();
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut master = StoragesClient::new(channel.connect().await.unwrap());
    let adopt = AdoptStorageRequest { storage };
    master.adopt_storage(adopt).await.unwrap();
    until("adopted", async || holder.storage_is_announced()).await;
    read_all(&client, &values).await;
    client.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
}

/// A directory whose writes wait while the gate is closed, and whose reads hang while they should.
#[derive(Debug)]
struct Gated {
    disk: RealDisk,
    gate: Arc<AtomicBool>,
    reached: Arc<AtomicBool>,
    hang: Arc<AtomicBool>,
}

#[derive(Debug)]
struct GatedFile {
    file: Arc<dyn DiskFile>,
    gate: Arc<AtomicBool>,
    reached: Arc<AtomicBool>,
    hang: Arc<AtomicBool>,
}

impl Gated {
    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(GatedFile {
            file,
            gate: Arc::clone(&self.gate),
            reached: Arc::clone(&self.reached),
            hang: Arc::clone(&self.hang),
        })
    }
}

impl Disk for Gated {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.disk.create(name)?))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.disk.open(name)?))
    }
    fn list(&self) -> io::Result<Vec<Found>> {
        self.disk.list()
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
    fn space(&self) -> io::Result<Space> {
        self.disk.space()
    }
    fn lock(&self, words: &str) -> Result<Box<dyn Send + Sync>, LockFailure> {
        self.disk.lock(words)
    }
}

impl DiskFile for GatedFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        while self.hang.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.file.read_at(at, into)
    }
    fn write_at(&self, at: u64, pieces: &[&[u8]]) -> io::Result<()> {
        // Only values: control files are small.
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.reached.fetch_or(bytes > 100_000, Ordering::AcqRel);
        while bytes > 100_000 && !self.gate.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.file.write_at(at, pieces)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn allocated(&self) -> io::Result<u64> {
        self.file.allocated()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_stands_still_expires_nobody_and_what_is_removed_meanwhile_is_not_kept() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = MasterConfig {
        listen: "127.0.0.1:0".to_owned(),
        admin_listen: "127.0.0.1:0".to_owned(),
        state_dir: state.path().display().to_string(),
        enable_offload: true,
        ping_interval_ms: 100,
        client_ttl: 2,
        ..MasterConfig::default()
    };
    let running = Master::start(config).await.unwrap();
    let address = running.address().to_string();
    let gate = Arc::new(AtomicBool::new(false));
    let mut storage = StorageOptions::new(disk.path(), 256 << 20);
    storage.disk = Some(Arc::new(Gated {
        disk: RealDisk::open(disk.path()).unwrap(),
        gate: Arc::clone(&gate),
        reached: Arc::default(),
        hang: Arc::default(),
    }));
    let holder = node_with(&address, storage).await;
    until("announced", async || holder.storage_is_announced()).await;
    let client = client(&address).await;
    let values = [pattern(1, 300_000), pattern(2, 300_000)];
    put(&client, &values).await;
    // Longer than a client may be silent, and its storage with it.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for result in client.remove(vec![key(0)], RemoveOptions::default()).await {
        result.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let counts = holder.storage_counts().unwrap();
    assert_eq!(
        (counts.mounts, counts.offloaded_objects),
        (1, 0),
        "{counts:?}"
    );
    assert_eq!(counts.remove_tasks, 0, "its record may still be written");
    assert_eq!(
        client.get(vec![key(1)]).await.remove(0).unwrap().to_vec(),
        values[1]
    );

    gate.store(true, Ordering::Release);
    counted(&holder, "the other one is there", |it| {
        it.offloaded_objects == 1
    })
    .await;
    counted(&holder, "the removal is done", |it| it.remove_tasks == 1).await;
    assert_eq!(holder.storage_counts().unwrap().mounts, 1);
    client.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
    let records = on_the_disk(disk.path());
    assert!(records.get(Name::new("default", &key(0)), None).is_err());
    assert_eq!(
        records
            .get(Name::new("default", &key(1)), None)
            .unwrap()
            .bytes,
        values[1]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_gives_up_what_the_master_was_told_of_first() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let holder = node_with(&address, StorageOptions::new(disk.path(), 8 << 20)).await;
    until("announced", async || holder.storage_is_announced()).await;
    let client = client(&address).await;
    let values: Vec<_> = (0..60).map(|i| pattern(i, 300_000)).collect();
    for (i, value) in values.iter().enumerate() {
        let items = vec![(key(i), &value[..])];
        client
            .put(items, PutOptions::default())
            .await
            .remove(0)
            .unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    counted(&holder, "some gave way", |it| it.evicted_objects >= 20).await;
    counted(&holder, "others came", |it| it.offloaded_objects >= 40).await;
    // Memory has all of them still.
    read_all(&client, &values).await;
    let used: u64 = std::fs::read_dir(disk.path())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().map_or(0, |it| it.len()))
        .sum();
    assert!(used <= 9 << 20, "{used} bytes are used");
    holder.shutdown(BUDGET).await.unwrap();

    // Whatever is announced is there.
    let holder = node_with(&address, StorageOptions::new(disk.path(), 8 << 20)).await;
    until("announced", async || holder.storage_is_announced()).await;
    assert_eq!(holder.storage_counts().unwrap().strangers, 0);
    let mut found = 0;
    for (i, value) in values.iter().enumerate() {
        match client.get(vec![key(i)]).await.remove(0) {
            Ok(read) => {
                assert!(read.to_vec() == *value, "{i} has other bytes");
                found += 1;
            }
            Err(fault) => assert_eq!(fault.code, ErrorCode::ObjectNotFound, "{i}: {fault:?}"),
        }
    }
    assert!(found > 0);
    assert_eq!(holder.storage_counts().unwrap().failed_reads, 0);
    client.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_restarts_beside_a_write_loses_nothing_of_it() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let (gate, reached) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let mut storage = StorageOptions::new(disk.path(), 256 << 20);
    storage.disk = Some(Arc::new(Gated {
        disk: RealDisk::open(disk.path()).unwrap(),
        gate: Arc::clone(&gate),
        reached: Arc::clone(&reached),
        hang: Arc::default(),
    }));
    let holder = node_with(&address, storage).await;
    until("announced", async || holder.storage_is_announced()).await;
    let first = client(&address).await;
    let values = [pattern(1, 300_000), pattern(2, 300_000)];
    put(&first, &values).await;
    first.close(BUDGET).await.unwrap();
    until("it is written", async || reached.load(Ordering::Acquire)).await;
    running.shutdown().await;
    let running = master(state.path(), &address).await;
    until("another life of the master", async || {
        !holder.storage_is_announced()
    })
    .await;
    // It is not announced while something is on its way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!holder.storage_is_announced());
    assert_eq!(holder.storage_counts().unwrap().mounts, 1);
    gate.store(true, Ordering::Release);
    until("announced again", async || holder.storage_is_announced()).await;
    let second = client(&address).await;
    for i in 0..values.len() {
        until("a replica is on the disk", async || {
            let found = second.describe(vec![key(i)]).await.remove(0);
            let on_disk = |it: &Replica| matches!(it, Replica::LocalDisk(_));
            found.is_ok_and(|found| found.replicas.iter().any(on_disk))
        })
        .await;
    }
    read_all(&second, &values).await;
    let counts = holder.storage_counts().unwrap();
    assert_eq!((counts.strangers, counts.revoked_offloads), (0, 0));
    second.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
    assert_eq!(on_the_disk(disk.path()).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stays_connected_keeps_no_directory() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let holder = node(&address, disk.path()).await;
    until("announced", async || holder.storage_is_announced()).await;
    let client = client(&address).await;
    let values = [pattern(1, 300_000)];
    put(&client, &values).await;
    counted(&holder, "it is on the disk", |it| it.offloaded_objects == 1).await;
    holder.shutdown(BUDGET).await.unwrap();

    let holder = node(&address, disk.path()).await;
    until("announced again", async || holder.storage_is_announced()).await;
    read_all(&client, &values).await;
    assert_eq!(holder.storage_counts().unwrap().reads, 1, "it is connected");
    holder.shutdown(BUDGET).await.unwrap();
    assert_eq!(on_the_disk(disk.path()).len(), 1);

    let holder = node(&address, disk.path()).await;
    until("announced once more", async || {
        holder.storage_is_announced()
    })
    .await;
    read_all(&client, &values).await;
    assert_eq!(holder.storage_counts().unwrap().reads, 1, "it is connected");
    drop(holder);
    until("the directory is free", async || {
        BucketStorageBackend::open(disk.path(), BucketConfig::default()).is_ok()
    })
    .await;
    client.close(BUDGET).await.unwrap();
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_the_holder_has_room_for_is_read_in_turns_and_what_has_none_is_not_kept() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let storage = || {
        let mut storage = StorageOptions::new(disk.path(), 256 << 20);
        storage.staging_bytes = 1 << 20;
        storage
    };
    let holder = node_with(&address, storage()).await;
    until("announced", async || holder.storage_is_announced()).await;
    let client = client(&address).await;
    let mut values: Vec<_> = (0..24).map(|i| pattern(i, 400_000)).collect();
    values.push(pattern(24, 1_500_000));
    put(&client, &values).await;
    counted(&holder, "all that can be read are there", |it| {
        it.offloaded_objects == 24 && it.refused_offloads > 0
    })
    .await;
    values.pop();
    holder.shutdown(BUDGET).await.unwrap();

    let holder = node_with(&address, storage()).await;
    until("announced again", async || holder.storage_is_announced()).await;
    read_all(&client, &values).await;
    let counts = holder.storage_counts().unwrap();
    assert_eq!((counts.reads, counts.failed_reads), (24, 0), "{counts:?}");
    client.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_restarts_before_it_hears_of_a_write_hears_of_it_later() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let (gate, reached) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let mut storage = StorageOptions::new(disk.path(), 256 << 20);
    storage.disk = Some(Arc::new(Gated {
        disk: RealDisk::open(disk.path()).unwrap(),
        gate: Arc::clone(&gate),
        reached: Arc::clone(&reached),
        hang: Arc::default(),
    }));
    let holder = node_with(&address, storage).await;
    for round in 0..3_u64 {
        until("announced", async || holder.storage_is_announced()).await;
        let client = client(&address).await;
        let value = pattern(round, 300_000);
        reached.store(false, Ordering::Release);
        let items = vec![(key(round as usize), &value[..])];
        let put = client.put(items, PutOptions::default()).await.remove(0);
        put.unwrap();
        client.close(BUDGET).await.unwrap();
        until("it is written", async || reached.load(Ordering::Acquire)).await;
        running.shutdown().await;
        gate.store(true, Ordering::Release);
        // The write ends, and nobody is there to be told.
        tokio::time::sleep(Duration::from_millis(300)).await;
        gate.store(false, Ordering::Release);
        running = master(state.path(), &address).await;
        let mounts = round + 2;
        counted(&holder, "mounted again", |it| it.mounts >= mounts).await;
    }
    gate.store(true, Ordering::Release);
    until("announced", async || holder.storage_is_announced()).await;
    let client = client(&address).await;
    for round in 0..3 {
        until("it is on the disk", async || {
            let found = client.describe(vec![key(round)]).await.remove(0);
            let on_disk = |it: &Replica| matches!(it, Replica::LocalDisk(_));
            found.is_ok_and(|found| found.replicas.iter().any(on_disk))
        })
        .await;
    }
    let counts = holder.storage_counts().unwrap();
    assert_eq!((counts.strangers, counts.revoked_offloads), (0, 0));
    client.close(BUDGET).await.unwrap();
    holder.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
    let records = on_the_disk(disk.path());
    for round in 0..3 {
        let found = records.get(Name::new("default", &key(round)), None);
        assert_eq!(found.unwrap().bytes, pattern(round as u64, 300_000));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_cannot_be_opened_leaves_no_memory_in_the_store() {
    let (state, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let held = on_the_disk(disk.path());
    let mut options = NodeOptions::new("node", 64 << 20);
    options.storage = Some(StorageOptions::new(disk.path(), 256 << 20));
    Node::start(&address, options).await.unwrap_err();
    let client = client(&address).await;
    let put = client.put(vec![(key(0), &b"value"[..])], PutOptions::default());
    put.await.remove(0).unwrap_err();
    drop(held);
    client.close(BUDGET).await.unwrap();
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_keeps_nobody_from_its_holders_memory_nor_from_other_disks() {
    let state = tempfile::tempdir().unwrap();
    let disks = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let running = master(state.path(), "127.0.0.1:0").await;
    let address = running.address().to_string();
    let hang = Arc::new(AtomicBool::new(false));
    // One object on each disk.
    let first = client(&address).await;
    let values = [pattern(0, 300_000), pattern(1, 300_000)];
    for (i, disk) in disks.iter().enumerate() {
        let holder = node(&address, disk.path()).await;
        until("announced", async || holder.storage_is_announced()).await;
        let items = vec![(key(i), &values[i][..])];
        let put = first.put(items, PutOptions::default()).await.remove(0);
        put.unwrap();
        counted(&holder, "it is on the disk", |it| it.offloaded_objects == 1).await;
        holder.shutdown(BUDGET).await.unwrap();
    }
    first.close(BUDGET).await.unwrap();
    let mut storage = StorageOptions::new(disks[0].path(), 256 << 20);
    storage.disk = Some(Arc::new(Gated {
        disk: RealDisk::open(disks[0].path()).unwrap(),
        gate: Arc::new(AtomicBool::new(true)),
        reached: Arc::default(),
        hang: Arc::clone(&hang),
    }));
    let hung = node_with(&address, storage).await;
    let mut options = NodeOptions::new("other", 64 << 10);
    options.storage = Some(StorageOptions::new(disks[1].path(), 256 << 20));
    let other = Node::start(&address, options).await.unwrap();
    until("announced", async || {
        hung.storage_is_announced() && other.storage_is_announced()
    })
    .await;

    hang.store(true, Ordering::Release);
    let mut options = ClientOptions::default();
    options.operation_deadline = Duration::from_secs(3);
    let client = RealClient::connect(&address, options).await.unwrap();
    let mut found = client.get(vec![key(0), key(1)]).await;
    assert_eq!(found.pop().unwrap().unwrap().to_vec(), values[1]);
    let fault = found.pop().unwrap().unwrap_err();
    assert_ne!(fault.code, ErrorCode::ObjectNotFound, "{fault:?}");
    // Only the memory of the one whose disk hangs has room for this.
    let large = pattern(2, 300_000);
    let items = vec![(key(2), &large[..])];
    let put = client.put(items, PutOptions::default()).await.remove(0);
    put.unwrap();
    let found = client.get(vec![key(2)]).await.remove(0);
    assert_eq!(found.unwrap().to_vec(), large);

    hang.store(false, Ordering::Release);
    until("the disk answers", async || {
        client.get(vec![key(0)]).await.remove(0).is_ok()
    })
    .await;
    client.close(BUDGET).await.unwrap();
    hung.shutdown(BUDGET).await.unwrap();
    other.shutdown(BUDGET).await.unwrap();
    running.shutdown().await;
}
