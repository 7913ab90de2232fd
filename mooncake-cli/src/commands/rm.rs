//! `mooncake rm`: removes objects.

use clap::Args;
use serde::Serialize;

use super::{Context, not_built};
use crate::config::{ClientSettings, Flags};
use crate::output::{Exit, Failure, Show};

/// The arguments of `mooncake rm`.
#[derive(Args, Debug)]
pub struct RmArgs {
    /// The keys.
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<String>,
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
/// When the store cannot be asked, or an object that is there cannot be removed.
pub fn run(args: &RmArgs, context: &Context) -> Result<Exit, Failure> {
    context.sources.settle(&args.settings)?;
    Err(not_built("rm"))
}
