//! Reading many records at once. What does not go smoothly is read by itself, as if nothing had been tried.

use std::{io, sync::Arc};

use crate::{
    bucket::Bucket,
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
        // Each may be in another bucket, whose file is open until all of them are read.
        let most = (self.config.open_files / 4).max(1);
        let few = self.buckets.read().len() <= most;
        let most = if few { gets.len().max(1) } else { most };
        let parts = gets.chunks_mut(most);
        parts.flat_map(|part| self.get_some_into(part)).collect()
    }

    fn get_some_into(&self, gets: &mut [GetInto<'_>]) -> Vec<Result<Stat, GetError>> {
        let mut found = Vec::with_capacity(gets.len());
        for (number, get) in gets.iter().enumerate() {
            found.extend(self.find(number, get));
        }
        let mut stats = vec![None; gets.len()];
        self.read_found(gets, &mut found, &mut stats);
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
        })
    }

    /// Reads and verifies, and says of each that went smoothly what it is.
    fn read_found(
        &self,
        gets: &mut [GetInto<'_>],
        found: &mut [Found],
        stats: &mut [Option<Stat>],
    ) {
        let mut wanted = found.iter_mut().peekable();
        let (mut reads, mut records) = (Vec::new(), Vec::new());
        for (number, get) in gets.iter_mut().enumerate() {
            let Some(found) = wanted.next_if(|found| found.number == number) else {
                continue;
            };
            let Found {
                entry,
                bucket,
                file,
                stage,
                ..
            } = found;
            let bytes = entry.layout().value_bytes as usize;
            let into = &mut get.into[..bytes];
            // A small value is staged with its header, and goes to its place once it is verified.
            let (second, place) = if entry.layout().aligned {
                (into, None)
            } else {
                (Default::default(), Some(into))
            };
            reads.push(Read {
                file: &**file,
                at: entry.layout().at,
                first: stage,
                second,
                read: Err(io::ErrorKind::NotFound.into()),
            });
            records.push((number, *entry, Arc::clone(bucket), get.name, place));
        }
        self.disk.read_many(&mut reads, &mut |number, read| {
            let (number, entry, bucket, name, place) = &mut records[number];
            let wanted = read.first.len() + read.second.len();
            if read.read.as_ref().is_ok_and(|bytes| *bytes == wanted)
                && let Some(stat) = serve(entry, bucket, name, read, place)
            {
                stats[*number] = Some(stat);
                self.count_get(bucket, stat.value_bytes);
            }
        });
    }
}

/// Whether what was read is what was asked for; then it is where it should be.
fn serve(
    entry: &Entry,
    bucket: &Bucket,
    name: &Name<'_>,
    read: &Read<'_>,
    place: &mut Option<&mut [u8]>,
) -> Option<Stat> {
    let layout = entry.layout();
    let (header, value) = read
        .first
        .split_at((layout.value_at() - layout.at) as usize);
    let record = check(header, bucket.stamp, entry, name).ok()?;
    match place {
        Some(place) => {
            record.verify(0, value).ok()?;
            place.copy_from_slice(value);
        }
        None => record.verify(0, read.second).ok()?,
    }
    Some(Stat {
        incarnation: record.incarnation,
        value_bytes: layout.value_bytes,
    })
}
