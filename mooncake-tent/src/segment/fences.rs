//! The fences of a segment, and what they have to prove.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::identity::PeerId;

/// So many former lives of an owner are fenced again, although they were before: who submits while a
/// fence is under way may have looked at the segment long ago.
const FORMER: usize = 16;

/// The fences of one segment, however often it is opened: what was submitted before one is not
/// posted after it.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    count: AtomicU64,
    /// Under which count somebody posts, and how many do.
    posting: Mutex<SmallVec<[(u64, usize); 2]>>,
    posted: Notify,
    /// The lives of the owner to which something may have been posted, the latest last.
    met: Mutex<Vec<PeerId>>,
}

impl Fences {
    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Who posts late has done so when this returns, or never will. `false`: somebody was still at it
    /// at `end`.
    pub(crate) async fn raise(&self, end: Instant) -> bool {
        let count = {
            let _posting = self.posting.lock();
            self.count.fetch_add(1, Ordering::AcqRel) + 1
        };
        loop {
            let posted = self.posted.notified();
            let is_late = |(seen, _): &(u64, usize)| *seen < count;
            if !self.posting.lock().iter().any(is_late) {
                return true;
            }
            if tokio::time::timeout_at(end.into(), posted).await.is_err() {
                return false;
            }
        }
    }

    /// Runs `post` unless there was a fence since `seen`; `false`: there was. Fences wait for it, though
    /// not on this thread, so `post` may do what it likes.
    pub(crate) fn unless_raised(&self, seen: u64, post: impl FnOnce()) -> bool {
        let posting = Posting::begin(self, seen);
        let valid = posting.is_some();
        if valid {
            post();
        }
        valid
    }

    /// The segment speaks of this life of its owner from now on.
    pub(crate) fn meet(&self, peer: PeerId) {
        let mut met = self.met.lock();
        if met.last() != Some(&peer) {
            met.retain(|other| *other != peer);
            met.push(peer);
        }
    }

    /// Whom a fence concerns that knows the owner as `known`, the latest first.
    pub(crate) fn met(&self, known: PeerId) -> Vec<PeerId> {
        let met = self.met.lock();
        let unmet = (!met.contains(&known)).then_some(known);
        unmet.into_iter().chain(met.iter().rev().copied()).collect()
    }

    /// Nothing that was posted to `peer` can land any more.
    pub(crate) fn proven(&self, peer: PeerId) {
        let mut met = self.met.lock();
        if met.len() > FORMER && met.last() != Some(&peer) {
            met.retain(|other| *other != peer);
        }
    }
}

/// Somebody posts.
struct Posting<'a> {
    fences: &'a Fences,
    seen: u64,
}

impl<'a> Posting<'a> {
    fn begin(fences: &'a Fences, seen: u64) -> Option<Self> {
        let mut posting = fences.posting.lock();
        if fences.count() != seen {
            return None;
        }
        match posting.iter_mut().find(|(under, _)| *under == seen) {
            Some((_, several)) => *several += 1,
            None => posting.push((seen, 1)),
        }
        drop(posting);
        Some(Self { fences, seen })
    }
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        let mut posting = self.fences.posting.lock();
        posting.retain(|(seen, several)| {
            *several -= usize::from(*seen == self.seen);
            *several > 0
        });
        drop(posting);
        self.fences.posted.notify_waiters();
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn life(raw: u64) -> PeerId {
        PeerId::from_u64(raw).unwrap()
    }

    #[tokio::test]
    async fn law_03_what_was_asked_before_a_fence_is_not_posted_after_it() {
        let fences = Fences::default();
        let seen = fences.count();
        let mut posted = 0;
        assert!(fences.unless_raised(seen, || posted += 1));
        assert!(fences.raise(late()).await);
        assert!(!fences.unless_raised(seen, || posted += 1));
        assert!(fences.unless_raised(fences.count(), || posted += 1));
        assert_eq!(posted, 2);
    }

    #[tokio::test]
    async fn law_09_a_fence_waits_for_who_posts_and_no_longer_than_it_may() {
        let fences = Fences::default();
        let (begun, has_begun) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        thread::scope(|threads| {
            let fences = &fences;
            threads.spawn(move || {
                let post = || {
                    begun.send(()).unwrap();
                    goes_on.recv().unwrap();
                };
                assert!(fences.unless_raised(0, post));
            });
            has_begun.recv().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .unwrap();
            // Not on this runtime, which is busy with the test.
            let raised = threads.spawn(move || {
                let early = runtime.block_on(fences.raise(soon()));
                // Whoever is woken while it posts, and fences, gives up in the end instead of hanging.
                let mut within = None;
                assert!(fences.unless_raised(fences.count(), || {
                    go_on.send(()).unwrap();
                    within = Some(runtime.block_on(fences.raise(soon())));
                }));
                let within = within.unwrap();
                (early, within, runtime.block_on(fences.raise(late())))
            });
            assert_eq!(raised.join().unwrap(), (false, false, true));
        });
        assert!(fences.posting.lock().is_empty());
    }

    #[test]
    fn law_03_a_fence_concerns_all_lives_that_the_owner_has_had() {
        let fences = Fences::default();
        for raw in [1, 1, 2, 3, 2] {
            fences.meet(life(raw));
        }
        assert_eq!(fences.met(life(2)), [2, 3, 1].map(life));
        assert_eq!(fences.met(life(9)), [9, 2, 3, 1].map(life));
        // Few are kept whatever was proven; of many, those that are not proven.
        fences.proven(life(1));
        assert_eq!(fences.met(life(2)).len(), 3);
        for raw in 10..100 {
            fences.meet(life(raw));
        }
        for raw in 2..100 {
            fences.proven(life(raw));
        }
        let met = fences.met(life(99));
        assert_eq!(met.len(), FORMER);
        assert!(met.contains(&life(1)) && met.contains(&life(99)));
    }
}
