//! Storages: who holds them, how full they are, and what waits for them.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;

use super::{
    Answer, ClientId, Failure, Held, MAX_NAME_BYTES, Measured, State, StorageAnswer, StorageCall,
    StorageHandle, StorageId, StorageIdentity, StorageUsage, clients::Client, disks::Stage,
    durable::Record, removals::RemoveTaskQueue,
};
use crate::{
    Time,
    list::{List, NONE},
    slab::Ref,
};

/// Objects in a page of a reconciliation.
pub const RECONCILE_PAGE: u32 = 1024;

/// No value is longer: sums of lengths stay within 64 bits.
const MAX_LENGTH: u64 = 1 << 40;

/// More are a mistake: each costs memory for the master's life.
const MAX_STORAGES: usize = 65_536;

/// The share of its capacity by which a storage may seem emptier from one report to the next: one
/// that was just emptied is not given everything at once.
const RAMP: f64 = 0.05;
/// No storage seems emptier when it is reported for the first time.
const FIRST: f64 = 0.5;

#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) identity: StorageHandle,
    /// It has a holder that is not dead.
    pub(crate) mounted: bool,
    pub(crate) suspect: bool,
    /// Its holder has told all that is in it.
    pub(crate) reconciled: bool,
    /// What this master does not know is kept, until it is reconciled.
    pub(crate) adopting: bool,
    /// Counts its reconciliations.
    pub(crate) round: u32,
    next_page: u64,
    measured: Measured,
    /// The free share that choices go by, before what is on its way is taken off.
    free: f64,
    /// All entries here, those that the last reconciliation found in front.
    pub(crate) entries: List,
    /// Of entries that are dispatched or on the disk.
    pub(crate) value_bytes: u64,
    /// Entries on the disk.
    pub(crate) on_disk: u64,
    /// Of entries that are queued or dispatched.
    pub(crate) coming_bytes: u64,
    /// Entries that wait to be fetched.
    pub(crate) queued: u64,
    /// These, in order, with some that are no more.
    pub(crate) offloads: VecDeque<Ref>,
    /// Tasks that were fetched and have no result, by the ends of their leases.
    pub(crate) fetched: VecDeque<(Time, u64)>,
    /// All that have no result.
    pub(crate) tasks: FxHashMap<u64, Ref>,
    pub(crate) removes: RemoveTaskQueue,
    /// The holder was told that something waits.
    pub(crate) nudged: bool,
}

impl Storage {
    /// Objects can be read from it, and copied to it.
    pub(crate) fn is_usable(&self) -> bool {
        self.mounted && self.reconciled
    }

    /// How much of it is free, as a share; `None`: unknown.
    pub(crate) fn free(&self, placed: u64) -> Option<f64> {
        let capacity = self.measured.capacity;
        if capacity == 0 || !self.mounted {
            return None;
        }
        let coming = self.coming_bytes.saturating_add(placed) as f64;
        Some((self.free - coming / capacity as f64).max(0.0))
    }

    fn measure(&mut self, measured: Measured) {
        let known = self.measured.capacity > 0;
        self.measured = measured;
        let Measured {
            capacity,
            used,
            queued,
            ..
        } = measured;
        if capacity == 0 {
            return;
        }
        // What the holder has accepted is on its way by our count as well.
        let queued = queued.saturating_sub(self.coming_bytes);
        let left = capacity.saturating_sub(used.saturating_add(queued));
        let free = left as f64 / capacity as f64;
        let most = if known { self.free + RAMP } else { FIRST };
        self.free = free.min(most);
    }
}

/// All that this master knows.
#[derive(Debug, Default)]
pub(crate) struct Storages {
    pub(crate) all: Vec<Storage>,
    by_id: BTreeMap<StorageId, u32>,
    /// Those that are mounted.
    pub(crate) mounted: Vec<u32>,
    /// How many are being adopted.
    pub(crate) adopting: usize,
}

impl Storages {
    pub(crate) fn find(&self, id: StorageId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn at(&self, slot: u32) -> &Storage {
        &self.all[slot as usize]
    }

    pub(crate) fn at_mut(&mut self, slot: u32) -> &mut Storage {
        &mut self.all[slot as usize]
    }

    /// That of a storage that becomes known, if it is not.
    pub(crate) fn know(&mut self, id: StorageId, capacity: usize) -> u32 {
        if let Some(slot) = self.find(id) {
            return slot;
        }
        let slot = self.all.len() as u32;
        let identity = StorageIdentity {
            id,
            holder: ClientId::NOBODY,
            endpoint: String::new(),
            segment_name: String::new(),
            holder_name: String::new(),
        };
        self.all.push(Storage {
            identity: identity.into(),
            mounted: false,
            suspect: false,
            reconciled: false,
            adopting: false,
            round: 0,
            next_page: 0,
            measured: Measured::default(),
            free: 0.0,
            entries: List::EMPTY,
            value_bytes: 0,
            on_disk: 0,
            coming_bytes: 0,
            queued: 0,
            offloads: VecDeque::new(),
            fetched: VecDeque::new(),
            tasks: FxHashMap::default(),
            removes: RemoveTaskQueue::new(capacity),
            nudged: false,
        });
        self.by_id.insert(id, slot);
        slot
    }

    /// Those that a client holds.
    pub(crate) fn held_by(&self, holder: ClientId) -> impl Iterator<Item = u32> {
        let theirs = move |slot: &u32| self.at(*slot).identity.holder == holder;
        self.mounted.iter().copied().filter(theirs)
    }

    /// Prefers others to the storages of this holder, or no longer.
    pub(crate) fn suspect(&mut self, holder: ClientId, suspect: bool) {
        for slot in self.held_by(holder).collect::<Vec<_>>() {
            self.at_mut(slot).suspect = suspect;
        }
    }
}

impl State {
    pub(super) fn storage_call(
        &mut self,
        now: Time,
        client: ClientId,
        call: &StorageCall,
    ) -> Answer {
        super::answer_of(self.try_storage_call(now, client, call))
    }

    fn try_storage_call(
        &mut self,
        now: Time,
        client: ClientId,
        call: &StorageCall,
    ) -> Result<Answer, Failure> {
        match call {
            StorageCall::Mount {
                storage,
                measured,
                fresh,
            } => self.mount_storage(now, client, storage, (*measured, *fresh)),
            StorageCall::Adopt { storage } => self.adopt_storage(*storage),
            StorageCall::List => Ok(Answer::Storage(StorageAnswer::Storages(
                self.list_storages(now),
            ))),
            StorageCall::Reconcile {
                storage,
                page,
                objects,
                last,
            } => {
                let slot = self.own_storage(now, client, *storage)?;
                self.reconcile(now, slot, (*page, *last), objects)
            }
            StorageCall::Report { storage, measured } => {
                let slot = self.own_storage(now, client, *storage)?;
                let storage = self.storages.at_mut(slot);
                storage.measure(*measured);
                Ok(Answer::Storage(StorageAnswer::Reported {
                    remove_tasks: storage.removes.len() as u64,
                    offload_tasks: storage.queued,
                }))
            }
            StorageCall::Unmount { storage } => {
                let slot = self.own_storage(now, client, *storage)?;
                self.drop_storage(slot);
                Ok(Answer::Done)
            }
            StorageCall::FetchRemoves {
                storage,
                limit,
                after,
            } => {
                let slot = self.own_storage(now, client, *storage)?;
                Ok(self.fetch_removes(slot, *limit, *after))
            }
            StorageCall::AckRemoves { storage, tasks } => {
                let slot = self.own_storage(now, client, *storage)?;
                self.ack_removes(slot, tasks)
            }
            StorageCall::FetchOffloads {
                storage,
                limit,
                limit_bytes,
            } => {
                let slot = self.own_storage(now, client, *storage)?;
                self.fetch_offloads(now, (slot, client), *limit, *limit_bytes)
            }
            StorageCall::NotifyOffloads { storage, results } => {
                let slot = self.own_storage(now, client, *storage)?;
                Ok(self.notify_offloads(now, slot, results))
            }
            StorageCall::Drop { storage, objects } => {
                let slot = self.own_storage(now, client, *storage)?;
                self.drop_replicas(now, slot, objects)
            }
        }
    }

    /// The storage, if this client, which is heard now, holds it.
    fn own_storage(&mut self, now: Time, client: ClientId, id: StorageId) -> Result<u32, Failure> {
        if !self.seen(now, client) {
            return Err(Failure::Fenced);
        }
        let slot = self.storages.find(id).ok_or(Failure::StorageNotFound)?;
        let storage = self.storages.at(slot);
        if !storage.mounted {
            return Err(Failure::StorageNotFound);
        }
        if storage.identity.holder != client {
            let owner = storage.identity.holder;
            return Err(Failure::IllegalClient { owner });
        }
        Ok(slot)
    }

    fn mount_storage(
        &mut self,
        now: Time,
        client: ClientId,
        storage: &StorageIdentity,
        (measured, fresh): (Measured, bool),
    ) -> Result<Answer, Failure> {
        if storage.holder == ClientId::NOBODY || storage.holder != client {
            return Err(Failure::invalid("a storage needs its holder's incarnation"));
        }
        if storage.endpoint.is_empty() || storage.segment_name.is_empty() {
            return Err(Failure::invalid(
                "a storage needs the endpoint of its holder and the name of its segment",
            ));
        }
        let names = [
            &storage.endpoint,
            &storage.segment_name,
            &storage.holder_name,
        ];
        if names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
            return Err(Failure::invalid(format!(
                "a name has at most {MAX_NAME_BYTES} bytes"
            )));
        }
        let slot = match self.storages.find(storage.id) {
            Some(slot) => slot,
            None if fresh => self.know_storage(storage.id, false)?,
            None => {
                return Err(Failure::StorageUnknown {
                    storage: storage.id,
                });
            }
        };
        let known = self.storages.at(slot);
        if known.mounted && known.identity.holder != client {
            // Who holds the directory now has its lock: the former holder is gone, whatever is
            // heard of it.
            self.drop_storage(slot);
        }
        let resumed = self.storages.at(slot).identity.holder == client;
        let mut identity = storage.clone();
        if !self.seen(now, client) {
            let mut holder = Client::new(None, identity.holder_name.clone(), now);
            // It has said nothing yet of the segments that it may bring.
            holder.heard = false;
            self.clients.all.insert(client, holder);
        } else if identity.holder_name.is_empty() {
            identity
                .holder_name
                .clone_from(&self.clients.all[&client].name);
        }
        let storage = self.storages.at_mut(slot);
        storage.identity = identity.into();
        storage.suspect = false;
        storage.measure(measured);
        if !resumed {
            // Nobody answers for what the former holder had fetched.
            storage.tasks.clear();
        }
        if !storage.mounted {
            storage.mounted = true;
            // Nothing of an earlier reconciliation counts, begun or ended.
            storage.reconciled = false;
            storage.next_page = 0;
            storage.round += 1;
            storage.nudged = false;
            self.storages.mounted.push(slot);
        }
        Ok(Answer::Done)
    }

    /// Takes a storage in of which this master had not heard.
    fn know_storage(&mut self, id: StorageId, adopting: bool) -> Result<u32, Failure> {
        self.check_log()?;
        if self.storages.all.len() >= MAX_STORAGES {
            let limit = MAX_STORAGES as u64;
            return Err(Failure::invalid(format!(
                "there are {limit} storages already"
            )));
        }
        let slot = self.storages.know(id, self.settings.remove_queue_limit);
        self.set_adopting(slot, adopting);
        self.log(|| Record::Storage { id, adopting });
        Ok(slot)
    }

    fn adopt_storage(&mut self, id: StorageId) -> Result<Answer, Failure> {
        if self.storages.find(id).is_none() {
            self.know_storage(id, true)?;
        }
        Ok(Answer::Done)
    }

    fn list_storages(&self, now: Time) -> Vec<StorageUsage> {
        let usage = |&slot: &u32| {
            let storage = self.storages.at(slot);
            let holder = self.clients.all.get(&storage.identity.holder);
            StorageUsage {
                storage: storage.identity.clone(),
                measured: storage.measured,
                value_bytes: storage.value_bytes,
                objects: if storage.is_usable() {
                    storage.on_disk
                } else {
                    0
                },
                remove_tasks: storage.removes.len() as u64,
                offload_tasks: storage.queued,
                mounted: storage.mounted,
                reconciled: storage.reconciled,
                silent: holder
                    .map(|holder| now.since(holder.last_seen))
                    .unwrap_or_default(),
            }
        };
        self.storages.by_id.values().map(usage).collect()
    }

    /// The holder is gone: what is on the disk is not announced until it is reconciled again.
    pub(super) fn drop_storage(&mut self, slot: u32) {
        self.storages.mounted.retain(|&other| other != slot);
        let storage = self.storages.at_mut(slot);
        storage.mounted = false;
        storage.reconciled = false;
        storage.fetched.clear();
        // What it was to copy to its disk goes to others, step by step.
        let orphans = std::mem::take(&mut storage.offloads);
        self.orphans.extend(orphans);
        let storage = self.storages.at(slot);
        let mut begun: Vec<_> = storage
            .tasks
            .iter()
            .map(|(&task, &at)| (task, at))
            .collect();
        begun.sort_unstable();
        self.orphans.extend(begun.into_iter().map(|(_, at)| at));
        self.forget_removes(slot);
    }

    /// Drops the storages of a dead client.
    pub(super) fn drop_storages_of(&mut self, holder: ClientId) {
        for slot in self.storages.held_by(holder).collect::<Vec<_>>() {
            self.drop_storage(slot);
        }
    }

    fn reconcile(
        &mut self,
        now: Time,
        slot: u32,
        (page, last): (u64, bool),
        objects: &[Held],
    ) -> Result<Answer, Failure> {
        if objects.len() > RECONCILE_PAGE as usize {
            return Err(Failure::invalid(format!(
                "a page has at most {RECONCILE_PAGE} objects, not {}",
                objects.len()
            )));
        }
        let storage = self.storages.at_mut(slot);
        if page == 0 {
            storage.round += 1;
            storage.reconciled = false;
            storage.next_page = 0;
        }
        let expected = storage.next_page;
        // The last one may be asked again.
        if page != expected && page.checked_add(1) != Some(expected) {
            return Err(Failure::invalid(format!(
                "page {page} comes where page {expected} should: begin anew with page 0"
            )));
        }
        if let Some(held) = objects.iter().find(|held| held.length > MAX_LENGTH) {
            return Err(Failure::invalid(format!(
                "an object has at most {MAX_LENGTH} bytes, not {}",
                held.length
            )));
        }
        let storage = self.storages.at(slot);
        if storage.adopting {
            self.check_log()?;
            let newest = objects.iter().map(|held| held.incarnation.epoch).max();
            if let Some(epoch) = newest.filter(|epoch| *epoch >= self.epoch) {
                return Err(Failure::invalid(format!(
                    "the storage has objects of epoch {epoch}, and this master, which gave it \
                     nothing, is at {}: it cannot give out later ones",
                    self.epoch
                )));
            }
        }
        let mut remove = Vec::new();
        for (index, held) in (0u32..).zip(objects) {
            if !self.keeps(now, slot, held)? {
                remove.push(index);
            }
        }
        let storage = self.storages.at_mut(slot);
        storage.next_page = page + 1;
        if last {
            storage.reconciled = true;
            if storage.adopting {
                let (id, adopting) = (storage.identity.id, false);
                self.set_adopting(slot, adopting);
                self.log(|| Record::Storage { id, adopting });
            }
            self.missing.push_back(slot);
            self.drop_missing(now);
        }
        Ok(Answer::Storage(StorageAnswer::Reconciled { remove }))
    }

    /// Whether an object that is on the disk stays there; if so it can be read once all is told.
    fn keeps(&mut self, now: Time, slot: u32, held: &Held) -> Result<bool, Failure> {
        let adopting = self.storages.at(slot).adopting;
        if super::check_key(&held.key.0).is_err() || held.length == 0 {
            return Ok(false);
        }
        let tenant = if adopting {
            self.tenants.intern(&held.tenant).ok()
        } else {
            self.tenants.find(&held.tenant).ok().flatten()
        };
        let Some(tenant) = tenant else {
            return Ok(false);
        };
        let sought = self.objects.sought(Some(tenant), &held.key.0);
        let (complete, under_way) = self.stands_for(sought);
        let same = |slot: &u32| {
            let bodies = &self.objects.bodies;
            bodies.incarnation(*slot) == held.incarnation && bodies[*slot].length == held.length
        };
        let body = complete.filter(same);
        let here = body.and_then(|body| {
            self.disks
                .of(body)
                .find_map(|(at, entry)| (entry.storage == slot).then_some(at))
        });
        match here {
            Some(at) if self.disks.at(at).stage != Stage::Queued => {
                self.found(at);
                return Ok(true);
            }
            // It is to be written there: but it is to be removed there first.
            Some(at) => self.erase(now, at),
            None => {}
        }
        let watermark = self.watermarks.get(&tenant);
        if !adopting
            || watermark.is_some_and(|last| held.incarnation <= *last)
            || self.is_marked(tenant, &held.key, held.incarnation)
        {
            return Ok(false);
        }
        let body = match (body, complete, under_way) {
            (Some(body), ..) => body,
            // Another adopted storage told of an earlier life before.
            (None, Some(older), None)
                if self.objects.bodies.incarnation(older) < held.incarnation =>
            {
                self.room_for_removal(older, 1)?;
                self.retire(now, older);
                self.restore(now, sought, held.incarnation, held.length)
            }
            (None, Some(_), _) | (None, _, Some(_)) => return Ok(false),
            (None, None, None) => self.restore(now, sought, held.incarnation, held.length),
        };
        let at = self.enter(body, slot, Stage::OnDisk);
        self.log_held(at);
        Ok(true)
    }

    /// A reconciliation has found this entry.
    pub(super) fn found(&mut self, at: u32) {
        let slot = self.disks.at(at).storage;
        self.set_on_disk(at);
        let storage = &mut self.storages.all[slot as usize];
        self.disks.at_mut(at).round = storage.round;
        self.disks.move_to_front(&mut storage.entries, at);
    }

    /// Forgets what reconciled storages did not tell of, for one step; `true`: there is more.
    pub(super) fn drop_missing(&mut self, now: Time) -> bool {
        while let Some(&slot) = self.missing.front() {
            while self.storages.at(slot).is_usable() {
                let storage = self.storages.at(slot);
                let last = storage.entries.back;
                if last == NONE || self.disks.at(last).round == storage.round {
                    break;
                }
                if !self.may_go_on() {
                    return true;
                }
                self.work += 1;
                let storage = &mut self.storages.all[slot as usize];
                if self.disks.at(last).stage == Stage::Queued {
                    self.disks.at_mut(last).round = storage.round;
                    self.disks.move_to_front(&mut storage.entries, last);
                } else {
                    self.totals.lost_replicas += 1;
                    self.erase(now, last);
                }
            }
            self.missing.pop_front();
        }
        false
    }
}
