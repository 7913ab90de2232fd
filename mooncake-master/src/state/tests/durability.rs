//! What the records of random lives bring back, beside a model of disks.

use super::*;

/// What may be on one disk.
#[derive(Debug, Default)]
struct Disk {
    /// Of tenant and key: which life, and its length.
    objects: BTreeMap<(String, Key, Incarnation), u64>,
    /// Fetched and not ended: tenant, key, life and length.
    tasks: BTreeMap<u64, (String, Key, Incarnation, u64)>,
    /// All that were ever given out.
    told: BTreeSet<u64>,
    /// Those of which the end was told.
    ended: BTreeSet<u64>,
    /// Has tombstones.
    buried: BTreeSet<(String, Key, Incarnation)>,
}

/// A name that a record gives.
type Name = (StorageId, String, Key, Incarnation);

/// The durable set as records tell it, beside what is on the disks.
#[derive(Debug, Default)]
pub(super) struct Disks {
    disks: BTreeMap<StorageId, Disk>,
    pub(super) records: Vec<Record>,
    held: BTreeMap<Name, u64>,
    removing: BTreeMap<(StorageId, u64), (String, Option<Key>, Incarnation)>,
    /// Each number is given out once.
    tasks: BTreeSet<u64>,
}

impl Disks {
    /// Follows the records, and compares with what the state tells of itself.
    pub(super) fn remember(&mut self, state: &State, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Log(record) = effect {
                self.follow(record);
                self.records.push(record.clone());
            }
        }
        for storage in &state.storages.all {
            assert!(
                storage.mounted || storage.removes.len() == 0,
                "its return reconciles"
            );
        }
        let (held, removing) = durable_set(state);
        let doomed = |(_, tenant, _, of): &Name| {
            let tenant = state.tenants.find(tenant).unwrap().unwrap();
            let doomed = state.objects.doomed.get(&tenant);
            doomed.is_some_and(|doomed| *of <= doomed.last)
        };
        assert!(!held.keys().any(doomed), "{held:?}");
        assert_eq!(held, self.held);
        assert_eq!(removing, self.removing);
    }

    fn follow(&mut self, record: &Record) {
        match record.clone() {
            Record::Storage { .. } | Record::Gone { .. } | Record::Tasks { .. } => {}
            Record::Held {
                storage,
                tenant,
                key,
                incarnation,
                length,
            } => {
                self.held
                    .insert((storage, tenant, key, incarnation), length);
            }
            Record::Left {
                storage,
                tenant,
                key,
                incarnation,
            } => {
                let left = self.held.remove(&(storage, tenant, key, incarnation));
                assert!(left.is_some(), "it was not held: {record:?}");
            }
            Record::Removed {
                tenant,
                key,
                incarnation,
                tasks,
            } => {
                self.held
                    .retain(|(_, t, k, i), _| (t, k, i) != (&tenant, &key, &incarnation));
                for task in tasks {
                    assert!(self.tasks.insert(task.1), "a number is given out twice");
                    let removal = (tenant.clone(), Some(key.clone()), incarnation);
                    assert!(
                        !self
                            .removing
                            .iter()
                            .any(|((at, _), other)| *at == task.0 && *other == removal)
                    );
                    self.removing.insert(task, removal);
                }
            }
            Record::RemovedAll {
                tenant,
                last,
                tasks,
            } => {
                self.held
                    .retain(|(_, t, _, i), _| *t != tenant || *i > last);
                for task in tasks {
                    assert!(self.tasks.insert(task.1), "a number is given out twice");
                    self.removing.insert(task, (tenant.clone(), None, last));
                }
            }
            Record::Acknowledged { storage, tasks } => {
                for task in tasks {
                    assert!(self.removing.remove(&(storage, task)).is_some());
                }
            }
            Record::Forgotten { storage } => self.removing.retain(|(at, _), _| *at != storage),
        }
    }
}

type Held = BTreeMap<Name, u64>;
type Removing = BTreeMap<(StorageId, u64), (String, Option<Key>, Incarnation)>;

/// What a state tells of itself.
fn durable_set(state: &State) -> (Held, Removing) {
    let mut records = Vec::new();
    let mut at = Survey::Begin;
    while at != Survey::End {
        at = state.survey(at, 3, &mut records);
    }
    let (mut held, mut removing) = (Held::new(), Removing::new());
    for record in records {
        match record {
            Record::Held {
                storage,
                tenant,
                key,
                incarnation,
                length,
            } => {
                held.insert((storage, tenant, key, incarnation), length);
            }
            Record::Removed {
                tenant,
                key,
                incarnation,
                tasks,
            } => {
                removing.insert(tasks[0], (tenant, Some(key), incarnation));
            }
            Record::RemovedAll {
                tenant,
                last,
                tasks,
            } => {
                for task in tasks {
                    removing.insert(task, (tenant.clone(), None, last));
                }
            }
            Record::Storage { .. } | Record::Gone { .. } | Record::Tasks { .. } => {}
            other => panic!("{other:?} is no part of a survey"),
        }
    }
    (held, removing)
}

impl State {
    pub(super) fn check_storages(&self) {
        for (slot, storage) in (0u32..).zip(&self.storages.all) {
            let entries = self.disks.iter().map(|(_, entry)| entry);
            let here: Vec<_> = entries.filter(|entry| entry.storage == slot).collect();
            let of = |stages: &[disks::Stage]| {
                let here = here.iter().filter(|entry| stages.contains(&entry.stage));
                let lengths = here.map(|entry| self.objects.bodies[entry.body].length);
                lengths.fold((0, 0), |(count, sum), length| (count + 1, sum + length))
            };
            use disks::Stage::{Dispatched, OnDisk, Queued};
            assert_eq!(storage.queued, of(&[Queued]).0);
            assert_eq!(storage.on_disk, of(&[OnDisk]).0);
            assert_eq!(storage.coming_bytes, of(&[Queued, Dispatched]).1);
            assert_eq!(storage.value_bytes, of(&[Dispatched, OnDisk]).1);
            assert!(storage.queued as usize <= self.settings.offload_queue_limit + 3);
            assert!(storage.removes.len() <= storage.removes.capacity());
        }
    }
}

fn id(storage: u8) -> StorageId {
    StorageId([storage; 16])
}

impl Driver {
    fn call(&mut self, state: &mut State, client: u64, call: StorageCall) -> Answer {
        let client = ClientId(client);
        self.apply(state, Command::Storage { client, call })
    }

    pub(super) fn reconcile_all(&mut self, state: &mut State, client: u64, storage: u8) {
        let disk = self.disks.disks.entry(id(storage)).or_default();
        let held = |((tenant, key, incarnation), length): (&(String, Key, Incarnation), &u64)| {
            crate::state::Held {
                tenant: tenant.clone(),
                key: key.clone(),
                incarnation: *incarnation,
                length: *length,
            }
        };
        let all: Vec<_> = disk.objects.iter().map(held).collect();
        let mut pages: Vec<_> = all.chunks(2).map(<[_]>::to_vec).collect();
        if pages.is_empty() {
            pages.push(Vec::new());
        }
        let last = pages.len() - 1;
        for (page, objects) in pages.into_iter().enumerate() {
            let call = StorageCall::Reconcile {
                storage: id(storage),
                page: page as u64,
                objects: objects.clone(),
                last: page == last,
            };
            let before = self.disks.held.clone();
            let answer = self.call(state, client, call);
            let Answer::Storage(StorageAnswer::Reconciled { remove }) = answer else {
                return;
            };
            for (at, held) in (0u32..).zip(objects) {
                let name = (held.tenant, held.key, held.incarnation);
                let (tenant, key, of) = name.clone();
                let kept = before.contains_key(&(id(storage), tenant, key, of));
                assert_eq!(remove.contains(&at), !kept, "law 6: {name:?}");
                if !kept {
                    let disk = self.disks.disks.entry(id(storage)).or_default();
                    disk.objects.remove(&name);
                    disk.buried.insert(name);
                }
            }
        }
    }

    pub(super) fn take_disk_step(&mut self, state: &mut State, step: &Step) {
        match step.clone() {
            Step::Attach(client, storage) => {
                let fresh = !self.disks.disks.contains_key(&id(storage));
                let identity = StorageIdentity {
                    id: id(storage),
                    holder: ClientId(client),
                    endpoint: format!("node-{client}:1"),
                    segment_name: format!("node-{client}"),
                    holder_name: String::new(),
                };
                let call = StorageCall::Mount {
                    storage: identity,
                    measured: Measured::default(),
                    fresh,
                };
                if self.call(state, client, call) == Answer::Done {
                    self.disks.disks.entry(id(storage)).or_default();
                }
            }
            Step::Reconcile(client, storage, which, lost) => {
                if lost && let Some(disk) = self.disks.disks.get_mut(&id(storage)) {
                    let names: Vec<_> = disk.objects.keys().cloned().collect();
                    if !names.is_empty() {
                        disk.objects.remove(which.get(&names));
                    }
                }
                self.reconcile_all(state, client, storage);
            }
            Step::Detach(client, storage) => {
                let storage = id(storage);
                self.call(state, client, StorageCall::Unmount { storage });
            }
            Step::Measure(client, storage, used) => {
                let measured = Measured {
                    capacity: MIB,
                    used,
                    ..Measured::default()
                };
                let storage = id(storage);
                self.call(state, client, StorageCall::Report { storage, measured });
            }
            Step::FetchOffloads(client, storage, limit) => {
                let call = StorageCall::FetchOffloads {
                    storage: id(storage),
                    limit,
                    limit_bytes: MIB,
                };
                let answer = self.call(state, client, call);
                if let Answer::Storage(StorageAnswer::Offloads {
                    tasks,
                    objects,
                    lease,
                    ..
                }) = answer
                {
                    let disk = self.disks.disks.entry(id(storage)).or_default();
                    for ((task, tenant, key), object) in tasks.into_iter().zip(objects.results) {
                        let object = object.unwrap();
                        // Only what is given out again may have no memory left.
                        assert!(!object.replicas.is_empty() || disk.told.contains(&task));
                        disk.told.insert(task);
                        let name = (tenant, key, object.incarnation, object.length);
                        disk.tasks.insert(task, name);
                    }
                    self.leases.push(lease);
                }
            }
            Step::Notify(client, storage, which, outcome) => {
                let again = outcome >= 8;
                let Some(disk) = self.disks.disks.get_mut(&id(storage)) else {
                    return;
                };
                let tasks: Vec<_> = disk.tasks.keys().copied().collect();
                if tasks.is_empty() {
                    return;
                }
                let task = *which.get(&tasks);
                let (tenant, key, incarnation, length) = disk.tasks[&task].clone();
                let mut outcome = match outcome % 8 {
                    0 => Offloaded::Failed,
                    1 => Offloaded::Refused,
                    _ => Offloaded::Done,
                };
                let name = (tenant.clone(), key.clone(), incarnation);
                // A tombstone lets none of its name in again.
                if outcome == Offloaded::Done && disk.buried.contains(&name) {
                    outcome = Offloaded::Failed;
                }
                if outcome == Offloaded::Done && !disk.ended.contains(&task) {
                    disk.objects.insert(name.clone(), length);
                }
                // What is told again is what was told before, or that another attempt failed.
                if outcome == Offloaded::Done && !disk.objects.contains_key(&name) {
                    outcome = Offloaded::Refused;
                }
                disk.ended.insert(task);
                if outcome != Offloaded::Done || again {
                    disk.tasks.remove(&task);
                }
                let object = ObjectName {
                    tenant,
                    key,
                    incarnation,
                };
                let call = StorageCall::NotifyOffloads {
                    storage: id(storage),
                    results: vec![OffloadResult {
                        task,
                        object: Some(object),
                        outcome,
                    }],
                };
                let answer = self.call(state, client, call);
                let Answer::Storage(StorageAnswer::Each(results)) = answer else {
                    return;
                };
                let (tenant, key, of) = name.clone();
                let kept = self
                    .disks
                    .held
                    .contains_key(&(id(storage), tenant, key, of));
                let disk = self.disks.disks.entry(id(storage)).or_default();
                match &results[0] {
                    Ok(()) if outcome == Offloaded::Done => assert!(kept, "law 6: {name:?}"),
                    Err(Failure::Revoked) => {
                        assert!(!kept, "what must go is still read: {name:?}");
                        disk.objects.remove(&name);
                        disk.buried.insert(name);
                    }
                    _ => {}
                }
            }
            Step::Removes(client, storage, limit, acknowledged) => {
                let call = StorageCall::FetchRemoves {
                    storage: id(storage),
                    limit,
                    after: 0,
                };
                let answer = self.call(state, client, call);
                if let Answer::Storage(StorageAnswer::Removes { tasks, .. }) = answer {
                    let disk = self.disks.disks.entry(id(storage)).or_default();
                    for (_, removal) in tasks.iter().take(acknowledged) {
                        disk.objects.retain(|(tenant, key, of), _| {
                            let meant = match &removal.key {
                                Some(named) => named == key && removal.incarnation == *of,
                                None => *of <= removal.incarnation,
                            };
                            !(meant && removal.tenant == *tenant)
                        });
                    }
                    let tasks = tasks.iter().take(acknowledged).map(|(task, _)| *task);
                    let call = StorageCall::AckRemoves {
                        storage: id(storage),
                        tasks: tasks.chain([7]).collect(),
                    };
                    self.call(state, client, call);
                }
            }
            Step::Drop(client, storage, which) => {
                let Some(disk) = self.disks.disks.get_mut(&id(storage)) else {
                    return;
                };
                let names: Vec<_> = disk.objects.keys().cloned().collect();
                if names.is_empty() {
                    return;
                }
                let (tenant, key, incarnation) = which.get(&names).clone();
                disk.objects
                    .remove(&(tenant.clone(), key.clone(), incarnation));
                let dropped = Dropped {
                    tenant,
                    key,
                    incarnation,
                    evicted: true,
                };
                let call = StorageCall::Drop {
                    storage: id(storage),
                    objects: vec![dropped],
                };
                self.call(state, client, call);
            }
            _ => unreachable!("it is a step of disks"),
        }
    }
}

fn restarted(records: &[Record]) -> State {
    let mut state = State::new(8, settings());
    for some in records.chunks(3) {
        state.apply(Time::ZERO, &Command::Replay(some.to_vec()));
    }
    state.apply(Time::ZERO, &Command::Replayed);
    state.check_books();
    state
}

proptest! {
    /// Whatever part of a life a survey sees when: with the records told since it began, the next
    /// life knows what this one did.
    #[test]
    fn law_06_records_bring_back_what_was_known_at_any_moment(
        steps in steps(),
        offload in offload(),
        cut in any::<prop::sample::Index>(),
        part in 1u32..5
    ) {
        let settings = Settings { offload, ..settings() };
        let (before, after) = steps.split_at(cut.index(steps.len()));
        let (mut state, mut driver) = run(before, settings);
        let mut records = Vec::new();
        let mut at = Survey::Begin;
        let begun = driver.disks.records.len();
        for step in after {
            at = state.survey(at, part, &mut records);
            driver.take(&mut state, step);
        }
        while at != Survey::End {
            at = state.survey(at, part, &mut records);
        }
        records.extend_from_slice(&driver.disks.records[begun..]);
        let known = durable_set(&state);
        let again = restarted(&records);
        prop_assert_eq!(&durable_set(&again), &known);
        let again = restarted(&driver.disks.records);
        prop_assert_eq!(durable_set(&again), known);
        prop_assert!(again.last_task >= state.last_task, "numbers of tasks are given out again");
        prop_assert_eq!(again.counters().objects, again.objects.bodies.len() as u64);
        let announced = again.objects.bodies.iter().filter(|(slot, _)| again.is_readable(*slot));
        prop_assert_eq!(announced.count(), 0);
    }
}
