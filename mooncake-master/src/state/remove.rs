//! Removing objects: some, or all of a tenant.

use super::{
    Answer, Caller, Failure, Incarnation, Key, Operation, Remove, STEP, State, check_key,
    objects::{Doomed, Sought, TOGETHER},
    tenants::TenantId,
};
use crate::{Time, list::NONE};

/// Takes out what is doomed, step by step. It is out of sight from the first one on.
#[derive(Debug)]
pub(crate) struct Sweep {
    tenant: TenantId,
    last: Incarnation,
    next: u32,
    end: u32,
    ticket: u64,
}

impl State {
    pub(super) fn remove(
        &mut self,
        now: Time,
        caller: &Caller,
        tenant: Option<TenantId>,
        remove: &Remove,
    ) -> Answer {
        if remove.barrier
            && let Err(failure) = self.promises.admit()
        {
            return Answer::Refused(failure);
        }
        let mut read = Vec::new();
        let results = remove
            .items
            .iter()
            .map(|(key, incarnation)| {
                let readers = read.len();
                if remove.barrier {
                    self.find_readers(now, tenant, key, *incarnation, &mut read);
                }
                let result = self.remove_one(now, tenant, key, *incarnation);
                if result
                    .as_ref()
                    .is_err_and(|failure| *failure != Failure::ObjectNotFound)
                {
                    // It stays, and is not waited for.
                    read.truncate(readers);
                }
                result
            })
            .collect();
        let answer = Answer::Keys(results);
        if read.is_empty() {
            return answer;
        }
        let operation = Operation::Remove(remove.clone());
        let ticket = self.promises.begin(caller, &operation, answer);
        for slot in read {
            self.promises.wait_for(ticket, slot);
        }
        self.close_promise(ticket)
    }

    /// Adds to `read` the lives of the key that may be read, also those that are gone already.
    fn find_readers(
        &mut self,
        now: Time,
        tenant: Option<TenantId>,
        key: &Key,
        incarnation: Option<Incarnation>,
        read: &mut Vec<u32>,
    ) {
        let Some(tenant) = tenant else {
            return;
        };
        let sought = self.objects.sought(Some(tenant), &key.0);
        self.sweep_key(now, tenant, sought);
        let (complete, _) = self.stands_for(sought);
        let bodies = &self.objects.bodies;
        let leased = complete.filter(|&slot| bodies[slot].leases > 0);
        let all = leased.into_iter().chain(self.still_read(tenant, &key.0));
        let meant = |slot: &u32| incarnation.is_none_or(|named| named == bodies.incarnation(*slot));
        read.extend(all.filter(meant));
    }

    fn remove_one(
        &mut self,
        now: Time,
        tenant: Option<TenantId>,
        key: &Key,
        incarnation: Option<Incarnation>,
    ) -> Result<(), Failure> {
        check_key(&key.0)?;
        let adopting = tenant.filter(|_| self.is_adopting());
        if adopting.is_some() {
            self.room_for_marks(1)?;
        }
        let (complete, under_way) = self.stands_for(self.objects.sought(tenant, &key.0));
        let meant = |slot: &u32| {
            incarnation.is_none_or(|named| named == self.objects.bodies.incarnation(*slot))
        };
        let (complete, under_way) = (complete.filter(meant), under_way.filter(meant));
        if complete.or(under_way).is_none() {
            self.mark_removed(adopting, key, incarnation);
            return Err(Failure::ObjectNotFound);
        }
        if let Some(slot) = complete {
            self.room_for_removal(slot, 1)?;
        }
        if let Some(slot) = under_way {
            self.cancel(now, slot);
        }
        if let Some(slot) = complete {
            self.retire(now, slot);
        }
        self.mark_removed(adopting, key, incarnation);
        Ok(())
    }

    /// What a storage that is being adopted will tell of the key is gone as well.
    fn mark_removed(
        &mut self,
        adopting: Option<TenantId>,
        key: &Key,
        incarnation: Option<Incarnation>,
    ) {
        if let Some(tenant) = adopting {
            let latest = Incarnation {
                epoch: self.epoch,
                sequence: self.sequence,
            };
            let last = incarnation.map_or(latest, |named| named.min(latest));
            self.mark(tenant, key.clone(), last);
        }
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
        let room = self.room_for_removal_of_all();
        if let Err(failure) = room.and_then(|()| self.promises.admit()) {
            return Answer::Refused(failure);
        }
        let mut slot = self.objects.writing.back;
        while slot != NONE {
            let body = &self.objects.bodies[slot];
            let newer = body.links.prev;
            if body.tenant() == tenant {
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
        let ticket = self
            .promises
            .begin(caller, &Operation::RemoveAll, answer.clone());
        self.remove_all_from_disks(tenant, last, ticket);
        self.sweeps.push_back(Sweep {
            tenant,
            last,
            next: 0,
            end: self.objects.bodies.end(),
            ticket,
        });
        // The sweep keeps the promise when it is through, which of few objects is now.
        self.sweep(now);
        self.take_settled(ticket)
    }

    /// Takes one step; `true`: there is more to do.
    pub(super) fn sweep(&mut self, now: Time) -> bool {
        while self.may_go_on()
            && let Some(Sweep {
                tenant,
                last,
                next,
                end,
                ticket,
            }) = self.sweeps.front_mut()
        {
            let (tenant, last, ticket) = (*tenant, *last, *ticket);
            let slots = *next..*end.min(&mut (*next + STEP.saturating_sub(self.work)));
            *next = slots.end;
            self.work += (slots.len() as u32).max(1);
            let through = *next == *end;
            // More is doomed if all was removed once more.
            let doomed = self.objects.doomed.get(&tenant);
            let newest = doomed.map_or(last, |doomed| doomed.last);
            for first in slots.clone().step_by(TOGETHER) {
                let together = first..slots.end.min(first + TOGETHER as u32);
                let hashes = self.objects.bring_slots(together.clone());
                for (slot, hash) in together.zip(hashes) {
                    let body = self.objects.bodies.at(slot);
                    if body.is_some_and(|body| body.tenant() == tenant)
                        && self.objects.bodies.incarnation(slot) <= newest
                    {
                        self.sweep_one(now, (slot, hash), ticket);
                    }
                }
            }
            if through {
                self.sweeps.pop_front();
                let doomed = self.objects.doomed.get_mut(&tenant);
                let objects = doomed.map_or(0, |doomed| std::mem::take(&mut doomed.gone));
                self.objects
                    .doomed
                    .retain(|other, doomed| *other != tenant || doomed.last > last);
                let answer = Answer::Removed { objects };
                self.promises.set_answer(ticket, answer);
                self.settle(ticket);
            }
        }
        !self.sweeps.is_empty()
    }

    /// Takes out a life of the key that a sweep has not come to yet.
    fn sweep_key(&mut self, now: Time, tenant: TenantId, sought: Sought<'_>) {
        let sweep = self.sweeps.iter().find(|sweep| sweep.tenant == tenant);
        if let Some(ticket) = sweep.map(|sweep| sweep.ticket)
            && let Some(slot) = self.objects.find_doomed(sought)
        {
            self.sweep_one(now, (slot, self.objects.hash_at(slot)), ticket);
        }
    }

    /// Takes out a body of what is doomed; its key has this hash.
    fn sweep_one(&mut self, now: Time, (slot, hash): (u32, u32), ticket: u64) {
        let body = &self.objects.bodies[slot];
        // Also on what was gone before: all that the tenant has put is meant.
        if body.leases > 0 {
            self.promises.wait_for(ticket, slot);
        }
        if body.is_complete() {
            if body.leases > 0 {
                self.leave_all(slot);
                self.retire(now, slot);
            } else {
                self.discard(slot, hash);
            }
        }
    }
}
