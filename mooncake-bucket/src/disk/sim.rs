//! A disk in memory that keeps nothing it did not promise.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, io,
    ops::Range,
    sync::Arc,
};

use parking_lot::Mutex;

use super::{Disk, DiskFile, Found, LockFailure, Space};

/// What a disk writes at once; the one that the power fails in may hold anything.
const SECTOR: usize = 512;

/// What every operation answers once the power has failed.
#[derive(Debug, thiserror::Error)]
#[error("the power has failed")]
pub struct PowerLost;

/// A disk that loses what was not synced: of the writes since the last sync, some sectors arrive and some do not,
/// in any order; of the names since the directory was last synced, the same.
///
/// The power can be made to fail at any write, sync, rename, creation or removal, and the room to be short.
/// What a disk may remember is drawn from a seed.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// Names that survive.
    durable_names: BTreeMap<String, u64>,
    /// Names that a running process sees.
    names: BTreeMap<String, u64>,
    /// What happened to names since the directory was synced; each happens as a whole or not at all.
    pending_names: Vec<Vec<(String, Option<u64>)>>,
    files: HashMap<u64, Content>,
    next: u64,
    steps: u64,
    cut_at: Option<u64>,
    fail: HashMap<u64, io::ErrorKind>,
    /// By file, what of it cannot be read.
    unreadable: HashMap<u64, Range<u64>>,
    lost: bool,
    capacity: Option<u64>,
    syncs: u64,
    sync_takes: std::time::Duration,
    holder: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Content {
    durable: Vec<u8>,
    seen: Vec<u8>,
    pending: Vec<Change>,
    /// Changes that are durable.
    settled: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

/// Small and seeded: a disk needs no more of chance.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(
            f,
            "SimDisk({} files, {} steps)",
            state.names.len(),
            state.steps
        )
    }
}

impl SimDisk {
    /// An empty directory.
    pub fn new() -> Self {
        Self::with(State {
            durable_names: BTreeMap::new(),
            names: BTreeMap::new(),
            pending_names: Vec::new(),
            files: HashMap::new(),
            next: 0,
            steps: 0,
            cut_at: None,
            fail: HashMap::new(),
            unreadable: HashMap::new(),
            lost: false,
            capacity: None,
            syncs: 0,
            sync_takes: std::time::Duration::ZERO,
            holder: None,
        })
    }

    fn with(state: State) -> Self {
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Operations so far that changed something or made it last.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Syncs of files so far.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// The power fails in step `step`, counted from the disk's first one.
    pub fn cut_power_at(&self, step: u64) {
        self.state.lock().cut_at = Some(step);
    }

    /// Step `step` fails and changes nothing.
    pub fn fail_at(&self, step: u64, kind: io::ErrorKind) {
        self.state.lock().fail.insert(step, kind);
    }

    /// What lies in `range` of a file cannot be read, until it is called with an empty one. Writing changes nothing about that.
    pub fn fail_reads(&self, name: &str, range: Range<u64>) {
        let mut state = self.state.lock();
        let number = state.names[name];
        state.unreadable.insert(number, range);
    }

    /// The power fails now.
    pub fn cut_power(&self) {
        self.state.lock().lost = true;
    }

    /// Whether it has failed.
    pub fn is_power_lost(&self) -> bool {
        self.state.lock().lost
    }

    /// There is room for so many bytes; `None`: for any.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// A sync of a file takes so long.
    pub fn set_sync_time(&self, time: std::time::Duration) {
        self.state.lock().sync_takes = time;
    }

    /// The disk as it is found after the power came back: what was synced, and of the rest whatever `seed` says.
    #[must_use]
    pub fn after_power_loss(&self, seed: u64) -> Self {
        let state = self.state.lock();
        let mut chance = Chance(seed);
        // Most losses are partial; some are as bad, and some as mild, as can be.
        let keep = [0, 20, 50, 80, 100][chance.below(5) as usize];
        let mut names = state.durable_names.clone();
        for change in &state.pending_names {
            if chance.below(100) < keep {
                apply(&mut names, change);
            }
        }
        let mut files = HashMap::new();
        for number in names.values() {
            let content = &state.files[number];
            let found = content.after_power_loss(&mut chance, keep);
            files.insert(*number, Content::settled(found));
        }
        Self::with(State {
            durable_names: names.clone(),
            names,
            pending_names: Vec::new(),
            files,
            next: state.next,
            steps: 0,
            cut_at: None,
            fail: HashMap::new(),
            unreadable: HashMap::new(),
            lost: false,
            capacity: state.capacity,
            syncs: 0,
            sync_takes: state.sync_takes,
            holder: None,
        })
    }

    /// The disk as it is found after the process died: all that it wrote is there, but nothing more of it is
    /// durable than before.
    #[must_use]
    pub fn after_process_death(&self) -> Self {
        let state = self.state.lock();
        Self::with(State {
            durable_names: state.durable_names.clone(),
            names: state.names.clone(),
            pending_names: state.pending_names.clone(),
            files: state.files.clone(),
            next: state.next,
            steps: 0,
            cut_at: None,
            fail: HashMap::new(),
            unreadable: HashMap::new(),
            lost: false,
            capacity: state.capacity,
            syncs: 0,
            sync_takes: state.sync_takes,
            holder: None,
        })
    }

    /// What a file holds, for tests that look at it.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let number = state.names.get(name)?;
        Some(state.files[number].seen.clone())
    }

    /// Changes bytes of a file behind everybody's back, durably.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state.lock();
        let number = state.names[name];
        let content = state.files.get_mut(&number).expect("it has a name");
        change(&mut content.seen);
        *content = Content::settled(std::mem::take(&mut content.seen));
    }

    /// Puts a file there that is durable at once.
    pub fn plant(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.files.insert(number, Content::settled(bytes));
        state.names.insert(name.into(), number);
        state.durable_names.insert(name.into(), number);
    }
}

impl Content {
    fn settled(bytes: Vec<u8>) -> Self {
        Self {
            durable: bytes.clone(),
            seen: bytes,
            pending: Vec::new(),
            settled: 0,
        }
    }

    fn after_power_loss(&self, chance: &mut Chance, keep: u64) -> Vec<u8> {
        let mut found = self.durable.clone();
        for change in &self.pending {
            match change {
                Change::Length(length) => {
                    if chance.below(100) < keep {
                        found.resize(*length, 0);
                    }
                }
                Change::Write(at, bytes) => {
                    for (number, part) in sectors(*at, bytes) {
                        if chance.below(100) >= keep {
                            continue;
                        }
                        if found.len() < number + part.len() {
                            found.resize(number + part.len(), 0);
                        }
                        let torn = if chance.below(8) == 0 {
                            chance.below(part.len() as u64 + 1) as usize
                        } else {
                            part.len()
                        };
                        found[number..number + torn].copy_from_slice(&part[..torn]);
                        if torn < part.len() && chance.below(2) == 0 {
                            // Not even the old bytes.
                            for byte in &mut found[number + torn..number + part.len()] {
                                *byte = chance.next() as u8;
                            }
                        }
                    }
                }
            }
        }
        found
    }
}

/// The parts of a write that lie in one sector each.
fn sectors(at: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut from = 0;
    std::iter::from_fn(move || {
        if from == bytes.len() {
            return None;
        }
        let here = at + from;
        let to = bytes.len().min(from + SECTOR - here % SECTOR);
        let part = &bytes[from..to];
        from = to;
        Some((here, part))
    })
}

fn apply(names: &mut BTreeMap<String, u64>, change: &[(String, Option<u64>)]) {
    for (name, number) in change {
        match number {
            Some(number) => names.insert(name.clone(), *number),
            None => names.remove(name),
        };
    }
}

fn power_lost() -> io::Error {
    io::Error::other(PowerLost)
}

impl State {
    fn alive(&self) -> io::Result<()> {
        if self.lost { Err(power_lost()) } else { Ok(()) }
    }

    /// Counts a step. `true`: it is the one in which the power fails, after it has begun.
    fn step(&mut self) -> io::Result<bool> {
        self.alive()?;
        let number = self.steps;
        self.steps += 1;
        if let Some(kind) = self.fail.remove(&number) {
            return Err(kind.into());
        }
        self.lost = self.cut_at == Some(number);
        Ok(self.lost)
    }

    fn change_names(&mut self, change: Vec<(String, Option<u64>)>) -> io::Result<()> {
        let lost = self.step()?;
        apply(&mut self.names, &change);
        self.pending_names.push(change);
        if lost { Err(power_lost()) } else { Ok(()) }
    }

    fn number(&self, name: &str) -> io::Result<u64> {
        self.alive()?;
        let number = self.names.get(name).copied();
        number.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn used(&self) -> u64 {
        let files = self
            .names
            .values()
            .map(|number| self.files[number].seen.len());
        files.sum::<usize>() as u64
    }
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let number = state.next;
        state.next += 1;
        state.files.insert(number, Content::default());
        state.change_names(vec![(name.into(), Some(number))])?;
        Ok(Arc::new(SimFile {
            state: Arc::clone(&self.state),
            number,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let number = self.state.lock().number(name)?;
        Ok(Arc::new(SimFile {
            state: Arc::clone(&self.state),
            number,
        }))
    }

    fn list(&self) -> io::Result<Vec<Found>> {
        let state = self.state.lock();
        state.alive()?;
        let found = state.names.iter().map(|(name, number)| {
            let bytes = state.files[number].seen.len() as u64;
            Found {
                name: name.clone(),
                bytes,
                allocated_bytes: bytes.next_multiple_of(4096),
                is_file: true,
            }
        });
        Ok(found.collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        let number = state.number(from)?;
        state.change_names(vec![(from.into(), None), (to.into(), Some(number))])
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.number(name)?;
        state.change_names(vec![(name.into(), None)])
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.step()? {
            return Err(power_lost());
        }
        state.durable_names = state.names.clone();
        state.pending_names.clear();
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        let state = self.state.lock();
        state.alive()?;
        let total_bytes = state.capacity.unwrap_or(1 << 40);
        Ok(Space {
            total_bytes,
            free_bytes: total_bytes.saturating_sub(state.used()),
        })
    }

    fn lock(&self, words: &str) -> Result<Box<dyn Send + Sync>, LockFailure> {
        let mut state = self.state.lock();
        state.alive().map_err(LockFailure::Io)?;
        if let Some(holder) = &state.holder {
            return Err(LockFailure::Held(holder.clone()));
        }
        state.holder = Some(words.into());
        Ok(Box::new(SimLock(Arc::clone(&self.state))))
    }
}

struct SimLock(Arc<Mutex<State>>);

impl Drop for SimLock {
    fn drop(&mut self) {
        self.0.lock().holder = None;
    }
}

struct SimFile {
    state: Arc<Mutex<State>>,
    number: u64,
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({})", self.number)
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let state = self.state.lock();
        state.alive()?;
        let end = at + into.len() as u64;
        let unreadable = state.unreadable.get(&self.number);
        if unreadable.is_some_and(|range| at.max(range.start) < end.min(range.end)) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let seen = &state.files[&self.number].seen;
        let from = seen.len().min(at as usize);
        let read = into.len().min(seen.len() - from);
        into[..read].copy_from_slice(&seen[from..from + read]);
        Ok(read)
    }

    fn write_at(&self, at: u64, pieces: &[&[u8]]) -> io::Result<()> {
        let bytes = pieces.concat();
        let mut state = self.state.lock();
        let end = at as usize + bytes.len();
        let grows = end.saturating_sub(state.files[&self.number].seen.len()) as u64;
        if state
            .capacity
            .is_some_and(|room| state.used() + grows > room)
        {
            state.step()?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        let lost = state.step()?;
        let content = state.files.get_mut(&self.number).expect("it is open");
        if content.seen.len() < end {
            content.seen.resize(end, 0);
        }
        content.seen[at as usize..end].copy_from_slice(&bytes);
        content.pending.push(Change::Write(at as usize, bytes));
        if lost { Err(power_lost()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let takes = self.state.lock().sync_takes;
        let upto = {
            let mut state = self.state.lock();
            state.syncs += 1;
            if state.step()? {
                return Err(power_lost());
            }
            let content = &state.files[&self.number];
            content.settled + content.pending.len() as u64
        };
        if !takes.is_zero() {
            std::thread::sleep(takes);
        }
        let mut state = self.state.lock();
        state.alive()?;
        let content = state.files.get_mut(&self.number).expect("it is open");
        // What came while the disk was at it may still be lost.
        let count = upto.saturating_sub(content.settled);
        content.settled += count;
        for change in content.pending.drain(..count as usize) {
            match change {
                Change::Length(length) => content.durable.resize(length, 0),
                Change::Write(at, bytes) => {
                    let end = at + bytes.len();
                    if content.durable.len() < end {
                        content.durable.resize(end, 0);
                    }
                    content.durable[at..end].copy_from_slice(&bytes);
                }
            }
        }
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let lost = state.step()?;
        let content = state.files.get_mut(&self.number).expect("it is open");
        content.seen.resize(bytes as usize, 0);
        content.pending.push(Change::Length(bytes as usize));
        if lost { Err(power_lost()) } else { Ok(()) }
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.state.lock();
        state.alive()?;
        Ok(state.files[&self.number].seen.len() as u64)
    }

    fn allocated(&self) -> io::Result<u64> {
        self.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_synced_may_be_lost_and_what_was_may_not() {
        let (mut kept, mut lost, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let disk = SimDisk::new();
            let file = disk.create("a").unwrap();
            file.write_at(0, &[&[1; 1000]]).unwrap();
            file.sync().unwrap();
            disk.sync().unwrap();
            file.write_at(500, &[&[2; 2000]]).unwrap();
            disk.create("b").unwrap().sync().unwrap();
            let after = disk.after_power_loss(seed);
            let found = after.content("a").unwrap();
            assert_eq!(&found[..500], &[1; 500]);
            match found.iter().filter(|byte| **byte == 2).count() {
                0 => lost += 1,
                2000 => kept += 1,
                _ => torn += 1,
            }
            assert_eq!(after.after_power_loss(1).content("a").unwrap(), found);
        }
        assert!(kept > 10 && lost > 10 && torn > 10, "{kept} {lost} {torn}");
    }

    #[test]
    fn a_file_whose_directory_was_not_synced_may_be_gone() {
        let found = (0..100).filter(|seed| {
            let disk = SimDisk::new();
            let file = disk.create("a").unwrap();
            file.write_at(0, &[b"x"]).unwrap();
            file.sync().unwrap();
            disk.after_power_loss(*seed).content("a").is_some()
        });
        assert!((10..90).contains(&found.count()));
    }

    #[test]
    fn after_the_cut_nothing_works() {
        let disk = SimDisk::new();
        disk.cut_power_at(1);
        let file = disk.create("a").unwrap();
        assert!(file.write_at(0, &[b"x"]).is_err());
        assert!(file.sync().is_err() && disk.list().is_err() && file.len().is_err());
        assert!(disk.is_power_lost());
        assert!(disk.after_power_loss(3).list().is_ok());
    }
}
