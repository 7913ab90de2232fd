//! The commands, one file each: its arguments, its result and what it does.

pub mod bench;
pub mod bucket;
pub mod config;
pub mod demo;
pub mod dev;
pub mod get;
pub mod locate;
pub mod ls;
pub mod master;
pub mod metadata;
pub mod node;
pub mod put;
pub mod rm;
pub mod serve;
pub mod stat;
pub(crate) mod store;
pub mod topology;
pub mod trace;
pub mod transfer;

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

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

/// Runs `work`, unless somebody asks this process to end first; then what `work` has started ends
/// with it.
pub(crate) async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut stop = serve::Stop::listen(false)?;
    tokio::select! {
        done = work => done,
        what = stop.wait() => Err(Failure::new(format!("ended by {what} before it was done"))),
    }
}

/// Runs what speaks to others to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = runtime()?;
    let done = runtime.block_on(work);
    // What cannot be cut short, such as the look-up of a host name, is not waited for.
    runtime.shutdown_background();
    done
}
