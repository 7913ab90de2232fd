//! Values that are put, durable when the call returns.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mooncake_bucket::{BucketConfig, BucketStorageBackend, Eviction, Name};

use super::site::{Contents, Site, key, put};
use crate::bench::{Contender, Sample, own_cpu};
use crate::latency::Latency;
use crate::output::Failure;

/// What is kept; the oldest goes.
const CAPACITY: u64 = 1 << 30;

/// Callers that put batches, each on its own.
#[derive(Debug)]
pub(super) struct Puts {
    storage: BucketStorageBackend,
    contents: Contents,
    value_bytes: u64,
    batch: u64,
    callers: u64,
    next: AtomicU64,
}

impl Puts {
    pub(super) fn new(
        site: &Site,
        value_bytes: u64,
        batch: u64,
        callers: u64,
    ) -> Result<Self, Failure> {
        let mut config = BucketConfig::default();
        config.capacity_bytes = CAPACITY;
        config.eviction = Eviction::Fifo;
        Ok(Self {
            storage: site.storage(config)?,
            contents: Contents::new(value_bytes as usize, 8),
            value_bytes,
            batch,
            callers,
            next: AtomicU64::new(0),
        })
    }

    /// What all files have beyond the values in them, as a part of these.
    pub(super) fn space_overhead(&self) -> f64 {
        self.storage.seal();
        let books = self.storage.accounting();
        let payload = (books.live_records + books.dead_records) * self.value_bytes;
        books.file_bytes as f64 / payload.max(1) as f64 - 1.0
    }

    fn call(&self, start: Instant, budget: Duration) -> Result<(u64, Latency), Failure> {
        let (mut done, mut latency) = (0, Latency::default());
        let mut last = start;
        while last - start < budget {
            let first = self.next.fetch_add(self.batch, Ordering::Relaxed);
            let numbers: Vec<u64> = (first..first + self.batch).collect();
            put(&self.storage, &numbers, 1, &self.contents)?;
            let now = Instant::now();
            latency.record(now - last);
            done += self.batch;
            last = now;
        }
        Ok((done, latency))
    }

    /// The last ones are there as they were put.
    fn check(&self) -> Result<(), Failure> {
        let last = self.next.load(Ordering::Relaxed);
        for number in last - self.batch..last {
            let found = self.storage.get(Name::key(&key(number)), None);
            let found = found
                .map_err(|error| Failure::new("what was put cannot be read").because(error))?;
            self.contents.check(number, &found.bytes)?;
        }
        Ok(())
    }
}

impl Contender for Puts {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        let (cpu, start) = (own_cpu(), Instant::now());
        let ours = &*self;
        let calls: Vec<_> = if self.callers == 1 {
            vec![ours.call(start, budget)?]
        } else {
            thread::scope(|scope| {
                let call = |_| scope.spawn(move || ours.call(start, budget));
                let threads: Vec<_> = (0..ours.callers).map(call).collect();
                let broken = |_| Failure::new("a caller of the measurement broke down");
                let ended = threads.into_iter().map(|it| it.join().map_err(broken)?);
                ended.collect::<Result<_, _>>()
            })?
        };
        sample.wall = start.elapsed();
        sample.cpu = own_cpu() - cpu;
        for (operations, latency) in calls {
            sample.operations += operations;
            sample.latency.merge(&latency);
        }
        sample.bytes = sample.operations * self.value_bytes;
        self.check()?;
        Ok(sample)
    }
}
