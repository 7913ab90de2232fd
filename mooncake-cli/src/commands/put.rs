//! `mooncake put`: stores a value.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use mooncake_proto::master::ListSegmentsRequest;
use mooncake_store::core::{MasterAnswer, MasterRequest, PutOptions};
use mooncake_store::{Client, ErrorCode};

use super::Context;
use super::store::{Store, parse_key, too_large};
use crate::config::{ClientSettings, Flags};
use crate::output::{Exit, Failure, No, Output, Show, bytes, count, key, micros};

/// The arguments of `mooncake put`.
#[derive(Args, Debug)]
pub struct PutArgs {
    /// The key.
    pub key: OsString,
    /// The file with the value; `-` or nothing means standard input.
    pub file: Option<PathBuf>,
    /// Replaces the object if the key exists; until the new one is there, the old one is.
    #[arg(long)]
    pub upsert: bool,
    /// Waits for space if the store is full, instead of failing at once.
    #[arg(long)]
    pub wait: bool,
    /// Copies in memory, on different nodes.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub replicas: u32,
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
            micros((self.seconds * 1e6) as u64)
        )
    }
}

/// Runs the command; "no" when the key exists.
///
/// # Errors
///
/// When the value cannot be read, or the store does not take it.
pub fn run(args: &PutArgs, context: &Context) -> Result<Exit, Failure> {
    let settings = context.sources.settle(&args.settings)?.settings;
    let wire_key = parse_key(&args.key)?;
    let source = Source::open(args)?;
    let shown = key(&wire_key);
    let options = PutOptions {
        replicas: args.replicas,
        upsert: args.upsert,
        wait_for_space: args.wait,
        ..PutOptions::default()
    };
    let put = Store::with(settings, async |store| {
        let largest = largest_segment(store).await?;
        let value = tokio::task::spawn_blocking(move || source.read(largest));
        let value = value.await.expect("reading does not panic")?;
        let begun = Instant::now();
        let items = vec![(wire_key, value.as_slice())];
        let mut results = store.client.put(items, options).await;
        match results.pop().expect("one result per key") {
            Ok(_) => Ok(Some(PutResult {
                key: shown.clone(),
                bytes: value.len() as u64,
                seconds: begun.elapsed().as_secs_f64(),
            })),
            Err(fault) if fault.code == ErrorCode::ObjectAlreadyExists => Ok(None),
            Err(fault) => {
                let what = format!("{shown} ({}) was not put", bytes(value.len() as u64));
                Err(store.refused(what, &fault))
            }
        }
    })?;
    match put {
        Some(result) => context.output.result(&result).map(|()| Exit::Yes),
        None => context
            .output
            .no(&No::new(shown, "exists; --upsert replaces it")),
    }
}

/// Where a value comes from.
struct Source {
    name: String,
    reader: Box<dyn Read + Send>,
    /// If it can be known.
    length: Option<u64>,
}

impl Source {
    fn open(args: &PutArgs) -> Result<Self, Failure> {
        let Some(path) = args.file.as_deref().filter(|path| *path != "-") else {
            if io::stdin().is_terminal() {
                Output::default().note("reading the value from the terminal; Ctrl-D ends it");
            }
            return Ok(Self {
                name: "standard input".to_owned(),
                reader: Box::new(io::stdin()),
                length: None,
            });
        };
        let name = path.display().to_string();
        let unreadable = |error| Failure::new(format!("{name} cannot be read")).because(error);
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        Ok(Self {
            length: metadata.is_file().then_some(metadata.len()),
            reader: Box::new(file),
            name,
        })
    }

    /// All of it, unless that is more than `most`.
    fn read(self, most: u64) -> Result<Vec<u8>, Failure> {
        let Self {
            name,
            reader,
            length,
        } = self;
        if let Some(length) = length.filter(|length| *length > most) {
            let what = format!("{name} has {} ({length} bytes)", bytes(length));
            return Err(too_large(&what, most));
        }
        let mut value = Vec::with_capacity(length.unwrap_or_default() as usize);
        let read = reader.take(most.saturating_add(1)).read_to_end(&mut value);
        read.map_err(|error| Failure::new(format!("{name} cannot be read")).because(error))?;
        if value.len() as u64 > most {
            let what = format!("{name} has more than {} bytes", count(most));
            return Err(too_large(&what, most));
        }
        if value.is_empty() {
            return Err(
                Failure::new(format!("{name} is empty")).remedy("a value of at least one byte")
            );
        }
        Ok(value)
    }
}

async fn largest_segment(store: &Store) -> Result<u64, Failure> {
    let request = MasterRequest::ListSegments(ListSegmentsRequest::default());
    let MasterAnswer::ListSegments(answer) = store.ask(request).await? else {
        return Err(store.nonsense());
    };
    let lengths = answer
        .segments
        .iter()
        .map(|usage| usage.segment.as_ref().map_or(0, |segment| segment.length));
    lengths.max().ok_or_else(|| {
        Failure::new("the store has no memory: no node lends any")
            .remedy("`mooncake node` to start one")
    })
}
