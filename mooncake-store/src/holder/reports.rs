//! The loop that tells the master how full the disk is.

use std::sync::Arc;

use super::file_storage::Holder;

impl Holder {
    /// Reports until it is aborted. It asks no disk, so that a slow one does not make its holder look dead.
    pub(super) async fn report(self: Arc<Self>) {
        loop {
            self.mounted().await;
            let queued = self.in_flight.lock().bytes();
            let state = self.records.state(self.options.capacity_bytes, queued);
            if self.is_full(state.used_bytes) {
                self.wake.evictions.notify_one();
            }
            match self.desk.report(state).await {
                // A nudge may have been lost.
                Ok(waiting) => {
                    if waiting.remove_tasks > 0 {
                        self.wake.removals.notify_one();
                    }
                    if waiting.offload_tasks > 0 {
                        self.wake.offloads.notify_one();
                    }
                }
                Err(fault) => self.failed("reporting the state of the disk", &fault).await,
            }
            tokio::time::sleep(self.master.session().ping_interval).await;
        }
    }
}
