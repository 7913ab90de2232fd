//! `mooncake get`: fetches a value.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::{Context, not_built};
use crate::config::{ClientSettings, Flags};
use crate::output::{Exit, Failure, Format, Show, bytes, seconds};

/// The arguments of `mooncake get`.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// The key.
    pub key: String,
    /// Where the value goes; else to standard output, and nothing but the value.
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
}

/// A value that was fetched into a file.
#[derive(Clone, Debug, Serialize)]
pub struct GetResult {
    /// Its key.
    pub key: String,
    /// The file.
    pub to: String,
    /// Its length.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Show for GetResult {
    fn human(&self) -> String {
        format!(
            "{}: {} in {}, written to {}",
            self.key,
            bytes(self.bytes),
            seconds(self.seconds),
            self.to
        )
    }
}

/// Runs the command; "no" when there is no such key.
///
/// # Errors
///
/// When the value cannot be fetched whole, or not be written.
pub fn run(args: &GetArgs, context: &Context) -> Result<Exit, Failure> {
    if context.output.format() == Format::Json && args.to.is_none() {
        let failure = Failure::new("standard output cannot take both the value and a JSON result");
        return Err(failure.remedy("--to FILE"));
    }
    context.sources.settle(&args.settings)?;
    Err(not_built("get"))
}
