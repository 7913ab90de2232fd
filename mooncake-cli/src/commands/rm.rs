//! `mooncake rm`: removes objects.

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use mooncake_store::{Client, ErrorCode};

use super::Context;
use super::store::{Store, parse_key};
use crate::config::{ClientSettings, Flags};
use crate::output::{Exit, Failure, Show, key};

/// The arguments of `mooncake rm`.
#[derive(Args, Debug)]
pub struct RmArgs {
    /// The keys.
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<OsString>,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
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
    let keys = args.keys.iter().map(|key| parse_key(key));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let results = Store::with(settings, async |store| {
        Ok(store.client.remove(keys.clone()).await)
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
