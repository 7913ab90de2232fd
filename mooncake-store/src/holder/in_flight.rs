//! Objects on their way to the disk, and which of them were removed meanwhile.
//!
//! A tombstone is no use before the record that it is for: whoever writes the record would write it after that. So a
//! removal leaves word here, and is not acknowledged before the write has ended.

use std::collections::{HashMap, HashSet};

use mooncake_bucket::Incarnation;

/// An object in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectName {
    pub(super) tenant: String,
    pub(super) key: Vec<u8>,
    pub(super) incarnation: Incarnation,
}

#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// With whether it was removed.
    objects: HashMap<ObjectName, bool>,
    bytes: u64,
    /// Objects that go from the disk: the master hears that they do, and must not hear before that they came.
    leaving: HashSet<ObjectName>,
}

impl InFlight {
    /// `false`: it is under way already, in one direction or the other.
    pub(super) fn begin(&mut self, object: &ObjectName, bytes: u64) -> bool {
        if self.objects.contains_key(object) || self.leaving.contains(object) {
            return false;
        }
        self.objects.insert(object.clone(), false);
        self.bytes += bytes;
        true
    }

    /// Marks it removed; whether it is under way.
    pub(super) fn cut(&mut self, object: &ObjectName) -> bool {
        let cut = self.objects.get_mut(object);
        cut.map(|cut| *cut = true).is_some()
    }

    /// Marks all removed that the tenant had up to an incarnation; whether any is under way.
    pub(super) fn cut_up_to(&mut self, tenant: &str, last: Incarnation) -> bool {
        let mut any = false;
        for (object, cut) in &mut self.objects {
            if object.tenant == tenant && object.incarnation <= last {
                *cut = true;
                any = true;
            }
        }
        any
    }

    pub(super) fn is_cut(&self, object: &ObjectName) -> bool {
        self.objects.get(object).copied().unwrap_or(false)
    }

    pub(super) fn end(&mut self, object: &ObjectName, bytes: u64) {
        if self.objects.remove(object).is_some() {
            self.bytes -= bytes;
        }
    }

    pub(super) fn is_leaving(&self, object: &ObjectName) -> bool {
        self.leaving.contains(object)
    }

    /// Keeps these from beginning until they are [left](Self::left); `false`: one is under way, and none is kept.
    pub(super) fn leave(&mut self, objects: &[ObjectName]) -> bool {
        if objects.iter().any(|it| self.objects.contains_key(it)) {
            return false;
        }
        self.leaving.extend(objects.iter().cloned());
        true
    }

    pub(super) fn left(&mut self, objects: &[ObjectName]) {
        for object in objects {
            self.leaving.remove(object);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(tenant: &str, key: &str, seq: u64) -> ObjectName {
        ObjectName {
            tenant: tenant.into(),
            key: key.into(),
            incarnation: Incarnation::new(1, seq),
        }
    }

    #[test]
    fn a_removal_finds_what_is_under_way_and_touches_no_other_life() {
        let mut flights = InFlight::default();
        let (old, new) = (object("a", "k", 1), object("a", "k", 2));
        assert!(flights.begin(&old, 10));
        assert!(!flights.begin(&old, 10), "once is enough");
        assert!(flights.begin(&new, 5));
        assert_eq!(flights.bytes(), 15);
        assert!(flights.cut(&old));
        assert!(flights.is_cut(&old) && !flights.is_cut(&new));
        flights.end(&old, 10);
        assert!(!flights.cut(&old));
        assert_eq!(flights.bytes(), 5);
    }

    #[test]
    fn what_is_written_and_not_told_does_not_leave_and_what_leaves_is_not_written() {
        let mut flights = InFlight::default();
        let (flying, resting) = (object("a", "k", 1), object("a", "l", 1));
        assert!(flights.begin(&flying, 10));
        let both = [resting.clone(), flying.clone()];
        assert!(!flights.leave(&both), "the master has not heard of one");
        assert!(!flights.is_leaving(&resting), "all or none");
        flights.end(&flying, 10);
        assert!(flights.is_empty() && flights.leave(&both));
        assert!(!flights.begin(&flying, 10) && !flights.begin(&resting, 1));
        assert!(flights.begin(&object("a", "k", 2), 5), "another life");
        flights.left(&both);
        assert!(flights.begin(&flying, 10));
        assert_eq!(flights.bytes(), 15);
    }

    #[test]
    fn a_watermark_cuts_the_tenants_objects_up_to_it() {
        let mut flights = InFlight::default();
        let all = [
            object("a", "x", 1),
            object("a", "y", 3),
            object("b", "z", 1),
        ];
        for object in &all {
            assert!(flights.begin(object, 1));
        }
        assert!(flights.cut_up_to("a", Incarnation::new(1, 2)));
        let cut: Vec<_> = all.iter().map(|object| flights.is_cut(object)).collect();
        assert_eq!(cut, [true, false, false]);
        assert!(!flights.cut_up_to("c", Incarnation::new(9, 9)));
    }
}
