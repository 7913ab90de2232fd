//! What outlives the master: a log of records in a local directory, and checkpoints of it.
//!
//! A directory has log files, numbered from 1, and at most one checkpoint that counts. The checkpoint
//! of number *n* tells what was known when log file *n* began, and perhaps some of what came after;
//! taking in log file *n* and all later ones after it gives what was known at the end. Files have a
//! header and then groups of records. A group is written and made durable as a whole before anybody
//! is answered on its strength, so that only the last group of the last file can be torn: that is
//! cut off. Anything else that is not as it was written is an error, and so is a version that this
//! code does not know.
//!
//! `codec` (records as bytes) → `frame` (headers and groups) → `recover` (what a directory tells) and
//! `writer` (how it grows) → [`Log`] (the thread that commits). `files` is the disk, or a test's.

mod codec;
mod commit;
mod files;
mod frame;
mod recover;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use self::{
    commit::Log,
    files::{Directory, Files},
    recover::{Recovered, recover},
    writer::{Checkpoint, Writer},
};

#[cfg(test)]
pub(crate) use self::files::Out;

use std::io;

/// Why a state directory cannot be used, or not any more.
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// Something in the middle of what was durable is not as it was written.
    #[error(
        "{file} is damaged at byte {at}: {what}; restore the directory from a copy, or give the master a new one and adopt the storages"
    )]
    Damaged { file: String, at: u64, what: String },
    /// Another master uses the directory.
    #[error("{directory} is in use by {holder}")]
    InUse { directory: String, holder: String },
    /// The disk refused.
    #[error("cannot {action} {file}")]
    Io {
        action: &'static str,
        file: String,
        source: io::Error,
    },
    /// A file that there must be is not there.
    #[error(
        "{file} is missing: without it the later files say nothing; restore the directory from a copy"
    )]
    Missing { file: String },
    /// A file was written by a later version of the master.
    #[error(
        "{file} has version {version} of the format, and this master knows version {known} only"
    )]
    Version {
        file: String,
        version: u32,
        known: u32,
    },
}

impl LogError {
    fn io(action: &'static str, file: &str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io {
            action,
            file,
            source,
        }
    }
}
