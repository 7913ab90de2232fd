//! Peers that could not be reached: they are tried last, and until a while has passed not at all.

use std::{sync::Arc, time::Duration};

use rustc_hash::FxHashMap;

use mooncake_proto::{Applied, Retry};

use super::{SegmentId, SegmentInfo, StorageInfo, TransferFault};
use crate::time::Time;

/// How long a peer rests after its first failure; twice as long after each that follows.
const FIRST_REST: Duration = Duration::from_millis(250);
/// It never rests for longer.
const LONGEST_REST: Duration = Duration::from_secs(8);
/// How long one attempt has to show whether a peer is back, before there is another.
const TRIAL: Duration = Duration::from_secs(1);
/// A transfer that nobody answered for so long speaks against its peer; a shorter one may have had
/// too little time.
const PATIENCE: Duration = Duration::from_millis(100);
/// An end that comes so long after its deadline speaks of our own stall.
const STALL: Duration = Duration::from_millis(500);
/// More than these are not remembered.
const REMEMBERED: usize = 1024;
/// What the master takes from us.
const AVOIDED: usize = 64;

#[derive(Debug)]
struct Bad {
    rest: Duration,
    until: Time,
    /// Somebody tries it at the moment.
    on_trial: bool,
    segment: Option<SegmentId>,
}

/// When a transfer began, and when it had to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) began: Time,
    pub(super) ends: Time,
}

impl Attempt {
    /// Whether its failure shows that the peer cannot be reached.
    fn accuses(self, now: Time, failed: &TransferFault) -> bool {
        let asked_long = self.began + PATIENCE <= now;
        let in_time = now < self.ends;
        failed.retry == Retry::Elsewhere
            && (asked_long || (in_time && failed.applied == Applied::Nothing))
            && now < self.ends + STALL
    }
}

/// A process that bytes are read from, or written to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    incarnation: u64,
    /// `None`: it was asked for what is on its disk.
    segment: Option<SegmentId>,
}

impl From<&SegmentInfo> for Owner {
    fn from(segment: &SegmentInfo) -> Self {
        Self {
            incarnation: segment.owner_incarnation,
            segment: Some(segment.id),
        }
    }
}

impl From<&Arc<SegmentInfo>> for Owner {
    fn from(segment: &Arc<SegmentInfo>) -> Self {
        Self::from(&**segment)
    }
}

impl From<&StorageInfo> for Owner {
    fn from(storage: &StorageInfo) -> Self {
        Self {
            incarnation: storage.holder_incarnation,
            segment: None,
        }
    }
}

impl Owner {
    /// A process whose disk is slow answers for its memory all the same.
    const fn part(self) -> (u64, bool) {
        (self.incarnation, self.segment.is_some())
    }
}

/// By the incarnation of the owner, and whether its memory is meant or its disk: a peer that started anew is a new peer.
#[derive(Debug, Default)]
pub(super) struct Peers {
    bad: FxHashMap<(u64, bool), Bad>,
}

impl Peers {
    /// Notes a transfer that failed, if that speaks against the segment's owner.
    pub(super) fn failed(
        &mut self,
        now: Time,
        owner: impl Into<Owner>,
        attempt: Attempt,
        failed: &TransferFault,
    ) {
        if attempt.accuses(now, failed) {
            self.unreachable(now, owner);
        }
    }

    fn unreachable(&mut self, now: Time, owner: impl Into<Owner>) {
        let owner = owner.into();
        if self.bad.len() >= REMEMBERED {
            self.bad.retain(|_, bad| now < bad.until + LONGEST_REST);
            if self.bad.len() >= REMEMBERED {
                return;
            }
        }
        let bad = self.bad.entry(owner.part()).or_insert_with(|| Bad {
            rest: Duration::ZERO,
            until: Time(0),
            on_trial: false,
            segment: owner.segment,
        });
        // Of many transfers that fail together one counts.
        if bad.until <= now || bad.on_trial {
            bad.rest = (2 * bad.rest).clamp(FIRST_REST, LONGEST_REST);
        }
        bad.until = now + bad.rest;
        bad.on_trial = false;
        bad.segment = owner.segment.or(bad.segment);
    }

    pub(super) fn succeeded(&mut self, owner: impl Into<Owner>) {
        if !self.bad.is_empty() {
            self.bad.remove(&owner.into().part());
        }
    }

    /// It failed, and has not succeeded since.
    pub(super) fn is_bad(&self, owner: impl Into<Owner>) -> bool {
        self.bad.contains_key(&owner.into().part())
    }

    /// Whether the owner may be tried now, or how long it rests. A trial keeps others away.
    pub(super) fn admit(&mut self, now: Time, owner: impl Into<Owner>) -> Result<(), Duration> {
        let Some(bad) = self.bad.get_mut(&owner.into().part()) else {
            return Ok(());
        };
        if now < bad.until {
            return Err(bad.until.since(now));
        }
        bad.until = now + TRIAL;
        bad.on_trial = true;
        Ok(())
    }

    /// The segments whose owners rest.
    pub(super) fn avoided(&self, now: Time) -> impl Iterator<Item = SegmentId> {
        let resting = self.bad.values().filter(move |bad| now < bad.until);
        resting.filter_map(|bad| bad.segment).take(AVOIDED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(owner: u64) -> SegmentInfo {
        SegmentInfo {
            id: SegmentId([owner as u8; 16]),
            name: "node".to_owned(),
            owner_incarnation: owner,
            registration: 1,
            generation: 1,
            length: 1,
        }
    }

    #[test]
    fn law_10_our_own_stall_and_a_short_deadline_are_not_the_peers_fault() {
        let attempt = Attempt {
            began: Time(1_000_000),
            ends: Time(3_000_000),
        };
        let failed = |retry, applied| TransferFault {
            retry,
            applied,
            quiescent: true,
            peer: String::new(),
            message: String::new(),
        };
        let refused = failed(Retry::Elsewhere, Applied::Nothing);
        let silent = failed(Retry::Elsewhere, Applied::Unknown);
        assert!(
            attempt.accuses(Time(1_000_100), &refused),
            "refused at once"
        );
        assert!(
            attempt.accuses(Time(3_000_000), &silent),
            "silent all the time"
        );
        assert!(!attempt.accuses(Time(1_000_100), &silent));
        assert!(!attempt.accuses(Time(9_000_000), &silent), "we slept");
        assert!(!attempt.accuses(Time(9_000_000), &refused), "we slept");
        let stale = failed(Retry::AfterRefresh, Applied::Nothing);
        assert!(!attempt.accuses(Time(2_000_000), &stale));
        let short = Attempt {
            ends: Time(1_001_000),
            ..attempt
        };
        assert!(!short.accuses(Time(1_001_000), &refused), "never sent");
    }

    #[test]
    fn the_memory_and_the_disk_of_one_process_are_judged_apart() {
        let (mut peers, memory) = (Peers::default(), Owner::from(&segment(1)));
        let disk = Owner {
            segment: None,
            ..memory
        };
        peers.unreachable(Time(1), disk);
        assert!(peers.is_bad(disk) && !peers.is_bad(memory));
        assert_eq!(peers.admit(Time(1), memory), Ok(()));
        assert_eq!(peers.avoided(Time(1)).count(), 0, "puts may go there");
        peers.succeeded(memory);
        assert!(peers.is_bad(disk));
        peers.succeeded(disk);
        assert!(!peers.is_bad(disk));
    }

    #[test]
    fn a_bad_peer_rests_longer_after_each_failed_trial_and_is_good_after_a_success() {
        let (mut peers, peer) = (Peers::default(), segment(1));
        let mut now = Time(1);
        assert_eq!(peers.admit(now, &peer), Ok(()));
        for rest in [250, 500, 1000, 2000, 4000, 8000, 8000] {
            let rest = Duration::from_millis(rest);
            for _ in 0..3 {
                peers.unreachable(now, &peer);
            }
            assert_eq!(peers.admit(now, &peer), Err(rest));
            assert_eq!(peers.avoided(now).collect::<Vec<_>>(), [peer.id]);
            now = now + rest;
            assert_eq!(peers.admit(now, &peer), Ok(()), "one may try");
            assert_eq!(peers.admit(now, &peer), Err(TRIAL), "and one only");
        }
        assert_eq!(peers.admit(now, &segment(2)), Ok(()));
        peers.succeeded(&peer);
        assert_eq!(peers.admit(now, &peer), Ok(()));
        assert_eq!(peers.admit(now, &peer), Ok(()));
    }
}
