//! A small store on this machine: a master and nodes as processes of this same binary.

mod process;

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::config::Size;
use crate::output::Failure;

pub use process::Process;

/// How long a process may take to be ready; nodes touch all their memory first.
const READY_BUDGET: Duration = Duration::from_secs(120);

/// What a cluster is made of.
#[derive(Clone, Debug)]
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
    /// Disks of the nodes, to which all is copied; and a master that outlives itself.
    pub disks: Option<Disks>,
}

/// Where nodes keep what is not in memory.
#[derive(Clone, Debug)]
pub struct Disks {
    /// Has a directory for each of them.
    pub folder: PathBuf,
    /// What each may take.
    pub bytes: u64,
}

/// A running cluster. Its processes end with it, and with the process that started it.
#[derive(Debug)]
pub struct Cluster {
    address: String,
    master: Process,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    name: String,
    arguments: Vec<String>,
    process: Process,
    /// Where its pages are.
    page: String,
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
    admin_address: String,
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
        let state = shape.disks.as_ref().map(|disks| {
            let folder = disks.folder.join("master");
            format!("--state-dir={}", folder.display())
        });
        if let Some(state) = &state {
            arguments.extend(["--enable-offload=true", state]);
        }
        let mut master = Process::server("the master", &arguments)?;
        let ready: Ready<ReadyMaster> = master.ready(READY_BUDGET).await?;
        let address = ready.ready.address;
        let size = Size::of(shape.segment_bytes).to_string();
        let mut nodes = Vec::new();
        for number in 0..shape.nodes {
            let name = format!("node-{number}");
            let words = ["node", "--master", &address, "--name", &name];
            let mut arguments: Vec<_> = words.map(str::to_owned).to_vec();
            arguments.push(format!("--segment-size={size}"));
            if let Some(Disks { folder, bytes }) = &shape.disks {
                arguments.push(format!("--ssd-path={}", folder.join(&name).display()));
                arguments.push(format!("--ssd-capacity={}", Size::of(*bytes)));
            }
            nodes.push(Node::start(name, arguments)?);
        }
        for node in &mut nodes {
            node.ready().await?;
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
            .chain(self.nodes.iter().map(|node| &node.process))
            .filter_map(|process| Some((process.what().to_owned(), process.id()?)))
            .collect()
    }

    /// Where the nodes' pages for operators are, in their order.
    #[must_use]
    pub fn pages(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.page.clone()).collect()
    }

    /// Kills a node and starts it anew, as it was started first.
    ///
    /// # Errors
    ///
    /// It does not come up again.
    pub async fn kill_and_restart(&mut self, number: usize) -> Result<(), Failure> {
        let node = &mut self.nodes[number];
        node.process.kill().await;
        *node = Node::start(node.name.clone(), node.arguments.clone())?;
        node.ready().await
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
            node.process.terminate();
        }
        for node in &mut nodes {
            first = first.and(node.process.ended().await);
        }
        let mut master = self.master;
        master.terminate();
        first.and(master.ended().await)
    }
}

impl Node {
    fn start(name: String, arguments: Vec<String>) -> Result<Self, Failure> {
        let words: Vec<_> = arguments.iter().map(String::as_str).collect();
        let process = Process::server(&name, &words)?;
        Ok(Self {
            name,
            arguments,
            process,
            page: String::new(),
        })
    }

    async fn ready(&mut self) -> Result<(), Failure> {
        let ready: Ready<ReadyNode> = self.process.ready(READY_BUDGET).await?;
        self.page = ready.ready.admin_address;
        tracing::debug!(node = self.name, "a node is ready");
        Ok(())
    }
}
