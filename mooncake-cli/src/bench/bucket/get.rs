//! Values that are read at random, many at once.

use std::time::{Duration, Instant};

use mooncake_bucket::{BucketStorageBackend, GetInto, Name};

use super::site::{Contents, Pages, key, scatter};
use crate::bench::{Contender, Sample, own_cpu};
use crate::output::Failure;

/// What one call reads. The storage has 32 values of it under way at a time.
pub(super) const CALL_BYTES: usize = 128 << 20;

/// One caller that reads batches.
#[derive(Debug)]
pub(super) struct Gets<'a> {
    storage: &'a BucketStorageBackend,
    contents: &'a Contents,
    value_bytes: usize,
    count: u64,
    next: u64,
    memory: Pages,
    /// Values of one call.
    batch: u64,
}

impl<'a> Gets<'a> {
    /// Reads from `count` values that are there.
    pub(super) fn new(
        storage: &'a BucketStorageBackend,
        contents: &'a Contents,
        value_bytes: usize,
        count: u64,
    ) -> Self {
        Self {
            storage,
            contents,
            value_bytes,
            count,
            next: 0,
            memory: Pages::new(CALL_BYTES),
            batch: (CALL_BYTES / value_bytes) as u64,
        }
    }

    fn read(&mut self) -> Result<Vec<u64>, Failure> {
        let numbers = (self.next..self.next + self.batch).map(|it| scatter(it) % self.count);
        let numbers: Vec<u64> = numbers.collect();
        self.next += self.batch;
        let keys: Vec<String> = numbers.iter().map(|number| key(*number)).collect();
        let parts = self.memory.bytes().chunks_exact_mut(self.value_bytes);
        let mut gets: Vec<_> = keys
            .iter()
            .zip(parts)
            .map(|(key, into)| GetInto {
                name: Name::key(key),
                incarnation: None,
                into,
            })
            .collect();
        for result in self.storage.get_batch_into(&mut gets) {
            result.map_err(|error| Failure::new("a get failed").because(error))?;
        }
        Ok(numbers)
    }
}

impl Contender for Gets<'_> {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        let (cpu, start) = (own_cpu(), Instant::now());
        let (mut last, mut numbers) = (start, Vec::new());
        while last - start < budget {
            numbers = self.read()?;
            let now = Instant::now();
            sample.latency.record(now - last);
            sample.operations += self.batch;
            last = now;
        }
        sample.wall = last - start;
        sample.cpu = own_cpu() - cpu;
        sample.bytes = sample.operations * self.value_bytes as u64;
        // Each was verified by its checksums; that these are of the right values is checked here.
        let found = self.memory.bytes().chunks_exact(self.value_bytes);
        for (number, found) in numbers.iter().zip(found) {
            self.contents.check(*number, found)?;
        }
        Ok(sample)
    }
}
