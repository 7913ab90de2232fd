//! Writing objects: PutStart, PutEnd, PutRevoke, and Put, which is start and end in one.

use super::{
    Answer, ClientId, Failure, Incarnation, Key, Located, Object, PutPlaced, PutStart, State,
    bodies::Phase,
    check_key,
    hash::spread,
    objects::{Put, PutSlot, Sought, TOGETHER},
    segments::{Table, Wish},
    tenants::TenantId,
};
use crate::{AllocationStrategy, Time};

/// More replicas of one object are a mistake.
const MAX_REPLICAS: u32 = 64;

impl State {
    pub(super) fn put_start(
        &mut self,
        now: Time,
        writer: ClientId,
        tenant: Option<TenantId>,
        put: &PutStart,
    ) -> Result<Answer, Failure> {
        if writer == ClientId::NOBODY {
            return Err(Failure::invalid("a put needs its writer's incarnation"));
        }
        if put.replicas > MAX_REPLICAS {
            return Err(Failure::invalid(format!(
                "an object has at most {MAX_REPLICAS} replicas, not {}",
                put.replicas
            )));
        }
        if put.preferred.len() > MAX_REPLICAS as usize {
            return Err(Failure::invalid(format!(
                "at most {MAX_REPLICAS} segments can be preferred, not {}",
                put.preferred.len()
            )));
        }
        if put.avoided.len() > MAX_REPLICAS as usize {
            return Err(Failure::invalid(format!(
                "at most {MAX_REPLICAS} segments can be avoided, not {}",
                put.avoided.len()
            )));
        }
        let tenant = tenant.expect("a tenant is known once something is put under it");
        let first = self.sequence + 1;
        let mut draw = put.draw;
        let mut table = Table::default();
        let grant = Put {
            writer,
            deadline: now + self.settings.put_deadline,
            first,
        };
        let mut results = Vec::with_capacity(put.items.len());
        for together in put.items.chunks(TOGETHER) {
            let keys = together.iter().map(|(key, _)| &*key.0);
            let keys = self.objects.bring(Some(tenant), keys);
            for (sought, (_, length)) in keys.into_iter().zip(together) {
                let wish = Wish {
                    writer,
                    strategy: self.settings.allocation_strategy,
                    draw: spread(&mut draw),
                    preferred: &put.preferred,
                    avoided: &put.avoided,
                    length: *length,
                    replicas: put.replicas.max(1),
                };
                results.push(self.start(now, grant, (sought, put.upsert), &wish, &mut table));
            }
        }
        self.evict_beside();
        Ok(Answer::Started(Located {
            results,
            segments: table.handles,
            storages: Vec::new(),
        }))
    }

    fn start(
        &mut self,
        now: Time,
        grant: Put,
        (sought, upsert): (Sought<'_>, bool),
        wish: &Wish<'_>,
        table: &mut Table,
    ) -> Result<Object, Failure> {
        let admitted = self.admit(now, (sought, upsert), wish.length)?;
        if let Some(slot) = admitted.0 {
            // The version that is to be replaced should not make room for its successor.
            let used = self.next_use(now);
            let objects = &mut self.objects;
            objects.recency.touch(&mut objects.bodies, slot, used);
        }
        let slot = self.create(sought, wish.length);
        let work = self.work;
        if let Err(failure) = self.allocate(now, slot, wish) {
            self.objects.bodies.remove(slot);
            self.reclaim(now);
            return Err(failure);
        }
        // Making room, which is work, may have ended the late put or evicted the object.
        let standing = if self.work == work {
            admitted
        } else {
            self.stands_for(sought)
        };
        self.begin(now, grant, (sought, standing), slot);
        if wish.strategy == AllocationStrategy::SsdFreeRatioFirst {
            self.charge_disks(slot);
        }
        let segments = &self.segments;
        Ok(self.objects.view(slot, |slot| table.place(segments, slot)))
    }

    /// Whether a put of the key may begin; what the key [stands for](Self::stands_for).
    fn admit(
        &self,
        now: Time,
        (sought, upsert): (Sought<'_>, bool),
        length: u64,
    ) -> Result<(Option<u32>, Option<u32>), Failure> {
        check_key(sought.key)?;
        if length == 0 {
            return Err(Failure::invalid("an object has at least 1 byte"));
        }
        let (complete, under_way) = self.stands_for(sought);
        // One that cannot be read now gives way.
        if !upsert && complete.is_some_and(|slot| self.is_readable(slot)) {
            return Err(Failure::ObjectExists);
        }
        if let Some(put) = under_way.and_then(|slot| self.objects.bodies[slot].put()) {
            let left = self.objects.put(put).deadline.since(now);
            if !left.is_zero() {
                return Err(Failure::PutInProgress { left });
            }
        }
        Ok((complete, under_way))
    }

    /// The body of a put that was admitted: gone, and without replicas.
    fn create(&mut self, sought: Sought<'_>, length: u64) -> u32 {
        let tenant = sought.tenant.expect("a put's tenant is known");
        let next = self.sequence + 1;
        self.objects.bodies.insert(tenant, sought.key, length, next)
    }

    /// Takes in a put whose body has its memory, and takes the key over from a late one.
    fn begin(
        &mut self,
        now: Time,
        grant: Put,
        (sought, (complete, under_way)): (Sought<'_>, (Option<u32>, Option<u32>)),
        slot: u32,
    ) {
        if let Some(slot) = under_way {
            self.totals.abandoned_puts += 1;
            self.cancel(now, slot);
        }
        self.sequence = self.objects.bodies[slot].sequence();
        self.objects.start(slot, sought, grant, complete);
    }

    pub(super) fn put(
        &mut self,
        now: Time,
        writer: ClientId,
        tenant: Option<TenantId>,
        put: &PutPlaced,
    ) -> Result<Answer, Failure> {
        let segment = self.own_segment(writer, put.segment)?;
        let tenant = tenant.expect("a tenant is known once something is put under it");
        let ticket = Put {
            writer,
            deadline: now + self.settings.put_deadline,
            first: self.sequence + 1,
        };
        let mut begun = Vec::with_capacity(put.items.len());
        for together in put.items.chunks(TOGETHER) {
            let keys = together.iter().map(|item| &*item.key.0);
            let keys = self.objects.bring(Some(tenant), keys);
            for (sought, item) in keys.into_iter().zip(together) {
                let admitted = self.admit(now, (sought, put.upsert), item.length);
                let slot = admitted.and_then(|standing| {
                    if let Some(replaced) = standing.0 {
                        // More than fit at all are never waited for.
                        let most = self.settings.remove_queue_limit;
                        self.room_for_removal(replaced, put.items.len().min(most))?;
                    }
                    let slot = self.create(sought, item.length);
                    let bodies = &mut self.objects.bodies;
                    let at = (item.grant, item.offset);
                    if !self.segments.put_in_grant(bodies, slot, segment, at) {
                        bodies.remove(slot);
                        return Err(Failure::GrantNotFound { grant: item.grant });
                    }
                    self.begin(now, ticket, (sought, standing), slot);
                    Ok(slot)
                });
                begun.push(slot);
            }
        }
        // In the order of ends.
        for &slot in begun.iter().rev().flatten() {
            self.publish(now, slot);
        }
        let incarnation = |slot: u32| self.objects.bodies.incarnation(slot);
        let results = begun
            .into_iter()
            .map(|slot| slot.map(incarnation))
            .collect();
        self.evict_beside();
        Ok(Answer::Put(results))
    }

    /// Makes a put under way readable, in the place of what it replaces.
    fn publish(&mut self, now: Time, slot: u32) {
        if let Some(replaced) = self.predecessor(slot) {
            self.retire(now, replaced);
        }
        let used = self.next_use(now);
        self.objects.complete_put(slot, used);
        self.offload_written(slot);
    }

    /// The body that can be read under the key, and the put of it that is under way.
    pub(super) fn stands_for(&self, sought: Sought<'_>) -> (Option<u32>, Option<u32>) {
        let Some(slot) = self.objects.find(sought) else {
            return (None, None);
        };
        match self.objects.bodies[slot].phase() {
            Phase::Complete { .. } => (Some(slot), self.objects.successor(slot)),
            Phase::Gone { .. } | Phase::Writing { .. } => (None, Some(slot)),
        }
    }

    pub(super) fn put_end(
        &mut self,
        now: Time,
        writer: ClientId,
        tenant: Option<TenantId>,
        items: &[(Key, Incarnation)],
    ) -> Vec<Result<(), Failure>> {
        // The last key first, so that the first is the most recently used: of a chain of prefixes
        // the longest, which needs all others, is evicted before them.
        let mut results = Vec::with_capacity(items.len());
        for together in items.rchunks(TOGETHER) {
            let keys = together.iter().map(|(key, _)| &*key.0);
            let keys = self.objects.bring(tenant, keys);
            let ends = keys.into_iter().zip(together).rev();
            results.extend(ends.map(|(sought, (_, of))| self.end(now, writer, sought, *of)));
        }
        results.reverse();
        self.evict_beside();
        results
    }

    fn end(
        &mut self,
        now: Time,
        caller: ClientId,
        sought: Sought<'_>,
        incarnation: Incarnation,
    ) -> Result<(), Failure> {
        let slot = self.current(sought, incarnation)?.ok_or(Failure::Revoked)?;
        match self.objects.bodies[slot].phase() {
            Phase::Writing { put } => {
                self.check_writer(put, caller)?;
                if let Some(replaced) = self.predecessor(slot) {
                    self.room_for_removal(replaced, 1)?;
                }
                self.publish(now, slot);
                Ok(())
            }
            Phase::Complete { .. } => Ok(()),
            Phase::Gone { .. } => Err(Failure::Revoked),
        }
    }

    pub(super) fn put_revoke(
        &mut self,
        now: Time,
        writer: ClientId,
        tenant: Option<TenantId>,
        items: &[(Key, Incarnation)],
    ) -> Vec<Result<(), Failure>> {
        items
            .iter()
            .map(|(key, incarnation)| self.revoke(now, writer, tenant, key, *incarnation))
            .collect()
    }

    fn revoke(
        &mut self,
        now: Time,
        caller: ClientId,
        tenant: Option<TenantId>,
        key: &Key,
        incarnation: Incarnation,
    ) -> Result<(), Failure> {
        let sought = self.objects.sought(tenant, &key.0);
        if let Some(slot) = self.current(sought, incarnation)? {
            return match self.objects.bodies[slot].phase() {
                Phase::Writing { put } => {
                    self.check_writer(put, caller)?;
                    self.retire(now, slot);
                    Ok(())
                }
                Phase::Complete { .. } => Err(Failure::ObjectExists),
                Phase::Gone { .. } => Ok(()),
            };
        }
        // Cancelled before: now its memory need not wait for the writer's deadline.
        if let Some(&at) = self.cancelled.get(&incarnation.sequence) {
            let body = &self.objects.bodies[at.slot];
            if incarnation.epoch == self.epoch
                && let Phase::Gone { put: Some(put) } = body.phase()
                && self.objects.put(put).writer == caller
            {
                self.quieten(now, at);
            }
        }
        Ok(())
    }

    fn check_writer(&self, put: PutSlot, caller: ClientId) -> Result<(), Failure> {
        let owner = self.objects.put(put).writer;
        if owner != caller {
            return Err(Failure::IllegalClient { owner });
        }
        Ok(())
    }

    /// The body of this incarnation, if the key stands for it now or when its put ends.
    fn current(
        &self,
        sought: Sought<'_>,
        incarnation: Incarnation,
    ) -> Result<Option<u32>, Failure> {
        check_key(sought.key)?;
        let (complete, under_way) = self.stands_for(sought);
        let mut bodies = [complete, under_way].into_iter().flatten();
        Ok(bodies.find(|&slot| self.objects.bodies.incarnation(slot) == incarnation))
    }

    /// The complete body that a put under way will replace.
    fn predecessor(&self, slot: u32) -> Option<u32> {
        if self.objects.none_replaces() {
            return None;
        }
        let bodies = &self.objects.bodies;
        let tenant = bodies[slot].tenant();
        let sought = self.objects.sought(Some(tenant), bodies.key(slot));
        let current = self.objects.find(sought)?;
        (current != slot).then_some(current)
    }
}
