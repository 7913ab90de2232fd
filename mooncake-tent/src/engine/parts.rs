//! What batches are made of, used again by later ones.

use std::sync::Arc;

use parking_lot::Mutex;

use super::parking::Gated;
use crate::{
    lane::Watch,
    stripes::Stripes,
    trace::Trace,
    transport::{BatchState, Peer, SubBatch, TaskRef, TaskSpec},
};

/// More than so many are not kept for a thread.
const KEPT: usize = 16;
/// Nor those with room for more tasks than this.
const LARGE: usize = 4096;
/// So many are looked at for one that is free.
const LOOKED_AT: usize = 4;

/// The heap memory of a batch.
#[derive(Debug, Default)]
pub(crate) struct BatchParts {
    pub(super) refs: Vec<TaskRef>,
    pub(super) state: Arc<BatchState>,
    /// By the number of the link.
    pub(super) sub_batches: Vec<(usize, Box<dyn SubBatch>)>,
    /// There unless it is in use.
    pub(super) scratch: Option<Box<Scratch>>,
}

/// Tasks that are planned and not submitted yet.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// With whether their knowledge of the peer may be refreshed.
    pub(super) specs: Vec<(TaskSpec, bool)>,
    pub(super) links: Vec<To>,
    /// What each has to pass, if there is a gate.
    pub(super) gated: Vec<Gated>,
    /// What learns from the ends of some, by their places.
    pub(super) watches: Vec<(usize, Watch)>,
    /// Those that are traced, by their places.
    pub(super) traces: Vec<(usize, Trace)>,
    /// They are parts of a transfer that was let in already.
    pub(super) is_inner: bool,
    /// Submissions so far.
    pub(super) submissions: u32,
    /// The last peer, and a copy of it that only this has: each task counts the one that it holds, and
    /// threads that do so had better not meet.
    peer: Option<(Arc<Peer>, Arc<Peer>)>,
}

/// Where a task goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// To the link at this place.
    Link(usize),
    /// To a link, once it may.
    Later,
    /// To no link: nobody knows where its bytes are.
    Nowhere,
}

/// One submission in so many is measured, by the first of its tasks; and of the first ones, more.
const SAMPLED: u32 = 32;
const FIRST: u32 = 16;
const SAMPLED_FIRST: u32 = 4;

impl Scratch {
    /// A copy of `peer` for tasks to hold.
    pub(super) fn peer(&mut self, peer: &Arc<Peer>) -> Arc<Peer> {
        match &self.peer {
            Some((known, copy)) if Arc::ptr_eq(known, peer) => Arc::clone(copy),
            _ => {
                let copy = Arc::new(Peer::clone(peer));
                self.peer = Some((Arc::clone(peer), Arc::clone(&copy)));
                copy
            }
        }
    }

    /// Keeps nothing but room.
    pub(super) fn clear(&mut self) {
        self.specs.clear();
        self.links.clear();
        self.gated.clear();
        // Nobody will try what these were to try.
        for (_, Watch { lane, pass, .. }) in self.watches.drain(..) {
            if let Some(pass) = pass {
                lane.abandoned(pass);
            }
        }
        self.traces.clear();
    }

    /// The task that is planned next is one that is measured: the others of its submission wait behind
    /// it.
    pub(super) fn is_sample(&self) -> bool {
        self.specs.is_empty() && is_sampled(self.submissions)
    }
}

/// Whether the submission with this number is measured. Multiples of the golden ratio keep step with
/// no habit of a caller: one that reads and writes by turns has both measured.
fn is_sampled(submission: u32) -> bool {
    const GOLDEN: u32 = 0x9e37_79b1;
    let every = match submission < FIRST {
        true => SAMPLED_FIRST,
        false => SAMPLED,
    };
    submission.wrapping_mul(GOLDEN) < u32::MAX / every
}

/// Parts of batches that are over, so that in the long run none is allocated.
#[derive(Debug, Default)]
pub(crate) struct PartsPool(Stripes<Mutex<Vec<BatchParts>>>);

impl PartsPool {
    /// Parts of a batch with room for so many tasks.
    pub(super) fn take(&self, capacity: usize) -> BatchParts {
        // Another thread's, if this one has none: batches may end elsewhere than they begin.
        let mut parts = self.0.all().find_map(free).unwrap_or_default();
        parts.refs.reserve(capacity.min(LARGE));
        parts
    }

    /// Keeps the parts of a batch whose tasks are all quiet.
    pub(super) fn put(&self, mut parts: BatchParts) {
        parts.refs.clear();
        parts.sub_batches.retain_mut(|(_, sub)| sub.recycle());
        let mut kept = self.0.own().lock();
        if kept.len() < KEPT && parts.refs.capacity() <= LARGE {
            kept.push(parts);
        }
    }
}

/// The latest that nothing else holds: who ended the last task of a batch may hold on to its state for
/// a moment longer than the batch lives.
fn free(kept: &Mutex<Vec<BatchParts>>) -> Option<BatchParts> {
    let mut kept = kept.lock();
    let latest = kept.len().saturating_sub(LOOKED_AT)..kept.len();
    let free = latest.rev().find(|&place| {
        let state = Arc::get_mut(&mut kept[place].state);
        state.map(BatchState::renew).is_some()
    });
    Some(kept.swap_remove(free?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_keeps_step_with_no_habit() {
        let count =
            |range: std::ops::Range<u32>| range.filter(|number| is_sampled(*number)).count() as u32;
        assert!((3..=5).contains(&count(1..FIRST + 1)));
        let share = count(1_000..101_000);
        assert!((3_000..3_250).contains(&share), "{share}");
        for habit in 2..=12 {
            for turn in 0..habit {
                let turns = (0..400).map(|round| 1 + turn + round * habit);
                assert!(turns.into_iter().any(is_sampled), "{turn} of {habit}");
            }
        }
    }
}
