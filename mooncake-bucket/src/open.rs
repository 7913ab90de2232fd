//! Opening a directory: who has it, what is in it, and what a crash left to be done.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;

use crate::{
    append::Appender,
    bucket::{Bucket, Stage},
    config::BucketConfig,
    disk::{Disk, LockFailure, replace},
    error::{OpenError, is_full},
    format::{
        Flaw,
        control::Control,
        file_name::FileName,
        footer::FooterEntry,
        tombstone::{ANY_BUCKET, Tombstone},
    },
    ids::{Ids, fill},
    index::Entry,
    recover::{
        scan::{Scanned, scan},
        survey::{Survey, damaged},
        transition::{quarantine, resolve},
    },
    storage::Storage,
    tombstones::scan_log,
};

/// What was found when a storage was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// How long it took.
    pub took: Duration,
    /// Buckets that can be read.
    pub buckets: u64,
    /// Records that can be read.
    pub records: u64,
    /// Buckets that a crash had left open; they were looked through and sealed.
    pub reopened_buckets: u64,
    /// Sealed buckets whose index was damaged; they were looked through and, if anything could be read, sealed anew, else
    /// set aside.
    pub rebuilt_buckets: u64,
    /// Records that were not whole: of puts that a crash ended, or, in rebuilt buckets, damaged. Of a group whose head is
    /// damaged those count that can be found behind it, or one.
    pub broken_records: u64,
    /// Compactions that a crash had ended.
    pub transitions: u64,
    /// Tombstones of records that are still on the disk.
    pub tombstones: u64,
    /// Logs of tombstones whose last frame is not whole: of removals that a crash ended and that were not answered. A frame
    /// that went bad later, and has none behind it, looks the same.
    pub torn_logs: u64,
    /// Damaged logs of tombstones that were accepted, see [`OpenOptions::accept_damaged_logs`]: some of what they said is dead
    /// may be alive again.
    ///
    /// [`OpenOptions::accept_damaged_logs`]: crate::OpenOptions::accept_damaged_logs
    pub damaged_logs: u64,
    /// Files that are set aside, now or before.
    pub quarantined_files: u64,
    /// Files that are not ours, and were left alone.
    pub foreign_files: u64,
    /// Files that were not finished, and were removed.
    pub unfinished_files: u64,
}

/// A held directory lock.
pub(crate) type Held = Box<dyn Send + Sync>;

pub(crate) fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What an operator has decided about a directory that is not as it should be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choices {
    pub(crate) adopt: bool,
    pub(crate) lenient: bool,
    pub(crate) existing: bool,
}

/// Takes the directory, makes it a storage or recovers the one that is there.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    config: BucketConfig,
    choices: Choices,
) -> Result<(Storage, Recovery, Held), OpenError> {
    config.check()?;
    if choices.existing {
        // Before anything is written, be it only the lock.
        let survey = Survey::new(&*disk)?;
        if survey.identity.is_none() && !survey.has_ours() {
            return Err(OpenError::NoStorage);
        }
    }
    let begun = std::time::Instant::now();
    let words = format!(
        "process {}, since {} (seconds since 1970)",
        std::process::id(),
        unix_seconds()
    );
    let held = disk.lock(&words).map_err(|failure| match failure {
        LockFailure::Held(holder) if holder.is_empty() => OpenError::Locked {
            holder: "a process that did not say its name".into(),
        },
        LockFailure::Held(holder) => OpenError::Locked { holder },
        LockFailure::Io(source) => OpenError::Io {
            what: "locking the directory".into(),
            source,
        },
    })?;
    let mut survey = Survey::new(&*disk)?;
    // Names that a process gave or took before it died may not be durable, and what is seen now has to be.
    disk.sync()
        .map_err(OpenError::io("syncing the directory"))?;
    let mut recovery = Recovery {
        foreign_files: survey.foreign.len() as u64,
        unfinished_files: survey.temporary.len() as u64,
        ..Recovery::default()
    };
    if !survey.foreign.is_empty() {
        let examples = &survey.foreign[..survey.foreign.len().min(3)];
        tracing::warn!(
            files = survey.foreign.len(),
            ?examples,
            "files that are not ours were left alone"
        );
    }
    for name in &survey.temporary {
        disk.remove(name)
            .map_err(OpenError::io(format!("removing {name}")))?;
    }
    let identity = identify(&*disk, &mut survey, choices.adopt)?;
    recovery.transitions = resolve(&*disk, &mut survey, identity)?;
    let graves = Graves::read(&*disk, &survey, identity, choices.lenient, &mut recovery)?;
    let storage = Storage::new(disk, config, identity, Ids::new(survey.below));
    for (name, bytes) in &survey.controls {
        storage.controls.set(*name, *bytes);
    }
    scan_all(&storage, &mut survey, &graves, &mut recovery)?;
    graves.renew(&storage, &mut survey, &mut recovery)?;
    let quarantined = &storage.quarantined_bytes;
    quarantined.store(survey.quarantined_bytes, Ordering::Relaxed);
    recovery.quarantined_files = survey.quarantined_files;
    recovery.buckets = storage.buckets.read().len() as u64;
    recovery.records = storage.index.len();
    recovery.took = begun.elapsed();
    Ok((storage, recovery, held))
}

/// Which storage this is; a directory without buckets becomes a new one.
fn identify(disk: &dyn Disk, survey: &mut Survey, adopt: bool) -> Result<[u8; 16], OpenError> {
    if let Some(identity) = survey.identity {
        return Ok(identity);
    }
    let known = if survey.has_ours() {
        let known = survey.identity_of_buckets(disk).filter(|_| adopt);
        Some(known.ok_or(OpenError::NoIdentity)?)
    } else {
        None
    };
    let storage = match known {
        Some(storage) => storage,
        None => {
            let mut storage = [0; 16];
            fill(&mut storage).map_err(OpenError::io("drawing an identity"))?;
            storage
        }
    };
    let created = unix_seconds();
    let content = Control::Identity { storage, created }.encode();
    let name = FileName::Identity;
    replace(disk, &name.text(), &content).map_err(OpenError::io("writing the identity"))?;
    survey.controls.push((name, content.len() as u64));
    Ok(storage)
}

/// What the logs say is dead.
struct Graves {
    all: HashSet<Tombstone>,
    /// Those of them that are still on the disk.
    needed: Mutex<Vec<Tombstone>>,
    /// Logs that could be read in part.
    damaged_logs: Vec<u32>,
}

impl Graves {
    /// `lenient`: of a damaged log what can be read counts.
    fn read(
        disk: &dyn Disk,
        survey: &Survey,
        identity: [u8; 16],
        lenient: bool,
        recovery: &mut Recovery,
    ) -> Result<Self, OpenError> {
        let (mut all, mut damaged_logs) = (HashSet::new(), Vec::new());
        for number in &survey.logs {
            let name = FileName::Tombstones(*number);
            let read = scan_log(disk, *number, identity)
                .map_err(OpenError::io(format!("reading {}", name.text())))?;
            all.extend(read.stones);
            recovery.torn_logs += u64::from(read.torn);
            match read.flaw {
                None => {}
                Some(flaw) if lenient && !matches!(flaw, Flaw::Version(_)) => {
                    tracing::error!(
                        log = name.text(), %flaw,
                        "a log of tombstones is damaged: what it said is dead may come back"
                    );
                    damaged_logs.push(*number);
                }
                Some(flaw) => return Err(damaged(name, flaw)),
            }
        }
        recovery.damaged_logs = damaged_logs.len() as u64;
        Ok(Self {
            all,
            needed: Mutex::default(),
            damaged_logs,
        })
    }

    /// Whether a record is dead; if so, it keeps a tombstone, which names its place from now on.
    fn hold(&self, entry: &Entry) -> bool {
        let stones = entry.tombstone().and_wider();
        let dead = stones.iter().any(|stone| self.all.contains(stone));
        if dead {
            self.keep(entry);
        }
        dead
    }

    fn keep(&self, entry: &Entry) {
        self.needed.lock().push(entry.tombstone());
    }

    /// Puts one log with what is needed in place of all there are.
    fn renew(
        self,
        storage: &Storage,
        survey: &mut Survey,
        recovery: &mut Recovery,
    ) -> Result<(), OpenError> {
        let whole = survey.logs.iter().copied();
        let whole = whole.filter(|number| !self.damaged_logs.contains(number));
        let old: Vec<u32> = whole.collect();
        let mut needed = std::mem::take(&mut *self.needed.lock());
        needed.sort_unstable();
        needed.dedup();
        recovery.tombstones = needed.len() as u64;
        // What was not found, of a put that failed or where the disk could not read, may be found once an index is made anew.
        {
            let buckets = storage.buckets.read();
            let places = self.all.iter().filter(|stone| stone.place().is_some());
            needed.extend(places.filter(|stone| buckets.contains_key(&stone.bucket)));
        }
        needed.sort_unstable();
        needed.dedup();
        let rewritten = if needed.is_empty() && old.is_empty() {
            Ok(())
        } else {
            storage.log.rewrite(&needed, &old, &storage.pen())
        };
        match rewritten {
            // A full disk is no reason not to serve: what is dead is known, and the logs that say so stay.
            Err(error) if is_full(&error) => {
                // Only what they do not say in so many words is owed: who owes nothing can let go of dead buckets.
                for stone in needed.into_iter().filter(|stone| !self.all.contains(stone)) {
                    storage.log.note(stone);
                }
                // They would kill what is put anew as well, wherever that is.
                let anywhere = self.all.iter().filter(|stone| stone.bucket == ANY_BUCKET);
                for stone in anywhere {
                    storage.index.refuse(stone.hash, stone.incarnation);
                }
                Ok(())
            }
            Err(error) => Err(OpenError::io("writing tombstones")(error)),
            Ok(()) => self.set_aside(storage, survey),
        }
    }

    /// What they said is written elsewhere, as far as it could be read.
    fn set_aside(self, storage: &Storage, survey: &mut Survey) -> Result<(), OpenError> {
        let failed = || OpenError::io("setting aside a damaged log");
        for number in &self.damaged_logs {
            let name = FileName::Tombstones(*number);
            quarantine(&*storage.disk, survey, name).map_err(failed())?;
            storage.controls.set(name, 0);
        }
        if self.damaged_logs.is_empty() {
            return Ok(());
        }
        storage.disk.sync().map_err(failed())
    }
}

/// Looks at all buckets, several at a time.
fn scan_all(
    storage: &Storage,
    survey: &mut Survey,
    graves: &Graves,
    recovery: &mut Recovery,
) -> Result<(), OpenError> {
    let work: Vec<_> = survey
        .buckets
        .iter()
        .map(|(id, (name, bytes))| (*id, *name, *bytes))
        .collect();
    // A record may turn out to be dead when another bucket is looked at: all are known beforehand.
    let shells: BTreeMap<u32, Live> = work
        .iter()
        .map(|(id, _, _)| (*id, Live::default()))
        .collect();
    let results = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        let look = || {
            while let Some((id, name, _)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                let scanned = scan(
                    &*storage.disk,
                    *name,
                    *id,
                    storage.identity,
                    &storage.hasher,
                );
                match scanned {
                    Ok(mut scanned) => {
                        take_in(storage, *id, &mut scanned, graves, &shells);
                        results.lock().push((*id, *name, scanned));
                    }
                    Err(source) => {
                        let what = format!("reading {}", name.text());
                        *failure.lock() = Some(OpenError::Io { what, source });
                        return;
                    }
                }
            }
        };
        let threads = storage.config.open_threads.min(work.len());
        for _ in 1..threads {
            scope.spawn(look);
        }
        look();
    });
    if let Some(failure) = failure.into_inner() {
        return Err(failure);
    }
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(id, _, _)| *id);
    let unreadable = |scanned: &Scanned| matches!(scanned, Scanned::Damaged(Flaw::Unreadable));
    let lost = results.iter().filter(|(_, _, scanned)| unreadable(scanned));
    if 2 * lost.count() >= results.len().max(1) {
        // That is not a bucket, that is the disk, and it may come back.
        return Err(OpenError::Io {
            what: "reading the buckets".into(),
            source: io::Error::other(Flaw::Unreadable),
        });
    }
    let mut renamed = false;
    for (id, name, scanned) in results {
        renamed |= settle(storage, survey, id, name, scanned, &shells[&id], recovery)?;
    }
    if renamed {
        storage
            .disk
            .sync()
            .map_err(OpenError::io("syncing the directory"))?;
    }
    Ok(())
}

/// What is alive in a bucket.
#[derive(Debug, Default)]
struct Live {
    bytes: AtomicU64,
    records: AtomicU64,
}

/// Counts what is in a bucket, and has what is alive found. Of a sealed one only the sums are kept.
fn take_in(
    storage: &Storage,
    id: u32,
    scanned: &mut Scanned,
    graves: &Graves,
    shells: &BTreeMap<u32, Live>,
) {
    let Scanned::Whole {
        bucket,
        entries,
        unsealed,
        ..
    } = scanned
    else {
        return;
    };
    for record in &*entries {
        let entry = Entry::new(id, record);
        bucket.count_record(entry.span());
        if graves.hold(&entry) {
            continue;
        }
        let live = &shells[&id];
        live.bytes.fetch_add(entry.span(), Ordering::Relaxed);
        live.records.fetch_add(1, Ordering::Relaxed);
        if let Some(loser) = storage.index.recover(entry) {
            // Dead without a tombstone: it gets one, before the winner can go.
            let shell = &shells[&loser.bucket];
            shell.bytes.fetch_sub(loser.span(), Ordering::Relaxed);
            shell.records.fetch_sub(1, Ordering::Relaxed);
            graves.keep(&loser);
        }
    }
    if unsealed.is_none() {
        *entries = Vec::new();
    }
}

/// Counts a bucket, and seals it if it is not; `true`: a name has changed.
fn settle(
    storage: &Storage,
    survey: &mut Survey,
    id: u32,
    name: FileName,
    scanned: Scanned,
    live: &Live,
    recovery: &mut Recovery,
) -> Result<bool, OpenError> {
    let failed = || OpenError::io(format!("recovering {}", name.text()));
    let (bucket, file_bytes, entries, unsealed, rebuilt) = match scanned {
        // It is whole, and for a program that knows it.
        Scanned::Damaged(flaw @ Flaw::Version(_)) => return Err(damaged(name, flaw)),
        Scanned::Damaged(flaw) => {
            let torn = matches!(name, FileName::Open(_));
            if torn && is_new(storage, name).map_err(failed())? {
                // It never had a record: its head comes first, durably.
                storage.disk.remove(&name.text()).map_err(failed())?;
                recovery.unfinished_files += 1;
            } else {
                tracing::warn!(bucket = id, %flaw, "a bucket is damaged");
                quarantine(&*storage.disk, survey, name).map_err(failed())?;
            }
            return Ok(true);
        }
        Scanned::Whole {
            bucket,
            file_bytes,
            entries,
            unsealed,
            broken,
            rebuilt,
            ..
        } => {
            recovery.broken_records += broken;
            recovery.rebuilt_buckets += u64::from(rebuilt);
            recovery.reopened_buckets += u64::from(matches!(name, FileName::Open(_)));
            (bucket, file_bytes, entries, unsealed, rebuilt)
        }
    };
    if bucket.records.load(Ordering::Relaxed) == 0 {
        if rebuilt {
            // It had records, or it would not have been sealed: somebody may make more of it than we can.
            tracing::warn!(bucket = id, "nothing in a sealed bucket can be read");
            quarantine(&*storage.disk, survey, name).map_err(failed())?;
            return Ok(true);
        }
        storage.disk.remove(&name.text()).map_err(failed())?;
        return Ok(true);
    }
    bucket
        .live_bytes
        .store(live.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    bucket
        .live_records
        .store(live.records.load(Ordering::Relaxed), Ordering::Relaxed);
    storage.set_file_bytes(&bucket, file_bytes);
    let renamed = seal(storage, &bucket, name, &entries, unsealed).map_err(failed())?;
    let bucket = Arc::new(bucket);
    if let Some(tail) = unsealed.filter(|_| bucket.stage() != Stage::Sealed) {
        *bucket.entries.lock() = entries;
        let file = storage.disk.open(&name.text()).map_err(failed())?;
        let appender = Appender::found(Arc::clone(&bucket), file, tail);
        storage.unsealed.lock().push(Arc::new(appender));
    }
    storage.buckets.write().insert(id, bucket);
    Ok(renamed)
}

/// Whether a file has nothing behind its first block.
fn is_new(storage: &Storage, name: FileName) -> io::Result<bool> {
    let bytes = storage.disk.open(&name.text())?.len()?;
    Ok(bytes <= crate::format::BLOCK)
}

fn seal(
    storage: &Storage,
    bucket: &Bucket,
    name: FileName,
    entries: &[FooterEntry],
    unsealed: Option<u64>,
) -> io::Result<bool> {
    if let Some(tail) = unsealed {
        let file = storage.disk.open(&name.text())?;
        match storage.write_footer(bucket, &*file, entries, tail) {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                // It is served as it is, once that is durable, and costs a longer look next time.
                file.sync()?;
                storage.set_file_bytes(bucket, file.len()?);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    let sealed = FileName::Sealed(bucket.id);
    let renames = name != sealed;
    if renames {
        storage.disk.rename(&name.text(), &sealed.text())?;
    }
    bucket.set_stage(Stage::Sealed);
    Ok(renames)
}
