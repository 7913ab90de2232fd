//! What look-ups have found, kept for a while with the leases that make it true.

use std::{
    collections::{VecDeque, hash_map},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use rustc_hash::FxHashMap;

use super::{Incarnation, lease::LeaseId, wire::Found};
use crate::time::Time;

/// An object as a look-up found it.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) found: Arc<Found>,
    pub(super) lease: LeaseId,
    pub(super) lease_ends: Time,
}

/// The kept look-ups of a client. Each has a hold on its lease, which goes back to whoever is given
/// the lease.
#[derive(Debug, Default)]
pub(super) struct Known {
    objects: FxHashMap<Bytes, Entry>,
    /// All that were kept, the oldest first; what is gone is passed over by its number.
    order: VecDeque<Place>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    kept: Kept,
    until: Time,
    number: u64,
}

#[derive(Debug)]
struct Place {
    until: Time,
    number: u64,
    key: Bytes,
}

impl Known {
    /// Keeps an object; the lease of what was known before.
    pub(super) fn insert(&mut self, key: Bytes, kept: Kept, until: Time) -> Option<LeaseId> {
        let number = self.next;
        self.next += 1;
        self.order.push_back(Place {
            until,
            number,
            key: key.clone(),
        });
        let entry = Entry {
            kept,
            until,
            number,
        };
        Some(self.objects.insert(key, entry)?.kept.lease)
    }

    /// What is known of a key.
    pub(super) fn get(&self, now: Time, key: &Bytes) -> Option<&Kept> {
        let entry = self.objects.get(key)?;
        (now < entry.until).then_some(&entry.kept)
    }

    pub(super) fn remove(&mut self, key: &Bytes) -> Option<LeaseId> {
        Some(self.objects.remove(key)?.kept.lease)
    }

    /// This life of the object is over; a later one stays.
    pub(super) fn invalidate(&mut self, key: &Bytes, life: Incarnation) -> Option<LeaseId> {
        let known = self.objects.get(key)?;
        (known.kept.found.incarnation <= life).then(|| self.remove(key))?
    }

    /// Takes one that is over, or beyond so many.
    pub(super) fn pop(&mut self, now: Time, most: usize) -> Option<LeaseId> {
        loop {
            let oldest = self.order.front()?;
            if now < oldest.until && self.objects.len() <= most && self.order.len() <= 2 * most {
                return None;
            }
            let Place { number, key, .. } = self.order.pop_front()?;
            if let hash_map::Entry::Occupied(entry) = self.objects.entry(key)
                && entry.get().number == number
            {
                return Some(entry.remove().kept.lease);
            }
        }
    }

    /// Takes any.
    pub(super) fn pop_any(&mut self) -> Option<LeaseId> {
        self.pop(Time::NEVER, 0)
    }

    /// When the next [`pop`](Self::pop) is due, with so much patience that many go together.
    pub(super) fn due(&self, patience: Duration) -> Time {
        let oldest = self.order.front();
        oldest.map_or(Time::NEVER, |oldest| oldest.until + patience)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::lease::Leases;

    fn kept(leases: &mut Leases, sequence: u64) -> Kept {
        let incarnation = Incarnation { epoch: 1, sequence };
        let replicas = Vec::new();
        let length = 1;
        Kept {
            found: Arc::new(Found {
                incarnation,
                length,
                replicas,
            }),
            lease: leases.grant(sequence, Time(1000)),
            lease_ends: Time(1000),
        }
    }

    #[test]
    fn the_oldest_go_when_they_are_over_or_too_many_and_each_lease_comes_back_once() {
        let (mut known, mut leases) = (Known::default(), Leases::new());
        let mut put = |known: &mut Known, key: &'static str, sequence, until| {
            let kept = kept(&mut leases, sequence);
            let lease = kept.lease;
            (lease, known.insert(key.into(), kept, Time(until)))
        };
        let (first, replaced) = put(&mut known, "a", 1, 10);
        assert_eq!(replaced, None);
        let (second, replaced) = put(&mut known, "a", 2, 20);
        assert_eq!(replaced, Some(first));
        let (third, _) = put(&mut known, "b", 3, 30);
        assert_eq!(known.pop(Time(15), 8), None, "the first is gone already");
        assert!(known.get(Time(19), &"a".into()).is_some());
        assert!(known.get(Time(20), &"a".into()).is_none(), "it is over");
        assert_eq!(known.pop(Time(20), 8), Some(second));
        let (fourth, _) = put(&mut known, "c", 4, 40);
        assert_eq!(known.pop(Time(20), 1), Some(third), "one is enough");
        assert_eq!(known.pop(Time(20), 1), None);
        assert_eq!(known.remove(&"c".into()), Some(fourth));
        assert_eq!(known.pop_any(), None);
        assert!(known.is_empty() && known.due(Duration::ZERO) == Time::NEVER);
    }

    #[test]
    fn only_the_life_that_is_over_is_forgotten() {
        let (mut known, mut leases) = (Known::default(), Leases::new());
        let kept = kept(&mut leases, 7);
        let life = |sequence| Incarnation { epoch: 1, sequence };
        known.insert("a".into(), kept, Time(10));
        assert_eq!(known.invalidate(&"a".into(), life(6)), None);
        assert_eq!(known.invalidate(&"b".into(), life(9)), None);
        assert!(known.get(Time(0), &"a".into()).is_some());
        assert!(known.invalidate(&"a".into(), life(7)).is_some());
        assert!(known.is_empty());
    }
}
