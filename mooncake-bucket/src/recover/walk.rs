//! Finds the records of a bucket without a footer, group by group, and looks at every byte of them.

use std::io;

use crate::{
    disk::DiskFile,
    error::is_unreadable,
    format::{
        BLOCK, Flaw,
        footer::FooterEntry,
        group::{GROUP_HEAD, GroupHead},
        record::{FIXED, Record},
    },
    hash::Hasher,
};

/// What a walk has found.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    pub(crate) entries: Vec<FooterEntry>,
    /// Where the last group ends that has a whole record.
    pub(crate) tail: u64,
    /// Records that are not whole, as far as they could be counted.
    pub(crate) broken: u64,
    /// Of those, how many lie before a group with a whole record.
    pub(crate) passed: u64,
    /// The disk could not read something, be it of records or not.
    pub(crate) unreadable: bool,
}

/// So much is read at once.
const WINDOW: usize = 1 << 20;

/// A file, read ahead.
struct Window<'a> {
    file: &'a dyn DiskFile,
    /// Where it ends: what is said to lie behind that takes no memory.
    end: u64,
    at: u64,
    bytes: Vec<u8>,
    /// The disk could not read something.
    unreadable: bool,
}

impl Window<'_> {
    /// What is at `at`; shorter than `length` only where the file ends, and empty where the disk cannot read it.
    fn get(&mut self, at: u64, length: usize) -> io::Result<&[u8]> {
        let left = usize::try_from(self.end.saturating_sub(at)).unwrap_or(usize::MAX);
        let length = length.min(left);
        let end = at + length as u64;
        if at < self.at || end > self.at + self.bytes.len() as u64 {
            self.bytes.resize(length.max(WINDOW.min(left)), 0);
            let mut read = self.file.read_at(at, &mut self.bytes);
            if read.as_ref().is_err_and(is_unreadable) {
                // What is asked for may be readable, and only what is ahead of it not.
                self.unreadable = true;
                self.bytes.truncate(length);
                read = self.file.read_at(at, &mut self.bytes);
            }
            let read = match read {
                Err(error) if is_unreadable(&error) => 0,
                read => read?,
            };
            self.bytes.truncate(read);
            self.at = at;
        }
        let from = (at - self.at) as usize;
        let to = self.bytes.len().min(from + length);
        Ok(&self.bytes[from..to])
    }
}

/// Walks the file with `stamp`. Places that were taken and never written are skipped: groups are found wherever
/// they begin, since no other bytes can carry this file's stamp.
pub(crate) fn walk(file: &dyn DiskFile, stamp: u64, hasher: &Hasher) -> io::Result<Walk> {
    let end = file.len()?;
    let mut window = Window {
        file,
        end,
        at: 0,
        bytes: Vec::new(),
        unreadable: false,
    };
    let mut found = Walk {
        tail: BLOCK,
        ..Walk::default()
    };
    let mut at = BLOCK;
    while at < end {
        let head = window.get(at, GROUP_HEAD as usize)?;
        let decoded = GroupHead::decode(head, stamp, at);
        if let Err(flaw @ Flaw::Version(_)) = decoded
            && GroupHead::is_marked(head, stamp)
        {
            // It is whole, and for a program that knows it: a footer would end what only that one can read.
            return Err(io::Error::new(io::ErrorKind::InvalidData, flaw));
        }
        let Ok(head) = decoded else {
            let marked = GroupHead::is_marked(head, stamp);
            at = skip_group(&mut window, at, stamp, marked, &mut found)?;
            continue;
        };
        let before = found.broken;
        let whole = walk_group(&mut window, &head, hasher, &mut found)?;
        // The length of a group that is not whole is as good as its head, which was.
        let after = at.saturating_add(head.bytes);
        if whole > 0 {
            found.passed = before;
            found.tail = after.min(end.next_multiple_of(BLOCK));
        }
        at = after;
    }
    found.unreadable = window.unreadable;
    Ok(found)
}

/// Counts the records of a group whose head is damaged, as far as they can be found, and says where to look on. `marked`:
/// there was a group for sure; otherwise only its records tell.
fn skip_group(
    window: &mut Window<'_>,
    begin: u64,
    stamp: u64,
    marked: bool,
    found: &mut Walk,
) -> io::Result<u64> {
    let (mut at, mut records) = (begin + GROUP_HEAD, 0);
    loop {
        let fixed = window.get(at, FIXED)?;
        let Ok(length) = Record::header_bytes(fixed, at) else {
            break;
        };
        let header = window.get(at, length as usize)?;
        match Record::decode(header, at) {
            Ok(record) if record.stamp == stamp => at = record.layout.end(),
            _ => break,
        }
        records += 1;
    }
    if records == 0 {
        found.broken += u64::from(marked);
        return Ok(begin + BLOCK);
    }
    found.broken += records;
    Ok(at.next_multiple_of(BLOCK))
}

/// Returns how many of the group's records are whole.
fn walk_group(
    window: &mut Window<'_>,
    head: &GroupHead,
    hasher: &Hasher,
    found: &mut Walk,
) -> io::Result<u32> {
    let (mut at, mut whole) = (head.at + GROUP_HEAD, 0);
    for number in 0..head.records {
        match read_record(window, head, at, hasher)? {
            Ok((entry, intact)) => {
                at = entry.layout.end();
                if intact {
                    found.entries.push(entry);
                    whole += 1;
                } else {
                    found.broken += 1;
                }
            }
            Err(_) => {
                // Where the next one begins, nobody knows.
                found.broken += u64::from(head.records - number);
                break;
            }
        }
    }
    Ok(whole)
}

fn read_record(
    window: &mut Window<'_>,
    head: &GroupHead,
    at: u64,
    hasher: &Hasher,
) -> io::Result<Result<(FooterEntry, bool), Flaw>> {
    let fixed = window.get(at, FIXED)?;
    let length = match Record::header_bytes(fixed, at) {
        Ok(length) => length as usize,
        Err(flaw) => return Ok(Err(flaw)),
    };
    if at + length as u64 > head.at.saturating_add(head.bytes) {
        return Ok(Err(Flaw::Length));
    }
    let header = window.get(at, length)?.to_vec();
    let record = match Record::decode(&header, at) {
        Ok(record) if record.stamp == head.stamp => record,
        Ok(_) => return Ok(Err(Flaw::Place)),
        Err(flaw) => return Ok(Err(flaw)),
    };
    let layout = record.layout;
    if layout.end() > head.at.saturating_add(head.bytes) || layout.unit().is_none() {
        return Ok(Err(Flaw::Length));
    }
    let value = window.get(layout.value_at(), layout.value_bytes as usize)?;
    let intact = value.len() == layout.value_bytes as usize && record.verify(0, value).is_ok();
    let entry = FooterEntry {
        hash: hasher.hash(&record.name),
        incarnation: record.incarnation,
        layout,
    };
    Ok(Ok((entry, intact)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::{
            END_OF_UNITS,
            group::{Encoded, NewRecord, Plan},
        },
        name::{Incarnation, Name},
    };

    /// Some bytes of a file that is mostly empty.
    #[derive(Debug)]
    struct Sparse(Vec<(u64, Vec<u8>)>);

    impl DiskFile for Sparse {
        fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
            let read = self.len()?.saturating_sub(at).min(into.len() as u64) as usize;
            into[..read].fill(0);
            for (begin, bytes) in &self.0 {
                for (place, byte) in bytes.iter().enumerate() {
                    let place = (begin + place as u64).checked_sub(at);
                    if let Some(place) = place.filter(|place| *place < read as u64) {
                        into[place as usize] = *byte;
                    }
                }
            }
            Ok(read)
        }

        fn len(&self) -> io::Result<u64> {
            let ends = self.0.iter().map(|(at, bytes)| at + bytes.len() as u64);
            Ok(ends.max().unwrap_or(0))
        }

        fn write_at(&self, _: u64, _: &[&[u8]]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }

        fn set_len(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn allocated(&self) -> io::Result<u64> {
            self.len()
        }
    }

    #[test]
    fn a_record_further_on_than_a_place_can_say_is_broken() {
        let record = NewRecord {
            name: Name::key("key"),
            incarnation: Incarnation::new(1, 1),
            value: b"value",
        };
        let plan = Plan::new([record], 4096);
        let group = |at| Encoded::new(&[record], &plan, 5, at).pieces().concat();
        let empty = GroupHead {
            stamp: 5,
            at: BLOCK,
            bytes: END_OF_UNITS - 2 * BLOCK,
            records: 0,
        };
        let last = END_OF_UNITS - BLOCK;
        let file = Sparse(vec![
            (BLOCK, empty.encode().to_vec()),
            (last, group(last)),
            (END_OF_UNITS, group(END_OF_UNITS)),
        ]);
        let found = walk(&file, 5, &Hasher::new([1; 16])).unwrap();
        assert_eq!((found.entries.len(), found.broken), (1, 1));
        assert_eq!(found.tail, END_OF_UNITS);
    }

    #[test]
    fn what_is_broken_before_a_later_group_is_told_from_a_torn_end() {
        let record = NewRecord {
            name: Name::key("key"),
            incarnation: Incarnation::new(1, 1),
            value: b"value",
        };
        let plan = Plan::new([record], 4096);
        let group = |at| Encoded::new(&[record], &plan, 5, at).pieces().concat();
        let walked = |bad: u64| {
            let groups = (1..=3).map(|number| {
                let at = number * BLOCK;
                let mut bytes = group(at);
                if number == bad {
                    let value = bytes.windows(5).position(|window| window == b"value");
                    bytes[value.unwrap()] ^= 1;
                }
                (at, bytes)
            });
            let file = Sparse(groups.collect());
            walk(&file, 5, &Hasher::new([1; 16])).unwrap()
        };
        for (bad, expected) in [(0, (0, 0)), (1, (1, 1)), (2, (1, 1)), (3, (1, 0))] {
            let found = walked(bad);
            assert_eq!((found.broken, found.passed), expected, "group {bad}");
        }
    }
}
