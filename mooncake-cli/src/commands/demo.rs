//! `mooncake demo`: a store on this machine, conversations against it, and every byte checked.

use clap::Args;

use super::{Context, not_built};
use crate::config::Size;
use crate::output::{Exit, Failure};
use crate::workload::Shape;

/// The arguments of `mooncake demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// How many requests to replay.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: u64,
    /// How many users talk at the same time.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub users: u32,
    /// Where the draws start; equal seeds give equal requests.
    #[arg(long, value_name = "SEED", default_value_t = Shape::default().seed)]
    pub seed: u64,
    /// How many nodes to start.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
    /// How much memory each node lends.
    #[arg(long, value_name = "SIZE", default_value_t = Size::of(256 << 20))]
    pub segment_size: Size,
    /// How large a block is.
    #[arg(long, value_name = "SIZE", default_value_t = Size::of(256 << 10))]
    pub block_bytes: Size,
}

/// Runs the command; "no" when a byte was wrong or an operation failed.
///
/// # Errors
///
/// When the store cannot be started.
pub fn run(_args: &DemoArgs, _context: &Context) -> Result<Exit, Failure> {
    Err(not_built("demo"))
}
