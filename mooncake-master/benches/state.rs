//! The hot paths of the master, one a run, for the count of their instructions.
//!
//! `cargo bench -p mooncake-master --bench state -- CASE` runs `measured` so many times as it then
//! prints; `./test` counts the instructions in there.

use std::hint::black_box;

use mooncake_master::{
    Time,
    state::{
        Answer, Caller, ClientId, Command, Key, Operation, PutStart, SegmentId, SegmentIdentity,
        Settings, State,
    },
};
use mooncake_proto::master::{ClientFrame, ExistRequest, operation::Operation as Request};
use prost::Message as _;

const CLIENT: ClientId = ClientId(1);
const OBJECTS: u64 = 100_000;

/// The only function whose instructions count.
#[inline(never)]
fn measured(run: &mut dyn FnMut()) {
    run();
}

/// Runs it once to warm up, then so many times.
fn count(operations: u64, rounds: u64, mut run: impl FnMut()) {
    run();
    for _ in 0..rounds {
        measured(&mut run);
    }
    println!("operations {}", operations * rounds);
}

fn main() {
    let cases: [(&str, fn()); 3] = [
        ("exist", exist),
        ("put", put),
        ("session-frame", session_frame),
    ];
    let asked: Vec<_> = std::env::args().skip(1).collect();
    for (name, run) in cases {
        if asked.is_empty()
            || asked
                .iter()
                .any(|other| other == name || other == "--bench")
        {
            run();
        }
    }
}

struct Store {
    state: State,
    number: u64,
}

impl Store {
    fn new() -> Self {
        let mut state = State::new(1, Settings::default());
        let hello = Command::Hello {
            client: CLIENT,
            tenant: String::new(),
            name: String::new(),
        };
        state.apply(Time::ZERO, &hello);
        let mut store = Self { state, number: 0 };
        store.perform(Operation::Mount(SegmentIdentity {
            id: SegmentId([1; 16]),
            name: "segment".to_owned(),
            owner: CLIENT,
            registration: 1,
            generation: 0,
            length: 1 << 40,
            owner_name: String::new(),
        }));
        store
    }

    fn perform(&mut self, operation: Operation) -> Answer {
        self.number += 1;
        let (client, number) = (CLIENT, self.number);
        let acknowledge = Command::AcknowledgeBelow { client, number };
        self.state.apply(Time(number), &acknowledge);
        let caller = Caller::Session { client, number };
        let perform = Command::Perform { caller, operation };
        self.state.apply(Time(number), &perform).answer
    }

    fn put(&mut self, keys: &[Key]) {
        let put = PutStart {
            items: keys.iter().map(|key| (key.clone(), 200_000)).collect(),
            replicas: 1,
            ..PutStart::default()
        };
        let Answer::Started(started) = self.perform(Operation::PutStart(put)) else {
            unreachable!("PutStart is answered by Started");
        };
        let ends = keys.iter().zip(started.results);
        let ends = ends.filter_map(|(key, object)| Some((key.clone(), object.ok()?.incarnation)));
        let ends = ends.collect();
        self.perform(Operation::PutEnd(ends));
    }
}

/// As long as the keys of inference engines.
fn keys(numbers: impl Iterator<Item = u64>) -> Vec<Key> {
    let key = |n| Key(format!("{n:0107}").into_bytes().into());
    numbers.map(key).collect()
}

fn exist() {
    let mut store = Store::new();
    let all = keys(0..OBJECTS);
    for batch in all.chunks(1000) {
        store.put(batch);
    }
    let mut next = (0..OBJECTS).step_by(1000).map(|first| {
        let spread = (0..1000).map(|n| all[((first + n) * 61_803 % OBJECTS) as usize].clone());
        Operation::Exist(spread.collect())
    });
    let mut batches: Vec<_> = next.by_ref().take(21).collect();
    count(1000, 20, || {
        let answer = store.perform(batches.pop().expect("there is one for each round"));
        assert!(matches!(black_box(answer), Answer::Exist(found) if found.len() == 1000));
    });
}

fn put() {
    let mut store = Store::new();
    let all = keys(0..OBJECTS / 2);
    let mut batches = all.chunks(128);
    count(128, 100, || {
        store.put(batches.next().expect("there is one for each round"));
    });
    assert_eq!(store.state.counters().objects, 128 * 101);
}

fn session_frame() {
    let operation = |number: u64| mooncake_proto::master::Operation {
        number,
        operation: Some(Request::Exist(ExistRequest {
            keys: keys(number..number + 1)
                .into_iter()
                .map(|key| key.0)
                .collect(),
            ..ExistRequest::default()
        })),
    };
    let frame = ClientFrame {
        operations: (1..=128).map(operation).collect(),
        ..ClientFrame::default()
    };
    count(128, 100, || {
        let bytes = bytes::Bytes::from(black_box(&frame).encode_to_vec());
        let decoded = ClientFrame::decode(bytes).expect("it was just encoded");
        assert_eq!(black_box(decoded).operations.len(), 128);
    });
}
