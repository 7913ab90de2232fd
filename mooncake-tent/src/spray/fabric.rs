//! Made-up devices on a made-up clock: what spraying and rail health are judged on.
//!
//! A [`Fabric`] has devices with bandwidth and latency that break as they are told to, by a seed: the
//! same calls give the same events. A [`Pilot`] is a link in miniature that drives it as a real link
//! would, and keeps books of where the bytes went.
//!
//! ```
//! use std::time::Duration;
//!
//! use mooncake_tent::{
//!     Priority, Time,
//!     spray::{DeviceId, Devices, fabric::{Fabric, Fault, Nic, Pilot, PilotConfig}},
//! };
//!
//! let fabric = Fabric::new(vec![Nic::new(10_000_000_000); 2], 7);
//! let mut pilot = Pilot::new(fabric, PilotConfig::default());
//! pilot.fabric_mut().fault(DeviceId(1), Some(Fault::Dead));
//! let task = pilot.submit(5_000_001, Priority::High, &Devices::first(2))?;
//! pilot.run(Time(10_000_000));
//! assert!(pilot.task(task).is_completed());
//! assert_eq!(pilot.in_flight(), 0);
//! # Ok::<_, mooncake_tent::spray::NoDevice>(())
//! ```

mod config;
mod nic;
mod pilot;
mod report;
mod slices;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use self::nic::{Machine, Posted};
use super::{DeviceId, Rank};
use crate::Time;

pub use config::PilotConfig;
pub use pilot::Pilot;
pub use report::{DeviceReport, TaskId, TaskReport};

/// A device that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nic {
    /// What it moves in a second, one slice after the other.
    pub bytes_per_second: u64,
    /// From the last byte of a slice to its completion.
    pub latency: Duration,
    /// How near it is to all memory.
    pub rank: Rank,
}

impl Nic {
    /// A near one with 5 µs of latency.
    pub fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second,
            latency: Duration::from_micros(5),
            rank: Rank::Nearest,
        }
    }
}

/// What is wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It takes slices and says nothing ever. What it swallowed it may still complete once it is well,
    /// long after anybody expects it.
    Dead,
    /// The link is down and says so: whatever is posted fails, and what it had.
    Down,
    /// The link goes down and comes back, again and again.
    Flapping {
        /// How long it works.
        up: Duration,
        /// How long it does not.
        down: Duration,
    },
    /// One slice in so many, by chance, fails, vanishes or is completed twice.
    Lossy {
        /// 1 for all.
        one_in: u32,
    },
    /// It needs so many times as long.
    Slow {
        /// 10 for a device that has lost 90 %.
        times: u32,
    },
}

/// What a fabric tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A slice has ended.
    Completion {
        /// Where.
        device: DeviceId,
        /// What was given with it.
        token: u64,
        /// Its bytes were moved.
        moved: bool,
    },
    /// A link is down.
    LinkDown(DeviceId),
    /// A link is back.
    LinkUp(DeviceId),
}

/// Devices, a clock, and chance.
#[derive(Debug)]
pub struct Fabric {
    /// Nanoseconds.
    now: u64,
    machines: Vec<Machine>,
    /// By time, then by number: what was arranged first happens first.
    agenda: BTreeMap<(u64, u64), Doing>,
    number: u64,
    chance: StdRng,
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    Break(DeviceId, Option<Fault>),
    /// A device has moved the last byte of what it was at, if it is still at it.
    Moved(DeviceId, u64),
    Tell(Event),
    /// A flapping link changes, if it is still flapping since the same fault.
    Turn(DeviceId, u64),
}

impl Fabric {
    /// Devices numbered from 0, none of them broken.
    pub fn new(nics: Vec<Nic>, seed: u64) -> Self {
        Self {
            now: 0,
            machines: nics.into_iter().map(Machine::new).collect(),
            agenda: BTreeMap::new(),
            number: 0,
            chance: StdRng::seed_from_u64(seed),
        }
    }

    /// What the clock shows.
    pub fn now(&self) -> Time {
        Time(self.now / 1000)
    }

    /// The devices as they were made.
    pub fn nics(&self) -> impl Iterator<Item = Nic> {
        self.machines.iter().map(|machine| machine.nic)
    }

    /// Hands a slice to a device.
    ///
    /// # Panics
    ///
    /// There is no such device.
    pub fn post(&mut self, device: DeviceId, token: u64, bytes: u64) {
        let machine = &mut self.machines[usize::from(device.0)];
        let posted = Posted { token, bytes };
        if machine.is_down() {
            self.tell_end(device, posted, false, Duration::ZERO);
        } else {
            machine.waiting.push_back(posted);
            self.begin(device);
        }
    }

    /// Breaks a device now, or mends it. The last word counts.
    pub fn fault(&mut self, device: DeviceId, fault: Option<Fault>) {
        let machine = &mut self.machines[usize::from(device.0)];
        let was_down = machine.is_down();
        machine.set(fault);
        let (is_down, is_dead, change) = (machine.is_down(), machine.is_dead(), machine.changes);
        if let Some(Fault::Flapping { up, .. }) = fault {
            self.arrange(up, Doing::Turn(device, change));
        }
        if is_dead {
            self.machines[usize::from(device.0)].stop();
        } else {
            self.revive(device);
        }
        self.turned(device, was_down, is_down);
    }

    /// The same at a later time.
    pub fn fault_at(&mut self, at: Time, device: DeviceId, fault: Option<Fault>) {
        let wait = at.since(self.now());
        self.arrange(wait, Doing::Break(device, fault));
    }

    /// Moves the clock to the next event until `limit`, or to `limit`.
    pub fn next(&mut self, limit: Time) -> Option<Event> {
        let limit = limit.0.saturating_mul(1000);
        while let Some(first) = self.agenda.first_entry()
            && first.key().0 <= limit
        {
            self.now = self.now.max(first.key().0);
            match first.remove() {
                Doing::Break(device, fault) => self.fault(device, fault),
                Doing::Moved(device, work) => self.moved(device, work),
                Doing::Tell(event) => return Some(event),
                Doing::Turn(device, change) => self.turn(device, change),
            }
        }
        self.now = self.now.max(limit);
        None
    }

    /// Nothing is under way but faults that were arranged.
    pub fn is_idle(&self) -> bool {
        let arranged = |doing: &Doing| matches!(doing, Doing::Break(..) | Doing::Turn(..));
        self.agenda.values().all(arranged)
    }

    fn arrange(&mut self, after: Duration, doing: Doing) {
        let nanos = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let at = self.now.saturating_add(nanos);
        self.agenda.insert((at, self.number), doing);
        self.number += 1;
    }

    fn begin(&mut self, device: DeviceId) {
        let machine = &mut self.machines[usize::from(device.0)];
        if let Some((work, takes)) = machine.begin() {
            self.arrange(takes, Doing::Moved(device, work));
        }
    }

    fn moved(&mut self, device: DeviceId, work: u64) {
        let machine = &mut self.machines[usize::from(device.0)];
        let Some(posted) = machine.end(work) else {
            return;
        };
        let latency = machine.nic.latency;
        match machine.lossy() {
            Some(one_in) if self.chance.random_ratio(1, one_in.max(1)) => {
                match self.chance.random_range(0..3) {
                    0 => self.tell_end(device, posted, false, latency),
                    1 => {}
                    _ => {
                        self.tell_end(device, posted, true, latency);
                        let later = latency * self.chance.random_range(1..1000);
                        self.tell_end(device, posted, true, later);
                    }
                }
            }
            _ => self.tell_end(device, posted, true, latency),
        }
        self.begin(device);
    }

    /// A device that was dead wakes up, with what it swallowed.
    fn revive(&mut self, device: DeviceId) {
        let swallowed = std::mem::take(&mut self.machines[usize::from(device.0)].swallowed);
        for posted in swallowed {
            if self.chance.random() {
                let late = Duration::from_micros(self.chance.random_range(0..1000));
                self.tell_end(device, posted, true, late);
            }
        }
        self.begin(device);
    }

    fn turn(&mut self, device: DeviceId, change: u64) {
        let machine = &mut self.machines[usize::from(device.0)];
        let was_down = machine.is_down();
        if let Some(next) = machine.turn(change) {
            self.arrange(next, Doing::Turn(device, change));
            self.turned(device, was_down, !was_down);
        }
    }

    fn turned(&mut self, device: DeviceId, was_down: bool, is_down: bool) {
        if is_down && !was_down {
            let machine = &mut self.machines[usize::from(device.0)];
            for posted in machine.flush() {
                self.tell_end(device, posted, false, Duration::ZERO);
            }
            self.arrange(Duration::ZERO, Doing::Tell(Event::LinkDown(device)));
        } else if was_down && !is_down {
            self.arrange(Duration::ZERO, Doing::Tell(Event::LinkUp(device)));
        }
    }

    fn tell_end(&mut self, device: DeviceId, posted: Posted, moved: bool, after: Duration) {
        let token = posted.token;
        let completion = Event::Completion {
            device,
            token,
            moved,
        };
        self.arrange(after, Doing::Tell(completion));
    }
}
