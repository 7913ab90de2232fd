//! A disk in miniature beside a store in miniature.
#![allow(
    dead_code,
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "help for tests, of which each uses its part"
)]

use mooncake_master::state::{
    Answer, ClientId, Command, Dropped, Failure, Held, Incarnation, Measured, Object, ObjectName,
    OffloadResult, Offloaded, Removal, StorageAnswer, StorageCall, StorageId, StorageIdentity,
};

use super::common::{Store, key};

pub(crate) fn storage(id: u8) -> StorageId {
    StorageId([id; 16])
}

pub(crate) fn held(key: &str, object: &Object) -> Held {
    Held {
        tenant: "default".to_owned(),
        key: super::common::key(key),
        incarnation: object.incarnation,
        length: object.length,
    }
}

impl Store {
    pub(crate) fn call(&mut self, client: u64, call: StorageCall) -> Answer {
        let client = ClientId(client);
        self.apply(Command::Storage { client, call }).answer
    }

    pub(crate) fn attach(&mut self, client: u64, id: u8, fresh: bool) -> Answer {
        let storage = StorageIdentity {
            id: storage(id),
            holder: ClientId(client),
            endpoint: format!("node-{client}:7"),
            segment_name: format!("engine-{client}"),
            holder_name: String::new(),
        };
        let measured = Measured::default();
        self.call(
            client,
            StorageCall::Mount {
                storage,
                measured,
                fresh,
            },
        )
    }

    /// What of it must go.
    pub(crate) fn reconcile(&mut self, client: u64, id: u8, objects: Vec<Held>) -> Vec<u32> {
        let call = StorageCall::Reconcile {
            storage: storage(id),
            page: 0,
            objects,
            last: true,
        };
        match self.call(client, call) {
            Answer::Storage(StorageAnswer::Reconciled { remove }) => remove,
            other => panic!("Reconcile answered {other:?}"),
        }
    }

    /// With a client that offers a disk as well, of its own number.
    pub(crate) fn join_with_disk(&mut self, client: u64) {
        self.hello(client);
        assert_eq!(self.attach(client, client as u8, true), Answer::Done);
        assert!(self.reconcile(client, client as u8, Vec::new()).is_empty());
    }

    /// Numbers and keys of tasks, and the lease.
    pub(crate) fn fetch_offloads(&mut self, client: u64, id: u8) -> (Vec<(u64, Object)>, u64) {
        let call = StorageCall::FetchOffloads {
            storage: storage(id),
            limit: 0,
            limit_bytes: 0,
        };
        match self.call(client, call) {
            Answer::Storage(StorageAnswer::Offloads {
                tasks,
                objects,
                lease,
                ..
            }) => {
                let objects = objects.results.into_iter().map(Result::unwrap);
                let tasks = tasks.into_iter().map(|(task, ..)| task).zip(objects);
                (tasks.collect(), lease)
            }
            other => panic!("FetchOffloads answered {other:?}"),
        }
    }

    pub(crate) fn notify(
        &mut self,
        client: u64,
        id: u8,
        task: u64,
        outcome: Offloaded,
    ) -> Result<(), Failure> {
        self.notify_of(client, id, task, None, outcome)
    }

    /// The same with the name of what the task was for.
    pub(crate) fn notify_of(
        &mut self,
        client: u64,
        id: u8,
        task: u64,
        named: Option<(&str, &Object)>,
        outcome: Offloaded,
    ) -> Result<(), Failure> {
        let object = named.map(|(key, object)| ObjectName {
            tenant: "default".to_owned(),
            key: self::key(key),
            incarnation: object.incarnation,
        });
        let call = StorageCall::NotifyOffloads {
            storage: storage(id),
            results: vec![OffloadResult {
                task,
                object,
                outcome,
            }],
        };
        self.each(client, call)
    }

    fn each(&mut self, client: u64, call: StorageCall) -> Result<(), Failure> {
        match self.call(client, call) {
            Answer::Storage(StorageAnswer::Each(mut results)) => results.remove(0),
            other => panic!("one result was expected, not {other:?}"),
        }
    }

    /// Copies all that waits to the disk; keys do not matter.
    pub(crate) fn offload_all(&mut self, client: u64, id: u8) -> usize {
        let (tasks, lease) = self.fetch_offloads(client, id);
        for (task, _) in &tasks {
            self.notify(client, id, *task, Offloaded::Done).unwrap();
        }
        self.release(client, lease);
        tasks.len()
    }

    pub(crate) fn fetch_removes(&mut self, client: u64, id: u8) -> Vec<(u64, Removal)> {
        let call = StorageCall::FetchRemoves {
            storage: storage(id),
            limit: 0,
            after: 0,
        };
        match self.call(client, call) {
            Answer::Storage(StorageAnswer::Removes { tasks, .. }) => tasks,
            other => panic!("FetchRemoves answered {other:?}"),
        }
    }

    pub(crate) fn acknowledge(&mut self, client: u64, id: u8, tasks: Vec<u64>) {
        let call = StorageCall::AckRemoves {
            storage: storage(id),
            tasks,
        };
        assert_eq!(self.call(client, call), Answer::Done);
    }

    pub(crate) fn drop_replica(
        &mut self,
        client: u64,
        id: u8,
        key: &str,
        incarnation: Incarnation,
    ) -> Result<(), Failure> {
        let dropped = Dropped {
            tenant: "default".to_owned(),
            key: self::key(key),
            incarnation,
            evicted: true,
        };
        let call = StorageCall::Drop {
            storage: storage(id),
            objects: vec![dropped],
        };
        self.each(client, call)
    }
}
