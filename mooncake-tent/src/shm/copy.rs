//! Copies of cold blocks.

#![expect(unsafe_code, reason = "streaming stores have no safe form")]

use crate::memory::Piece;

/// From so many bytes on, what is written had better not go through the caches.
const STREAMED: usize = 32 << 10;

/// Copies all of `from` to the beginning of `into`, past the caches where that is faster.
///
/// A plain store first fetches the line that it overwrites. Storing past the caches saves that third
/// of the traffic, and what is so long is cold when it is used in any case.
pub(crate) fn stream(from: Piece, into: Piece) {
    assert!(from.len() <= into.len(), "copying beyond a piece");
    #[cfg(target_arch = "x86_64")]
    if from.len() >= STREAMED && std::arch::is_x86_feature_detected!("avx") {
        return avx(from, into);
    }
    into.copy_from(from);
}

#[cfg(target_arch = "x86_64")]
fn avx(from: Piece, into: Piece) {
    /// Bytes that are stored together: two lines.
    const STEP: usize = 128;
    let len = from.len();
    // Up to where the destination is aligned to vectors.
    let head = into.as_ptr().align_offset(32).min(len);
    let body = (len - head) / STEP * STEP;
    into.copy_from(from.first(head));
    let (source, target) = (from.skip(head).as_ptr(), into.skip(head).as_ptr());
    // SAFETY: AVX was detected; both pieces are live, hold `body` bytes from here on at least, and
    // the destination is aligned to 32 bytes.
    unsafe { lines(source, target, body) };
    into.skip(head + body).copy_from(from.skip(head + body));
}

/// # Safety
///
/// AVX is there, `into` is aligned to 32 bytes, `len` is a multiple of 128, and both ranges are live.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "they are one step of a loop"
)]
unsafe fn lines(from: *const u8, into: *mut u8, len: usize) {
    use std::arch::x86_64::{
        __m256i, _MM_HINT_NTA, _mm_prefetch, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256,
    };
    /// How far ahead is fetched what is read next.
    const AHEAD: usize = 512;
    let mut at = 0;
    while at < len {
        // SAFETY: `at + 128 <= len`, and by the contract both ranges are live and the destination
        // is aligned. Fetching ahead touches nothing.
        unsafe {
            let source = from.add(at);
            let target = into.add(at).cast::<__m256i>();
            _mm_prefetch::<_MM_HINT_NTA>(source.wrapping_add(AHEAD).cast());
            _mm_prefetch::<_MM_HINT_NTA>(source.wrapping_add(AHEAD + 64).cast());
            let source = source.cast::<__m256i>();
            let a = _mm256_loadu_si256(source);
            let b = _mm256_loadu_si256(source.add(1));
            let c = _mm256_loadu_si256(source.add(2));
            let d = _mm256_loadu_si256(source.add(3));
            _mm256_stream_si256(target, a);
            _mm256_stream_si256(target.add(1), b);
            _mm256_stream_si256(target.add(2), c);
            _mm256_stream_si256(target.add(3), d);
        }
        at += 128;
    }
    // Such stores are not ordered with those that announce them.
    _mm_sfence();
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn every_byte_arrives_wherever_both_ends_lie_and_none_beyond() {
        const ROOM: usize = STREAMED + 1024;
        let from = Memory::allocate(ROOM).unwrap();
        let bytes: Vec<u8> = (0..ROOM).map(|at| ((at * 31) ^ (at >> 8)) as u8).collect();
        from.write_at(0, &bytes);
        for (start, at, more) in [
            (0, 0, 0),
            (1, 0, 1),
            (0, 1, 127),
            (7, 33, 129),
            (63, 31, 500),
        ] {
            let len = STREAMED + more;
            let into = Memory::from_vec(vec![7; ROOM]).unwrap();
            let piece = |memory: &Memory, at: usize| memory.piece(at as u64..(at + len) as u64);
            stream(piece(&from, start), piece(&into, at));
            let mut found = vec![0; ROOM];
            into.read_at(0, &mut found);
            assert!(found[..at].iter().all(|byte| *byte == 7));
            assert!(
                found[at..at + len] == bytes[start..start + len],
                "{start} {at} {more}"
            );
            assert!(found[at + len..].iter().all(|byte| *byte == 7));
        }
    }
}
