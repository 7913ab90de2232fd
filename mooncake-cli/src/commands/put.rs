//! `mooncake put`: stores a value.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::{Context, not_built};
use crate::config::{ClientSettings, Flags};
use crate::output::{Exit, Failure, Show, bytes, seconds};

/// The arguments of `mooncake put`.
#[derive(Args, Debug)]
pub struct PutArgs {
    /// The key.
    pub key: String,
    /// The file with the value; `-` or nothing means standard input.
    pub file: Option<PathBuf>,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
}

/// A value that was stored.
#[derive(Clone, Debug, Serialize)]
pub struct PutResult {
    /// Its key.
    pub key: String,
    /// Its length.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Show for PutResult {
    fn human(&self) -> String {
        format!(
            "{}: {} in {}",
            self.key,
            bytes(self.bytes),
            seconds(self.seconds)
        )
    }
}

/// Runs the command; "no" when the key exists.
///
/// # Errors
///
/// When the value cannot be read, or the store does not take it.
pub fn run(args: &PutArgs, context: &Context) -> Result<Exit, Failure> {
    context.sources.settle(&args.settings)?;
    Err(not_built("put"))
}
