//! Removing objects: some, or all of a tenant.

use super::{
    Answer, Caller, Failure, Incarnation, Key, Operation, Remove, State, check_key,
    objects::{Doomed, Phase},
    tenants::TenantId,
};
use crate::{Time, list::NONE};

/// Bodies looked at in one step of removing all, so that no step takes long.
const SWEPT_A_STEP: u32 = if cfg!(test) { 1500 } else { 4096 };

/// Takes out what is doomed, step by step. It is out of sight from the first one on.
#[derive(Debug)]
pub(crate) struct Sweep {
    tenant: TenantId,
    last: Incarnation,
    next: u32,
    end: u32,
    barrier: u64,
}

impl State {
    pub(super) fn remove(
        &mut self,
        now: Time,
        caller: &Caller,
        tenant: Option<TenantId>,
        remove: &Remove,
    ) -> Answer {
        let mut read = Vec::new();
        let results = remove
            .items
            .iter()
            .map(|(key, incarnation)| self.remove_one(now, tenant, key, *incarnation, &mut read))
            .collect();
        let answer = Answer::Keys(results);
        if !remove.barrier || read.is_empty() {
            return answer;
        }
        let operation = Operation::Remove(remove.clone());
        let ticket = self.barriers.begin(caller, &operation, answer);
        for slot in read {
            self.barriers.wait_for(ticket, slot);
        }
        self.close_barrier(ticket)
    }

    /// Adds the bodies that may still be read to `read`.
    fn remove_one(
        &mut self,
        now: Time,
        tenant: Option<TenantId>,
        key: &Key,
        incarnation: Option<Incarnation>,
        read: &mut Vec<u32>,
    ) -> Result<(), Failure> {
        let key = check_key(key)?;
        if let Some(tenant) = tenant {
            self.sweep_key(now, tenant, key);
        }
        let (complete, under_way) =
            tenant.map_or((None, None), |tenant| self.stands_for(tenant, key));
        let meant = |slot: &u32| {
            incarnation.is_none_or(|named| named == self.objects.bodies[*slot].incarnation)
        };
        let (complete, under_way) = (complete.filter(meant), under_way.filter(meant));
        // Lives of the key that were gone before may have readers too.
        if let Some(tenant) = tenant {
            read.extend(self.still_read(tenant, key).filter(meant));
        }
        if complete.or(under_way).is_none() {
            return Err(Failure::ObjectNotFound);
        }
        if let Some(slot) = under_way {
            self.cancel(now, slot);
        }
        if let Some(slot) = complete {
            if self.objects.bodies[slot].leases > 0 {
                read.push(slot);
            }
            self.retire(now, slot);
        }
        Ok(())
    }

    pub(super) fn remove_all(
        &mut self,
        now: Time,
        caller: &Caller,
        tenant: Option<TenantId>,
    ) -> Answer {
        let Some(tenant) = tenant else {
            return Answer::Removed { objects: 0 };
        };
        let mut slot = self.objects.writing.back;
        while slot != NONE {
            let body = &self.objects.bodies[slot];
            let newer = body.links.prev;
            if body.tenant == tenant {
                self.cancel(now, slot);
            }
            slot = newer;
        }
        let last = Incarnation {
            epoch: self.epoch,
            sequence: self.sequence,
        };
        let doomed = self.objects.doomed.entry(tenant);
        doomed.or_insert(Doomed { last, gone: 0 }).last = last;
        let answer = Answer::Removed { objects: 0 };
        let barrier = self
            .barriers
            .begin(caller, &Operation::RemoveAll, answer.clone());
        self.sweeps.push_back(Sweep {
            tenant,
            last,
            next: 0,
            end: self.objects.bodies.end(),
            barrier,
        });
        // The sweep passes the barrier when it is through, which of few objects is now.
        self.sweep(now);
        self.take_settled(barrier)
    }

    /// Takes one step; `true`: there is more to do.
    pub(super) fn sweep(&mut self, now: Time) -> bool {
        let mut budget = SWEPT_A_STEP;
        while budget > 0
            && let Some(Sweep {
                tenant,
                last,
                next,
                end,
                barrier,
            }) = self.sweeps.front_mut()
        {
            let (tenant, last, barrier) = (*tenant, *last, *barrier);
            let slots = *next..*end.min(&mut (*next + budget));
            *next = slots.end;
            budget -= (slots.len() as u32).max(1);
            let through = *next == *end;
            for slot in slots {
                self.sweep_one(now, tenant, slot, barrier);
            }
            if through {
                self.sweeps.pop_front();
                let doomed = self.objects.doomed.get_mut(&tenant);
                let objects = doomed.map_or(0, |doomed| std::mem::take(&mut doomed.gone));
                self.objects
                    .doomed
                    .retain(|other, doomed| *other != tenant || doomed.last > last);
                let answer = Answer::Removed { objects };
                self.barriers.set_answer(barrier, answer);
                self.settle(barrier);
            }
        }
        !self.sweeps.is_empty()
    }

    /// Takes out a life of the key that a sweep has not come to yet.
    fn sweep_key(&mut self, now: Time, tenant: TenantId, key: &[u8]) {
        let sweep = self.sweeps.iter().find(|sweep| sweep.tenant == tenant);
        if let Some(barrier) = sweep.map(|sweep| sweep.barrier)
            && let Some(slot) = self.objects.find_doomed(tenant, key)
        {
            self.sweep_one(now, tenant, slot, barrier);
        }
    }

    fn sweep_one(&mut self, now: Time, tenant: TenantId, slot: u32, barrier: u64) {
        let Some(body) = self.objects.bodies.at(slot) else {
            return;
        };
        if body.tenant != tenant || !self.objects.is_doomed(body) {
            return;
        }
        let complete = matches!(body.phase, Phase::Complete { .. });
        // Also on what was gone before: all that the tenant has put is meant.
        if body.leases > 0 {
            self.barriers.wait_for(barrier, slot);
        }
        if complete {
            self.retire(now, slot);
        }
    }
}
