//! `mooncake bucket ls`: lists what can be read in a directory.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use mooncake_bucket::{Inspection, RecordState};
use serde::Serialize;

use super::shown::{Whose, digits, look};
use crate::commands::Context;
use crate::output::{Align, Exit, Failure, Show, Table, bytes, count};

/// The arguments of `mooncake bucket ls`.
#[derive(Args, Debug)]
pub struct LsArgs {
    /// The directory.
    pub directory: PathBuf,
    /// Only keys that start like this.
    pub prefix: Option<OsString>,
    /// Only keys of this tenant [default: of all].
    #[arg(long, value_name = "TENANT")]
    pub tenant: Option<OsString>,
    /// List no more than this many.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
}

/// The records that were found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RecordListing {
    /// In the order in which they lie on the disk.
    pub records: Vec<ListedRecord>,
    /// Whether there are more than were asked for.
    pub more: bool,
    /// Records that are here under a key that cannot be read.
    pub damaged: u64,
    /// Buckets that cannot be listed, such as one that went meanwhile.
    pub unlisted_buckets: Vec<String>,
}

/// One record of a listing.
#[derive(Clone, Debug, Serialize)]
pub struct ListedRecord {
    /// Whose it is.
    #[serde(flatten)]
    pub whose: Whose,
    /// The length of its value.
    pub bytes: u64,
    /// The bucket that it is in.
    pub bucket: String,
}

impl Show for RecordListing {
    fn human(&self) -> String {
        let mut table = Table::new(&[
            ("tenant", Align::Left),
            ("key", Align::Left),
            ("life", Align::Left),
            ("size", Align::Right),
            ("bucket", Align::Left),
        ]);
        for record in &self.records {
            table.row([
                record.whose.owner(),
                record.whose.text(),
                record.whose.life(),
                bytes(record.bytes),
                record.bucket.clone(),
            ]);
        }
        let shown = count(self.records.len() as u64);
        let mut end = if self.more {
            format!("the first {shown}; there are more: --limit")
        } else {
            let plural = if self.records.len() == 1 { "" } else { "s" };
            format!("{shown} record{plural}")
        };
        if self.damaged > 0 {
            end += &format!(
                "\n{} have a header that cannot be read",
                count(self.damaged)
            );
        }
        if !self.unlisted_buckets.is_empty() {
            end += &format!("\nnot listed: {}", self.unlisted_buckets.join(", "));
        }
        if self.records.is_empty() {
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
/// When the directory cannot be read.
pub(super) fn run(args: &LsArgs, context: &Context) -> Result<Exit, Failure> {
    let listing = list(args, &look(&args.directory)?);
    context.output.result(&listing)?;
    Ok(Exit::from(!listing.records.is_empty()))
}

fn list(args: &LsArgs, inspection: &Inspection) -> RecordListing {
    let prefix = args.prefix.as_deref().unwrap_or_default().as_bytes();
    let tenant = args.tenant.as_deref().map(|tenant| tenant.as_bytes());
    let mut listing = RecordListing::default();
    for bucket in inspection.buckets() {
        let listed = inspection.records(bucket.id, &mut |record| {
            if record.state != RecordState::Live {
                return ControlFlow::Continue(());
            }
            let Ok((owner, key)) = &record.name else {
                listing.damaged += 1;
                return ControlFlow::Continue(());
            };
            let wanted = key.starts_with(prefix) && tenant.is_none_or(|tenant| tenant == owner);
            if wanted && listing.records.len() as u64 == args.limit {
                listing.more = true;
                return ControlFlow::Break(());
            }
            if wanted {
                listing.records.push(ListedRecord {
                    whose: Whose::from(record),
                    bytes: u64::from(record.value_bytes),
                    bucket: digits(record.bucket),
                });
            }
            ControlFlow::Continue(())
        });
        if listed.is_err() {
            listing.unlisted_buckets.push(digits(bucket.id));
        }
        if listing.more {
            break;
        }
    }
    listing
}
