//! One made-up device: it moves one slice after the other.

use std::{collections::VecDeque, time::Duration};

use super::{Fault, Nic};

#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) token: u64,
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) nic: Nic,
    pub(super) waiting: VecDeque<Posted>,
    /// What it had when it died.
    pub(super) swallowed: Vec<Posted>,
    /// How often its fault was set.
    pub(super) changes: u64,
    fault: Option<Fault>,
    /// A flapping link is down at the moment.
    flapped: bool,
    /// What it is at, by number.
    work: Option<Posted>,
    works: u64,
}

impl Machine {
    pub(super) fn new(nic: Nic) -> Self {
        Self {
            nic,
            waiting: VecDeque::new(),
            swallowed: Vec::new(),
            changes: 0,
            fault: None,
            flapped: false,
            work: None,
            works: 0,
        }
    }

    pub(super) fn set(&mut self, fault: Option<Fault>) {
        self.fault = fault;
        self.flapped = false;
        self.changes += 1;
    }

    pub(super) fn is_down(&self) -> bool {
        self.fault == Some(Fault::Down) || self.flapped
    }

    pub(super) fn is_dead(&self) -> bool {
        self.fault == Some(Fault::Dead)
    }

    pub(super) fn lossy(&self) -> Option<u32> {
        match self.fault {
            Some(Fault::Lossy { one_in }) => Some(one_in),
            _ => None,
        }
    }

    /// Starts with the next slice, if it can: its number, and how long it takes.
    pub(super) fn begin(&mut self) -> Option<(u64, Duration)> {
        if self.is_dead() {
            self.swallowed.extend(self.waiting.drain(..));
            return None;
        }
        if self.work.is_some() {
            return None;
        }
        let posted = self.waiting.pop_front()?;
        self.work = Some(posted);
        self.works += 1;
        let times = match self.fault {
            Some(Fault::Slow { times }) => times,
            _ => 1,
        };
        let nanos = u128::from(posted.bytes) * u128::from(times) * 1_000_000_000;
        let nanos = nanos.div_ceil(u128::from(self.nic.bytes_per_second.max(1)));
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Some((self.works, takes))
    }

    /// Ends the slice of this number, if it is still at it.
    pub(super) fn end(&mut self, work: u64) -> Option<Posted> {
        if self.works == work {
            self.work.take()
        } else {
            None
        }
    }

    /// It dies with all that it has.
    pub(super) fn stop(&mut self) {
        self.swallowed.extend(self.work.take());
        self.swallowed.extend(self.waiting.drain(..));
    }

    /// It gives up all that it has.
    pub(super) fn flush(&mut self) -> Vec<Posted> {
        let under_way = self.work.take().into_iter();
        under_way.chain(self.waiting.drain(..)).collect()
    }

    /// A link that has been flapping since change number `change` goes down or up; until when.
    pub(super) fn turn(&mut self, change: u64) -> Option<Duration> {
        match self.fault {
            Some(Fault::Flapping { up, down }) if self.changes == change => {
                self.flapped = !self.flapped;
                Some(if self.flapped { down } else { up })
            }
            _ => None,
        }
    }
}
