//! Removing what is on disks: tasks for the holders, which stay until they are acknowledged.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use smallvec::SmallVec;

use super::{
    Answer, Failure, Incarnation, Key, Removal, State, StorageAnswer, StorageId, disks::Stage,
    durable::Record, tenants::TenantId,
};

/// Tasks that are given out at once.
const FETCH: usize = 1024;

/// Numbers of tasks are noted in the log so many at a time.
const NOTED: u64 = 4096;

/// A task, and the promise that waits for it.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) removal: Removal,
    pub(crate) ticket: Option<u64>,
}

/// What one holder is to remove. There is one task for an incarnation: with it the object leaves the
/// durable set, so that there is nothing to make a second one of.
#[derive(Debug)]
pub(crate) struct RemoveTaskQueue {
    /// By number, which is by age.
    tasks: BTreeMap<u64, Pending>,
    capacity: usize,
}

impl RemoveTaskQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            tasks: BTreeMap::new(),
            capacity,
        }
    }

    /// At most so many wait.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// So many more fit.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.tasks.len().saturating_add(more) <= self.capacity()
    }

    /// Takes a task in, for which its caller has seen that there is room.
    pub(crate) fn enqueue(&mut self, task: u64, pending: Pending) {
        self.tasks.insert(task, pending);
    }

    /// The oldest tasks after this number; they stay until they are erased. `true`: there are more.
    pub(crate) fn fetch_without_delete(
        &self,
        after: u64,
        limit: usize,
    ) -> (Vec<(u64, Removal)>, bool) {
        let mut rest = self.tasks.range((Bound::Excluded(after), Bound::Unbounded));
        let first = rest.by_ref().take(limit);
        let tasks = first
            .map(|(task, pending)| (*task, pending.removal.clone()))
            .collect();
        (tasks, rest.next().is_some())
    }

    /// Erases a task whose tombstone is durable; it, unless that was done before.
    pub(crate) fn ack_and_erase(&mut self, task: u64) -> Option<Pending> {
        self.tasks.remove(&task)
    }

    /// All tasks, to be forgotten.
    pub(crate) fn take(&mut self) -> BTreeMap<u64, Pending> {
        std::mem::take(&mut self.tasks)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Pending)> {
        self.tasks.iter().map(|(task, pending)| (*task, pending))
    }
}

impl State {
    /// Whether all tasks fit that the removal of these bodies takes: all or none.
    pub(super) fn room_for_removal(&self, slot: u32, at_once: usize) -> Result<(), Failure> {
        if !self.objects.bodies[slot].has_disk() {
            return Ok(());
        }
        let mut durable = false;
        for (_, entry) in self.disks.of(slot) {
            if entry.stage == Stage::Queued {
                continue;
            }
            durable = true;
            let storage = self.storages.at(entry.storage);
            if storage.mounted && !storage.removes.has_room(at_once) {
                let (storage, held) = (storage.identity.id, storage.removes.len() as u64);
                return Err(Failure::RemovesPileUp { storage, held });
            }
        }
        if durable {
            self.check_log()?;
            if self.is_adopting() {
                self.room_for_marks(at_once)?;
            }
        }
        Ok(())
    }

    /// A complete body goes: its replicas on disks are to be removed there.
    pub(super) fn remove_from_disks(&mut self, slot: u32) {
        if !self.objects.bodies[slot].has_disk() {
            return;
        }
        if self.objects.is_doomed(slot) {
            // What removes all of its tenant removes it.
            self.leave_all(slot);
            return;
        }
        let mut tasks = SmallVec::<[(StorageId, u64); 2]>::new();
        let mut durable = false;
        for at in self.disks.places(slot) {
            let entry = *self.disks.at(at);
            let removal = Removal {
                tenant: self
                    .tenants
                    .name(self.objects.bodies[slot].tenant())
                    .to_string(),
                key: Some(Key::from(self.objects.bodies.key(slot).to_vec())),
                incarnation: self.objects.bodies.incarnation(slot),
            };
            self.leave(at);
            if entry.stage == Stage::Queued {
                continue;
            }
            durable = true;
            if self.storages.at(entry.storage).mounted {
                let task = self.enqueue_removal(entry.storage, removal, None);
                tasks.push((self.storages.at(entry.storage).identity.id, task));
            }
        }
        if durable {
            let (tenant, key, incarnation) = self.name_of(slot);
            if self.is_adopting() {
                let tenant = self.objects.bodies[slot].tenant();
                self.mark(tenant, key.clone(), incarnation);
            }
            self.log(|| Record::Removed {
                tenant,
                key,
                incarnation,
                tasks: tasks.into_vec(),
            });
        }
    }

    /// A number that no task had before, in any life of the master.
    pub(super) fn next_task(&mut self) -> u64 {
        self.last_task += 1;
        if self.last_task > self.noted_task {
            // Whatever the date says, the next life begins after these.
            self.noted_task = self.last_task.saturating_add(NOTED);
            let last = self.noted_task;
            self.log(|| Record::Tasks { last });
        }
        self.last_task
    }

    fn enqueue_removal(&mut self, slot: u32, removal: Removal, ticket: Option<u64>) -> u64 {
        let task = self.next_task();
        let storage = self.storages.at_mut(slot);
        storage.removes.enqueue(task, Pending { removal, ticket });
        self.nudge(slot);
        task
    }

    /// Whether a tenant's objects can be removed from all disks.
    pub(super) fn room_for_removal_of_all(&self) -> Result<(), Failure> {
        self.check_log()?;
        for &slot in &self.storages.mounted {
            let storage = self.storages.at(slot);
            if !storage.removes.has_room(1) {
                let (storage, held) = (storage.identity.id, storage.removes.len() as u64);
                return Err(Failure::RemovesPileUp { storage, held });
            }
        }
        Ok(())
    }

    /// All that the tenant has up to `last` is to be removed from disks; the promise waits until all
    /// holders that are alive have done so.
    pub(super) fn remove_all_from_disks(
        &mut self,
        tenant: TenantId,
        last: Incarnation,
        ticket: u64,
    ) {
        // Also without any storage: one may be adopted later.
        self.watermarks.insert(tenant, last);
        let name = self.tenants.name(tenant).to_string();
        let mut tasks = Vec::new();
        for slot in self.storages.mounted.clone() {
            let removal = Removal {
                tenant: name.clone(),
                key: None,
                incarnation: last,
            };
            self.promises.hold(ticket);
            let task = self.enqueue_removal(slot, removal, Some(ticket));
            tasks.push((self.storages.at(slot).identity.id, task));
        }
        self.log(|| Record::RemovedAll {
            tenant: name,
            last,
            tasks,
        });
    }

    pub(super) fn fetch_removes(&mut self, slot: u32, limit: u32, after: u64) -> Answer {
        let storage = self.storages.at_mut(slot);
        storage.nudged = false;
        let limit = match limit {
            0 => FETCH,
            limit => FETCH.min(limit as usize),
        };
        let (tasks, more) = storage.removes.fetch_without_delete(after, limit);
        Answer::Storage(StorageAnswer::Removes { tasks, more })
    }

    pub(super) fn ack_removes(&mut self, slot: u32, tasks: &[u64]) -> Result<Answer, Failure> {
        self.check_log()?;
        let mut erased = BTreeSet::new();
        for &task in tasks {
            let storage = self.storages.at_mut(slot);
            if let Some(pending) = storage.removes.ack_and_erase(task) {
                erased.insert(task);
                if let Some(ticket) = pending.ticket {
                    self.settle(ticket);
                }
            }
        }
        if !erased.is_empty() {
            let storage = self.storages.at(slot).identity.id;
            self.log(|| Record::Acknowledged {
                storage,
                tasks: erased.into_iter().collect(),
            });
        }
        Ok(Answer::Done)
    }

    /// The holder is gone: its return reconciles anyway.
    pub(super) fn forget_removes(&mut self, slot: u32) {
        let storage = self.storages.at_mut(slot);
        if storage.removes.len() == 0 {
            return;
        }
        let id = storage.identity.id;
        for pending in storage.removes.take().into_values() {
            if let Some(ticket) = pending.ticket {
                self.settle(ticket);
            }
        }
        self.log(|| Record::Forgotten { storage: id });
    }
}
