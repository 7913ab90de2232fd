//! `mooncake bench replay`: plays a request trace against a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use mooncake_store::{BlockingClient, ClientOptions, StoreError};
use tokio::task::block_in_place;

use crate::bench::cpp::{self, ReplayCase, Wheel};
use crate::cluster::{Cluster, ClusterShape};
use crate::commands::store::unreachable;
use crate::commands::{CLOSE_BUDGET, Context, block_on, unless_interrupted};
use crate::config::{ClientSettings, Flags, Ratio, Size};
use crate::output::{Exit, Failure};
use crate::replay::{Plan, Player, replay, totals};
use crate::report::Summary;
use crate::trace::{Ideal, Request, TraceReader};

/// The arguments of `mooncake bench replay`.
///
/// Without --master, a store is started on this machine for the run.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// The trace.
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Start a store on this machine for the run. That is also what happens without --master.
    #[arg(long, conflicts_with = "master")]
    pub start_cluster: bool,
    /// How many clients replay at the same time. With more than one, a request may come before an
    /// earlier one has stored its blocks.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub clients: u16,
    /// How large a block is.
    #[arg(long, value_name = "SIZE", default_value_t = Size::of(16 << 10))]
    pub block_bytes: Size,
    /// For how many blocks the started store has room [default: for all of the trace].
    #[arg(long, value_name = "N", conflicts_with = "master", value_parser = clap::value_parser!(u64).range(1..))]
    pub capacity_blocks: Option<u64>,
    /// How many nodes the started store has.
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "master", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
    /// The started store evicts above this share of its capacity; 1 means only when it must.
    #[arg(long, value_name = "RATIO", default_value = "0.9", conflicts_with = "master", value_parser = ratio)]
    pub eviction_high_watermark_ratio: Ratio,
    /// The started store evicts down to this share [default: 0.85, or the upper one if that is 1].
    #[arg(long, value_name = "RATIO", conflicts_with = "master", value_parser = ratio)]
    pub eviction_low_watermark_ratio: Option<Ratio>,
    /// Keep the trace's arrival times, this many times as fast [default: as fast as possible].
    #[arg(long, value_name = "X", value_parser = speed)]
    pub speed: Option<f64>,
    /// How many blocks one call gets or puts.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub batch: u32,
    /// Replay only the first requests [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Replay against the C++ store as well, whose wheel this Python has.
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "python3", conflicts_with_all = ["clients", "speed", "capacity_blocks"])]
    pub vs_cpp: Option<PathBuf>,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(speed),
        _ => Err(format!("{text:?} is no speed, such as 1 or 2.5")),
    }
}

fn ratio(text: &str) -> Result<Ratio, String> {
    crate::config::SettingValue::parse(text)
}

/// Memory beyond the blocks themselves, so that none of them is evicted at a watermark.
const HEADROOM: f64 = 1.02;

/// What to try when the cluster does not start.
const SMALLER: &str = "a smaller store, with --block-bytes or --capacity-blocks";

/// Runs the command; "no" when a byte was wrong or an operation failed.
///
/// # Errors
///
/// When the trace cannot be read, or the store not be reached.
pub(super) fn run(args: &ReplayArgs, context: &Context) -> Result<Exit, Failure> {
    let effective = context.sources.settle(&args.settings)?;
    let most = args.requests.map_or(usize::MAX, |most| most as usize);
    let requests = TraceReader::open(&args.trace)?.take(most);
    let requests: Vec<Request> = requests.collect::<Result<_, _>>()?;
    let wheel = args.vs_cpp.as_deref().map(Wheel::find).transpose()?;
    let cpp_segment_bytes = cpp_segment_bytes(args, &requests);
    if args.block_bytes.bytes() == 0 {
        return Err(
            Failure::new("a block of 0 bytes cannot be stored").remedy("--block-bytes 16KiB")
        );
    }
    let own = args.start_cluster || !effective.is_given("master");
    let shape = own.then(|| shape(args, &requests));
    let plan = Plan {
        requests: Arc::new(requests),
        speed: args.speed,
    };
    let work = measure(args, context, plan, shape, effective.settings);
    let mut summary = block_on(unless_interrupted(work))?;
    if let Some(wheel) = wheel {
        let case = ReplayCase {
            trace: args.trace.clone(),
            requests: summary.requests,
            block_bytes: args.block_bytes.bytes(),
            batch: args.batch,
            segment_bytes: cpp_segment_bytes,
        };
        let mut cpp = cpp::replay(&wheel, &case)?;
        cpp.ratio = cpp.seconds / summary.seconds.max(f64::MIN_POSITIVE);
        summary.cpp = Some(cpp);
    }
    context.output.result(&summary)?;
    Ok(summary.is_clean().into())
}

fn shape(args: &ReplayArgs, requests: &[Request]) -> ClusterShape {
    let high = args.eviction_high_watermark_ratio.get();
    let low = args.eviction_low_watermark_ratio.map_or_else(
        || if high >= 1.0 { high } else { high.min(0.85) },
        Ratio::get,
    );
    let blocks = args.capacity_blocks.unwrap_or_else(|| {
        (distinct(requests) as f64 * HEADROOM / high.max(0.01)).ceil() as u64 + 64
    });
    // The allocator's alignment.
    let block_bytes = args.block_bytes.bytes().next_multiple_of(64);
    let per_node = blocks.div_ceil(u64::from(args.nodes)).max(1);
    ClusterShape {
        nodes: args.nodes,
        // What is beyond all numbers is beyond all machines, too, as the node will say.
        segment_bytes: per_node.saturating_mul(block_bytes),
        high_watermark: high,
        low_watermark: low,
        // Without pauses minutes of the trace pass in a moment of ours: what is kept for one would
        // be kept beyond all bounds, and the more of it the faster the machine.
        reserves: args.speed.is_some(),
        disks: None,
    }
}

fn distinct(requests: &[Request]) -> u64 {
    let mut ideal = Ideal::default();
    for request in requests {
        ideal.observe(request);
    }
    ideal.blocks_distinct
}

/// Room for all blocks below the share at which the C++ master evicts.
fn cpp_segment_bytes(args: &ReplayArgs, requests: &[Request]) -> u64 {
    let blocks = distinct(requests) + 64;
    let bytes = blocks.saturating_mul(args.block_bytes.bytes());
    bytes.saturating_add(bytes / 4).next_multiple_of(16 << 20)
}

async fn measure(
    args: &ReplayArgs,
    context: &Context,
    plan: Plan,
    shape: Option<ClusterShape>,
    settings: ClientSettings,
) -> Result<Summary, Failure> {
    let cluster = match shape {
        Some(shape) => {
            let cluster = Cluster::start(shape).await;
            Some(cluster.map_err(|failure| failure.remedy(SMALLER))?)
        }
        None => None,
    };
    let address = cluster
        .as_ref()
        .map_or(settings.master.as_str(), Cluster::address);
    let run = format!("replay-{:08x}", rand::random::<u32>());
    let mut clients = Vec::new();
    let mut players = Vec::new();
    for number in 0..args.clients {
        let mut options = ClientOptions::default();
        options.tenant = settings.tenant.clone();
        options.name = format!("{run}/{number}");
        options.operation_deadline = settings.operation_deadline;
        options.connect_deadline = settings.connect_deadline;
        if plan.speed.is_none() {
            // What is kept would be kept for minutes of the trace.
            options.keep_look_ups = Duration::ZERO;
        }
        let (block_bytes, batch) = (args.block_bytes.bytes(), args.batch);
        let (client, player) = block_in_place(|| {
            let client = BlockingClient::connect(address, options)?;
            let player = Player::new(client.clone(), &run, block_bytes, batch)?;
            Ok((client, player))
        })
        .map_err(unusable)?;
        players.push(player);
        clients.push(client);
    }
    let asked = |error| Failure::new("the master cannot be asked").because(error);
    let master = clients[0].master();
    let (evicted_before, _) = totals(master).await.map_err(asked)?;
    let bar = context
        .output
        .progress(plan.requests.len() as u64, "requests");
    let mut summary = replay(&plan, players, &bar, context.output).await?;
    let (evicted, nodes) = totals(master).await.map_err(asked)?;
    // A master that was started anew counts from 0.
    summary.evicted_objects = evicted.saturating_sub(evicted_before);
    summary.nodes = nodes;
    for client in &clients {
        block_in_place(|| client.close(CLOSE_BUDGET)).map_err(unusable)?;
    }
    if let Some(cluster) = cluster {
        cluster.stop().await?;
    }
    Ok(summary)
}

fn unusable(error: StoreError) -> Failure {
    let remedy = "--start-cluster, or --master HOST:PORT of a running master";
    match &error {
        StoreError::Connect {
            address, reason, ..
        } => unreachable(address, reason).remedy(remedy),
        _ => Failure::new("the store cannot be used").because(error),
    }
}
