//! Copies what is alive in some buckets to a new one, and lets go of them.
//!
//! A transition file says what a crash has to do: while it says *prepared*, the sources count and the target is
//! rubbish; once it says *committed*, the target counts and the sources go. Readers find a record in the one or
//! the other. Whatever dies meanwhile gets a tombstone for both.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    append::Appender,
    bucket::{Bucket, Stage},
    counters::Counters,
    disk::read_exact,
    error::GcError,
    format::{
        BLOCK, END_OF_UNITS, Flaw,
        control::Control,
        file_name::FileName,
        footer::{self, FooterEntry},
        group::{Encoded, NewRecord, Plan},
        record::Layout,
    },
    gc::{GcReport, fitting},
    get::check_place,
    index::Entry,
    name::{Incarnation, Name},
    room::Grant,
    storage::{Storage, unless_gone},
};

/// Asked before so many bytes are read or written in so many operations; `false`: stop.
pub(crate) type Pace<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// Live bytes that are copied at once.
const PORTION: u64 = 4 << 20;

/// A compaction whose files are not tidied up yet, since the disk failed.
#[derive(Debug)]
pub(crate) struct Unfinished {
    target: Arc<Bucket>,
    sources: Vec<Arc<Bucket>>,
    committed: bool,
    /// The commit was tried, and may have come through.
    in_doubt: bool,
}

/// A record that is being copied.
struct Copied {
    from: Entry,
    to: FooterEntry,
}

/// What became of the records of the sources.
#[derive(Default)]
struct Copies {
    copied: Vec<Copied>,
    /// What was here and has no copy: damaged, or with a removal that has not ended.
    left: Vec<Entry>,
}

/// One record's bytes.
struct Raw {
    entry: Entry,
    tenant: Vec<u8>,
    key: Vec<u8>,
    incarnation: Incarnation,
    value: Vec<u8>,
}

impl Storage {
    /// Drops a sealed bucket in which nothing is alive.
    pub(crate) fn retire(&self, id: u32) -> Result<GcReport, GcError> {
        let bucket = self.claim(id)?;
        let alive = bucket.live_records.load(Ordering::Acquire) > 0;
        let bytes = bucket.file_bytes.load(Ordering::Relaxed);
        let done = if alive {
            Err(GcError::Unavailable { bucket: id })
        } else {
            self.drop_bucket(&bucket)
        };
        if let Err(error) = done {
            bucket.unclaim();
            return Err(error);
        }
        Counters::add(&self.counters.retired_buckets, 1);
        Counters::add(&self.counters.reclaimed_bytes, bytes);
        Ok(GcReport {
            buckets: 1,
            reclaimed_bytes: bytes,
            ..GcReport::default()
        })
    }

    /// Rewrites sealed buckets into as few as what is alive in them takes, one of these after the other.
    pub(crate) fn compact(&self, ids: &[u32], pace: Pace<'_>) -> Result<GcReport, GcError> {
        let (mut report, mut rest) = (GcReport::default(), ids);
        while !rest.is_empty() {
            // What is alive in a sealed bucket only becomes less.
            let live = rest.iter().map(|id| {
                let bucket = self.bucket(*id);
                bucket.map_or(0, |bucket| bucket.live_bytes.load(Ordering::Relaxed))
            });
            let most = self.config.bucket_bytes.min(self.room_to_collect());
            let (some, later) = rest.split_at(fitting(live, most));
            report.add(&self.compact_into_one(some, pace)?);
            rest = later;
        }
        Ok(report)
    }

    fn compact_into_one(&self, ids: &[u32], pace: Pace<'_>) -> Result<GcReport, GcError> {
        self.finish_compactions()?;
        let mut sources = Claims(Vec::new());
        for id in ids {
            sources.0.push(self.claim(*id)?);
        }
        let sum = |counter: fn(&Bucket) -> &AtomicU64| -> u64 {
            let all = sources.0.iter();
            all.map(|source| counter(source).load(Ordering::Relaxed))
                .sum()
        };
        let (bytes, records) = (
            sum(|source| &source.live_bytes),
            sum(|source| &source.live_records),
        );
        // With a head, a transition, and a block for the end of each portion.
        let blocks = 3 + bytes / PORTION + ids.len() as u64;
        let mut grant = self.grant(bytes + footer::bytes_of(records) + blocks * BLOCK)?;
        // What was replaced by records that are copied must stay dead without the sources.
        self.log
            .commit(&[], &self.pen())
            .map_err(GcError::io("writing tombstones"))?;
        let number = self.ids.take(&*self.disk, &self.controls);
        let number = number.map_err(GcError::io("taking a number"))?;
        if let Err(error) = self.write_transition(number, ids, false) {
            // It may be there: then the next start finds a transition without a target, and forgets it.
            self.undo_transition(number);
            return Err(GcError::io("preparing")(error));
        }
        let target = match self.make_bucket(number, None, FileName::Target) {
            Ok(target) => target,
            Err(error) => {
                // Whatever there is of it must go before the transition that explains it.
                if self.disk.sync().is_ok() {
                    self.undo_transition(number);
                }
                return Err(GcError::io("making a target")(error));
            }
        };
        // It is nobody else's to seal, evict or compact.
        let claimed = target.bucket.claim();
        debug_assert!(claimed, "it was just made");
        // From here on, what dies in a source dies in the target.
        for source in &sources.0 {
            source.moving_to.store(number, Ordering::SeqCst);
        }
        let mut unfinished = Unfinished {
            target: Arc::clone(&target.bucket),
            sources: std::mem::take(&mut sources.0),
            committed: false,
            in_doubt: false,
        };
        let mut report = GcReport::default();
        let copied = grant.write(BLOCK, 0).and_then(|()| {
            self.copy_all(&target, &unfinished.sources, pace, &mut grant, &mut report)
        });
        unfinished.in_doubt = copied.is_ok();
        let committed = copied.and_then(|copied| {
            let done = self.write_transition(number, ids, true);
            done.map_err(GcError::io("committing"))?;
            Ok(copied)
        });
        let copied = match committed {
            Ok(copied) => copied,
            Err(error) => {
                if let Err(later) = self.abort(&unfinished) {
                    tracing::warn!(error = %later, "a compaction could not be undone yet");
                    self.unfinished.lock().push(unfinished);
                }
                return Err(error);
            }
        };
        unfinished.committed = true;
        // From here on its records are found by its footer.
        target.bucket.set_stage(Stage::Sealed);
        self.keep_open(number, &**target.file());
        self.publish(&target.bucket, &copied);
        let before: u64 = unfinished
            .sources
            .iter()
            .map(|source| source.file_bytes.load(Ordering::Relaxed))
            .sum();
        let after = unfinished.target.file_bytes.load(Ordering::Relaxed);
        report.buckets = unfinished.sources.len() as u64;
        report.reclaimed_bytes = before.saturating_sub(after);
        Counters::add(&self.counters.compacted_buckets, report.buckets);
        Counters::add(&self.counters.moved_bytes, report.moved_bytes);
        Counters::add(&self.counters.lost_records, report.lost_records);
        Counters::add(&self.counters.reclaimed_bytes, report.reclaimed_bytes);
        if let Err(error) = self.tidy_up(&unfinished) {
            self.unfinished.lock().push(unfinished);
            return Err(GcError::io("tidying up")(error));
        }
        Ok(report)
    }

    /// Copies what is alive and makes it durable.
    fn copy_all(
        &self,
        target: &Appender,
        sources: &[Arc<Bucket>],
        pace: Pace<'_>,
        grant: &mut Grant<'_>,
        report: &mut GcReport,
    ) -> Result<Copies, GcError> {
        let (mut copies, mut tail) = (Copies::default(), target.tail());
        for source in sources {
            let (mut portion, mut bytes) = (Vec::new(), 0);
            for entry in self.entries_of(source) {
                if !self.index.is_live(&entry) {
                    if self.index.is_here(&entry) {
                        copies.left.push(entry);
                    }
                    continue;
                }
                if !pace(entry.span(), 1) {
                    return Err(GcError::Stopped);
                }
                let read = self.read_raw(source, entry).inspect_err(|_| {
                    // The others need not wait for it.
                    source
                        .unreadable_at
                        .store(self.now_ms() + 1, Ordering::Relaxed);
                });
                match read? {
                    Ok(raw) => {
                        bytes += entry.span();
                        portion.push(raw);
                    }
                    Err(flaw) => {
                        // It could not be read before either.
                        tracing::warn!(bucket = source.id, %flaw, "a damaged record was not copied");
                        copies.left.push(entry);
                        report.lost_records += 1;
                    }
                }
                if bytes >= PORTION {
                    self.copy_portion(
                        target,
                        &portion,
                        &mut tail,
                        &mut copies.copied,
                        pace,
                        grant,
                    )?;
                    portion.clear();
                    bytes = 0;
                }
            }
            if !portion.is_empty() {
                self.copy_portion(target, &portion, &mut tail, &mut copies.copied, pace, grant)?;
            }
        }
        let entries: Vec<_> = copies.copied.iter().map(|copied| copied.to).collect();
        grant.write(footer::bytes_of(entries.len() as u64), 0)?;
        self.write_footer(&target.bucket, &**target.file(), &entries, tail)
            .map_err(GcError::io("sealing a target"))?;
        report.moved_records = entries.len() as u64;
        report.moved_bytes = entries.iter().map(|entry| entry.layout.span()).sum();
        Ok(copies)
    }

    fn read_raw(&self, source: &Bucket, entry: Entry) -> Result<Result<Raw, Flaw>, GcError> {
        let failed = GcError::io("reading a record");
        let read = || -> io::Result<Result<Raw, Flaw>> {
            let file = self.open_file(source)?;
            let layout = entry.layout();
            let header_bytes = (layout.value_at() - layout.at) as usize;
            let all = match read_exact(
                &*file,
                layout.at,
                header_bytes + layout.value_bytes as usize,
            ) {
                Ok(all) => all,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(Err(Flaw::Short));
                }
                Err(error) => return Err(error),
            };
            let (header, value) = all.split_at(header_bytes);
            let checked = check_place(header, source.stamp, &layout).and_then(|record| {
                record.verify(0, value)?;
                if record.incarnation != entry.incarnation {
                    return Err(Flaw::Incarnation);
                }
                Ok(record)
            });
            Ok(checked.map(|record| Raw {
                entry,
                tenant: record.name.tenant.to_vec(),
                key: record.name.key.to_vec(),
                incarnation: record.incarnation,
                value: value.to_vec(),
            }))
        };
        read().map_err(failed)
    }

    fn copy_portion(
        &self,
        target: &Appender,
        portion: &[Raw],
        tail: &mut u64,
        copied: &mut Vec<Copied>,
        pace: Pace<'_>,
        grant: &mut Grant<'_>,
    ) -> Result<(), GcError> {
        let records: Vec<_> = portion
            .iter()
            .map(|raw| NewRecord {
                name: Name::new(&raw.tenant, &raw.key),
                incarnation: raw.incarnation,
                value: &raw.value,
            })
            .collect();
        let plan = Plan::new(records.iter().copied(), self.config.aligned_from);
        if *tail + plan.bytes > END_OF_UNITS {
            // Records that shared blocks may each need their own by now.
            let source = io::ErrorKind::FileTooLarge.into();
            return Err(GcError::io("copying records")(source));
        }
        if !pace(plan.bytes, 1) {
            return Err(GcError::Stopped);
        }
        grant.write(
            plan.bytes,
            footer::bytes_of((copied.len() + portion.len()) as u64),
        )?;
        let encoded = Encoded::new(&records, &plan, target.bucket.stamp, *tail);
        self.grow_file_bytes(&target.bucket, plan.bytes);
        target
            .file()
            .write_at(*tail, &encoded.pieces())
            .map_err(GcError::io("copying records"))?;
        for (raw, layout) in portion.iter().zip(&plan.layouts) {
            copied.push(Copied {
                from: raw.entry,
                to: FooterEntry {
                    hash: raw.entry.hash,
                    incarnation: raw.incarnation,
                    layout: Layout {
                        at: *tail + layout.at,
                        ..*layout
                    },
                },
            });
        }
        *tail += plan.bytes;
        Ok(())
    }

    /// Has readers find the copies. What died meanwhile is as dead in the target.
    fn publish(&self, target: &Bucket, copies: &Copies) {
        for Copied { from, to } in &copies.copied {
            let span = to.layout.span();
            target.count_record(span);
            target.count_live(span);
            let entry = Entry::new(target.id, to);
            if self.index.relocate(from, &entry) {
                self.count_dead(from);
            } else {
                target.count_dead(span);
            }
        }
        // What has no copy goes with its bucket.
        for entry in &copies.left {
            if self.index.purge(entry) {
                self.count_dead(entry);
            }
        }
    }

    fn write_transition(&self, target: u32, sources: &[u32], committed: bool) -> io::Result<()> {
        let name = FileName::Transition(target);
        let sources = sources.to_vec();
        let content = Control::Transition {
            committed,
            target,
            sources,
        };
        let content = content.encode();
        self.controls.replace(&*self.disk, name, &content)
    }

    /// Forgets a transition that has no target.
    fn undo_transition(&self, target: u32) {
        let name = FileName::Transition(target);
        let removed = self.disk.remove(&name.text());
        if removed.is_ok() || removed.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            self.controls.set(name, 0);
        }
    }

    /// Goes back to the sources.
    fn abort(&self, unfinished: &Unfinished) -> io::Result<()> {
        let target = &unfinished.target;
        let ids: Vec<_> = unfinished.sources.iter().map(|source| source.id).collect();
        if unfinished.in_doubt {
            // Should the commit have come through after all, this takes it back before the target goes.
            self.write_transition(target.id, &ids, false)?;
        }
        unless_gone(self.disk.remove(&FileName::Target(target.id).text()))?;
        self.disk.sync()?;
        self.forget(target);
        self.remove_transition(target.id)?;
        for source in &unfinished.sources {
            source.moving_to.store(0, Ordering::SeqCst);
            source.unclaim();
        }
        Ok(())
    }

    /// Does what a commit has decided.
    fn tidy_up(&self, unfinished: &Unfinished) -> io::Result<()> {
        // What died of a record that had no copy must stay dead without it.
        self.log.commit(&[], &self.pen())?;
        let target = &unfinished.target;
        let names = [FileName::Target(target.id), FileName::Sealed(target.id)];
        unless_gone(self.disk.rename(&names[0].text(), &names[1].text()))?;
        for source in &unfinished.sources {
            unless_gone(self.disk.remove(&FileName::Sealed(source.id).text()))?;
        }
        self.disk.sync()?;
        for source in &unfinished.sources {
            self.forget(source);
        }
        self.remove_transition(target.id)?;
        target.unclaim();
        Ok(())
    }

    /// Ends what could not be ended before.
    pub(crate) fn finish_compactions(&self) -> Result<(), GcError> {
        let mut all = std::mem::take(&mut *self.unfinished.lock());
        while let Some(unfinished) = all.pop() {
            let done = if unfinished.committed {
                self.tidy_up(&unfinished)
            } else {
                self.abort(&unfinished)
            };
            if let Err(error) = done {
                let mut rest = self.unfinished.lock();
                rest.push(unfinished);
                rest.append(&mut all);
                return Err(GcError::io("ending an earlier compaction")(error));
            }
        }
        Ok(())
    }

    fn remove_transition(&self, target: u32) -> io::Result<()> {
        let name = FileName::Transition(target);
        unless_gone(self.disk.remove(&name.text()))?;
        self.controls.set(name, 0);
        self.disk.sync()
    }
}

/// Buckets that are given back when this goes.
struct Claims(Vec<Arc<Bucket>>);

impl Drop for Claims {
    fn drop(&mut self) {
        for bucket in &self.0 {
            bucket.unclaim();
        }
    }
}
