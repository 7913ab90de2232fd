//! Changes inputs, and cuts them into pieces.

use mooncake_tent::tcp::fuzz::MOST_AT_ONCE;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

/// Longest input that is made.
const MOST: usize = 4 << 10;
/// Numbers at whose edges mistakes are made.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    (1 << 63) - 1,
    u64::MAX,
];

/// Cuts `bytes` into pieces that each arrive by themselves; the same bytes always alike.
pub(crate) fn cut(bytes: &[u8]) -> Vec<&[u8]> {
    let mut draw = StdRng::seed_from_u64(crate::shape::shape(bytes));
    // Of long inputs as pieces of a byte, a socket could not take all.
    let most = match bytes.len() {
        0..=128 if draw.random() => 1,
        _ => MOST_AT_ONCE,
    };
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let length = draw.random_range(1..=most).min(rest.len());
        let (piece, left) = rest.split_at(length);
        pieces.push(piece);
        rest = left;
    }
    // So that even a single piece counts as cut.
    pieces.push(&[]);
    pieces
}

/// Changes `input` a few times, by what `others` and `words` have.
pub(crate) fn mutate(draw: &mut StdRng, input: &mut Vec<u8>, others: &[Vec<u8>], words: &[&[u8]]) {
    for _ in 0..draw.random_range(1..=5) {
        step(draw, input, others, words);
        input.truncate(MOST);
    }
}

fn step(draw: &mut StdRng, input: &mut Vec<u8>, others: &[Vec<u8>], words: &[&[u8]]) {
    let at = draw.random_range(0..=input.len());
    match draw.random_range(0..10) {
        0 => input.truncate(at),
        1 => {
            // A part goes.
            let end = (at + draw.random_range(1..=16)).min(input.len());
            input.drain(at..end);
        }
        2 => {
            // A part comes once more, here or elsewhere.
            let end = (at + draw.random_range(1..=64)).min(input.len());
            let part = input[at..end].to_vec();
            let place = draw.random_range(0..=input.len());
            insert(input, place, &part);
        }
        3 => overwrite(draw, input, at),
        4 => {
            let word = pick(draw, words);
            insert(input, at, word);
        }
        5 => {
            let word = pick(draw, words);
            let end = (at + word.len()).min(input.len());
            input.splice(at..end, word.iter().copied());
        }
        6 => {
            // Goes on as another input does.
            let other = pick(draw, others);
            let from = draw.random_range(0..=other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        7 => insert(input, at, &[draw.random()]),
        8 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = draw.random();
            }
        }
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << draw.random_range(0..8);
            }
        }
    }
}

/// Puts a number over what stands there, in one of the forms that numbers have.
fn overwrite(draw: &mut StdRng, input: &mut Vec<u8>, at: usize) {
    let edge = pick(draw, &EDGES);
    let number = edge.wrapping_add(draw.random_range(0..3)).wrapping_sub(1);
    let form = match draw.random_range(0..6) {
        0 => vec![number as u8],
        1 => (number as u16).to_le_bytes().to_vec(),
        2 => (number as u32).to_le_bytes().to_vec(),
        3 => number.to_le_bytes().to_vec(),
        4 => number.to_string().into_bytes(),
        _ => {
            let mut form = Vec::new();
            prost::encoding::encode_varint(number, &mut form);
            form
        }
    };
    let end = (at + form.len()).min(input.len());
    input.splice(at..end, form);
}

fn insert(input: &mut Vec<u8>, at: usize, part: &[u8]) {
    input.splice(at..at, part.iter().copied());
}

/// A generator that is the same for the same target and seed.
pub(crate) fn draw(target: &str, seed: u64) -> StdRng {
    StdRng::seed_from_u64(crate::shape::shape((target, seed)))
}

/// Anything that a generator can be used for.
pub(crate) fn pick<'a, T>(draw: &mut impl Rng, from: &'a [T]) -> &'a T {
    &from[draw.random_range(0..from.len())]
}
