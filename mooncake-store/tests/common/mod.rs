//! A master and nodes over real sockets, in this process.
#![allow(
    dead_code,
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "help for tests, of which each uses its part"
)]

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use bytes::Bytes;
use mooncake_master::{Master, MasterConfig, RunningMaster};
use mooncake_proto::master::{MountSegmentRequest, Segment};
use mooncake_store::{
    ClientOptions, Clock, Node, NodeOptions, RealClient,
    core::MasterRequest,
    master::{ConnectOptions, Hello, MasterClient},
};

pub(crate) const BUDGET: Duration = Duration::from_secs(5);

pub(crate) struct Cluster {
    pub(crate) master: RunningMaster,
    pub(crate) nodes: Vec<Node>,
}

impl Cluster {
    pub(crate) async fn start(nodes: usize, segment_bytes: u64) -> Self {
        let config = MasterConfig {
            listen: "127.0.0.1:0".to_owned(),
            admin_listen: "127.0.0.1:0".to_owned(),
            ..MasterConfig::default()
        };
        let master = Master::start(config).await.unwrap();
        let address = master.address().to_string();
        let mut started = Vec::new();
        for number in 0..nodes {
            let options = NodeOptions::new(format!("node-{number}"), segment_bytes);
            started.push(Node::start(&address, options).await.unwrap());
        }
        Self {
            master,
            nodes: started,
        }
    }

    pub(crate) async fn client(&self) -> RealClient {
        let address = self.master.address().to_string();
        RealClient::connect(&address, ClientOptions::default())
            .await
            .unwrap()
    }

    /// Mounts a segment whose owner takes connections and never answers.
    pub(crate) async fn mount_mute(&self) -> (TcpListener, MasterClient) {
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let segment = Segment {
            id: vec![7; 16].into(),
            name: mute.local_addr().unwrap().to_string(),
            owner_incarnation: 7,
            registration: 1,
            generation: 1,
            length: 8 << 20,
            owner: "mute".to_owned(),
        };
        let hello = Hello {
            client_incarnation: segment.owner_incarnation,
            tenant: String::new(),
            name: segment.owner.clone(),
        };
        let address = self.master.address().to_string();
        let owner = MasterClient::connect(&address, hello, ConnectOptions::default());
        let owner = owner.await.unwrap();
        let segment = Some(segment);
        let mount = MasterRequest::MountSegment(MountSegmentRequest { segment });
        owner.call(mount, Clock.now() + BUDGET).await.unwrap();
        (mute, owner)
    }

    pub(crate) async fn stop(self) {
        for node in self.nodes {
            node.shutdown(BUDGET).await.unwrap();
        }
        self.master.shutdown().await;
    }
}

pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

pub(crate) fn key(number: usize) -> Bytes {
    Bytes::from(format!("key-{number}"))
}

/// One of the numbers that the master tells of itself.
pub(crate) async fn metric(admin: SocketAddr, name: &str) -> u64 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(admin).await.unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: master\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let line = answer.lines().find(|line| {
        line.strip_prefix("mooncake_master_")
            .and_then(|line| line.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with(' '))
    });
    let line = line.unwrap_or_else(|| panic!("{name} is not among the metrics"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// How many operations of a kind the master has performed.
pub(crate) async fn operations(admin: SocketAddr, kind: &str) -> u64 {
    metric(admin, &format!("operations_total{{kind=\"{kind}\"}}")).await
}

/// Waits until one of the master's numbers is as it should be.
pub(crate) async fn until(admin: SocketAddr, name: &str, holds: impl Fn(u64) -> bool) {
    let wait = async {
        while !holds(metric(admin, name).await) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    waited.unwrap_or_else(|_| panic!("{name} never is as it should be"));
}
