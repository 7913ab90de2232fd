//! Timers in a hierarchical wheel: set and cancelled in constant time, due in order.

use std::{fmt, time::Duration};

use crate::Time;

/// Each level has a slot for each value of so many bits of a tick.
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// Enough for ticks of 64 bits: no deadline is too far away.
const LEVELS: usize = u64::BITS.div_ceil(BITS) as usize;
/// The list of timers whose tick has come.
const DUE: u16 = (LEVELS * SLOTS) as u16;
const LISTS: usize = DUE as usize + 1;
/// No entry.
const NONE: u32 = u32::MAX;

/// Many timers, most of which are cancelled before they are due, as time-outs of slices are.
///
/// Time is cut into ticks of one resolution. A timer is due at the first tick that does not begin
/// before its deadline, so it is never early, and late by less than a tick. Timers come out in the
/// order of their ticks, and those of one tick in the order in which they were set. One whose
/// deadline has passed already belongs to the tick that the wheel has reached.
///
/// Setting and cancelling take constant time; a timer is moved at most once for each level of the
/// wheel on its way out. Memory is used again: a wheel that has grown to its size allocates nothing.
///
/// ```
/// use mooncake_tent::{Time, TimerWheel};
/// use std::time::Duration;
///
/// let mut wheel = TimerWheel::new(Time(0), Duration::from_micros(10));
/// let first = wheel.insert(Time(40), "first");
/// wheel.insert(Time(95), "second");
/// assert_eq!(wheel.cancel(first), Some("first"));
/// assert_eq!(wheel.cancel(first), None);
/// assert_eq!(wheel.pop(Time(99)), None);
/// assert_eq!(wheel.next_due(), Some(Time(100)));
/// assert_eq!(wheel.pop(Time(100)), Some((Time(95), "second")));
/// ```
pub struct TimerWheel<T> {
    entries: Vec<Entry<T>>,
    lists: Box<[List; LISTS]>,
    /// For each level, which of its slots have timers.
    occupied: [u64; LEVELS],
    /// Entries that can be used again, linked by `next`.
    free: u32,
    len: usize,
    /// Microseconds.
    resolution: u64,
    /// All timers up to this tick are in the list of what is due.
    reached: u64,
}

/// Names a timer of one wheel; that of one which is gone matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerToken {
    slot: u32,
    generation: u32,
}

struct Entry<T> {
    /// `None`: the entry is free.
    timer: Option<(Time, T)>,
    tick: u64,
    generation: u32,
    list: u16,
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

impl<T> TimerWheel<T> {
    /// A wheel without timers that starts at `now`. Resolutions below a microsecond count as one.
    pub fn new(now: Time, resolution: Duration) -> Self {
        let resolution = u64::try_from(resolution.as_micros()).unwrap_or(u64::MAX);
        let resolution = resolution.max(1);
        Self {
            entries: Vec::new(),
            lists: Box::new([EMPTY; LISTS]),
            occupied: [0; LEVELS],
            free: NONE,
            len: 0,
            resolution,
            reached: now.0 / resolution,
        }
    }

    /// Sets a timer.
    ///
    /// # Panics
    ///
    /// There are 2³² − 1 of them already.
    pub fn insert(&mut self, deadline: Time, value: T) -> TimerToken {
        let slot = self.take_entry();
        let entry = &mut self.entries[slot as usize];
        entry.timer = Some((deadline, value));
        entry.tick = deadline.0.div_ceil(self.resolution);
        let generation = entry.generation;
        self.len += 1;
        self.place(slot);
        TimerToken { slot, generation }
    }

    /// Takes a timer back; `None` if it was due, taken back before, or is none of this wheel.
    pub fn cancel(&mut self, token: TimerToken) -> Option<T> {
        let entry = self.entries.get(token.slot as usize)?;
        if entry.generation != token.generation || entry.timer.is_none() {
            return None;
        }
        self.unlink(token.slot);
        self.release(token.slot).map(|(_, value)| value)
    }

    /// The next timer that is due at `now`, with its deadline; `None`: no more are.
    pub fn pop(&mut self, now: Time) -> Option<(Time, T)> {
        let now = now.0 / self.resolution;
        while self.lists[DUE as usize].first == NONE {
            match self.next_slot() {
                Some((list, start)) if start <= now => {
                    self.reached = start;
                    self.spread(list);
                }
                _ => {
                    self.reached = self.reached.max(now);
                    return None;
                }
            }
        }
        let slot = self.lists[DUE as usize].first;
        self.unlink(slot);
        self.release(slot)
    }

    /// When to look for due timers next: not after the first of them is due, and perhaps before.
    /// `None`: there is no timer.
    pub fn next_due(&self) -> Option<Time> {
        let tick = if self.lists[DUE as usize].first == NONE {
            self.next_slot()?.1
        } else {
            self.reached
        };
        Some(Time(tick.saturating_mul(self.resolution)))
    }

    /// How many timers there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// There is no timer.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first slot that has timers, and the tick at which it begins.
    fn next_slot(&self) -> Option<(u16, u64)> {
        // A level holds what lies beyond the slot of the level above that was reached: the lowest
        // that has any is first.
        let level = self.occupied.iter().position(|slots| *slots != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let shift = level as u32 * BITS;
        let above = (self.reached >> shift) & !(SLOTS as u64 - 1);
        let start = (above | u64::from(slot)) << shift;
        Some(((level * SLOTS) as u16 + slot as u16, start))
    }

    /// Moves the timers of a slot whose first tick was reached to where they belong now.
    fn spread(&mut self, list: u16) {
        let mut at = self.lists[list as usize].first;
        self.lists[list as usize] = EMPTY;
        self.occupied[list as usize / SLOTS] &= !(1 << (list as usize % SLOTS));
        while at != NONE {
            let next = self.entries[at as usize].next;
            self.place(at);
            at = next;
        }
    }

    /// Appends an entry to the list of its tick.
    fn place(&mut self, slot: u32) {
        let tick = self.entries[slot as usize].tick;
        let list = if tick <= self.reached {
            DUE
        } else {
            // The highest bits in which the two differ choose the level.
            let level = (tick ^ self.reached).ilog2() / BITS;
            let place = (tick >> (level * BITS)) as usize % SLOTS;
            self.occupied[level as usize] |= 1 << place;
            (level as usize * SLOTS + place) as u16
        };
        let previous = self.lists[list as usize].last;
        self.lists[list as usize].last = slot;
        match self.entries.get_mut(previous as usize) {
            Some(previous) => previous.next = slot,
            None => self.lists[list as usize].first = slot,
        }
        let entry = &mut self.entries[slot as usize];
        (entry.list, entry.previous, entry.next) = (list, previous, NONE);
    }

    fn unlink(&mut self, slot: u32) {
        let &Entry {
            list,
            previous,
            next,
            ..
        } = &self.entries[slot as usize];
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = next,
            None => self.lists[list as usize].first = next,
        }
        match self.entries.get_mut(next as usize) {
            Some(entry) => entry.previous = previous,
            None => self.lists[list as usize].last = previous,
        }
        if list != DUE && self.lists[list as usize].first == NONE {
            self.occupied[list as usize / SLOTS] &= !(1 << (list as usize % SLOTS));
        }
    }

    fn take_entry(&mut self) -> u32 {
        if let Some(entry) = self.entries.get(self.free as usize) {
            let slot = self.free;
            self.free = entry.next;
            return slot;
        }
        let slot = u32::try_from(self.entries.len()).expect("memory ends before");
        assert!(slot != NONE, "too many timers");
        self.entries.push(Entry {
            timer: None,
            tick: 0,
            generation: 0,
            list: DUE,
            previous: NONE,
            next: NONE,
        });
        slot
    }

    fn release(&mut self, slot: u32) -> Option<(Time, T)> {
        let free = std::mem::replace(&mut self.free, slot);
        let entry = &mut self.entries[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = free;
        self.len -= 1;
        entry.timer.take()
    }
}

impl<T> fmt::Debug for TimerWheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerWheel")
            .field("len", &self.len)
            .field("next_due", &self.next_due())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
