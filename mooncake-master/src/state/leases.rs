//! Promises that memory stays what it is, until their holder lets go or their time is over.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::ClientId;
use crate::{
    Time,
    list::{Linked, Links, List, NONE},
    slab::{Ref, Slab},
};

/// Slots of bodies; each counts its leases, so that it outlives them.
pub(crate) type Covered = SmallVec<[u32; 4]>;

/// Leases of which a client may not have heard, by the numbers of the operations that asked.
pub(crate) type Unheard = BTreeMap<u64, SmallVec<[Ref; 1]>>;

#[derive(Debug)]
struct Lease {
    covered: Covered,
    holder: ClientId,
    /// Of the operation that asked for it; 0: it had none.
    number: u64,
    until: Time,
    links: Links,
    /// Among those of its holder.
    siblings: Links,
}

impl Linked for Slab<Lease> {
    fn links(&mut self, slot: u32) -> &mut Links {
        &mut self[slot].links
    }
}

/// The same table, for the lists of holders.
struct Siblings<'a>(&'a mut Slab<Lease>);

impl Linked for Siblings<'_> {
    fn links(&mut self, slot: u32) -> &mut Links {
        &mut self.0[slot].siblings
    }
}

#[derive(Debug)]
pub(crate) struct Leases {
    all: Slab<Lease>,
    /// All last equally long: the one at the back ends first.
    order: List,
    /// Of those that have any.
    of: FxHashMap<ClientId, List>,
    /// Makes the numbers of different epochs differ, so that a release that was meant for an
    /// earlier life of the master ends nothing in this one.
    mask: u64,
}

impl Leases {
    pub(crate) fn new(epoch: u64) -> Self {
        // The lower half has no bit that a slot could cancel: no slot is `u32::MAX`.
        let scattered = epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        Self {
            all: Slab::new(),
            order: List::EMPTY,
            of: FxHashMap::default(),
            mask: scattered << 32 | NONE as u64,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The lease's number, never 0.
    pub(crate) fn grant(
        &mut self,
        (holder, number): (ClientId, u64),
        covered: Covered,
        until: Time,
    ) -> u64 {
        let at = self.all.insert(Lease {
            covered,
            holder,
            number,
            until,
            links: Links::LOOSE,
            siblings: Links::LOOSE,
        });
        self.order.push_front(&mut self.all, at.slot);
        let siblings = self.of.entry(holder).or_insert(List::EMPTY);
        siblings.push_front(&mut Siblings(&mut self.all), at.slot);
        at.to_bits() ^ self.mask
    }

    /// Ends a lease of `holder`; what it covered, if it was one.
    pub(crate) fn release(&mut self, holder: ClientId, lease: u64) -> Option<Covered> {
        let at = Ref::from_bits(lease ^ self.mask);
        if self.all.get(at)?.holder != holder {
            return None;
        }
        Some(self.end(at.slot))
    }

    /// Ends all leases of a holder; what they covered.
    pub(crate) fn release_all(&mut self, holder: ClientId) -> Vec<Covered> {
        let slots: Vec<_> = self.held_by(holder).collect();
        slots.into_iter().map(|slot| self.end(slot)).collect()
    }

    /// Those that have any, in no order.
    pub(crate) fn holders(&self) -> impl Iterator<Item = ClientId> {
        self.of.keys().copied()
    }

    /// The leases of a holder, the earliest first.
    fn held_by(&self, holder: ClientId) -> impl Iterator<Item = u32> {
        let exists = |slot: &u32| *slot != NONE;
        let first = self.of.get(&holder).map(|list| list.back);
        std::iter::successors(first.filter(exists), move |&slot| {
            Some(self.all[slot].siblings.prev).filter(exists)
        })
    }

    /// The leases of a holder, by the numbers of the operations that asked for them.
    pub(crate) fn asked_by(&self, holder: ClientId) -> Unheard {
        let mut asked = Unheard::new();
        for slot in self.held_by(holder) {
            let lease = &self.all[slot];
            if lease.number > 0 {
                let at = self.all.reference(slot);
                asked.entry(lease.number).or_default().push(at);
            }
        }
        asked
    }

    /// Ends a lease if it has not ended; what it covered.
    pub(crate) fn revoke(&mut self, at: Ref) -> Option<Covered> {
        self.all.get(at)?;
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
        let holder = self.all[slot].holder;
        if let Some(siblings) = self.of.get_mut(&holder) {
            siblings.remove(&mut Siblings(&mut self.all), slot);
            if siblings.front == NONE {
                self.of.remove(&holder);
            }
        }
        self.all.remove(slot).covered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn law_07_a_release_meant_for_another_epoch_ends_nothing() {
        let (holder, until) = (ClientId::NOBODY, Time(9));
        let mut old = Leases::new(1_000_000);
        let mut new = Leases::new(1_000_001);
        let stale = old.grant((holder, 1), Covered::new(), until);
        let fresh = new.grant((holder, 1), Covered::new(), until);
        assert!(stale != 0 && fresh != 0);
        assert_eq!(new.release(holder, stale), None);
        assert!(new.release(holder, fresh).is_some());
    }

    #[test]
    fn each_holder_has_a_list_of_its_own_that_ends_with_its_last_lease() {
        let mut leases = Leases::new(7);
        let (one, two) = (ClientId(1), ClientId(2));
        let mut granted = Vec::new();
        for number in 1..=6 {
            let holder = if number % 3 == 0 { two } else { one };
            granted.push(leases.grant((holder, number), Covered::new(), Time(number)));
        }
        let asked = |leases: &Leases, of| -> Vec<_> { leases.asked_by(of).into_keys().collect() };
        assert_eq!(asked(&leases, one), [1, 2, 4, 5]);
        assert_eq!(asked(&leases, two), [3, 6]);
        // The first by its time, one in the middle and the last by release.
        assert!(leases.expire(Time(1)).is_some());
        for index in [3, 4] {
            assert!(leases.release(one, granted[index]).is_some());
        }
        assert_eq!(asked(&leases, one), [2]);
        assert_eq!(leases.release_all(one).len(), 1);
        assert_eq!(leases.release_all(two).len(), 2);
        assert!(leases.of.is_empty() && leases.len() == 0);
    }
}
