//! What was promised to whom, and what was kept.

use std::{collections::BTreeMap, fmt};

use mooncake_store::core::Incarnation;

use crate::Micros;

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
    key: usize,
    cells: usize,
    incarnation: Option<Incarnation>,
    /// When it was known to be readable: acknowledged, or read.
    known: Option<Micros>,
}

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    versions: Vec<Version>,
    /// Acknowledged ones by key: when they were asked for, and acknowledged.
    removes: BTreeMap<usize, Vec<(Micros, Micros)>>,
    by_incarnation: BTreeMap<Incarnation, usize>,
}

impl Oracle {
    pub(crate) fn version(&mut self, key: usize, cells: usize) -> usize {
        self.versions.push(Version {
            key,
            cells,
            incarnation: None,
            known: None,
        });
        self.versions.len() - 1
    }

    /// All cells belong to one version of the key, each in its place.
    pub(crate) fn whole(&self, key: usize, cells: &[Option<Mark>]) -> Result<usize, String> {
        let Some(Some(first)) = cells.first() else {
            return Err(format!("key {key} is read as nothing: {cells:?}"));
        };
        let version = &self.versions[first.version];
        let fits = version.key == key && version.cells == cells.len();
        let whole = cells.iter().enumerate().all(|(index, cell)| {
            let version = first.version;
            *cell == Some(Mark { version, index })
        });
        if !fits || !whole {
            return Err(format!(
                "law 5: key {key} holds no whole version of its own: {cells:?}"
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
        version: usize,
        incarnation: Incarnation,
    ) -> Result<(), String> {
        self.same_life(version, incarnation)?;
        self.versions[version].known.get_or_insert(now);
        Ok(())
    }

    pub(crate) fn removed(&mut self, now: Micros, key: usize, asked: Micros) {
        self.removes.entry(key).or_default().push((asked, now));
    }

    /// A read that was asked for at `asked` ended with these cells.
    pub(crate) fn read(
        &mut self,
        now: Micros,
        key: usize,
        asked: Micros,
        incarnation: Incarnation,
        cells: &[Option<Mark>],
    ) -> Result<(), String> {
        let version = self.whole(key, cells)?;
        self.same_life(version, incarnation)?;
        if let Some(known) = self.versions[version].known {
            let removes = self.removes.get(&key).into_iter().flatten();
            for (began, ended) in removes {
                if *began > known && *ended < asked {
                    return Err(format!(
                        "law 6: key {key} is read as version {version}, known since {known}, though \
                         its remove at {began} was acknowledged at {ended}, before the read at {asked}"
                    ));
                }
            }
        }
        let newer = |other: &Version| {
            other.key == key
                && other.incarnation > Some(incarnation)
                && other.known.is_some_and(|known| known < asked)
        };
        if self.versions.iter().any(newer) {
            return Err(format!(
                "law 5: key {key} is read as version {version}, older than one known before"
            ));
        }
        self.versions[version].known.get_or_insert(now);
        Ok(())
    }
}
