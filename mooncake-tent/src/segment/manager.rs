//! The segments of other processes that this one has opened, by name.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{Fences, Segment, SegmentDescriptor};
use crate::{
    control::ControlClient,
    error::{Error, Result},
    platform::after,
};

/// Opens segments and keeps what is known of them fresh.
#[derive(Debug, Default)]
pub(crate) struct SegmentManager {
    open: Mutex<FxHashMap<String, Segment>>,
    fences: Mutex<FxHashMap<String, Arc<Fences>>>,
    client: Arc<ControlClient>,
}

impl SegmentManager {
    /// What asks the owners.
    pub(crate) fn client(&self) -> &Arc<ControlClient> {
        &self.client
    }

    /// The segment of this name, fetched from its owner unless it is open already.
    pub(crate) async fn open(&self, name: &str, budget: Duration) -> Result<Segment> {
        if let Some(segment) = self.open.lock().get(name) {
            return Ok(segment.clone());
        }
        let descriptor = self.fetch(name, budget).await?;
        let fences = Arc::clone(self.fences.lock().entry(name.to_owned()).or_default());
        let mut open = self.open.lock();
        // Whoever came first in the meantime is as good.
        let segment = open
            .entry(name.to_owned())
            .or_insert_with(|| Segment::new(name.to_owned(), descriptor, fences));
        Ok(segment.clone())
    }

    pub(crate) fn close(&self, segment: &Segment) {
        self.open.lock().remove(segment.name());
    }

    /// Fetches the descriptor anew, unless another caller has done so since `seen`.
    pub(crate) async fn refresh(
        &self,
        segment: &Segment,
        seen: &SegmentDescriptor,
        budget: Duration,
    ) -> Result<()> {
        // The others' fetches before ours cost of our budget, too.
        let end = after(budget);
        let only = tokio::time::timeout(budget, segment.refreshing()).await;
        let _only = only.map_err(|_| Error::Unreachable {
            segment: segment.name().to_owned(),
            message: format!("no answer to others within {budget:?}"),
        })?;
        let is_seen = {
            let known = segment.known();
            known.descriptor.incarnation() == seen.incarnation()
                && known.descriptor.version() == seen.version()
        };
        if is_seen {
            let left = end.saturating_duration_since(Instant::now());
            segment.learn(self.fetch(segment.name(), left).await?);
        }
        Ok(())
    }

    async fn fetch(&self, name: &str, budget: Duration) -> Result<SegmentDescriptor> {
        let unreachable = |message: String| Error::Unreachable {
            segment: name.to_owned(),
            message,
        };
        let fetched = tokio::time::timeout(budget, self.client.segment(name)).await;
        let wire = fetched
            .map_err(|_| {
                self.client.forget(name);
                unreachable(format!("no answer within {budget:?}"))
            })?
            .map_err(|fault| unreachable(fault.to_string()))?;
        SegmentDescriptor::from_wire(wire).map_err(unreachable)
    }
}
