//! A keyed hash of (tenant, key): the same in each run, and not to be guessed without the seed.

use super::tenants::TenantId;

/// Folds 16 bytes a step: the 128-bit product's halves, each mixed with a secret.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHasher {
    secrets: [u64; 3],
}

impl KeyHasher {
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        // Odd, so that no secret is zero and swallows what it is multiplied with.
        Self {
            secrets: std::array::from_fn(|_| spread(&mut state) | 1),
        }
    }

    pub(crate) fn hash(&self, tenant: TenantId, key: &[u8]) -> u64 {
        let [a, b, c] = self.secrets;
        let mut state = a ^ (key.len() as u64) << 32 ^ u64::from(tenant.0);
        let (blocks, rest) = key.as_chunks::<16>();
        for block in blocks {
            let block = u128::from_le_bytes(*block);
            state = fold(
                block as u64 ^ b ^ state,
                (block >> 64) as u64 ^ c ^ state.rotate_left(32),
            );
        }
        if !rest.is_empty() {
            let mut last = [0; 16];
            last[..rest.len()].copy_from_slice(rest);
            let last = u128::from_le_bytes(last);
            state = fold(
                last as u64 ^ b ^ state,
                (last >> 64) as u64 ^ c ^ state.rotate_left(32),
            );
        }
        fold(state ^ a, b)
    }
}

fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    product as u64 ^ (product >> 64) as u64
}

/// The next of a sequence of well spread numbers.
pub(crate) fn spread(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn similar_keys_spread_over_low_and_high_bits() {
        let hasher = KeyHasher::new(7);
        let keys = (0..20_000u32).map(|i| format!("model/layer/{i:090}"));
        let hashes: Vec<u64> = keys
            .map(|k| hasher.hash(TenantId(0), k.as_bytes()))
            .collect();
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
        for shift in [0, 48] {
            let mut counts = [0u32; 64];
            for hash in &hashes {
                counts[(hash >> shift) as usize % 64] += 1;
            }
            assert!(
                counts.iter().all(|&n| (200..430).contains(&n)),
                "{counts:?}"
            );
        }
    }

    #[test]
    fn tenant_seed_and_trailing_zeros_count() {
        let hasher = KeyHasher::new(1);
        let hash = hasher.hash(TenantId(0), b"k");
        assert_ne!(hash, hasher.hash(TenantId(1), b"k"));
        assert_ne!(hash, hasher.hash(TenantId(0), b"k\0"));
        assert_ne!(hash, KeyHasher::new(2).hash(TenantId(0), b"k"));
        assert_eq!(hash, KeyHasher::new(1).hash(TenantId(0), b"k"));
    }
}
