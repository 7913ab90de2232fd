//! This store as a contender.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use mooncake_store::BlockingClient;

use super::worker::{Done, Phase, Worker};
use super::{Case, Values};
use crate::bench::{Contender, ProcessCpu, Sample, own_cpu};
use crate::output::Failure;

/// Clients of this process that work on a case, each on keys of its own.
#[derive(Debug)]
pub struct Ours {
    workers: Vec<Worker>,
    value_bytes: u64,
    /// Master and nodes.
    beside: Vec<ProcessCpu>,
}

impl Ours {
    /// Prepares a case: stores what is to be read. Each of the clients works for itself.
    ///
    /// # Errors
    ///
    /// It does not work.
    pub fn begin(
        clients: Vec<BlockingClient>,
        beside: Vec<ProcessCpu>,
        case: Case,
        values: Values,
    ) -> Result<Self, Failure> {
        let prefix = format!("bench-{:08x}", rand::random::<u32>());
        let share = values.count / clients.len() as u64;
        let own = |number: u64| -> Range<u64> { number * share..(number + 1) * share };
        let values = Values {
            count: share,
            ..values
        };
        let workers = (0..).zip(clients).map(|(number, client)| {
            let prefix = format!("{prefix}/{number}");
            Worker::new(client, case, values, own(number), prefix)
        });
        let workers = workers.collect::<Result<_, _>>()?;
        let mut ours = Self {
            workers,
            value_bytes: values.value_bytes,
            beside,
        };
        ours.phase(Phase::Fill)?;
        Ok(ours)
    }

    /// Removes what the case has stored.
    ///
    /// # Errors
    ///
    /// It does not work.
    pub fn end(mut self) -> Result<(), Failure> {
        self.phase(Phase::Clear).map(|_| ())
    }

    /// Lets all workers do the same at the same time.
    fn phase(&mut self, phase: Phase) -> Result<Vec<Done>, Failure> {
        // A single client calls from this thread, as an application with one thread would.
        if let [worker] = self.workers.as_mut_slice() {
            return Ok(vec![worker.run(phase)?]);
        }
        thread::scope(|scope| {
            let run = |worker| scope.spawn(move || Worker::run(worker, phase));
            let threads: Vec<_> = self.workers.iter_mut().map(run).collect();
            let broken = |_| Failure::new("a client of the measurement broke down");
            let done = threads.into_iter().map(|it| it.join().map_err(broken)?);
            done.collect()
        })
    }
}

impl Contender for Ours {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        let used = |beside: &[ProcessCpu]| beside.iter().map(|one| one.read()).sum::<Duration>();
        while sample.wall < budget {
            self.phase(Phase::Prepare)?;
            let (own, others, start) = (own_cpu(), used(&self.beside), Instant::now());
            let done = self.phase(Phase::Timed(budget - sample.wall))?;
            sample.wall += start.elapsed();
            sample.cpu += own_cpu() - own;
            sample.cpu += used(&self.beside).saturating_sub(others);
            for done in done {
                sample.operations += done.operations;
                sample.latency.merge(&done.latency);
            }
            self.phase(Phase::Check)?;
            if self.workers.iter().all(Worker::is_through) {
                self.workers.iter_mut().for_each(Worker::rewind);
            }
        }
        sample.bytes = sample.operations * self.value_bytes;
        Ok(sample)
    }
}
