//! `mooncake bench`: measures a store and its parts.

mod bucket;
mod master;
mod plain_peer;
mod replay;
mod store;
mod transfer;

use clap::Subcommand;

use super::Context;
use crate::output::{Exit, Failure};

pub use bucket::BucketBenchArgs;
pub use master::MasterBenchArgs;
pub use plain_peer::PlainPeerArgs;
pub use replay::ReplayArgs;
pub use store::StoreArgs;
pub use transfer::{Direction, RoleArgs, TransferArgs};

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure the object log that nodes keep on disks, beside plain files.
    Bucket(BucketBenchArgs),
    /// Measure a master beside a plain echo of the same bytes.
    Master(MasterBenchArgs),
    /// Replay a trace: get each request's blocks, put those that are missing, check every byte.
    Replay(ReplayArgs),
    /// Get and put objects, beside what bare sockets or copies can do.
    Store(StoreArgs),
    /// The other end of bare sockets.
    #[command(hide = true)]
    PlainPeer(PlainPeerArgs),
    /// Measure the transfer engine beside plain loops of the same pattern, and check every byte.
    Transfer(Box<TransferArgs>),
}

/// Runs the command.
///
/// # Errors
///
/// When it cannot be measured.
pub fn run(command: &BenchCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        BenchCommand::Bucket(args) => bucket::run(args, context),
        BenchCommand::Master(args) => master::run(args, context),
        BenchCommand::Replay(args) => replay::run(args, context),
        BenchCommand::Store(args) => store::run(args, context),
        BenchCommand::PlainPeer(args) => plain_peer::run(args, context),
        BenchCommand::Transfer(args) => transfer::run(args, context),
    }
}
