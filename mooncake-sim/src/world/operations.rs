//! The kinds of operations: how each is drawn, and what the core is asked.
//!
//! A new kind is added here. If the master announces keys in its answer, `judge` must know too.

use mooncake_store::core::{GetItem, Operation, PutItem, PutOptions, RemoveOptions};
use rand::{RngExt, rngs::StdRng};

use crate::{CELL, Micros, name::Name, oracle::Oracle, plan::KEYS};

/// What a client is asked to do.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Exist(Vec<usize>),
    Get(Vec<usize>),
    /// What exists is read at once.
    ExistThenGet(Vec<usize>),
    /// Keys and cells.
    Put(Vec<(usize, usize)>, How),
    /// `true`: with a barrier.
    Remove(Vec<usize>, bool),
    RemoveAll,
}

/// How objects are put.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    pub(crate) replicas: u32,
    pub(crate) upsert: bool,
    /// For space.
    pub(crate) wait: bool,
}

/// An operation that the oracle knows of.
pub(super) struct Begun {
    pub(super) names: Vec<Name>,
    /// What a put writes, by item.
    pub(super) versions: Vec<usize>,
    pub(super) operation: Operation,
}

impl What {
    pub(crate) fn draw(rng: &mut StdRng, keys: usize) -> Self {
        let count = [1, 1, 1, 2, 3][rng.random_range(0..5)];
        let mut some: Vec<_> = (0..count).map(|_| rng.random_range(0..keys)).collect();
        match rng.random_range(0..100) {
            0..35 => {
                some.sort_unstable();
                some.dedup();
                let sized = some.into_iter().map(|key| (key, rng.random_range(1..=6)));
                let sized = sized.collect();
                let how = How {
                    replicas: rng.random_range(1..=2),
                    upsert: rng.random_bool(0.35),
                    wait: rng.random_bool(0.3),
                };
                Self::Put(sized, how)
            }
            35..72 => Self::Get(some),
            72..77 => Self::Exist(some),
            77..82 => Self::ExistThenGet(some),
            82 => Self::RemoveAll,
            _ => Self::Remove(some, rng.random_bool(0.35)),
        }
    }

    pub(super) fn begin(self, tenant: usize, oracle: &mut Oracle) -> Begun {
        let all = |keys: Vec<usize>| -> Vec<Name> {
            keys.into_iter().map(|key| Name { tenant, key }).collect()
        };
        let mut versions = Vec::new();
        let (names, operation) = match self {
            Self::Exist(keys) | Self::ExistThenGet(keys) => {
                let names = all(keys);
                let keys = names.iter().map(|name| name.bytes()).collect();
                (names, Operation::Exist { keys })
            }
            Self::Get(keys) => {
                let names = all(keys);
                let item = |name: &Name| GetItem {
                    key: name.bytes(),
                    capacity: None,
                };
                let items = names.iter().map(item).collect();
                (names, Operation::Get { items })
            }
            Self::Put(sized, how) => {
                let (keys, cells): (Vec<_>, Vec<_>) = sized.into_iter().unzip();
                let names = all(keys);
                let mut items = Vec::new();
                for (name, cells) in names.iter().zip(cells) {
                    versions.push(oracle.version(*name, cells));
                    items.push(PutItem {
                        key: name.bytes(),
                        length: bytes_of(cells),
                    });
                }
                let options = PutOptions {
                    replicas: how.replicas,
                    upsert: how.upsert,
                    wait_for_space: how.wait,
                    ..PutOptions::default()
                };
                (names, Operation::Put { items, options })
            }
            Self::Remove(keys, barrier) => {
                let names = all(keys);
                let keys = names.iter().map(|name| name.bytes()).collect();
                let options = RemoveOptions { barrier };
                (names, Operation::Remove { keys, options })
            }
            Self::RemoveAll => (all((0..KEYS).collect()), Operation::RemoveAll),
        };
        Begun {
            names,
            versions,
            operation,
        }
    }
}

/// Bytes of an object of so many cells: the last one is not full.
fn bytes_of(cells: usize) -> u64 {
    cells as u64 * CELL - 7
}

/// How long an operation may take.
pub(crate) fn draw_budget(rng: &mut StdRng) -> Micros {
    let ms = match rng.random_range(0..10) {
        0 => rng.random_range(0..20),
        1..6 => rng.random_range(20..400),
        _ => rng.random_range(400..1_500),
    };
    ms * 1_000
}
