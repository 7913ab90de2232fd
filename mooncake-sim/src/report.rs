//! What happened in a run, counted.

use std::ops::AddAssign;

/// How a run went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations that ended.
    pub finished: usize,
    /// Keys that were put.
    pub puts: usize,
    /// Keys that were read.
    pub gets: usize,
    /// Steps of the world.
    pub steps: usize,
    /// Objects that made room for others.
    pub evicted: usize,
    /// Puts that were taken over, or that nobody ended.
    pub abandoned_puts: usize,
    /// Clients and nodes that the master gave up.
    pub expired_clients: usize,
    /// Streams that the master took up again.
    pub resumed: usize,
    /// Frames that came after their budget.
    pub late_frames: usize,
    /// Transfers that named a dead life.
    pub stale: usize,
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.finished += other.finished;
        self.puts += other.puts;
        self.gets += other.gets;
        self.steps += other.steps;
        self.evicted += other.evicted;
        self.abandoned_puts += other.abandoned_puts;
        self.expired_clients += other.expired_clients;
        self.resumed += other.resumed;
        self.late_frames += other.late_frames;
        self.stale += other.stale;
    }
}
