//! Answers that an initiator receives. What it must make of them is worked out a second time, from
//! the description of the protocol.

use mooncake_tent::tcp::fuzz::{AWAITED, Awaited, GAP, Heard, MESSAGES, receive};

use crate::{Target, shape::shape};

pub(crate) const TARGET: Target = Target {
    name: "answers",
    run,
    words: &[
        b"\0\x01\0\0\0\0\0\0",
        b"\0\x02\0\0\0\0\0\0",
        b"\x04\x01\0\0\0\0\0\0",
        b"\x28\0\0\0\0\0\0\0",
        b"\x03\0\0\0\0\0\0\0",
        b"\x09\0\0\0\0\0\0\0",
        &[0; 8],
    ],
};

const ANSWER: usize = 40;
const APPLIED: u8 = 0;
const STILL_RUNNING: u8 = 5;
const MOST: usize = 4 << 10;

fn run(bytes: &[u8]) -> u64 {
    let bytes = &bytes[..bytes.len().min(MOST)];
    let heard = receive(&[bytes]);
    let cut = receive(&crate::mutation::cut(bytes));
    assert_eq!(heard, cut, "how bytes are cut makes a difference");
    let expected = Expected::of(bytes);
    expected.compare(&heard);
    shape((heard.end, expected.applied))
}

/// What an initiator must make of answers.
struct Expected {
    memory: Vec<u8>,
    /// One for each request that was answered.
    applied: Vec<bool>,
}

impl Expected {
    fn of(mut bytes: &[u8]) -> Self {
        let mut expected = Self {
            memory: Vec::new(),
            applied: Vec::new(),
        };
        let mut goes_on = true;
        for (tag, awaited) in AWAITED.iter().enumerate() {
            let total: usize = awaited.pieces.iter().sum();
            let mut payload: &[u8] = &[];
            goes_on = goes_on && {
                let answer = fits(bytes, tag, awaited);
                if let Some(applied) = answer {
                    bytes = &bytes[ANSWER..];
                    let due = if applied && awaited.reads { total } else { 0 };
                    let here = due.min(bytes.len());
                    (payload, bytes) = bytes.split_at(here);
                    if here == due {
                        expected.applied.push(applied);
                    }
                }
                answer.is_some()
            };
            let mut payload = payload.iter().copied();
            for length in awaited.pieces {
                let piece = (0..*length).map(|_| payload.next().unwrap_or(0));
                expected.memory.extend(piece);
                expected.memory.extend([0; GAP]);
            }
        }
        expected
    }

    fn compare(&self, heard: &Heard) {
        assert_eq!(heard.memory, self.memory);
        for (at, outcome) in heard.outcomes.iter().enumerate() {
            let outcome = outcome.as_ref().expect("a lane that ends leaves nothing");
            let applied = self.applied.get(at) == Some(&true);
            assert_eq!(outcome.is_completed(), applied, "{at}: {outcome:?}");
            // A write that was sent and not answered may still land.
            let loud = !AWAITED[at].reads && at >= self.applied.len();
            assert_eq!(heard.loud[at], loud, "{at}: {outcome:?}");
        }
        assert_eq!(heard.leases, 0, "a lane that is over reads no memory");
    }
}

/// Whether the answer that `bytes` begin with says that request `tag` was applied; `None` if it is
/// no answer to it.
fn fits(bytes: &[u8], tag: usize, awaited: &Awaited) -> Option<bool> {
    let header = bytes.first_chunk::<ANSWER>()?;
    (MESSAGES[3].again)(header).ok()?;
    let verb = if awaited.reads { 1 } else { 2 };
    let applied = header[0] == APPLIED;
    let length: usize = match awaited.reads && applied {
        true => awaited.pieces.iter().sum(),
        false => 0,
    };
    let numbers = [tag, length].map(|number| (number as u64).to_le_bytes());
    let right = header[1] == verb && header[8..24] == *numbers.concat();
    // What only a write is answered: there is no room to note it, or it was changed on the way.
    let status = header[0] < STILL_RUNNING || header[0] > STILL_RUNNING && !awaited.reads;
    // What it grants does not matter: everything was sent.
    // Nothing here was asked to be checked.
    let unchecked = header[2..8] == [0; 6];
    (right && status && unchecked).then_some(applied)
}
