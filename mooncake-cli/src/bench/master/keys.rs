//! Keys such as inference engines make them: a long name that all share, then a hash.

use bytes::Bytes;

/// What the keys of one model and rank begin with.
const SHARED: &[u8] = b"meta-llama/Llama-3.1-8B-Instruct@tp_rank:0@";
/// 64 hexadecimal digits, as of a SHA-256.
const HASH_BYTES: usize = 64;
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Makes keys of one length, different ones for different numbers.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    bytes: usize,
    space: u64,
}

impl Keys {
    /// The least length: the digits that tell keys apart.
    pub(super) const LEAST_BYTES: usize = 16;
    /// As long as those of vLLM.
    pub(super) const USUAL_BYTES: usize = SHARED.len() + HASH_BYTES;

    /// Keys of `bytes` bytes; those of another `space` are others. Spaces and numbers are small.
    pub(super) fn new(bytes: usize, space: u64) -> Self {
        Self { bytes, space }
    }

    /// The key of a number below 2^48.
    pub(super) fn key(&self, number: u64) -> Bytes {
        let mut text = Vec::with_capacity(self.bytes);
        let shared = self.bytes.saturating_sub(HASH_BYTES);
        text.extend(SHARED.iter().cycle().take(shared));
        let number = self.space << 48 | number;
        // The last word is a permutation of the numbers, so that no two keys are the same.
        for word in [3, 2, 1, 0] {
            let word = mix(number ^ word << 60);
            for digit in (0..16).rev() {
                text.push(DIGITS[(word >> (4 * digit)) as usize & 15]);
            }
        }
        let surplus = text.len().saturating_sub(self.bytes);
        Bytes::from(text.split_off(surplus))
    }
}

/// The finaliser of SplitMix64, a permutation.
const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_have_their_length_and_are_all_different() {
        assert_eq!(Keys::USUAL_BYTES, 107);
        for bytes in [Keys::LEAST_BYTES, 63, 64, 65, 107, 300] {
            let mut seen = HashSet::new();
            for space in 0..3 {
                let keys = Keys::new(bytes, space);
                for number in 0..1_000 {
                    let key = keys.key(number);
                    assert_eq!(key.len(), bytes);
                    assert!(seen.insert(key));
                }
            }
        }
    }
}
