//! `mooncake dev`: tools for those who work on the store itself.

mod transfer_peer;

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use mooncake_tent::conformance::{Cut, Relay, Rules};
use serde::Serialize;

use super::serve::{Ready, Stop, listen_remedy};
use super::{Context, block_on};
use crate::output::{Exit, Failure, Output};

pub use transfer_peer::{PeerRole, TransferPeerArgs};

/// What `mooncake dev` can do.
#[derive(Debug, Subcommand)]
pub enum DevCommand {
    /// Stand between two processes and delay, hold back, lose or cut what they say.
    Relay(RelayArgs),
    /// Be the other end of `mooncake bench transfer`.
    TransferPeer(TransferPeerArgs),
}

/// The arguments of `mooncake dev relay`.
#[derive(Args, Debug)]
pub struct RelayArgs {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Who is reached through it.
    #[arg(long, value_name = "HOST:PORT")]
    pub to: String,
    /// The direction that the rules are for.
    #[arg(long, value_enum, default_value_t)]
    pub direction: Direction,
    /// Each chunk arrives so much later.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub delay_ms: u64,
    /// Hold everything back after N bytes of a connection, until SIGUSR1.
    #[arg(long, value_name = "N")]
    pub pause_after: Option<u64>,
    /// Pass nothing on after N bytes of a connection.
    #[arg(long, value_name = "N")]
    pub lose_after: Option<u64>,
    /// End a connection after N bytes.
    #[arg(long, value_name = "N")]
    pub cut_after: Option<u64>,
    /// How a connection ends.
    #[arg(long, value_enum, default_value_t)]
    pub cut: CutBy,
    /// Only the first N connections follow the rules.
    #[arg(long, value_name = "N")]
    pub connections: Option<u64>,
    /// End when standard input does.
    #[arg(long)]
    pub end_with_stdin: bool,
}

/// A direction, seen from whoever connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// Both.
    #[default]
    Both,
    /// From the target back.
    Down,
    /// To the target.
    Up,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CutBy {
    /// In order.
    Close,
    /// Only the sender learns of it.
    HalfOpen,
    /// By a reset.
    #[default]
    Reset,
}

/// A relay that serves.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "role", rename = "relay")]
pub struct ReadyRelay {
    /// Where it listens.
    pub address: String,
    /// Who is reached through it.
    pub to: String,
}

/// Runs the command.
///
/// # Errors
///
/// When the relay cannot start.
pub fn run(command: &DevCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        DevCommand::Relay(args) => block_on(relay(args, context.output)),
        DevCommand::TransferPeer(args) => transfer_peer::run(args, context),
    }
}

async fn relay(args: &RelayArgs, output: Output) -> Result<Exit, Failure> {
    let mut stop = Stop::listen(args.end_with_stdin)?;
    let mut resume = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::user_defined1())
        .map_err(|error| Failure::new("signals cannot be caught").because(error))?;
    let unknown = || Failure::new(format!("{} is no address", args.to)).remedy("--to HOST:PORT");
    let to = args
        .to
        .to_socket_addrs()
        .map_err(|error| unknown().because(error))?
        .next()
        .ok_or_else(unknown)?;
    let (rules, connections) = (args.rules(), args.connections);
    let relay = Relay::start(args.listen, to, move |number| {
        match connections.is_none_or(|first| number < first) {
            true => rules,
            false => Rules::default(),
        }
    });
    let relay = relay.map_err(|error| {
        let remedy = listen_remedy(error.kind(), "--listen");
        Failure::new(format!("the relay cannot listen on {}", args.listen))
            .because(error)
            .remedy(remedy)
    })?;
    let ready = ReadyRelay {
        address: relay.address().to_string(),
        to: to.to_string(),
    };
    output.remark(format_args!(
        "relay is ready: {} leads to {to}",
        ready.address
    ));
    output.event(&Ready { ready })?;
    let reason = loop {
        tokio::select! {
            reason = stop.wait() => break reason,
            _ = resume.recv() => relay.resume(),
        }
    };
    output.remark(format_args!("relay ends: {reason}; {:?}", relay.counts()));
    Ok(Exit::Yes)
}

impl RelayArgs {
    fn rules(&self) -> Rules {
        let mut rules = Rules::default();
        let flows = match self.direction {
            Direction::Both => vec![&mut rules.up, &mut rules.down],
            Direction::Down => vec![&mut rules.down],
            Direction::Up => vec![&mut rules.up],
        };
        for flow in flows {
            flow.delay = Duration::from_millis(self.delay_ms);
            flow.pause_after = self.pause_after;
            flow.lose_after = self.lose_after;
            flow.cut_after = self.cut_after;
            flow.cut = match self.cut {
                CutBy::Close => Cut::Close,
                CutBy::HalfOpen => Cut::HalfOpen,
                CutBy::Reset => Cut::Reset,
            };
        }
        rules
    }
}
