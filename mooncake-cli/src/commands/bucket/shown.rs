//! What the commands about buckets share: how a directory is opened, and how its records are shown.

use std::io;
use std::path::Path;

use mooncake_bucket::{Inspection, OpenError, SeenRecord};
use serde::Serialize;

use crate::output::{Failure, key};

/// Looks at a directory, whoever has it open.
pub(super) fn look(directory: &Path) -> Result<Inspection, Failure> {
    Inspection::open(directory).map_err(|error| unusable(directory, error))
}

/// Why a directory is not to be had.
pub(super) fn unusable(directory: &Path, error: OpenError) -> Failure {
    let directory = directory.display();
    match error {
        OpenError::Locked { holder } => Failure::new(format!("{directory} is in use by {holder}"))
            .remedy("stop it first; or leave it to it, since it compacts by itself"),
        OpenError::NoStorage => Failure::new(format!("there is no storage in {directory}"))
            .remedy("the directory that was given to the node"),
        OpenError::Io { what, source } if source.kind() == io::ErrorKind::NotFound => {
            Failure::new(format!("{directory} cannot be read"))
                .cause(format!("{what} failed"))
                .because(source)
                .remedy("the directory that was given to the node")
        }
        OpenError::Damaged { ref file, .. } if file.ends_with(".tombstones") => {
            Failure::new(format!("the storage in {directory} cannot be used"))
                .because(error)
                .remedy(
                    "mooncake bucket verify, which tells what else is damaged; as a last resort \
                     mooncake bucket compact --accept-damaged-logs",
                )
        }
        error @ OpenError::Damaged { .. } => {
            Failure::new(format!("the storage in {directory} cannot be used"))
                .because(error)
                .remedy("mooncake bucket verify, which tells what is damaged")
        }
        error => Failure::new(format!("the storage in {directory} cannot be used")).because(error),
    }
}

/// A bucket by the digits in its file's name.
pub(super) fn bucket_id(text: &str) -> Result<u32, String> {
    let digits = text.split('.').next().unwrap_or_default();
    let id = u32::from_str_radix(digits, 16).ok().filter(|id| *id > 0);
    id.ok_or_else(|| format!("{text:?} is no bucket; they are called like 0000001f"))
}

/// How a bucket's number is written in its file's name.
pub(super) fn digits(id: u32) -> String {
    format!("{id:08x}")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn hash_hex(hash: [u64; 2]) -> String {
    format!("{:016x}{:016x}", hash[0], hash[1])
}

/// Whose a record is, as far as its header can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Whose {
    /// Its tenant, with escapes for what cannot be printed; `None`: nobody knows.
    pub tenant: Option<String>,
    /// Its key, likewise.
    pub key: Option<String>,
    /// The exact bytes of its key, in hexadecimal digits.
    pub key_hex: Option<String>,
    /// The life of the master in which it was put.
    pub epoch: u64,
    /// Which put of that life it was.
    pub sequence: u64,
}

impl From<&SeenRecord> for Whose {
    fn from(record: &SeenRecord) -> Self {
        let name = record.name.as_ref().ok();
        Self {
            tenant: name.map(|(tenant, _)| key(tenant)),
            key: name.map(|(_, name)| key(name)),
            key_hex: name.map(|(_, name)| hex(name)),
            epoch: record.incarnation.epoch,
            sequence: record.incarnation.seq,
        }
    }
}

impl Whose {
    /// The key for a person.
    pub(super) fn text(&self) -> String {
        self.key.clone().unwrap_or_else(|| "?".to_owned())
    }

    /// Which life, for a person.
    pub(super) fn life(&self) -> String {
        format!("{}.{}", self.epoch, self.sequence)
    }

    /// The tenant for a person.
    pub(super) fn owner(&self) -> String {
        self.tenant.clone().unwrap_or_else(|| "?".to_owned())
    }
}
