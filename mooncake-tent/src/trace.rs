//! What becomes of one request, step by step.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    selector::Ranking,
    transport::{Op, Outcome},
};

/// Collects what becomes of the requests that [carry](crate::Request::trace) it. Clones collect into the
/// same list.
///
/// ```
/// # use mooncake_tent::{Memory, Permission, RegisterOptions, RemoteRange, Request, TentEngine, Trace};
/// # use mooncake_tent::TransferEngine;
/// # use std::time::Duration;
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = TentEngine::builder().build().await?;
/// # let segment = engine.open_segment("", Duration::from_secs(1)).await?;
/// # let options = || RegisterOptions::new(Permission::PeersRead);
/// # let local = engine.register_memory(Memory::allocate(64)?, options()).await?;
/// # let offered = engine.register_memory(Memory::allocate(64)?, options()).await?;
/// # let at = RemoteRange::Address(offered.memory().address());
/// let trace = Trace::new();
/// let mut batch = engine.allocate_batch(1);
/// let request = Request::read(local.all()?, &segment, at).trace(&trace);
/// engine.submit_transfer(&mut batch, vec![request])?;
/// batch.quiescent().await;
/// for step in trace.steps() {
///     println!("{:?} {}: {}", step.at, step.event.name(), step.event);
/// }
/// # assert_eq!(trace.steps().last().unwrap().event.name(), "quiet");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Trace(Arc<Steps>);

#[derive(Debug)]
struct Steps {
    start: Instant,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    steps: Vec<TraceStep>,
    missed: u64,
}

/// Further steps are counted and not kept.
const MOST: usize = 1024;

/// Something that happened to a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TraceStep {
    /// When, since the trace was made.
    pub at: Duration,
    /// What.
    pub event: TraceEvent,
}

/// What can happen to a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's line names its fields")]
pub enum TraceEvent {
    /// The caller handed it over.
    Submitted { segment: String, op: Op, bytes: u64 },
    /// Links were ranked for it, as it is at this moment; `link` is the one that it gets. It may have been
    /// chosen for an earlier request of the kind.
    Ranked {
        link: &'static str,
        ranking: Ranking,
    },
    /// It may not go yet.
    Waits,
    /// It has waited for so long, and goes.
    LetGo { waited: Duration },
    /// It is handed to a link.
    Posted { link: &'static str },
    /// An attempt failed, and another one may follow.
    AttemptEnded { why: Outcome },
    /// What is known of the peer was fetched anew; or could not be.
    Refreshed { failure: Option<String> },
    /// It is posted once more over the same link; `bytes` are left to move.
    Retried { link: &'static str, bytes: u64 },
    /// Another link gets it; `bytes` are left to move.
    FailedOver {
        from: &'static str,
        to: &'static str,
        bytes: u64,
    },
    /// It has ended.
    Ended { outcome: Outcome },
    /// No byte of it can move any more.
    Quiet,
}

impl Trace {
    /// An empty one, whose time begins now.
    pub fn new() -> Self {
        Self(Arc::new(Steps {
            start: Instant::now(),
            kept: Mutex::default(),
        }))
    }

    /// What has happened so far, in order: up to 1024 steps.
    pub fn steps(&self) -> Vec<TraceStep> {
        self.0.kept.lock().steps.clone()
    }

    /// Steps that happened beyond those that are kept.
    pub fn missed(&self) -> u64 {
        self.0.kept.lock().missed
    }

    /// It takes no lock under which others are taken.
    #[cold]
    pub(crate) fn note(&self, event: TraceEvent) {
        let mut kept = self.0.kept.lock();
        if kept.steps.len() >= MOST {
            kept.missed += 1;
            return;
        }
        // Under the lock, so that times are in order.
        let at = self.0.start.elapsed();
        kept.steps.push(TraceStep { at, event });
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}

impl TraceEvent {
    /// One word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Submitted { .. } => "submitted",
            Self::Ranked { .. } => "ranked",
            Self::Waits => "waits",
            Self::LetGo { .. } => "let go",
            Self::Posted { .. } => "posted",
            Self::AttemptEnded { .. } => "attempt ended",
            Self::Refreshed { .. } => "refreshed",
            Self::Retried { .. } => "retried",
            Self::FailedOver { .. } => "failed over",
            Self::Ended { outcome } => match outcome {
                Outcome::Completed { .. } => "completed",
                Outcome::Failed(_) => "failed",
                Outcome::Cancelled(_) => "cancelled",
                Outcome::TimedOut(_) => "timed out",
            },
            Self::Quiet => "quiet",
        }
    }

    /// The link that it is about, if it is about one.
    pub fn link(&self) -> Option<&'static str> {
        match self {
            Self::Ranked { link, .. } | Self::Posted { link } | Self::Retried { link, .. } => {
                Some(link)
            }
            Self::FailedOver { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// The details, which may be none.
impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submitted { segment, op, bytes } => {
                write!(f, "a {op} of {bytes} bytes, segment {segment}")
            }
            Self::Ranked { ranking, .. } => write!(f, "{ranking}"),
            Self::LetGo { waited } => write!(f, "after {waited:.1?}"),
            Self::AttemptEnded { why } => outcome(f, why),
            Self::Refreshed { failure: None } => f.write_str("what is known of the peer"),
            Self::Refreshed { failure: Some(why) } => f.write_str(why),
            Self::Retried { bytes, .. } => write!(f, "{bytes} bytes are left"),
            Self::FailedOver { from, bytes, .. } => {
                write!(f, "from {from}, {bytes} bytes are left")
            }
            Self::Ended { outcome: end } => outcome(f, end),
            Self::Waits | Self::Posted { .. } | Self::Quiet => Ok(()),
        }
    }
}

fn outcome(f: &mut fmt::Formatter<'_>, outcome: &Outcome) -> fmt::Result {
    match (outcome, outcome.error()) {
        (_, Some(error)) => write!(f, "{error}"),
        (Outcome::Completed { bytes }, _) => write!(f, "{bytes} bytes"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_keeps_so_many_steps_and_counts_the_others() {
        let trace = Trace::new();
        for _ in 0..MOST + 7 {
            trace.clone().note(TraceEvent::Quiet);
        }
        assert_eq!((trace.steps().len(), trace.missed()), (MOST, 7));
        assert!(trace.steps().is_sorted_by_key(|step| step.at));
    }
}
