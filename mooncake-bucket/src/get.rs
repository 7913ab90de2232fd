//! Reading records. What is not exactly the record that was asked for is not served.

use std::{io, ops::Range, sync::atomic::Ordering};

use crate::{
    bucket::Bucket,
    counters::Counters,
    disk::DiskFile,
    error::GetError,
    format::{
        CHECK_BYTES, Flaw,
        record::{Layout, Record},
    },
    index::Entry,
    name::{Incarnation, Name},
    storage::Storage,
};

/// A value and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The life that it is of.
    pub incarnation: Incarnation,
    /// All of its bytes.
    pub bytes: Vec<u8>,
}

/// What is known of a record without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Which life of the key is here.
    pub incarnation: Incarnation,
    /// How long its value is.
    pub value_bytes: u32,
}

/// How often a record is looked for anew that moved while it was read.
const ATTEMPTS: usize = 16;

enum Failure {
    /// The disk has it, and it is wrong.
    Flaw(Flaw),
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Flaw> for Failure {
    fn from(flaw: Flaw) -> Self {
        Self::Flaw(flaw)
    }
}

impl Storage {
    /// What is here under a name, as the index has it.
    pub(crate) fn stat(&self, name: &Name<'_>) -> Option<Stat> {
        let entry = self.index.get(self.hasher.hash(name))?;
        Some(entry.stat())
    }

    /// Reads a whole value.
    pub(crate) fn get(
        &self,
        name: &Name<'_>,
        incarnation: Option<Incarnation>,
    ) -> Result<Value, GetError> {
        self.read(name, incarnation, |entry, file, bucket| {
            let length = entry.layout().value_bytes;
            let mut bytes = vec![0; length as usize];
            read_range(file, bucket, entry, name, 0..length, &mut bytes)?;
            let value = Value {
                incarnation: entry.incarnation,
                bytes,
            };
            Ok(Ok((value, length)))
        })
    }

    /// Reads a whole value into the beginning of `into`.
    pub(crate) fn get_into(
        &self,
        name: &Name<'_>,
        incarnation: Option<Incarnation>,
        into: &mut [u8],
    ) -> Result<Stat, GetError> {
        self.read(name, incarnation, |entry, file, bucket| {
            let value_bytes = entry.layout().value_bytes;
            let room_bytes = into.len();
            let Some(into) = into.get_mut(..value_bytes as usize) else {
                return Ok(Err(GetError::Room {
                    value_bytes,
                    room_bytes,
                }));
            };
            read_range(file, bucket, entry, name, 0..value_bytes, into)?;
            Ok(Ok((entry.stat(), value_bytes)))
        })
    }

    /// Fills `into` with the value from `from` on.
    pub(crate) fn get_range(
        &self,
        name: &Name<'_>,
        incarnation: Option<Incarnation>,
        from: u32,
        into: &mut [u8],
    ) -> Result<Stat, GetError> {
        self.read(name, incarnation, |entry, file, bucket| {
            let value_bytes = entry.layout().value_bytes;
            let to = u32::try_from(into.len())
                .ok()
                .and_then(|length| from.checked_add(length));
            let Some(to) = to.filter(|to| *to <= value_bytes) else {
                return Ok(Err(GetError::Range { value_bytes }));
            };
            read_range(file, bucket, entry, name, from..to, into)?;
            Ok(Ok((entry.stat(), to - from)))
        })
    }

    /// A value, or so many bytes of one, was served.
    pub(crate) fn count_get(&self, bucket: &Bucket, bytes: u32) {
        // Only when it changes: readers of other cores have the line as well.
        let now = self.now_ms();
        if bucket.read_at.load(Ordering::Relaxed) != now {
            bucket.read_at.store(now, Ordering::Relaxed);
        }
        Counters::add(&self.counters.gets, 1);
        Counters::add(&self.counters.get_bytes, u64::from(bytes));
    }

    /// Finds a record and reads it, anew if it moved meanwhile.
    fn read<T>(
        &self,
        name: &Name<'_>,
        incarnation: Option<Incarnation>,
        mut read: impl FnMut(
            &Entry,
            &dyn DiskFile,
            &Bucket,
        ) -> Result<Result<(T, u32), GetError>, Failure>,
    ) -> Result<T, GetError> {
        let hash = self.hasher.hash(name);
        let mut failed: Option<(Entry, GetError)> = None;
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.index.get(hash) else {
                break;
            };
            if let Some(asked) = incarnation
                && asked != entry.incarnation
            {
                Counters::add(&self.counters.misses, 1);
                return Err(GetError::OtherIncarnation {
                    current: entry.incarnation,
                });
            }
            if let Some((before, error)) = failed.take()
                && before == entry
            {
                // It did not move: what was read is what there is.
                Counters::add(&self.counters.failed_reads, 1);
                if matches!(&error, GetError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
                {
                    Counters::add(&self.counters.vanished_reads, 1);
                }
                return Err(error);
            }
            let failure = match self.bucket(entry.bucket) {
                Some(bucket) => {
                    let done = self.open_file(&bucket).map_err(Failure::Io);
                    match done.and_then(|file| read(&entry, &*file, &bucket)) {
                        Ok(done) => {
                            return done.map(|(value, bytes)| {
                                self.count_get(&bucket, bytes);
                                value
                            });
                        }
                        Err(failure) => failure,
                    }
                }
                None => Failure::Io(io::ErrorKind::NotFound.into()),
            };
            let bucket = entry.bucket;
            let error = match failure {
                // Two keys with one hash: the other one is here.
                Failure::Flaw(Flaw::Key) => break,
                Failure::Flaw(flaw) => GetError::Damaged { bucket, flaw },
                Failure::Io(source) => GetError::Io { bucket, source },
            };
            failed = Some((entry, error));
        }
        Counters::add(&self.counters.misses, 1);
        Err(GetError::NotFound)
    }
}

impl Entry {
    pub(crate) fn stat(&self) -> Stat {
        Stat {
            incarnation: self.incarnation,
            value_bytes: self.layout().value_bytes,
        }
    }
}

fn read_range(
    file: &dyn DiskFile,
    bucket: &Bucket,
    entry: &Entry,
    name: &Name<'_>,
    range: Range<u32>,
    into: &mut [u8],
) -> Result<(), Failure> {
    let layout = entry.layout();
    if usize::from(layout.name_bytes) != name.bytes() {
        return Err(Flaw::Key.into());
    }
    if layout.aligned {
        read_apart(file, bucket, entry, name, range, into)
    } else {
        // Header and value are small and side by side.
        let mut all =
            vec![0; (layout.value_at() - layout.at) as usize + layout.value_bytes as usize];
        full(file.read_at(layout.at, &mut all)?, all.len())?;
        let value_at = (layout.value_at() - layout.at) as usize;
        let (header, value) = all.split_at(value_at);
        let record = check(header, bucket.stamp, entry, name)?;
        record.verify(0, value)?;
        into.copy_from_slice(&value[range.start as usize..range.end as usize]);
        Ok(())
    }
}

/// The value goes to where it should be; only the header, and blocks that are wanted in part, take a detour.
fn read_apart(
    file: &dyn DiskFile,
    bucket: &Bucket,
    entry: &Entry,
    name: &Name<'_>,
    range: Range<u32>,
    into: &mut [u8],
) -> Result<(), Failure> {
    let layout = entry.layout();
    let mut header = vec![0; (layout.value_at() - layout.at) as usize];
    let whole = range == (0..layout.value_bytes);
    if whole {
        let bytes = header.len() + into.len();
        full(file.read_two_at(layout.at, &mut header, into)?, bytes)?;
        let record = check(&header, bucket.stamp, entry, name)?;
        return Ok(record.verify(0, into)?);
    }
    full(file.read_at(layout.at, &mut header)?, header.len())?;
    let record = check(&header, bucket.stamp, entry, name)?;
    let first = range.start / CHECK_BYTES;
    let begin = first * CHECK_BYTES;
    let end = range
        .end
        .next_multiple_of(CHECK_BYTES)
        .min(layout.value_bytes);
    let mut blocks = vec![0; (end - begin) as usize];
    full(
        file.read_at(layout.value_at() + u64::from(begin), &mut blocks)?,
        blocks.len(),
    )?;
    record.verify(first, &blocks)?;
    into.copy_from_slice(&blocks[(range.start - begin) as usize..(range.end - begin) as usize]);
    Ok(())
}

fn full(read: usize, wanted: usize) -> Result<(), Flaw> {
    if read == wanted {
        Ok(())
    } else {
        Err(Flaw::Short)
    }
}

/// Whether a header is the one that the index knows, of the key that was asked for.
pub(crate) fn check<'a>(
    header: &'a [u8],
    stamp: u64,
    entry: &Entry,
    name: &Name<'_>,
) -> Result<Record<'a>, Flaw> {
    let record = check_place(header, stamp, &entry.layout())?;
    if record.name != *name {
        return Err(Flaw::Key);
    }
    if record.incarnation != entry.incarnation {
        return Err(Flaw::Incarnation);
    }
    Ok(record)
}

/// Whether a header is that of the record that should be at this place.
pub(crate) fn check_place<'a>(
    header: &'a [u8],
    stamp: u64,
    layout: &Layout,
) -> Result<Record<'a>, Flaw> {
    let record = Record::decode(header, layout.at)?;
    if record.stamp != stamp {
        return Err(Flaw::Place);
    }
    if record.layout != *layout {
        return Err(Flaw::Length);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::{footer::FooterEntry, record::encode},
        hash::KeyHash,
    };

    #[test]
    fn a_record_that_is_not_the_one_asked_for_is_not_served() {
        let (name, life) = (Name::new("tenant", "key"), Incarnation::new(1, 2));
        let mut header = Vec::new();
        encode(&mut header, 5, &name, life, &[9; 100], false);
        let entry = |at, value_bytes, incarnation| {
            let layout = Layout {
                at,
                name_bytes: 9,
                value_bytes,
                aligned: false,
            };
            let hash = KeyHash { high: 1, low: 1 };
            Entry::new(
                3,
                &FooterEntry {
                    hash,
                    incarnation,
                    layout,
                },
            )
        };
        let checked = |stamp, entry: Entry, name: &Name<'_>| {
            check(&header, stamp, &entry, name).map(|record| record.incarnation)
        };
        assert_eq!(checked(5, entry(64, 100, life), &name), Ok(life));
        let cases = [
            (6, entry(64, 100, life), name, Flaw::Place),
            (5, entry(64, 101, life), name, Flaw::Length),
            (
                5,
                entry(64, 100, Incarnation::new(1, 3)),
                name,
                Flaw::Incarnation,
            ),
            (
                5,
                entry(64, 100, life),
                Name::new("tenant", "yek"),
                Flaw::Key,
            ),
            (
                5,
                entry(64, 100, life),
                Name::new("tenan", "tkey"),
                Flaw::Key,
            ),
        ];
        for (stamp, entry, name, flaw) in cases {
            assert_eq!(checked(stamp, entry, &name), Err(flaw));
        }
    }
}
