//! Which links carry a request.

use std::sync::Arc;

use arc_swap::Guard;

use super::tent::Shared;
use crate::{
    error::Error,
    identity::RegistrationId,
    memory::LocalSlice,
    platform::after,
    segment::{Known, Route, RouteKey, Segment, SegmentDescriptor},
    selector::{Exclusion, Health, LinkFacts, Ranking, RequestFacts},
    transport::Op,
};

/// Links are ranked for so many bytes.
const TYPICAL: u64 = 1 << 20;

/// What was known of a segment before anything of it was looked up for a request; serves those that
/// follow and name the same one.
pub(super) struct Outlook {
    pub(super) segment: Segment,
    /// A fence that comes later counts.
    pub(super) fences: u64,
    pub(super) known: Guard<Arc<Known>>,
    /// The last link that was looked for in each direction, and whether there were others.
    pub(super) routes: [Option<(Wanted, usize, bool)>; 2],
}

/// What of a request the choice of its link depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) op: Op,
    pub(super) registration: Option<RegistrationId>,
    /// A bit for each link that carries all that is written from.
    pub(super) local: u64,
}

impl Outlook {
    pub(super) fn of(segment: &Segment) -> Self {
        Self {
            segment: segment.clone(),
            fences: segment.fences().count(),
            known: segment.known(),
            routes: [None; 2],
        }
    }
}

impl Shared {
    pub(super) fn key(&self, wanted: Wanted, known: &Known) -> RouteKey {
        let names = || self.parts.links.iter().map(|link| link.name());
        let mut key = RouteKey::any(wanted.op);
        key.local = wanted.local;
        if let Some(registration) = wanted.registration {
            key.remote = known.links_of(registration, names);
        }
        key
    }

    /// Gives `take` the links that can carry what `key` says.
    pub(super) fn route<T>(
        &self,
        key: RouteKey,
        segment: &Segment,
        known: &Known,
        take: impl FnOnce(&Route) -> T,
    ) -> T {
        let choose = || {
            let ranking = self.rank(key, &known.descriptor);
            tracing::debug!(op = %key.op, segment = segment.name(), %ranking, "links were chosen");
            let barred = ranking.excluded.iter().filter_map(|link| match link.why {
                Exclusion::Open { left, .. } => Some(left),
                _ => None,
            });
            Route {
                until: barred.min().map(after),
                links: ranking.ranked.iter().map(|link| link.index as u8).collect(),
            }
        };
        known.route(key, choose, take)
    }

    pub(super) fn rank(&self, key: RouteKey, descriptor: &SegmentDescriptor) -> Ranking {
        let peer = descriptor.peer();
        let links = &self.parts.links;
        let (circuits, now) = self.circuits.to(peer.id(), links.len());
        let mut facts: Vec<_> = links
            .iter()
            .zip(&circuits)
            .enumerate()
            .map(|(place, (link, circuit))| LinkFacts {
                reaches: link.reaches(peer),
                accepts: key.is_held(place, link.capabilities()),
                same_machine_only: link.capabilities().same_host,
                bandwidth: link.estimated_bandwidth(),
                health: circuit
                    .as_ref()
                    .map_or(Health::Closed, |circuit| circuit.health(now)),
                ..LinkFacts::new(link.name(), link.capabilities())
            })
            .collect();
        let machine = &self.parts.machine;
        let request = RequestFacts {
            same_machine: !machine.is_empty() && descriptor.machine() == machine,
            ..RequestFacts::new(key.op, TYPICAL)
        };
        let ranking = self.selector.rank(&request, &facts);
        if !ranking.ranked.is_empty() {
            return ranking;
        }
        // Where all have failed, trying is better than not.
        for link in &mut facts {
            link.health = Health::Closed;
        }
        self.selector.rank(&request, &facts)
    }

    pub(super) fn no_route(&self, key: RouteKey, segment: &Segment) -> Error {
        Error::NoRoute {
            op: match key.op {
                Op::Read => "read",
                Op::Write => "write",
            },
            segment: segment.name().to_owned(),
            reasons: self.rank(key, &segment.known().descriptor).to_string(),
        }
    }
}

/// A bit for each link that carries all of what is written from; of reads, all.
pub(super) fn held_by_all(op: Op, local: &[LocalSlice]) -> u64 {
    match op {
        Op::Read => u64::MAX,
        Op::Write => {
            let held = local.iter().map(|slice| slice.buffer().links());
            held.fold(u64::MAX, |all, held| all & held)
        }
    }
}
