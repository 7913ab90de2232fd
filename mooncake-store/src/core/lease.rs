//! Leases that look-ups granted, and their release once nobody reads under them.

use rustc_hash::FxHashMap;

use super::{Gather, Settings};
use crate::time::Time;

/// A lease of ours. The master's numbers may come again after it restarted; these do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaseId(u64);

#[derive(Debug)]
struct Lease {
    number: u64,
    ends: Time,
    holds: usize,
}

/// All leases that somebody holds, or that wait to be released.
#[derive(Debug)]
pub(super) struct Leases {
    held: FxHashMap<LeaseId, Lease>,
    next: u64,
    released: Gather<(u64, Time)>,
}

impl Leases {
    pub(super) fn new() -> Self {
        Self {
            held: FxHashMap::default(),
            next: 0,
            released: Gather::new(),
        }
    }

    /// Notes a lease with one hold on it.
    pub(super) fn grant(&mut self, number: u64, ends: Time) -> LeaseId {
        let id = LeaseId(self.next);
        self.next += 1;
        self.held.insert(
            id,
            Lease {
                number,
                ends,
                holds: 1,
            },
        );
        id
    }

    /// Adds a hold to a lease that has one.
    pub(super) fn hold(&mut self, id: LeaseId) {
        let lease = self.held.get_mut(&id).expect("somebody holds it");
        lease.holds += 1;
    }

    /// Gives a hold back. The last one releases the lease, unless it is over anyway.
    pub(super) fn drop_hold(&mut self, now: Time, settings: &Settings, id: LeaseId) {
        let lease = self.held.get_mut(&id).expect("somebody holds it");
        lease.holds -= 1;
        if lease.holds == 0 {
            let Lease { number, ends, .. } = *lease;
            self.held.remove(&id);
            if now < ends {
                self.released.push(now, settings, (number, ends));
            }
        }
    }

    /// The leases to release now, and when the last of them is over anyway. `company`: something
    /// goes to the master at this moment.
    pub(super) fn take_released(
        &mut self,
        now: Time,
        settings: &Settings,
        company: bool,
    ) -> Option<(Vec<u64>, Time)> {
        let mut batch = self.released.take(now, settings, company);
        batch.retain(|(_, ends)| now < *ends);
        let last = batch.iter().map(|(_, ends)| *ends).max()?;
        Some((batch.into_iter().map(|(number, _)| number).collect(), last))
    }

    pub(super) const fn due(&self) -> Time {
        self.released.due()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.released.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_released_with_its_last_hold_and_not_at_all_once_it_is_over() {
        let settings = Settings::default();
        let mut leases = Leases::new();
        let lease = leases.grant(7, Time(100));
        leases.hold(lease);
        leases.drop_hold(Time(10), &settings, lease);
        assert_eq!(leases.take_released(Time(10), &settings, true), None);
        leases.drop_hold(Time(20), &settings, lease);
        assert_eq!(
            leases.take_released(Time(20), &settings, true),
            Some((vec![7], Time(100)))
        );

        let over = leases.grant(7, Time(100));
        leases.drop_hold(Time(100), &settings, over);
        assert_eq!(leases.take_released(Time(200), &settings, true), None);
        assert!(leases.is_empty());
    }
}
