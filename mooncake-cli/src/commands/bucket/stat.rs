//! `mooncake bucket stat`: tells what is in a directory.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use mooncake_bucket::{Inspection, RealDisk, SeenBucket, Totals};
use serde::Serialize;

use super::shown::{digits, hex, look};
use crate::commands::Context;
use crate::output::{Align, Exit, Failure, Show, Table, bytes, count};

/// The arguments of `mooncake bucket stat`.
#[derive(Args, Debug)]
pub struct StatArgs {
    /// The directory.
    pub directory: PathBuf,
}

/// A directory.
#[derive(Clone, Debug, Serialize)]
pub struct StorageStat {
    /// Where it is.
    pub directory: String,
    /// Which storage it is, in hexadecimal digits.
    pub storage: String,
    /// Since when, in seconds since 1970; `None`: its identity file is lost.
    pub created_s: Option<u64>,
    /// Who has it open, in their own words.
    pub holder: Option<String>,
    /// Whether the system tells who has it open.
    pub holder_known: bool,
    /// Records that can be read.
    pub live_bytes: u64,
    /// Records that cannot be read any more.
    pub dead_bytes: u64,
    /// All else in files.
    pub overhead_bytes: u64,
    /// The lengths of all files: the sum of the three.
    pub file_bytes: u64,
    /// What these take on the disk.
    pub allocated_bytes: u64,
    /// How many can be read.
    pub live_records: u64,
    /// How many are dead.
    pub dead_records: u64,
    /// How many are not whole.
    pub broken_records: u64,
    /// What the logs say is dead.
    pub tombstones: u64,
    /// Logs whose end is not whole.
    pub torn_logs: u64,
    /// Logs that are damaged otherwise.
    pub damaged_logs: u64,
    /// Buckets of which nothing can be read.
    pub damaged_buckets: u64,
    /// Buckets that went while they were to be read.
    pub gone_buckets: u64,
    /// Compactions under way.
    pub transitions: u64,
    /// Files that are set aside.
    pub quarantined_files: u64,
    /// What they have.
    pub quarantined_bytes: u64,
    /// Files that are not ours.
    pub foreign_files: u64,
    /// All buckets, oldest first.
    pub buckets: Vec<BucketRow>,
}

/// A bucket.
#[derive(Clone, Debug, Serialize)]
pub struct BucketRow {
    /// Its number, as in the name of its file.
    pub bucket: String,
    /// Whether it never changes any more.
    pub sealed: bool,
    /// When it was made, in seconds since 1970.
    pub created_s: u64,
    /// The length of its file.
    pub file_bytes: u64,
    /// Of that, records that can be read.
    pub live_bytes: u64,
    /// Records that cannot be read any more.
    pub dead_bytes: u64,
    /// How many can be read.
    pub live_records: u64,
    /// How many are dead.
    pub dead_records: u64,
    /// How many are not whole.
    pub broken_records: u64,
    /// What is wrong with it.
    pub flaw: Option<String>,
}

impl From<&SeenBucket> for BucketRow {
    fn from(seen: &SeenBucket) -> Self {
        Self {
            bucket: digits(seen.id),
            sealed: seen.sealed,
            created_s: seen.created,
            file_bytes: seen.file_bytes,
            live_bytes: seen.live_bytes,
            dead_bytes: seen.dead_bytes,
            live_records: seen.live_records,
            dead_records: seen.dead_records,
            broken_records: seen.broken_records,
            flaw: seen.flaw.map(|flaw| flaw.to_string()),
        }
    }
}

impl StorageStat {
    fn new(directory: &Path, inspection: &Inspection, holder: io::Result<Option<String>>) -> Self {
        let Totals {
            live_bytes,
            dead_bytes,
            overhead_bytes,
            file_bytes,
            allocated_bytes,
            live_records,
            dead_records,
            broken_records,
            damaged_buckets,
            gone_buckets,
            tombstones,
            torn_logs,
            damaged_logs,
            transitions,
            quarantined_files,
            quarantined_bytes,
            foreign_files,
            ..
        } = inspection.totals();
        let created = inspection.created();
        Self {
            directory: directory.display().to_string(),
            storage: hex(&inspection.identity()),
            created_s: (created > 0).then_some(created),
            holder_known: holder.is_ok(),
            holder: holder.unwrap_or_default(),
            live_bytes,
            dead_bytes,
            overhead_bytes,
            file_bytes,
            allocated_bytes,
            live_records,
            dead_records,
            broken_records,
            tombstones,
            torn_logs,
            damaged_logs,
            damaged_buckets,
            gone_buckets,
            transitions,
            quarantined_files,
            quarantined_bytes,
            foreign_files,
            buckets: inspection.buckets().iter().map(BucketRow::from).collect(),
        }
    }
}

impl Show for StorageStat {
    fn human(&self) -> String {
        let mut lines = vec![
            format!("storage {} in {}", self.storage, self.directory),
            match &self.holder {
                Some(holder) => format!("in use by {holder}"),
                None if self.holder_known => "nobody has it open".to_owned(),
                None => "the system does not tell whether anybody has it open".to_owned(),
            },
            format!(
                "{} live, {} dead, {} overhead: {} in files, {} on the disk",
                bytes(self.live_bytes),
                bytes(self.dead_bytes),
                bytes(self.overhead_bytes),
                bytes(self.file_bytes),
                bytes(self.allocated_bytes),
            ),
            format!(
                "{} records can be read, {} are dead; {} tombstones",
                count(self.live_records),
                count(self.dead_records),
                count(self.tombstones),
            ),
        ];
        let odd = [
            (self.broken_records, "records are not whole"),
            (self.damaged_buckets, "buckets cannot be read"),
            (self.gone_buckets, "buckets went while they were to be read"),
            (
                self.damaged_logs,
                "logs of tombstones are damaged: no node can start on it",
            ),
            (self.torn_logs, "logs of tombstones have an unfinished end"),
            (self.transitions, "compactions are under way"),
            (self.quarantined_files, "files are set aside"),
            (self.foreign_files, "files are not ours"),
        ];
        let odd = odd.iter().filter(|(number, _)| *number > 0);
        lines.extend(odd.map(|(number, what)| format!("{} {what}", count(*number))));
        let text = lines.join("\n");
        if self.buckets.is_empty() {
            return text;
        }
        let mut table = Table::new(&[
            ("bucket", Align::Left),
            ("", Align::Left),
            ("size", Align::Right),
            ("live", Align::Right),
            ("dead", Align::Right),
            ("records", Align::Right),
            ("dead", Align::Right),
            ("broken", Align::Right),
            ("", Align::Left),
        ]);
        for bucket in &self.buckets {
            table.row([
                bucket.bucket.clone(),
                if bucket.sealed { "sealed" } else { "open" }.to_owned(),
                bytes(bucket.file_bytes),
                bytes(bucket.live_bytes),
                bytes(bucket.dead_bytes),
                count(bucket.live_records),
                count(bucket.dead_records),
                count(bucket.broken_records),
                bucket.flaw.clone().unwrap_or_default(),
            ]);
        }
        format!("{text}\n\n{}", table.text())
    }
}

/// Runs the command.
///
/// # Errors
///
/// When the directory cannot be read.
pub(super) fn run(args: &StatArgs, context: &Context) -> Result<Exit, Failure> {
    let inspection = look(&args.directory)?;
    let disk = RealDisk::read_only(&args.directory);
    let holder = disk.and_then(|disk| disk.holder());
    let stat = StorageStat::new(&args.directory, &inspection, holder);
    context.output.result(&stat)?;
    Ok(Exit::Yes)
}
