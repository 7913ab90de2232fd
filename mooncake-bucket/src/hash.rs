//! The 128-bit hash under which a record is indexed.

use xxhash_rust::xxh3::Xxh3;

use crate::name::Name;

/// Computed under a seed of the storage's own, so that nobody can make up keys that collide in it. Which key
/// a record has is still read from the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyHash {
    pub(crate) high: u64,
    pub(crate) low: u64,
}

/// Hashes names for one storage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hasher {
    seed: u64,
}

impl Hasher {
    pub(crate) fn new(storage: [u8; 16]) -> Self {
        Self {
            seed: xxhash_rust::xxh3::xxh3_64(&storage),
        }
    }

    pub(crate) fn hash(&self, name: &Name<'_>) -> KeyHash {
        let mut state = Xxh3::with_seed(self.seed);
        // The length first: ("a", "bc") and ("ab", "c") are two names.
        state.update(&(name.tenant.len() as u32).to_le_bytes());
        state.update(name.tenant);
        state.update(name.key);
        let hash = state.digest128();
        KeyHash {
            high: (hash >> 64) as u64,
            low: hash as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_tenant_ends_and_a_key_begins_matters() {
        let hasher = Hasher::new([7; 16]);
        assert_ne!(
            hasher.hash(&Name::new("a", "bc")),
            hasher.hash(&Name::new("ab", "c"))
        );
        assert_ne!(
            hasher.hash(&Name::key("k")),
            Hasher::new([8; 16]).hash(&Name::key("k")),
            "each storage hashes by its own seed"
        );
    }
}
