//! What is in the memory that blocks are taken from, and whether it arrived.

use mooncake_tent::Memory;

use super::walk::Walked;
use crate::output::Failure;
use crate::pattern;

/// All contents belong to this one made-up block: a byte is a function of its position.
const KEY_ID: u64 = 0x7472_616E_7366_6572;
/// What is where nothing has arrived yet.
const WIPED: u8 = 0xDB;
/// Small enough for a cache.
const PIECE: u64 = 64 << 10;

/// Memory as this file sees it.
pub(super) trait Place {
    /// Copies out of it, from byte `at` on.
    fn copy_out(&self, at: u64, into: &mut [u8]);
    /// Copies into it, from byte `at` on.
    fn copy_in(&mut self, at: u64, from: &[u8]);
}

impl Place for &Memory {
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        self.read_at(at, into);
    }

    fn copy_in(&mut self, at: u64, from: &[u8]) {
        self.write_at(at, from);
    }
}

impl Place for &mut [u8] {
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self[at as usize..at as usize + into.len()]);
    }

    fn copy_in(&mut self, at: u64, from: &[u8]) {
        self[at as usize..at as usize + from.len()].copy_from_slice(from);
    }
}

/// Fills the first `len` bytes with what their positions say.
pub(super) fn fill(mut place: impl Place, len: u64) {
    let mut piece = vec![0; PIECE as usize];
    for at in (0..len).step_by(PIECE as usize) {
        let piece = &mut piece[..(len - at).min(PIECE) as usize];
        pattern::fill_at(KEY_ID, at, piece);
        place.copy_in(at, piece);
    }
}

/// Makes sure that nothing of `at..at + len` looks as if it had arrived.
pub(super) fn wipe(place: &mut impl Place, at: u64, len: u64) {
    let piece = [WIPED; 4 << 10];
    let mut done = 0;
    while done < len {
        let some = (len - done).min(piece.len() as u64);
        place.copy_in(at + done, &piece[..some as usize]);
        done += some;
    }
}

/// Makes one byte of the first block wrong.
pub(super) fn corrupt(place: &mut impl Place, at: u64) {
    let mut byte = [0];
    place.copy_out(at, &mut byte);
    place.copy_in(at, &[byte[0] ^ 1]);
}

/// Checks that the last transfer to each place has arrived, and wipes it.
///
/// # Errors
///
/// The first byte that is wrong. `whose` memory it is stands in the message.
pub(super) fn check_and_wipe(
    place: &mut impl Place,
    walked: Walked,
    whose: &str,
) -> Result<(), Failure> {
    let Walked { walk, done } = walked;
    let mut piece = vec![0; walk.block().min(PIECE) as usize];
    for i in walk.last(done) {
        let (source, dest) = (walk.source(i), walk.dest(i));
        for at in (0..walk.block()).step_by(PIECE as usize) {
            let piece = &mut piece[..(walk.block() - at).min(PIECE) as usize];
            place.copy_out(dest + at, piece);
            if let Err(wrong) = pattern::verify_at(KEY_ID, source + at, piece) {
                let found = piece[(wrong - source - at) as usize];
                return Err(wrong_byte(whose, dest + wrong - source, wrong, i, found));
            }
            wipe(place, dest + at, piece.len() as u64);
        }
    }
    Ok(())
}

/// Checks that `at..at + len` is as [`fill`] fills it.
///
/// # Errors
///
/// The first byte that is wrong. `whose` memory it is stands in the message.
pub(super) fn arrived(place: &impl Place, at: u64, len: u64, whose: &str) -> Result<(), Failure> {
    let mut piece = vec![0; len.min(PIECE) as usize];
    for from in (at..at + len).step_by(PIECE as usize) {
        let piece = &mut piece[..(at + len - from).min(PIECE) as usize];
        place.copy_out(from, piece);
        if let Err(wrong) = pattern::verify_at(KEY_ID, from, piece) {
            let found = piece[(wrong - from) as usize];
            let what = format!("byte {wrong} of {whose} is wrong");
            return Err(Failure::new(what).cause(guess(found)));
        }
    }
    Ok(())
}

fn wrong_byte(whose: &str, at: u64, source: u64, operation: u64, found: u8) -> Failure {
    Failure::new(format!(
        "byte {at} of {whose} is wrong after operation {operation}, which moved byte {source} there"
    ))
    .cause(guess(found))
}

fn guess(found: u8) -> &'static str {
    match found {
        WIPED => "nothing has arrived there",
        _ => "something else arrived there",
    }
}

#[cfg(test)]
mod tests {
    use super::super::walk::Walk;
    use super::*;

    /// Moves blocks as a link does, all but one of the operations.
    fn moved(walk: Walk, len: u64, done: u64, lost: Option<u64>) -> Vec<u8> {
        let mut from = vec![0; len as usize];
        fill(from.as_mut_slice(), len);
        let mut to = vec![0; len as usize];
        wipe(&mut to.as_mut_slice(), 0, len);
        for i in (0..done).filter(|i| Some(*i) != lost) {
            let (source, dest) = (walk.source(i) as usize, walk.dest(i) as usize);
            let block = walk.block() as usize;
            to[dest..dest + block].copy_from_slice(&from[source..source + block]);
        }
        to
    }

    #[test]
    fn a_transfer_that_did_not_happen_is_noticed_also_in_a_later_lap() {
        let (len, block) = (1_000, 99);
        let walk = Walk::new(0, len, block, 2).unwrap();
        for done in [1, 7, 10, 25, 30] {
            let walked = Walked { walk, done };
            let mut all = moved(walk, len, done, None);
            check_and_wipe(&mut all.as_mut_slice(), walked, "it").unwrap();
            let mut none = all;
            let again = check_and_wipe(&mut none.as_mut_slice(), walked, "it");
            assert!(again.unwrap_err().human().contains("nothing has arrived"));
            for lost in walk.last(done) {
                let mut to = moved(walk, len, done, Some(lost));
                let failure = check_and_wipe(&mut to.as_mut_slice(), walked, "it").unwrap_err();
                let text = failure.human();
                assert!(text.contains(&format!("after operation {lost},")), "{text}");
            }
        }
    }

    #[test]
    fn a_byte_that_is_wrong_is_named() {
        let len = 3 * PIECE;
        let walk = Walk::new(0, len, len, 1).unwrap();
        let mut to = moved(walk, len, 1, None);
        corrupt(&mut to.as_mut_slice(), PIECE + 5);
        let walked = Walked { walk, done: 1 };
        let failure = check_and_wipe(&mut to.as_mut_slice(), walked, "the target").unwrap_err();
        let expected = format!("byte {} of the target is wrong", PIECE + 5);
        assert!(failure.human().contains(&expected), "{}", failure.human());
    }
}
