//! The part of the demo with disks: removes in mid run, a node that is killed and comes back, and books that
//! must agree in the end.

use std::time::{Duration, Instant};

use bytes::Bytes;
use indicatif::ProgressBar;
use mooncake_proto::master::storages_client::StoragesClient;
use mooncake_proto::master::{ListStoragesRequest, StorageUsage};
use mooncake_store::core::{PutOptions, RemoveOptions};
use mooncake_store::{Client, ErrorCode, RealClient};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::cluster::Cluster;
use crate::output::Failure;
use crate::report::{DiskSummary, StorageSummary};

/// Objects that are removed in mid run.
const KEEPSAKES: usize = 64;
const KEEPSAKE_BYTES: usize = 64 << 10;
/// How long disks may take to do what waits.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// See the [module](self).
pub(super) struct Disks<'a> {
    client: &'a RealClient,
    storages: StoragesClient<Channel>,
    keys: Vec<Bytes>,
    summary: DiskSummary,
}

impl<'a> Disks<'a> {
    /// Puts what will be removed, and waits until it is on disks.
    pub(super) async fn prepare(
        cluster: &Cluster,
        client: &'a RealClient,
        run: &str,
    ) -> Result<Self, Failure> {
        let channel = Endpoint::from_shared(format!("http://{}", cluster.address()));
        let channel = channel.map_err(lost)?.connect().await.map_err(lost)?;
        let keys: Vec<_> = (0..KEEPSAKES)
            .map(|number| Bytes::from(format!("{run}/removed/{number}")))
            .collect();
        let value = vec![7; KEEPSAKE_BYTES];
        let items = keys.iter().map(|key| (key.clone(), &value[..])).collect();
        for put in client.put(items, PutOptions::default()).await {
            put.map_err(|fault| {
                Failure::new("the demo's own objects cannot be put").because(fault)
            })?;
        }
        let mut disks = Self {
            client,
            storages: StoragesClient::new(channel),
            keys,
            summary: DiskSummary::default(),
        };
        disks
            .until("the first objects are on disks", |all| {
                all.iter().map(|usage| usage.objects).sum::<u64>() >= KEEPSAKES as u64
            })
            .await?;
        Ok(disks)
    }

    /// Once half of the run is over: removes, and kills a node, which comes back on the same directory.
    pub(super) async fn interlude(
        &mut self,
        cluster: &mut Cluster,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        while bar.position() < bar.length().unwrap_or_default() / 2 && !bar.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let removed = self
            .client
            .remove(self.keys.clone(), RemoveOptions::default());
        for result in removed.await {
            match result {
                Ok(()) => self.summary.removed_objects += 1,
                Err(fault) => {
                    return Err(Failure::new("an object cannot be removed").because(fault));
                }
            }
        }
        // What a killed process had counted goes with it.
        self.summary.disk_blocks_hit += self.reads(cluster, Some(0)).await?;
        cluster.kill_and_restart(0).await?;
        self.summary.restarted_nodes += 1;
        Ok(())
    }

    /// After the run: waits until nothing is left to do, and compares the books.
    pub(super) async fn settle(mut self, cluster: &Cluster) -> Result<DiskSummary, Failure> {
        let nodes = cluster.members().len().saturating_sub(1);
        let quiet = move |all: &[StorageUsage]| {
            let done = |usage: &StorageUsage| {
                usage.mounted
                    && usage.reconciled
                    && usage.remove_tasks + usage.offload_tasks == 0
                    && usage.value_bytes == usage.state.unwrap_or_default().value_bytes
            };
            all.len() == nodes && all.iter().all(done)
        };
        // Books that never agree are shown as they are.
        let settled = self
            .until("the books of master and disks agree", quiet)
            .await;
        let all = self.list().await?;
        self.summary.storages = all.iter().map(storage).collect();
        self.summary.storages.sort_by(|a, b| a.node.cmp(&b.node));
        self.summary.books_agree = settled.is_ok();
        self.summary.disk_blocks_hit += self.reads(cluster, None).await?;
        for exists in self.client.exist(self.keys.clone()).await {
            let back = match exists {
                Ok(existence) => existence.exists,
                Err(fault) if fault.code == ErrorCode::ObjectNotFound => false,
                Err(fault) => return Err(Failure::new("the store cannot be asked").because(fault)),
            };
            self.summary.returned_objects += u64::from(back);
        }
        Ok(self.summary)
    }

    async fn until(
        &mut self,
        what: &str,
        there: impl Fn(&[StorageUsage]) -> bool,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        while !there(&self.list().await?) {
            if begun.elapsed() > PATIENCE {
                return Err(Failure::new(format!("{what}: not after {PATIENCE:?}")));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<Vec<StorageUsage>, Failure> {
        let listed = self.storages.list_storages(ListStoragesRequest {}).await;
        Ok(listed.map_err(lost)?.into_inner().storages)
    }

    /// Parts of values that nodes have read from their disks for readers.
    async fn reads(&self, cluster: &Cluster, only: Option<usize>) -> Result<u64, Failure> {
        let mut reads = 0;
        for (number, page) in cluster.pages().iter().enumerate() {
            if only.is_none_or(|only| only == number) {
                reads += number_of(&text(page).await?, "mooncake_node_disk_reads_total");
            }
        }
        Ok(reads)
    }
}

fn lost(error: impl std::error::Error) -> Failure {
    Failure::new("the master cannot be asked about disks").because(error)
}

fn storage(usage: &StorageUsage) -> StorageSummary {
    let measured = usage.state.unwrap_or_default();
    StorageSummary {
        node: usage.storage.clone().unwrap_or_default().holder,
        objects: usage.objects,
        value_bytes: usage.value_bytes,
        held_bytes: measured.value_bytes,
        file_bytes: measured.used_bytes,
    }
}

/// A node's page of metrics.
async fn text(address: &str) -> Result<String, Failure> {
    let unread = |error| {
        Failure::new(format!("the page of the node at {address} cannot be read")).because(error)
    };
    let mut socket = TcpStream::connect(address).await.map_err(unread)?;
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.map_err(unread)?;
    let mut page = String::new();
    socket.read_to_string(&mut page).await.map_err(unread)?;
    Ok(page)
}

fn number_of(page: &str, metric: &str) -> u64 {
    let mut lines = page.lines().filter_map(|line| line.strip_prefix(metric));
    lines
        .find_map(|rest| rest.trim().parse().ok())
        .unwrap_or_default()
}
