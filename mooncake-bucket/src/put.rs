//! Putting records: a place in a bucket, the bytes, one sync for all who wait, and then everybody may know.

use std::{io, sync::Arc};

use crate::{
    append::{Appender, Reserved},
    counters::Counters,
    error::{PutError, copy},
    format::{
        footer::FooterEntry,
        group::{Encoded, NewRecord, Plan},
        record::{Layout, MAX_VALUE_BYTES},
    },
    hash::KeyHash,
    index::{BeginPut, EndPut, Entry},
    name::{Incarnation, MAX_NAME_BYTES, Name},
    storage::Storage,
};

/// A record to be put.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// Whose and which.
    pub name: Name<'a>,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its bytes; there may be none.
    pub value: &'a [u8],
    /// Records with the same number lie together, so that what dies together lies together.
    pub group: Option<u64>,
}

impl<'a> Put<'a> {
    /// `value` under `name`.
    pub fn new(name: Name<'a>, incarnation: Incarnation, value: &'a [u8]) -> Self {
        Self {
            name,
            incarnation,
            value,
            group: None,
        }
    }

    /// Says what it will die with.
    #[must_use]
    pub fn group(mut self, group: u64) -> Self {
        self.group = Some(group);
        self
    }
}

/// How a record came to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It was written, and is durable.
    Written,
    /// The same incarnation was there, durably.
    AlreadyHere,
}

/// The most that one group has, unless a single record is larger. It bounds what a start reads at once.
const GROUP_BYTES: u64 = 64 << 20;

/// Puts that have begun, by their place in the batch. Whatever was not ended when this goes is cancelled.
struct Begun<'s> {
    storage: &'s Storage,
    keys: Vec<Option<(KeyHash, Incarnation)>>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        for (hash, incarnation) in self.keys.iter().flatten() {
            self.storage.index.cancel_put(*hash, *incarnation);
        }
    }
}

/// A group that was written and is not known to be durable.
struct Written {
    appender: Arc<Appender>,
    /// What its sync needs, or why there is none.
    ticket: io::Result<u64>,
    /// Places in the batch.
    members: Vec<usize>,
    layouts: Vec<Layout>,
}

impl Storage {
    /// Puts records; each has a result of its own, and those that are there now are durable.
    pub(crate) fn put_batch(&self, puts: &[Put<'_>]) -> Vec<Result<Stored, PutError>> {
        let mut results: Vec<Option<Result<Stored, PutError>>> = Vec::new();
        let mut begun = Begun {
            storage: self,
            keys: Vec::with_capacity(puts.len()),
        };
        for put in puts {
            let key = self.begin(put);
            begun.keys.push(key.as_ref().ok().copied());
            results.push(key.err());
        }
        let mut open: Vec<usize> = (0..puts.len())
            .filter(|i| begun.keys[*i].is_some())
            .collect();
        open.sort_by_key(|i| puts[*i].group);
        let mut written = Vec::new();
        for members in open.chunk_by(|a, b| puts[*a].group == puts[*b].group) {
            self.write_groups(puts, members, &mut written, &mut results);
        }
        for group in written {
            self.finish(group, &mut begun, &mut results);
        }
        drop(begun);
        let settled = results
            .into_iter()
            .map(|result| result.expect("each has ended"));
        settled.collect()
    }

    /// The key of a put that has begun; otherwise what has become of it already.
    fn begin(&self, put: &Put<'_>) -> Result<(KeyHash, Incarnation), Result<Stored, PutError>> {
        let too_long = |what, bytes, most| Err(Err(PutError::TooLong { what, bytes, most }));
        if put.name.bytes() > MAX_NAME_BYTES {
            return too_long("a name", put.name.bytes(), MAX_NAME_BYTES);
        }
        if put.value.len() > MAX_VALUE_BYTES as usize {
            return too_long("a value", put.value.len(), MAX_VALUE_BYTES as usize);
        }
        let hash = self.hasher.hash(&put.name);
        Err(match self.index.begin_put(hash, put.incarnation) {
            BeginPut::Go => return Ok((hash, put.incarnation)),
            BeginPut::Here => Ok(Stored::AlreadyHere),
            BeginPut::InFlight => Err(PutError::InFlight),
            BeginPut::Removed => Err(PutError::Removed),
            BeginPut::Stale(current) => Err(PutError::Stale { current }),
        })
    }

    /// Writes `members`, in as many groups as buckets need.
    fn write_groups(
        &self,
        puts: &[Put<'_>],
        members: &[usize],
        written: &mut Vec<Written>,
        results: &mut [Option<Result<Stored, PutError>>],
    ) {
        let most = GROUP_BYTES.min(
            self.config
                .bucket_bytes
                .saturating_sub(64 << 10)
                .max(8 << 10),
        );
        let mut rest = members;
        while !rest.is_empty() {
            let mut plan = Plan::new([], self.config.aligned_from);
            let mut count = 0;
            for member in rest.iter().take(self.config.bucket_records as usize) {
                plan.add(&record(&puts[*member]), self.config.aligned_from);
                count += 1;
                if plan.bytes >= most {
                    break;
                }
            }
            let (now, later) = rest.split_at(count);
            rest = later;
            match self.write_group(puts, now, plan) {
                Ok(group) => written.push(group),
                Err(error) => {
                    for member in now {
                        results[*member] = Some(Err(error.again()));
                    }
                }
            }
        }
    }

    fn write_group(
        &self,
        puts: &[Put<'_>],
        members: &[usize],
        plan: Plan,
    ) -> Result<Written, PutError> {
        let records: Vec<_> = members
            .iter()
            .map(|member| record(&puts[*member]))
            .collect();
        let group = puts[members[0]].group;
        let promise = self.admit(&plan, members.len())?;
        loop {
            let appender = self.appender(group).map_err(PutError::Io)?;
            let at = match appender.reserve(plan.bytes, members.len() as u32, self.limits()) {
                Reserved::At(at) => at,
                Reserved::Full(seal) => {
                    self.leave(&appender, seal);
                    continue;
                }
            };
            self.grow_file_bytes(&appender.bucket, plan.bytes);
            drop(promise);
            let encoded = Encoded::new(&records, &plan, appender.bucket.stamp, at);
            let ticket = appender.write(at, &encoded.pieces());
            let layouts = plan.layouts.iter().map(|layout| Layout {
                at: at + layout.at,
                ..*layout
            });
            return Ok(Written {
                appender,
                ticket,
                members: members.to_vec(),
                layouts: layouts.collect(),
            });
        }
    }

    /// Waits until a group is durable, and only then lets anybody know.
    fn finish(
        &self,
        group: Written,
        begun: &mut Begun<'_>,
        results: &mut [Option<Result<Stored, PutError>>],
    ) {
        let Written {
            appender,
            ticket,
            members,
            layouts,
        } = group;
        let bucket = &appender.bucket;
        let durable = ticket.and_then(|ticket| appender.sync(ticket));
        let mut entries = Vec::with_capacity(members.len());
        let mut buried = Vec::new();
        for (member, layout) in members.iter().zip(layouts) {
            let (hash, incarnation) = begun.keys[*member].take().expect("it has begun");
            let footer = FooterEntry {
                hash,
                incarnation,
                layout,
            };
            let entry = Entry::new(bucket.id, &footer);
            let result = match &durable {
                Ok(()) => {
                    let span = layout.span();
                    bucket.count_record(span);
                    bucket.count_live(span);
                    Counters::add(&self.counters.put_records, 1);
                    Counters::add(&self.counters.put_bytes, span);
                    entries.push(footer);
                    match self.index.end_put(entry, |dead| self.bury(dead)) {
                        EndPut::Live => Ok(Stored::Written),
                        EndPut::Removed => {
                            buried.push(*member);
                            Err(PutError::Removed)
                        }
                        EndPut::Stale(current) => {
                            buried.push(*member);
                            Err(PutError::Stale { current })
                        }
                    }
                }
                Err(error) => {
                    // What a crash would find of it must not come to life: its key may be removed meanwhile.
                    self.log.note(entry.tombstone());
                    self.index.cancel_put(hash, incarnation);
                    Err(PutError::Io(copy(error)))
                }
            };
            results[*member] = Some(result);
        }
        bucket.entries.lock().append(&mut entries);
        if !buried.is_empty() {
            // What was written and is refused must stay dead even if what outlives it goes, in whatever way.
            if let Err(error) = self.log.commit(&[], &self.pen()) {
                for member in buried {
                    results[member] = Some(Err(PutError::Io(copy(&error))));
                }
            }
        }
        if let Err(error) = durable {
            tracing::warn!(bucket = bucket.id, %error, "records could not be written");
            let seal = appender.close();
            self.leave(&appender, seal);
        }
        if appender.settle() {
            self.leave(&appender, true);
        }
    }

    /// A record that lies on the disk is dead, without anybody having asked: before what makes it dead can be
    /// removed or reclaimed, that is durable.
    fn bury(&self, dead: &Entry) {
        self.tombstones(dead, |stone| self.log.note(stone));
        self.count_dead(dead);
    }
}

fn record<'a>(put: &Put<'a>) -> NewRecord<'a> {
    NewRecord {
        name: put.name,
        incarnation: put.incarnation,
        value: put.value,
    }
}

impl PutError {
    /// The same for another record of the group.
    fn again(&self) -> Self {
        match self {
            Self::InFlight => Self::InFlight,
            Self::Full {
                needed_bytes,
                used_bytes,
                capacity_bytes,
            } => Self::Full {
                needed_bytes: *needed_bytes,
                used_bytes: *used_bytes,
                capacity_bytes: *capacity_bytes,
            },
            Self::Io(error) => Self::Io(copy(error)),
            Self::Removed => Self::Removed,
            Self::Stale { current } => Self::Stale { current: *current },
            Self::TooLong { what, bytes, most } => Self::TooLong {
                what,
                bytes: *bytes,
                most: *most,
            },
        }
    }
}
