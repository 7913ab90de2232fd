//! `mooncake node`: lends memory to a store until it is told to stop.

use clap::Args;

use super::{Context, not_built};
use crate::config::{Flags, NodeSettings};
use crate::output::{Exit, Failure};

/// The arguments of `mooncake node`.
#[derive(Args, Debug)]
pub struct NodeArgs {
    /// What the node runs with.
    #[command(flatten)]
    pub settings: Flags<NodeSettings>,
}

/// Runs the command.
///
/// # Errors
///
/// When the node cannot start, or ends on its own.
pub fn run(args: &NodeArgs, context: &Context) -> Result<Exit, Failure> {
    context.sources.settle(&args.settings)?;
    Err(not_built("node"))
}
