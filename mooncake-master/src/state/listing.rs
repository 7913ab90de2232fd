//! Lists of objects: pages in the order of keys, gathered step by step.

use std::{cmp::Ordering, collections::BinaryHeap};

use super::{
    Answer, Caller, Key, ListObjects, ListedObject, Operation, STEP, State, bodies::Bodies,
    tenants::TenantId,
};

/// Objects in one page of a list, at most.
pub const MAX_PAGE: u32 = 1000;

/// A page that is being gathered. What comes and goes meanwhile is in it or not.
#[derive(Debug)]
pub(crate) struct Listing {
    tenant: TenantId,
    page: ListObjects,
    next: u32,
    /// The smallest keys seen so far, the greatest of them on top; one more than asked for.
    smallest: BinaryHeap<ByKey>,
    ticket: u64,
}

impl State {
    pub(super) fn list_objects(
        &mut self,
        caller: &Caller,
        tenant: Option<TenantId>,
        page: &ListObjects,
    ) -> Answer {
        let Some(tenant) = tenant else {
            return Answer::Objects {
                objects: Vec::new(),
                more: false,
            };
        };
        if let Err(failure) = self.promises.admit() {
            return Answer::Refused(failure);
        }
        let operation = Operation::ListObjects(page.clone());
        let ticket = self.promises.begin(caller, &operation, Answer::Done);
        self.listings.push_back(Listing {
            tenant,
            page: page.clone(),
            next: 0,
            smallest: BinaryHeap::new(),
            ticket,
        });
        // Of few objects the page is there now.
        self.list();
        self.take_settled(ticket)
    }

    /// Takes one step; `true`: there is more to do.
    pub(super) fn list(&mut self) -> bool {
        let Some(mut listing) = self.listings.pop_front() else {
            return false;
        };
        let bodies = &self.objects.bodies;
        // There may be fewer than when it stopped.
        let from = listing.next.min(bodies.end());
        let end = bodies.end().min(from + STEP.saturating_sub(self.work));
        self.work += end - from;
        for slot in from..end {
            if let Some(body) = bodies.at(slot)
                && body.is_complete()
                && body.tenant() == listing.tenant
                && !self.objects.is_doomed(slot)
                && self.is_readable(slot)
            {
                listing.take(bodies, slot, self.disk_replicas(slot));
            }
        }
        listing.next = end;
        if end < bodies.end() {
            // Others that wait have their turn.
            self.listings.push_back(listing);
            return true;
        }
        let ticket = listing.ticket;
        self.promises.set_answer(ticket, listing.finish());
        self.settle(ticket);
        !self.listings.is_empty()
    }
}

impl Listing {
    fn limit(&self) -> usize {
        match self.page.limit {
            0 => MAX_PAGE as usize,
            limit => limit.min(MAX_PAGE) as usize,
        }
    }

    fn take(&mut self, bodies: &Bodies, slot: u32, on_disks: u32) {
        let key = bodies.key(slot);
        let wanted = key.starts_with(&self.page.prefix.0) && *key > *self.page.after.0;
        let full = self.smallest.len() > self.limit();
        let too_late = |ByKey(last): &ByKey| *last.key.0 < *key;
        if !wanted || (full && self.smallest.peek().is_some_and(too_late)) {
            return;
        }
        self.smallest.push(ByKey(ListedObject {
            key: Key::from(key.to_vec()),
            length: bodies[slot].length,
            replicas: u32::from(bodies[slot].count()) + on_disks,
            incarnation: bodies.incarnation(slot),
        }));
        if self.smallest.len() > self.limit() + 1 {
            self.smallest.pop();
        }
    }

    fn finish(self) -> Answer {
        let limit = self.limit();
        let mut objects: Vec<_> = self
            .smallest
            .into_sorted_vec()
            .into_iter()
            .map(|ByKey(object)| object)
            .collect();
        let more = objects.len() > limit;
        objects.truncate(limit);
        // A key that was replaced meanwhile may have been met in both lives.
        objects.dedup_by(|later, earlier| later.key == earlier.key);
        Answer::Objects { objects, more }
    }
}

#[derive(Debug)]
struct ByKey(ListedObject);

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}
