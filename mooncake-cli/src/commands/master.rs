//! `mooncake master`: runs a master until it is told to stop.

use clap::Args;

use super::{Context, not_built};
use crate::config::{Flags, MasterSettings};
use crate::output::{Exit, Failure};

/// The arguments of `mooncake master`.
#[derive(Args, Debug)]
pub struct MasterArgs {
    /// What the master runs with.
    #[command(flatten)]
    pub settings: Flags<MasterSettings>,
}

/// Runs the command.
///
/// # Errors
///
/// When the master cannot start, or ends on its own.
pub fn run(args: &MasterArgs, context: &Context) -> Result<Exit, Failure> {
    context.sources.settle(&args.settings)?;
    Err(not_built("master"))
}
