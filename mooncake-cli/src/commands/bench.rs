//! `mooncake bench`: measures a store.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Context, not_built};
use crate::config::{ClientSettings, Flags, Size};
use crate::output::{Exit, Failure};
use crate::trace::TraceReader;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Replay a trace: get each request's blocks, put those that are missing, check every byte.
    Replay(ReplayArgs),
}

/// The arguments of `mooncake bench replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// The trace.
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Start a store on this machine for the run, instead of using the one of --master.
    #[arg(long, conflicts_with = "master")]
    pub start_cluster: bool,
    /// How many clients replay at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub clients: u16,
    /// How large a block is.
    #[arg(long, value_name = "SIZE", default_value_t = Size::of(1 << 20))]
    pub block_bytes: Size,
    /// With --start-cluster: for how many blocks the store has room [default: for all of the trace].
    #[arg(long, value_name = "N", requires = "start_cluster", value_parser = clap::value_parser!(u64).range(1..))]
    pub capacity_blocks: Option<u64>,
    /// Keep the trace's arrival times, this many times as fast [default: as fast as possible].
    #[arg(long, value_name = "X", value_parser = speed)]
    pub speed: Option<f64>,
    /// How many blocks one call gets or puts.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,
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

/// Runs the command; "no" when a byte was wrong or an operation failed.
///
/// # Errors
///
/// When the trace cannot be read, or the store not be reached.
pub fn run(command: &BenchCommand, context: &Context) -> Result<Exit, Failure> {
    let BenchCommand::Replay(args) = command;
    context.sources.settle(&args.settings)?;
    TraceReader::open(&args.trace)?;
    Err(not_built("bench replay"))
}
