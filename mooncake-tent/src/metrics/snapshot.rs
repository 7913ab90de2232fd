//! What an engine has done, as plain numbers.

use super::Histogram;
use crate::{notify::NotificationCounts, transport::Op};

/// What an engine has done since it began, at a moment. Counts only grow. While transfers run, those of
/// one link and those of another may be of slightly different moments; what has ended before somebody
/// asks is in them.
///
/// [`text`](Self::text) is what a page for Prometheus shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// By link, peer and direction, where anything has ended.
    pub links: Vec<LinkMetrics>,
    /// What was done for peers, by link and direction, where there was anything.
    pub served: Vec<ServedMetrics>,
    /// By where from and where to, where there were any.
    pub failovers: Vec<Failovers>,
    /// Descriptors of segments that were fetched anew.
    pub refreshes: RefreshMetrics,
    /// Buffers of this process.
    pub registrations: RegistrationMetrics,
    /// Requests that had to wait or were refused.
    pub admission: AdmissionMetrics,
    /// What became of notifications that came in.
    pub notifications: NotificationCounts,
}

/// What went over one link to one peer in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkMetrics {
    /// The name of the link.
    pub transport: &'static str,
    /// The name of the segment under which its owner was opened first, cut to 128 bytes. `None`: all
    /// further peers together, once 1024 links to peers have numbers of their own, and those to which
    /// nothing went for ten minutes or more, where others needed their numbers.
    pub peer: Option<Box<str>>,
    /// The direction, seen from this process.
    pub op: Op,
    /// Tasks that completed, each counted where its last attempt went, as the following ones are.
    pub completed: u64,
    /// Bytes of tasks that completed, and those of others that had arrived when an attempt failed and
    /// the next one went on from there; each counted where it went.
    pub bytes: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Tasks that the caller ended.
    pub cancelled: u64,
    /// Tasks whose deadline passed.
    pub timed_out: u64,
    /// Attempts that were posted once more over the same link.
    pub retries: u64,
    /// How long tasks took from submission to completion. It has the first task of one submission in 32,
    /// and of one in 4 of the first ones, if its first attempt went through.
    pub latency: Histogram,
}

impl LinkMetrics {
    pub(super) fn is_empty(&self) -> bool {
        let ended = self.completed + self.failed + self.cancelled + self.timed_out;
        ended + self.bytes + self.retries == 0
    }
}

/// What peers did over one link in one direction with the memory of this process, as far as this
/// process has a part in it: what they copy by themselves, such as reads between processes of one host,
/// is theirs alone to count.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedMetrics {
    /// The name of the link.
    pub transport: &'static str,
    /// What the peers did.
    pub op: Op,
    /// Requests, of which a task may have several.
    pub requests: u64,
    /// Bytes of them: of writes at their place, of reads on their way.
    pub bytes: u64,
    /// Requests that were refused or broken off.
    pub refused: u64,
}

/// Tasks that went on over another link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failovers {
    /// The link that failed them.
    pub from: &'static str,
    /// The link that got them next.
    pub to: &'static str,
    /// How many, counted once for each time.
    pub tasks: u64,
}

/// Descriptors of segments that were fetched anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefreshMetrics {
    /// The owner has answered.
    pub fetched: u64,
    /// The owner has not answered in time, or nothing sensible.
    pub failed: u64,
}

/// Buffers of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationMetrics {
    /// Buffers that were registered.
    pub registered: u64,
    /// Buffers that no link took, or that one failed to take.
    pub refused: u64,
    /// Buffers that were unregistered or dropped.
    pub unregistered: u64,
    /// Buffers that got another generation.
    pub renewed: u64,
}

/// What [admission](crate::admission) has cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdmissionMetrics {
    /// How long requests waited that could not go at once and went later.
    pub waits: Histogram,
    /// Requests whose deadline passed while they waited.
    pub waited_too_long: u64,
    /// Submissions for which there was no room, or whose tenant may not wait.
    pub refused: u64,
    /// Submissions with a request whose deadline could not have been kept.
    pub infeasible: u64,
}
