//! `mooncake bench master`: measures a master that is started for it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::bench::{
    Turns,
    cpp::Wheel,
    master::{Case, Suite, serve_echo},
};
use crate::commands::{Context, runtime};
use crate::output::{Exit, Failure};

/// The arguments of `mooncake bench master`.
///
/// Without --case, all cases are measured, each with the number of clients, the batch and the depth
/// that its bar is about.
#[derive(Args, Debug)]
pub struct MasterBenchArgs {
    /// Measure only this; may be given more than once.
    #[arg(long, value_name = "CASE", value_enum)]
    pub case: Vec<Case>,
    /// Take less than a minute: shorter rounds, fewer of them, no eviction.
    #[arg(long)]
    pub quick: bool,
    /// How many clients load the master: threads with a connection each.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: Option<u16>,
    /// How many keys one call has.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub batch: Option<u16>,
    /// How many calls of one client are under way.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4_096))]
    pub depth: Option<u16>,
    /// How long a key is.
    #[arg(long, value_name = "N", default_value_t = Suite::USUAL_KEY_BYTES, value_parser = key_bytes)]
    pub key_bytes: usize,
    /// How often the master and its limit take turns [default: 5, or 3 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: Option<u16>,
    /// How long one turn is; eviction takes at least four [default: 1, or 0.4 with --quick].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// How many objects `memory` puts.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub objects: u64,
    /// How many objects are there when `eviction` begins.
    #[arg(long, value_name = "N", default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    pub evictable: u64,
    /// Measure the C++ store's master in the same rounds, whose wheel this Python has.
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "python3")]
    pub vs_cpp: Option<PathBuf>,
    /// Be the other side of the limit.
    #[arg(long, hide = true)]
    pub serve_echo: bool,
}

fn key_bytes(text: &str) -> Result<usize, String> {
    let least = Suite::LEAST_KEY_BYTES;
    match text.parse() {
        Ok(bytes) if (least..=4_096).contains(&bytes) => Ok(bytes),
        _ => Err(format!("a key has {least} to 4096 bytes here")),
    }
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text:?} is no length of a turn, such as 0.5")),
    }
}

/// Runs the command; "no" when a bar was missed.
///
/// # Errors
///
/// When something cannot be measured.
pub(super) fn run(args: &MasterBenchArgs, context: &Context) -> Result<Exit, Failure> {
    if args.serve_echo {
        serve_echo(context.output)?;
        return Ok(Exit::Yes);
    }
    let (rounds, budget) = if args.quick { (3, 0.4) } else { (5, 1.0) };
    let suite = Suite {
        cases: args.case.clone(),
        quick: args.quick,
        turns: Turns {
            rounds: args.rounds.map_or(rounds, usize::from),
            budget: Duration::from_secs_f64(args.seconds.unwrap_or(budget)),
        },
        key_bytes: args.key_bytes,
        batch: args.batch.map(usize::from),
        depth: args.depth.map(usize::from),
        clients: args.clients.map(usize::from),
        objects: args.objects,
        evictable: args.evictable,
        wheel: args.vs_cpp.as_deref().map(Wheel::find).transpose()?,
    };
    let runtime = runtime()?;
    let report = suite.run(runtime.handle(), context.output);
    runtime.shutdown_background();
    let report = report?;
    context.output.result(&report)?;
    Ok(report.all_met().into())
}
