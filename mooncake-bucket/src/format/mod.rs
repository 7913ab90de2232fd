//! What lies on the disk, byte by byte. `FORMAT.md` beside `Cargo.toml` is the page with the tables.
//!
//! All numbers are little-endian. Nothing here does I/O; nothing here panics, whatever bytes it is given.

pub(crate) mod control;
pub(crate) mod file_name;
pub(crate) mod footer;
pub(crate) mod group;
pub(crate) mod head;
pub(crate) mod record;
pub(crate) mod tombstone;

/// The version of all that is written. Others are refused, never guessed at.
pub const FORMAT_VERSION: u8 = 1;

/// What is written begins on a multiple of this, so that no block which was acknowledged is written again.
pub(crate) const BLOCK: u64 = 4096;

/// Records begin on a multiple of this.
pub(crate) const UNIT: u64 = 8;

/// A place in a bucket is a `u32` of units, so nothing in it begins here or behind.
pub(crate) const END_OF_UNITS: u64 = UNIT << 32;

/// Values are checked in blocks of so many bytes: a range is read and verified without the rest.
pub(crate) const CHECK_BYTES: u32 = 64 << 10;

pub(crate) const fn up(at: u64, to: u64) -> u64 {
    at.div_ceil(to) * to
}

/// Which part of what was read is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// It does not begin with the mark of what should be there.
    #[error("another kind of data is there")]
    Magic,
    /// It was written by another version of the format.
    #[error("format version {0} is not known")]
    Version(u8),
    /// It ends before it should.
    #[error("it is cut short")]
    Short,
    /// A header or key is not what was written.
    #[error("the checksum of its header is wrong")]
    Header,
    /// A value is not what was written.
    #[error("the checksum of its value is wrong")]
    Value,
    /// It is whole, but belongs elsewhere.
    #[error("it belongs elsewhere")]
    Place,
    /// It is another key's.
    #[error("it is another key's")]
    Key,
    /// It is another life of the object.
    #[error("it is another incarnation")]
    Incarnation,
    /// The disk fails to read it.
    #[error("the disk cannot read it")]
    Unreadable,
    /// Its length is not what is known of it.
    #[error("its length is wrong")]
    Length,
}

/// Reads numbers out of bytes whose length was looked at before.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        if let Some(there) = self.0.get(at..at + N) {
            bytes.copy_from_slice(there);
        }
        bytes
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    pub(crate) fn id(&self, at: usize) -> [u8; 16] {
        self.array(at)
    }
}

/// The first `length` bytes, if they begin with `magic` and are of this version. That is all to go by where the length
/// is not known yet; [`checked`] has to follow.
pub(crate) fn marked<const N: usize>(
    bytes: &[u8],
    magic: [u8; N],
    length: usize,
) -> Result<&[u8], Flaw> {
    let bytes = bytes.get(..length).ok_or(Flaw::Short)?;
    match bytes.get(N) {
        _ if !bytes.starts_with(&magic) => Err(Flaw::Magic),
        Some(&FORMAT_VERSION) => Ok(bytes),
        Some(version) => Err(Flaw::Version(*version)),
        None => Err(Flaw::Short),
    }
}

/// The same, if all of them are those that were written: at `sum_at` is a CRC-32C of what is before and behind it.
pub(crate) fn checked<const N: usize>(
    bytes: &[u8],
    magic: [u8; N],
    length: usize,
    sum_at: usize,
) -> Result<&[u8], Flaw> {
    match marked(bytes, magic, length) {
        Ok(_) | Err(Flaw::Version(_))
            if checksum(&bytes[..length], sum_at) != Fields(bytes).u32(sum_at) =>
        {
            // What is damaged may say any version.
            Err(Flaw::Header)
        }
        marked => marked,
    }
}

/// Of all bytes but the four at `sum_at`, where it goes.
pub(crate) fn checksum(bytes: &[u8], sum_at: usize) -> u32 {
    let first = crc32c::crc32c(&bytes[..sum_at]);
    crc32c::crc32c_append(first, &bytes[sum_at + 4..])
}

/// Puts a number where it belongs.
pub(crate) fn set<const N: usize>(into: &mut [u8], at: usize, bytes: [u8; N]) {
    into[at..at + N].copy_from_slice(&bytes);
}
