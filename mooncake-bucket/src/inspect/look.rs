//! Reads all that says what is alive.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    io,
    sync::{Arc, atomic::Ordering},
};

use super::{Inspection, Looked, SeenBucket, Totals};
use crate::{
    bucket::Stage,
    disk::{Disk, read_exact},
    error::OpenError,
    format::{
        BLOCK, Flaw,
        control::Control,
        file_name::FileName,
        head::{self, Head},
        tombstone::Tombstone,
    },
    hash::Hasher,
    index::{Entry, Index},
    recover::{
        scan::{Scanned, scan},
        survey::{Survey, damaged, read_control},
        transition::whole_bytes,
    },
    tombstones::scan_log,
};

/// Who has it open renames and removes files meanwhile, so often within one look at most.
const ATTEMPTS: usize = 20;

pub(super) fn look(disk: &Arc<dyn Disk>) -> Result<Inspection, OpenError> {
    let (mut attempt, mut scans) = (1, Scans::default());
    loop {
        match look_once(disk, &mut scans, attempt == ATTEMPTS) {
            Err(OpenError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS =>
            {
                attempt += 1;
            }
            looked => return looked,
        }
    }
}

/// Buckets that were read, with the names that they had then. Those that never change are not read again when something
/// else went, or nobody would be done beside a busy holder.
type Scans = BTreeMap<u32, (FileName, Scanned)>;

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// A listing may miss a file that is given another name meanwhile: it counts once the names are the same before and
/// after it.
fn survey(disk: &dyn Disk) -> Result<Survey, OpenError> {
    let mut attempt = 1;
    loop {
        let before = names(disk)?;
        let survey = Survey::new(disk)?;
        if names(disk)? == before || attempt == ATTEMPTS {
            return Ok(survey);
        }
        attempt += 1;
    }
}

fn names(disk: &dyn Disk) -> Result<BTreeSet<FileName>, OpenError> {
    let listed = disk.list();
    let listed = listed.map_err(OpenError::io("listing the directory"))?;
    let ours = listed.iter().filter_map(|file| FileName::parse(&file.name));
    Ok(ours
        .filter(|name| !matches!(name, FileName::Temporary))
        .collect())
}

fn look_once(disk: &Arc<dyn Disk>, scans: &mut Scans, last: bool) -> Result<Inspection, OpenError> {
    let mut survey = survey(&**disk)?;
    let (identity, created) = identify(&**disk, &survey)?;
    let mut totals = Totals {
        transitions: survey.transitions.len() as u64,
        quarantined_files: survey.quarantined_files,
        quarantined_bytes: survey.quarantined_bytes,
        foreign_files: survey.foreign.len() as u64,
        file_bytes: survey.file_bytes,
        allocated_bytes: survey.allocated_bytes,
        ..Totals::default()
    };
    let (mut flaws, mut tombstones) = (Vec::new(), Vec::new());
    // What was removed before anything was read is never shown.
    for number in &survey.logs {
        let name = FileName::Tombstones(*number).text();
        let read = scan_log(&**disk, *number, identity)
            .map_err(OpenError::io(format!("reading {name}")))?;
        tombstones.extend(read.stones.into_iter().map(|stone| (*number, stone)));
        totals.torn_logs += u64::from(read.torn);
        if let Some(flaw) = read.flaw {
            totals.damaged_logs += 1;
            flaws.push((name, flaw));
        }
    }
    totals.tombstones = tombstones.len() as u64;
    resolve(&**disk, &mut survey, identity, &mut flaws, last)?;
    let mut inspection = Inspection {
        disk: Arc::clone(disk),
        identity,
        created,
        index: Index::new(),
        buckets: BTreeMap::new(),
        seen: Vec::new(),
        tombstones,
        totals,
        flaws,
    };
    inspection.scan_buckets(&survey, scans, last)?;
    inspection.read_buckets(&survey, scans);
    Ok(inspection)
}

/// Which storage it is, by its own word, or else by its buckets'.
fn identify(disk: &dyn Disk, survey: &Survey) -> Result<([u8; 16], u64), OpenError> {
    match survey.identity {
        Some(identity) => {
            let Control::Identity { created, .. } = read_control(disk, FileName::Identity)? else {
                return Err(damaged(FileName::Identity, Flaw::Header));
            };
            Ok((identity, created))
        }
        None if survey.has_ours() => {
            let identity = survey.identity_of_buckets(disk);
            Ok((identity.ok_or(OpenError::NoIdentity)?, 0))
        }
        None => Err(OpenError::NoStorage),
    }
}

/// What a start would make of compactions that are not over, without doing it.
fn resolve(
    disk: &dyn Disk,
    survey: &mut Survey,
    identity: [u8; 16],
    flaws: &mut Vec<(String, Flaw)>,
    last: bool,
) -> Result<(), OpenError> {
    for number in std::mem::take(&mut survey.transitions) {
        let name = FileName::Transition(number);
        let Control::Transition {
            committed,
            target,
            sources,
        } = read_control(disk, name)?
        else {
            return Err(damaged(name, Flaw::Header));
        };
        let here = if survey.targets.remove(&target) {
            Some(FileName::Target(target))
        } else {
            survey.buckets.get(&target).map(|(name, _)| *name)
        };
        if !committed {
            survey.buckets.remove(&target);
            continue;
        }
        let failed = OpenError::io(format!("reading the target of {}", name.text()));
        // It may get its last name meanwhile, or go as well.
        let sealed = FileName::Sealed(target);
        let here = here.map(|name| match disk.open(&name.text()) {
            Err(error) if is_gone(&error) => sealed,
            _ => name,
        });
        if !last && let Some(Err(error)) = here.map(|name| disk.open(&name.text())) {
            return Err(failed(error));
        }
        let whole = here.map_or(Ok(None), |name| whole_bytes(disk, name, target, identity));
        for source in &sources {
            survey.buckets.remove(source);
        }
        match (here, whole.map_err(failed)?) {
            (Some(here), Some(bytes)) => {
                survey.buckets.insert(target, (here, bytes));
            }
            _ => {
                survey.buckets.remove(&target);
                flaws.push((FileName::Target(target).text(), Flaw::Short));
            }
        }
    }
    Ok(())
}

/// What the logs say of a record.
struct Dead(HashSet<Tombstone>);

impl Dead {
    fn covers(&self, entry: &Entry) -> bool {
        let stones = entry.tombstone().and_wider();
        stones.iter().any(|stone| self.0.contains(stone))
    }
}

impl Inspection {
    /// Reads what was not read before. What went in vain again and again is counted.
    fn scan_buckets(
        &mut self,
        survey: &Survey,
        scans: &mut Scans,
        last: bool,
    ) -> Result<(), OpenError> {
        let hasher = Hasher::new(self.identity);
        scans.retain(|id, (name, _)| {
            matches!(name, FileName::Sealed(_)) && survey.buckets.contains_key(id)
        });
        for (id, (listed, _)) in &survey.buckets {
            if scans.contains_key(id) {
                continue;
            }
            let read = |name| scan(&*self.disk, name, *id, self.identity, &hasher);
            let sealed = FileName::Sealed(*id);
            let (name, scanned) = match read(*listed) {
                Err(error) if is_gone(&error) && *listed != sealed => (sealed, read(sealed)),
                scanned => (*listed, scanned),
            };
            match scanned {
                Err(error) if last && is_gone(&error) => self.totals.gone_buckets += 1,
                Err(error) => {
                    return Err(OpenError::io(format!("reading {}", name.text()))(error));
                }
                Ok(scanned) => {
                    scans.insert(*id, (name, scanned));
                }
            }
        }
        Ok(())
    }

    fn read_buckets(&mut self, survey: &Survey, scans: &mut Scans) {
        let dead = Dead(self.tombstones.iter().map(|(_, stone)| *stone).collect());
        let mut live: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (id, (_, listed_bytes)) in &survey.buckets {
            let Some((name, scanned)) = scans.remove(id) else {
                self.totals.file_bytes -= listed_bytes;
                continue;
            };
            let mut seen = SeenBucket {
                id: *id,
                file: name.text(),
                sealed: !matches!(name, FileName::Open(_)),
                created: 0,
                file_bytes: *listed_bytes,
                live_bytes: 0,
                dead_bytes: 0,
                live_records: 0,
                dead_records: 0,
                broken_records: 0,
                passed_records: 0,
                flaw: None,
            };
            match scanned {
                // One that was just made has no head yet.
                Scanned::Damaged(_) if !seen.sealed && *listed_bytes <= BLOCK => {}
                Scanned::Damaged(flaw) => {
                    seen.flaw = Some(flaw);
                    self.flaws.push((name.text(), flaw));
                }
                Scanned::Whole {
                    bucket,
                    entries,
                    broken,
                    passed,
                    rebuilt,
                    file_bytes,
                    ..
                } => {
                    seen.created = self.born(name);
                    (seen.broken_records, seen.passed_records) = (broken, passed);
                    // Who has it open writes to it.
                    seen.file_bytes = file_bytes;
                    self.totals.file_bytes += file_bytes.saturating_sub(*listed_bytes);
                    if rebuilt {
                        seen.flaw = Some(Flaw::Header);
                        self.flaws.push((name.text(), Flaw::Header));
                    }
                    for record in &entries {
                        let entry = Entry::new(*id, record);
                        bucket.count_record(entry.span());
                        if dead.covers(&entry) {
                            continue;
                        }
                        let (bytes, records) = live.entry(*id).or_default();
                        (*bytes, *records) = (*bytes + entry.span(), *records + 1);
                        if let Some(loser) = self.index.recover(entry) {
                            let (bytes, records) = live.entry(loser.bucket).or_default();
                            (*bytes, *records) = (*bytes - loser.span(), *records - 1);
                        }
                    }
                    let sealed = bucket.stage() == Stage::Sealed;
                    let looked = Looked {
                        name,
                        bucket,
                        walked: (!sealed).then_some(entries),
                    };
                    self.buckets.insert(*id, looked);
                }
            }
            self.seen.push(seen);
        }
        self.add_up(&live);
    }

    fn add_up(&mut self, live: &BTreeMap<u32, (u64, u64)>) {
        let totals = &mut self.totals;
        for seen in &mut self.seen {
            totals.buckets += 1;
            totals.sealed_buckets += u64::from(seen.sealed);
            totals.broken_records += seen.broken_records;
            let Some(looked) = self.buckets.get(&seen.id) else {
                totals.damaged_buckets += u64::from(seen.flaw.is_some());
                continue;
            };
            let records = looked.bucket.records.load(Ordering::Relaxed);
            let bytes = looked.bucket.record_bytes.load(Ordering::Relaxed);
            (seen.live_bytes, seen.live_records) = live.get(&seen.id).copied().unwrap_or_default();
            seen.dead_bytes = bytes - seen.live_bytes;
            seen.dead_records = records - seen.live_records;
            totals.live_bytes += seen.live_bytes;
            totals.dead_bytes += seen.dead_bytes;
            totals.live_records += seen.live_records;
            totals.dead_records += seen.dead_records;
        }
        let records = totals.live_bytes + totals.dead_bytes;
        totals.overhead_bytes = totals.file_bytes.saturating_sub(records);
    }

    fn born(&self, name: FileName) -> u64 {
        let file = self.disk.open(&name.text());
        let block = file.and_then(|file| read_exact(&*file, 0, BLOCK as usize));
        let head = block.map(|block| Head::decode(&block, head::BUCKET));
        head.ok().and_then(Result::ok).map_or(0, |head| head.born)
    }
}
