//! The first block of a bucket and of a log of tombstones.

use super::{BLOCK, FORMAT_VERSION, Fields, Flaw, checked, set};

/// What the first block of a bucket begins with.
pub(crate) const BUCKET: [u8; 8] = *b"MCBUCKET";
/// What the first block of a log begins with.
pub(crate) const LOG: [u8; 8] = *b"MCTOMBST";
const CHECKSUM: usize = BLOCK as usize - 4;

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) storage: [u8; 16],
    pub(crate) id: u32,
    /// A random number that everything in this file carries: what another file left behind is none of it.
    pub(crate) stamp: u64,
    /// Of a bucket, when it was made, in seconds since 1970, for people. Of a log, what the file had when it got its name,
    /// this block included: all of that was whole.
    pub(crate) born: u64,
}

impl Head {
    pub(crate) fn encode(&self, magic: [u8; 8]) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK as usize];
        set(&mut bytes, 0, magic);
        bytes[8] = FORMAT_VERSION;
        set(&mut bytes, 16, self.storage);
        set(&mut bytes, 32, u64::from(self.id).to_le_bytes());
        set(&mut bytes, 40, self.stamp.to_le_bytes());
        set(&mut bytes, 48, self.born.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..CHECKSUM]);
        set(&mut bytes, CHECKSUM, sum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], magic: [u8; 8]) -> Result<Self, Flaw> {
        let fields = Fields(checked(bytes, magic, BLOCK as usize, CHECKSUM)?);
        Ok(Self {
            storage: fields.id(16),
            id: u32::try_from(fields.u64(32)).map_err(|_| Flaw::Header)?,
            stamp: fields.u64(40),
            born: fields.u64(48),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_for_what_it_is() {
        let head = Head {
            storage: [3; 16],
            id: 8,
            stamp: 1,
            born: 8192,
        };
        let bytes = head.encode(LOG);
        assert_eq!(Head::decode(&bytes, LOG), Ok(head));
        assert_eq!(Head::decode(&bytes, BUCKET), Err(Flaw::Magic));
        assert_eq!(Head::decode(&bytes[1..], LOG), Err(Flaw::Short));
        for bit in (0..64 * 8).chain(CHECKSUM * 8..BLOCK as usize * 8) {
            let mut bent = bytes.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            assert!(Head::decode(&bent, LOG).is_err(), "bit {bit}");
        }
    }
}
