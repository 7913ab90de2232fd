//! `mooncake node`: lends memory to a store until it is told to stop.

mod memory;
mod pages;

use std::sync::Arc;

use clap::Args;
use mooncake_store::{Node, NodeOptions, StorageOptions, StoreError};
use serde::Serialize;

use super::serve::{END_BUDGET, Ready, Stop, listen_remedy};
use super::store::unreachable;
use super::{Context, block_on};
use crate::config::{Flags, NodeSettings, size_text};
use crate::output::{Exit, Failure, Output, bytes};

/// The arguments of `mooncake node`.
#[derive(Args, Debug)]
pub struct NodeArgs {
    /// End when standard input does, as it does when whoever started this is gone.
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,
    /// What the node runs with.
    #[command(flatten)]
    pub settings: Flags<NodeSettings>,
}

/// A node that lends its memory.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "role", rename = "node")]
pub struct ReadyNode {
    /// What it calls itself.
    pub name: String,
    /// The name under which others open its segment: the address of its control service.
    pub segment: String,
    /// The segment's identity, in hexadecimal digits.
    pub segment_id: String,
    /// How much memory it lends.
    pub bytes: u64,
    /// Where its pages for operators are.
    pub admin_address: String,
}

/// Runs the command.
///
/// # Errors
///
/// When the node cannot start.
pub fn run(args: &NodeArgs, context: &Context) -> Result<Exit, Failure> {
    let settings = context.sources.settle(&args.settings)?.settings;
    let wanted = settings.segment_size.bytes();
    if let Some(available) = memory::available().filter(|available| *available < wanted) {
        return Err(Failure::new(format!(
            "a segment of {} does not fit into memory: {} are available",
            bytes(wanted),
            bytes(available)
        ))
        .remedy(format!(
            "--segment-size {}",
            size_text(sensible_size(available))
        )));
    }
    block_on(serve(settings, args.end_with_stdin, context.output))
}

async fn serve(
    settings: NodeSettings,
    end_with_stdin: bool,
    output: Output,
) -> Result<Exit, Failure> {
    let mut stop = Stop::listen(end_with_stdin)?;
    let bytes_lent = settings.segment_size.bytes();
    let name = if settings.name.is_empty() {
        default_name()
    } else {
        settings.name.clone()
    };
    let mut options = NodeOptions::new(name.clone(), bytes_lent);
    options.listen = settings.listen;
    options.data_listen = settings.data_listen;
    if !settings.ssd_path.is_empty() {
        let mut storage = StorageOptions::new(&settings.ssd_path, settings.ssd_capacity.bytes());
        storage.listen = settings.ssd_listen;
        options.storage = Some(storage);
    }
    // Before the memory, which takes long to touch.
    let listener = pages::bind(settings.admin_listen).await?;
    let node = tokio::select! {
        started = Node::start(settings.master.as_str(), options) => {
            started.map_err(|error| refusal(&error, &settings))?
        }
        reason = stop.wait() => {
            output.remark(format_args!("node {name} ends before it was ready: {reason}"));
            return Ok(Exit::Yes);
        }
    };
    let node = Arc::new(node);
    let segment = node.segment_name().to_owned();
    let pages = pages::Pages::serve(listener, &node)?;
    let admin_address = pages.address();
    output.remark(format_args!(
        "node {name} is ready: lends {} at {segment} to the master at {}, pages at http://{admin_address}",
        bytes(bytes_lent),
        settings.master
    ));
    output.event(&Ready {
        ready: ReadyNode {
            name: name.clone(),
            segment: segment.clone(),
            segment_id: node.segment_id().to_string(),
            bytes: bytes_lent,
            admin_address: admin_address.to_string(),
        },
    })?;
    let reason = stop.wait().await;
    output.remark(format_args!("node {name} ends: {reason}"));
    // They look at the node when they are asked.
    drop(pages);
    let Some(node) = Arc::into_inner(node) else {
        // A page is just being made: what goes on ends with the process.
        return Ok(Exit::Yes);
    };
    if let Err(error) = node.shutdown(END_BUDGET).await {
        // The memory goes with the process, so late transfers find nothing to harm.
        output.remark(format_args!(
            "node {name} was not quiet at its end: {error}"
        ));
    }
    Ok(Exit::Yes)
}

fn default_name() -> String {
    let system = rustix::system::uname();
    format!(
        "{}-{}",
        system.nodename().to_string_lossy(),
        std::process::id()
    )
}

/// A size that leaves others something, in whole steps that are easy to write.
fn sensible_size(available: u64) -> u64 {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    let most = available / 4 * 3;
    let step = if most >= GIB { GIB } else { MIB };
    (most / step * step).max(MIB)
}

fn refusal(error: &StoreError, settings: &NodeSettings) -> Failure {
    match error {
        StoreError::Connect { reason, .. } => unreachable(settings.master.as_str(), reason),
        StoreError::Engine(engine) => {
            let failure = Failure::new("the node cannot start").because(&**engine);
            match &**engine {
                mooncake_tent::Error::System { what, source } if what.contains("listen") => {
                    failure.remedy(listen_remedy(source.kind(), "--listen or --data-listen"))
                }
                mooncake_tent::Error::System { source, .. }
                    if source.kind() == std::io::ErrorKind::OutOfMemory =>
                {
                    failure.remedy("less, with --segment-size")
                }
                mooncake_tent::Error::Install { .. } => failure.remedy(
                    "an address of this machine and a free port, with --data-listen (port 0 takes a free one)",
                ),
                _ => failure,
            }
        }
        StoreError::Storage { .. } => Failure::new("the node cannot keep objects on its disk")
            .because(error)
            .remedy("another directory, with --ssd-path, or another address, with --ssd-listen"),
        other => Failure::new(format!(
            "the master at {} does not take the node's segment",
            settings.master
        ))
        .because(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_to_try_is_round_and_fits() {
        for (available, expected) in [(1, 1 << 20), (100 << 20, 75 << 20), (23 << 30, 17 << 30)] {
            assert_eq!(sensible_size(available), expected);
        }
    }
}
