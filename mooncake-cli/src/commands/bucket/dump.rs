//! `mooncake bucket dump`: shows what lies where in a directory.

use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use mooncake_bucket::{Inspection, RecordState, SeenTombstone};
use serde::Serialize;

use super::shown::{Whose, bucket_id, digits, hash_hex, hex, look};
use super::stat::BucketRow;
use crate::commands::Context;
use crate::output::{Align, Exit, Failure, Show, Table};

/// The arguments of `mooncake bucket dump`.
#[derive(Args, Debug)]
pub struct DumpArgs {
    /// The directory.
    pub directory: PathBuf,
    /// Only this bucket and what is said of it, by the digits in its file's name; may be given more
    /// than once.
    #[arg(long, value_name = "BUCKET", value_parser = bucket_id)]
    pub bucket: Vec<u32>,
}

/// What lies in a directory.
#[derive(Clone, Debug, Serialize)]
pub struct Dump {
    /// Which storage it is, in hexadecimal digits.
    pub storage: String,
    /// Its buckets, oldest first.
    pub buckets: Vec<DumpedBucket>,
    /// What the logs say is dead, in the order in which they say it.
    pub tombstones: Vec<DumpedTombstone>,
}

/// A bucket and all that was written to it.
#[derive(Clone, Debug, Serialize)]
pub struct DumpedBucket {
    /// The bucket.
    #[serde(flatten)]
    pub bucket: BucketRow,
    /// Its records, in the order in which they lie.
    pub records: Vec<DumpedRecord>,
    /// Why there are none to show.
    pub error: Option<String>,
}

/// A record, dead or alive.
#[derive(Clone, Debug, Serialize)]
pub struct DumpedRecord {
    /// Where it begins in the file.
    pub at: u64,
    /// What it takes, with header and padding.
    pub span_bytes: u64,
    /// Where its value begins.
    pub value_at: u64,
    /// The length of its value.
    pub bytes: u64,
    /// `live`: it can be read; `dead`: it was removed or replaced.
    pub state: &'static str,
    /// Whose it is.
    #[serde(flatten)]
    pub whose: Whose,
    /// The hash of tenant and key, in hexadecimal digits.
    pub hash: String,
    /// What is wrong with its header.
    pub flaw: Option<String>,
}

/// What a log says is dead.
#[derive(Clone, Debug, Serialize)]
pub struct DumpedTombstone {
    /// Which log, by the digits in its file's name.
    pub log: String,
    /// The hash of tenant and key, in hexadecimal digits.
    pub hash: String,
    /// The life of the master in which the record was put.
    pub epoch: u64,
    /// Which put of that life it was.
    pub sequence: u64,
    /// In which bucket; `None`: in any.
    pub bucket: Option<String>,
    /// Where in it the record begins; `None`: anywhere.
    pub at: Option<u64>,
}

impl From<SeenTombstone> for DumpedTombstone {
    fn from(stone: SeenTombstone) -> Self {
        Self {
            log: digits(stone.log),
            hash: hash_hex(stone.hash),
            epoch: stone.incarnation.epoch,
            sequence: stone.incarnation.seq,
            bucket: stone.bucket.map(digits),
            at: stone.at,
        }
    }
}

impl Show for Dump {
    fn human(&self) -> String {
        let mut parts = vec![format!("storage {}", self.storage)];
        for DumpedBucket {
            bucket,
            records,
            error,
        } in &self.buckets
        {
            let stage = if bucket.sealed { "sealed" } else { "open" };
            let mut text = format!(
                "bucket {}, {stage}, {} bytes",
                bucket.bucket, bucket.file_bytes
            );
            for flaw in bucket.flaw.iter().chain(error) {
                text += &format!("; {flaw}");
            }
            parts.push(text);
            if records.is_empty() {
                continue;
            }
            let mut table = Table::new(&[
                ("at", Align::Right),
                ("takes", Align::Right),
                ("value at", Align::Right),
                ("bytes", Align::Right),
                ("", Align::Left),
                ("life", Align::Left),
                ("tenant", Align::Left),
                ("key", Align::Left),
                ("hash", Align::Left),
                ("", Align::Left),
            ]);
            for record in records {
                table.row([
                    record.at.to_string(),
                    record.span_bytes.to_string(),
                    record.value_at.to_string(),
                    record.bytes.to_string(),
                    record.state.to_owned(),
                    record.whose.life(),
                    record.whose.owner(),
                    record.whose.text(),
                    record.hash.clone(),
                    record.flaw.clone().unwrap_or_default(),
                ]);
            }
            parts.push(table.text());
        }
        if !self.tombstones.is_empty() {
            let mut table = Table::new(&[
                ("log", Align::Left),
                ("hash", Align::Left),
                ("life", Align::Left),
                ("dead in", Align::Left),
                ("at", Align::Right),
            ]);
            for stone in &self.tombstones {
                table.row([
                    stone.log.clone(),
                    stone.hash.clone(),
                    format!("{}.{}", stone.epoch, stone.sequence),
                    stone.bucket.clone().unwrap_or_else(|| "any".to_owned()),
                    stone
                        .at
                        .map_or_else(|| "any".to_owned(), |at| at.to_string()),
                ]);
            }
            parts.push(table.text());
        }
        parts.join("\n\n")
    }
}

/// Runs the command; "no" when a bucket that was asked for is not there.
///
/// # Errors
///
/// When the directory cannot be read.
pub(super) fn run(args: &DumpArgs, context: &Context) -> Result<Exit, Failure> {
    let inspection = look(&args.directory)?;
    let wanted = |id: u32| args.bucket.is_empty() || args.bucket.contains(&id);
    let all = inspection.buckets().iter();
    let buckets = all
        .filter(|bucket| wanted(bucket.id))
        .map(|bucket| dump_bucket(&inspection, bucket.id, BucketRow::from(bucket)));
    let stones = inspection
        .tombstones()
        .filter(|stone| stone.bucket.is_none_or(wanted));
    let dump = Dump {
        storage: hex(&inspection.identity()),
        buckets: buckets.collect(),
        tombstones: stones.map(DumpedTombstone::from).collect(),
    };
    context.output.result(&dump)?;
    let here = |id: &u32| inspection.buckets().iter().any(|bucket| bucket.id == *id);
    Ok(Exit::from(args.bucket.iter().all(here)))
}

fn dump_bucket(inspection: &Inspection, id: u32, bucket: BucketRow) -> DumpedBucket {
    let mut records = Vec::new();
    let shown = inspection.records(id, &mut |record| {
        records.push(DumpedRecord {
            at: record.at,
            span_bytes: record.span_bytes,
            value_at: record.value_at,
            bytes: u64::from(record.value_bytes),
            state: match record.state {
                RecordState::Live => "live",
                _ => "dead",
            },
            whose: Whose::from(record),
            hash: hash_hex(record.hash),
            flaw: record.name.as_ref().err().map(ToString::to_string),
        });
        ControlFlow::Continue(())
    });
    // Of a bucket that is damaged its flaw says why nothing is shown.
    let error = shown.err().filter(|_| bucket.flaw.is_none());
    DumpedBucket {
        bucket,
        records,
        error: error.map(|error| Failure::new("it cannot be shown").because(error).human()),
    }
}
