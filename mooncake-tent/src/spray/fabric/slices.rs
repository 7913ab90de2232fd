//! Slices that were not done yet, by tokens that are never used twice.

use std::ops::Range;

use super::{DeviceId, TaskId};
use crate::{
    Time, TimerToken,
    rail::{Permit, RailId},
    spray::Charge,
};

/// A part of a task that some device should move.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) task: TaskId,
    pub(super) range: Range<u64>,
    /// How often it has failed.
    pub(super) failures: u32,
    /// Where it failed last.
    pub(super) failed_on: Option<DeviceId>,
    /// When it was first queued.
    pub(super) since: Time,
}

/// A piece on its way over a device.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) piece: Piece,
    pub(super) charge: Charge,
    pub(super) rail: RailId,
    pub(super) permit: Permit,
    /// Once it is posted: what says that it may be overdue.
    pub(super) timer: Option<TimerToken>,
}

/// Attempts by slot and generation, so that a completion that comes late or twice matches nothing.
#[derive(Debug, Default)]
pub(super) struct Slices {
    cells: Vec<(u32, Option<Attempt>)>,
    free: Vec<u32>,
}

impl Slices {
    pub(super) fn insert(&mut self, attempt: Attempt) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.cells.push((0, None));
            self.cells.len() as u32 - 1
        });
        let cell = &mut self.cells[slot as usize];
        cell.1 = Some(attempt);
        u64::from(cell.0) << 32 | u64::from(slot)
    }

    pub(super) fn get_mut(&mut self, token: u64) -> Option<&mut Attempt> {
        let (generation, attempt) = self.cells.get_mut(token as u32 as usize)?;
        if u64::from(*generation) == token >> 32 {
            attempt.as_mut()
        } else {
            None
        }
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<Attempt> {
        self.get_mut(token)?;
        let slot = token as u32;
        let cell = &mut self.cells[slot as usize];
        cell.0 += 1;
        self.free.push(slot);
        cell.1.take()
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len() - self.free.len()
    }
}
