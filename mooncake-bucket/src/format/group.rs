//! A commit group: the records that one put wrote at once, from a fresh block on.

use super::{
    BLOCK, FORMAT_VERSION, Fields, Flaw, checked,
    record::{self, Layout},
    set, up,
};
use crate::name::{Incarnation, Name};

const MAGIC: [u8; 4] = *b"MCGR";
/// Bytes before the first record.
pub(crate) const GROUP_HEAD: u64 = 64;
const CHECKSUM: usize = 60;

/// What the first bytes of a group say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupHead {
    pub(crate) stamp: u64,
    /// Where in the file it begins, a multiple of a block.
    pub(crate) at: u64,
    /// From its first byte to the next group's, a multiple of a block.
    pub(crate) bytes: u64,
    pub(crate) records: u32,
}

impl GroupHead {
    pub(crate) fn encode(&self) -> [u8; GROUP_HEAD as usize] {
        let mut bytes = [0; GROUP_HEAD as usize];
        set(&mut bytes, 0, MAGIC);
        bytes[4] = FORMAT_VERSION;
        set(&mut bytes, 8, self.stamp.to_le_bytes());
        set(&mut bytes, 16, self.at.to_le_bytes());
        set(&mut bytes, 24, self.bytes.to_le_bytes());
        set(&mut bytes, 32, self.records.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..CHECKSUM]);
        set(&mut bytes, CHECKSUM, sum.to_le_bytes());
        bytes
    }

    /// Whether these bytes were a head in the file with `stamp`, as far as they are left.
    pub(crate) fn is_marked(bytes: &[u8], stamp: u64) -> bool {
        bytes.len() >= 16 && bytes.starts_with(&MAGIC) && Fields(bytes).u64(8) == stamp
    }

    /// Reads the head of a group of the file with `stamp` that begins at `at`.
    pub(crate) fn decode(bytes: &[u8], stamp: u64, at: u64) -> Result<Self, Flaw> {
        let fields = Fields(checked(bytes, MAGIC, GROUP_HEAD as usize, CHECKSUM)?);
        let head = Self {
            stamp: fields.u64(8),
            at: fields.u64(16),
            bytes: fields.u64(24),
            records: fields.u32(32),
        };
        if head.stamp != stamp || head.at != at {
            return Err(Flaw::Place);
        }
        if head.bytes == 0 || !head.bytes.is_multiple_of(BLOCK) {
            return Err(Flaw::Header);
        }
        Ok(head)
    }
}

/// One record that is to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRecord<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) incarnation: Incarnation,
    pub(crate) value: &'a [u8],
}

/// Where the records of a group will lie, from the group's first byte on. Groups begin on a block, so this
/// holds wherever that is.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) layouts: Vec<Layout>,
    /// What the group takes, a multiple of a block.
    pub(crate) bytes: u64,
}

impl Plan {
    /// Values of `aligned_from` bytes or more begin on a block; smaller ones share blocks.
    pub(crate) fn new<'a>(
        records: impl IntoIterator<Item = NewRecord<'a>>,
        aligned_from: u32,
    ) -> Self {
        let mut plan = Self {
            layouts: Vec::new(),
            bytes: up(GROUP_HEAD, BLOCK),
        };
        for record in records {
            plan.add(&record, aligned_from);
        }
        plan
    }

    pub(crate) fn add(&mut self, record: &NewRecord<'_>, aligned_from: u32) {
        let layout = Layout {
            at: self.layouts.last().map_or(GROUP_HEAD, Layout::end),
            name_bytes: record.name.bytes() as u16,
            value_bytes: record.value.len() as u32,
            aligned: record.value.len() >= aligned_from as usize,
        };
        self.bytes = up(layout.end(), BLOCK);
        self.layouts.push(layout);
    }
}

/// Values from this size on are written from where they are. Copies of smaller ones cost less than one more piece.
const APART: usize = 1024;

/// A group as it goes to the disk: pieces that follow each other.
#[derive(Debug)]
pub(crate) struct Encoded<'a> {
    heads: Vec<u8>,
    /// Up to which of `heads` comes before which value.
    values: Vec<(usize, &'a [u8])>,
}

impl<'a> Encoded<'a> {
    /// `records` as `plan` has them, in the file with `stamp` from `at` on.
    pub(crate) fn new(records: &[NewRecord<'a>], plan: &Plan, stamp: u64, at: u64) -> Self {
        let head = GroupHead {
            stamp,
            at,
            bytes: plan.bytes,
            records: records.len() as u32,
        };
        let mut encoded = Self {
            heads: head.encode().to_vec(),
            values: Vec::new(),
        };
        // Bytes of values that are not in `heads`.
        let mut apart = 0;
        for (record, layout) in records.iter().zip(&plan.layouts) {
            let heads = &mut encoded.heads;
            heads.resize((layout.at - apart) as usize, 0);
            record::encode(
                heads,
                stamp,
                &record.name,
                record.incarnation,
                record.value,
                layout.aligned,
            );
            heads.resize((layout.value_at() - apart) as usize, 0);
            if layout.aligned || record.value.len() >= APART {
                encoded.values.push((heads.len(), record.value));
                apart += record.value.len() as u64;
            } else {
                heads.extend_from_slice(record.value);
            }
        }
        encoded.heads.resize((plan.bytes - apart) as usize, 0);
        encoded
    }

    /// All of it, in order.
    pub(crate) fn pieces(&self) -> Vec<&[u8]> {
        let mut pieces = Vec::with_capacity(2 * self.values.len() + 1);
        let mut from = 0;
        for (to, value) in &self.values {
            pieces.push(&self.heads[from..*to]);
            pieces.push(value);
            from = *to;
        }
        pieces.push(&self.heads[from..]);
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::record::Record;

    proptest! {
        #[test]
        fn records_lie_where_the_plan_says_and_fill_whole_blocks(
            lengths in proptest::collection::vec((0usize..30, 0usize..20_000), 1..20),
            at in 1u64..1000,
        ) {
            let at = at * BLOCK;
            let keys: Vec<Vec<u8>> = lengths.iter().map(|(key, _)| vec![b'k'; *key]).collect();
            let values: Vec<Vec<u8>> = lengths.iter().map(|(key, value)| vec![*key as u8; *value]).collect();
            let records: Vec<_> = keys.iter().zip(&values).map(|(key, value)| NewRecord {
                name: Name::new("t", key),
                incarnation: Incarnation::new(1, value.len() as u64),
                value,
            }).collect();
            let plan = Plan::new(records.iter().copied(), 8000);
            let bytes = Encoded::new(&records, &plan, 5, at).pieces().concat();
            prop_assert_eq!(bytes.len() as u64, plan.bytes);
            prop_assert_eq!(bytes.len() as u64 % BLOCK, 0);
            let head = GroupHead::decode(&bytes, 5, at).unwrap();
            prop_assert_eq!(head.records as usize, records.len());
            prop_assert_eq!(GroupHead::decode(&bytes, 6, at), Err(Flaw::Place));
            for (record, layout) in records.iter().zip(&plan.layouts) {
                let found = Record::decode(&bytes[layout.at as usize..], at + layout.at).unwrap();
                prop_assert_eq!(found.name, record.name);
                prop_assert_eq!(found.layout.aligned, record.value.len() >= 8000);
                let value_at = (found.layout.value_at() - at) as usize;
                prop_assert_eq!(&bytes[value_at..value_at + record.value.len()], record.value);
                prop_assert_eq!(found.layout.end() - at, layout.end());
            }
        }
    }

    #[test]
    fn small_records_cost_a_few_per_cent_of_what_they_hold() {
        let value = vec![1; 4096];
        let keys: Vec<String> = (0..128)
            .map(|i| format!("model/layer-{i:04}/{:032x}", i))
            .collect();
        let records = keys.iter().map(|key| NewRecord {
            name: Name::new("tenant", key),
            incarnation: Incarnation::new(1, 1),
            value: &value,
        });
        let plan = Plan::new(records, 65536);
        let index = 128 * crate::format::footer::ENTRY as u64;
        let overhead = (plan.bytes + index) as f64 / (128.0 * 4096.0) - 1.0;
        assert!(overhead < 0.08, "{overhead}");
    }
}
