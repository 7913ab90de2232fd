//! `mooncake ls`: lists objects.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::Args;
use serde::Serialize;

use bytes::Bytes;
use mooncake_proto::master::{ListObjectsRequest, ListedObject};
use mooncake_store::core::{MasterAnswer, MasterRequest};

use super::Context;
use super::store::Store;
use crate::config::{ClientSettings, Flags};
use crate::output::{Align, Exit, Failure, Show, Table, bytes, count, key};

/// The arguments of `mooncake ls`.
#[derive(Args, Debug)]
pub struct LsArgs {
    /// Only keys that start like this.
    pub prefix: Option<OsString>,
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
    /// Its key, with escapes for what cannot be printed.
    pub key: String,
    /// The exact bytes of its key, in hexadecimal digits.
    pub key_hex: String,
    /// Its length.
    pub bytes: u64,
    /// How many copies there are.
    pub replicas: u32,
}

impl From<ListedObject> for Listed {
    fn from(object: ListedObject) -> Self {
        Self {
            key: key(&object.key),
            key_hex: object
                .key
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            bytes: object.length,
            replicas: object.replicas,
        }
    }
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
            format!("the first {shown}; there are more: --limit")
        } else {
            let plural = if self.objects.len() == 1 { "" } else { "s" };
            format!("{shown} object{plural}")
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
    let settings = context.sources.settle(&args.settings)?.settings;
    let prefix = Bytes::from(args.prefix.clone().unwrap_or_default().into_vec());
    let listing = Store::with(settings, async |store| {
        list(store, prefix, args.limit).await
    })?;
    context.output.result(&listing)?;
    Ok(Exit::from(!listing.objects.is_empty()))
}

/// Asks page by page, so that no answer is too large.
async fn list(store: &Store, prefix: Bytes, limit: u64) -> Result<Listing, Failure> {
    let mut listing = Listing {
        objects: Vec::new(),
        more: true,
    };
    let mut after = Bytes::new();
    while listing.more && (listing.objects.len() as u64) < limit {
        let rest = limit - listing.objects.len() as u64;
        let request = MasterRequest::ListObjects(ListObjectsRequest {
            prefix: prefix.clone(),
            after,
            limit: u32::try_from(rest).unwrap_or(u32::MAX),
            ..ListObjectsRequest::default()
        });
        let MasterAnswer::ListObjects(page) = store.ask(request).await? else {
            return Err(store.nonsense());
        };
        // A page without a key would be asked for again and again.
        listing.more = page.more && !page.objects.is_empty();
        after = page
            .objects
            .last()
            .map(|last| last.key.clone())
            .unwrap_or_default();
        listing
            .objects
            .extend(page.objects.into_iter().map(Listed::from));
    }
    Ok(listing)
}
