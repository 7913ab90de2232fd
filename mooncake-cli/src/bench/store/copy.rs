//! The limit of a row whose objects are in the caller's own memory: a plain copy.

use std::time::{Duration, Instant};

use super::Values;
use crate::bench::{Contender, Sample, own_cpu};
use crate::output::Failure;

/// Copies block after block between two memories, both cold.
#[derive(Debug)]
pub struct Copying {
    block_bytes: usize,
    batch: u64,
    from: Vec<u8>,
    to: Vec<u8>,
    cursor: usize,
}

impl Copying {
    /// Copies blocks as long as these values, over as much memory.
    #[must_use]
    pub fn new(values: Values, batch: u64) -> Self {
        let all = values.total() as usize;
        Self {
            block_bytes: values.value_bytes as usize,
            batch,
            // Not zero, so that all of it is there.
            from: vec![1; all],
            to: vec![2; all],
            cursor: 0,
        }
    }
}

impl Contender for Copying {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        let (cpu, start) = (own_cpu(), Instant::now());
        let mut last = start;
        while last - start < budget {
            for _ in 0..self.batch {
                if self.cursor + self.block_bytes > self.from.len() {
                    self.cursor = 0;
                }
                let place = self.cursor..self.cursor + self.block_bytes;
                self.to[place.clone()].copy_from_slice(&self.from[place.clone()]);
                std::hint::black_box(&self.to[place.start]);
                self.cursor = place.end;
            }
            let now = Instant::now();
            sample.latency.record(now - last);
            sample.operations += self.batch;
            last = now;
        }
        sample.wall = last - start;
        sample.cpu = own_cpu() - cpu;
        sample.bytes = sample.operations * self.block_bytes as u64;
        Ok(sample)
    }
}
