//! Lanes that a target serves. What it must do is worked out a second time, from the description
//! of the protocol.

use mooncake_tent::tcp::fuzz::{
    BUFFER_BYTES, CREDIT_BYTES, CREDIT_REQUESTS, LANE_AGE, MESSAGES, MOST_ARRIVALS, Served, serve,
};

use crate::{Target, shape::shape};

pub(crate) const TARGET: Target = Target {
    name: "requests",
    run,
    words: &[
        b"\x01\0\0\0\0\0\0\0",
        b"\x02\0\0\0\0\0\0\0",
        b"\x03\0\0\0\0\0\0\0",
        b"\x04\0\0\0\0\0\0\0",
        b"\x02\x01\0\0\x01\0\0\0",
        b"\x01\x02\0\0\x01\0\0\0",
        b"\0\0\0\0\0\x01\0\0",
        b"\0\0\0\0\0\0\x01\0",
        &[0xff; 8],
    ],
};

const REQUEST: usize = 48;
const EXTENSION: usize = 16;
/// Flags of requests.
const TELLS: u8 = 1;
const CHECKED: u8 = 2;
/// Statuses of answers.
const APPLIED: u8 = 0;
const NO_ROOM: u8 = 6;
const CORRUPTED: u8 = 7;
const ANSWER: usize = 40;
const LARGEST: u64 = 1 << 40;
const READ: u8 = 1;
const WRITE: u8 = 2;
const FENCE: u8 = 3;
const GIVE_BACK: u8 = 4;
/// In lane time.
const OVERDUE: u64 = LANE_AGE.as_micros() as u64;
/// Longest input: its answers must fit into a socket.
const MOST: usize = 4 << 10;

fn run(bytes: &[u8]) -> u64 {
    let bytes = &bytes[..bytes.len().min(MOST)];
    let served = serve(&[bytes]);
    let cut = serve(&crate::mutation::cut(bytes));
    assert_eq!(served, cut, "how bytes are cut makes a difference");
    assert_eq!(served.leases, 0, "a lease is left");
    let mut expected = Expected::new();
    expected.lane(bytes);
    let statuses = expected.compare(&served);
    shape((served.end, statuses))
}

/// What a target must do.
struct Expected {
    memory: [Vec<u8>; 3],
    answers: Vec<Request>,
    /// Writes that told.
    told: usize,
}

#[derive(Clone, Copy)]
struct Request {
    verb: u8,
    tag: u64,
    registration: u64,
    offset: u64,
    length: u64,
    deadline: u64,
    flags: u8,
    applied: bool,
    /// `None`: any that is a refusal.
    status: Option<u8>,
}

impl Expected {
    fn new() -> Self {
        let byte = |n: usize, at: usize| (n + at) as u8;
        let memory = [1, 2, 3].map(|n| (0..BUFFER_BYTES).map(|at| byte(n, at)).collect());
        Self {
            memory,
            answers: Vec::new(),
            told: 0,
        }
    }

    fn lane(&mut self, mut bytes: &[u8]) {
        while let Some((header, rest)) = bytes.split_first_chunk::<REQUEST>() {
            bytes = rest;
            if (MESSAGES[2].again)(header).is_err() {
                return;
            }
            let mut request = Request::read(header);
            let mut extension = &[0; EXTENSION];
            if request.flags != 0 {
                let Some((long, rest)) = bytes.split_first_chunk::<EXTENSION>() else {
                    return;
                };
                (extension, bytes) = (long, rest);
                let whole = [&header[..], extension].concat();
                let check = u32::from_le_bytes(extension[12..].try_into().expect("4 bytes"));
                let checked = request.flags & CHECKED != 0;
                let payload = number(&[&extension[8..12], &[0; 4]].concat());
                let pointless = request.flags & TELLS == 0 && number(extension) != 0
                    || !checked && (payload, check) != (0, 0)
                    || request.verb != WRITE && payload != 0;
                if pointless || checked && check != crc32c(&whole[..REQUEST + 12]) {
                    return;
                }
            }
            // What is granted at first is never given back.
            if request.length > LARGEST || request.verb == GIVE_BACK {
                return;
            }
            if request.verb != FENCE && (1..=OVERDUE).contains(&request.deadline) {
                return;
            }
            request.applied = request.may(header);
            request.status = request.applied.then_some(APPLIED);
            if request.verb == WRITE {
                let here = bytes
                    .len()
                    .min(usize::try_from(request.length).unwrap_or(usize::MAX));
                let tells = request.flags & TELLS != 0;
                if request.applied && tells && self.told == MOST_ARRIVALS {
                    (request.applied, request.status) = (false, Some(NO_ROOM));
                }
                if request.applied {
                    let from = request.offset as usize;
                    self.memory[0][from..from + here].copy_from_slice(&bytes[..here]);
                }
                if (here as u64) < request.length {
                    return;
                }
                let payload = u32::from_le_bytes(extension[8..12].try_into().expect("4 bytes"));
                let checked = request.flags & CHECKED != 0;
                if request.applied && checked && payload != crc32c(&bytes[..here]) {
                    (request.applied, request.status) = (false, Some(CORRUPTED));
                }
                self.told += usize::from(request.applied && tells);
                bytes = &bytes[here..];
            }
            self.answers.push(request);
        }
    }

    /// Returns the status of each answer.
    fn compare(&self, served: &Served) -> Vec<u8> {
        assert_eq!(served.memory, self.memory);
        let mut answers = &served.answers[..];
        let mut statuses = Vec::new();
        let mut granted = (CREDIT_BYTES, CREDIT_REQUESTS);
        for request in &self.answers {
            let (header, rest) = answers
                .split_first_chunk::<ANSWER>()
                .expect("every request is answered");
            let (status, verb) = (header[0], header[1]);
            let (tag, length) = (number(&header[8..]), number(&header[16..]));
            assert_eq!((verb, tag), (request.verb, request.tag));
            if verb != FENCE {
                granted = (granted.0 + request.length, granted.1 + 1);
            }
            assert_eq!((number(&header[24..]), number(&header[32..])), granted);
            match request.status {
                Some(wanted) => assert_eq!(status, wanted),
                None => assert!((1..=4).contains(&status), "status {status}"),
            }
            let checked = request.flags & CHECKED != 0;
            assert_eq!(header[2..4], [u8::from(checked), 0]);
            let reads = verb == READ && request.applied;
            assert_eq!(length, if reads { request.length } else { 0 });
            let (payload, rest) = rest.split_at(length as usize);
            let check = u32::from_le_bytes(header[4..8].try_into().expect("4 bytes"));
            let mut open = [&header[..], payload].concat();
            open[4..8].fill(0);
            assert_eq!(check, if checked { crc32c(&open) } else { 0 });
            if reads && request.registration == 2 {
                // The other buffer may have been written to since.
                let from = request.offset as usize;
                assert_eq!(payload, &self.memory[1][from..from + payload.len()]);
            }
            answers = rest;
            statuses.push(status);
        }
        assert!(answers.is_empty(), "an answer to nothing");
        statuses
    }
}

impl Request {
    fn read(header: &[u8; REQUEST]) -> Self {
        Self {
            verb: header[0],
            tag: number(&header[8..]),
            registration: number(&header[16..]),
            offset: number(&header[24..]),
            length: number(&header[32..]),
            deadline: number(&header[40..]),
            flags: header[1],
            applied: false,
            status: None,
        }
    }

    fn may(&self, header: &[u8; REQUEST]) -> bool {
        let allowed = match self.verb {
            READ => (1..=2).contains(&self.registration),
            WRITE => self.registration == 1,
            // A fence of a lane that there is not.
            _ => return true,
        };
        let generation = header[4..8] == [1, 0, 0, 0];
        let end = self.offset.checked_add(self.length);
        let within = end.is_some_and(|end| end <= BUFFER_BYTES as u64) && self.length > 0;
        allowed && generation && within
    }
}

/// The number that `bytes` begin with.
fn number(bytes: &[u8]) -> u64 {
    let bytes = bytes.first_chunk().expect("the header is long enough");
    u64::from_le_bytes(*bytes)
}

/// Bit by bit, as it is defined.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut rest = u32::MAX;
    for byte in bytes {
        rest ^= u32::from(*byte);
        for _ in 0..8 {
            rest = (rest >> 1) ^ (0x82f6_3b78 & (rest & 1).wrapping_neg());
        }
    }
    !rest
}
