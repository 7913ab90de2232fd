//! `mooncake bucket verify`: checks every byte that can be read in a directory.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mooncake_bucket::{GetError, SeenBucket};
use serde::Serialize;

use super::shown::{Whose, digits, look};
use crate::commands::Context;
use crate::output::{Align, Exit, Failure, Show, Table, bytes, count};

/// The arguments of `mooncake bucket verify`.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// The directory.
    pub directory: PathBuf,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verified {
    /// Whether all is as it should be.
    pub whole: bool,
    /// Records that were read.
    pub records: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Records that are not what was put.
    pub damaged: Vec<DamagedRecord>,
    /// Files that are damaged.
    pub files: Vec<DamagedFile>,
    /// Records of open buckets that are not whole: of puts that are under way or that a crash ended, or, with
    /// whole ones behind them, damaged.
    pub broken_records: u64,
    /// Buckets that went while they were read: whoever has the directory open has moved what was in them.
    pub gone_buckets: u64,
}

/// A record that is not what was put.
#[derive(Clone, Debug, Serialize)]
pub struct DamagedRecord {
    /// Whose it is, as far as that can be read.
    #[serde(flatten)]
    pub whose: Whose,
    /// The bucket that it is in.
    pub bucket: String,
    /// Where in its file.
    pub at: u64,
    /// What is wrong.
    pub flaw: String,
}

/// A file that is damaged.
#[derive(Clone, Debug, Serialize)]
pub struct DamagedFile {
    /// Which one.
    pub file: String,
    /// What is wrong.
    pub flaw: String,
}

impl Show for Verified {
    fn human(&self) -> String {
        let mut text = format!(
            "{} records with {} were read",
            count(self.records),
            bytes(self.bytes)
        );
        if self.gone_buckets > 0 {
            text += &format!(
                "; {} buckets went meanwhile, and what was in them is elsewhere now",
                count(self.gone_buckets)
            );
        }
        if self.broken_records > 0 {
            text += &format!(
                "; {} of puts that are under way, or that nobody was answered, are not whole",
                count(self.broken_records)
            );
        }
        if self.whole {
            return text + "\nall are whole";
        }
        let mut table = Table::new(&[
            ("file", Align::Left),
            ("at", Align::Right),
            ("tenant", Align::Left),
            ("key", Align::Left),
            ("life", Align::Left),
            ("", Align::Left),
        ]);
        for file in &self.files {
            let none = String::new;
            table.row([
                file.file.clone(),
                none(),
                none(),
                none(),
                none(),
                file.flaw.clone(),
            ]);
        }
        for record in &self.damaged {
            table.row([
                record.bucket.clone(),
                record.at.to_string(),
                record.whose.owner(),
                record.whose.text(),
                record.whose.life(),
                record.flaw.clone(),
            ]);
        }
        format!("{text}\n\n{}", table.text())
    }
}

/// Runs the command; "no" when something is damaged.
///
/// # Errors
///
/// When the directory cannot be read.
pub(super) fn run(args: &VerifyArgs, context: &Context) -> Result<Exit, Failure> {
    let mut inspection = look(&args.directory)?;
    let passed = |seen: &SeenBucket| !seen.sealed && seen.passed_records > 0;
    if inspection.buckets().iter().any(passed) {
        // A put that was under way has ended by now.
        std::thread::sleep(Duration::from_millis(200));
        inspection = look(&args.directory)?;
    }
    let files = inspection.flaws().iter().map(|(file, flaw)| DamagedFile {
        file: file.clone(),
        flaw: flaw.to_string(),
    });
    let mut verified = Verified {
        files: files.collect(),
        ..Verified::default()
    };
    let totals = inspection.totals();
    verified.gone_buckets = totals.gone_buckets;
    let bar = context.output.progress(totals.live_records, "records");
    for bucket in inspection.buckets() {
        verified.broken_records += bucket.broken_records;
        if passed(bucket) {
            let records = count(bucket.passed_records);
            verified.files.push(DamagedFile {
                file: bucket.file.clone(),
                flaw: format!("{records} records are not whole, and whole ones lie behind them"),
            });
        }
        let done = inspection.verify(bucket.id, &mut |record, whole| {
            bar.inc(1);
            verified.records += 1;
            verified.bytes += u64::from(record.value_bytes);
            if let Err(flaw) = whole {
                verified.damaged.push(DamagedRecord {
                    whose: Whose::from(record),
                    bucket: digits(record.bucket),
                    at: record.at,
                    flaw: flaw.to_string(),
                });
            }
        });
        match done {
            Ok(()) => {}
            // Of what cannot be read at all, its flaw is told already.
            Err(GetError::NotFound) => {}
            Err(GetError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                verified.gone_buckets += 1;
            }
            Err(GetError::Io { source, .. }) => verified.files.push(DamagedFile {
                file: bucket.file.clone(),
                flaw: source.to_string(),
            }),
            Err(error) => verified.files.push(DamagedFile {
                file: bucket.file.clone(),
                flaw: error.to_string(),
            }),
        }
    }
    bar.finish_and_clear();
    verified.whole = verified.damaged.is_empty() && verified.files.is_empty();
    context.output.result(&verified)?;
    Ok(Exit::from(verified.whole))
}
