//! The kinds of operations: how each is drawn, what the core is asked, and what its outcome promises.
//!
//! A new kind is added here. If the master announces keys in its answer, `judge` must know too.

use mooncake_proto::{Fault, status::ErrorCode};
use mooncake_store::core::{GetItem, Got, Operation, Outcome, PutItem, PutOptions, RemoveOptions};
use rand::{RngExt, rngs::StdRng};

use super::World;
use crate::{
    CELL, Micros,
    client::Running,
    name::Name,
    oracle::{Oracle, Reading},
};

/// What a client is asked to do.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Exist(Vec<usize>),
    Get(Vec<usize>),
    /// Keys and cells, and replicas.
    Put(Vec<(usize, usize)>, u32),
    Remove(Vec<usize>),
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
                Self::Put(sized.collect(), rng.random_range(1..=2))
            }
            35..75 => Self::Get(some),
            75..82 => Self::Exist(some),
            _ => Self::Remove(some),
        }
    }

    pub(super) fn begin(self, tenant: usize, oracle: &mut Oracle) -> Begun {
        let all = |keys: Vec<usize>| -> Vec<Name> {
            keys.into_iter().map(|key| Name { tenant, key }).collect()
        };
        let mut versions = Vec::new();
        let (names, operation) = match self {
            Self::Exist(keys) => {
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
            Self::Put(sized, replicas) => {
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
                    replicas,
                    ..PutOptions::default()
                };
                (names, Operation::Put { items, options })
            }
            Self::Remove(keys) => {
                let names = all(keys);
                let keys = names.iter().map(|name| name.bytes()).collect();
                let options = RemoveOptions::default();
                (names, Operation::Remove { keys, options })
            }
        };
        Begun {
            names,
            versions,
            operation,
        }
    }
}

impl World {
    /// How an operation of the client ended for its caller.
    pub(super) fn judge_outcome(
        &mut self,
        at: usize,
        running: &Running,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let (now, asked) = (self.now, running.began);
        let reader = self.clients[at].peer.session.identity;
        let names = running.names.iter().copied().enumerate();
        match outcome {
            Outcome::Exist(results) => {
                for (item, result) in results.iter().enumerate() {
                    let there = |item: usize| running.must.as_ref().map(|must| must[item]);
                    let said = result.as_ref().ok().map(|existence| existence.exists);
                    if there(item).is_some_and(|there| said != Some(there)) {
                        let name = running.names[item];
                        return Err(format!("law 6: {name} is said to exist: {result:?}"));
                    }
                }
            }
            Outcome::Get(results) => {
                for ((item, name), result) in names.zip(results) {
                    judge_calm(running, item, result)?;
                    let got = match result {
                        Ok(got) => got,
                        Err(fault) => {
                            self.judge_failed_read(running, item, fault)?;
                            continue;
                        }
                    };
                    let cells = &running.buffers[item];
                    if got.length.div_ceil(CELL) != cells.len() as u64 {
                        return Err(format!("law 5: {got:?} of {name} has {cells:?}"));
                    }
                    self.report.gets += 1;
                    let outlived = self.outlived(running, item, got.incarnation);
                    self.report.outlived_nodes += usize::from(outlived);
                    self.report.failovers += usize::from(self.failed_over(running, item));
                    let reading = Reading {
                        name,
                        reader,
                        asked,
                        incarnation: got.incarnation,
                    };
                    let arrived = running.arrived[item];
                    let version = self.oracle.read(arrived, &reading, cells)?;
                    if self.plan.keeper == Some(at) {
                        self.keep(running, item, version, reading);
                    }
                }
            }
            Outcome::Put(results) => {
                for ((item, name), result) in names.zip(results) {
                    let Ok(incarnation) = result else {
                        if running.must.is_some() {
                            return Err(format!(
                                "law 13: the empty store does not take {name}: {result:?}"
                            ));
                        }
                        continue;
                    };
                    self.report.puts += 1;
                    let version = running.versions[item];
                    self.oracle.put(now, version, *incarnation)?;
                }
            }
            Outcome::Remove(results) => {
                for ((_, name), result) in names.zip(results) {
                    let gone = match result {
                        Ok(()) => true,
                        Err(fault) => fault.code == ErrorCode::ObjectNotFound,
                    };
                    if gone {
                        self.report.removes += 1;
                        self.oracle.removed(now, name, asked);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// In a calm world a read of what is there succeeds.
fn judge_calm(running: &Running, item: usize, result: &Result<Got, Fault>) -> Result<(), String> {
    let Some(must) = &running.must else {
        return Ok(());
    };
    let as_it_is = match result {
        Ok(_) => must[item],
        Err(fault) => !must[item] && fault.code == ErrorCode::ObjectNotFound,
    };
    if as_it_is {
        return Ok(());
    }
    let (name, there) = (running.names[item], must[item]);
    Err(format!(
        "law 6: though nothing disturbs it, a read of {name} ends with {result:?}; is it there: {there}"
    ))
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
