//! Where a case is measured, and what is put there.

use std::path::{Path, PathBuf};

use mooncake_bucket::{BucketConfig, BucketStorageBackend, Incarnation, Name, Put};
use tempfile::TempDir;

use crate::output::Failure;
use crate::pattern;

/// A folder that goes when the case is over.
#[derive(Debug)]
pub(super) struct Site {
    folder: TempDir,
}

impl Site {
    /// In `folder`, or where the system has temporary files.
    pub(super) fn new(folder: Option<&Path>) -> Result<Self, Failure> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("mooncake-bench-bucket-");
        let made = match folder {
            Some(folder) => builder.tempdir_in(folder),
            None => builder.tempdir(),
        };
        let made = made.map_err(|error| {
            let failure = Failure::new("no folder for the measurement can be made");
            failure
                .because(error)
                .remedy("--folder with a place on the disk that is to be measured")
        });
        Ok(Self { folder: made? })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A storage of its own.
    pub(super) fn storage(&self, config: BucketConfig) -> Result<BucketStorageBackend, Failure> {
        open(&self.path("storage"), config)
    }
}

pub(super) fn open(path: &Path, config: BucketConfig) -> Result<BucketStorageBackend, Failure> {
    let opened = BucketStorageBackend::open(path, config);
    opened.map_err(|error| Failure::new("the storage cannot be opened").because(error))
}

pub(super) fn key(number: u64) -> String {
    format!("bench/{number:016x}")
}

/// Contents of values; those of a key are found by its number.
#[derive(Debug)]
pub(super) struct Contents {
    slots: Vec<Vec<u8>>,
}

impl Contents {
    pub(super) fn new(value_bytes: usize, slots: u64) -> Self {
        let slots = (0..slots).map(|slot| {
            let mut value = vec![0; value_bytes];
            pattern::fill(slot, &mut value);
            value
        });
        Self {
            slots: slots.collect(),
        }
    }

    pub(super) fn of(&self, number: u64) -> &[u8] {
        &self.slots[(number % self.slots.len() as u64) as usize]
    }

    pub(super) fn check(&self, number: u64, found: &[u8]) -> Result<(), Failure> {
        let slot = number % self.slots.len() as u64;
        let right = pattern::verify(slot, found);
        right.map_err(|at| Failure::new(format!("byte {at} of {} is wrong", key(number))))
    }
}

/// Puts values under these numbers, which may be there already; all of them have to be afterwards.
pub(super) fn put(
    storage: &BucketStorageBackend,
    numbers: &[u64],
    life: u64,
    contents: &Contents,
) -> Result<(), Failure> {
    let keys: Vec<String> = numbers.iter().map(|number| key(*number)).collect();
    let puts: Vec<_> = keys
        .iter()
        .zip(numbers)
        .map(|(key, number)| {
            let value = contents.of(*number);
            Put::new(Name::key(key), Incarnation::new(1, life), value)
        })
        .collect();
    for result in storage.put_batch(&puts) {
        result.map_err(|error| Failure::new("a put failed").because(error))?;
    }
    Ok(())
}

/// Puts values under the numbers from 0 to `count`, and seals them.
pub(super) fn fill(
    storage: &BucketStorageBackend,
    count: u64,
    batch: u64,
    contents: &Contents,
) -> Result<(), Failure> {
    for first in (0..count).step_by(batch as usize) {
        let numbers: Vec<u64> = (first..count.min(first + batch)).collect();
        put(storage, &numbers, 1, contents)?;
    }
    storage.seal();
    Ok(())
}

/// Numbers without an order, the same ones each time.
pub(super) fn scatter(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Memory in which blocks begin on pages.
#[derive(Debug)]
pub(super) struct Pages(Vec<u8>);

const PAGE: usize = 4096;

impl Pages {
    pub(super) fn new(bytes: usize) -> Self {
        Self(vec![1; bytes + PAGE])
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        let skip = self.0.as_ptr().align_offset(PAGE);
        let end = self.0.len() - PAGE + skip;
        &mut self.0[skip..end]
    }
}

pub(super) fn disk(error: std::io::Error) -> Failure {
    Failure::new("the disk failed under a plain file").because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_known_by_its_number() {
        let contents = Contents::new(100, 3);
        assert!(contents.check(7, contents.of(7)).is_ok());
        assert!(contents.check(8, contents.of(7)).is_err());
        assert!(Pages::new(10).bytes().len() == 10);
    }
}
