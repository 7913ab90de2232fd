//! Batches of removals, durable when the call returns.

use std::time::{Duration, Instant};

use mooncake_bucket::{BucketConfig, BucketStorageBackend, GcConfig, Incarnation, Name, Removal};

use super::site::{Contents, Site, key, put};
use crate::bench::{Contender, Sample, own_cpu};
use crate::output::Failure;

/// Removals of one call.
pub(super) const BATCH: u64 = 1_000;
/// Batches that are put before some are removed.
const AHEAD: u64 = 20;

/// One caller.
#[derive(Debug)]
pub(super) struct Removes {
    storage: BucketStorageBackend,
    contents: Contents,
    next: u64,
}

impl Removes {
    pub(super) fn new(site: &Site) -> Result<Self, Failure> {
        Ok(Self {
            storage: site.storage(BucketConfig::default())?,
            contents: Contents::new(100, 1),
            next: 0,
        })
    }

    /// Puts what is removed next, and lets go of what was removed.
    fn prepare(&self) -> Result<(), Failure> {
        self.storage.seal();
        for candidate in self.storage.gc_candidates(&GcConfig::default()) {
            let done = self.storage.retire_bucket(candidate.bucket);
            done.map_err(|error| Failure::new("a bucket cannot be retired").because(error))?;
        }
        for batch in 0..AHEAD {
            let first = self.next + batch * BATCH;
            let numbers: Vec<u64> = (first..first + BATCH).collect();
            put(&self.storage, &numbers, 1, &self.contents)?;
        }
        Ok(())
    }

    fn remove(&mut self) -> Result<(), Failure> {
        let keys: Vec<String> = (self.next..self.next + BATCH).map(key).collect();
        self.next += BATCH;
        let removals: Vec<_> = keys
            .iter()
            .map(|key| Removal {
                name: Name::key(key),
                incarnation: Incarnation::new(1, 1),
            })
            .collect();
        for result in self.storage.mark_removed(&removals) {
            result.map_err(|error| Failure::new("a removal failed").because(error))?;
        }
        Ok(())
    }
}

impl Contender for Removes {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        while sample.wall < budget {
            self.prepare()?;
            let cpu = own_cpu();
            for _ in 0..AHEAD {
                let start = Instant::now();
                self.remove()?;
                let took = start.elapsed();
                sample.wall += took;
                sample.latency.record(took);
                sample.operations += BATCH;
            }
            sample.cpu += own_cpu() - cpu;
        }
        if !self.storage.is_empty() {
            return Err(Failure::new("what was removed is still there"));
        }
        Ok(sample)
    }
}
