//! The values of a case: what each key has to contain.

use std::io::Write;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::output::Failure;
use crate::pattern;

/// What memory is wiped with between reads.
pub const POISON: u8 = 0xEE;
/// The last level of cache of large machines, and then some.
const COLD_BYTES: u64 = 256 << 20;
/// Enough for a walk over small values to take a while.
const MOST_VALUES: u64 = 16_384;

/// `count` values of one length. Each generation of keys has the same values, shifted by one, so
/// that what an earlier one left behind does not pass for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// Length of each.
    pub value_bytes: u64,
    /// How many.
    pub count: u64,
}

impl Values {
    /// Values of this length: enough for a cold walk in whole batches of each client.
    #[must_use]
    pub fn cold(value_bytes: u64, batch: u64, clients: u64, quick: bool) -> Self {
        let cold = if quick { COLD_BYTES / 8 } else { COLD_BYTES };
        let step = batch * clients;
        let wanted = (cold / value_bytes.max(1)).min(MOST_VALUES);
        Self {
            value_bytes,
            count: wanted.next_multiple_of(step).max(2 * step),
        }
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.count * self.value_bytes
    }

    /// Which value key `index` of a generation has.
    #[must_use]
    pub fn id(&self, index: u64, generation: u64) -> u64 {
        (index + generation) % self.count
    }

    /// All values, one after the other.
    #[must_use]
    pub fn all(&self) -> Vec<u8> {
        let mut all = vec![0; self.total() as usize];
        for (id, value) in (0..).zip(all.chunks_mut(self.value_bytes as usize)) {
            pattern::fill(id, value);
        }
        all
    }

    /// Checks what was read for key `index`.
    ///
    /// # Errors
    ///
    /// A byte is wrong.
    pub fn check(&self, index: u64, generation: u64, value: &[u8]) -> Result<(), Failure> {
        pattern::verify(self.id(index, generation), value).map_err(|at| {
            Failure::new(format!(
                "wrong byte: value {index} of {} bytes differs at {at} from what was stored",
                value.len()
            ))
        })
    }
}

/// The values as a file, for processes that do not know how they are made.
#[derive(Debug)]
pub struct ContentsFile {
    file: NamedTempFile,
}

impl ContentsFile {
    /// Writes it.
    ///
    /// # Errors
    ///
    /// There is no space.
    pub fn write(values: Values) -> Result<Self, Failure> {
        let failed = |error| Failure::new("the values cannot be written to a file").because(error);
        let mut file = NamedTempFile::new().map_err(failed)?;
        let mut value = vec![0; values.value_bytes as usize];
        for id in 0..values.count {
            pattern::fill(id, &mut value);
            file.write_all(&value).map_err(failed)?;
        }
        Ok(Self { file })
    }

    /// Where it is, as long as this lives.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_a_wiped_value_and_an_older_generation_are_noticed() {
        let values = Values {
            value_bytes: 1_000,
            count: 3,
        };
        let all = values.all();
        let of = |id: usize| all[id * 1_000..(id + 1) * 1_000].to_vec();
        assert!(values.check(1, 0, &of(1)).is_ok());
        assert!(values.check(1, 1, &of(2)).is_ok());
        assert!(values.check(2, 1, &of(0)).is_ok());
        assert!(values.check(1, 1, &of(1)).is_err());
        assert!(values.check(1, 0, &[POISON; 1_000]).is_err());
        let mut torn = of(1);
        torn[999] ^= 1;
        let failure = values.check(1, 0, &torn).unwrap_err().human();
        assert!(failure.contains("differs at 999"), "{failure}");
    }

    #[test]
    fn a_walk_is_cold_and_made_of_whole_batches() {
        let values = Values::cold(1 << 20, 32, 3, false);
        assert!(values.total() >= COLD_BYTES && values.count.is_multiple_of(96));
        assert_eq!(Values::cold(1 << 10, 1, 1, false).count, MOST_VALUES);
        assert_eq!(Values::cold(64 << 20, 32, 1, false).count, 64);
    }
}
