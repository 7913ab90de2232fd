//! `mooncake bench`: measures a store and its parts.

mod replay;
mod transfer;

use clap::Subcommand;

use super::Context;
use crate::output::{Exit, Failure};

pub use replay::ReplayArgs;
pub use transfer::{Direction, TransferArgs};

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Replay a trace: get each request's blocks, put those that are missing, check every byte.
    Replay(ReplayArgs),
    /// Measure the transfer engine beside plain loops of the same pattern, and check every byte.
    Transfer(TransferArgs),
}

/// Runs the command.
///
/// # Errors
///
/// When it cannot be measured.
pub fn run(command: &BenchCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        BenchCommand::Replay(args) => replay::run(args, context),
        BenchCommand::Transfer(args) => transfer::run(args, context),
    }
}
