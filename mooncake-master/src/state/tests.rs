//! Random lives of a store, whose books must balance after each step.

mod adoption;
mod durability;
mod steps;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;

use super::{bodies::Phase, *};
use crate::AllocationStrategy;

const MIB: u64 = 1 << 20;

fn settings() -> Settings {
    Settings {
        client_ttl: Duration::from_secs(10),
        granted_share: 0.5,
        lease_ttl: Duration::from_secs(5),
        put_deadline: Duration::from_secs(3),
        write_frame_budget: Duration::from_secs(3),
        hold_margin: Duration::from_millis(100),
        log: true,
        ..Settings::default()
    }
}

impl State {
    fn check_books(&self) {
        assert!(self.work <= 2 * STEP, "{} objects in one step", self.work);
        let bodies: Vec<_> = self.objects.bodies.iter().collect();
        let (mut live, mut quarantined) = (0, 0);
        let mut held = 0;
        let (mut leases, mut listed, mut complete, mut writing) = (0, 0, 0, 0);
        let (mut kept, mut reserved, mut doomed) = (0, 0, 0);
        let mut saving = 0;
        for (slot, body) in &bodies {
            let size = body.length.next_multiple_of(64) * u64::from(body.count());
            leases += body.leases as usize;
            match body.phase() {
                Phase::Gone { put } => {
                    quarantined += size;
                    assert!(
                        body.leases > 0 || put.is_some(),
                        "{body:?} waits for nothing"
                    );
                    if let Some(put) = put {
                        let until = self.objects.put(put).deadline + self.settings.hold();
                        let at = self.objects.bodies.reference(*slot);
                        assert!(self.held.contains(&(until, at)));
                        held += 1;
                    }
                }
                Phase::Complete { .. } => {
                    complete += 1;
                    kept += u64::from(body.is_kept() || body.count() == 0);
                    assert!(body.count() > 0 || body.has_disk(), "{body:?} is nowhere");
                    if body.is_saving() {
                        saving += body.length * u64::from(body.count());
                    }
                    if body.reservation.is_reserved() {
                        reserved += body.length * u64::from(body.count());
                    }
                }
                Phase::Writing { .. } => {
                    writing += 1;
                    assert_eq!(body.leases, 0);
                }
            }
            assert_eq!(body.has_disk(), self.disks.of(*slot).next().is_some());
            assert!(
                !body.has_disk() || body.is_complete(),
                "{body:?} is on a disk"
            );
            if !body.is_gone() {
                live += size;
                if self.objects.is_doomed(*slot) {
                    doomed += 1;
                } else {
                    let key = self.objects.bodies.key(*slot);
                    let sought = self.objects.sought(Some(body.tenant()), key);
                    let (complete, under_way) = self.stands_for(sought);
                    let of_phase = match body.phase() {
                        Phase::Writing { .. } => under_way,
                        _ => complete,
                    };
                    assert_eq!(of_phase, Some(*slot), "{body:?}");
                }
            }
        }
        assert!(doomed == 0 || !self.sweeps.is_empty());
        assert_eq!(self.saving_bytes, saving);
        self.check_storages();
        let mut last = Use::after(Use::default(), Time(u64::MAX >> 16));
        for slot in self.objects.recency.iter(&self.objects.bodies) {
            let Phase::Complete { used } = self.objects.bodies[slot].phase() else {
                panic!("a body that is not complete is in the order of use");
            };
            assert!(used < last, "the order of use is broken");
            assert!(
                self.objects.bodies[slot].count() > 0,
                "there is nothing to evict"
            );
            last = used;
            listed += 1;
        }
        assert!(
            listed <= complete && complete - listed <= kept,
            "a body that nothing keeps is set aside"
        );
        assert_eq!(self.counters().reserved_bytes, reserved);
        assert_eq!(leases, self.leases.covered());
        assert_eq!((self.held.len(), self.cancelled.len()), (held, held));
        assert_eq!(self.objects.open_puts() as u64, writing + held as u64);
        assert!(writing + held as u64 > 0 || self.objects.placed.is_empty());
        let counters = self.counters();
        assert_eq!(
            (counters.objects, counters.puts_in_progress),
            (complete, writing)
        );
        assert_eq!(
            (counters.used_bytes, counters.quarantined_bytes),
            (live, quarantined)
        );
        let granted: u64 = self.segments.granted().map(|(.., size)| size).sum();
        assert_eq!(counters.granted_bytes, granted);
        if self.closing.is_empty() {
            assert_eq!(
                self.objects.bodies.asides(),
                self.segments.granted().count()
            );
        }
        assert_eq!(self.segments.allocated(), live + quarantined + granted);
        let of_segments =
            |part: fn(&segments::Mounted) -> u64| -> u64 { self.segments.iter().map(part).sum() };
        assert_eq!(of_segments(|s| s.grants.bytes()), granted);
        assert_eq!(of_segments(|s| s.live_bytes), live);
        assert_eq!(of_segments(|s| s.quarantined_bytes), quarantined);
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A client mounts a storage.
    Attach(u64, u8),
    /// A holder tells what it has, and some that it has not, or only a part.
    Reconcile(u64, u8, prop::sample::Index, bool),
    Detach(u64, u8),
    Measure(u64, u8, u64),
    FetchOffloads(u64, u8, u32),
    /// The first or a later task that was fetched, and how it ends.
    Notify(u64, u8, prop::sample::Index, u8),
    /// How many tasks to fetch, and how many of these to acknowledge.
    Removes(u64, u8, u32, usize),
    /// A disk loses one of its objects.
    Drop(u64, u8, prop::sample::Index),
    Wait(u64),
    Hello(u64),
    Mount(u64, u8, u32),
    Unmount(u64, u8),
    PutStart(u64, Vec<(u8, u64)>, u32, u64, bool),
    Grant(u64, u64, u64),
    /// Keys and lengths, the number of a grant, and whether exactly there.
    Put(u64, Vec<(u8, u64)>, u64, bool, bool),
    ReturnGrants(u64, Vec<u64>),
    PutEnd(u64, Vec<u8>),
    PutRevoke(u64, Vec<u8>),
    Lookup(u64, Vec<u8>),
    Release(u64, prop::sample::Index),
    Exist(u64, Vec<u8>),
    Remove(u64, Vec<u8>, bool),
    RemoveAll(u64),
    List(u64, u32),
    Goodbye(u64, bool),
    Again(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = 1u64..4;
    let keys = || prop::collection::vec(0u8..24, 1..6);
    let items = prop::collection::vec((0u8..24, 1u64..MIB), 1..6);
    let small = prop::collection::vec((0u8..24, 1u64..MIB / 8), 1..4);
    let number = 1u64..5;
    let storage = 1u8..4;
    let index = any::<prop::sample::Index>;
    let disk = prop_oneof![
        3 => (client.clone(), storage.clone()).prop_map(|(c, s)| Step::Attach(c, s)),
        4 => (client.clone(), storage.clone(), index(), any::<bool>())
            .prop_map(|(c, s, i, a)| Step::Reconcile(c, s, i, a)),
        1 => (client.clone(), storage.clone()).prop_map(|(c, s)| Step::Detach(c, s)),
        1 => (client.clone(), storage.clone(), 0..MIB).prop_map(|(c, s, u)| Step::Measure(c, s, u)),
        6 => (client.clone(), storage.clone(), 0u32..4)
            .prop_map(|(c, s, n)| Step::FetchOffloads(c, s, n)),
        8 => (client.clone(), storage.clone(), index(), 0u8..16)
            .prop_map(|(c, s, i, o)| Step::Notify(c, s, i, o)),
        3 => (client.clone(), storage.clone(), 0u32..4, 0usize..4)
            .prop_map(|(c, s, f, a)| Step::Removes(c, s, f, a)),
        1 => (client.clone(), storage, index()).prop_map(|(c, s, i)| Step::Drop(c, s, i)),
    ];
    let step = prop_oneof![
        24 => disk,
        4 => (0u64..4_000).prop_map(Step::Wait),
        2 => client.clone().prop_map(Step::Hello),
        2 => (client.clone(), 1u8..4, 0u32..3).prop_map(|(c, s, g)| Step::Mount(c, s, g)),
        1 => (client.clone(), 1u8..4).prop_map(|(c, s)| Step::Unmount(c, s)),
        12 => (client.clone(), items, 0u32..4, any::<u64>(), prop::bool::weighted(0.3))
            .prop_map(|(c, i, r, d, u)| Step::PutStart(c, i, r, d, u)),
        6 => (client.clone(), number.clone(), 0..MIB).prop_map(|(c, n, l)| Step::Grant(c, n, l)),
        8 => (client.clone(), small, number.clone(), prop::bool::weighted(0.8), any::<bool>())
            .prop_map(|(c, i, n, right, u)| Step::Put(c, i, n, right, u)),
        2 => (client.clone(), prop::collection::vec(number, 0..3))
            .prop_map(|(c, n)| Step::ReturnGrants(c, n)),
        10 => (client.clone(), keys()).prop_map(|(c, k)| Step::PutEnd(c, k)),
        2 => (client.clone(), keys()).prop_map(|(c, k)| Step::PutRevoke(c, k)),
        8 => (client.clone(), keys()).prop_map(|(c, k)| Step::Lookup(c, k)),
        6 => (client.clone(), any::<prop::sample::Index>()).prop_map(|(c, l)| Step::Release(c, l)),
        4 => (client.clone(), keys()).prop_map(|(c, k)| Step::Exist(c, k)),
        2 => (client.clone(), keys(), any::<bool>()).prop_map(|(c, k, b)| Step::Remove(c, k, b)),
        1 => client.clone().prop_map(Step::RemoveAll),
        1 => (client.clone(), 0u32..9).prop_map(|(c, limit)| Step::List(c, limit)),
        1 => (client, any::<bool>()).prop_map(|(c, q)| Step::Goodbye(c, q)),
        2 => any::<prop::sample::Index>().prop_map(Step::Again),
    ];
    prop::collection::vec(step, 1..120)
}

fn key(number: u8) -> Key {
    Key::from(format!("key-{number}").into_bytes())
}

/// Turns steps into commands, as clients that remember what they were answered.
#[derive(Default)]
struct Driver {
    now: Time,
    number: u64,
    log: Vec<(Time, Command, Applied)>,
    puts: BTreeMap<u8, Incarnation>,
    /// Where the next put goes in a grant of a client.
    grants: BTreeMap<(u64, u64), u64>,
    leases: Vec<u64>,
    /// Tickets of answers that were promised.
    owed: BTreeSet<u64>,
    disks: durability::Disks,
}

impl Driver {
    fn apply(&mut self, state: &mut State, command: Command) -> Answer {
        let applied = state.apply(self.now, &command);
        state.check_books();
        let answer = applied.answer.clone();
        self.disks.remember(state, &applied.effects);
        for effect in &applied.effects {
            if let Effect::Settled { ticket, .. } = effect {
                assert!(self.owed.remove(ticket), "an answer that was not promised");
            }
        }
        if let Answer::Later { ticket } = answer {
            self.owed.insert(ticket);
        }
        self.log.push((self.now, command, applied));
        answer
    }

    fn perform(&mut self, state: &mut State, client: u64, operation: Operation) -> Answer {
        self.number += 1;
        let caller = Caller::Session {
            client: ClientId(client),
            number: self.number,
        };
        self.apply(state, Command::Perform { caller, operation })
    }

    fn named(&self, keys: &[u8]) -> Vec<(Key, Incarnation)> {
        let of = |k: &u8| (key(*k), self.puts.get(k).copied().unwrap_or_default());
        keys.iter().map(of).collect()
    }

    fn take(&mut self, state: &mut State, step: &Step) {
        match step.clone() {
            Step::Attach(..)
            | Step::Reconcile(..)
            | Step::Detach(..)
            | Step::Measure(..)
            | Step::FetchOffloads(..)
            | Step::Notify(..)
            | Step::Removes(..)
            | Step::Drop(..) => self.take_disk_step(state, step),
            Step::Wait(ms) => {
                for _ in 0..=ms / 1000 {
                    self.now += Duration::from_millis(ms.min(1000));
                    while let Answer::Ticked { more: true } = self.apply(state, Command::Tick) {}
                }
            }
            Step::Hello(client) => {
                let (client, tenant) = (ClientId(client), format!("tenant-{}", client % 2));
                let name = "node".to_owned();
                self.apply(
                    state,
                    Command::Hello {
                        client,
                        tenant,
                        name,
                    },
                );
            }
            Step::Mount(client, id, generation) => {
                let segment = segment(client, id, generation);
                self.perform(state, client, Operation::Mount(segment));
            }
            Step::Unmount(client, id) => {
                self.perform(state, client, Operation::Unmount(SegmentId([id; 16])));
            }
            Step::PutStart(client, items, replicas, draw, upsert) => {
                let put = PutStart {
                    items: items.iter().map(|(k, length)| (key(*k), *length)).collect(),
                    replicas,
                    preferred: vec!["segment-2".to_owned()],
                    avoided: vec![SegmentId([1; 16])],
                    upsert,
                    draw,
                };
                let answer = self.perform(state, client, Operation::PutStart(put));
                if let Answer::Started(started) = answer {
                    for ((k, _), result) in items.iter().zip(started.results) {
                        if let Ok(object) = result {
                            self.puts.insert(*k, object.incarnation);
                        }
                    }
                }
            }
            Step::Grant(client, number, length) => {
                let segment = SegmentId([client as u8; 16]);
                let grant = Grant {
                    segment,
                    number,
                    length,
                };
                let answer = self.perform(state, client, Operation::Grant(grant));
                if let Answer::Granted { offset, .. } = answer {
                    self.grants.insert((client, number), offset);
                }
            }
            Step::Put(client, items, number, right, upsert) => {
                let at = self.grants.entry((client, number)).or_insert(0);
                let item = |&(k, length): &(u8, u64)| {
                    let offset = *at + 32 * u64::from(!right);
                    *at += length.next_multiple_of(64);
                    Placed {
                        key: key(k),
                        length,
                        grant: number,
                        offset,
                    }
                };
                let put = PutPlaced {
                    segment: SegmentId([client as u8; 16]),
                    items: items.iter().map(item).collect(),
                    upsert,
                };
                let answer = self.perform(state, client, Operation::Put(put));
                if let Answer::Put(results) = answer {
                    for ((k, _), result) in items.iter().zip(results) {
                        if let Ok(incarnation) = result {
                            self.puts.insert(*k, incarnation);
                        }
                    }
                }
            }
            Step::ReturnGrants(client, numbers) => {
                let segment = SegmentId([client as u8; 16]);
                self.perform(state, client, Operation::ReturnGrants { segment, numbers });
            }
            Step::PutEnd(client, keys) => {
                let items = self.named(&keys);
                self.perform(state, client, Operation::PutEnd(items));
            }
            Step::PutRevoke(client, keys) => {
                let items = self.named(&keys);
                self.perform(state, client, Operation::PutRevoke(items));
            }
            Step::Lookup(client, keys) => {
                let keys = keys.iter().map(|k| key(*k)).collect();
                let answer = self.perform(state, client, Operation::Lookup(keys));
                if let Answer::Looked { lease, .. } = answer {
                    self.leases.push(lease);
                }
            }
            Step::Release(client, which) => {
                if !self.leases.is_empty() {
                    let lease = self.leases[which.index(self.leases.len())];
                    self.perform(state, client, Operation::Release(vec![lease, 0]));
                }
            }
            Step::Exist(client, keys) => {
                let keys = keys.iter().map(|k| key(*k)).collect();
                self.perform(state, client, Operation::Exist(keys));
            }
            Step::RemoveAll(client) => {
                self.perform(state, client, Operation::RemoveAll);
            }
            Step::List(client, limit) => {
                let page = list(limit);
                self.perform(state, client, Operation::ListObjects(page));
            }
            Step::Goodbye(client, quiet) => {
                self.perform(state, client, Operation::Goodbye { quiet });
            }
            Step::Remove(client, keys, barrier) => {
                let items = keys.iter().map(|k| (key(*k), None)).collect();
                self.perform(state, client, Operation::Remove(Remove { items, barrier }));
            }
            Step::Again(which) => {
                if !self.log.is_empty() {
                    let (_, command, _) = self.log[which.index(self.log.len())].clone();
                    self.apply(state, command);
                }
            }
        }
    }
}

/// Of all keys, at most so many.
fn list(limit: u32) -> ListObjects {
    ListObjects {
        prefix: Key::from(Vec::new()),
        after: Key::from(Vec::new()),
        limit,
    }
}

fn segment(owner: u64, id: u8, generation: u32) -> SegmentIdentity {
    SegmentIdentity {
        id: SegmentId([id; 16]),
        name: format!("segment-{id}"),
        owner: ClientId(owner),
        registration: u64::from(id),
        generation,
        length: 2 * MIB + 13,
        owner_name: String::new(),
    }
}

fn run(steps: &[Step], settings: Settings) -> (State, Driver) {
    let mut state = State::new(7, settings);
    let mut driver = Driver::default();
    for client in 1..4 {
        driver.take(&mut state, &Step::Hello(client));
        driver.take(&mut state, &Step::Mount(client, client as u8, 0));
        driver.take(&mut state, &Step::Attach(client, client as u8));
        driver.reconcile_all(&mut state, client, client as u8);
    }
    for step in steps {
        driver.take(&mut state, step);
    }
    (state, driver)
}

fn strategy() -> impl Strategy<Value = AllocationStrategy> {
    prop_oneof![
        Just(AllocationStrategy::Random),
        Just(AllocationStrategy::FreeRatioFirst),
        Just(AllocationStrategy::LocalFirst),
        Just(AllocationStrategy::SsdFreeRatioFirst),
    ]
}

fn offload() -> impl Strategy<Value = Offload> {
    prop_oneof![
        Just(Offload::Off),
        Just(Offload::Eager),
        Just(Offload::OnEvict)
    ]
}

proptest! {
    #[test]
    fn books_balance_after_each_step_and_all_returns_to_zero(
        steps in steps(),
        offload in offload(),
        queue in 1usize..6,
        strategy in strategy()
    ) {
        let limits = Settings { allocation_strategy: strategy, offload_queue_limit: queue, remove_queue_limit: queue + 2, ..settings() };
        let (mut state, mut driver) = run(&steps, Settings { offload, ..limits });
        // Everybody falls silent: what was held by anybody comes back by itself.
        driver.take(&mut state, &Step::Wait(4_000));
        for _ in 0..30 {
            driver.take(&mut state, &Step::Wait(1_000));
        }
        let end = state.counters();
        prop_assert_eq!(
            (end.clients, end.segments, end.leases, end.puts_in_progress, end.storages),
            (0, 0, 0, 0, 0)
        );
        // Disks keep what they have, and nobody waits for them.
        let objects = state.objects.bodies.iter().filter(|(_, body)| body.has_disk()).count();
        prop_assert_eq!((end.objects, end.queued_offloads, end.saving_bytes), (objects as u64, 0, 0));
        prop_assert_eq!((end.used_bytes, end.quarantined_bytes, end.capacity_bytes), (0, 0, 0));
        prop_assert_eq!(end.granted_bytes, 0);
        prop_assert_eq!((end.reservations, end.reserved_bytes, end.promised_answers), (0, 0, 0));
        prop_assert_eq!(state.objects.bodies.len(), objects);
        prop_assert!(driver.owed.is_empty(), "promised and not given: {:?}", driver.owed);
    }

    #[test]
    fn the_same_commands_give_the_same_answers_and_survive_being_stored(steps in steps(), offload in offload()) {
        let settings = Settings { offload, ..settings() };
        let (_, driver) = run(&steps, settings.clone());
        let mut again = State::new(7, settings);
        for (now, command, applied) in &driver.log {
            let stored = serde_json::to_string(&command).unwrap();
            let command = serde_json::from_str::<Command>(&stored).unwrap();
            let repeated = again.apply(*now, &command);
            prop_assert_eq!(&repeated, applied);
            let stored = serde_json::to_string(&applied.answer).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Answer>(&stored).unwrap(), &applied.answer);
        }
    }

    #[test]
    fn no_two_objects_that_anybody_may_touch_share_a_byte(steps in steps()) {
        let offload = Offload::Eager;
        let (state, _) = run(&steps, Settings { high_watermark: 1.0, offload, ..settings() });
        let mut ranges: Vec<(u32, u64, u64)> = Vec::new();
        let bodies = &state.objects.bodies;
        for (slot, body) in bodies.iter() {
            ranges.extend(bodies.places(slot).map(|place| (place.segment, place.offset, place.offset + body.length)));
        }
        let granted = state.segments.granted();
        ranges.extend(granted.map(|(segment, offset, size)| (segment, offset, offset + size)));
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            let ((a, _, end), (b, start, _)) = (pair[0], pair[1]);
            prop_assert!(a != b || end <= start, "{:?} overlap", pair);
        }
    }
}
