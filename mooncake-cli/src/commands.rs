//! The commands, one file each: its arguments, its result and what it does.

pub mod bench;
pub mod config;
pub mod demo;
pub mod get;
pub mod locate;
pub mod ls;
pub mod master;
pub mod node;
pub mod put;
pub mod rm;
pub mod stat;
pub mod trace;

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Sources;
use crate::output::{Failure, Output};

/// What every command gets besides its arguments.
#[derive(Debug)]
pub struct Context {
    /// Where results and words go.
    pub output: Output,
    /// The environment and the configuration file.
    pub sources: Sources,
}

/// The runtime for commands that speak to others.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("no threads could be started").because(error))
}

/// How long a client may take to prove that nothing of it moves any more.
pub(crate) const CLOSE_BUDGET: Duration = Duration::from_secs(2);

/// Ends when somebody asks this process to end.
pub(crate) async fn interrupted() -> Failure {
    stopped().await;
    Failure::new("interrupted before the end")
}

/// Ends at SIGINT or SIGTERM.
pub(crate) async fn stopped() {
    let on = |kind| signal(kind).expect("signals can be listened to");
    let (mut interrupt, mut terminate) = (on(SignalKind::interrupt()), on(SignalKind::terminate()));
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// The answer of a command that is not built yet.
fn not_built(command: &str) -> Failure {
    Failure::new(format!("`mooncake {command}` is not built yet"))
}
