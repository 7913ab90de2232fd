//! Values that are read while a collection is at its budget, and while none is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_bucket::{BucketGcWorker, BucketStorageBackend, GcConfig, Name};

use super::site::{Contents, Pages, key, put, scatter};
use crate::bench::{Contender, Sample, own_cpu};
use crate::output::Failure;

/// One caller that reads one value after the other.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    storage: &'a BucketStorageBackend,
    contents: &'a Contents,
    count: u64,
    memory: Pages,
    next: u64,
    /// With a collection beside it.
    collects: bool,
    /// The next life of what is put anew.
    life: &'a AtomicU64,
    /// What collections have copied meanwhile, and for how long they ran.
    pub(super) moved: (u64, Duration),
}

impl<'a> Reading<'a> {
    pub(super) fn new(
        storage: &'a BucketStorageBackend,
        contents: &'a Contents,
        count: u64,
        life: &'a AtomicU64,
        collects: bool,
    ) -> Self {
        let value_bytes = contents.of(0).len();
        Self {
            storage,
            contents,
            count,
            memory: Pages::new(value_bytes),
            next: 0,
            collects,
            life,
            moved: (0, Duration::ZERO),
        }
    }

    /// Something dies in each bucket, so that all of them are worth a collection.
    fn spoil(&self) -> Result<(), Failure> {
        let life = self.life.fetch_add(1, Ordering::Relaxed);
        let numbers: Vec<u64> = (life % 16..self.count).step_by(16).collect();
        for some in numbers.chunks(64) {
            put(self.storage, some, life, self.contents)?;
        }
        self.storage.seal();
        Ok(())
    }

    fn read_for(&mut self, budget: Duration, sample: &mut Sample) -> Result<(), Failure> {
        let (cpu, start) = (own_cpu(), Instant::now());
        let (mut last, mut number) = (start, 0);
        while last - start < budget {
            number = scatter(self.next) % self.count;
            self.next += 1;
            let key = key(number);
            let read = self
                .storage
                .get_into(Name::key(&key), None, self.memory.bytes());
            read.map_err(|error| Failure::new("a get failed").because(error))?;
            let now = Instant::now();
            sample.latency.record(now - last);
            sample.operations += 1;
            last = now;
        }
        sample.wall = last - start;
        sample.cpu = own_cpu() - cpu;
        sample.bytes = sample.operations * self.memory.bytes().len() as u64;
        self.contents.check(number, self.memory.bytes())
    }
}

impl Contender for Reading<'_> {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        if !self.collects {
            self.read_for(budget, &mut sample)?;
            return Ok(sample);
        }
        self.spoil()?;
        let before = self.storage.counts().moved_bytes;
        let mut config = GcConfig::default();
        config.live_fraction = 1.0;
        let worker = BucketGcWorker::start(self.storage, config)
            .map_err(|error| Failure::new("no thread could be started").because(error))?;
        self.read_for(budget, &mut sample)?;
        worker.stop_and_join();
        if self.storage.gc_candidates(&config).is_empty() {
            // The gets were beside nothing for a part of the turn.
            return Err(Failure::new("the collection was done before the turn was")
                .remedy("run it with shorter turns"));
        }
        self.moved.0 += self.storage.counts().moved_bytes - before;
        self.moved.1 += sample.wall;
        Ok(sample)
    }
}
