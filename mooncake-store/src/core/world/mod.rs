//! A small and spiteful world that drives the core through seeded random schedules.

mod home;
mod master;

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use mooncake_proto::{Applied, Fault, Retry, master::LookupResponse, status::ErrorCode};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

const LEASE: Duration = Duration::from_micros(3_000);
const LINGER: Duration = Duration::from_micros(300);
const KEEP: Duration = Duration::from_micros(800);
/// How long a lease may stay that nobody reads under.
const IDLE: Duration = Duration::from_micros(300 + 800 + 800 / 8);
const HOUR: Time = Time(3_600_000_000);

#[derive(Debug, PartialEq)]
enum Life {
    Complete,
    Gone,
    Writing,
}

struct Moving {
    item: (OpId, usize),
    write: Option<Incarnation>,
    lease: Option<u64>,
    incarnation: Incarnation,
    key: Bytes,
    ended: bool,
    quiet: bool,
}

struct Granted {
    /// For its reader, who counts from before it asked; for the master it ends later.
    ends: Time,
    /// When its reader had no more use for it.
    unused_at: Time,
    released: bool,
}

#[derive(Debug)]
enum Next {
    Answer(CallId, MasterRequest),
    Deliver(Event),
}

struct World {
    rng: StdRng,
    seed: u64,
    now: Time,
    core: ClientCore,
    /// What will happen, by time; the second number makes it unique.
    future: BTreeMap<(Time, u64), Next>,
    unique: u64,
    keys: HashMap<OpId, Vec<Bytes>>,
    finished: HashMap<OpId, Outcome>,
    sequence: u64,
    lives: HashMap<Bytes, (Incarnation, u64, Life)>,
    acknowledged: HashSet<Incarnation>,
    written: HashMap<Incarnation, (usize, usize)>,
    revoked: HashSet<Incarnation>,
    leases: HashMap<u64, Granted>,
    sent_at: HashMap<CallId, Time>,
    /// What each lease's answer said, by location offset.
    offsets: HashMap<u64, (Bytes, Incarnation, Option<u64>)>,
    transfers: HashMap<TransferId, Moving>,
    home: home::Homestead,
    /// Bytes that arrived while the lease held, by item.
    arrived: HashMap<(OpId, usize), Vec<(Incarnation, Bytes)>>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            seed,
            now: Time(1_000),
            core: ClientCore::new(Settings {
                batch: 4,
                linger: LINGER,
                put_deadline: Duration::from_micros(20_000),
                granted_bytes: 12 * 64,
                keep: KEEP,
                most_kept: 4,
            }),
            future: BTreeMap::new(),
            unique: 0,
            keys: HashMap::new(),
            finished: HashMap::new(),
            sequence: 0,
            lives: HashMap::new(),
            acknowledged: HashSet::new(),
            written: HashMap::new(),
            revoked: HashSet::new(),
            leases: HashMap::new(),
            sent_at: HashMap::new(),
            offsets: HashMap::new(),
            transfers: HashMap::new(),
            home: home::Homestead::default(),
            arrived: HashMap::new(),
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn later(&mut self, within: u64, next: Next) {
        let at = self.now + Duration::from_micros(self.rng.random_range(0..within));
        self.unique += 1;
        self.future.insert((at, self.unique), next);
    }

    fn run(&mut self) {
        if self.chance(60) {
            self.lend();
        }
        for _ in 0..30 {
            self.start_one();
            if self.chance(8) {
                let news = self.news();
                self.core.handle(self.now, news);
                self.drain();
            }
            for _ in 0..self.rng.random_range(0..12) {
                self.step();
            }
        }
        self.core.withdraw(self.now);
        self.core.handle(self.now, Event::Lost);
        self.drain();
        while !self.core.is_idle() || !self.future.is_empty() {
            self.step();
            assert!(
                self.now < HOUR,
                "seed {}: it does not come to rest",
                self.seed
            );
        }
        assert_eq!(self.core.next_deadline(), None, "seed {}", self.seed);
        assert_eq!(self.finished.len(), self.keys.len(), "seed {}", self.seed);
        self.judge_home();
        for lease in self.leases.values() {
            let too_late = lease.unused_at + IDLE >= lease.ends;
            assert!(
                lease.released || too_late,
                "seed {}: a lease was forgotten",
                self.seed
            );
        }
    }

    /// What a master says, or its silence.
    fn news(&mut self) -> Event {
        match self.rng.random_range(0..4) {
            0 => Event::Reclaim,
            1 => Event::Lost,
            _ => {
                let key = Bytes::from(format!("k{}", self.rng.random_range(0..12)));
                let life = self.lives.get(&key).map(|life| life.0);
                let objects = vec![(key, life.unwrap_or_default())];
                Event::Invalidated { objects }
            }
        }
    }

    fn start_one(&mut self) {
        let keys: Vec<Bytes> = (0..self.rng.random_range(1..7))
            .map(|_| Bytes::from(format!("k{}", self.rng.random_range(0..12))))
            .collect();
        let operation = match self.rng.random_range(0..10) {
            0..4 => Operation::Put {
                items: keys
                    .iter()
                    .cloned()
                    .map(|key| PutItem { key, length: 8 })
                    .collect(),
                options: PutOptions::default(),
            },
            4..8 => Operation::Get {
                items: keys
                    .iter()
                    .cloned()
                    .map(|key| GetItem {
                        key,
                        capacity: None,
                    })
                    .collect(),
            },
            8 => Operation::Exist { keys: keys.clone() },
            _ => Operation::Remove {
                keys: keys.clone(),
                options: RemoveOptions::default(),
            },
        };
        let deadline = self.now + Duration::from_micros(self.rng.random_range(0..30_000));
        let op = self.core.start(self.now, operation, deadline);
        self.keys.insert(op, keys);
        self.drain();
    }

    /// Lets the next thing happen: something of the future, or a tick.
    fn step(&mut self) {
        let tick = self.core.next_deadline();
        let next = self.future.first_key_value().map(|(at, _)| at.0);
        match (tick, next) {
            (Some(tick), next) if next.is_none_or(|next| tick < next) => {
                self.now = self.now.max(tick);
                self.core.handle(self.now, Event::Tick);
            }
            (_, Some(_)) => {
                let ((at, _), next) = self.future.pop_first().unwrap();
                self.now = self.now.max(at);
                match next {
                    Next::Answer(call, request) => self.answer(call, request),
                    Next::Deliver(event) => self.deliver(event),
                }
            }
            _ => self.now = self.now + Duration::from_micros(50),
        }
        self.drain();
    }

    fn deliver(&mut self, event: Event) {
        match &event {
            Event::TransferEnded { transfer, result } => {
                let moving = self.transfers.get_mut(transfer).unwrap();
                if !moving.ended {
                    moving.ended = true;
                    moving.quiet |= result
                        .as_ref()
                        .map_or_else(|fault| fault.quiescent, |_| true);
                    if let (Some(incarnation), Ok(_)) = (moving.write, result)
                        && incarnation != Incarnation::default()
                    {
                        self.written.get_mut(&incarnation).unwrap().1 += 1;
                    }
                    if let (Some(lease), Ok(_)) = (moving.lease, result)
                        && self.now < self.leases[&lease].ends
                    {
                        let bytes = (moving.incarnation, moving.key.clone());
                        self.arrived.entry(moving.item).or_default().push(bytes);
                    }
                }
            }
            Event::Quiet { transfer } => self.transfers.get_mut(transfer).unwrap().quiet = true,
            _ => {}
        }
        match &event {
            Event::TransferEnded { transfer, .. } | Event::Quiet { transfer } => {
                let moving = &self.transfers[transfer];
                let quiet = moving.ended && moving.quiet;
                let whole = matches!(&event, Event::TransferEnded { result: Ok(_), .. });
                self.wrote_home(*transfer, whole, quiet);
                let moving = &self.transfers[transfer];
                if let Some(lease) = moving.lease
                    && moving.ended
                    && moving.quiet
                {
                    self.leases.get_mut(&lease).unwrap().unused_at = self.now;
                }
            }
            Event::MasterAnswered {
                answer: MasterAnswer::Lookup(answer),
                ..
            } => {
                if let Some(lease) = self.leases.get_mut(&answer.lease) {
                    lease.unused_at = self.now;
                }
            }
            _ => {}
        }
        self.core.handle(self.now, event.clone());
        if self.chance(10) && !matches!(event, Event::MasterAnswered { .. }) {
            self.core.handle(self.now, event);
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.core.poll() {
            match action {
                Action::CallMaster { call, request, .. } => self.called(call, request),
                Action::Cancel { transfer } => {
                    let moving = &self.transfers[&transfer];
                    assert!(
                        !self.finished.contains_key(&moving.item.0),
                        "seed {}",
                        self.seed
                    );
                }
                Action::Finish { op, outcome } => self.finish(op, outcome),
                Action::ReadDisk { .. } => unreachable!("no disk was announced"),
                Action::Read {
                    transfer,
                    op,
                    item,
                    location,
                    ..
                } => {
                    let (key, incarnation, lease) = self.offsets[&location.offset].clone();
                    let at = (op, item);
                    let busy = self
                        .transfers
                        .values()
                        .any(|one| one.item == at && !one.quiet);
                    assert!(!busy, "seed {}: two reads into one destination", self.seed);
                    self.moves(transfer, at, (key, incarnation), lease);
                }
                Action::Write {
                    transfer,
                    op,
                    item,
                    location,
                    ..
                } if location.segment.name == home::NAME => {
                    self.write_home(transfer, location.offset);
                    let key = Bytes::new();
                    self.moves(transfer, (op, item), (key, Incarnation::default()), None);
                }
                Action::Write {
                    transfer,
                    op,
                    item,
                    location,
                    ..
                } => {
                    let (key, incarnation, _) = self.offsets[&location.offset].clone();
                    assert!(!self.revoked.contains(&incarnation), "seed {}", self.seed);
                    self.written.entry(incarnation).or_default().0 += 1;
                    self.moves(transfer, (op, item), (key, incarnation), None);
                }
            }
        }
    }

    fn moves(
        &mut self,
        id: TransferId,
        item: (OpId, usize),
        (key, incarnation): (Bytes, Incarnation),
        lease: Option<u64>,
    ) {
        assert!(!self.finished.contains_key(&item.0), "seed {}", self.seed);
        let write = lease.is_none().then_some(incarnation);
        let moving = Moving {
            item,
            write,
            lease,
            incarnation,
            key,
            ended: false,
            quiet: false,
        };
        self.transfers.insert(id, moving);
        let mut quiet = true;
        let result = if self.chance(70) {
            Ok(8)
        } else {
            quiet = self.chance(50);
            let retries = [
                Retry::Here,
                Retry::Elsewhere,
                Retry::AfterRefresh,
                Retry::Never,
                Retry::Later(LEASE),
            ];
            Err(TransferFault {
                retry: retries[self.rng.random_range(0..retries.len())],
                applied: Applied::Unknown,
                quiescent: quiet,
                peer: "there".into(),
                message: "cut".into(),
            })
        };
        let within = if self.chance(10) { 40_000 } else { 1_500 };
        self.later(
            within,
            Next::Deliver(Event::TransferEnded {
                transfer: id,
                result,
            }),
        );
        if !quiet {
            self.later(within * 3, Next::Deliver(Event::Quiet { transfer: id }));
        }
    }

    fn called(&mut self, call: CallId, request: MasterRequest) {
        self.says_of_home(&request);
        match &request {
            MasterRequest::PutEnd(end) => {
                for item in &end.items {
                    let (begun, done) = self.written[&item.incarnation.unwrap().into()];
                    assert_eq!(
                        begun, done,
                        "seed {}: ended before it was written",
                        self.seed
                    );
                }
            }
            MasterRequest::PutRevoke(revoke) => {
                for item in &revoke.items {
                    let incarnation: Incarnation = item.incarnation.unwrap().into();
                    let lands = |one: &Moving| one.write == Some(incarnation) && !one.quiet;
                    assert!(!self.transfers.values().any(lands), "seed {}", self.seed);
                    assert!(self.revoked.insert(incarnation), "seed {}", self.seed);
                }
            }
            MasterRequest::Release(release) => {
                for lease in &release.leases {
                    let reads = |one: &Moving| one.lease == Some(*lease) && !one.quiet;
                    assert!(!self.transfers.values().any(reads), "seed {}", self.seed);
                    let lease = self.leases.get_mut(lease).unwrap();
                    assert!(!lease.released, "seed {}: released twice", self.seed);
                    lease.released = true;
                }
            }
            _ => {}
        }
        self.sent_at.insert(call, self.now);
        let within = if self.chance(10) { 50_000 } else { 800 };
        self.later(within, Next::Answer(call, request));
    }

    /// The master acts, and its answer travels or is lost.
    fn answer(&mut self, call: CallId, request: MasterRequest) {
        let fault = Fault::new(ErrorCode::RpcFailed, Retry::Here, "lost");
        let fault = fault.with_effect(Applied::Unknown, true);
        let fate = self.rng.random_range(0..100);
        if fate < 4 {
            self.later(500, Next::Deliver(Event::MasterFailed { call, fault }));
            return;
        }
        let answer = self.act(call, request);
        if let MasterAnswer::Error(detail) = answer {
            let fault = Fault::from(detail);
            self.later(500, Next::Deliver(Event::MasterFailed { call, fault }));
            return;
        }
        if fate < 8 {
            let lost = match answer {
                MasterAnswer::Lookup(LookupResponse { lease, .. }) => Some(lease),
                _ => None,
            };
            if let Some(lease) = lost.and_then(|lease| self.leases.get_mut(&lease)) {
                lease.released = true; // we never heard of it
            }
            self.later(500, Next::Deliver(Event::MasterFailed { call, fault }));
        } else {
            let within = if self.chance(10) { 6_000 } else { 400 };
            self.later(
                within,
                Next::Deliver(Event::MasterAnswered { call, answer }),
            );
        }
    }

    fn finish(&mut self, op: OpId, outcome: Outcome) {
        let keys = &self.keys.get(&op).map_or(0, Vec::len);
        let results = match &outcome {
            Outcome::Describe(results) => results.len(),
            Outcome::Exist(results) => results.len(),
            Outcome::Get(results) => results.len(),
            Outcome::Put(results) => results.len(),
            Outcome::Remove(results) => results.len(),
            Outcome::RemoveAll(_) => 0,
        };
        // `start` may finish an operation before we have noted its keys.
        assert!(*keys == results || *keys == 0, "seed {}", self.seed);
        if let Outcome::Put(results) = &outcome {
            for incarnation in results.iter().flatten() {
                assert!(
                    self.acknowledged.contains(incarnation),
                    "seed {}",
                    self.seed
                );
            }
        }
        if let Outcome::Get(results) = &outcome {
            for (item, result) in results.iter().enumerate() {
                let at = (op, item);
                let lands = self
                    .transfers
                    .values()
                    .any(|one| one.item == at && !(one.ended && one.quiet));
                match result {
                    Ok(got) => {
                        let bytes = (got.incarnation, self.keys[&op][item].clone());
                        assert!(self.arrived[&at].contains(&bytes), "seed {}", self.seed);
                        assert!(!lands, "seed {}", self.seed);
                    }
                    Err(fault) => assert_eq!(fault.quiescent, !lands, "seed {}", self.seed),
                }
            }
        }
        assert!(
            self.finished.insert(op, outcome).is_none(),
            "seed {}",
            self.seed
        );
    }
}

#[test]
fn under_every_schedule_the_core_keeps_its_promises() {
    let (mut puts, mut gets, mut faults, mut at_home) = (0, 0, 0, 0);
    for seed in 0..3_000 {
        let mut world = World::new(seed);
        world.run();
        at_home += world.home.puts;
        for outcome in world.finished.values() {
            match outcome {
                Outcome::Get(results) => {
                    gets += results.iter().flatten().count();
                    faults += results.iter().filter(|result| result.is_err()).count();
                }
                Outcome::Put(results) => puts += results.iter().flatten().count(),
                _ => {}
            }
        }
    }
    // A world in which nothing succeeds, or nothing fails, would prove little.
    assert!(
        puts > 10_000 && gets > 10_000 && faults > 10_000 && at_home > 5_000,
        "{puts} {gets} {faults} {at_home}"
    );
}
