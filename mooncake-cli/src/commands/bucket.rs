//! `mooncake bucket`: looks after a directory in which a node keeps objects on a disk.
//!
//! All but `compact` only read, and do so also while a node has the directory open.

pub mod adopt;
pub mod compact;
pub mod dump;
pub mod ls;
mod shown;
pub mod stat;
pub mod verify;

use clap::Subcommand;

use super::Context;
use crate::output::{Exit, Failure};

pub use shown::Whose;

/// What can be done with a directory of buckets.
#[derive(Debug, Subcommand)]
pub enum BucketCommand {
    /// Tell what is in a directory: whose it is, what its bytes are, and who has it open.
    Stat(stat::StatArgs),
    /// List what can be read.
    Ls(ls::LsArgs),
    /// Read everything that can be read, and check every byte of it.
    Verify(verify::VerifyArgs),
    /// Give back the space of what was removed, while no node has the directory open.
    Compact(compact::CompactArgs),
    /// Show what lies where, dead or alive, and what the logs say is dead.
    Dump(dump::DumpArgs),
    /// Have a master keep what is in a directory of which it has never heard.
    Adopt(adopt::AdoptArgs),
}

/// Runs the command.
///
/// # Errors
///
/// When the directory cannot be read or, by `compact`, not be had.
pub fn run(command: &BucketCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        BucketCommand::Adopt(args) => adopt::run(args, context),
        BucketCommand::Stat(args) => stat::run(args, context),
        BucketCommand::Ls(args) => ls::run(args, context),
        BucketCommand::Verify(args) => verify::run(args, context),
        BucketCommand::Compact(args) => compact::run(args, context),
        BucketCommand::Dump(args) => dump::run(args, context),
    }
}
