//! What became of tasks and devices.

use std::ops::Range;

use crate::{
    Priority, Time,
    rail::RailState,
    spray::{DeviceId, Devices},
};

/// A task of a [`Pilot`](super::Pilot).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub(super) usize);

/// What became of a task.
#[derive(Clone, Debug)]
pub struct TaskReport {
    /// How many bytes it should move.
    pub length: u64,
    /// Its priority.
    pub priority: Priority,
    /// When it was submitted.
    pub submitted: Time,
    /// When its last slice had ended, if it has.
    pub ended: Option<Time>,
    /// What completions have said was moved, in their order.
    pub moved: Vec<(DeviceId, Range<u64>)>,
    pub(super) allowed: Devices,
    /// Slices that have not ended.
    pub(super) open: u64,
    pub(super) unwanted: bool,
}

impl TaskReport {
    /// It has ended, and each of its bytes was moved once.
    pub fn is_completed(&self) -> bool {
        let mut moved: Vec<_> = self.moved.iter().map(|(_, range)| range.clone()).collect();
        moved.sort_unstable_by_key(|range| range.start);
        let end = moved.iter().try_fold(0, |end, range| {
            let joins = range.start == end && range.end > end;
            joins.then_some(range.end)
        });
        self.ended.is_some() && end == Some(self.length)
    }
}

/// What became of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceReport {
    /// Slices that were assigned to it, those that came back among them.
    pub assigned: u64,
    /// Bytes that it has moved.
    pub moved: u64,
    /// Bytes in flight on it.
    pub in_flight: u64,
    /// Bytes per second, if known.
    pub rate: Option<f64>,
    /// Its rail.
    pub rail: RailState,
}
