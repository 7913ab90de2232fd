//! What was promised to whom, and what was kept.

use std::{collections::BTreeMap, fmt};

use mooncake_store::core::Incarnation;

use crate::{Micros, name::Name};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, in microseconds of the run.
    pub at: u64,
    /// Which.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} µs: {}", self.at, self.what)
    }
}

/// What a cell holds: a piece of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) version: usize,
    pub(crate) index: usize,
}

/// Bytes that a client once wanted to put.
#[derive(Debug)]
struct Version {
    name: Name,
    cells: usize,
    incarnation: Option<Incarnation>,
    /// When it was known to be readable: acknowledged, or read.
    known: Option<Micros>,
    /// The same, by whom.
    known_to: BTreeMap<u64, Micros>,
}

/// A remove that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Removed {
    pub(crate) asked: Micros,
    pub(crate) ended: Micros,
    /// The client's process.
    pub(crate) by: u64,
}

/// A read that ended well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) name: Name,
    /// The client's process.
    pub(crate) reader: u64,
    pub(crate) asked: Micros,
    pub(crate) incarnation: Incarnation,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    /// How long a lease lasts.
    lease: Micros,
    /// Readers go by what they found before, until they are told otherwise.
    kept: bool,
    versions: Vec<Version>,
    /// Acknowledged ones.
    removes: BTreeMap<Name, Vec<Removed>>,
    /// From when on nobody reads a life of a key, or one before it of the same master.
    bars: BTreeMap<Name, Vec<(Micros, Incarnation)>>,
    /// What processes heard is gone, and when.
    told: BTreeMap<(u64, Name), Vec<(Micros, Incarnation)>>,
    by_incarnation: BTreeMap<Incarnation, usize>,
    /// The latest that the master gave out.
    newest: Incarnation,
    /// By the master's own order: these lives and all before were removed.
    buried: BTreeMap<Name, Incarnation>,
}

impl Oracle {
    pub(crate) const fn new(lease: Micros, kept: bool) -> Self {
        Self {
            lease,
            kept,
            versions: Vec::new(),
            removes: BTreeMap::new(),
            bars: BTreeMap::new(),
            told: BTreeMap::new(),
            by_incarnation: BTreeMap::new(),
            newest: Incarnation {
                epoch: 0,
                sequence: 0,
            },
            buried: BTreeMap::new(),
        }
    }

    /// The master begins a put under this incarnation.
    pub(crate) fn begins(&mut self, incarnation: Incarnation) {
        self.newest = self.newest.max(incarnation);
    }

    /// The master removes the key at this moment.
    pub(crate) fn buries(&mut self, name: Name) {
        self.buried.insert(name, self.newest);
    }

    /// The master announces this life of the key.
    pub(crate) fn announces(&self, name: Name, incarnation: Incarnation) -> Result<(), String> {
        match self.buried.get(&name) {
            Some(last) if incarnation <= *last => Err(format!(
                "law 6: {name} is announced as {incarnation:?}, though it was removed up to {last:?}"
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn version(&mut self, name: Name, cells: usize) -> usize {
        self.versions.push(Version {
            name,
            cells,
            incarnation: None,
            known: None,
            known_to: BTreeMap::new(),
        });
        self.versions.len() - 1
    }

    /// All cells belong to one version of the key, each in its place.
    pub(crate) fn whole(&self, name: Name, cells: &[Option<Mark>]) -> Result<usize, String> {
        let Some(Some(first)) = cells.first() else {
            return Err(format!("{name} is read as nothing: {cells:?}"));
        };
        let version = &self.versions[first.version];
        let fits = version.name == name && version.cells == cells.len();
        let whole = cells.iter().enumerate().all(|(index, cell)| {
            let version = first.version;
            *cell == Some(Mark { version, index })
        });
        if !fits || !whole {
            return Err(format!(
                "law 5: {name} holds no whole version of its own: {cells:?}"
            ));
        }
        Ok(first.version)
    }

    /// The incarnation is of this version, as it always was.
    pub(crate) fn same_life(
        &mut self,
        version: usize,
        incarnation: Incarnation,
    ) -> Result<(), String> {
        let before = *self.by_incarnation.entry(incarnation).or_insert(version);
        let known = *self.versions[version]
            .incarnation
            .get_or_insert(incarnation);
        if before != version || known != incarnation {
            return Err(format!(
                "law 7: {incarnation:?} is of version {before}, and version {version} of {known:?}"
            ));
        }
        Ok(())
    }

    pub(crate) fn put(
        &mut self,
        now: Micros,
        writer: u64,
        version: usize,
        incarnation: Incarnation,
    ) -> Result<(), String> {
        self.same_life(version, incarnation)?;
        self.versions[version].is_known(now, writer);
        Ok(())
    }

    pub(crate) fn removed(&mut self, name: Name, removed: Removed) {
        self.removes.entry(name).or_default().push(removed);
    }

    /// From now on nobody reads this life of the key, nor one before it of the same master.
    pub(crate) fn bars(&mut self, now: Micros, name: Name, last: Incarnation) {
        self.bars.entry(name).or_default().push((now, last));
    }

    /// A barrier of the key has been answered since.
    pub(crate) fn barred_since(&self, asked: Micros, name: Name) -> bool {
        let mut bars = self.bars.get(&name).into_iter().flatten();
        bars.any(|(at, _)| *at >= asked)
    }

    fn passes_bars(&self, now: Micros, reading: &Reading) -> Result<(), String> {
        let (name, read) = (reading.name, reading.incarnation);
        for (at, last) in self.bars.get(&name).into_iter().flatten() {
            let meant = read.epoch == last.epoch && read <= *last;
            if meant && *at < now {
                return Err(format!(
                    "law 6: {name} is still read as {read:?}, though a barrier said at {at} that \
                     nobody reads it"
                ));
            }
        }
        Ok(())
    }

    /// The client hears that this life of the object and all before are gone.
    pub(crate) fn told(&mut self, now: Micros, reader: u64, name: Name, gone: Incarnation) {
        self.told
            .entry((reader, name))
            .or_default()
            .push((now, gone));
    }

    /// A reader that keeps what it read uses it once more, unless it has heard that it is gone; `true`:
    /// though it was removed.
    pub(crate) fn used_again(
        &self,
        now: Micros,
        reading: &Reading,
        version: usize,
    ) -> Result<bool, String> {
        let Reading {
            name,
            reader,
            incarnation,
            ..
        } = *reading;
        let told = self.told.get(&(reader, name)).into_iter().flatten();
        if told.into_iter().any(|(_, gone)| incarnation <= *gone) {
            return Ok(false);
        }
        self.passes_bars(now, reading)?;
        let replaced = self.versions.iter().find(|other| {
            other.name == name
                && other.incarnation > Some(incarnation)
                && other.known.is_some_and(|known| known + self.lease < now)
        });
        if let Some(newer) = replaced {
            return Err(format!(
                "law 6: {name} is still used by a reader as {incarnation:?}, though {newer:?} has \
                 been known for longer than a lease"
            ));
        }
        let Some(known) = self.versions[version].known else {
            return Ok(false);
        };
        let removes = self.removes.get(&name).into_iter().flatten();
        let mut gone = removes
            .filter(|removed| removed.asked > known)
            .map(|removed| removed.ended);
        let Some(ended) = gone.next() else {
            return Ok(false);
        };
        if ended + self.lease < now {
            return Err(format!(
                "law 6: {name} is still used by a reader, though its remove was acknowledged at \
                 {ended}, longer ago than a lease"
            ));
        }
        Ok(true)
    }

    /// A read ended with these cells; of which version they are.
    pub(crate) fn read(
        &mut self,
        now: Micros,
        reading: &Reading,
        cells: &[Option<Mark>],
    ) -> Result<usize, String> {
        let Reading {
            name,
            reader,
            asked,
            incarnation,
        } = *reading;
        let version = self.whole(name, cells)?;
        self.same_life(version, incarnation)?;
        let told = self.told.get(&(reader, name)).into_iter().flatten();
        for (heard, gone) in told {
            if *heard < asked && incarnation <= *gone {
                return Err(format!(
                    "law 6: {name} is read as {incarnation:?}, of which its reader heard at {heard}, \
                     before the read at {asked}, that it is gone"
                ));
            }
        }
        self.passes_bars(now, reading)?;
        // Who asked before can have a lease that was granted before. Who goes by what was found before
        // knows what others have done when it is told, or after a lease.
        let (lease, exact) = (self.lease, !self.kept);
        let stale =
            |known: Micros, own: bool| ((own || exact) && known < asked) || known + lease < now;
        if let Some(known) = self.versions[version].known {
            let removes = self.removes.get(&name).into_iter().flatten();
            for Removed {
                asked: began,
                ended,
                by,
            } in removes
            {
                if *began > known && stale(*ended, *by == reader) {
                    return Err(format!(
                        "law 6: {name} is read as version {version}, known since {known}, though its \
                         remove at {began} was acknowledged at {ended}, before the read at {asked} \
                         or longer ago than a lease"
                    ));
                }
            }
        }
        let newer = |other: &Version| {
            let by_us = other.known_to.get(&reader);
            other.name == name
                && other.incarnation > Some(incarnation)
                && (by_us.is_some_and(|known| stale(*known, true))
                    || other.known.is_some_and(|known| stale(known, false)))
        };
        if self.versions.iter().any(newer) {
            return Err(format!(
                "law 5: {name} is read as version {version}, older than one known before"
            ));
        }
        self.versions[version].is_known(now, reader);
        Ok(version)
    }
}

impl Version {
    fn is_known(&mut self, now: Micros, to: u64) {
        self.known.get_or_insert(now);
        self.known_to.entry(to).or_insert(now);
    }
}
