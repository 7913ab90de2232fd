//! What batches are made of, used again by later ones.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::transport::{BatchState, SubBatch, TaskRef, TaskSpec};

/// More than so many are not kept.
const KEPT: usize = 64;
/// Nor those with room for more tasks than this.
const LARGE: usize = 4096;

/// The heap memory of a batch.
#[derive(Debug, Default)]
pub(crate) struct BatchParts {
    pub(super) refs: Vec<TaskRef>,
    pub(super) state: Arc<BatchState>,
    /// By the number of the link.
    pub(super) sub_batches: Vec<(usize, Box<dyn SubBatch>)>,
    pub(super) scratch: Scratch,
}

/// Tasks that are planned and not submitted yet.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// With whether their knowledge of the peer may be refreshed.
    pub(super) specs: Vec<(TaskSpec, bool)>,
    pub(super) links: Vec<Option<usize>>,
}

/// Parts of batches that are over, so that in the long run none is allocated.
#[derive(Debug, Default)]
pub(crate) struct PartsPool(Mutex<Vec<BatchParts>>);

impl PartsPool {
    /// Parts of a batch with room for so many tasks.
    pub(super) fn take(&self, capacity: usize) -> BatchParts {
        let used = self.0.lock().pop();
        let mut parts = used.unwrap_or_default();
        parts.refs.reserve(capacity.min(LARGE));
        parts
    }

    /// Keeps the parts of a batch whose tasks are all quiet.
    pub(super) fn put(&self, mut parts: BatchParts) {
        // A task's cell may still hold it for a moment.
        let Some(state) = Arc::get_mut(&mut parts.state) else {
            return;
        };
        state.renew();
        parts.refs.clear();
        parts.sub_batches.retain_mut(|(_, sub)| sub.recycle());
        parts.scratch.specs.clear();
        parts.scratch.links.clear();
        let mut kept = self.0.lock();
        if kept.len() < KEPT && parts.refs.capacity() <= LARGE {
            kept.push(parts);
        }
    }
}
