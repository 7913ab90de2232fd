//! `mooncake bucket compact`: gives back the space of what was removed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use mooncake_bucket::{
    BucketConfig, BucketStorageBackend, CandidateKind, GcConfig, GcError, GcReport, OpenOptions,
};
use serde::Serialize;

use super::shown::{bucket_id, digits, unusable};
use crate::commands::Context;
use crate::config::{Ratio, SettingValue, Size};
use crate::output::{Exit, Failure, Show, bytes, count};

/// The arguments of `mooncake bucket compact`.
#[derive(Args, Debug)]
pub struct CompactArgs {
    /// The directory.
    pub directory: PathBuf,
    /// Rewrite buckets of which no more than this part is alive; 1: all in which anything is dead.
    #[arg(long, value_name = "RATIO", default_value = "0.5", value_parser = ratio)]
    pub live_fraction: Ratio,
    /// Only this bucket, by the digits in its file's name; may be given more than once.
    #[arg(long, value_name = "BUCKET", value_parser = bucket_id)]
    pub bucket: Vec<u32>,
    /// Read and write no more than this each second [default: as much as the disk does].
    #[arg(long, value_name = "SIZE")]
    pub bytes_per_second: Option<Size>,
    /// Take a directory with a damaged log of tombstones. What else the log said is dead is served
    /// again, until whoever removed it does so anew; the log is set aside.
    #[arg(long)]
    pub accept_damaged_logs: bool,
}

fn ratio(text: &str) -> Result<Ratio, String> {
    SettingValue::parse(text)
}

/// What was given back.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Compacted {
    /// What all files had before.
    pub file_bytes_before: u64,
    /// What they have now.
    pub file_bytes: u64,
    /// Buckets that are gone, since nothing in them was alive.
    pub retired_buckets: u64,
    /// Buckets that were rewritten.
    pub compacted_buckets: u64,
    /// Live records that were copied for that.
    pub moved_records: u64,
    /// What they take.
    pub moved_bytes: u64,
    /// Records that were damaged and went with their buckets.
    pub lost_records: u64,
    /// Damaged logs of tombstones that were accepted and set aside.
    pub damaged_logs: u64,
    /// Candidates for which there was no room.
    pub skipped_buckets: u64,
}

impl Compacted {
    fn add(&mut self, kind: CandidateKind, report: &GcReport) {
        match kind {
            CandidateKind::Dead => self.retired_buckets += report.buckets,
            CandidateKind::Sparse => self.compacted_buckets += report.buckets,
        }
        self.moved_records += report.moved_records;
        self.moved_bytes += report.moved_bytes;
        self.lost_records += report.lost_records;
    }
}

impl Show for Compacted {
    fn human(&self) -> String {
        let mut text = format!(
            "{} in files, {} before: {} buckets dropped, {} rewritten, for which {} records with {} were copied",
            bytes(self.file_bytes),
            bytes(self.file_bytes_before),
            count(self.retired_buckets),
            count(self.compacted_buckets),
            count(self.moved_records),
            bytes(self.moved_bytes),
        );
        for (number, what) in [
            (self.lost_records, "damaged records went with their buckets"),
            (
                self.damaged_logs,
                "damaged logs of tombstones were set aside: what they said is dead may be alive again",
            ),
            (
                self.skipped_buckets,
                "buckets had to stay, since there is no room for copies",
            ),
        ] {
            if number > 0 {
                text += &format!("\n{} {what}", count(number));
            }
        }
        text
    }
}

/// Runs the command.
///
/// # Errors
///
/// When a node has the directory open, or the disk fails.
pub(super) fn run(args: &CompactArgs, context: &Context) -> Result<Exit, Failure> {
    let mut config = BucketConfig::default();
    config.audit_every = Duration::ZERO;
    let backend = OpenOptions::new(config)
        .existing(true)
        .accept_damaged_logs(args.accept_damaged_logs)
        .open(&args.directory)
        .map_err(|error| unusable(&args.directory, error))?;
    let mut compacted = Compacted {
        file_bytes_before: backend.accounting().file_bytes,
        damaged_logs: backend.recovery().damaged_logs,
        ..Compacted::default()
    };
    for bucket in &args.bucket {
        if !backend.sealed_buckets().contains(bucket) {
            return Err(Failure::new(format!(
                "there is no bucket {} in {}",
                digits(*bucket),
                args.directory.display()
            ))
            .remedy("`mooncake bucket stat` lists those that there are"));
        }
    }
    collect(args, &backend, &mut compacted)?;
    backend.maintain();
    compacted.file_bytes = backend.accounting().file_bytes;
    context.output.result(&compacted)?;
    Ok(Exit::Yes)
}

fn collect(
    args: &CompactArgs,
    backend: &BucketStorageBackend,
    compacted: &mut Compacted,
) -> Result<(), Failure> {
    let mut gc = GcConfig::default();
    gc.live_fraction = args.live_fraction.get();
    let mut pace = Pace::new(args.bytes_per_second.map_or(0, Size::bytes));
    for candidate in backend.gc_candidates(&gc) {
        if !args.bucket.is_empty() && !args.bucket.contains(&candidate.bucket) {
            continue;
        }
        let done = match candidate.kind {
            CandidateKind::Dead => backend.retire_bucket(candidate.bucket),
            CandidateKind::Sparse => backend
                .compact_buckets_paced(&[candidate.bucket], &mut |bytes, _| pace.spend(bytes)),
        };
        match done {
            Ok(report) => compacted.add(candidate.kind, &report),
            Err(GcError::Full { .. }) => compacted.skipped_buckets += 1,
            Err(error) => {
                let what = format!("bucket {:08x} could not be compacted", candidate.bucket);
                return Err(Failure::new(what).because(error));
            }
        }
    }
    Ok(())
}

/// Sleeps so that no more than so many bytes are moved in a second.
struct Pace {
    per_second: u64,
    begun: Instant,
    spent: u64,
}

impl Pace {
    fn new(per_second: u64) -> Self {
        Self {
            per_second,
            begun: Instant::now(),
            spent: 0,
        }
    }

    fn spend(&mut self, bytes: u64) -> bool {
        self.spent += bytes;
        if self.per_second > 0 {
            let due = Duration::from_secs_f64(self.spent as f64 / self.per_second as f64);
            std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
        }
        true
    }
}
