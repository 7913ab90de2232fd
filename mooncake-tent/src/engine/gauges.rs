//! What an engine holds at a moment.

use crate::transport::LinkGauges;

/// What an engine holds at a moment, for whoever watches it. Once all work has ended and all that
/// was opened is closed, everything here is 0, whatever way the work has ended (law 13).
///
/// It is added up from the engine's tables when it is asked for, so parts of it may be of slightly
/// different moments while transfers run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gauges {
    /// Tasks that have not ended.
    pub tasks_in_flight: u64,
    /// Bytes of tasks that have not ended.
    pub bytes_in_flight: u64,
    /// Bytes of tasks that have ended but may still move; their memory is kept for them.
    pub quarantined_bytes: u64,
    /// Batches that were allocated and not dropped.
    pub open_batches: u64,
    /// Registered buffers, without stage memory that nobody uses.
    pub registrations: u64,
    /// Leases on buffers, registered or not.
    pub leases: u64,
    /// Memory of buffers that were unregistered, which leases keep.
    pub withdrawn_bytes: u64,
    /// Notifications that have come and were not taken.
    pub notifications: u64,
    /// Writes that arrived with an op id and were not taken.
    pub arrivals: u64,
    /// Requests that wait until they may go. They count among the tasks in flight.
    pub waiting_requests: u64,
    /// What each link holds, by its name.
    pub links: Vec<(&'static str, LinkGauges)>,
}
