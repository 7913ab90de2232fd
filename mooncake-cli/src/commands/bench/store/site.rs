//! The store that is measured: started here or given, with clients in this process.

use std::time::Duration;

use mooncake_store::{BlockingClient, ClientOptions, StoreError};
use tokio::runtime::Runtime;

use crate::bench::ProcessCpu;
use crate::bench::store::Placement;
use crate::cluster::{Cluster, ClusterShape};
use crate::commands::CLOSE_BUDGET;
use crate::commands::store::unreachable;
use crate::config::ClientSettings;
use crate::output::Failure;

/// Longer than a turn takes, so that what a case supposes the client to know stays known.
const KEEP: Duration = Duration::from_secs(5);

/// A store, and what of it runs in this process.
#[derive(Debug)]
pub(super) struct Site {
    settings: ClientSettings,
    address: String,
    cluster: Option<Cluster>,
    /// Lends memory of this process.
    lender: Option<BlockingClient>,
    /// Those of the current case.
    clients: Vec<BlockingClient>,
}

impl Site {
    /// Uses the store at `master`, or starts one. Where placement is local, this process lends
    /// `segment_bytes`, else the node of a started store does.
    pub(super) fn start(
        runtime: &Runtime,
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
            disks: None,
        };
        let (cluster, address) = match master {
            Some(master) => (None, master.to_owned()),
            None => {
                let cluster = runtime.block_on(Cluster::start(shape))?;
                let address = cluster.address().to_owned();
                (Some(cluster), address)
            }
        };
        let mut site = Self {
            settings: settings.clone(),
            address,
            cluster,
            lender: None,
            clients: Vec::new(),
        };
        if placement == Placement::Local {
            site.lender = Some(site.connect("bench".to_owned(), segment_bytes)?);
        }
        Ok(site)
    }

    fn connect(&self, name: String, segment_bytes: u64) -> Result<BlockingClient, Failure> {
        let mut options = ClientOptions::default();
        // What is measured is the way over the network.
        options.host_links = false;
        options.tenant = self.settings.tenant.clone();
        options.name = name;
        options.operation_deadline = self.settings.operation_deadline;
        options.connect_deadline = self.settings.connect_deadline;
        options.keep_look_ups = KEEP;
        options.segment_bytes = segment_bytes;
        BlockingClient::connect(&self.address, options).map_err(unusable)
    }

    /// So many new clients in this process.
    pub(super) fn clients(&mut self, count: u64) -> Result<Vec<BlockingClient>, Failure> {
        for number in 0..count {
            let client = match &self.lender {
                Some(lender) => lender.sibling(),
                None => self.connect(format!("bench/{number}"), 0)?,
            };
            self.clients.push(client);
        }
        Ok(self.clients.clone())
    }

    /// Ends the clients.
    pub(super) fn release(&mut self) -> Result<(), Failure> {
        for client in self.clients.drain(..) {
            client.close(CLOSE_BUDGET).map_err(unusable)?;
        }
        Ok(())
    }

    /// Processes other than this one whose processor time counts: those that were started here.
    pub(super) fn beside(&self) -> Vec<ProcessCpu> {
        let members = self.cluster.iter().flat_map(Cluster::members);
        members.map(|(_, pid)| ProcessCpu::of(pid)).collect()
    }

    pub(super) fn stop(self, runtime: &Runtime) -> Result<(), Failure> {
        if let Some(lender) = self.lender {
            lender.close(CLOSE_BUDGET).map_err(unusable)?;
        }
        match self.cluster {
            Some(cluster) => runtime.block_on(cluster.stop()),
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
