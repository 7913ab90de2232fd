//! Block content that tells where it belongs.
//!
//! Every 8-byte word depends on the block's key id and on its position, so a reader that knows both
//! notices any byte that was swapped, shifted, torn, left over from another block or never written.
//! It is no checksum against an adversary: who knows the key id can write the content.
//!
//! ```
//! let mut block = vec![0; 4_099];
//! mooncake_cli::pattern::fill(7, &mut block);
//! assert_eq!(mooncake_cli::pattern::verify(7, &block), Ok(()));
//! block[4_000] ^= 1;
//! assert_eq!(mooncake_cli::pattern::verify(7, &block), Err(4_000));
//! ```

/// Words that are compared at once; only a mismatch is looked at closer.
const RUN: usize = 32;
const WORD: usize = size_of::<u64>();

/// Fills `block` with the content of the block `key_id`.
pub fn fill(key_id: u64, block: &mut [u8]) {
    fill_at(key_id, 0, block);
}

/// Fills `piece` with the content of the block `key_id` from byte `offset` on.
pub fn fill_at(key_id: u64, offset: u64, piece: &mut [u8]) {
    let mut words = Words::new(key_id, offset);
    let (head, rest) = piece.split_at_mut(head_of(offset, piece.len()));
    if !head.is_empty() {
        let skip = (offset % WORD as u64) as usize;
        head.copy_from_slice(&words.next().to_le_bytes()[skip..skip + head.len()]);
    }
    let mut whole = rest.chunks_exact_mut(WORD);
    for word in &mut whole {
        word.copy_from_slice(&words.next().to_le_bytes());
    }
    let tail = whole.into_remainder();
    tail.copy_from_slice(&words.next().to_le_bytes()[..tail.len()]);
}

/// Checks that `block` is the content of the block `key_id`.
///
/// # Errors
///
/// The offset of the first byte that is wrong.
pub fn verify(key_id: u64, block: &[u8]) -> Result<(), u64> {
    verify_at(key_id, 0, block)
}

/// Checks that `piece` is the content of the block `key_id` from byte `offset` on.
///
/// # Errors
///
/// The offset *in the block* of the first byte that is wrong.
pub fn verify_at(key_id: u64, offset: u64, piece: &[u8]) -> Result<(), u64> {
    let mut words = Words::new(key_id, offset);
    let (head, rest) = piece.split_at(head_of(offset, piece.len()));
    if !head.is_empty() {
        let skip = (offset % WORD as u64) as usize;
        same(offset, head, &words.next().to_le_bytes()[skip..])?;
    }
    let mut at = offset + head.len() as u64;
    let mut runs = rest.chunks_exact(RUN * WORD);
    for run in &mut runs {
        let start = words.clone();
        let (read, _) = run.as_chunks::<WORD>();
        let difference = read.iter().fold(0, |sum, word| {
            sum | (u64::from_le_bytes(*word) ^ words.next())
        });
        if difference != 0 {
            closely(at, run, start)?;
        }
        at += run.len() as u64;
    }
    closely(at, runs.remainder(), words)
}

/// Bytes of a piece before the first whole word.
fn head_of(offset: u64, len: usize) -> usize {
    let skip = (offset % WORD as u64) as usize;
    ((WORD - skip) % WORD).min(len)
}

fn closely(at: u64, bytes: &[u8], mut words: Words) -> Result<(), u64> {
    for (index, word) in bytes.chunks(WORD).enumerate() {
        same(
            at + (index * WORD) as u64,
            word,
            &words.next().to_le_bytes(),
        )?;
    }
    Ok(())
}

fn same(at: u64, bytes: &[u8], expected: &[u8]) -> Result<(), u64> {
    match bytes
        .iter()
        .zip(expected)
        .position(|(byte, expected)| byte != expected)
    {
        Some(wrong) => Err(at + wrong as u64),
        None => Ok(()),
    }
}

/// The words of a block from some position on.
#[derive(Clone)]
struct Words {
    state: u64,
}

impl Words {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

    /// The words from the one that holds byte `offset`.
    fn new(key_id: u64, offset: u64) -> Self {
        // Mixed well, so that two blocks do not walk through the same states a few words apart.
        let mut seed = key_id ^ 0x5851_F42D_4C95_7F2D;
        for _ in 0..2 {
            seed = (seed ^ (seed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        }
        seed ^= seed >> 32;
        Self {
            state: seed.wrapping_add((offset / WORD as u64).wrapping_mul(Self::STEP)),
        }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        let word = (self.state ^ (self.state >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        self.state = self.state.wrapping_add(Self::STEP);
        word ^ (word >> 32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(key_id: u64, len: usize) -> Vec<u8> {
        let mut block = vec![0; len];
        fill(key_id, &mut block);
        block
    }

    proptest! {
        #[test]
        fn what_was_filled_verifies(key in any::<u64>(), len in 0..3_000usize) {
            prop_assert_eq!(verify(key, &block(key, len)), Ok(()));
        }

        #[test]
        fn any_wrong_byte_is_found_where_it_is(key in any::<u64>(), len in 1..3_000usize, at: prop::sample::Index, flip in 1..=255u8) {
            let (mut block, at) = (block(key, len), at.index(len));
            block[at] ^= flip;
            prop_assert_eq!(verify(key, &block), Err(at as u64));
        }

        #[test]
        fn pieces_are_parts_of_the_whole(key in any::<u64>(), len in 0..3_000usize, cut: prop::sample::Index) {
            let (whole, cut) = (block(key, len), cut.index(len + 1));
            let mut pieces = vec![0; len];
            let (left, right) = pieces.split_at_mut(cut);
            fill_at(key, 0, left);
            fill_at(key, cut as u64, right);
            prop_assert_eq!(verify_at(key, cut as u64, right), Ok(()));
            prop_assert_eq!(pieces, whole);
        }

        #[test]
        fn a_piece_at_another_place_is_noticed(key in any::<u64>(), shift in 1..5_000u64, offset in 0..5_000u64) {
            let mut piece = [0; 64];
            fill_at(key, offset, &mut piece);
            prop_assert!(verify_at(key, offset + shift, &piece).is_err());
        }

        #[test]
        fn another_block_is_noticed_at_once(key in any::<u64>(), other in any::<u64>()) {
            prop_assume!(key != other);
            prop_assert!(verify(key, &block(other, 256)).is_err_and(|at| at < 8));
        }
    }

    #[test]
    fn neighbouring_keys_share_no_word() {
        let mut words: Vec<u64> = (0..64)
            .flat_map(|key| {
                block(key, 8_192)
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .map(|word| u64::from_le_bytes(*word))
                    .collect::<Vec<_>>()
            })
            .collect();
        let all = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), all);
    }

    #[test]
    fn memory_that_was_never_written_is_noticed() {
        assert!((0..1_000).all(|key| verify(key, &[0; 64]).is_err()));
    }
}
