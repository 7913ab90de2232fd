//! `mooncake transfer`: tells how transfers would go.

pub mod explain;
mod explanation;
mod link;

use clap::Subcommand;

use super::Context;
use crate::output::{Exit, Failure};

pub use explanation::{Asked, Direction, ExcludedRow, Explanation, PolicyRow, RankedRow};
pub use link::LinkSpec;

/// What can be asked about transfers.
#[derive(Debug, Subcommand)]
pub enum TransferCommand {
    /// Rank links for a made-up request, with the reasons.
    Explain(explain::ExplainArgs),
}

/// Runs the command.
///
/// # Errors
///
/// When what is asked makes no sense.
pub fn run(command: &TransferCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        TransferCommand::Explain(args) => explain::run(args, context),
    }
}
