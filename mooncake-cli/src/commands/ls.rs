//! `mooncake ls`: lists objects.

use clap::Args;
use serde::Serialize;

use super::{Context, not_built};
use crate::config::{ClientSettings, Flags};
use crate::output::{Align, Exit, Failure, Show, Table, bytes, count};

/// The arguments of `mooncake ls`.
#[derive(Args, Debug)]
pub struct LsArgs {
    /// Only keys that start like this.
    pub prefix: Option<String>,
    /// List no more than this many.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
}

/// The objects that were found.
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    /// The objects, in the order of their keys.
    pub objects: Vec<Listed>,
    /// Whether there are more than were asked for.
    pub more: bool,
}

/// One object of a listing.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its length.
    pub bytes: u64,
    /// How many copies there are.
    pub replicas: u32,
}

impl Show for Listing {
    fn human(&self) -> String {
        let columns = [
            ("key", Align::Left),
            ("size", Align::Right),
            ("replicas", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for object in &self.objects {
            table.row([
                object.key.clone(),
                bytes(object.bytes),
                object.replicas.to_string(),
            ]);
        }
        let shown = count(self.objects.len() as u64);
        let end = if self.more {
            format!("the first {shown}; --limit shows more")
        } else {
            format!("{shown} objects")
        };
        if self.objects.is_empty() {
            end
        } else {
            format!("{}\n\n{end}", table.text())
        }
    }
}

/// Runs the command; "no" when nothing was found.
///
/// # Errors
///
/// When the store cannot be asked.
pub fn run(args: &LsArgs, context: &Context) -> Result<Exit, Failure> {
    context.sources.settle(&args.settings)?;
    Err(not_built("ls"))
}
