//! `mooncake bench`: measures a store and its parts.

mod master;
mod replay;

use clap::Subcommand;

use super::Context;
use crate::output::{Exit, Failure};

pub use master::MasterBenchArgs;
pub use replay::ReplayArgs;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure a master beside a plain echo of the same bytes.
    Master(MasterBenchArgs),
    /// Replay a trace: get each request's blocks, put those that are missing, check every byte.
    Replay(ReplayArgs),
}

/// Runs the command.
///
/// # Errors
///
/// When it cannot be measured.
pub fn run(command: &BenchCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        BenchCommand::Master(args) => master::run(args, context),
        BenchCommand::Replay(args) => replay::run(args, context),
    }
}
