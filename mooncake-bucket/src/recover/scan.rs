//! Reads one bucket when a storage is opened.

use std::io;

use crate::{
    bucket::{Bucket, Stage, read_footer},
    disk::{Disk, read_exact},
    error::{flaw_of, is_unreadable},
    format::{
        BLOCK, Flaw,
        file_name::FileName,
        footer::FooterEntry,
        head::{self, Head},
    },
    hash::Hasher,
    recover::walk::walk,
};

/// A bucket as it was found.
pub(crate) enum Scanned {
    /// With all that it says is in it.
    Whole {
        bucket: Bucket,
        file_bytes: u64,
        entries: Vec<FooterEntry>,
        /// Where a footer has to go that is not there.
        unsealed: Option<u64>,
        /// Records that are not whole.
        broken: u64,
        /// Of those, how many lie before whole ones that came later.
        passed: u64,
        /// It was sealed once, and its footer is damaged.
        rebuilt: bool,
    },
    /// It is no bucket of this storage, as far as one can tell.
    Damaged(Flaw),
}

pub(crate) fn scan(
    disk: &dyn Disk,
    name: FileName,
    id: u32,
    identity: [u8; 16],
    hasher: &Hasher,
) -> io::Result<Scanned> {
    let file = disk.open(&name.text())?;
    let bytes = file.len()?;
    let head = match read_exact(&*file, 0, BLOCK as usize) {
        Ok(block) => Head::decode(&block, head::BUCKET),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Flaw::Short),
        Err(error) if is_unreadable(&error) => Err(Flaw::Unreadable),
        Err(error) => return Err(error),
    };
    let head = match head {
        Ok(head) if head.id == id && head.storage == identity => head,
        Ok(_) => return Ok(Scanned::Damaged(Flaw::Place)),
        Err(flaw) => return Ok(Scanned::Damaged(flaw)),
    };
    let was_sealed = matches!(name, FileName::Sealed(_));
    // An open one may end in a footer as well, which may have reached the disk before what it is about.
    if was_sealed {
        match read_footer(&*file, head.stamp, id, bytes) {
            Ok(entries) => {
                let bucket = Bucket::new(id, head.stamp, Stage::Sealed, None);
                return Ok(Scanned::Whole {
                    bucket,
                    file_bytes: bytes,
                    entries,
                    unsealed: None,
                    broken: 0,
                    passed: 0,
                    rebuilt: false,
                });
            }
            Err(error) => match (error.kind(), flaw_of(&error)) {
                // It is whole, and for a program that knows it.
                (_, Some(Flaw::Version(version))) => {
                    return Ok(Scanned::Damaged(Flaw::Version(*version)));
                }
                (io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof, _) => {}
                // The records themselves may fare better.
                _ if is_unreadable(&error) => {}
                _ => return Err(error),
            },
        }
    }
    let walked = match walk(&*file, head.stamp, hasher) {
        // Nobody knows whether it has none.
        Ok(walked) if walked.unreadable && walked.entries.is_empty() => {
            return Ok(Scanned::Damaged(Flaw::Unreadable));
        }
        Ok(walked) => walked,
        Err(error) => match flaw_of(&error) {
            Some(flaw) => return Ok(Scanned::Damaged(*flaw)),
            None => return Err(error),
        },
    };
    let bucket = Bucket::new(id, head.stamp, Stage::Closed, None);
    Ok(Scanned::Whole {
        bucket,
        file_bytes: bytes,
        entries: walked.entries,
        unsealed: Some(walked.tail),
        broken: walked.broken,
        passed: walked.passed,
        rebuilt: was_sealed,
    })
}
