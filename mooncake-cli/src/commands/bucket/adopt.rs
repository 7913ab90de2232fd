//! `mooncake bucket adopt`: has a master keep what is in a directory of which it has never heard.

use std::path::PathBuf;

use clap::Args;
use mooncake_proto::Fault;
use mooncake_proto::master::AdoptStorageRequest;
use mooncake_proto::master::storages_client::StoragesClient;
use serde::Serialize;
use tonic::transport::Endpoint;

use super::shown::{hex, look};
use crate::commands::store::unreachable;
use crate::commands::{Context, block_on};
use crate::config::{ClientSettings, Flags};
use crate::output::{Exit, Failure, Show, count};

/// The arguments of `mooncake bucket adopt`.
///
/// A master that starts with a new state directory knows nothing of the disks that nodes had before, so
/// it refuses them. After this it takes the storage in when its node offers it, which goes on trying by
/// itself: everything is kept that was not removed.
#[derive(Args, Debug)]
pub struct AdoptArgs {
    /// The directory; a node may have it open.
    pub directory: PathBuf,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
}

/// A storage that a master takes in.
#[derive(Clone, Debug, Serialize)]
pub struct Adopted {
    /// Where it is.
    pub directory: String,
    /// Which storage it is, in hexadecimal digits.
    pub storage: String,
    /// What it has, as far as can be read.
    pub live_records: u64,
    /// Which master.
    pub master: String,
}

impl Show for Adopted {
    fn human(&self) -> String {
        format!(
            "the master at {} keeps what is in storage {}: {} records in {}",
            self.master,
            self.storage,
            count(self.live_records),
            self.directory
        )
    }
}

/// Runs the command.
///
/// # Errors
///
/// The directory is none of a node's, or the master does not answer or refuses.
pub fn run(args: &AdoptArgs, context: &Context) -> Result<Exit, Failure> {
    let settings = context.sources.settle(&args.settings)?.settings;
    let seen = look(&args.directory)?;
    let identity = seen.identity();
    let master = settings.master.to_string();
    let work = async {
        let endpoint = Endpoint::from_shared(format!("http://{master}"));
        let endpoint = endpoint.map_err(|error| unreachable(&master, &error.to_string()))?;
        let endpoint = endpoint
            .connect_timeout(settings.connect_deadline)
            .timeout(settings.operation_deadline);
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|error| unreachable(&master, &reason(&error)))?;
        let storage = identity.to_vec().into();
        let mut storages = StoragesClient::new(channel);
        let asked = storages.adopt_storage(AdoptStorageRequest { storage });
        asked.await.map_err(|status| {
            let what = format!("the master at {master} does not take the storage in");
            Failure::new(what).cause(Fault::from(status).message)
        })
    };
    block_on(work)?;
    context.output.result(&Adopted {
        directory: args.directory.display().to_string(),
        storage: hex(&identity),
        live_records: seen.totals().live_records,
        master,
    })?;
    Ok(Exit::Yes)
}

/// What an error and its causes say.
fn reason(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
