//! The first block of a bucket file.

use super::{BLOCK, FORMAT_VERSION, Fields, Flaw, set};

const MAGIC: [u8; 8] = *b"MCBUCKET";
const CHECKSUM: usize = BLOCK as usize - 4;

/// What a bucket file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketHead {
    pub(crate) storage: [u8; 16],
    pub(crate) id: u32,
    /// A random number that everything in this file carries: what another file left behind is none of it.
    pub(crate) stamp: u64,
    /// Seconds since 1970, for people.
    pub(crate) created: u64,
}

impl BucketHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK as usize];
        set(&mut bytes, 0, MAGIC);
        bytes[8] = FORMAT_VERSION;
        set(&mut bytes, 16, self.storage);
        set(&mut bytes, 32, u64::from(self.id).to_le_bytes());
        set(&mut bytes, 40, self.stamp.to_le_bytes());
        set(&mut bytes, 48, self.created.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..CHECKSUM]);
        set(&mut bytes, CHECKSUM, sum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Flaw> {
        let bytes = bytes.get(..BLOCK as usize).ok_or(Flaw::Short)?;
        let fields = Fields(bytes);
        if bytes[..8] != MAGIC {
            return Err(Flaw::Magic);
        }
        if bytes[8] != FORMAT_VERSION {
            return Err(Flaw::Version(bytes[8]));
        }
        if crc32c::crc32c(&bytes[..CHECKSUM]) != fields.u32(CHECKSUM) {
            return Err(Flaw::Header);
        }
        Ok(Self {
            storage: fields.id(16),
            id: u32::try_from(fields.u64(32)).map_err(|_| Flaw::Header)?,
            stamp: fields.u64(40),
            created: fields.u64(48),
        })
    }
}
