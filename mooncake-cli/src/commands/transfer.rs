//! `mooncake transfer`: tells how transfers would go, and how one goes.

pub mod explain;
mod explanation;
mod link;
mod ranked_link;
pub mod trace;

use clap::Subcommand;

use super::Context;
use crate::output::{Exit, Failure};

pub use explanation::{Asked, Direction, ExcludedRow, Explanation, PolicyRow, RankedRow};
pub use link::LinkSpec;
pub use ranked_link::RankedLink;
pub use trace::{StepRow, TraceReport};

/// What can be asked about transfers.
#[derive(Debug, Subcommand)]
pub enum TransferCommand {
    /// Rank links for a made-up request, with the reasons.
    Explain(Box<explain::ExplainArgs>),
    /// Make one transfer to a process that runs, and tell what became of it step by step.
    Trace(trace::TraceArgs),
}

/// Runs the command.
///
/// # Errors
///
/// When what is asked makes no sense.
pub fn run(command: &TransferCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        TransferCommand::Explain(args) => explain::run(args, context),
        TransferCommand::Trace(args) => trace::run(args, context),
    }
}
