//! Reading: Lookup, Exist, Describe, ListObjects.

use super::{
    Answer, Caller, ClientId, Description, Existence, Failure, Key, Located, Object, Replica,
    State,
    bodies::Phase,
    check_key,
    leases::Covered,
    objects::{Sought, TOGETHER},
    segments::Table,
    tenants::TenantId,
};
use crate::{Time, evict::share};
use smallvec::SmallVec;

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
        let mut table = Table::default();
        let mut covered = Covered::new();
        // The last key first, for the reason given at `put_end`.
        let mut results = Vec::with_capacity(keys.len());
        for together in keys.rchunks(TOGETHER) {
            let all = self.bring(tenant, together).into_iter().rev();
            results.extend(all.map(|sought| self.look_up(now, sought, &mut table, &mut covered)));
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
            storages: Vec::new(),
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
        table: &mut Table,
        covered: &mut Covered,
    ) -> Result<Object, Failure> {
        let slot = self.readable(sought)?.ok_or(Failure::ObjectNotFound)?;
        let used = self.next_use(now);
        let objects = &mut self.objects;
        objects.recency.touch(&mut objects.bodies, slot, used);
        objects.bodies[slot].leases += 1;
        covered.push(slot);
        let segments = &self.segments;
        let mut object = self.objects.view(slot, |slot| table.place(segments, slot));
        // Readers try replicas in this order.
        object.replicas.sort_by_key(|replica| match replica {
            Replica::Memory { segment, .. } => segments.is_suspect(table.slot(*segment)),
            Replica::LocalDisk { .. } | Replica::Remote(_) => false,
        });
        Ok(object)
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
        let mut table = Table::default();
        let mut one = |key: &Key| {
            check_key(&key.0)?;
            let slot = self
                .objects
                .find(self.objects.sought(tenant, &key.0))
                .ok_or(Failure::ObjectNotFound)?;
            let body = &self.objects.bodies[slot];
            let (writing, last) = match body.phase() {
                Phase::Complete { used } => (false, used.time()),
                Phase::Gone { .. } | Phase::Writing { .. } => (true, now),
            };
            Ok(Description {
                object: self
                    .objects
                    .view(slot, |slot| table.place(&self.segments, slot)),
                writing,
                leases: body.leases,
                idle: now.since(last),
            })
        };
        Located {
            results: keys.iter().map(&mut one).collect(),
            segments: table.handles,
            storages: Vec::new(),
        }
    }

    fn readable(&self, sought: Sought<'_>) -> Result<Option<u32>, Failure> {
        check_key(sought.key)?;
        Ok(self.objects.readable(sought))
    }
}
