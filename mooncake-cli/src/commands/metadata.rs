//! `mooncake metadata`: keeps names of segments until it is told to stop.

mod book;
mod clock;
mod service;

use clap::Args;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use self::service::Service;
use super::serve::{END_BUDGET, Ready, Stop, listen_remedy};
use super::{Context, block_on};
use crate::config::{Flags, MetadataSettings};
use crate::output::{Exit, Failure, Output};

/// The arguments of `mooncake metadata`.
#[derive(Args, Debug)]
pub struct MetadataArgs {
    /// End when standard input does, as it does when whoever started this is gone.
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,
    /// What it runs with.
    #[command(flatten)]
    pub settings: Flags<MetadataSettings>,
}

/// A service that keeps names.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "role", rename = "metadata")]
pub struct ReadyMetadata {
    /// What engines are told to reach it.
    pub url: String,
    /// Where its pages for operators are, which is where it listens.
    pub admin_address: String,
}

/// Runs the command.
///
/// # Errors
///
/// When it cannot start.
pub fn run(args: &MetadataArgs, context: &Context) -> Result<Exit, Failure> {
    let settings = context.sources.settle(&args.settings)?.settings;
    block_on(serve(settings, args.end_with_stdin, context.output))
}

async fn serve(
    settings: MetadataSettings,
    end_with_stdin: bool,
    output: Output,
) -> Result<Exit, Failure> {
    let mut stop = Stop::listen(end_with_stdin)?;
    let listener = TcpListener::bind(settings.listen).await.map_err(|error| {
        let remedy = listen_remedy(error.kind(), "--listen");
        let what = format!("the metadata service cannot listen on {}", settings.listen);
        Failure::new(what).because(error).remedy(remedy)
    })?;
    let unknown = |error| Failure::new("the service's own address is unknown").because(error);
    let address = listener.local_addr().map_err(unknown)?;
    let service = Service::new(settings.capacity.bytes(), settings.longest_lease);
    let sweeper = tokio::spawn(service.clone().sweep());
    let (end, ended) = oneshot::channel::<()>();
    let serving = axum::serve(listener, service.routes()).with_graceful_shutdown(async move {
        // Whether it was said or dropped.
        let _ = ended.await;
    });
    let serving = tokio::spawn(async move { serving.await });
    let url = format!("http://{address}/metadata");
    output.remark(format_args!(
        "metadata service is ready: engines at {url}, pages at http://{address}"
    ));
    output.event(&Ready {
        ready: ReadyMetadata {
            url,
            admin_address: address.to_string(),
        },
    })?;
    let reason = stop.wait().await;
    output.remark(format_args!("metadata service ends: {reason}"));
    drop(end);
    // Who does not come to an end is cut off with the process.
    let _ = tokio::time::timeout(END_BUDGET / 4, serving).await;
    sweeper.abort();
    Ok(Exit::Yes)
}
