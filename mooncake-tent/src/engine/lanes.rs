//! All lanes of an engine.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{identity::PeerId, lane::Lane, metrics::Meters, segment::Segment};

/// Lanes by peer and the place of the link.
#[derive(Debug)]
pub(super) struct Lanes {
    start: Instant,
    lanes: Mutex<FxHashMap<(PeerId, usize), Arc<Lane>>>,
    meters: Arc<Meters>,
}

/// More are forgotten, if no route has them.
const MOST: usize = 4096;

impl Lanes {
    pub(super) fn new(meters: Arc<Meters>) -> Self {
        Self {
            start: Instant::now(),
            lanes: Mutex::default(),
            meters,
        }
    }

    /// Those of the first `links` links to `peer`, of which `segment` is a name.
    pub(super) fn to(&self, peer: PeerId, segment: &Segment, links: usize) -> Vec<Arc<Lane>> {
        let mut lanes = self.lanes.lock();
        if lanes.len() >= MOST {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        if !lanes.contains_key(&(peer, 0)) {
            self.make_room(&mut lanes, Instant::now());
        }
        (0..links)
            .map(|link| self.entry(&mut lanes, peer, segment, link))
            .collect()
    }

    /// Lets a new peer have the meters of those that left long ago.
    fn make_room(&self, lanes: &mut FxHashMap<(PeerId, usize), Arc<Lane>>, now: Instant) {
        let idle = self.meters.idle(now);
        if !idle.is_empty() {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1 || !idle.contains(&lane.meter()));
            self.meters.give_up(&idle);
        }
    }

    pub(super) fn one(&self, peer: PeerId, segment: &Segment, link: usize) -> Arc<Lane> {
        self.entry(&mut self.lanes.lock(), peer, segment, link)
    }

    fn entry(
        &self,
        lanes: &mut FxHashMap<(PeerId, usize), Arc<Lane>>,
        peer: PeerId,
        segment: &Segment,
        link: usize,
    ) -> Arc<Lane> {
        let new = || {
            let meter = self.meters.of(segment.name(), link);
            Arc::new(Lane::new(self.start, meter))
        };
        Arc::clone(lanes.entry((peer, link)).or_insert_with(new))
    }
}
