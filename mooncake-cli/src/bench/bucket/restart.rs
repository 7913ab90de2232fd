//! The start of a storage with many records.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mooncake_bucket::{BucketConfig, Inspection};

use super::site::{Contents, Site, disk, fill, open};
use crate::bench::{Contender, Sample, own_cpu};
use crate::output::Failure;

/// Opens it again and again.
#[derive(Debug)]
pub(super) struct Restarts {
    path: PathBuf,
    records: u64,
    /// What the index takes for a record.
    pub(super) index_bytes: f64,
}

impl Restarts {
    pub(super) fn new(site: &Site, records: u64) -> Result<Self, Failure> {
        let storage = site.storage(BucketConfig::default())?;
        fill(&storage, records, 1_000, &Contents::new(200, 16))?;
        drop(storage);
        Ok(Self {
            path: site.path("storage"),
            records,
            index_bytes: 0.0,
        })
    }
}

impl Contender for Restarts {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        while sample.wall < budget {
            let (cpu, start) = (own_cpu(), Instant::now());
            let storage = open(&self.path, BucketConfig::default())?;
            let took = start.elapsed();
            sample.cpu += own_cpu() - cpu;
            sample.wall += took;
            sample.latency.record(took);
            sample.operations += self.records;
            if storage.len() != self.records {
                return Err(Failure::new(format!(
                    "{} of {} records are there after a start",
                    storage.len(),
                    self.records
                )));
            }
            self.index_bytes = storage.index_memory_bytes() as f64 / self.records as f64;
        }
        Ok(sample)
    }
}

/// The limit: the indexes of the same buckets, read plainly.
#[derive(Debug)]
pub(super) struct PlainIndexes {
    files: Vec<(PathBuf, u64, usize)>,
    records: u64,
}

/// What the index of a bucket takes for each record, as its format has it.
const ENTRY: u64 = 48;

impl PlainIndexes {
    pub(super) fn new(storage: &Path, records: u64) -> Result<Self, Failure> {
        let found = Inspection::open(storage)
            .map_err(|error| Failure::new("the storage cannot be looked at").because(error))?;
        let files = found.buckets().iter().map(|bucket| {
            let bytes = (bucket.live_records + bucket.dead_records) * ENTRY;
            let at = bucket.file_bytes.saturating_sub(bytes);
            (storage.join(&bucket.file), at, bytes as usize)
        });
        Ok(Self {
            files: files.collect(),
            records,
        })
    }
}

impl Contender for PlainIndexes {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        let (cpu, start) = (own_cpu(), Instant::now());
        let mut last = start;
        while last - start < budget {
            for (path, at, bytes) in &self.files {
                let mut into = vec![0; *bytes];
                let file = File::open(path).map_err(disk)?;
                file.read_exact_at(&mut into, *at).map_err(disk)?;
                std::hint::black_box(&into);
            }
            let now = Instant::now();
            sample.latency.record(now - last);
            sample.operations += self.records;
            last = now;
        }
        sample.wall = last - start;
        sample.cpu = own_cpu() - cpu;
        Ok(sample)
    }
}
