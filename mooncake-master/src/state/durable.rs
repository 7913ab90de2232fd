//! What must outlive the master: the durable set, told in records.
//!
//! It is what is on disks or may be there, what is to be removed from them, up to where tenants are
//! gone, and which storages are known. Steps tell how it changes; the same records, taken in by
//! [`Command::Replay`](super::Command::Replay), bring it back. Each can be taken in twice, and a
//! record of [`State::survey`] may stand before those of changes that it shows already.

use serde::{Deserialize, Serialize};

use super::{
    Answer, Effect, Failure, Held, Incarnation, Key, Removal, State, StorageId, disks::Stage,
    removals::Pending,
};
use crate::Time;

/// One change of the durable set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Record {
    /// A storage is known; or it was, and all that it held is known as well.
    Storage {
        /// Which.
        id: StorageId,
        /// It has not told yet what it holds, all of which is kept.
        adopting: bool,
    },
    /// An object is on a disk, or may be soon.
    Held {
        /// Where.
        storage: StorageId,
        /// Whose.
        tenant: String,
        /// Its key.
        key: Key,
        /// Which life of the key.
        incarnation: Incarnation,
        /// Of its value.
        length: u64,
    },
    /// It is not, or will never be.
    Left {
        /// Where.
        storage: StorageId,
        /// Whose.
        tenant: String,
        /// Its key.
        key: Key,
        /// Which life of the key.
        incarnation: Incarnation,
    },
    /// An object is gone; these holders are to remove it.
    Removed {
        /// Whose.
        tenant: String,
        /// Its key.
        key: Key,
        /// Which life of the key.
        incarnation: Incarnation,
        /// Numbers of tasks.
        tasks: Vec<(StorageId, u64)>,
    },
    /// All is gone that a tenant had; these holders are to remove it.
    RemovedAll {
        /// Whose.
        tenant: String,
        /// Up to this incarnation.
        last: Incarnation,
        /// Numbers of tasks.
        tasks: Vec<(StorageId, u64)>,
    },
    /// A key is gone, whatever a storage tells that is being adopted.
    Gone {
        /// Whose.
        tenant: String,
        /// The key.
        key: Key,
        /// Up to this incarnation.
        last: Incarnation,
    },
    /// Numbers of tasks up to this one may have been given out.
    Tasks {
        /// It.
        last: u64,
    },
    /// A holder has removed what these tasks name.
    Acknowledged {
        /// Where.
        storage: StorageId,
        /// Numbers of tasks.
        tasks: Vec<u64>,
    },
    /// A holder is gone, and its tasks with it.
    Forgotten {
        /// Where.
        storage: StorageId,
    },
}

/// How far a survey has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Survey {
    /// Storages and tenants come next.
    #[default]
    Begin,
    /// Objects, from this place on.
    Objects(u32),
    /// Tasks: of this storage, after this number.
    Tasks(u32, u64),
    /// All was told.
    End,
}

impl State {
    /// Tells a change that must outlive the master.
    pub(super) fn log(&mut self, record: impl FnOnce() -> Record) {
        if self.settings.log {
            self.effects.push(Effect::Log(record()));
        }
    }

    /// What must be remembered can be.
    pub(super) fn check_log(&self) -> Result<(), Failure> {
        if self.forgetful {
            return Err(Failure::LogFailed);
        }
        Ok(())
    }

    /// Takes in what an earlier life told.
    pub(super) fn replay(&mut self, now: Time, records: &[Record]) -> Answer {
        for record in records {
            self.replay_one(now, record);
        }
        // Nothing of this is news.
        self.effects.clear();
        Answer::Done
    }

    fn replay_one(&mut self, now: Time, record: &Record) {
        let capacity = self.settings.remove_queue_limit;
        match record {
            Record::Storage { id, adopting } => {
                let slot = self.storages.know(*id, capacity);
                self.set_adopting(slot, *adopting);
            }
            Record::Held {
                storage,
                tenant,
                key,
                incarnation,
                length,
            } => {
                let storage = self.storages.know(*storage, capacity);
                self.replay_held(now, storage, tenant, key, (*incarnation, *length));
            }
            Record::Left {
                storage,
                tenant,
                key,
                incarnation,
            } => {
                let Some(storage) = self.storages.find(*storage) else {
                    return;
                };
                if let Some(body) = self.replayed(tenant, key, *incarnation) {
                    let at = self.disks.of(body).find(|(_, e)| e.storage == storage);
                    if let Some((at, _)) = at {
                        self.erase(now, at);
                    }
                }
            }
            Record::Removed {
                tenant,
                key,
                incarnation,
                tasks,
            } => {
                if let Some(body) = self.replayed(tenant, key, *incarnation) {
                    for at in self.disks.places(body) {
                        self.erase(now, at);
                    }
                }
                let removal = Removal {
                    tenant: tenant.clone(),
                    key: Some(key.clone()),
                    incarnation: *incarnation,
                };
                self.replay_tasks(&removal, tasks);
            }
            Record::RemovedAll {
                tenant,
                last,
                tasks,
            } => {
                if let Ok(id) = self.tenants.intern(tenant) {
                    let known = self.watermarks.entry(id).or_insert(*last);
                    *known = (*known).max(*last);
                }
                let removal = Removal {
                    tenant: tenant.clone(),
                    key: None,
                    incarnation: *last,
                };
                self.replay_tasks(&removal, tasks);
            }
            Record::Gone { tenant, key, last } => {
                if let Ok(tenant) = self.tenants.intern(tenant) {
                    self.take_mark(tenant, key.clone(), *last);
                }
            }
            Record::Tasks { last } => {
                self.last_task = self.last_task.max(*last);
            }
            Record::Acknowledged { storage, tasks } => {
                if let Some(slot) = self.storages.find(*storage) {
                    for &task in tasks {
                        self.last_task = self.last_task.max(task);
                        self.storages.at_mut(slot).removes.ack_and_erase(task);
                    }
                }
            }
            Record::Forgotten { storage } => {
                if let Some(slot) = self.storages.find(*storage) {
                    self.storages.at_mut(slot).removes.take();
                }
            }
        }
    }

    fn replay_held(
        &mut self,
        now: Time,
        storage: u32,
        tenant: &str,
        key: &Key,
        (incarnation, length): (Incarnation, u64),
    ) {
        let Ok(tenant) = self.tenants.intern(tenant) else {
            return;
        };
        let sought = self.objects.sought(Some(tenant), &key.0);
        let body = match self.objects.find(sought) {
            Some(body) => {
                let known = self.objects.bodies.incarnation(body);
                if known > incarnation {
                    // A survey has seen this life of the key, and later another one.
                    return;
                }
                if known < incarnation {
                    for at in self.disks.places(body) {
                        self.erase(now, at);
                    }
                    self.restore(now, sought, incarnation, length)
                } else {
                    body
                }
            }
            None => self.restore(now, sought, incarnation, length),
        };
        if !self.disks.of(body).any(|(_, e)| e.storage == storage) {
            // Whether it is there is known once its holder is back.
            self.enter(body, storage, Stage::OnDisk);
        }
    }

    fn replayed(&self, tenant: &str, key: &Key, incarnation: Incarnation) -> Option<u32> {
        let tenant = self.tenants.find(tenant).ok()?;
        let body = self.objects.find(self.objects.sought(tenant, &key.0))?;
        (self.objects.bodies.incarnation(body) == incarnation).then_some(body)
    }

    fn replay_tasks(&mut self, removal: &Removal, tasks: &[(StorageId, u64)]) {
        for &(storage, task) in tasks {
            self.last_task = self.last_task.max(task);
            let slot = self
                .storages
                .know(storage, self.settings.remove_queue_limit);
            let pending = Pending {
                removal: removal.clone(),
                ticket: None,
            };
            self.storages.at_mut(slot).removes.enqueue(task, pending);
        }
    }

    /// All that an earlier life told is taken in: what its tenants had removed goes.
    pub(super) fn replayed_all(&mut self, now: Time) -> Answer {
        let watermarks = std::mem::take(&mut self.watermarks);
        if !watermarks.is_empty() {
            for slot in 0..self.objects.bodies.end() {
                let Some(body) = self.objects.bodies.at(slot) else {
                    continue;
                };
                let last = watermarks.get(&body.tenant());
                let incarnation = self.objects.bodies.incarnation(slot);
                if last.is_some_and(|last| incarnation <= *last) {
                    for at in self.disks.places(slot) {
                        self.erase(now, at);
                    }
                }
            }
        }
        self.watermarks = watermarks;
        for slot in 0..self.storages.all.len() as u32 {
            // What is to be removed is not held any more, whatever a survey had seen before.
            let removes = self.storages.at(slot).removes.iter();
            let names: Vec<_> = removes
                .filter_map(|(_, pending)| {
                    let Removal {
                        tenant,
                        key,
                        incarnation,
                    } = &pending.removal;
                    Some(Held {
                        tenant: tenant.clone(),
                        key: key.clone()?,
                        incarnation: *incarnation,
                        length: 0,
                    })
                })
                .collect();
            for held in names {
                if let Some(body) = self.replayed(&held.tenant, &held.key, held.incarnation) {
                    let at = self.disks.of(body).find(|(_, e)| e.storage == slot);
                    if let Some((at, _)) = at {
                        self.erase(now, at);
                    }
                }
            }
        }
        self.effects.clear();
        Answer::Done
    }

    /// Tells a part of the durable set. Between parts the state may change, and tell so: taken in
    /// before those changes, all parts together give what is there after them.
    pub fn survey(&self, from: Survey, most: u32, into: &mut Vec<Record>) -> Survey {
        match from {
            Survey::Begin => {
                let last = self.noted_task.max(self.last_task);
                into.push(Record::Tasks { last });
                for storage in &self.storages.all {
                    into.push(Record::Storage {
                        id: storage.identity.id,
                        adopting: storage.adopting,
                    });
                }
                let mut watermarks: Vec<_> = self.watermarks.iter().collect();
                watermarks.sort_unstable();
                for (tenant, last) in watermarks {
                    into.push(Record::RemovedAll {
                        tenant: self.tenants.name(*tenant).to_string(),
                        last: *last,
                        tasks: Vec::new(),
                    });
                }
                for ((tenant, key), last) in &self.marks {
                    into.push(Record::Gone {
                        tenant: self.tenants.name(*tenant).to_string(),
                        key: key.clone(),
                        last: *last,
                    });
                }
                Survey::Objects(0)
            }
            Survey::Objects(next) => {
                let end = self.disks.end().min(next.saturating_add(most));
                for entry in self.disks.range(next.min(end)..end) {
                    if entry.stage == Stage::Queued || self.objects.is_doomed(entry.body) {
                        continue;
                    }
                    let (tenant, key, incarnation) = self.name_of(entry.body);
                    into.push(Record::Held {
                        storage: self.storages.at(entry.storage).identity.id,
                        tenant,
                        key,
                        incarnation,
                        length: self.objects.bodies[entry.body].length,
                    });
                }
                match end < self.disks.end() {
                    true => Survey::Objects(end),
                    false => Survey::Tasks(0, 0),
                }
            }
            Survey::Tasks(slot, after) => {
                let Some(storage) = self.storages.all.get(slot as usize) else {
                    return Survey::End;
                };
                let id = storage.identity.id;
                let (tasks, more) = storage.removes.fetch_without_delete(after, most as usize);
                let last = tasks.last().map_or(0, |(task, _)| *task);
                for (task, removal) in tasks {
                    let Removal {
                        tenant,
                        key,
                        incarnation,
                    } = removal;
                    let tasks = vec![(id, task)];
                    into.push(match key {
                        Some(key) => Record::Removed {
                            tenant,
                            key,
                            incarnation,
                            tasks,
                        },
                        None => Record::RemovedAll {
                            tenant,
                            last: incarnation,
                            tasks,
                        },
                    });
                }
                match more {
                    true => Survey::Tasks(slot, last),
                    false => Survey::Tasks(slot + 1, 0),
                }
            }
            Survey::End => Survey::End,
        }
    }
}
