//! How long a master takes to come back with what its log tells of disks.
//!
//! Puts objects, hands them out for a disk, stops the master and starts it again:
//!
//! ```text
//! cargo run --release -p mooncake-master --example restart -- 1000000
//! ```
//!
//! The second start reads the log as it was written, the third one the checkpoint that was taken of
//! it meanwhile.

use std::time::{Duration, Instant};

use mooncake_master::{Master, MasterConfig, RunningMaster};
use mooncake_proto::master::{
    FetchOffloadTasksRequest, KeyIncarnation, ListStoragesRequest, MountSegmentRequest,
    MountStorageRequest, NotifyOffloadRequest, OffloadResult, PutEndRequest, PutItem,
    PutStartRequest, ReconcileStorageRequest, ReleaseRequest, Segment, Storage,
    master_client::MasterClient, put_start_result, storages_client::StoragesClient,
};
use tonic::transport::{Channel, Endpoint};

type Failure = Box<dyn std::error::Error>;

const BATCH: usize = 1000;
const CLIENT: u64 = 5;

async fn start(directory: &str) -> Result<(RunningMaster, Duration), Failure> {
    let config = MasterConfig {
        listen: "127.0.0.1:0".into(),
        admin_listen: "127.0.0.1:0".into(),
        state_dir: directory.into(),
        enable_offload: true,
        client_ttl: 600,
        ..MasterConfig::default()
    };
    let begun = Instant::now();
    let master = Master::start(config).await?;
    Ok((master, begun.elapsed()))
}

async fn connect(master: &RunningMaster) -> Result<Channel, Failure> {
    let address = format!("http://{}", master.address());
    Ok(Endpoint::from_shared(address)?.connect().await?)
}

fn storage() -> bytes::Bytes {
    vec![9; 16].into()
}

/// Memory and a disk of a client.
async fn mount(channel: &Channel, bytes: u64) -> Result<(), Failure> {
    let segment = Segment {
        id: vec![1; 16].into(),
        name: "segment".into(),
        owner_incarnation: CLIENT,
        registration: 1,
        length: bytes,
        ..Segment::default()
    };
    let mut client = MasterClient::new(channel.clone());
    let request = MountSegmentRequest {
        segment: Some(segment),
    };
    client.mount_segment(request).await?;
    let mut holder = StoragesClient::new(channel.clone());
    let mount = MountStorageRequest {
        storage: Some(Storage {
            id: storage(),
            holder_incarnation: CLIENT,
            endpoint: "127.0.0.1:7".into(),
            segment_name: "engine".into(),
            holder: "node".into(),
        }),
        state: None,
        fresh: true,
    };
    holder.mount_storage(mount).await?;
    let told = ReconcileStorageRequest {
        storage: storage(),
        client_incarnation: CLIENT,
        last: true,
        ..ReconcileStorageRequest::default()
    };
    holder.reconcile_storage(told).await?;
    Ok(())
}

/// Puts so many objects, and says of all that they are on the disk.
async fn fill(channel: &Channel, objects: usize) -> Result<(), Failure> {
    let mut client = MasterClient::new(channel.clone());
    let mut holder = StoragesClient::new(channel.clone());
    for first in (0..objects).step_by(BATCH) {
        let keys = first..objects.min(first + BATCH);
        // As long as keys of KV-cache blocks are.
        let key = |n: usize| bytes::Bytes::from(format!("model/layer-range/{n:064x}"));
        let items = keys.clone().map(|n| PutItem {
            key: key(n),
            length: 64,
        });
        let start = PutStartRequest {
            items: items.collect(),
            client_incarnation: CLIENT,
            ..PutStartRequest::default()
        };
        let started = client.put_start(start).await?.into_inner();
        let ends = keys
            .zip(started.results)
            .map(|(n, result)| match result.result {
                Some(put_start_result::Result::Object(object)) => Ok(KeyIncarnation {
                    key: key(n),
                    incarnation: object.incarnation,
                }),
                other => Err(format!("object {n} was not put: {other:?}")),
            });
        let end = PutEndRequest {
            items: ends.collect::<Result<_, _>>()?,
            client_incarnation: CLIENT,
            ..PutEndRequest::default()
        };
        client.put_end(end).await?;
        let fetch = FetchOffloadTasksRequest {
            storage: storage(),
            client_incarnation: CLIENT,
            ..FetchOffloadTasksRequest::default()
        };
        let fetched = holder.fetch_offload_tasks(fetch).await?.into_inner();
        let results = fetched.tasks.iter().map(|task| OffloadResult {
            task: task.task,
            error: None,
            tenant: task.tenant.clone(),
            key: task.key.clone(),
            incarnation: task.object.as_ref().and_then(|object| object.incarnation),
        });
        let notify = NotifyOffloadRequest {
            storage: storage(),
            client_incarnation: CLIENT,
            results: results.collect(),
        };
        holder.notify_offload(notify).await?;
        let leases = vec![fetched.lease];
        client.release(ReleaseRequest { leases }).await?;
    }
    Ok(())
}

async fn known(channel: &Channel) -> Result<u64, Failure> {
    let mut holder = StoragesClient::new(channel.clone());
    let listed = holder.list_storages(ListStoragesRequest {}).await?;
    let storages = listed.into_inner().storages;
    Ok(storages
        .iter()
        .map(|storage| storage.value_bytes / 64)
        .sum())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let objects = std::env::args()
        .nth(1)
        .map_or(Ok(100_000), |count| count.parse())?;
    let directory = std::env::temp_dir().join(format!("mooncake-restart-{}", std::process::id()));
    let directory = directory.display().to_string();
    let (master, _) = start(&directory).await?;
    let channel = connect(&master).await?;
    mount(&channel, 128 * objects as u64).await?;
    let begun = Instant::now();
    fill(&channel, objects).await?;
    println!(
        "{objects} objects handed out and logged in {:.2?}",
        begun.elapsed()
    );
    master.shutdown().await;
    for what in ["the log", "a checkpoint or the log"] {
        let (master, took) = start(&directory).await?;
        let found = known(&connect(&master).await?).await?;
        println!("a start with {what}: {took:.2?}, {found} objects known");
        // Time for a checkpoint.
        tokio::time::sleep(Duration::from_secs(5)).await;
        master.shutdown().await;
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
