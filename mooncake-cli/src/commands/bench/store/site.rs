//! The store that is measured: started here or given, with clients in this process.

use mooncake_store::{ClientOptions, Node, NodeOptions, RealClient, StoreError};

use crate::bench::ProcessCpu;
use crate::bench::store::Placement;
use crate::cluster::{Cluster, ClusterShape};
use crate::commands::CLOSE_BUDGET;
use crate::commands::store::unreachable;
use crate::config::ClientSettings;
use crate::output::Failure;

/// A store, and what of it runs in this process.
#[derive(Debug)]
pub(super) struct Site {
    settings: ClientSettings,
    address: String,
    cluster: Option<Cluster>,
    /// Lends memory of this process.
    node: Option<Node>,
    /// Those of the current case.
    clients: Vec<RealClient>,
}

impl Site {
    /// Uses the store at `master`, or starts one. Where placement is local, this process lends
    /// `segment_bytes`, else the node of a started store does.
    pub(super) async fn start(
        placement: Placement,
        master: Option<&str>,
        segment_bytes: u64,
        settings: &ClientSettings,
    ) -> Result<Self, Failure> {
        let shape = ClusterShape {
            nodes: u16::from(placement == Placement::Remote),
            segment_bytes,
            high_watermark: 1.0,
            low_watermark: 1.0,
            reserves: false,
        };
        let (cluster, address) = match master {
            Some(master) => (None, master.to_owned()),
            None => {
                let cluster = Cluster::start(shape).await?;
                let address = cluster.address().to_owned();
                (Some(cluster), address)
            }
        };
        let node = match placement {
            Placement::Remote => None,
            Placement::Local => {
                let mut options = NodeOptions::new("bench", segment_bytes);
                options.connect_deadline = settings.connect_deadline;
                Some(Node::start(&address, options).await.map_err(unusable)?)
            }
        };
        Ok(Self {
            settings: settings.clone(),
            address,
            cluster,
            node,
            clients: Vec::new(),
        })
    }

    /// So many new clients in this process.
    pub(super) async fn clients(&mut self, count: u64) -> Result<Vec<RealClient>, Failure> {
        for number in 0..count {
            let client = match &self.node {
                Some(node) => node.client(self.settings.operation_deadline),
                None => {
                    let mut options = ClientOptions::default();
                    options.tenant = self.settings.tenant.clone();
                    options.name = format!("bench/{number}");
                    options.operation_deadline = self.settings.operation_deadline;
                    options.connect_deadline = self.settings.connect_deadline;
                    let connected = RealClient::connect(&self.address, options).await;
                    connected.map_err(unusable)?
                }
            };
            self.clients.push(client);
        }
        Ok(self.clients.clone())
    }

    /// Ends the clients.
    pub(super) async fn release(&mut self) -> Result<(), Failure> {
        for client in self.clients.drain(..) {
            client.close(CLOSE_BUDGET).await.map_err(unusable)?;
        }
        Ok(())
    }

    /// Processes other than this one whose processor time counts: those that were started here.
    pub(super) fn beside(&self) -> Vec<ProcessCpu> {
        let members = self.cluster.iter().flat_map(Cluster::members);
        members.map(|(_, pid)| ProcessCpu::of(pid)).collect()
    }

    pub(super) async fn stop(self) -> Result<(), Failure> {
        if let Some(node) = self.node {
            node.shutdown(CLOSE_BUDGET).await.map_err(unusable)?;
        }
        match self.cluster {
            Some(cluster) => cluster.stop().await,
            None => Ok(()),
        }
    }
}

fn unusable(error: StoreError) -> Failure {
    match &error {
        StoreError::Connect {
            address, reason, ..
        } => unreachable(address, reason),
        _ => Failure::new("the store cannot be used").because(error),
    }
}
