//! A store in miniature, whose clock the test moves.
#![allow(
    dead_code,
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "help for tests, of which each uses its part"
)]

use std::time::Duration;

use mooncake_master::{
    Time,
    state::{
        Answer, Applied, Caller, ClientId, Command, Effect, Failure, Incarnation, Key, Object,
        Operation, PutStart, Record, Remove, SegmentId, SegmentIdentity, Settings, State,
    },
};

pub(crate) struct Store {
    pub(crate) state: State,
    pub(crate) now: Time,
    pub(crate) number: u64,
    /// All that must outlive the master.
    pub(crate) records: Vec<Record>,
}

impl Store {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            state: State::new(1, settings),
            now: Time::ZERO,
            number: 0,
            records: Vec::new(),
        }
    }

    /// With one client that offers `bytes` of memory.
    pub(crate) fn of(bytes: u64, settings: Settings) -> Self {
        let mut store = Self::new(settings);
        store.hello(1);
        assert_eq!(store.mount(1, 1, 0, bytes), Answer::Done);
        store
    }

    pub(crate) fn apply(&mut self, command: Command) -> Applied {
        let applied = self.state.apply(self.now, &command);
        for effect in &applied.effects {
            if let Effect::Log(record) = effect {
                self.records.push(record.clone());
            }
        }
        applied
    }

    /// Moves the clock, with a tick at least each second. The given clients keep pinging.
    pub(crate) fn pass(&mut self, time: Duration, alive: &[u64]) {
        let end = self.now + time;
        while self.now < end {
            self.now = end.min(self.now + Duration::from_secs(1));
            for &client in alive {
                self.ask(client, Operation::Ping);
            }
            self.apply(Command::Tick);
        }
    }

    pub(crate) fn hello(&mut self, client: u64) -> Answer {
        let command = Command::Hello {
            client: ClientId(client),
            tenant: String::new(),
            name: format!("node-{client}"),
        };
        self.apply(command).answer
    }

    pub(crate) fn ask(&mut self, client: u64, operation: Operation) -> Answer {
        self.number += 1;
        self.ask_as(client, self.number, operation)
    }

    pub(crate) fn ask_as(&mut self, client: u64, number: u64, operation: Operation) -> Answer {
        let caller = Caller::Session {
            client: ClientId(client),
            number,
        };
        self.apply(Command::Perform { caller, operation }).answer
    }

    pub(crate) fn mount(&mut self, owner: u64, id: u8, generation: u32, length: u64) -> Answer {
        let segment = SegmentIdentity {
            id: SegmentId([id; 16]),
            name: format!("segment-{id}"),
            owner: ClientId(owner),
            registration: 9,
            generation,
            length,
            owner_name: String::new(),
        };
        self.ask(owner, Operation::Mount(segment))
    }

    pub(crate) fn start(&mut self, client: u64, key: &str, length: u64) -> Result<Object, Failure> {
        let mut put = put(&[(key, length)]);
        put.draw = self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match self.ask(client, Operation::PutStart(put)) {
            Answer::Started(mut started) => started.results.remove(0),
            other => panic!("PutStart answered {other:?}"),
        }
    }

    pub(crate) fn end(&mut self, client: u64, key: &str, of: Incarnation) -> Result<(), Failure> {
        let items = vec![(self::key(key), of)];
        one(self.ask(client, Operation::PutEnd(items)))
    }

    pub(crate) fn revoke(
        &mut self,
        client: u64,
        key: &str,
        of: Incarnation,
    ) -> Result<(), Failure> {
        let items = vec![(self::key(key), of)];
        one(self.ask(client, Operation::PutRevoke(items)))
    }

    pub(crate) fn put(&mut self, client: u64, key: &str, length: u64) -> Object {
        let object = self.start(client, key, length).unwrap();
        self.end(client, key, object.incarnation).unwrap();
        object
    }

    /// The lease, and what was found.
    pub(crate) fn lookup(
        &mut self,
        client: u64,
        keys: &[&str],
    ) -> (u64, Vec<Result<Object, Failure>>) {
        let keys = keys.iter().map(|key| self::key(key)).collect();
        match self.ask(client, Operation::Lookup(keys)) {
            Answer::Looked { found, lease } => (lease, found.results),
            other => panic!("Lookup answered {other:?}"),
        }
    }

    pub(crate) fn release(&mut self, client: u64, lease: u64) {
        assert_eq!(
            self.ask(client, Operation::Release(vec![lease])),
            Answer::Done
        );
    }

    pub(crate) fn exists(&mut self, client: u64, key: &str) -> bool {
        match self.ask(client, Operation::Exist(vec![self::key(key)])) {
            Answer::Exist(results) => results[0].clone().unwrap().exists,
            other => panic!("Exist answered {other:?}"),
        }
    }

    pub(crate) fn remove(&mut self, client: u64, key: &str) -> Result<(), Failure> {
        let items = vec![(self::key(key), None)];
        one(self.ask(client, remove(items)))
    }
}

pub(crate) fn key(key: &str) -> Key {
    Key::from(key.to_owned())
}

pub(crate) fn put(items: &[(&str, u64)]) -> PutStart {
    PutStart {
        items: items
            .iter()
            .map(|(key, length)| (self::key(key), *length))
            .collect(),
        replicas: 1,
        ..PutStart::default()
    }
}

fn one(answer: Answer) -> Result<(), Failure> {
    match answer {
        Answer::Keys(mut results) => results.remove(0),
        other => panic!("one result was expected, not {other:?}"),
    }
}

/// The removal of these, without waiting for readers.
pub(crate) fn remove(items: Vec<(Key, Option<Incarnation>)>) -> Operation {
    let barrier = false;
    Operation::Remove(Remove { items, barrier })
}
