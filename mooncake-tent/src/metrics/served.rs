//! What a link does for peers in the memory of this process.

use std::sync::atomic::{AtomicU64, Ordering};

use super::ServedMetrics;
use crate::{stripes::Stripes, transport::Op};

/// Counts what one link serves to peers. Links count by [`done`](Self::done) and
/// [`refused`](Self::refused), where software of the target has a part in it.
#[derive(Debug, Default)]
pub struct Served(Stripes<[Counts; 2]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
}

impl Served {
    /// A peer has read `bytes` from here, or written them here and they are at their place.
    pub fn done(&self, op: Op, bytes: u64) {
        let counts = self.own(op);
        counts.requests.fetch_add(1, Ordering::Relaxed);
        counts.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A peer's request was refused, or did not come to its end.
    pub fn refused(&self, op: Op) {
        self.own(op).refused.fetch_add(1, Ordering::Relaxed);
    }

    fn own(&self, op: Op) -> &Counts {
        &self.0.own()[usize::from(op == Op::Write)]
    }

    /// By direction, where there was anything.
    pub(crate) fn read(&self, transport: &'static str) -> impl Iterator<Item = ServedMetrics> {
        let read = |op: Op| {
            let mut sums = ServedMetrics {
                transport,
                op,
                requests: 0,
                bytes: 0,
                refused: 0,
            };
            for counts in self
                .0
                .all()
                .map(|counts| &counts[usize::from(op == Op::Write)])
            {
                sums.requests += counts.requests.load(Ordering::Relaxed);
                sums.bytes += counts.bytes.load(Ordering::Relaxed);
                sums.refused += counts.refused.load(Ordering::Relaxed);
            }
            sums
        };
        let both = [Op::Read, Op::Write].map(read);
        both.into_iter().filter(|it| it.requests + it.refused > 0)
    }
}
