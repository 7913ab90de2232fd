//! Numbers of links to peers, for each of a bounded number of peers.

use std::{
    array,
    collections::hash_map::Entry,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{LinkMetrics, histogram::LiveHistogram};
use crate::{
    stripes::Stripes,
    transport::{Op, Outcome},
};

/// So many links to peers have numbers of their own; the further peers of a link share some.
const OWN: usize = 1024;
/// An engine has no more links than these.
const LINKS: usize = 64;
/// Peers choose their names, of which we keep so many bytes.
const LONGEST_NAME: usize = 128;

/// All meters of an engine.
#[derive(Debug)]
pub(crate) struct Meters {
    /// Those of named peers first, then one for each link.
    meters: Box<[OnceLock<Arc<Meter>>]>,
    names: Mutex<FxHashMap<(Box<str>, usize), MeterId>>,
}

/// A meter's place. Small, since every task has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MeterId(u16);

impl MeterId {
    /// Of what is not counted.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) const NONE: Self = Self(u16::MAX);
}

/// What went over one link to one peer.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// By direction; each thread has its own.
    ends: Stripes<[Ends; 2]>,
    /// Rare enough for all threads.
    rest: [Rest; 2],
}

/// How tasks of one direction ended.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Ends {
    completed: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    timed_out: AtomicU64,
}

#[derive(Debug, Default)]
struct Rest {
    /// Bytes that arrived before their link failed and another one went on.
    parted: AtomicU64,
    retries: AtomicU64,
    latency: LiveHistogram,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            meters: (0..OWN + LINKS).map(|_| OnceLock::new()).collect(),
            names: Mutex::default(),
        }
    }
}

impl Meters {
    /// That of the link at this place to the peer of this name.
    pub(crate) fn of(&self, peer: &str, link: usize) -> (MeterId, Arc<Meter>) {
        let name = peer.get(..floor(peer, LONGEST_NAME)).unwrap_or_default();
        let mut names = self.names.lock();
        let taken = names.len();
        let id = match names.entry((name.into(), link)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) if taken < OWN => *new.insert(MeterId(taken as u16)),
            Entry::Vacant(_) => Self::shared(link),
        };
        let meter = self.meters[id.0 as usize].get_or_init(Arc::default);
        (id, Arc::clone(meter))
    }

    /// A task ended for good, after `bytes` of its last attempt.
    #[inline]
    pub(crate) fn ended(&self, id: MeterId, op: Op, end: &Outcome, bytes: u64) {
        let Some(meter) = self.get(id) else {
            return;
        };
        let ends = &meter.ends.own()[index(op)];
        if end.is_completed() {
            ends.bytes.fetch_add(bytes, Ordering::Relaxed);
            ends.completed.fetch_add(1, Ordering::Relaxed);
        } else {
            ends.other(end);
        }
    }

    /// So many bytes of a task had arrived when another attempt took over the rest.
    pub(crate) fn parted(&self, id: MeterId, op: Op, bytes: u64) {
        if let Some(meter) = self.get(id) {
            let rest = &meter.rest[index(op)];
            rest.parted.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// A task was posted once more over the same link.
    pub(crate) fn retried(&self, id: MeterId, op: Op) {
        if let Some(meter) = self.get(id) {
            let rest = &meter.rest[index(op)];
            rest.retries.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What all of them say; `link` tells the name of the link at a place. Directions in which nothing
    /// went are left out.
    pub(crate) fn read(&self, link: impl Fn(usize) -> &'static str) -> Vec<LinkMetrics> {
        let named: Vec<_> = {
            let names = self.names.lock();
            let named = names
                .iter()
                .map(|((peer, link), id)| (Some(peer.clone()), *link, *id));
            named.collect()
        };
        let others = (0..LINKS).map(|link| (None, link, Self::shared(link)));
        let mut all: Vec<LinkMetrics> = named
            .into_iter()
            .chain(others)
            .filter_map(|(peer, place, id)| Some((peer, place, self.get(id)?)))
            .flat_map(|(peer, place, meter)| {
                [Op::Read, Op::Write].map(|op| meter.read(op, link(place), peer.clone()))
            })
            .filter(|metrics| !metrics.is_empty())
            .collect();
        all.sort_by(|a, b| {
            let key = |it: &LinkMetrics| (it.transport, it.peer.is_none(), it.op == Op::Write);
            key(a).cmp(&key(b)).then_with(|| a.peer.cmp(&b.peer))
        });
        all
    }

    /// Of the further peers of a link.
    fn shared(link: usize) -> MeterId {
        MeterId((OWN + link.min(LINKS - 1)) as u16)
    }

    #[inline]
    fn get(&self, id: MeterId) -> Option<&Meter> {
        Some(self.meters.get(id.0 as usize)?.get()?)
    }
}

impl Ends {
    /// It did not complete.
    #[cold]
    fn other(&self, end: &Outcome) {
        let ended = match end {
            Outcome::Completed { .. } => &self.completed,
            Outcome::Failed(_) => &self.failed,
            Outcome::Cancelled(_) => &self.cancelled,
            Outcome::TimedOut(_) => &self.timed_out,
        };
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl Meter {
    /// One task of several took so long.
    pub(crate) fn took(&self, op: Op, time: Duration) {
        self.rest[index(op)].latency.add(time);
    }

    fn read(&self, op: Op, transport: &'static str, peer: Option<Box<str>>) -> LinkMetrics {
        let rest = &self.rest[index(op)];
        let stripes = || self.ends.all().map(|ends| &ends[index(op)]);
        let mut sums = [0; 5];
        for ends in stripes() {
            let all: [&AtomicU64; 5] = [
                &ends.completed,
                &ends.bytes,
                &ends.failed,
                &ends.cancelled,
                &ends.timed_out,
            ];
            sums = array::from_fn(|place| sums[place] + all[place].load(Ordering::Relaxed));
        }
        let [completed, bytes, failed, cancelled, timed_out] = sums;
        LinkMetrics {
            transport,
            peer,
            op,
            completed,
            bytes: bytes + rest.parted.load(Ordering::Relaxed),
            failed,
            cancelled,
            timed_out,
            retries: rest.retries.load(Ordering::Relaxed),
            latency: rest.latency.read(),
        }
    }
}

fn index(op: Op) -> usize {
    usize::from(op == Op::Write)
}

/// The last place up to `most` at which `text` may be cut.
fn floor(text: &str, most: usize) -> usize {
    let most = most.min(text.len());
    let mut places = (0..=most).rev();
    places
        .find(|place| text.is_char_boundary(*place))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(meters: &Meters, peer: &str, link: usize, bytes: u64) {
        let (id, _) = meters.of(peer, link);
        meters.ended(id, Op::Read, &Outcome::Completed { bytes }, bytes);
    }

    #[test]
    fn peers_beyond_the_most_share_their_links_numbers_and_nothing_grows() {
        let meters = Meters::default();
        let names = ["a", "b"];
        let peers = 10 * OWN;
        for peer in 0..peers {
            for link in 0..2 {
                completed(&meters, &format!("peer {peer}"), link, 10);
            }
        }
        let all = meters.read(|link| names[link]);
        assert_eq!(all.len(), OWN + 2);
        assert_eq!(meters.names.lock().len(), OWN);
        for name in names {
            let of_link = || all.iter().filter(|it| it.transport == name);
            let tasks: u64 = of_link().map(|it| it.completed).sum();
            let bytes: u64 = of_link().map(|it| it.bytes).sum();
            assert_eq!((tasks, bytes), (peers as u64, 10 * peers as u64));
            let shared = of_link().filter(|it| it.peer.is_none()).count();
            assert_eq!(shared, 1);
        }
    }

    #[test]
    fn names_of_peers_are_cut_between_characters() {
        let meters = Meters::default();
        completed(&meters, &"ä".repeat(1 << 20), 0, 1);
        completed(&meters, &format!("x{}", "ä".repeat(1 << 20)), 0, 1);
        let all = meters.read(|_| "a");
        let lengths: Vec<_> = all
            .iter()
            .flat_map(|it| &it.peer)
            .map(|it| it.len())
            .collect();
        assert_eq!(lengths, [LONGEST_NAME - 1, LONGEST_NAME]);
    }

    #[test]
    fn threads_that_count_at_once_lose_nothing() {
        let meters = Meters::default();
        let (id, _) = meters.of("a", 0);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        meters.ended(id, Op::Write, &Outcome::Completed { bytes: 3 }, 3);
                    }
                });
            }
        });
        let all = meters.read(|_| "link");
        assert_eq!(all.len(), 1, "no direction in which nothing went");
        assert_eq!((all[0].completed, all[0].bytes), (16_000, 48_000));
    }
}
