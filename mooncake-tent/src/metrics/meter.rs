//! Numbers of links to peers, for each of a bounded number of peers.

use std::{
    array,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

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
/// A peer that nothing went to for so long may have its numbers taken, if others need them.
const LONG: Duration = Duration::from_secs(600);

/// All meters of an engine.
#[derive(Debug)]
pub(crate) struct Meters {
    /// Those of named peers first, then one for each link.
    meters: Box<[OnceLock<Arc<Meter>>]>,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    names: FxHashMap<(Box<str>, usize), Named>,
    /// Those that were given up.
    free: Vec<MeterId>,
    /// When they were last looked through for idle ones.
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Named {
    id: MeterId,
    /// What had ended there when that was first seen, and when.
    ended: u64,
    since: Option<Instant>,
}

/// A meter's place, and whose turn it is there. Small, since every task has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MeterId {
    place: u16,
    turn: u16,
}

impl MeterId {
    /// Of what is not counted.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) const NONE: Self = Self {
        place: u16::MAX,
        turn: 0,
    };
}

/// What went over one link to one peer.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Whose turn it is: what others say who had it before is counted for the others of their link.
    turn: AtomicU64,
    /// Theirs.
    link: AtomicUsize,
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
            book: Mutex::default(),
        }
    }
}

impl Meters {
    /// That of the link at this place to the peer of this name.
    pub(crate) fn of(&self, peer: &str, link: usize) -> (MeterId, Arc<Meter>) {
        let name = peer.get(..floor(peer, LONGEST_NAME)).unwrap_or_default();
        let mut book = self.book.lock();
        let key = (Box::from(name), link);
        let id = match book.names.get(&key) {
            Some(known) => known.id,
            None => match book.room() {
                Some(id) => {
                    let (ended, since) = (0, None);
                    book.names.insert(key, Named { id, ended, since });
                    let meter = self.at(id);
                    meter.link.store(link, Ordering::Relaxed);
                    id
                }
                None => Self::shared(link),
            },
        };
        (id, Arc::clone(self.at(id)))
    }

    /// Those that nothing was counted on for long by now, if others may need them. It looks through all
    /// of them, but not often.
    pub(crate) fn idle(&self, now: Instant) -> FxHashSet<MeterId> {
        let mut book = self.book.lock();
        let lately = |looked| now.saturating_duration_since(looked) < LONG / 8;
        if book.names.len() < OWN || book.looked.is_some_and(lately) {
            return FxHashSet::default();
        }
        book.looked = Some(now);
        let mut idle = FxHashSet::default();
        for named in book.names.values_mut() {
            let ended = self.get(named.id).map_or(0, Meter::ended);
            let since = named.since.filter(|_| named.ended == ended);
            let since = *named.since.insert(since.unwrap_or(now));
            named.ended = ended;
            if now.saturating_duration_since(since) >= LONG {
                idle.insert(named.id);
            }
        }
        idle
    }

    /// Takes the numbers of those among `idle` that nobody has in hand any more. What they say is said
    /// by the others of their links from now on.
    pub(crate) fn give_up(&self, idle: &FxHashSet<MeterId>) {
        let mut book = self.book.lock();
        let Book { names, free, .. } = &mut *book;
        names.retain(|(_, link), named| {
            let id = named.id;
            let meter = self.at(id);
            if !idle.contains(&id) || Arc::strong_count(meter) > 1 {
                return true;
            }
            let turn = id.turn.wrapping_add(1);
            meter.turn.store(turn.into(), Ordering::Relaxed);
            self.at(Self::shared(*link)).takes_over(meter);
            free.push(MeterId { turn, ..id });
            false
        });
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
        // Held, so that nothing is counted twice or not at all that is just taken over.
        let book = self.book.lock();
        let named = book.names.iter();
        let named = named.map(|((peer, link), named)| (Some(peer.clone()), *link, named.id));
        let others = (0..LINKS).map(|link| (None, link, Self::shared(link)));
        let mut all: Vec<LinkMetrics> = named
            .chain(others)
            .filter_map(|(peer, place, id)| Some((peer, place, self.get(id)?)))
            .flat_map(|(peer, place, meter)| {
                [Op::Read, Op::Write].map(|op| meter.read(op, link(place), peer.clone()))
            })
            .filter(|metrics| !metrics.is_empty())
            .collect();
        drop(book);
        all.sort_by(|a, b| {
            let key = |it: &LinkMetrics| (it.transport, it.peer.is_none(), it.op == Op::Write);
            key(a).cmp(&key(b)).then_with(|| a.peer.cmp(&b.peer))
        });
        all
    }

    /// Of the further peers of a link.
    fn shared(link: usize) -> MeterId {
        let place = (OWN + link.min(LINKS - 1)) as u16;
        MeterId { place, turn: 0 }
    }

    fn at(&self, id: MeterId) -> &Arc<Meter> {
        self.meters[usize::from(id.place)].get_or_init(Arc::default)
    }

    #[inline]
    fn get(&self, id: MeterId) -> Option<&Meter> {
        let meter = self.meters.get(usize::from(id.place))?.get()?;
        if meter.turn.load(Ordering::Relaxed) != u64::from(id.turn) {
            return Some(self.instead(meter));
        }
        Some(meter)
    }

    /// Where that is counted whose own `meter` is another's by now.
    #[cold]
    fn instead(&self, meter: &Meter) -> &Meter {
        self.at(Self::shared(meter.link.load(Ordering::Relaxed)))
    }
}

impl Book {
    /// A place for one more; `None`: there is none.
    fn room(&mut self) -> Option<MeterId> {
        self.free.pop().or_else(|| {
            let place = self.names.len();
            (place < OWN).then_some(MeterId {
                place: place as u16,
                turn: 0,
            })
        })
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

    /// What has ended or was tried again, in all.
    fn ended(&self) -> u64 {
        let all = [Op::Read, Op::Write].map(|op| {
            let it = self.read(op, "", None);
            it.completed + it.failed + it.cancelled + it.timed_out + it.retries + it.bytes
        });
        all[0].wrapping_add(all[1])
    }

    /// Makes all of another's numbers its own, and leaves nothing there.
    fn takes_over(&self, other: &Self) {
        let take = |to: &AtomicU64, from: &AtomicU64| {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        };
        for (to, from) in self.ends.all().zip(other.ends.all()) {
            for (to, from) in to.iter().zip(from) {
                take(&to.completed, &from.completed);
                take(&to.bytes, &from.bytes);
                take(&to.failed, &from.failed);
                take(&to.cancelled, &from.cancelled);
                take(&to.timed_out, &from.timed_out);
            }
        }
        for (to, from) in self.rest.iter().zip(&other.rest) {
            take(&to.parted, &from.parted);
            take(&to.retries, &from.retries);
            to.latency.takes_over(&from.latency);
        }
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
        assert_eq!(meters.book.lock().names.len(), OWN);
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

    /// By link: tasks and bytes.
    fn sums(meters: &Meters) -> [(u64, u64); 2] {
        let all = meters.read(|link| ["a", "b"][link]);
        ["a", "b"].map(|name| {
            let of_link = all.iter().filter(|it| it.transport == name);
            of_link.fold((0, 0), |(tasks, bytes), it| {
                (tasks + it.completed + it.failed, bytes + it.bytes)
            })
        })
    }

    #[test]
    fn who_left_long_ago_makes_room_and_no_sum_goes_back() {
        let meters = Meters::default();
        let start = Instant::now();
        let later = |lengths: u32| start + LONG * lengths;
        assert!(meters.idle(start).is_empty());
        for peer in 0..OWN {
            completed(&meters, &format!("peer {peer}"), peer % 2, 10);
        }
        let held = meters.of("peer 0", 0);
        let before = sums(&meters);
        assert!(meters.idle(start).is_empty(), "nobody knows for how long");
        assert!(meters.idle(later(1)).len() == OWN);
        assert!(
            meters.idle(later(1)).is_empty(),
            "it does not look all the time"
        );
        completed(&meters, "peer 1", 1, 10);
        let idle = meters.idle(later(2));
        assert_eq!(idle.len(), OWN - 1, "one was seen to be busy");
        let (old, _) = meters.of("peer 2", 0);
        meters.give_up(&idle);

        let shared = |name: &str, link| meters.of(name, link).0.place as usize >= OWN;
        assert!(!shared("peer 0", 0) && !shared("peer 1", 1));
        assert_eq!(meters.book.lock().names.len(), 2);
        let after = sums(&meters);
        assert_eq!(after, [before[0], (before[1].0 + 1, before[1].1 + 10)]);
        for peer in 0..OWN - 2 {
            assert!(!shared(&format!("new {peer}"), 0), "{peer}");
        }
        assert!(shared("one more", 0));
        assert_eq!(sums(&meters), after, "the new ones begin with nothing");

        // What was on its way to one of them is not counted for who came after it.
        let end = Outcome::Completed { bytes: 5 };
        meters.ended(old, Op::Read, &end, 5);
        let all = meters.read(|_| "a");
        assert!(all.iter().all(|it| it.peer.is_none() || it.bytes != 5));
        assert_eq!(sums(&meters)[0].1, after[0].1 + 5);
        drop(held);
    }

    #[test]
    fn sums_do_not_go_back_while_meters_are_given_up() {
        let meters = Meters::default();
        let start = Instant::now();
        let counted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let counts = scope.spawn(|| {
                for round in 0..20 {
                    for peer in 0..OWN {
                        completed(&meters, &format!("{round} {peer}"), 0, 1);
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                    let at = |eighths: u32| start + LONG * (4 * round) + LONG / 8 * eighths;
                    meters.idle(at(0));
                    meters.give_up(&meters.idle(at(9)));
                }
            });
            let mut last = 0;
            while !counts.is_finished() {
                let before = counted.load(Ordering::SeqCst);
                let (tasks, bytes) = sums(&meters)[0];
                assert!(tasks >= before.max(last), "{tasks} after {last}");
                assert!(bytes >= before);
                last = tasks;
            }
        });
        assert_eq!(sums(&meters)[0], (20 * OWN as u64, 20 * OWN as u64));
    }
}
