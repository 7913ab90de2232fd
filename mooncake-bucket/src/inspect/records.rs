//! Reads records of an inspected directory, whatever has become of them.

use std::{io, ops::ControlFlow};

use super::{Inspection, Looked};
use crate::{
    disk::{DiskFile, read_exact},
    error::GetError,
    format::{Flaw, file_name::FileName, footer::FooterEntry, record::Record},
    get::check_place,
    index::Entry,
    name::Incarnation,
};

/// What a record is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordState {
    /// Readers are served it.
    Live,
    /// It was removed or replaced.
    Dead,
}

/// A record in its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenRecord {
    /// Which bucket.
    pub bucket: u32,
    /// Where it begins in the file.
    pub at: u64,
    /// Where its value begins.
    pub value_at: u64,
    /// How long its value is.
    pub value_bytes: u32,
    /// What it takes, with header and padding.
    pub span_bytes: u64,
    /// Which life of its key it is.
    pub incarnation: Incarnation,
    /// The hash of tenant and key, high half first.
    pub hash: [u64; 2],
    /// What it is worth.
    pub state: RecordState,
    /// Its tenant and its key; or what is wrong with its header.
    pub name: Result<(Vec<u8>, Vec<u8>), Flaw>,
}

/// Told of each record of a bucket, with what it takes to read it.
type See<'a> = &'a mut dyn FnMut(
    &dyn DiskFile,
    &Looked,
    &FooterEntry,
    SeenRecord,
) -> io::Result<ControlFlow<()>>;

impl Inspection {
    /// Shows the records of a bucket in the order in which they lie, until `show` has seen enough.
    pub fn records(
        &self,
        bucket: u32,
        show: &mut dyn FnMut(&SeenRecord) -> ControlFlow<()>,
    ) -> Result<(), GetError> {
        self.each(bucket, &mut |file, looked, entry, record| {
            let header = entry.layout.header_bytes() as usize;
            let header = read(file, entry.layout.at, header)?;
            let name = header.and_then(|header| {
                let found = check(&header, looked, entry)?;
                Ok((found.name.tenant.to_vec(), found.name.key.to_vec()))
            });
            Ok(show(&SeenRecord { name, ..record }))
        })
    }

    /// Reads what is alive in a bucket as a reader would, and tells of each record whether it is whole.
    pub fn verify(
        &self,
        bucket: u32,
        tell: &mut dyn FnMut(&SeenRecord, Result<(), Flaw>),
    ) -> Result<(), GetError> {
        self.each(bucket, &mut |file, looked, entry, mut record| {
            if record.state != RecordState::Live {
                return Ok(ControlFlow::Continue(()));
            }
            let layout = &entry.layout;
            let header_bytes = (layout.value_at() - layout.at) as usize;
            let all = read(file, layout.at, header_bytes + layout.value_bytes as usize)?;
            let whole = all.and_then(|all| {
                let (header, value) = all.split_at(header_bytes);
                let found = check(header, looked, entry)?;
                record.name = Ok((found.name.tenant.to_vec(), found.name.key.to_vec()));
                found.verify(0, value)
            });
            tell(&record, whole);
            Ok(ControlFlow::Continue(()))
        })
    }

    fn each(&self, id: u32, see: See<'_>) -> Result<(), GetError> {
        let looked = self.buckets.get(&id).ok_or(GetError::NotFound)?;
        let mut each = || -> io::Result<()> {
            let file = self.file(looked)?;
            let mut entries = match &looked.walked {
                Some(entries) => entries.clone(),
                None => {
                    let bucket = &looked.bucket;
                    crate::bucket::read_footer(&*file, bucket.stamp, id, file.len()?)?
                }
            };
            entries.sort_unstable_by_key(|entry| entry.layout.at);
            for entry in &entries {
                let here = Entry::new(id, entry);
                let state = match self.index.is_live(&here) {
                    true => RecordState::Live,
                    false => RecordState::Dead,
                };
                let record = SeenRecord {
                    bucket: id,
                    at: entry.layout.at,
                    value_at: entry.layout.value_at(),
                    value_bytes: entry.layout.value_bytes,
                    span_bytes: entry.layout.span(),
                    incarnation: entry.incarnation,
                    hash: [entry.hash.high, entry.hash.low],
                    state,
                    name: Err(Flaw::Header),
                };
                if see(&*file, looked, entry, record)?.is_break() {
                    break;
                }
            }
            Ok(())
        };
        each().map_err(|source| GetError::Io { bucket: id, source })
    }

    /// Its file, under whatever name it has by now.
    fn file(&self, looked: &Looked) -> io::Result<std::sync::Arc<dyn DiskFile>> {
        let opened = self.disk.open(&looked.name.text());
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.disk.open(&FileName::Sealed(looked.bucket.id).text())
            }
            opened => opened,
        }
    }
}

/// What ends before it should is a flaw of the record; what the disk refuses is an error.
fn read(file: &dyn DiskFile, at: u64, bytes: usize) -> io::Result<Result<Vec<u8>, Flaw>> {
    match read_exact(file, at, bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Err(Flaw::Short)),
        read => read.map(Ok),
    }
}

fn check<'a>(header: &'a [u8], looked: &Looked, entry: &FooterEntry) -> Result<Record<'a>, Flaw> {
    let found = check_place(header, looked.bucket.stamp, &entry.layout)?;
    match found.incarnation == entry.incarnation {
        true => Ok(found),
        false => Err(Flaw::Incarnation),
    }
}
