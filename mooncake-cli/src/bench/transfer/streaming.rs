//! A copy past the cache.
//!
//! An ordinary store first reads the line that it is going to overwrite. For a destination that is
//! not in the cache, and that nobody reads soon, that is a third of the traffic for nothing.

#![expect(unsafe_code, reason = "the one place that stores past the cache")]

use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

const LINE: usize = 64;
const VECTOR: usize = size_of::<__m128i>();

/// Copies `from` to `to`, of the same length, by stores that leave the cache alone.
pub(super) fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "both sides of a copy have one length");
    let head = to.as_ptr().align_offset(LINE).min(to.len());
    let (to_head, to) = to.split_at_mut(head);
    let (from_head, from) = from.split_at(head);
    to_head.copy_from_slice(from_head);
    let (lines, tail) = to.as_chunks_mut::<LINE>();
    let (from_lines, from_tail) = from.as_chunks::<LINE>();
    for (to, from) in lines.iter_mut().zip(from_lines) {
        // SAFETY: the first line is aligned, since the head was split off, and so are those behind it.
        unsafe { line(to, from) };
    }
    tail.copy_from_slice(from_tail);
    // Streaming stores are not ordered with others; from here on they have happened.
    // SAFETY: every processor of this architecture has the instruction.
    unsafe { _mm_sfence() };
}

/// Copies a line.
///
/// # Safety
///
/// `to` must be aligned to its size.
#[inline(always)]
unsafe fn line(to: &mut [u8; LINE], from: &[u8; LINE]) {
    debug_assert!(to.as_ptr().addr().is_multiple_of(LINE), "a line is aligned");
    let (to, from) = (to.as_mut_ptr(), from.as_ptr());
    for at in (0..LINE).step_by(VECTOR) {
        // SAFETY: `at` is less than the length of the array.
        let from = unsafe { from.add(at) };
        // SAFETY: as above.
        let to = unsafe { to.add(at) };
        // SAFETY: a whole vector is left from `at` on, since both are multiples of its size.
        let vector = unsafe { _mm_loadu_si128(from.cast()) };
        // SAFETY: as above, and the caller says that `to` is aligned.
        unsafe { _mm_stream_si128(to.cast(), vector) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_copies_all_and_nothing_else(len in 0..700usize, to in 0..70usize, from in 0..70usize) {
            let source: Vec<u8> = (0..from + len).map(|at| at as u8 | 1).collect();
            let mut dest = vec![0; to + len + 70];
            super::copy(&mut dest[to..to + len], &source[from..]);
            prop_assert_eq!(&dest[to..to + len], &source[from..]);
            prop_assert!(dest[..to].iter().chain(&dest[to + len..]).all(|byte| *byte == 0));
        }
    }
}
