//! What stands in files: a header, then groups of records.
//!
//! | Header, 36 bytes | | Group | |
//! |---|---|---|---|
//! | `MCMSTATE` | 8 bytes | `MCMG` | 4 bytes |
//! | version | u32 | length of its records | u32 |
//! | kind: 1 log, 2 checkpoint | u32 | number in the file, from 0 | u64 |
//! | number of the file | u64 | CRC32C of file number, the two above, and the records | u32 |
//! | epoch of the master that wrote it | u64 | records | |
//! | CRC32C of all before | u32 | | |
//!
//! The last group of a checkpoint is empty, and tells that it is whole.

/// The version that is written, and the only one that is read.
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER: usize = 36;
const MAGIC: &[u8; 8] = b"MCMSTATE";
const GROUP: usize = 20;
const GROUP_MAGIC: &[u8; 4] = b"MCMG";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Log,
    Checkpoint,
}

impl Kind {
    fn code(self) -> u32 {
        match self {
            Self::Log => 1,
            Self::Checkpoint => 2,
        }
    }
}

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) number: u64,
    pub(super) epoch: u64,
}

/// Why a file does not begin as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    /// It is of another version.
    Version(u32),
    /// It is cut, or not what it should be.
    Unreadable,
}

impl Header {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.kind.code().to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.epoch.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    /// The header of a file of this kind and number.
    pub(super) fn decode(bytes: &[u8], kind: Kind, number: u64) -> Result<Self, BadHeader> {
        if bytes.get(..8) != Some(MAGIC) {
            return Err(BadHeader::Unreadable);
        }
        match u32_at(bytes, 8) {
            // Versions to come may have other headers.
            Some(version) if version != VERSION => return Err(BadHeader::Version(version)),
            _ => {}
        }
        let epoch = u64_at(bytes, 24).ok_or(BadHeader::Unreadable)?;
        let header = Self {
            kind,
            number,
            epoch,
        };
        match bytes.get(..HEADER) {
            Some(found) if found == header.encode() => Ok(header),
            _ => Err(BadHeader::Unreadable),
        }
    }
}

/// A group around these records.
pub(super) fn group(file: u64, number: u64, records: &[u8]) -> Vec<u8> {
    let len = u32::try_from(records.len()).expect("a group is shorter than 4 GiB");
    let mut bytes = Vec::with_capacity(GROUP + records.len());
    bytes.extend(GROUP_MAGIC);
    bytes.extend(len.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(checksum(file, number, records).to_le_bytes());
    bytes.extend(records);
    bytes
}

fn checksum(file: u64, number: u64, records: &[u8]) -> u32 {
    let mut sum = crc32c::crc32c(&file.to_le_bytes());
    sum = crc32c::crc32c_append(sum, &number.to_le_bytes());
    let len = records.len() as u64;
    sum = crc32c::crc32c_append(sum, &len.to_le_bytes());
    crc32c::crc32c_append(sum, records)
}

/// The number and records of the group at the front of `bytes`, if there is one.
pub(super) fn read_group(file: u64, bytes: &[u8]) -> Option<(u64, &[u8])> {
    if bytes.get(..4)? != GROUP_MAGIC {
        return None;
    }
    let len = u32_at(bytes, 4)? as usize;
    let number = u64_at(bytes, 8)?;
    let sum = u32_at(bytes, 16)?;
    let records = bytes.get(GROUP..GROUP.checked_add(len)?)?;
    (checksum(file, number, records) == sum).then_some((number, records))
}

/// What a group of so many bytes of records takes.
pub(super) fn group_len(records: usize) -> usize {
    GROUP + records
}

/// Behind the group of this number, which cannot be read, is the next one. Its own length is not gone
/// by: that may be what is damaged. Somebody may have named a key like a group; who does not know the
/// number of the one that will be cut is passed over.
pub(super) fn is_followed(file: u64, number: u64, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some(at) = rest.windows(4).position(|four| four == GROUP_MAGIC) {
        rest = &rest[at..];
        if read_group(file, rest).is_some_and(|(found, _)| found == number + 1) {
            return true;
        }
        rest = &rest[1..];
    }
    false
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    four.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..at + 8)?;
    eight.try_into().ok().map(u64::from_le_bytes)
}
