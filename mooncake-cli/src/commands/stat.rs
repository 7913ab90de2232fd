//! `mooncake stat`: tells what is known about an object.

use clap::Args;
use serde::Serialize;

use super::{Context, not_built};
use crate::config::{ClientSettings, Flags};
use crate::output::{Exit, Failure, Show, bytes, count, seconds};

/// The arguments of `mooncake stat`.
#[derive(Args, Debug)]
pub struct StatArgs {
    /// The key.
    pub key: String,
    /// How to reach the store.
    #[command(flatten)]
    pub settings: Flags<ClientSettings>,
}

/// What is known about an object.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectStat {
    /// Its key.
    pub key: String,
    /// Whose object it is.
    pub tenant: String,
    /// Its length.
    pub bytes: u64,
    /// The life of the master in which it was put.
    pub epoch: u64,
    /// Which put of that life it was.
    pub sequence: u64,
    /// Whether it is still being written, so that nobody can read it yet.
    pub writing: bool,
    /// How many copies there are.
    pub replicas: u32,
    /// How many reads are under way.
    pub leases: u32,
    /// How long nobody has asked for it.
    pub idle_seconds: f64,
}

impl Show for ObjectStat {
    fn human(&self) -> String {
        let state = if self.writing {
            "being written"
        } else {
            "complete"
        };
        format!(
            "key          {}\ntenant       {}\nsize         {} ({} bytes)\nstate        {state}\nincarnation  {}.{}\n\
             replicas     {}\nleases       {}\nidle         {}",
            self.key,
            self.tenant,
            bytes(self.bytes),
            count(self.bytes),
            self.epoch,
            self.sequence,
            self.replicas,
            self.leases,
            seconds(self.idle_seconds)
        )
    }
}

/// Runs the command; "no" when there is no such key.
///
/// # Errors
///
/// When the store cannot be asked.
pub fn run(args: &StatArgs, context: &Context) -> Result<Exit, Failure> {
    context.sources.settle(&args.settings)?;
    Err(not_built("stat"))
}
