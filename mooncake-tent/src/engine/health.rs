//! Which links to which peers work, as transfers found out.

use std::time::Instant;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{
    Time,
    error::Reason,
    identity::PeerId,
    selector::{Circuit, CircuitConfig, Health},
};

/// A circuit for each link to each peer over which a transfer failed.
#[derive(Debug)]
pub(super) struct Circuits {
    start: Instant,
    circuits: Mutex<FxHashMap<(PeerId, usize), Circuit>>,
}

/// More are forgotten, those that are closed first.
const MOST: usize = 4096;

impl Circuits {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            circuits: Mutex::default(),
        }
    }

    /// A transfer over this link failed for that reason. `true`: the link is not to be tried for now.
    pub(super) fn failed(&self, peer: PeerId, link: usize, reason: &Reason) -> bool {
        let now = self.now();
        let why = reason.to_string();
        let mut circuits = self.circuits.lock();
        if circuits.len() >= MOST {
            circuits.retain(|_, circuit| circuit.health(now) != Health::Closed);
        }
        let circuit = circuits
            .entry((peer, link))
            .or_insert_with(|| Circuit::new(CircuitConfig::default()));
        match (circuit.admit(now), reason) {
            (Ok(pass), Reason::Unreachable(_) | Reason::OtherIncarnation) => {
                circuit.broke(pass, now, &why);
                true
            }
            (Ok(pass), _) => circuit.failed(pass, now, &why),
            (Err(_), _) => true,
        }
    }

    /// The circuits of the first `links` links to `peer`, where there are any, and the time for them.
    pub(super) fn to(&self, peer: PeerId, links: usize) -> (Vec<Option<Circuit>>, Time) {
        let circuits = self.circuits.lock();
        let found = (0..links).map(|link| circuits.get(&(peer, link)).cloned());
        (found.collect(), self.now())
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }
}
