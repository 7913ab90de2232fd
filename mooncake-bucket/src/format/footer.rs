//! What ends a sealed bucket: an index of its records, so that a restart need not read values.

use super::{
    BLOCK, FORMAT_VERSION, Fields, Flaw, UNIT, checked,
    record::{Layout, MAX_VALUE_BYTES},
    set, up,
};
use crate::{hash::KeyHash, name::Incarnation};

const MAGIC: [u8; 4] = *b"MCFT";
/// Bytes of one entry.
pub(crate) const ENTRY: usize = 48;
/// The last bytes of the file.
pub(crate) const TRAILER: u64 = 64;
const CHECKSUM: usize = 60;
const ALIGNED: u16 = 1;

/// One record, as an index of it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FooterEntry {
    pub(crate) hash: KeyHash,
    pub(crate) incarnation: Incarnation,
    pub(crate) layout: Layout,
}

/// The last bytes of a sealed bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) index_at: u64,
    pub(crate) index_bytes: u64,
    pub(crate) records: u32,
    pub(crate) index_sum: u32,
}

/// The end of the bucket with `stamp` whose last group ends at `at`.
pub(crate) fn encode(entries: &[FooterEntry], stamp: u64, id: u32, at: u64) -> Vec<u8> {
    let mut bytes =
        Vec::with_capacity(up((entries.len() * ENTRY) as u64 + TRAILER, BLOCK) as usize);
    for entry in entries {
        let mut fixed = [0; ENTRY];
        set(&mut fixed, 0, entry.hash.high.to_le_bytes());
        set(&mut fixed, 8, entry.hash.low.to_le_bytes());
        set(&mut fixed, 16, entry.incarnation.epoch.to_le_bytes());
        set(&mut fixed, 24, entry.incarnation.seq.to_le_bytes());
        set(&mut fixed, 32, entry.layout.at.to_le_bytes());
        set(&mut fixed, 40, entry.layout.value_bytes.to_le_bytes());
        set(&mut fixed, 44, entry.layout.name_bytes.to_le_bytes());
        let flags = if entry.layout.aligned { ALIGNED } else { 0 };
        set(&mut fixed, 46, flags.to_le_bytes());
        bytes.extend_from_slice(&fixed);
    }
    let index_bytes = bytes.len() as u64;
    let index_sum = crc32c::crc32c(&bytes);
    bytes.resize(up(index_bytes + TRAILER, BLOCK) as usize, 0);
    let end = bytes.len() - TRAILER as usize;
    let trailer = &mut bytes[end..];
    set(trailer, 0, MAGIC);
    trailer[4] = FORMAT_VERSION;
    set(trailer, 8, stamp.to_le_bytes());
    set(trailer, 16, at.to_le_bytes());
    set(trailer, 24, index_bytes.to_le_bytes());
    set(trailer, 32, (entries.len() as u32).to_le_bytes());
    set(trailer, 36, index_sum.to_le_bytes());
    set(trailer, 40, u64::from(id).to_le_bytes());
    let sum = crc32c::crc32c(&trailer[..CHECKSUM]);
    set(trailer, CHECKSUM, sum.to_le_bytes());
    bytes
}

/// What [`encode`] makes of so many records.
pub(crate) fn bytes_of(records: u64) -> u64 {
    up(records * ENTRY as u64 + TRAILER, BLOCK)
}

impl Trailer {
    /// Reads the last bytes of the bucket `id` with `stamp`, whose file has `file_bytes`.
    pub(crate) fn decode(bytes: &[u8], stamp: u64, id: u32, file_bytes: u64) -> Result<Self, Flaw> {
        let fields = Fields(checked(bytes, MAGIC, TRAILER as usize, CHECKSUM)?);
        if fields.u64(8) != stamp || fields.u64(40) != u64::from(id) {
            return Err(Flaw::Place);
        }
        let trailer = Self {
            index_at: fields.u64(16),
            index_bytes: fields.u64(24),
            records: fields.u32(32),
            index_sum: fields.u32(36),
        };
        let entries = u64::from(trailer.records);
        let whole = trailer.index_bytes == entries * ENTRY as u64
            && trailer.index_at.checked_add(bytes_of(entries)) == Some(file_bytes);
        if whole {
            Ok(trailer)
        } else {
            Err(Flaw::Length)
        }
    }

    /// Reads the index that this trailer is of.
    pub(crate) fn entries(&self, index: &[u8]) -> Result<Vec<FooterEntry>, Flaw> {
        if index.len() as u64 != self.index_bytes {
            return Err(Flaw::Short);
        }
        if crc32c::crc32c(index) != self.index_sum {
            return Err(Flaw::Header);
        }
        let entries = index.chunks_exact(ENTRY).map(|entry| {
            let fields = Fields(entry);
            let entry = FooterEntry {
                hash: KeyHash {
                    high: fields.u64(0),
                    low: fields.u64(8),
                },
                incarnation: Incarnation::new(fields.u64(16), fields.u64(24)),
                layout: Layout {
                    at: fields.u64(32),
                    value_bytes: fields.u32(40),
                    name_bytes: fields.u16(44),
                    aligned: fields.u16(46) & ALIGNED != 0,
                },
            };
            let layout = &entry.layout;
            let sane = layout.at.is_multiple_of(UNIT)
                && layout.unit().is_some()
                && layout.at < self.index_at
                && layout.value_bytes <= MAX_VALUE_BYTES
                && layout.end() <= self.index_at;
            if sane { Ok(entry) } else { Err(Flaw::Place) }
        });
        entries.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::END_OF_UNITS;

    fn entry(at: u64) -> FooterEntry {
        FooterEntry {
            hash: KeyHash { high: at, low: 7 },
            incarnation: Incarnation::new(1, at),
            layout: Layout {
                at,
                name_bytes: 9,
                value_bytes: 100,
                aligned: at.is_multiple_of(16),
            },
        }
    }

    #[test]
    fn a_record_further_on_than_a_place_can_say_is_a_flaw() {
        for (at, expected) in [(END_OF_UNITS - UNIT, true), (END_OF_UNITS, false)] {
            let end = END_OF_UNITS + BLOCK;
            let bytes = encode(&[entry(at)], 3, 4, end);
            let file_bytes = end + bytes.len() as u64;
            let trailer = &bytes[bytes.len() - TRAILER as usize..];
            let trailer = Trailer::decode(trailer, 3, 4, file_bytes).unwrap();
            let index = &bytes[..trailer.index_bytes as usize];
            assert_eq!(trailer.entries(index).is_ok(), expected, "at {at}");
        }
    }

    #[test]
    fn a_footer_is_read_as_it_was_written() {
        for count in [0, 1, 83, 84, 85, 500] {
            let entries: Vec<_> = (0..count).map(|i| entry(4160 + 200 * i)).collect();
            let at = up(8192 + 200 * count, BLOCK);
            let bytes = encode(&entries, 3, 4, at);
            assert_eq!(bytes.len() as u64, bytes_of(count));
            let file_bytes = at + bytes.len() as u64;
            let end = &bytes[bytes.len() - TRAILER as usize..];
            let trailer = Trailer::decode(end, 3, 4, file_bytes).unwrap();
            let index = &bytes[..trailer.index_bytes as usize];
            assert_eq!(trailer.entries(index).unwrap(), entries);
            assert_eq!(Trailer::decode(end, 3, 5, file_bytes), Err(Flaw::Place));
            assert_eq!(
                Trailer::decode(end, 3, 4, file_bytes + 1),
                Err(Flaw::Length)
            );
            if count > 0 {
                let mut bent = index.to_vec();
                bent[3] ^= 1;
                assert_eq!(trailer.entries(&bent), Err(Flaw::Header));
            }
        }
    }
}
