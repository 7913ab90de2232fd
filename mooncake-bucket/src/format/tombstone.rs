//! The log of removals: a head block, then frames, each from a fresh block on.

use super::{BLOCK, FORMAT_VERSION, Fields, Flaw, UNIT, checked, checksum, marked, set, up};
use crate::{hash::KeyHash, name::Incarnation};

const FRAME: [u8; 4] = *b"MCTF";
/// Bytes before the first entry of a frame.
pub(crate) const FRAME_HEAD: usize = 32;
const FRAME_CHECKSUM: usize = 28;
/// Bytes of one entry.
pub(crate) const ENTRY: usize = 40;
/// The most entries of one frame.
pub(crate) const MOST: usize = 1 << 20;

/// Every copy of the record, in whichever bucket it is found: no bucket has this number.
pub(crate) const ANY_BUCKET: u32 = 0;
/// Every copy of the record in the bucket: no record begins there.
pub(crate) const ANY_UNIT: u32 = 0;

/// A copy of a record is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tombstone {
    /// Where the copy is, or [`ANY_BUCKET`].
    pub(crate) bucket: u32,
    /// Where in the bucket it begins, in units, or [`ANY_UNIT`].
    pub(crate) unit: u32,
    pub(crate) hash: KeyHash,
    pub(crate) incarnation: Incarnation,
}

impl Tombstone {
    /// Of a copy's own tombstone: it, that of every copy in its bucket, and that of every copy anywhere.
    pub(crate) fn and_wider(self) -> [Self; 3] {
        let in_bucket = Self {
            unit: ANY_UNIT,
            ..self
        };
        let anywhere = Self {
            bucket: ANY_BUCKET,
            ..in_bucket
        };
        [self, in_bucket, anywhere]
    }

    /// Where the copy begins; `None`: anywhere.
    pub(crate) fn place(&self) -> Option<u64> {
        (self.unit != ANY_UNIT).then(|| u64::from(self.unit) * UNIT)
    }

    /// Whether it speaks of the copy that `place` is the tombstone of.
    pub(crate) fn covers(&self, place: &Self) -> bool {
        let bucket = self.bucket == ANY_BUCKET || self.bucket == place.bucket;
        let unit = self.unit == ANY_UNIT || self.unit == place.unit;
        let record = (self.hash, self.incarnation) == (place.hash, place.incarnation);
        record && bucket && unit
    }
}

/// What a frame of so many entries takes, a multiple of a block.
pub(crate) fn frame_bytes(entries: usize) -> u64 {
    up((FRAME_HEAD + entries * ENTRY) as u64, BLOCK)
}

/// Frame `number` of the log with `stamp`.
pub(crate) fn encode(entries: &[Tombstone], stamp: u64, number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frame_bytes(entries.len()) as usize);
    bytes.extend_from_slice(&[0; FRAME_HEAD]);
    set(&mut bytes, 0, FRAME);
    bytes[4] = FORMAT_VERSION;
    set(&mut bytes, 8, stamp.to_le_bytes());
    set(&mut bytes, 16, number.to_le_bytes());
    set(&mut bytes, 24, (entries.len() as u32).to_le_bytes());
    for entry in entries {
        bytes.extend_from_slice(&entry.hash.high.to_le_bytes());
        bytes.extend_from_slice(&entry.hash.low.to_le_bytes());
        bytes.extend_from_slice(&entry.incarnation.epoch.to_le_bytes());
        bytes.extend_from_slice(&entry.incarnation.seq.to_le_bytes());
        bytes.extend_from_slice(&entry.bucket.to_le_bytes());
        bytes.extend_from_slice(&entry.unit.to_le_bytes());
    }
    let sum = checksum(&bytes, FRAME_CHECKSUM);
    set(&mut bytes, FRAME_CHECKSUM, sum.to_le_bytes());
    bytes.resize(frame_bytes(entries.len()) as usize, 0);
    bytes
}

/// Reads the frame that `bytes` begin with: its number, its entries, and what it takes.
pub(crate) fn decode(bytes: &[u8], stamp: u64) -> Result<(u64, Vec<Tombstone>, u64), Flaw> {
    let fields = Fields(marked(bytes, FRAME, FRAME_HEAD)?);
    if fields.u64(8) != stamp {
        return Err(Flaw::Place);
    }
    let count = fields.u32(24) as usize;
    if count > MOST {
        return Err(Flaw::Length);
    }
    let length = FRAME_HEAD + count * ENTRY;
    let frame = checked(bytes, FRAME, length, FRAME_CHECKSUM)?;
    let entries = frame[FRAME_HEAD..].chunks_exact(ENTRY).map(|entry| {
        let fields = Fields(entry);
        Tombstone {
            hash: KeyHash {
                high: fields.u64(0),
                low: fields.u64(8),
            },
            incarnation: Incarnation::new(fields.u64(16), fields.u64(24)),
            bucket: fields.u32(32),
            unit: fields.u32(36),
        }
    });
    Ok((fields.u64(16), entries.collect(), frame_bytes(count)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        for count in [0, 1, 101, 102, 1000] {
            let entries: Vec<_> = (0..count)
                .map(|i| Tombstone {
                    bucket: i as u32,
                    unit: 7 * i as u32,
                    hash: KeyHash { high: 5, low: i },
                    incarnation: Incarnation::new(9, i),
                })
                .collect();
            let bytes = encode(&entries, 4, 12);
            assert_eq!(
                decode(&bytes, 4).unwrap(),
                (12, entries, bytes.len() as u64)
            );
            assert_eq!(decode(&bytes, 5), Err(Flaw::Place));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            if bytes.len() > 16 {
                bytes[..16].copy_from_slice(b"MCTF\x01\0\0\0\x05\0\0\0\0\0\0\0");
            }
            let _any = decode(&bytes, 5);
        }
    }
}
