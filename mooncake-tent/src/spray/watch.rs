//! Which slices of a device are overdue.

use std::{collections::VecDeque, num::NonZeroU64, time::Duration};

use crate::Time;

/// How long a device may take for a slice that it has begun with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For a slice of any length.
    pub base: Duration,
    /// And for its bytes, at so many in a second: a device that is slower counts as dead.
    pub slowest: NonZeroU64,
}

impl Default for Patience {
    /// 10 ms, and 100 MB/s.
    fn default() -> Self {
        Self {
            base: Duration::from_millis(10),
            slowest: NonZeroU64::new(100_000_000).expect("it is not zero"),
        }
    }
}

impl Patience {
    /// For a slice of `bytes`.
    pub fn with(&self, bytes: u64) -> Duration {
        let seconds = bytes as f64 / self.slowest.get() as f64;
        let moving = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        self.base.saturating_add(moving)
    }
}

/// Watches the slices that are posted to one device, which takes them one after the other.
///
/// A slice may take its time from when the device could begin with it: when it was posted, or when the
/// one before it was done. So a long queue makes nothing overdue while it moves, a device that is silent
/// makes all of it overdue together, and a slice that is passed by later ones is overdue in its time.
///
/// Together with a [`TimerWheel`](crate::TimerWheel): set a timer for what [`post`](Self::post) says,
/// [`look`](Self::look) when it is due, and set it again for what that says.
#[derive(Clone, Debug)]
pub struct Watch<K> {
    patience: Patience,
    /// In the order in which they were posted.
    posted: VecDeque<Posted<K>>,
    /// When the first of them could begin, as far as that is due to those before it.
    begun: Time,
}

#[derive(Clone, Copy, Debug)]
struct Posted<K> {
    key: K,
    at: Time,
    bytes: u64,
}

/// What became of a slice, as far as a [`Watch`] can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// It has ended, or was never posted.
    Ended,
    /// It may still come; this is when to look again.
    NotBefore(Time),
    /// It should have come.
    Now,
}

impl<K: Copy + PartialEq> Watch<K> {
    /// Nothing is posted.
    pub fn new(patience: Patience) -> Self {
        Self {
            patience,
            posted: VecDeque::new(),
            begun: Time::ZERO,
        }
    }

    /// A slice of `bytes` is posted; when to look for it.
    pub fn post(&mut self, now: Time, key: K, bytes: u64) -> Time {
        let at = now;
        self.posted.push_back(Posted { key, at, bytes });
        now + self.patience.with(bytes)
    }

    /// A slice has ended; `moved`: its bytes were moved, so the device goes on to the next. When it was
    /// posted, if it was.
    pub fn end(&mut self, now: Time, key: K, moved: bool) -> Option<Time> {
        // Nearly always the first.
        let place = self.posted.iter().position(|posted| posted.key == key)?;
        if place == 0 && moved {
            self.begun = self.begun.max(now);
        }
        self.posted.remove(place).map(|posted| posted.at)
    }

    /// Whether a slice should have come by now.
    pub fn look(&self, now: Time, key: K) -> Overdue {
        let Some(slice) = self.posted.iter().find(|posted| posted.key == key) else {
            return Overdue::Ended;
        };
        // It can not have begun while the first had not ended.
        let first = self.posted.front().map_or(0, |first| first.bytes);
        let patience = self.patience.with(slice.bytes.max(first));
        let end = slice.at.max(self.begun) + patience;
        if now < end {
            Overdue::NotBefore(end)
        } else {
            Overdue::Now
        }
    }

    /// How many are posted.
    pub fn len(&self) -> usize {
        self.posted.len()
    }

    /// None is posted.
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 µs, and a microsecond for each byte.
    fn watch() -> Watch<u32> {
        Watch::new(Patience {
            base: Duration::from_micros(100),
            slowest: NonZeroU64::new(1_000_000).unwrap(),
        })
    }

    #[test]
    fn a_long_queue_that_moves_makes_nothing_overdue() {
        let mut watch = watch();
        for key in 0..100 {
            assert_eq!(watch.post(Time(0), key, 50), Time(150));
        }
        for key in 0..100 {
            // Each takes nearly as long as it may.
            let now = Time(149 * (u64::from(key) + 1));
            assert!(
                matches!(watch.look(now, key), Overdue::NotBefore(_)),
                "{key}"
            );
            assert_eq!(watch.end(now, key, true), Some(Time(0)));
            assert_eq!(watch.look(now, key), Overdue::Ended);
        }
        assert!(watch.is_empty());
    }

    #[test]
    fn all_that_a_silent_device_has_is_overdue_together() {
        let mut watch = watch();
        (0..10).for_each(|key| {
            watch.post(Time(0), key, 50);
        });
        watch.end(Time(100), 0, true);
        for key in 1..10 {
            assert_eq!(watch.look(Time(249), key), Overdue::NotBefore(Time(250)));
            assert_eq!(watch.look(Time(250), key), Overdue::Now);
        }
        // To give one up is no sign of life.
        watch.end(Time(250), 1, false);
        assert_eq!(watch.look(Time(250), 2), Overdue::Now);
    }

    #[test]
    fn a_slice_that_later_ones_pass_is_overdue_in_its_time() {
        let mut watch = watch();
        watch.post(Time(0), 0, 50);
        for key in 1..10 {
            let now = Time(20 * u64::from(key));
            watch.post(now, key, 1);
            watch.end(now + Duration::from_micros(10), key, true);
        }
        assert_eq!(watch.look(Time(150), 0), Overdue::Now);
    }

    #[test]
    fn a_short_slice_behind_a_long_one_waits_for_it() {
        let mut watch = watch();
        watch.post(Time(0), 0, 1_000);
        watch.post(Time(0), 1, 1);
        assert_eq!(watch.look(Time(500), 1), Overdue::NotBefore(Time(1100)));
        watch.end(Time(1000), 0, true);
        assert_eq!(watch.look(Time(1000), 1), Overdue::NotBefore(Time(1101)));
    }
}
