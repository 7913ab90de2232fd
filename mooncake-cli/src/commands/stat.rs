//! `mooncake stat`: tells what is known about an object.

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use mooncake_store::{Client, ErrorCode};

use super::Context;
use super::store::{Store, parse_key};
use crate::config::{ClientSettings, Flags};
use crate::output::{Exit, Failure, No, Show, bytes, count, key, seconds};

/// The arguments of `mooncake stat`.
#[derive(Args, Debug)]
pub struct StatArgs {
    /// The key.
    pub key: OsString,
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
    let settings = context.sources.settle(&args.settings)?.settings;
    let wire_key = parse_key(&args.key)?;
    let shown = key(&wire_key);
    let tenant = settings.tenant.clone();
    let stat = Store::with(settings, async |store| {
        let mut results = store.client.describe(vec![wire_key]).await;
        match results.pop().expect("one result per key") {
            Ok(found) => Ok(Some(ObjectStat {
                key: shown.clone(),
                tenant,
                bytes: found.length,
                epoch: found.incarnation.epoch,
                sequence: found.incarnation.sequence,
                writing: found.writing,
                replicas: u32::try_from(found.replicas.len()).unwrap_or(u32::MAX),
                leases: found.leases,
                idle_seconds: found.idle.as_secs_f64(),
            })),
            Err(fault) if fault.code == ErrorCode::ObjectNotFound => Ok(None),
            Err(fault) => Err(store.refused(format!("nothing is known about {shown}"), &fault)),
        }
    })?;
    match stat {
        Some(stat) => context.output.result(&stat).map(|()| Exit::Yes),
        None => context.output.no(&No::new(shown, "no such object")),
    }
}
