//! Reading many records at once. What does not go smoothly is read by itself, as if nothing had been tried.

use std::{io, sync::Arc, sync::atomic::Ordering};

use crate::{
    bucket::Bucket,
    counters::Counters,
    disk::{DiskFile, Read},
    error::GetError,
    get::{Stat, Value, check},
    index::Entry,
    name::{Incarnation, Name},
    storage::Storage,
};

/// A read of a whole value.
#[derive(Debug)]
pub struct GetInto<'a> {
    /// Whose and which.
    pub name: Name<'a>,
    /// Which life of it; `None`: whichever is here.
    pub incarnation: Option<Incarnation>,
    /// Where it goes. After an error that may hold anything.
    pub into: &'a mut [u8],
}

/// A record that was found in the index, and what is needed to read it.
struct Found {
    /// Place in the batch.
    number: usize,
    entry: Entry,
    bucket: Arc<Bucket>,
    file: Arc<dyn DiskFile>,
    /// Its header; and its value, if that is small.
    stage: Vec<u8>,
    /// All of it was read.
    whole: bool,
}

impl Storage {
    pub(crate) fn get_batch(
        &self,
        names: &[(Name<'_>, Option<Incarnation>)],
    ) -> Vec<Result<Value, GetError>> {
        let lengths = names
            .iter()
            .map(|(name, _)| self.stat(name).map_or(0, |stat| stat.value_bytes));
        let mut values: Vec<_> = lengths.map(|length| vec![0; length as usize]).collect();
        let places = names.iter().zip(&mut values);
        let mut gets: Vec<_> = places
            .map(|((name, incarnation), into)| GetInto {
                name: *name,
                incarnation: *incarnation,
                into,
            })
            .collect();
        let results = self.get_batch_into(&mut gets);
        drop(gets);
        let all = names.iter().zip(values).zip(results);
        let all = all.map(|(((name, incarnation), mut bytes), result)| match result {
            Ok(stat) => {
                bytes.truncate(stat.value_bytes as usize);
                Ok(Value {
                    incarnation: stat.incarnation,
                    bytes,
                })
            }
            // Another life came between the look-up and the read.
            Err(GetError::Room { .. }) => self.get(name, *incarnation),
            Err(error) => Err(error),
        });
        all.collect()
    }

    pub(crate) fn get_batch_into(&self, gets: &mut [GetInto<'_>]) -> Vec<Result<Stat, GetError>> {
        let mut found = Vec::with_capacity(gets.len());
        for (number, get) in gets.iter().enumerate() {
            found.extend(self.find(number, get));
        }
        self.read_found(gets, &mut found);
        let mut stats = vec![None; gets.len()];
        for found in found.iter().filter(|found| found.whole) {
            let Some(stat) = found.serve(&mut gets[found.number]) else {
                continue;
            };
            stats[found.number] = Some(stat);
            Counters::add(&self.counters.gets, 1);
            found.bucket.read_at.store(self.now_ms(), Ordering::Relaxed);
        }
        let all = gets.iter_mut().zip(stats);
        let all = all.map(|(get, stat)| match stat {
            Some(stat) => Ok(stat),
            None => self.get_into(&get.name, get.incarnation, get.into),
        });
        all.collect()
    }

    /// `None`: there is something about it.
    fn find(&self, number: usize, get: &GetInto<'_>) -> Option<Found> {
        let entry = self.index.get(self.hasher.hash(&get.name))?;
        let layout = entry.layout();
        let asked = get
            .incarnation
            .is_none_or(|asked| asked == entry.incarnation);
        let fits = layout.value_bytes as usize <= get.into.len();
        if !asked || !fits || usize::from(layout.name_bytes) != get.name.bytes() {
            return None;
        }
        let bucket = self.bucket(entry.bucket)?;
        let file = self.open_file(&bucket).ok()?;
        let header_bytes = (layout.value_at() - layout.at) as usize;
        let staged = if layout.aligned {
            0
        } else {
            layout.value_bytes as usize
        };
        Some(Found {
            number,
            entry,
            bucket,
            file,
            stage: vec![0; header_bytes + staged],
            whole: false,
        })
    }

    /// Marks those that were read whole.
    fn read_found(&self, gets: &mut [GetInto<'_>], found: &mut [Found]) {
        let mut wanted = found.iter_mut().peekable();
        let (mut reads, mut marks) = (Vec::new(), Vec::new());
        for (number, get) in gets.iter_mut().enumerate() {
            let Some(found) = wanted.next_if(|found| found.number == number) else {
                continue;
            };
            let layout = found.entry.layout();
            let second = if layout.aligned {
                layout.value_bytes as usize
            } else {
                0
            };
            reads.push(Read {
                file: &*found.file,
                at: layout.at,
                first: &mut found.stage,
                second: &mut get.into[..second],
                read: Err(io::ErrorKind::NotFound.into()),
            });
            marks.push(&mut found.whole);
        }
        self.disk.read_many(&mut reads);
        for (mark, read) in marks.into_iter().zip(reads) {
            let wanted = read.first.len() + read.second.len();
            *mark = read.read.is_ok_and(|bytes| bytes == wanted);
        }
    }
}

impl Found {
    /// Puts a value where it should be, if what was read is what was asked for.
    fn serve(&self, get: &mut GetInto<'_>) -> Option<Stat> {
        let layout = self.entry.layout();
        let (header, value) = self
            .stage
            .split_at((layout.value_at() - layout.at) as usize);
        let record = check(header, self.bucket.stamp, &self.entry, &get.name).ok()?;
        let into = &mut get.into[..layout.value_bytes as usize];
        if layout.aligned {
            record.verify(0, into).ok()?;
        } else {
            record.verify(0, value).ok()?;
            into.copy_from_slice(value);
        }
        Some(Stat {
            incarnation: record.incarnation,
            value_bytes: layout.value_bytes,
        })
    }
}
