//! Lanes that were fenced, as the target remembers them.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::identity::Incarnation;

/// Fenced lanes that are remembered of one initiator …
const FENCED_OF_ONE: usize = 1024;
/// … and initiators of which any are.
const FENCING_INITIATORS: usize = 1024;

/// The name of a lane: who opened it, and its number there.
pub(super) type LaneName = (Incarnation, u64);

/// Lanes that may not come back. What one initiator fences makes nobody else's be forgotten.
#[derive(Debug, Default)]
pub(super) struct FencedLanes {
    /// With the time of the last fence; lanes are oldest first.
    of: FxHashMap<Incarnation, (u64, VecDeque<u64>)>,
    time: u64,
}

impl FencedLanes {
    pub(super) fn contains(&self, (initiator, lane): LaneName) -> bool {
        let lanes = self.of.get(&initiator);
        lanes.is_some_and(|(_, lanes)| lanes.contains(&lane))
    }

    /// Those who have lanes now are forgotten last.
    pub(super) fn add(
        &mut self,
        (initiator, lane): LaneName,
        present: impl Fn(Incarnation) -> bool,
    ) {
        if !self.of.contains_key(&initiator) && self.of.len() >= FENCING_INITIATORS {
            let oldest = self.of.iter();
            let oldest = oldest.min_by_key(|(who, (time, _))| (present(**who), *time));
            if let Some((oldest, _)) = oldest.map(|(who, lanes)| (*who, lanes)) {
                self.of.remove(&oldest);
            }
        }
        self.time += 1;
        let (time, lanes) = self.of.entry(initiator).or_default();
        *time = self.time;
        if !lanes.contains(&lane) {
            lanes.push_back(lane);
            if lanes.len() > FENCED_OF_ONE {
                lanes.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initiator(raw: u64) -> Incarnation {
        Incarnation::from_u64(raw).unwrap()
    }

    #[test]
    fn the_fences_of_one_initiator_make_nobody_elses_be_forgotten() {
        let mut fenced = FencedLanes::default();
        let honest = initiator(1);
        fenced.add((honest, 7), |_| true);
        for lane in 0..100_000 {
            fenced.add((initiator(2), lane), |_| true);
        }
        assert!(fenced.contains((honest, 7)));
        assert!(fenced.contains((initiator(2), 99_999)));
        assert!(!fenced.contains((initiator(2), 0)), "it is bounded");
        // Nor do those of many, who have no lanes.
        for other in 3..3_000 {
            fenced.add((initiator(other), 1), |who| who == honest);
        }
        assert!(fenced.contains((honest, 7)));
        assert!(fenced.of.len() <= FENCING_INITIATORS);
    }
}
