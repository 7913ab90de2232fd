//! To start, to connect, and to do nothing.

use std::{
    net::TcpStream,
    time::{Duration, Instant},
};

use mooncake_store::{ClientOptions, RealClient, StoreError};

use super::{
    caller::session,
    figure::{Figure, Goal},
    fixture::MasterProcess,
};
use crate::{
    bench::{ProcessCpu, figures::median, own_cpu},
    cluster::{Cluster, ClusterShape},
    output::Failure,
};

/// Starts, and connections, of which the middle one counts.
const TRIES: usize = 9;
/// How long nothing is done.
const IDLE: Duration = Duration::from_secs(5);
/// Before that, what has begun comes to an end.
const SETTLE: Duration = Duration::from_millis(500);

/// Starts masters, and connects clients.
///
/// # Errors
///
/// One does not come up.
pub(super) async fn start() -> Result<Vec<Figure>, Failure> {
    let (mut started, mut resident) = (Vec::new(), Vec::new());
    let (mut sessions, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..TRIES {
        let began = Instant::now();
        let master = MasterProcess::start(&[]).await?;
        let reached = TcpStream::connect(&master.address);
        reached.map_err(|error| Failure::new("the master cannot be reached").because(error))?;
        started.push(millis(began));
        let began = Instant::now();
        let client = session(&master.address, "client").await?;
        sessions.push(millis(began));
        let began = Instant::now();
        let store = connect(&master.address).await?;
        clients.push(millis(began));
        resident.push(master.resident_bytes() as f64 / f64::from(1 << 20));
        store.close(CLOSE).await.map_err(unusable)?;
        client.goodbye(true, CLOSE).await;
    }
    let middle = |numbers: Vec<f64>| median(numbers.into_iter());
    Ok(vec![
        Figure::new("start: master answers its port", middle(started), "ms")
            .should_be(Goal::at_most(10.0)),
        Figure::new("start: memory of the master", middle(resident), "MiB")
            .should_be(Goal::at_most(20.0)),
        Figure::new("start: session of a client", middle(sessions), "ms"),
        Figure::new("start: client of a store", middle(clients), "ms")
            .should_be(Goal::at_most(5.0)),
    ])
}

/// How long a client may take to take leave.
const CLOSE: Duration = Duration::from_secs(1);

/// Lets a small store do nothing.
///
/// # Errors
///
/// It does not come up.
pub(super) async fn idle() -> Result<Vec<Figure>, Failure> {
    let shape = ClusterShape {
        nodes: 1,
        segment_bytes: 64 << 20,
        high_watermark: 0.95,
        low_watermark: 0.9,
        reserves: true,
        disks: None,
    };
    let cluster = Cluster::start(shape).await?;
    let client = connect(cluster.address()).await?;
    tokio::time::sleep(SETTLE).await;
    let members = cluster.members();
    let began = Instant::now();
    let read = |members: &[(String, u32)]| -> Vec<Duration> {
        let pids = members.iter().map(|(_, pid)| *pid);
        pids.map(|pid| ProcessCpu::of(pid).read()).collect()
    };
    let (ours, theirs) = (own_cpu(), read(&members));
    tokio::time::sleep(IDLE).await;
    let took = began.elapsed();
    let share = |cpu: Duration| 100.0 * cpu.as_secs_f64() / took.as_secs_f64();
    let client_share = share(own_cpu() - ours);
    let mut figures: Vec<_> = members
        .iter()
        .zip(read(&members).into_iter().zip(theirs))
        .map(|((name, _), (now, then))| {
            Figure::new(format!("idle: {name}"), share(now - then), "% of a core")
        })
        .collect();
    figures.push(Figure::new("idle: client", client_share, "% of a core"));
    client.close(CLOSE).await.map_err(unusable)?;
    cluster.stop().await?;
    Ok(figures
        .into_iter()
        .map(|figure| figure.should_be(Goal::at_most(1.0)))
        .collect())
}

async fn connect(address: &str) -> Result<RealClient, Failure> {
    let client = RealClient::connect(address, ClientOptions::default()).await;
    client.map_err(unusable)
}

fn unusable(error: StoreError) -> Failure {
    Failure::new("the store cannot be used").because(error)
}

fn millis(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
