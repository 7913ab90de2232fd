//! `mooncake rm`: removes objects.

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use mooncake_store::core::RemoveOptions;
use mooncake_store::{Client, ErrorCode};

use super::Context;
use super::store::{Store, parse_key};
use crate::config::{ClientSettings, Flags};
use crate::output::{Exit, Failure, Show, count, key};

/// The arguments of `mooncake rm`.
#[derive(Args, Debug)]
pub struct RmArgs {
    /// The keys.
    #[arg(value_name = "KEY", required_unless_present = "all")]
    pub keys: Vec<OsString>,
    /// Removes all objects of the tenant.
    #[arg(long, conflicts_with = "keys")]
    pub all: bool,
    /// Ends only when nobody can read the removed objects any more; --all always does that.
    #[arg(long)]
    pub barrier: bool,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
}

/// How many objects were removed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RemovedAll {
    /// Those that could be read before.
    pub removed: u64,
}

impl Show for RemovedAll {
    fn human(&self) -> String {
        format!("{} objects removed", count(self.removed))
    }
}

/// What became of each key.
#[derive(Clone, Debug, Serialize)]
pub struct Removals {
    /// The keys, in the order in which they were given.
    pub keys: Vec<Removal>,
}

/// What became of one key.
#[derive(Clone, Debug, Serialize)]
pub struct Removal {
    /// The key.
    pub key: String,
    /// Whether there was such an object, and now there is none.
    pub removed: bool,
    /// Why it could not be removed, unless it was just not there.
    pub error: Option<String>,
}

impl Show for Removals {
    fn human(&self) -> String {
        let word = |removal: &Removal| match &removal.error {
            Some(error) => format!("{}: not removed: {error}", removal.key),
            None if removal.removed => format!("{}: removed", removal.key),
            None => format!("{}: not there", removal.key),
        };
        self.keys.iter().map(word).collect::<Vec<_>>().join("\n")
    }
}

/// Runs the command; "no" when a key was not there.
///
/// # Errors
///
/// When the store cannot be asked. An object that is there and cannot be removed is
/// [`Exit::Failed`].
pub fn run(args: &RmArgs, context: &Context) -> Result<Exit, Failure> {
    let settings = context.sources.settle(&args.settings)?.settings;
    if args.all {
        let removed = Store::with(settings, async |store| {
            let removed = store.client.remove_all().await;
            removed.map_err(|fault| store.refused("not all was removed".to_owned(), &fault))
        })?;
        context.output.result(&RemovedAll { removed })?;
        return Ok(Exit::Yes);
    }
    let options = RemoveOptions {
        barrier: args.barrier,
    };
    let keys = args.keys.iter().map(|key| parse_key(key));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let results = Store::with(settings, async |store| {
        Ok(store.client.remove(keys.clone(), options).await)
    })?;
    let removals: Vec<_> = keys
        .iter()
        .zip(results)
        .map(|(name, result)| Removal {
            key: key(name),
            removed: result.is_ok(),
            error: match result {
                Err(fault) if fault.code != ErrorCode::ObjectNotFound => Some(fault.message),
                _ => None,
            },
        })
        .collect();
    let exit = if removals.iter().any(|removal| removal.error.is_some()) {
        Exit::Failed
    } else {
        Exit::from(removals.iter().all(|removal| removal.removed))
    };
    context.output.result(&Removals { keys: removals })?;
    Ok(exit)
}
