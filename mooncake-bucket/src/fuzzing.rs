//! A way in for the fuzz target of this workspace, which may change at any time.

use std::sync::Arc;

use crate::{
    disk::{Disk, SimDisk},
    format::{
        BLOCK, Flaw,
        control::Control,
        footer::{self, Trailer},
        group::GroupHead,
        head::{self, Head},
        record::Record,
        tombstone,
    },
    hash::Hasher,
    recover::walk::walk,
};

/// What bytes can be read as.
pub const PARTS: u8 = 8;

const STAMP: u64 = 5;

/// Reads `bytes` as a part of the format, `mended` with right checksums where they have some. Says how many things came
/// out of it, or what is wrong.
///
/// # Panics
///
/// What was read is not what is written of it, or is none that the format has.
pub fn read(part: u8, mended: bool, bytes: &[u8]) -> Result<usize, Flaw> {
    let mut bytes = bytes.to_vec();
    match part % PARTS {
        0 | 1 => {
            let magic = if part.is_multiple_of(PARTS) {
                head::BUCKET
            } else {
                head::LOG
            };
            bytes.resize(BLOCK as usize, 0);
            if mended {
                mend(&mut bytes, BLOCK as usize - 4);
            }
            let found = Head::decode(&bytes, magic)?;
            let again = Head::decode(&found.encode(magic), magic);
            assert_eq!(again, Ok(found));
            Ok(1)
        }
        2 => {
            bytes.truncate(64);
            if mended {
                mend(&mut bytes, 60);
            }
            let found = GroupHead::decode(&bytes, STAMP, BLOCK)?;
            assert!(found.bytes > 0 && found.bytes.is_multiple_of(BLOCK));
            assert_eq!(GroupHead::decode(&found.encode(), STAMP, BLOCK), Ok(found));
            Ok(1)
        }
        3 => {
            if let (true, Ok(length)) = (mended, Record::header_bytes(&bytes, 64)) {
                bytes.truncate(length as usize);
                mend(&mut bytes, 44);
            }
            let found = Record::decode(&bytes, 64)?;
            assert!(found.layout.header_bytes() <= bytes.len() as u64);
            assert!(found.layout.end() >= found.layout.value_at());
            assert_eq!(found.name.bytes(), usize::from(found.layout.name_bytes));
            // No value of any length is taken for one of more blocks than it has sums of.
            let _whole_or_not = found.verify(0, &bytes);
            Ok(found.layout.blocks() as usize)
        }
        4 => {
            let split = bytes.len().saturating_sub(footer::TRAILER as usize);
            let mut trailer = bytes.split_off(split);
            if mended && trailer.len() == footer::TRAILER as usize {
                let sum = crc32c::crc32c(&bytes);
                trailer[36..40].copy_from_slice(&sum.to_le_bytes());
                mend(&mut trailer, 60);
            }
            let mut file_bytes = [0; 8];
            if let Some(at) = trailer.get(16..24) {
                file_bytes.copy_from_slice(at);
            }
            let records = (bytes.len() / footer::ENTRY) as u64;
            let at = u64::from_le_bytes(file_bytes) & (u64::MAX >> 16);
            let found = Trailer::decode(&trailer, STAMP, 7, at + footer::bytes_of(records))?;
            let entries = found.entries(&bytes)?;
            let again = footer::encode(&entries, STAMP, 7, found.index_at);
            assert_eq!(again.len() as u64, footer::bytes_of(records));
            for entry in &entries {
                assert!(entry.layout.end() <= found.index_at && entry.layout.unit().is_some());
            }
            Ok(entries.len())
        }
        5 => {
            if mended && bytes.len() > 28 {
                let mut count = [0; 4];
                count.copy_from_slice(&bytes[24..28]);
                let length = 32 + (u32::from_le_bytes(count) as usize).saturating_mul(40);
                if length <= bytes.len() {
                    let sum = crate::format::checksum(&bytes[..length], 28);
                    bytes[28..32].copy_from_slice(&sum.to_le_bytes());
                }
            }
            let (number, stones, length) = tombstone::decode(&bytes, STAMP)?;
            let frame = tombstone::encode(&stones, STAMP, number);
            assert_eq!(frame.len() as u64, length);
            let again = tombstone::decode(&frame, STAMP);
            assert_eq!(again, Ok((number, stones.clone(), length)));
            Ok(stones.len())
        }
        6 => {
            if mended {
                mend(&mut bytes, 28);
            }
            let found = Control::decode(&bytes)?;
            assert_eq!(Control::decode(&found.encode()), Ok(found));
            Ok(1)
        }
        _ => {
            // A whole file without a footer: what is found lies within it, in order, and nowhere twice.
            let disk = SimDisk::new();
            let end = bytes.len() as u64;
            disk.plant("file", bytes);
            let file = Arc::clone(&disk.open("file").expect("it was just planted"));
            let found = walk(&*file, STAMP, &Hasher::new([1; 16])).expect("memory can be read");
            let mut at = BLOCK;
            for entry in &found.entries {
                assert!(entry.layout.at >= at && entry.layout.end() <= end);
                at = entry.layout.end();
            }
            assert!(found.tail >= BLOCK && found.tail <= end.max(BLOCK).next_multiple_of(BLOCK));
            Ok(found.entries.len() + found.broken as usize)
        }
    }
}

fn mend(bytes: &mut [u8], at: usize) {
    if bytes.len() >= at + 4 {
        let sum = crate::format::checksum(bytes, at);
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::group::{Encoded, NewRecord, Plan},
        name::{Incarnation, Name},
    };

    /// A file as a walk reads it: a group of two records, and one of one.
    fn example() -> Vec<u8> {
        let value = [9; 100];
        let record = |key| NewRecord {
            name: Name::new("t", key),
            incarnation: Incarnation::new(1, 2),
            value: &value,
        };
        let mut bytes = vec![0; BLOCK as usize];
        for records in [&[record("a"), record("b")][..], &[record("c")]] {
            let plan = Plan::new(records.iter().copied(), 4096);
            let at = bytes.len() as u64;
            bytes.extend(Encoded::new(records, &plan, STAMP, at).pieces().concat());
        }
        bytes
    }

    #[test]
    fn the_example_is_walked() {
        assert_eq!(read(7, false, &example()), Ok(3));
    }
}
