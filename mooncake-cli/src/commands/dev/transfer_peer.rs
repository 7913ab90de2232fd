//! `mooncake dev transfer-peer`: the other end of `mooncake bench transfer`.

use clap::{Args, ValueEnum};

use crate::bench::transfer::{serve_engine, serve_plain};
use crate::commands::{Context, runtime};
use crate::config::Size;
use crate::output::{Exit, Failure};

/// The arguments of `mooncake dev transfer-peer`. It answers lines of standard input and ends with it.
#[derive(Args, Debug)]
pub struct TransferPeerArgs {
    /// What to be.
    #[arg(value_enum)]
    pub role: PeerRole,
    /// How much memory to offer.
    #[arg(long, value_name = "SIZE")]
    pub window: Size,
    /// Make some bytes wrong.
    #[arg(long)]
    pub spoil: bool,
}

/// What the other end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeerRole {
    /// A transfer engine with a segment.
    Engine,
    /// A thread for each plain connection.
    Plain,
}

pub(super) fn run(args: &TransferPeerArgs, context: &Context) -> Result<Exit, Failure> {
    match args.role {
        PeerRole::Engine => {
            let runtime = runtime()?;
            let window = args.window.bytes();
            serve_engine(context.output, runtime.handle(), window, args.spoil)?;
            runtime.shutdown_background();
        }
        PeerRole::Plain => serve_plain(context.output, args.spoil)?,
    }
    Ok(Exit::Yes)
}
