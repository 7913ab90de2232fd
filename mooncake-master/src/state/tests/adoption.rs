//! Random lives of a master that adopts two storages at once.

use super::*;

const KEYS: u8 = 4;
/// Who asks.
const USER: u64 = 9;

#[derive(Clone, Debug)]
enum Deed {
    /// A storage begins anew, or goes on, to tell what it holds.
    Tell(u8, bool),
    /// The same to its end.
    TellAll(u8),
    Remove(u8),
    RemoveAll,
    /// Its holder goes and comes.
    Remount(u8),
    /// The master is killed.
    Restart,
}

fn deed() -> impl Strategy<Value = Deed> {
    let storage = || 1u8..3;
    prop_oneof![
        6 => (storage(), prop::bool::weighted(0.3)).prop_map(|(s, anew)| Deed::Tell(s, anew)),
        1 => storage().prop_map(Deed::TellAll),
        4 => (0..KEYS).prop_map(Deed::Remove),
        1 => Just(Deed::RemoveAll),
        2 => storage().prop_map(Deed::Remount),
        2 => Just(Deed::Restart),
    ]
}

type Disk = BTreeMap<u8, u64>;

struct World {
    state: State,
    epoch: u64,
    records: Vec<Record>,
    number: u64,
    /// Which life of each key.
    disks: [Disk; 2],
    next: [u64; 2],
    removed: BTreeSet<u8>,
}

fn life(sequence: u64) -> Incarnation {
    Incarnation { epoch: 1, sequence }
}

fn id(storage: u8) -> StorageId {
    StorageId([storage; 16])
}

impl World {
    fn apply(&mut self, command: Command) -> Answer {
        let applied = self.state.apply(Time::ZERO, &command);
        self.state.check_books();
        for effect in applied.effects {
            if let Effect::Log(record) = effect {
                self.records.push(record);
            }
        }
        applied.answer
    }

    fn ask(&mut self, operation: Operation) -> Answer {
        self.number += 1;
        let (client, number) = (ClientId(USER), self.number);
        let caller = Caller::Session { client, number };
        self.apply(Command::Perform { caller, operation })
    }

    fn call(&mut self, storage: u8, call: StorageCall) -> Answer {
        let client = ClientId(storage.into());
        self.apply(Command::Storage { client, call })
    }

    fn attach(&mut self, storage: u8) {
        let identity = StorageIdentity {
            id: id(storage),
            holder: ClientId(storage.into()),
            endpoint: "a:1".to_owned(),
            segment_name: "engine".to_owned(),
            holder_name: String::new(),
        };
        let mount = StorageCall::Mount {
            storage: identity,
            measured: Measured::default(),
            fresh: false,
        };
        assert_eq!(self.call(storage, mount), Answer::Done);
        self.next[usize::from(storage) - 1] = 0;
    }

    fn begin(&mut self) {
        self.apply(Command::Hello {
            client: ClientId(USER),
            tenant: String::new(),
            name: String::new(),
        });
        for storage in [1, 2] {
            self.attach(storage);
        }
    }

    /// One page of one object; `true`: it was the last one.
    fn tell(&mut self, storage: u8) -> bool {
        let at = usize::from(storage) - 1;
        let page = self.next[at];
        // The keys in order: one that went before leaves its page empty.
        let key = page as u8;
        let held = self.disks[at].get(&key).map(|sequence| Held {
            tenant: "default".to_owned(),
            key: super::key(key),
            incarnation: life(*sequence),
            length: 100,
        });
        let last = page + 1 == u64::from(KEYS);
        let call = StorageCall::Reconcile {
            storage: id(storage),
            page,
            objects: held.into_iter().collect(),
            last,
        };
        match self.call(storage, call) {
            Answer::Storage(StorageAnswer::Reconciled { remove }) => {
                if !remove.is_empty() {
                    self.disks[at].remove(&key);
                }
            }
            other => panic!("Reconcile answered {other:?}"),
        }
        self.next[at] = if last { 0 } else { page + 1 };
        last
    }

    fn take(&mut self, deed: &Deed) {
        match *deed {
            Deed::Tell(storage, anew) => {
                if anew {
                    self.next[usize::from(storage) - 1] = 0;
                }
                self.tell(storage);
            }
            Deed::TellAll(storage) => {
                self.next[usize::from(storage) - 1] = 0;
                while !self.tell(storage) {}
            }
            Deed::Remove(key) => {
                let items = vec![(super::key(key), None)];
                let barrier = false;
                self.ask(Operation::Remove(Remove { items, barrier }));
                self.removed.insert(key);
            }
            Deed::RemoveAll => {
                self.ask(Operation::RemoveAll);
                self.removed.extend(0..KEYS);
            }
            Deed::Remount(storage) => {
                let call = StorageCall::Unmount {
                    storage: id(storage),
                };
                self.call(storage, call);
                self.attach(storage);
            }
            Deed::Restart => {
                self.epoch += 1;
                self.state = State::new(self.epoch, settings());
                let records = self.records.clone();
                self.state.apply(Time::ZERO, &Command::Replay(records));
                self.state.apply(Time::ZERO, &Command::Replayed);
                self.begin();
            }
        }
    }

    /// The life that the key stands for.
    fn known(&self, key: u8) -> Option<Incarnation> {
        let tenant = self.state.tenants.find("default").unwrap();
        let name = super::key(key);
        let objects = &self.state.objects;
        let body = objects.find(objects.sought(tenant, &name.0))?;
        Some(objects.bodies.incarnation(body))
    }
}

proptest! {
    #[test]
    fn law_06_no_older_life_of_a_key_comes_in_with_adopted_storages(
        lives in prop::collection::vec((0..KEYS, 1u64..4, 0usize..2), 1..8),
        deeds in prop::collection::vec(deed(), 0..40)
    ) {
        let mut disks = [Disk::new(), Disk::new()];
        for (key, sequence, disk) in lives {
            // Sequences count through all keys.
            disks[disk].insert(key, sequence * u64::from(KEYS) + u64::from(key));
        }
        let all = disks.clone();
        let mut world = World {
            state: State::new(7, settings()),
            epoch: 7,
            records: Vec::new(),
            number: 0,
            disks,
            next: [0; 2],
            removed: BTreeSet::new(),
        };
        for storage in [1, 2] {
            let call = StorageCall::Adopt { storage: id(storage) };
            prop_assert_eq!(world.call(0, call), Answer::Done);
        }
        world.begin();
        for deed in deeds.iter().chain(&[Deed::TellAll(1), Deed::TellAll(2)]) {
            world.take(deed);
            for key in &world.removed {
                prop_assert_eq!(world.known(*key), None, "key {} is back", key);
            }
        }
        for key in 0..KEYS {
            let latest = all.iter().filter_map(|disk| disk.get(&key)).max();
            let latest = latest.filter(|_| !world.removed.contains(&key));
            prop_assert_eq!(world.known(key), latest.map(|sequence| life(*sequence)), "key {}", key);
        }
    }
}
