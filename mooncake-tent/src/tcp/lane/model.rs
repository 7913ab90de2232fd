//! Lanes beside a target that keeps to the protocol and charges credit: whatever is joined, cut, cancelled,
//! taken over and let wait, bytes, ends and books are right.

use std::{
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use rustix::net::sockopt;
use smallvec::smallvec;

use super::*;
use crate::{
    credit::{Account, Credit, Ledger},
    identity::Incarnation,
    memory::{LocalBuffer, Memory, Permission},
    tcp::wire::REQUEST_BYTES,
    transport::{BatchState, Op, Peer, TaskSlab, TaskSpec},
};

const MEMORY: usize = 128 << 10;
/// What refers to it is refused.
const STALE: u32 = 3;

fn ours(at: usize) -> u8 {
    (at % 251) as u8
}

fn theirs(at: usize) -> u8 {
    (at % 241 + 7) as u8
}

/// The target's end of a lane.
struct End {
    peer: UnixStream,
    came: Vec<u8>,
    going: Vec<u8>,
    /// It does nothing else until all answers are gone.
    sends: bool,
    /// The request at the front is charged.
    charged: bool,
    account: Account,
}

impl End {
    /// Takes at most so many bytes and does what they ask for; `eager`: all that it can. `false`: nothing
    /// moved.
    fn serve(&mut self, most: usize, remote: &mut [u8], draw: &mut StdRng, eager: bool) -> bool {
        let mut moved = false;
        loop {
            if self.sends {
                let given = self.peer.write(&self.going).unwrap_or(0);
                self.going.drain(..given);
                moved |= given > 0;
                if !self.going.is_empty() {
                    return moved;
                }
                self.sends = false;
                self.account.settle();
            }
            let mut some = vec![0; most];
            let taken = self.peer.read(&mut some).unwrap_or(0);
            self.came.extend_from_slice(&some[..taken]);
            let mut did = taken > 0;
            while !self.sends && self.step(remote) {
                did = true;
                self.sends = draw.random_ratio(1, 4);
            }
            moved |= did;
            self.sends |= !self.going.is_empty() && (eager || draw.random_ratio(1, 3));
            if !eager || !did && !self.sends {
                return moved;
            }
        }
    }

    /// Does one request; `false`: none is wholly here.
    fn step(&mut self, remote: &mut [u8]) -> bool {
        let Some(header) = self.came.first_chunk::<REQUEST_BYTES>() else {
            return false;
        };
        let request = RequestHeader::decode(header).expect("it is a request");
        if request.verb == Verb::GiveBack {
            let given = self.account.give_back(request.given_back());
            given.expect("it was never spent");
            self.came.drain(..REQUEST_BYTES);
            return true;
        }
        if !self.charged {
            let cost = request.verb.cost(request.length);
            self.account.take(cost).expect("it was granted");
            self.charged = true;
        }
        let (offset, length) = (request.offset as usize, request.length as usize);
        let payload = if request.verb == Verb::Write {
            length
        } else {
            0
        };
        let Some(bytes) = self.came[REQUEST_BYTES..].get(..payload) else {
            return false;
        };
        let status = match () {
            () if request.generation == Generation(STALE) => {
                Status::Refused(Refusal::StaleGeneration)
            }
            () if offset + length > remote.len() => Status::Refused(Refusal::OutOfBounds),
            () => Status::Applied,
        };
        let mut answer = AnswerHeader {
            status,
            verb: request.verb,
            check: None,
            tag: request.tag,
            length: 0,
            granted: self.account.grant(),
        };
        let mut read = 0..0;
        if status == Status::Applied {
            remote[offset..offset + payload].copy_from_slice(bytes);
            if request.verb == Verb::Read {
                (answer.length, read) = (request.length, offset..offset + length);
            }
        }
        self.charged = false;
        self.going.extend(answer.encode());
        self.going.extend(&remote[read]);
        self.came.drain(..REQUEST_BYTES + payload);
        true
    }
}

#[derive(Clone, Copy)]
struct Ask {
    verb: Verb,
    offset: u64,
    length: u64,
    generation: u32,
    deadline: Option<Instant>,
}

impl Ask {
    /// It lies within the peer's memory, which refuses it for nothing else either.
    fn fits(&self) -> bool {
        self.generation != STALE && (self.offset + self.length) as usize <= MEMORY
    }
}

/// Mostly neighbours that can be joined; some beyond the end of the peer's memory.
fn asks(draw: &mut StdRng, far: Instant) -> Vec<Ask> {
    let longest = *[20, 300, 3000].choose(draw).unwrap();
    let most = *[10, 60, 200].choose(draw).unwrap();
    let count = draw.random_range(1..=most);
    let mut ask = Ask {
        verb: Verb::Write,
        offset: draw.random_range(0..MEMORY as u64),
        length: 0,
        generation: 1,
        deadline: None,
    };
    let mut all = Vec::new();
    for _ in 0..count {
        ask.offset += ask.length + u64::from(draw.random_ratio(1, 15)) * 3;
        if draw.random_ratio(1, 12) {
            ask.verb = *[Verb::Read, Verb::Write].choose(draw).unwrap();
        }
        if draw.random_ratio(1, 20) {
            ask.generation = draw.random_range(1..=STALE);
        }
        if draw.random_ratio(1, 20) {
            ask.deadline = draw.random_bool(0.5).then_some(far);
        }
        ask.length = match draw.random_ratio(1, 40) {
            true => 9_000,
            false => draw.random_range(1..=longest),
        };
        if ask.offset + ask.length > 2 * MEMORY as u64 {
            break;
        }
        all.push(ask);
    }
    all
}

fn run(seed: u64) {
    let draw = &mut StdRng::seed_from_u64(seed);
    let totals = Credit {
        bytes: [1, 2_000, 20_000, 70_000, 1 << 20].choose(draw).unwrap() + seed % 1000,
        requests: *[1, 4, 9, 40, 300, 5000].choose(draw).unwrap(),
    };
    let ledger = Ledger::new(totals, 2);
    let config = TcpConfig {
        window: *[1, 2, 5, 30, 1024].choose(draw).unwrap(),
        window_bytes: *[1, 3000, 9000, 64 << 10, 4 << 20].choose(draw).unwrap(),
        ..TcpConfig::default()
    };
    let tasks: Tasks = Arc::new(TaskSlab::new());
    let (id, load) = (PeerId::from_u64(1).unwrap(), Arc::<PeerLoad>::default());
    let room = *[4_096, 20_000, 200_000].choose(draw).unwrap();
    let (mut lanes, mut ends) = (Vec::new(), Vec::new());
    for number in 0..ledger.seats() {
        let lane = Lane::new(
            number + 1,
            id,
            Arc::clone(&tasks),
            &config,
            Arc::clone(&load),
        );
        let (socket, peer) = UnixStream::pair().unwrap();
        for end in [&socket, &peer] {
            sockopt::set_socket_send_buffer_size(end, room).unwrap();
        }
        peer.set_nonblocking(true).unwrap();
        let most = Credit {
            bytes: config.window_bytes,
            requests: config.window as u64,
        };
        let account = ledger.open(id, most).unwrap();
        lane.begin_with(account.granted(), Duration::ZERO);
        lane.connected(TcpStream::from(OwnedFd::from(socket)), LaneClock::start());
        lanes.push(lane);
        ends.push(End {
            peer,
            came: Vec::new(),
            going: Vec::new(),
            sends: false,
            charged: false,
            account,
        });
    }

    let far = Instant::now() + Duration::from_secs(3600);
    let asks = asks(draw, far);
    let memory = Memory::from_vec((0..2 * MEMORY).map(ours).collect()).unwrap();
    let registration = RegistrationId(1);
    let local = LocalBuffer::new(registration, memory, Permission::Local, String::new());
    let local = Arc::new(local);
    let target = Arc::new(Peer::new(Incarnation::random(), Vec::new()));
    let slice = |ask: &Ask| {
        let range = ask.offset..ask.offset + ask.length;
        LocalSlice::new(local.lease(None).unwrap(), range).unwrap()
    };
    let spec = |ask: &Ask| TaskSpec {
        op: if ask.verb == Verb::Read {
            Op::Read
        } else {
            Op::Write
        },
        local: smallvec![slice(ask)],
        peer: Arc::clone(&target),
        registration,
        generation: Generation(ask.generation),
        offset: ask.offset,
        length: ask.length,
        deadline: ask.deadline,
        receipt: crate::transport::Receipt::default(),
        qos: crate::qos::Qos::new(),
        terms: None,
        origin: None,
        meter: crate::metrics::MeterId::NONE,
    };
    let specs: Vec<_> = asks.iter().map(spec).collect();
    let (batch, mut refs) = (Arc::new(BatchState::default()), Vec::new());
    tasks.take(&batch, specs.len(), &mut refs).unwrap();
    tasks.begin(
        &batch,
        &refs,
        specs.iter().map(|spec| (spec.clone(), false)),
    );
    let posts = refs.iter().zip(specs).zip(&asks);
    let mut posts: VecDeque<_> = posts
        .map(|((task, spec), ask)| Post {
            task: *task,
            verb: ask.verb,
            local: spec.local,
            registration,
            generation: spec.generation,
            offset: spec.offset,
            length: spec.length,
            deadline: spec.deadline,
            flags: Flags::default(),
            extension: Extension::default(),
            single: false,
        })
        .collect();

    let mut remote: Vec<u8> = (0..MEMORY).map(theirs).collect();
    let mut cancelled = vec![false; asks.len()];
    let (mut posted, mut timed, mut now) = (0, false, Instant::now());
    for _ in 0..draw.random_range(0..150) {
        let at = draw.random_range(0..lanes.len());
        let lane = &lanes[at];
        match draw.random_range(0..16) {
            0 | 1 => {
                let some = draw.random_range(1..=30).min(posts.len());
                posted += some;
                assert!(lane.post(&mut posts.drain(..some).collect()));
            }
            2..=4 => _ = lane.flush(),
            5..=7 => {
                let most = draw.random_range(0..8000);
                ends[at].serve(most, &mut remote, draw, false);
            }
            8..=10 => _ = lane.receive(&mut lane.receiver()).unwrap(),
            11 if posted > 0 => {
                let task = draw.random_range(0..posted);
                cancelled[task] = true;
                tasks.ask_to_cancel(refs[task]);
                lanes.iter().for_each(|lane| lane.cancel(refs[task]));
            }
            12 if lanes.len() > 1 => _ = lane.relieve(&lanes[1 - at]),
            13 => {
                let window = draw.random_bool(0.5).then(|| draw.random_range(1..5000));
                lane.granted
                    .suit(window.unwrap_or(u64::MAX), draw.next_u64() % 9000);
            }
            14 if draw.random_ratio(1, 10) => {
                timed = true;
                lane.end_overdue(far + Duration::from_secs(1));
            }
            15 => {
                now += Duration::from_millis(400);
                lane.give_back(&mut lane.receiver(), now);
            }
            _ => {}
        }
        assert!(totals.max(Credit::of_request(1)).covers(ledger.held()));
    }
    assert!(lanes[0].post(&mut posts.drain(..).collect()));
    let mut moves = true;
    while moves {
        moves = false;
        for (lane, end) in lanes.iter().zip(&mut ends) {
            lane.flush();
            moves |= end.serve(1 << 20, &mut remote, draw, true);
            let heard = lane.receive(&mut lane.receiver()).unwrap();
            moves |= heard != Received::Nothing;
        }
    }

    let mut found = vec![0; 2 * MEMORY];
    local.memory().read_at(0, &mut found);
    for (i, ask) in asks.iter().enumerate() {
        let outcome = tasks.outcome(refs[i]).expect("it has ended");
        let bytes = ask.length;
        let ended_early = cancelled[i] || timed && ask.deadline.is_some();
        if !ended_early {
            let completed = outcome == Outcome::Completed { bytes };
            assert_eq!(completed, ask.fits(), "task {i}: {outcome:?}");
        }
        let done = outcome.is_completed();
        for at in (ask.offset..ask.offset + bytes).map(|at| at as usize) {
            let there = remote.get(at).copied();
            match ask.verb {
                Verb::Read if done => assert_eq!(Some(found[at]), there),
                Verb::Read => assert!(found[at] == ours(at) || Some(found[at]) == there),
                _ => {
                    let wanted = if done { ours(at) } else { theirs(at) };
                    assert!(there.is_none_or(|there| there == wanted), "task {i}");
                    assert_eq!(found[at], ours(at));
                }
            }
        }
    }
    for (lane, end) in lanes.iter().zip(&ends) {
        let receiver = lane.receiver();
        assert!(lane.is_at_rest(&receiver) && lane.load() == 0);
        let sender = lane.outbox.lock();
        assert_eq!(sender.outbox.frames(), 0);
        let left = sender.outbox.left(lane.granted.now());
        assert_eq!(left, end.account.left(), "both sides count alike");
        assert_eq!(left, receiver.allowance.grants().room());
    }
    assert_eq!(local.leases(), 0);
    drop(ends);
    assert!(ledger.held().is_zero());
}

/// Repeat one with MOONCAKE_LANE_SEED, try more with MOONCAKE_LANE_SEEDS.
#[test]
fn whatever_happens_on_two_lanes_bytes_ends_and_credit_are_right() {
    if let Ok(seed) = std::env::var("MOONCAKE_LANE_SEED") {
        return run(seed.parse().expect("a number"));
    }
    let seeds = std::env::var("MOONCAKE_LANE_SEEDS").map_or(5_000, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let ran = std::panic::catch_unwind(|| run(seed));
        assert!(ran.is_ok(), "seed {seed}");
    }
}
