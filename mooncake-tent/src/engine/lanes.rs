//! All lanes of an engine.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{identity::PeerId, lane::Lane};

/// Lanes by peer and the place of the link.
#[derive(Debug)]
pub(super) struct Lanes {
    start: Instant,
    lanes: Mutex<FxHashMap<(PeerId, usize), Arc<Lane>>>,
}

/// More are forgotten, if no route has them.
const MOST: usize = 4096;

impl Lanes {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            lanes: Mutex::default(),
        }
    }

    /// Those of the first `links` links to `peer`.
    pub(super) fn to(&self, peer: PeerId, links: usize) -> Vec<Arc<Lane>> {
        let mut lanes = self.lanes.lock();
        if lanes.len() >= MOST {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        let new = || Arc::new(Lane::new(self.start));
        (0..links)
            .map(|link| Arc::clone(lanes.entry((peer, link)).or_insert_with(new)))
            .collect()
    }

    pub(super) fn one(&self, peer: PeerId, link: usize) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        let new = || Arc::new(Lane::new(self.start));
        Arc::clone(lanes.entry((peer, link)).or_insert_with(new))
    }
}
