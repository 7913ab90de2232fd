//! What carries out the tasks of file segments.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{FileCounts, job::Job, open::OpenFile};
use crate::{
    identity::{PeerId, RegistrationId},
    memory::LocalBuffer,
    transport::TaskRef,
};

/// A ring, or some threads.
pub(super) trait Carrier: fmt::Debug + Send + Sync {
    /// Takes jobs, and begins as much of them as goes at once.
    fn post(&self, jobs: &mut Vec<Job>);

    /// Asks for an early end.
    fn cancel(&self, task: TaskRef);

    /// As [`SubBatch::drive`](crate::transport::SubBatch::drive).
    fn drive(&self, budget: Duration) -> bool;

    /// As [`SubBatch::hand_over`](crate::transport::SubBatch::hand_over).
    fn hand_over(&self);

    /// Ends all jobs of one file.
    fn fence(&self, peer: PeerId);

    /// Ends all jobs, and those that come later.
    fn close(&self);

    /// As [`Book::is_busy`](super::book::Book::is_busy).
    fn is_busy(&self, peer: Option<PeerId>) -> bool;

    /// Learns of a file, before it has tasks; `false`: it does not.
    fn open(&self, _place: u32, _file: &OpenFile) -> bool {
        false
    }

    /// Forgets a file.
    fn forget_file(&self, _place: u32) {}

    /// Prepares memory, if it can.
    fn register(&self, _buffer: &Arc<LocalBuffer>) {}

    /// Undoes [`register`](Self::register).
    fn unregister(&self, _id: RegistrationId) {}

    /// Pieces of memory that it has prepared.
    fn registered(&self) -> u64 {
        0
    }

    /// What it has done so far.
    fn counts(&self) -> FileCounts;
}

/// Has `carriers` end what is under way, of one file or of all; `false`: not before `end`.
pub(super) fn until_idle(
    carriers: &[Arc<dyn Carrier>],
    peer: Option<PeerId>,
    end: Instant,
) -> bool {
    carriers.iter().all(|carrier| {
        while carrier.is_busy(peer) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let slice = left.min(Duration::from_millis(5));
            if !carrier.drive(slice) {
                // Others are at it.
                std::thread::sleep(slice.min(Duration::from_micros(200)));
            }
        }
        true
    })
}
