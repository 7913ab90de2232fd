//! A small store on this machine: a master and nodes as processes of this same binary.

mod process;

use std::time::Duration;

use serde::Deserialize;

use crate::config::Size;
use crate::output::Failure;

pub use process::Process;

/// How long a process may take to be ready; nodes touch all their memory first.
const READY_BUDGET: Duration = Duration::from_secs(120);

/// What a cluster is made of.
#[derive(Clone, Copy, Debug)]
pub struct ClusterShape {
    /// How many nodes.
    pub nodes: u16,
    /// What each of them lends.
    pub segment_bytes: u64,
    /// When eviction starts, as a share of the capacity.
    pub high_watermark: f64,
    /// When it stops.
    pub low_watermark: f64,
    /// Whether an object stays for a moment that `exist` has found.
    pub reserves: bool,
}

/// A running cluster. Its processes end with it, and with the process that started it.
#[derive(Debug)]
pub struct Cluster {
    address: String,
    master: Process,
    nodes: Vec<Process>,
}

#[derive(Debug, Deserialize)]
struct Ready<T> {
    ready: T,
}

#[derive(Debug, Deserialize)]
struct ReadyMaster {
    address: String,
}

#[derive(Debug, Deserialize)]
struct ReadyNode {
    name: String,
}

impl Cluster {
    /// Starts the processes on free loopback ports, and waits until all are ready.
    ///
    /// # Errors
    ///
    /// One of them does not come up.
    pub async fn start(shape: ClusterShape) -> Result<Self, Failure> {
        let watermarks = [
            format!("--eviction-high-watermark-ratio={}", shape.high_watermark),
            format!("--eviction-low-watermark-ratio={}", shape.low_watermark),
        ];
        let mut arguments = vec![
            "master",
            "--listen=127.0.0.1:0",
            "--admin-listen=127.0.0.1:0",
        ];
        arguments.extend(watermarks.iter().map(String::as_str));
        if !shape.reserves {
            arguments.push("--reserved-share=0");
        }
        let mut master = Process::server("the master", &arguments)?;
        let ready: Ready<ReadyMaster> = master.ready(READY_BUDGET).await?;
        let address = ready.ready.address;
        let size = Size::of(shape.segment_bytes).to_string();
        let mut nodes = Vec::new();
        for number in 0..shape.nodes {
            let name = format!("node-{number}");
            let arguments = [
                "node",
                "--master",
                &address,
                "--name",
                &name,
                "--segment-size",
                &size,
            ];
            nodes.push(Process::server(&name, &arguments)?);
        }
        for node in &mut nodes {
            let ready: Ready<ReadyNode> = node.ready(READY_BUDGET).await?;
            tracing::debug!(node = ready.ready.name, "a node is ready");
        }
        Ok(Self {
            address,
            master,
            nodes,
        })
    }

    /// Where the master listens.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The process ids of master and nodes, with what they are.
    #[must_use]
    pub fn members(&self) -> Vec<(String, u32)> {
        std::iter::once(&self.master)
            .chain(&self.nodes)
            .filter_map(|process| Some((process.what().to_owned(), process.id()?)))
            .collect()
    }

    /// Tells all processes to end, nodes first, and waits until they have.
    ///
    /// # Errors
    ///
    /// One of them had to be killed, or did not end well.
    pub async fn stop(self) -> Result<(), Failure> {
        let mut first = Ok(());
        let mut nodes = self.nodes;
        for node in &nodes {
            node.terminate();
        }
        for node in &mut nodes {
            first = first.and(node.ended().await);
        }
        let mut master = self.master;
        master.terminate();
        first.and(master.ended().await)
    }
}
