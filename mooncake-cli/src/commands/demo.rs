//! `mooncake demo`: a store on this machine, conversations against it, and every byte checked.

mod disks;

use std::sync::Arc;

use clap::Args;
use mooncake_store::{BlockingClient, ClientOptions, RealClient};

use disks::Disks;

use super::{Context, block_on, unless_interrupted};
use crate::cluster::{self, Cluster, ClusterShape, Process};
use crate::config::Size;
use crate::output::{Exit, Failure};
use crate::replay::{Plan, Player, replay, serve_lines, totals};
use crate::report::Summary;
use crate::workload::{Shape, Workload};

/// The arguments of `mooncake demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// How many requests to replay.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub requests: u64,
    /// How many users talk at the same time.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub users: u32,
    /// Where the draws start; equal seeds give equal requests.
    #[arg(long, value_name = "SEED", default_value_t = Shape::default().seed)]
    pub seed: u64,
    /// How many nodes to start.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
    /// How many clients to start.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub clients: u16,
    /// How much memory each node lends [default: 256MiB, or 48MiB with --ssd].
    #[arg(long, value_name = "SIZE")]
    pub segment_size: Option<Size>,
    /// Give each node a disk and far too little memory; remove objects, and kill a node, in mid run.
    #[arg(long)]
    pub ssd: bool,
    /// How large a block is.
    #[arg(long, value_name = "SIZE", default_value_t = Size::of(256 << 10))]
    pub block_bytes: Size,
}

/// The arguments of a client that `demo` starts.
#[derive(Args, Debug)]
pub struct DemoClientArgs {
    /// The master.
    #[arg(long)]
    pub master: String,
    /// Makes the keys of this run differ from those of others.
    #[arg(long)]
    pub run: String,
    /// What the client calls itself.
    #[arg(long)]
    pub name: String,
    /// How large a block is.
    #[arg(long)]
    pub block_bytes: Size,
}

/// Blocks of one call.
const BATCH: u32 = 16;
/// What each disk may take.
const DISK_BYTES: u64 = 4 << 30;

/// Runs the command; "no" when a byte was wrong or an operation failed.
///
/// # Errors
///
/// When the store cannot be started.
pub fn run(args: &DemoArgs, context: &Context) -> Result<Exit, Failure> {
    if args.block_bytes.bytes() == 0 || args.block_bytes.bytes() > args.segment_bytes() {
        let what = format!("a block of {} does not fit into a node", args.block_bytes);
        return Err(Failure::new(what).remedy("--block-bytes 256KiB"));
    }
    let workload = Workload::new(Shape {
        requests: args.requests,
        users: args.users,
        seed: args.seed,
    });
    let plan = Plan {
        requests: Arc::new(workload.collect()),
        speed: None,
    };
    let summary = block_on(unless_interrupted(show(args, context, plan)))?;
    context.output.result(&summary)?;
    Ok(summary.is_clean().into())
}

impl DemoArgs {
    fn segment_bytes(&self) -> u64 {
        let usual = if self.ssd { 48 << 20 } else { 256 << 20 };
        self.segment_size.map_or(usual, Size::bytes)
    }
}

async fn show(args: &DemoArgs, context: &Context, plan: Plan) -> Result<Summary, Failure> {
    let folder = match args.ssd {
        true => Some(
            tempfile::tempdir()
                .map_err(|error| Failure::new("there is no folder for the disks").because(error))?,
        ),
        false => None,
    };
    let disks = folder.as_ref().map(|folder| cluster::Disks {
        folder: folder.path().to_owned(),
        bytes: DISK_BYTES,
    });
    let mut cluster = Cluster::start(ClusterShape {
        nodes: args.nodes,
        segment_bytes: args.segment_bytes(),
        high_watermark: 0.90,
        low_watermark: 0.85,
        reserves: true,
        disks,
    })
    .await?;
    let run = format!("demo-{:08x}", rand::random::<u32>());
    let mut clients = Vec::new();
    for number in 0..args.clients {
        clients.push(client(&cluster, &run, number, args.block_bytes)?);
    }
    let members: Vec<_> = cluster
        .members()
        .into_iter()
        .chain(
            clients
                .iter()
                .filter_map(|client| Some((client.what().to_owned(), client.id()?))),
        )
        .map(|(what, id)| format!("{what} {id}"))
        .collect();
    context
        .output
        .note(format!("processes: {}", members.join(", ")));
    // A client of our own, to ask about the nodes at the end.
    let observer = RealClient::connect(cluster.address(), ClientOptions::default())
        .await
        .map_err(|error| Failure::new("the master cannot be asked").because(error))?;
    let bar = context
        .output
        .progress(plan.requests.len() as u64, "requests");
    // The clients' input ends when their run does, and they with it.
    let replayed = replay(&plan, clients, &bar, context.output);
    let mut summary = match args.ssd {
        true => {
            let mut disks = Disks::prepare(&cluster, &observer, &run).await?;
            let interlude = disks.interlude(&mut cluster, &bar);
            let (summary, interlude) = tokio::join!(replayed, interlude);
            interlude?;
            let mut summary = summary?;
            summary.disks = Some(disks.settle(&cluster).await?);
            summary
        }
        false => replayed.await?,
    };
    let (evicted, nodes) = totals(observer.master())
        .await
        .map_err(|fault| Failure::new("the master cannot be asked").because(fault))?;
    summary.evicted_objects = evicted;
    summary.nodes = nodes;
    observer
        .close(super::CLOSE_BUDGET)
        .await
        .map_err(|error| Failure::new("the demo's own client did not end").because(error))?;
    // A node that somebody killed is part of the show.
    if let Err(failure) = cluster.stop().await {
        context.output.note(failure.human());
    }
    Ok(summary)
}

fn client(cluster: &Cluster, run: &str, number: u16, block: Size) -> Result<Process, Failure> {
    let name = format!("client-{number}");
    let block = block.to_string();
    let arguments = [
        "demo-client",
        "--master",
        cluster.address(),
        "--run",
        run,
        "--name",
        &name,
        "--block-bytes",
        &block,
    ];
    Process::start(&name, &arguments)
}

/// Runs a client that `demo` started.
///
/// # Errors
///
/// When the store cannot be reached, or standard input brings what is no request.
pub fn run_client(args: &DemoClientArgs) -> Result<Exit, Failure> {
    let lost = |error| Failure::new("the store cannot be used").because(error);
    let mut options = ClientOptions::default();
    options.name.clone_from(&args.name);
    let client = BlockingClient::connect(&args.master, options).map_err(lost)?;
    let player = Player::new(client.clone(), &args.run, args.block_bytes.bytes(), BATCH);
    serve_lines(player.map_err(lost)?)?;
    client.close(super::CLOSE_BUDGET).map_err(lost)?;
    Ok(Exit::Yes)
}
