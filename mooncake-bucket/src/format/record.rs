//! A record: header, tenant, key, checksums of the value's blocks, value.

use super::{
    BLOCK, CHECK_BYTES, FORMAT_VERSION, Fields, Flaw, UNIT, checked, checksum, marked, set, up,
};
use crate::name::{Incarnation, Name};

const MAGIC: [u8; 4] = *b"MCRC";
/// Bytes before the tenant.
pub(crate) const FIXED: usize = 48;
const CHECKSUM: usize = 44;
const ALIGNED: u8 = 1;

/// The most bytes that a value may have.
pub const MAX_VALUE_BYTES: u32 = 1 << 30;

/// Where the parts of a record lie, computed from what an index knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Where the header begins in the file, a multiple of [`UNIT`].
    pub(crate) at: u64,
    pub(crate) name_bytes: u16,
    pub(crate) value_bytes: u32,
    /// The value begins on a block of the disk.
    pub(crate) aligned: bool,
}

impl Layout {
    /// Where the header begins, in units; `None`: that is further than a place can say.
    pub(crate) fn unit(&self) -> Option<u32> {
        u32::try_from(self.at / UNIT).ok()
    }

    /// Blocks of the value that have a checksum each.
    pub(crate) fn blocks(&self) -> u32 {
        self.value_bytes.div_ceil(CHECK_BYTES)
    }

    pub(crate) fn header_bytes(&self) -> u64 {
        up(FIXED as u64 + u64::from(self.name_bytes), 4) + 4 * u64::from(self.blocks())
    }

    pub(crate) fn value_at(&self) -> u64 {
        let to = if self.aligned { BLOCK } else { UNIT };
        up(self.at + self.header_bytes(), to)
    }

    pub(crate) fn end(&self) -> u64 {
        up(self.value_at() + u64::from(self.value_bytes), UNIT)
    }

    /// What the record takes, header and gaps included.
    pub(crate) fn span(&self) -> u64 {
        self.end() - self.at
    }
}

/// A CRC-32C for each block of a value.
pub(crate) fn block_sums(value: &[u8]) -> impl Iterator<Item = u32> + '_ {
    value.chunks(CHECK_BYTES as usize).map(crc32c::crc32c)
}

/// Appends header, tenant, key and `sums`; the value and its alignment are the caller's.
pub(crate) fn encode(
    into: &mut Vec<u8>,
    stamp: u64,
    name: &Name<'_>,
    incarnation: Incarnation,
    value: &[u8],
    aligned: bool,
) {
    let begin = into.len();
    let mut fixed = [0; FIXED];
    set(&mut fixed, 0, MAGIC);
    fixed[4] = FORMAT_VERSION;
    fixed[5] = if aligned { ALIGNED } else { 0 };
    fixed[6] = CHECK_BYTES.trailing_zeros() as u8;
    set(&mut fixed, 8, (name.tenant.len() as u16).to_le_bytes());
    set(&mut fixed, 10, (name.key.len() as u16).to_le_bytes());
    set(&mut fixed, 12, (value.len() as u32).to_le_bytes());
    set(&mut fixed, 16, incarnation.epoch.to_le_bytes());
    set(&mut fixed, 24, incarnation.seq.to_le_bytes());
    set(&mut fixed, 32, stamp.to_le_bytes());
    into.extend_from_slice(&fixed);
    into.extend_from_slice(name.tenant);
    into.extend_from_slice(name.key);
    while !(into.len() - begin).is_multiple_of(4) {
        into.push(0);
    }
    for sum in block_sums(value) {
        into.extend_from_slice(&sum.to_le_bytes());
    }
    let sum = checksum(&into[begin..], CHECKSUM);
    set(&mut into[begin..], CHECKSUM, sum.to_le_bytes());
}

/// A header that was found whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) incarnation: Incarnation,
    pub(crate) layout: Layout,
    pub(crate) stamp: u64,
    sums: &'a [u8],
}

impl<'a> Record<'a> {
    /// How many bytes the header that begins with `fixed` has, as far as one can tell without its checksum.
    pub(crate) fn header_bytes(fixed: &[u8], at: u64) -> Result<u64, Flaw> {
        Ok(begin(fixed, at)?.0.header_bytes())
    }

    /// Reads the header of a record that begins at `at` of its file with `bytes`.
    pub(crate) fn decode(bytes: &'a [u8], at: u64) -> Result<Self, Flaw> {
        let (layout, tenant_bytes) = begin(bytes, at)?;
        let length = layout.header_bytes() as usize;
        let header = checked(bytes, MAGIC, length, CHECKSUM)?;
        let fields = Fields(header);
        let name_end = FIXED + usize::from(layout.name_bytes);
        let (tenant, key) = header[FIXED..name_end].split_at(usize::from(tenant_bytes));
        Ok(Self {
            name: Name { tenant, key },
            incarnation: Incarnation::new(fields.u64(16), fields.u64(24)),
            layout,
            stamp: fields.u64(32),
            sums: &header[length - 4 * layout.blocks() as usize..],
        })
    }

    /// Whether `bytes` are those of the value's blocks from `first` on.
    pub(crate) fn verify(&self, first: u32, bytes: &[u8]) -> Result<(), Flaw> {
        let sums = self.sums.chunks_exact(4).skip(first as usize);
        let blocks = bytes.chunks(CHECK_BYTES as usize);
        if blocks.len() > sums.len() {
            return Err(Flaw::Length);
        }
        let mut pairs = sums.zip(blocks);
        if pairs.all(|(sum, block)| Fields(sum).u32(0) == crc32c::crc32c(block)) {
            Ok(())
        } else {
            Err(Flaw::Value)
        }
    }
}

fn begin(bytes: &[u8], at: u64) -> Result<(Layout, u16), Flaw> {
    let fixed = marked(bytes, MAGIC, FIXED)?;
    let fields = Fields(fixed);
    let (tenant_bytes, key_bytes) = (fields.u16(8), fields.u16(10));
    let name_bytes = tenant_bytes.checked_add(key_bytes).ok_or(Flaw::Header)?;
    let value_bytes = fields.u32(12);
    let known = fixed[5] & !ALIGNED == 0 && u32::from(fixed[6]) == CHECK_BYTES.trailing_zeros();
    if !known || value_bytes > MAX_VALUE_BYTES || !at.is_multiple_of(UNIT) {
        return Err(Flaw::Header);
    }
    let layout = Layout {
        at,
        name_bytes,
        value_bytes,
        aligned: fixed[5] & ALIGNED != 0,
    };
    Ok((layout, tenant_bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(name: &Name<'_>, value: &[u8], aligned: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&mut bytes, 77, name, Incarnation::new(3, 9), value, aligned);
        bytes
    }

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(
            tenant in proptest::collection::vec(any::<u8>(), 0..40),
            key in proptest::collection::vec(any::<u8>(), 0..300),
            length in 0usize..300_000,
            aligned: bool,
            at in 0u64..1 << 30,
        ) {
            let (name, value, at) = (Name::new(&tenant, &key), vec![5; length], at * UNIT);
            let bytes = header(&name, &value, aligned);
            let record = Record::decode(&bytes, at).unwrap();
            prop_assert_eq!(record.name, name);
            prop_assert_eq!(record.incarnation, Incarnation::new(3, 9));
            prop_assert_eq!(record.stamp, 77);
            prop_assert_eq!(record.layout.header_bytes(), bytes.len() as u64);
            prop_assert_eq!(record.layout.value_bytes as usize, length);
            prop_assert!(record.layout.value_at() >= at + bytes.len() as u64);
            prop_assert!(!aligned || record.layout.value_at().is_multiple_of(BLOCK));
            prop_assert_eq!(record.verify(0, &value), Ok(()));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), known: bool) {
            let mut bytes = bytes;
            if known && bytes.len() > 8 {
                bytes[..5].copy_from_slice(b"MCRC\x01");
            }
            let _any = Record::decode(&bytes, 0);
        }

        #[test]
        fn no_bit_of_a_header_can_change_unseen(bit in 0usize..(48 + 11 + 1 + 8) * 8) {
            let value = vec![1; 100_000];
            let mut bytes = header(&Name::new("some", "key-one"), &value, true);
            prop_assert_eq!(bytes.len(), 48 + 11 + 1 + 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Record::decode(&bytes, 0).is_err());
        }
    }

    #[test]
    fn a_block_is_verified_without_the_others() {
        let value: Vec<u8> = (0..200_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let bytes = header(&Name::key("k"), &value, false);
        let record = Record::decode(&bytes, 8).unwrap();
        let block = CHECK_BYTES as usize;
        assert_eq!(record.verify(1, &value[block..2 * block]), Ok(()));
        assert_eq!(record.verify(3, &value[3 * block..]), Ok(()));
        assert_eq!(record.verify(0, &value[block..2 * block]), Err(Flaw::Value));
        assert_eq!(record.verify(3, &value), Err(Flaw::Length));
    }
}
