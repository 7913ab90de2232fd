//! `mooncake bench plain-peer`: the other end of bare sockets, which measurements start.

use clap::Args;

use crate::bench::plain::Peer;
use crate::commands::serve::{Ready, Stop};
use crate::commands::{Context, block_on};
use crate::output::{Exit, Failure};

/// The arguments of `mooncake bench plain-peer`.
#[derive(Args, Debug)]
pub struct PlainPeerArgs {
    /// Bytes of memory of each connection.
    #[arg(long, value_name = "N")]
    pub memory: u64,
    /// End when standard input does.
    #[arg(long)]
    pub end_with_stdin: bool,
}

/// Runs the command.
///
/// # Errors
///
/// When the peer cannot listen.
pub(super) fn run(args: &PlainPeerArgs, context: &Context) -> Result<Exit, Failure> {
    block_on(async {
        let mut stop = Stop::listen(args.end_with_stdin)?;
        let peer = Peer::start(args.memory)?;
        context.output.event(&Ready {
            ready: peer.ready(),
        })?;
        stop.wait().await;
        Ok(Exit::Yes)
    })
}
