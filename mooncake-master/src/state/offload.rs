//! Copying objects to disks: which, where to, and what becomes of it.
//!
//! A task waits in its storage's queue, is fetched under a lease on the memory, and ends with what the
//! holder says of it. It is given out again when its lease passes without a word, and goes to another
//! storage when its holder dies.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    Answer, ClientId, Dropped, Failure, Incarnation, Key, Located, ObjectName, OffloadResult,
    Offloaded, State, StorageAnswer,
    bodies::Body,
    disks::{Entry, Stage},
    durable::Record,
    hash::spread,
    leases::Covered,
    segments::Table,
};
use crate::{Time, evict::share, slab::Ref};

/// Tasks that are given out at once, and bytes.
const FETCH: usize = 1024;
const FETCH_BYTES: u64 = 1 << 30;
/// Tasks without a result that one storage has at most.
const UNDER_WAY: usize = 4096;
/// How often an offload is tried.
const TRIES: u8 = 3;
/// At most this share of the memory waits for disks before it is free; what else must go then goes
/// without: a disk that hangs does not bring the store to a stop.
const SAVED_SHARE: f64 = 0.25;
/// Storages that are compared for one object.
const SAMPLE: usize = 6;

/// Which objects are copied to disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Offload {
    /// None.
    #[default]
    Off,
    /// All, as soon as they are written; and those that no disk could take then, when they are to be
    /// evicted.
    Eager,
    /// Those that are to be evicted.
    OnEvict,
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Eager => "eager",
            Self::OnEvict => "on evict",
        })
    }
}

impl State {
    /// An object has been written.
    #[inline]
    pub(super) fn offload_written(&mut self, slot: u32) {
        if self.settings.offload == Offload::Eager && !self.storages.mounted.is_empty() {
            self.offload(slot);
        }
    }

    /// Queues an object for the disk that suits it best; `false`: for none.
    pub(super) fn offload(&mut self, slot: u32) -> bool {
        let Some(target) = self.target(slot) else {
            self.totals.missed_offloads += 1;
            return false;
        };
        self.queue(slot, target);
        true
    }

    fn queue(&mut self, slot: u32, target: u32) {
        let at = self.enter(slot, target, Stage::Queued);
        let disks = &self.disks;
        let storage = &mut self.storages.all[target as usize];
        let limit = self.settings.offload_queue_limit;
        // The queue has room for this one, so some of these are no more: they go in front, and when
        // these are as many as can wait, everywhere.
        let waits = |at: &Ref| disks.get(*at).is_some_and(|e| e.stage == Stage::Queued);
        if storage.offloads.len() >= limit.saturating_mul(2) {
            storage.offloads.retain(waits);
        } else if storage.offloads.len() >= limit {
            while storage.offloads.front().is_some_and(|at| !waits(at)) {
                storage.offloads.pop_front();
            }
        }
        storage.offloads.push_back(at);
        self.nudge(target);
    }

    /// A storage of whoever has the object in memory, else the emptiest of some; one that can be
    /// given a task, and neither has the object nor is given it.
    fn target(&self, slot: u32) -> Option<u32> {
        let can = |storage: u32| {
            let known = self.storages.at(storage);
            known.is_usable()
                && !known.suspect
                && (known.queued as usize) < self.settings.offload_queue_limit
                && !self.is_on(slot, storage)
        };
        let bodies = &self.objects.bodies;
        let better = |best: Option<(f64, u32)>, storage: u32| {
            let free = self.storages.at(storage).free(0).unwrap_or(NEUTRAL);
            match best {
                Some((most, _)) if most >= free => best,
                _ => Some((free, storage)),
            }
        };
        let owners = bodies.places(slot).flat_map(|place| {
            let owner = self.segments.at(place.segment).identity.owner;
            self.storages.held_by(owner)
        });
        if let Some((_, own)) = owners.filter(|&storage| can(storage)).fold(None, better) {
            return Some(own);
        }
        let mounted = &self.storages.mounted;
        let mut draw = bodies[slot].sequence();
        let start = ((u128::from(spread(&mut draw)) * mounted.len() as u128) >> 64) as usize;
        let drawn = mounted[start..].iter().chain(&mounted[..start]).copied();
        let sample = drawn.filter(|&storage| can(storage)).take(SAMPLE);
        sample.fold(None, better).map(|(_, storage)| storage)
    }

    fn is_on(&self, slot: u32, storage: u32) -> bool {
        self.objects.bodies[slot].has_disk()
            && self
                .disks
                .of(slot)
                .any(|(_, entry)| entry.storage == storage)
    }

    pub(super) fn fetch_offloads(
        &mut self,
        now: Time,
        (slot, holder): (u32, ClientId),
        limit: u32,
        limit_bytes: u64,
    ) -> Result<Answer, Failure> {
        self.check_log()?;
        self.storages.at_mut(slot).nudged = false;
        let limit = match limit {
            0 => FETCH,
            limit => FETCH.min(limit as usize),
        };
        let limit_bytes = match limit_bytes {
            0 => FETCH_BYTES,
            bytes => bytes.min(FETCH_BYTES),
        };
        let until = now + self.settings.lease_ttl;
        let (mut table, mut covered) = (Table::default(), Covered::new());
        let (mut tasks, mut results) = (Vec::new(), Vec::new());
        let mut bytes = 0u64;
        while tasks.len() < limit && self.may_go_on() {
            let Some(at) = self.next_offload(now, slot) else {
                break;
            };
            self.work += 1;
            let entry = *self.disks.at(at.slot);
            let length = self.objects.bodies[entry.body].length;
            bytes = bytes.saturating_add(length);
            if !tasks.is_empty() && bytes > limit_bytes {
                break;
            }
            let task = self.dispatch(at, until);
            let body = entry.body;
            if self.has_memory(at.slot) {
                self.objects.bodies[body].leases += 1;
                covered.push(body);
            }
            let (tenant, key, _) = self.name_of(body);
            tasks.push((task, tenant, key));
            let segments = &self.segments;
            results.push(Ok(self.objects.view(body, |at| table.place(segments, at))));
        }
        let lease = if covered.is_empty() {
            0
        } else {
            self.leases.grant((holder, 0), covered, until)
        };
        let more = !self.may_go_on() || self.next_offload(now, slot).is_some();
        let objects = Located {
            results,
            segments: table.handles,
            storages: Vec::new(),
        };
        Ok(Answer::Storage(StorageAnswer::Offloads {
            tasks,
            objects,
            lease,
            more,
        }))
    }

    /// The next task to be given out; those are forgotten that cannot be.
    fn next_offload(&mut self, now: Time, slot: u32) -> Option<Ref> {
        while self.may_go_on() {
            let storage = &mut self.storages.all[slot as usize];
            if !storage.is_usable() {
                return None;
            }
            if let Some(&(until, task)) = storage.fetched.front()
                && until <= now
            {
                // The answer may have been lost, or the disk is slow: then the holder knows the task.
                // If it does not, and the memory is gone by now, it says so, and the task ends.
                let at = storage.tasks.get(&task).copied();
                let given = at.filter(|at| {
                    let entry = self.disks.get(*at);
                    entry.is_some_and(|entry| !self.objects.is_doomed(entry.body))
                });
                if given.is_some() {
                    return given;
                }
                self.storages.at_mut(slot).fetched.pop_front();
                self.work += 1;
                continue;
            }
            if storage.tasks.len() >= UNDER_WAY {
                return None;
            }
            let at = *storage.offloads.front()?;
            let waits = self.disks.get(at).is_some_and(|e| e.stage == Stage::Queued);
            if waits && self.has_memory(at.slot) {
                return Some(at);
            }
            self.storages.at_mut(slot).offloads.pop_front();
            self.work += 1;
        }
        None
    }

    /// The object of an entry can be read from memory.
    fn has_memory(&self, at: u32) -> bool {
        let body = self.disks.at(at).body;
        self.objects.bodies[body].count() > 0 && !self.objects.is_doomed(body)
    }

    /// Gives a task out, for the first time or once more; its number.
    fn dispatch(&mut self, at: Ref, until: Time) -> u64 {
        let entry = *self.disks.at(at.slot);
        if entry.stage == Stage::Queued {
            let task = self.next_task();
            self.send_out(at.slot);
            let storage = &mut self.storages.all[entry.storage as usize];
            storage.offloads.pop_front();
            storage.tasks.insert(task, at);
            storage.fetched.push_back((until, task));
            self.disks.at_mut(at.slot).task = task;
            self.log_held(at);
            return task;
        }
        let storage = &mut self.storages.all[entry.storage as usize];
        storage.fetched.pop_front();
        storage.fetched.push_back((until, entry.task));
        entry.task
    }

    /// The holder may be writing what waited.
    fn send_out(&mut self, at: u32) {
        let entry = self.disks.at_mut(at);
        entry.stage = Stage::Dispatched;
        let length = self.objects.bodies[entry.body].length;
        let storage = &mut self.storages.all[entry.storage as usize];
        storage.queued -= 1;
        storage.value_bytes += length;
    }

    pub(super) fn notify_offloads(
        &mut self,
        now: Time,
        slot: u32,
        results: &[OffloadResult],
    ) -> Answer {
        let results = results
            .iter()
            .map(|result| self.offloaded(now, slot, result))
            .collect();
        self.evict_beside();
        Answer::Storage(StorageAnswer::Each(results))
    }

    fn offloaded(&mut self, now: Time, slot: u32, result: &OffloadResult) -> Result<(), Failure> {
        let OffloadResult {
            task,
            object,
            outcome,
        } = result;
        let task = *task;
        let at = self.storages.at(slot).tasks.get(&task).copied();
        let known = at.filter(|at| match (self.disks.get(*at), object) {
            (Some(entry), Some(object)) => self.is_named(entry.body, object),
            (entry, None) => entry.is_some(),
            (None, _) => false,
        });
        let at = match known {
            Some(at) => at,
            // It has ended, by an answer that was lost or by a reconciliation.
            None => self.judge(slot, task, object.as_ref())?,
        };
        let entry = *self.disks.at(at.slot);
        if self.objects.is_doomed(entry.body) {
            return Err(Failure::Revoked);
        }
        let begun = known.is_some() && entry.stage == Stage::Dispatched;
        match outcome {
            Offloaded::Done => {
                if entry.stage == Stage::Queued {
                    // It was given out more than once, and failed the other time.
                    self.check_log()?;
                    self.send_out(at.slot);
                    self.log_held(at);
                }
                if entry.stage != Stage::OnDisk {
                    self.totals.offloaded_objects += 1;
                }
                self.found(at.slot);
                self.unpark(entry.body);
            }
            // It says nothing of what another attempt has brought there.
            Offloaded::Failed | Offloaded::Refused if !begun => {}
            Offloaded::Failed if entry.failures + 1 < TRIES && self.has_memory(at.slot) => {
                self.disks.at_mut(at.slot).failures += 1;
                self.take_back(at);
            }
            Offloaded::Failed | Offloaded::Refused => {
                self.totals.failed_offloads += 1;
                let saving = self.objects.bodies[entry.body].is_saving();
                self.erase(now, at.slot);
                // No other disk is tried: that could go on for ever.
                let lives = |body: &Body| body.is_complete() && body.count() > 0;
                let body = self.objects.bodies.at(entry.body);
                if saving && body.is_some_and(|body| lives(body) && !body.is_kept()) {
                    self.evict(entry.body);
                }
            }
        }
        Ok(())
    }

    fn is_named(&self, body: u32, object: &ObjectName) -> bool {
        let bodies = &self.objects.bodies;
        let tenant = self.tenants.find(&object.tenant).ok().flatten();
        bodies.incarnation(body) == object.incarnation
            && tenant.is_some_and(|tenant| bodies.is_of(body, tenant, &object.key.0))
    }

    /// The entry of an object that a task which is not known was for. If there is none: whether the
    /// object is gone, so that nothing may stay of it.
    fn judge(&self, slot: u32, task: u64, object: Option<&ObjectName>) -> Result<Ref, Failure> {
        let unknown = Failure::TaskNotFound { task };
        let Some(object) = object else {
            return Err(unknown);
        };
        let tenant = self.tenants.find(&object.tenant)?;
        match self.find_complete(tenant, &object.key, object.incarnation) {
            Some(body) => {
                let mut entries = self.disks.of(body);
                let here = entries.find(|(_, entry)| entry.storage == slot);
                // It lives elsewhere: no harm is in what is here.
                here.map(|(at, _)| self.disks.reference(at)).ok_or(unknown)
            }
            // What it holds is not known yet.
            None if self.storages.at(slot).adopting => Err(unknown),
            None => Err(Failure::Revoked),
        }
    }

    /// What was dispatched waits again.
    fn take_back(&mut self, at: Ref) {
        let entry = *self.disks.at(at.slot);
        let length = self.objects.bodies[entry.body].length;
        self.log_left(at.slot);
        self.disks.at_mut(at.slot).stage = Stage::Queued;
        let storage = &mut self.storages.all[entry.storage as usize];
        storage.tasks.remove(&entry.task);
        storage.value_bytes -= length;
        storage.queued += 1;
        storage.offloads.push_back(at);
        self.nudge(entry.storage);
    }

    /// Gives other disks what holders had not copied when they died, for one step; `true`: there is
    /// more.
    pub(super) fn requeue(&mut self, now: Time) -> bool {
        while self.may_go_on()
            && let Some(at) = self.orphans.pop_front()
        {
            self.work += 1;
            let Some(&Entry { body, stage, .. }) = self.disks.get(at) else {
                continue;
            };
            match stage {
                Stage::Queued => self.erase(now, at.slot),
                // It may be on the disk: that is known once the holder is back.
                Stage::Dispatched => {}
                Stage::OnDisk => continue,
            }
            let bodies = &self.objects.bodies;
            let lives = bodies.at(body).is_some_and(|body| body.is_complete());
            let queued = |state: &Self| {
                let waits = |(_, entry): (u32, &Entry)| {
                    entry.stage != Stage::OnDisk && state.storages.at(entry.storage).mounted
                };
                state.disks.of(body).any(waits)
            };
            let goes = lives
                && bodies[body].count() > 0
                && !self.objects.is_doomed(body)
                && !queued(self)
                && self.offload(body);
            if lives && !goes && !queued(self) {
                // It is evicted when its turn comes, or tried once more.
                self.unsave(body);
            }
        }
        !self.orphans.is_empty()
    }

    pub(super) fn drop_replicas(
        &mut self,
        now: Time,
        slot: u32,
        objects: &[Dropped],
    ) -> Result<Answer, Failure> {
        self.check_log()?;
        let mut results = Vec::with_capacity(objects.len());
        for dropped in objects {
            results.push(self.drop_replica(now, slot, dropped));
        }
        Ok(Answer::Storage(StorageAnswer::Each(results)))
    }

    fn drop_replica(&mut self, now: Time, slot: u32, dropped: &Dropped) -> Result<(), Failure> {
        super::check_key(&dropped.key.0)?;
        let tenant = self.tenants.find(&dropped.tenant)?;
        let found = self.find_complete(tenant, &dropped.key, dropped.incarnation);
        let here = found.and_then(|body| {
            let mut entries = self.disks.of(body);
            entries.find_map(|(at, entry)| {
                (entry.storage == slot && entry.stage == Stage::OnDisk).then_some(at)
            })
        });
        if let Some(at) = here {
            let count = match dropped.evicted {
                true => &mut self.totals.dropped_replicas,
                false => &mut self.totals.lost_replicas,
            };
            *count += 1;
            self.erase(now, at);
        }
        Ok(())
    }

    fn find_complete(
        &self,
        tenant: Option<super::tenants::TenantId>,
        key: &Key,
        incarnation: Incarnation,
    ) -> Option<u32> {
        let slot = self.objects.find(self.objects.sought(tenant, &key.0))?;
        let bodies = &self.objects.bodies;
        let meant = bodies[slot].is_complete() && bodies.incarnation(slot) == incarnation;
        meant.then_some(slot)
    }

    /// Begins to evict an object by copying it to a disk, if that has not begun; `false`: it need not
    /// be copied, or no disk can take it.
    pub(super) fn save(&mut self, slot: u32) -> bool {
        if self.settings.offload == Offload::Off
            || self.storages.mounted.is_empty()
            || self.objects.is_doomed(slot)
        {
            return false;
        }
        let body = &self.objects.bodies[slot];
        let size = body.length * u64::from(body.count());
        if self.saving_bytes + size > share(self.segments.capacity, SAVED_SHARE) {
            return false;
        }
        let mut comes = false;
        if body.has_disk() {
            for (_, entry) in self.disks.of(slot) {
                if entry.stage == Stage::OnDisk {
                    return false;
                }
                comes |= self.storages.at(entry.storage).mounted;
            }
        }
        if !comes && !self.offload(slot) {
            return false;
        }
        self.objects.bodies[slot].set_saving(true);
        self.saving_bytes += size;
        let objects = &mut self.objects;
        objects.recency.park(&mut objects.bodies, slot);
        true
    }

    /// The object need not wait for a disk any more.
    pub(super) fn unsave(&mut self, slot: u32) {
        if self.objects.bodies.at(slot).is_some_and(Body::is_saving) {
            self.end_saving(slot);
            self.unpark(slot);
        }
    }

    /// Ends the eviction of an object that is on its disk, unless somebody reads it, or memory is not
    /// short any more; `true`: it is evicted.
    pub(super) fn evict_saved(&mut self, slot: u32) -> bool {
        let body = &self.objects.bodies[slot];
        let in_use = body.leases > 0 || body.reservation.is_reserved();
        let saved = |(_, entry): (u32, &Entry)| entry.stage == Stage::OnDisk;
        if !body.is_saving() || in_use || !self.disks.of(slot).any(saved) {
            return false;
        }
        self.end_saving(slot);
        let staying = self.segments.taken() - self.segments.quarantined_bytes;
        let low = share(self.segments.capacity, self.settings.low_watermark);
        let evicts = staying > low && self.objects.bodies[slot].count() > 0;
        if evicts {
            self.evict(slot);
        }
        evicts
    }

    /// The same for one that goes.
    pub(super) fn end_saving(&mut self, slot: u32) {
        let body = &mut self.objects.bodies[slot];
        if body.is_saving() {
            self.saving_bytes -= body.length * u64::from(body.count());
            body.set_saving(false);
        }
    }

    /// The holder should hear that something waits.
    pub(super) fn nudge(&mut self, slot: u32) {
        let storage = self.storages.at_mut(slot);
        if storage.mounted && !std::mem::replace(&mut storage.nudged, true) {
            let client = storage.identity.holder;
            self.effects.push(super::Effect::Nudge { client });
        }
    }

    /// Adds a replica on a disk; its entry.
    pub(super) fn enter(&mut self, body: u32, slot: u32, stage: Stage) -> Ref {
        let length = self.objects.bodies[body].length;
        let storage = &mut self.storages.all[slot as usize];
        match stage {
            Stage::Queued => {
                storage.queued += 1;
                storage.coming_bytes += length;
            }
            Stage::Dispatched => {
                storage.coming_bytes += length;
                storage.value_bytes += length;
            }
            Stage::OnDisk => {
                storage.on_disk += 1;
                storage.value_bytes += length;
            }
        }
        let (list, round) = (&mut storage.entries, storage.round);
        let bodies = &mut self.objects.bodies;
        self.disks
            .insert(bodies, list, (body, slot), (stage, round, 0))
    }

    /// Takes a replica on a disk out of the books: the one place where what was charged returns.
    pub(super) fn leave(&mut self, at: u32) {
        let Entry {
            body,
            storage,
            stage,
            task,
            ..
        } = *self.disks.at(at);
        let length = self.objects.bodies[body].length;
        let storage = &mut self.storages.all[storage as usize];
        match stage {
            Stage::Queued => {
                storage.queued -= 1;
                storage.coming_bytes -= length;
            }
            Stage::Dispatched => {
                storage.coming_bytes -= length;
                storage.value_bytes -= length;
                storage.tasks.remove(&task);
            }
            Stage::OnDisk => {
                storage.on_disk -= 1;
                storage.value_bytes -= length;
            }
        }
        let bodies = &mut self.objects.bodies;
        self.disks.remove(bodies, &mut storage.entries, at);
    }

    /// Takes all that a body has on disks out of the books.
    pub(super) fn leave_all(&mut self, slot: u32) {
        if self.objects.bodies[slot].has_disk() {
            for at in self.disks.places(slot) {
                self.leave(at);
            }
        }
    }

    /// The holder has the object durably.
    pub(super) fn set_on_disk(&mut self, at: u32) {
        let entry = *self.disks.at(at);
        if entry.stage == Stage::Dispatched {
            let length = self.objects.bodies[entry.body].length;
            let storage = self.storages.at_mut(entry.storage);
            storage.tasks.remove(&entry.task);
            storage.coming_bytes -= length;
            storage.on_disk += 1;
            self.disks.at_mut(at).stage = Stage::OnDisk;
        }
    }

    /// A replica on a disk is no more, or never was; with it the object, if there is no other.
    pub(super) fn erase(&mut self, now: Time, at: u32) {
        let Entry { body, stage, .. } = *self.disks.at(at);
        if stage != Stage::Queued {
            self.log_left(at);
        }
        self.leave(at);
        if self.objects.bodies[body].count() == 0 {
            self.lose_memory(now, body);
        } else if !self.is_awaited(body) {
            self.unsave(body);
        }
    }

    /// The object is on a disk, or a holder that is alive is to bring it there.
    fn is_awaited(&self, body: u32) -> bool {
        let awaited = |(_, entry): (u32, &Entry)| {
            entry.stage == Stage::OnDisk || self.storages.at(entry.storage).mounted
        };
        self.objects.bodies[body].has_disk() && self.disks.of(body).any(awaited)
    }

    /// A complete object has no memory any more: it stays if it is on a disk, or may be.
    pub(super) fn lose_memory(&mut self, now: Time, slot: u32) {
        if !self.objects.bodies[slot].is_complete() {
            return;
        }
        if self.keep_on_disk(slot) {
            let objects = &mut self.objects;
            objects.recency.set_apart(&mut objects.bodies, slot);
        } else {
            self.retire(now, slot);
        }
    }

    /// Ends what waits to be copied, since it is not in memory; `true`: the object is on a disk, or
    /// may be.
    pub(super) fn keep_on_disk(&mut self, slot: u32) -> bool {
        if !self.objects.bodies[slot].has_disk() || self.objects.is_doomed(slot) {
            return false;
        }
        for at in self.disks.places(slot) {
            if self.disks.at(at).stage == Stage::Queued {
                self.totals.missed_offloads += 1;
                self.leave(at);
            }
        }
        self.objects.bodies[slot].has_disk()
    }

    /// Somebody can read a complete object without memory from a disk.
    pub(super) fn is_on_readable_disk(&self, slot: u32) -> bool {
        self.objects.bodies[slot].has_disk()
            && self.disks.of(slot).any(|(_, e)| self.is_announced(e))
    }

    /// The replica can be read.
    pub(super) fn is_announced(&self, entry: &Entry) -> bool {
        let storage = self.storages.at(entry.storage);
        entry.stage == Stage::OnDisk && storage.is_usable() && entry.round == storage.round
    }

    /// An object on a disk of which another life of the master knew.
    pub(super) fn restore(
        &mut self,
        now: Time,
        sought: super::objects::Sought<'_>,
        incarnation: Incarnation,
        length: u64,
    ) -> u32 {
        let tenant = sought
            .tenant
            .expect("a tenant is known once something is under it");
        self.sequence += 1;
        let bodies = &mut self.objects.bodies;
        let slot = bodies.insert(tenant, sought.key, length, self.sequence);
        bodies.set_earlier(slot, incarnation);
        let used = self.next_use(now);
        self.objects.restore(slot, sought, used);
        slot
    }

    pub(super) fn log_held(&mut self, at: Ref) {
        if !self.settings.log {
            return;
        }
        let Entry { body, storage, .. } = *self.disks.at(at.slot);
        let (tenant, key, incarnation) = self.name_of(body);
        let length = self.objects.bodies[body].length;
        let storage = self.storages.at(storage).identity.id;
        self.log(|| Record::Held {
            storage,
            tenant,
            key,
            incarnation,
            length,
        });
    }

    fn log_left(&mut self, at: u32) {
        if !self.settings.log {
            return;
        }
        let Entry { body, storage, .. } = *self.disks.at(at);
        let (tenant, key, incarnation) = self.name_of(body);
        let storage = self.storages.at(storage).identity.id;
        self.log(|| Record::Left {
            storage,
            tenant,
            key,
            incarnation,
        });
    }

    pub(super) fn name_of(&self, slot: u32) -> (String, Key, Incarnation) {
        let bodies = &self.objects.bodies;
        let tenant = self.tenants.name(bodies[slot].tenant()).to_string();
        let key = Key::from(bodies.key(slot).to_vec());
        (tenant, key, bodies.incarnation(slot))
    }
}

/// What a storage of which nothing is known counts as.
const NEUTRAL: f64 = 0.5;
