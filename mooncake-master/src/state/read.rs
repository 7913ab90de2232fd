//! Reading: Lookup, Exist, Describe, ListObjects.

use super::{
    Answer, Caller, ClientId, Description, Existence, Failure, Key, Located, Object, Replica,
    State, StorageHandle,
    bodies::Phase,
    check_key,
    leases::Covered,
    objects::{Sought, TOGETHER},
    segments::Table,
    storages::Storages,
    tenants::TenantId,
};
use crate::{Time, evict::share};
use smallvec::SmallVec;

/// The storages that one answer names.
#[derive(Default)]
struct StorageTable {
    slots: Vec<u32>,
    handles: Vec<StorageHandle>,
}

impl StorageTable {
    /// The place of a storage in the answer.
    fn place(&mut self, storages: &Storages, slot: u32) -> u32 {
        let known = self.slots.iter().position(|&other| other == slot);
        let at = known.unwrap_or_else(|| {
            self.slots.push(slot);
            self.handles.push(storages.at(slot).identity.clone());
            self.slots.len() - 1
        });
        at as u32
    }
}

impl State {
    pub(super) fn lookup(
        &mut self,
        now: Time,
        caller: &Caller,
        reader: ClientId,
        tenant: Option<TenantId>,
        keys: &[Key],
    ) -> Answer {
        let number = match caller {
            Caller::Session { number, .. } => *number,
            Caller::Unary { .. } => 0,
        };
        self.end_unheard(now, reader, number);
        let (mut table, mut storages) = (Table::default(), StorageTable::default());
        let mut covered = Covered::new();
        // The last key first, for the reason given at `put_end`.
        let mut results = Vec::with_capacity(keys.len());
        for together in keys.rchunks(TOGETHER) {
            let all = self.bring(tenant, together).into_iter().rev();
            results.extend(all.map(|sought| {
                let tables = (&mut table, &mut storages);
                self.look_up(now, sought, tables, &mut covered)
            }));
        }
        results.reverse();
        let lease = if covered.is_empty() {
            0
        } else {
            let until = now + self.settings.lease_ttl;
            self.leases.grant((reader, number), covered, until)
        };
        let found = Located {
            results,
            segments: table.handles,
            storages: storages.handles,
        };
        Answer::Looked { found, lease }
    }

    /// Of a look-up that is asked again after hello the first answer was lost with its stream:
    /// nobody reads under its lease.
    fn end_unheard(&mut self, now: Time, reader: ClientId, number: u64) {
        let client = self.clients.all.get_mut(&reader);
        let unheard = client.and_then(|client| client.unheard.remove(&number));
        for at in unheard.unwrap_or_default() {
            if let Some(covered) = self.leases.revoke(at) {
                self.uncover(now, &covered);
            }
        }
    }

    fn look_up(
        &mut self,
        now: Time,
        sought: Sought<'_>,
        (table, storages): (&mut Table, &mut StorageTable),
        covered: &mut Covered,
    ) -> Result<Object, Failure> {
        let slot = self.readable(sought)?.ok_or(Failure::ObjectNotFound)?;
        let used = self.next_use(now);
        let objects = &mut self.objects;
        objects.recency.touch(&mut objects.bodies, slot, used);
        objects.bodies[slot].leases += 1;
        covered.push(slot);
        Ok(self.view(slot, table, storages))
    }

    pub(super) fn exist(
        &mut self,
        now: Time,
        tenant: Option<TenantId>,
        keys: &[Key],
    ) -> Vec<Result<Existence, Failure>> {
        let limit = share(self.segments.capacity, self.settings.reserved_share);
        let mut results = Vec::with_capacity(keys.len());
        for together in keys.chunks(TOGETHER) {
            let all = self.bring(tenant, together).into_iter();
            results.extend(all.map(|sought| self.exists(now, sought, limit)));
        }
        results
    }

    fn exists(&mut self, now: Time, sought: Sought<'_>, limit: u64) -> Result<Existence, Failure> {
        let Some(slot) = self.readable(sought)? else {
            return Ok(Existence::default());
        };
        let period = self.settings.exist_reservation;
        let objects = &mut self.objects;
        let (reservations, bodies) = (&mut objects.reservations, &mut objects.bodies);
        let held = reservations.reserve(bodies, slot, now, period, limit);
        Ok(Existence { exists: true, held })
    }

    fn bring<'a>(
        &self,
        tenant: Option<TenantId>,
        keys: &'a [Key],
    ) -> SmallVec<[Sought<'a>; TOGETHER]> {
        self.objects.bring(tenant, keys.iter().map(|key| &*key.0))
    }

    pub(super) fn describe(
        &self,
        now: Time,
        tenant: Option<TenantId>,
        keys: &[Key],
    ) -> Located<Description> {
        let (mut table, mut storages) = (Table::default(), StorageTable::default());
        let mut one = |key: &Key| {
            check_key(&key.0)?;
            let slot = self
                .objects
                .find(self.objects.sought(tenant, &key.0))
                .ok_or(Failure::ObjectNotFound)?;
            let body = &self.objects.bodies[slot];
            if body.is_complete() && !self.is_readable(slot) {
                return Err(Failure::ObjectNotFound);
            }
            let (writing, last) = match body.phase() {
                Phase::Complete { used } => (false, used.time()),
                Phase::Gone { .. } | Phase::Writing { .. } => (true, now),
            };
            Ok(Description {
                object: self.view(slot, &mut table, &mut storages),
                writing,
                leases: body.leases,
                idle: now.since(last),
            })
        };
        Located {
            results: keys.iter().map(&mut one).collect(),
            segments: table.handles,
            storages: storages.handles,
        }
    }

    fn readable(&self, sought: Sought<'_>) -> Result<Option<u32>, Failure> {
        check_key(sought.key)?;
        let found = self.objects.find(sought);
        Ok(found.filter(|&slot| self.is_readable(slot)))
    }

    /// The body is complete, and somewhere it can be read from.
    #[inline]
    pub(super) fn is_readable(&self, slot: u32) -> bool {
        let body = &self.objects.bodies[slot];
        body.is_complete() && (body.count() > 0 || self.is_on_readable_disk(slot))
    }

    /// Replicas on disks that can be read.
    pub(super) fn disk_replicas(&self, slot: u32) -> u32 {
        if !self.objects.bodies[slot].has_disk() {
            return 0;
        }
        let entries = self.disks.of(slot);
        entries
            .filter(|(_, entry)| self.is_announced(entry))
            .count() as u32
    }

    /// A complete object's replicas in the order in which readers try them: those in memory first,
    /// and last of all those of holders that may be dead.
    fn view(&self, slot: u32, table: &mut Table, storages: &mut StorageTable) -> Object {
        let (segments, bodies) = (&self.segments, &self.objects.bodies);
        let mut object = self.objects.view(slot, |slot| table.place(segments, slot));
        if bodies[slot].has_disk() {
            for (_, entry) in self.disks.of(slot) {
                if self.is_announced(entry) {
                    let storage = storages.place(&self.storages, entry.storage);
                    object.replicas.push(Replica::LocalDisk { storage });
                }
            }
        } else if object.replicas.len() == 1 {
            return object;
        }
        object.replicas.sort_by_key(|replica| match replica {
            Replica::Memory { segment, .. } => (segments.is_suspect(table.slot(*segment)), false),
            Replica::LocalDisk { storage } => {
                let storage = storages.slots[*storage as usize];
                (self.storages.at(storage).suspect, true)
            }
            Replica::Remote(_) => (false, true),
        });
        object
    }
}
