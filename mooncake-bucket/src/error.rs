//! What can go wrong with each thing that callers do, and whether trying again helps.

use std::io;

use crate::{format::Flaw, name::Incarnation};

/// What a retry needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// The same call may succeed after a while.
    Later,
    /// Another storage may do it; this one will not before somebody looks at it.
    Elsewhere,
    /// It will not succeed anywhere.
    Never,
}

fn retry_of(error: &io::Error) -> Retry {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::TimedOut | io::ErrorKind::OutOfMemory => {
            Retry::Later
        }
        _ if is_full(error) => Retry::Later,
        _ => Retry::Elsewhere,
    }
}

/// Whether there is no room, on the disk or in what its owner may have.
pub(crate) fn is_full(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(
        kind,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// What is wrong with what was read.
pub(crate) fn flaw_of(error: &io::Error) -> Option<&Flaw> {
    error.get_ref()?.downcast_ref()
}

/// Whether the disk has lost what is to be read: neither another program nor the system's state is to blame.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    let codes = [libc::EIO, libc::ENODATA, libc::EBADMSG, libc::EUCLEAN];
    error
        .raw_os_error()
        .is_some_and(|code| codes.contains(&code))
}

/// An error of the disk that several callers are told of.
pub(crate) fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Why a directory could not be opened as a storage.
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting makes no sense.
    #[error("{setting}: {reason}")]
    Config {
        setting: &'static str,
        reason: String,
    },
    /// Another process, or another part of this one, has it open; `holder` is what it wrote about itself.
    #[error("the directory is in use by {holder}")]
    Locked { holder: String },
    /// There are buckets and nothing that says whose; see [`OpenOptions::adopt`](crate::OpenOptions::adopt).
    #[error("the directory has buckets but no identity; adopt it to keep them")]
    NoIdentity,
    /// There is nothing of a storage, and nobody asked to make one.
    #[error("there is no storage in the directory")]
    NoStorage,
    /// A file without which nothing can be promised is damaged.
    #[error("{file} is damaged: {flaw}; nothing is served, since what was removed might come back")]
    Damaged { file: String, flaw: Flaw },
    /// The disk failed at `what`.
    #[error("{what} failed")]
    Io { what: String, source: io::Error },
}

impl OpenError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// What a retry needs.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Locked { .. } => Retry::Later,
            Self::Io { source, .. } => retry_of(source),
            Self::Config { .. } | Self::NoIdentity | Self::NoStorage | Self::Damaged { .. } => {
                Retry::Never
            }
        }
    }
}

/// Why one record of a batch was not put.
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// A put of the same incarnation has not ended yet.
    #[error("the same incarnation is being written")]
    InFlight,
    /// The storage has its `capacity_bytes`, and nothing may be evicted for this.
    #[error("{needed_bytes} bytes do not fit: {used_bytes} of {capacity_bytes} are in use")]
    Full {
        needed_bytes: u64,
        used_bytes: u64,
        capacity_bytes: u64,
    },
    /// The disk failed; nothing of it will be served.
    #[error("writing failed")]
    Io(#[source] io::Error),
    /// The incarnation was removed.
    #[error("the incarnation was removed")]
    Removed,
    /// A later incarnation is here.
    #[error("a later incarnation, {current}, is here")]
    Stale { current: Incarnation },
    /// The name or the value is longer than a record can be.
    #[error("{what} of {bytes} bytes is too long: {most} are possible")]
    TooLong {
        what: &'static str,
        bytes: usize,
        most: usize,
    },
}

impl PutError {
    /// What a retry needs.
    pub fn retry(&self) -> Retry {
        match self {
            Self::InFlight | Self::Full { .. } => Retry::Later,
            Self::Io(error) => retry_of(error),
            Self::Removed | Self::Stale { .. } | Self::TooLong { .. } => Retry::Never,
        }
    }
}

/// Why a record was not read. Nothing of it was served; a destination may hold anything.
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// What is on the disk is not what was put.
    #[error("the record in bucket {bucket} is damaged: {flaw}")]
    Damaged { bucket: u32, flaw: Flaw },
    /// The disk failed.
    #[error("reading bucket {bucket} failed")]
    Io { bucket: u32, source: io::Error },
    /// There is no such key.
    #[error("there is no such record")]
    NotFound,
    /// Another incarnation is here.
    #[error("another incarnation, {current}, is here")]
    OtherIncarnation { current: Incarnation },
    /// The range is not within the value.
    #[error("the value has {value_bytes} bytes")]
    Range { value_bytes: u32 },
    /// The destination has another length than the value.
    #[error("the value has {value_bytes} bytes, the destination {room_bytes}")]
    Room { value_bytes: u32, room_bytes: usize },
}

impl GetError {
    /// What a retry needs.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Io { source, .. } => retry_of(source),
            Self::Damaged { .. } | Self::NotFound | Self::OtherIncarnation { .. } => {
                Retry::Elsewhere
            }
            Self::Range { .. } | Self::Room { .. } => Retry::Never,
        }
    }
}

/// Why a tombstone is not known to be durable. The record is not served in the meantime.
#[derive(Debug, thiserror::Error)]
#[error("the tombstone could not be made durable")]
pub struct RemoveError(#[source] pub io::Error);

impl RemoveError {
    /// What a retry needs.
    pub fn retry(&self) -> Retry {
        Retry::Later
    }
}

/// Why space was not reclaimed. What was live stays so.
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GcError {
    /// Somebody else is at it, or it is gone, or still written to.
    #[error("bucket {bucket} is not to be had")]
    Unavailable { bucket: u32 },
    /// The disk failed at `what`.
    #[error("{what} failed")]
    Io {
        what: &'static str,
        source: io::Error,
    },
    /// There is no room for the copies, not even in what puts leave to collections.
    #[error("copies of {needed_bytes} bytes do not fit: there is room for {room_bytes}")]
    Full { needed_bytes: u64, room_bytes: u64 },
    /// The worker was told to stop.
    #[error("stopped")]
    Stopped,
}

impl GcError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// What a retry needs.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Io { source, .. } => retry_of(source),
            Self::Unavailable { .. } | Self::Full { .. } | Self::Stopped => Retry::Later,
        }
    }
}
