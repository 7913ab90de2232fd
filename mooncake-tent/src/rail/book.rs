//! All rails of an engine that have ever failed.

use rustc_hash::FxHashMap;

use super::{Admission, Permit, RailHealth, RailPolicy, RailState};
use crate::{PeerId, Time, spray::DeviceId};

/// A device here paired with a device there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RailId {
    /// Ours.
    pub local: DeviceId,
    /// Whose the other one is: one life of the peer.
    pub peer: PeerId,
    /// Theirs, by the number that [`DeviceNames`](super::DeviceNames) gave it.
    pub remote: DeviceId,
}

/// The health of rails. What is not here is open: nothing bad is known of it.
///
/// It is asked once for each route, not for each slice, so a lock around it is no hot one.
#[derive(Clone, Debug, Default)]
pub struct Rails {
    policy: RailPolicy,
    rails: FxHashMap<RailId, RailHealth>,
}

impl Rails {
    /// No rail is known.
    pub fn new(policy: RailPolicy) -> Self {
        Self {
            policy,
            rails: FxHashMap::default(),
        }
    }

    /// Asks to post on `rail`.
    pub fn admit(&mut self, now: Time, rail: RailId) -> Admission {
        match self.rails.get_mut(&rail) {
            Some(health) => health.admit(now, &self.policy),
            None => RailHealth::new().admit(now, &self.policy),
        }
    }

    /// A slice was moved on `rail`. Needed for those that were let through as a trial.
    pub fn succeeded(&mut self, now: Time, rail: RailId, permit: Permit) {
        if let Some(health) = self.rails.get_mut(&rail) {
            health.succeeded(now, permit);
        }
    }

    /// `rail` was admitted as a trial, and nothing was posted: the next one who asks may have it.
    pub fn unused(&mut self, now: Time, rail: RailId, permit: Permit) {
        if let Some(health) = self.rails.get_mut(&rail) {
            health.unused(now, permit);
        }
    }

    /// A slice failed for a reason that lies with `rail`, or was not heard of in time.
    pub fn failed(&mut self, now: Time, rail: RailId, permit: Permit) {
        let health = self.rails.entry(rail).or_default();
        health.failed(now, permit, &self.policy);
    }

    /// The link says that `rail` is dead.
    pub fn lost(&mut self, now: Time, rail: RailId) {
        let health = self.rails.entry(rail).or_default();
        health.lost(now, &self.policy);
    }

    /// The link says that `rail` is back.
    pub fn restored(&mut self, now: Time, rail: RailId) {
        if let Some(health) = self.rails.get_mut(&rail) {
            health.restored(now);
        }
    }

    /// Drops what is known of a life of a peer that is over, once its last slice has ended: a failure
    /// that is reported later would be kept again.
    pub fn forget(&mut self, peer: PeerId) {
        self.rails.retain(|rail, _| rail.peer != peer);
    }

    /// How `rail` is.
    pub fn state(&self, rail: RailId) -> RailState {
        let health = self.rails.get(&rail);
        health.map_or(RailState::Open { errors: 0 }, RailHealth::state)
    }

    /// The rails that have failed at some time, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (RailId, RailState)> {
        self.rails
            .iter()
            .map(|(rail, health)| (*rail, health.state()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, rail::DeviceNames};

    /// The first error closes a rail.
    fn strict() -> Rails {
        Rails::new(RailPolicy {
            error_threshold: 1,
            ..RailPolicy::default()
        })
    }

    /// What a link keeps of a peer: a descriptor is only a list of names.
    struct Known {
        life: PeerId,
        names: DeviceNames,
    }

    impl Known {
        fn rails(&mut self, descriptor: &[&str]) -> Vec<RailId> {
            let rails = descriptor.iter().map(|name| RailId {
                local: DeviceId(0),
                peer: self.life,
                remote: self.names.id(name).unwrap(),
            });
            rails.collect()
        }
    }

    fn fail(rails: &mut Rails, rail: RailId) {
        let permit = rails.admit(Time(0), rail).permit().unwrap();
        rails.failed(Time(0), rail, permit);
    }

    #[test]
    fn health_survives_descriptors_that_are_fetched_anew_in_another_order() {
        let mut peer = Known {
            life: Incarnation::random(),
            names: DeviceNames::new(),
        };
        let mut rails = strict();
        fail(&mut rails, peer.rails(&["eth0", "eth1"])[0]);
        for descriptor in [
            &["eth0", "eth1"][..],
            &["eth1", "eth0"],
            &["eth2", "eth0", "eth1"],
        ] {
            for (name, rail) in descriptor.iter().zip(peer.rails(descriptor)) {
                let closed = matches!(rails.admit(Time(1), rail), Admission::Closed { .. });
                assert_eq!(closed, *name == "eth0", "{name} of {descriptor:?}");
            }
        }
    }

    #[test]
    fn law_07_what_was_learnt_of_one_life_of_a_peer_says_nothing_of_the_next() {
        let mut rails = strict();
        let [old, new] = [1, 2].map(|life| RailId {
            local: DeviceId(0),
            peer: Incarnation::from_u64(life).unwrap(),
            remote: DeviceId(0),
        });
        fail(&mut rails, old);
        assert!(matches!(rails.admit(Time(1), new), Admission::Open(_)));
        rails.forget(old.peer);
        assert_eq!(rails.iter().count(), 0);
    }

    #[test]
    fn law_12_a_rail_that_nobody_has_used_is_open_and_takes_no_memory() {
        let mut rails = strict();
        let rail = RailId {
            local: DeviceId(0),
            peer: Incarnation::random(),
            remote: DeviceId(7),
        };
        let permit = rails.admit(Time(5), rail).permit().unwrap();
        rails.succeeded(Time(6), rail, permit);
        rails.restored(Time(7), rail);
        assert_eq!(rails.state(rail), RailState::Open { errors: 0 });
        assert_eq!(rails.iter().count(), 0);
    }
}
