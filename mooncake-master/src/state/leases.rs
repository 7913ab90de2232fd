//! Promises that memory stays what it is, until their holder lets go or their time is over.

use smallvec::SmallVec;

use super::ClientId;
use crate::{
    Time,
    list::{Linked, Links, List, NONE},
    slab::{Ref, Slab},
};

/// Slots of bodies; each counts its leases, so that it outlives them.
pub(crate) type Covered = SmallVec<[u32; 4]>;

#[derive(Debug)]
struct Lease {
    covered: Covered,
    holder: ClientId,
    until: Time,
    links: Links,
}

impl Linked for Lease {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[derive(Debug)]
pub(crate) struct Leases {
    all: Slab<Lease>,
    /// All last equally long: the one at the back ends first.
    order: List,
}

impl Leases {
    pub(crate) const fn new() -> Self {
        Self {
            all: Slab::new(),
            order: List::EMPTY,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The lease's number, never 0.
    pub(crate) fn grant(&mut self, holder: ClientId, covered: Covered, until: Time) -> u64 {
        let at = self.all.insert(Lease {
            covered,
            holder,
            until,
            links: Links::LOOSE,
        });
        self.order.push_front(&mut self.all, at.slot);
        at.to_bits()
    }

    /// Ends a lease of `holder`; what it covered, if it was one.
    pub(crate) fn release(&mut self, holder: ClientId, lease: u64) -> Option<Covered> {
        let at = Ref::from_bits(lease);
        if self.all.get(at)?.holder != holder {
            return None;
        }
        Some(self.end(at.slot))
    }

    /// Ends one lease whose time is over; what it covered.
    pub(crate) fn expire(&mut self, now: Time) -> Option<Covered> {
        let slot = self.order.back;
        (slot != NONE && self.all[slot].until <= now).then(|| self.end(slot))
    }

    /// Bodies covered, counted once for each lease.
    #[cfg(test)]
    pub(crate) fn covered(&self) -> usize {
        self.all.iter().map(|(_, lease)| lease.covered.len()).sum()
    }

    fn end(&mut self, slot: u32) -> Covered {
        self.order.remove(&mut self.all, slot);
        self.all.remove(slot).covered
    }
}
