//! Between the state machine and its log: nobody is answered on the strength of what could be
//! forgotten.

use std::{collections::VecDeque, sync::Arc};

use rustc_hash::FxHashMap;

use super::Shared;
use crate::{
    log::Log,
    state::{Answer, Applied, Command, Effect, Failure, Key, Operation, Record},
};

/// What must be durable before an answer is given: all up to this number; 0: nothing.
pub(super) type After = u64;

/// Removes that are not durable yet: what is put in their place must not be sooner. Of which tenant
/// they are does not matter: some put that need not waits as well.
#[derive(Debug, Default)]
pub(super) struct Unlogged {
    /// In order, with their keys; none: of all keys.
    order: VecDeque<(After, Option<Key>)>,
    /// The latest of each key.
    keys: FxHashMap<Key, After>,
    /// The latest of all keys.
    all: After,
}

impl Unlogged {
    fn add(&mut self, after: After, record: &Record) {
        match record {
            Record::Removed { key, .. } | Record::Gone { key, .. } => {
                self.order.push_back((after, Some(key.clone())));
                self.keys.insert(key.clone(), after);
            }
            Record::RemovedAll { .. } => {
                self.order.push_back((after, None));
                self.all = after;
            }
            _ => {}
        }
    }

    /// The latest of these keys that is not durable; 0: there is none.
    fn latest<'a>(&mut self, log: &Log, keys: impl Iterator<Item = &'a Key>) -> After {
        while let Some((after, _)) = self.order.front()
            && log.is_durable(*after)
        {
            let (after, key) = self.order.pop_front().expect("there is one in front");
            match key {
                Some(key) if self.keys.get(&key) == Some(&after) => drop(self.keys.remove(&key)),
                None if self.all == after => self.all = 0,
                _ => {}
            }
        }
        if self.order.is_empty() {
            return 0;
        }
        let latest = keys.filter_map(|key| self.keys.get(key)).max();
        self.all.max(latest.copied().unwrap_or_default())
    }
}

impl Shared {
    /// Why a command that may have something to be remembered has to come later.
    pub(super) fn busy(&self, command: &Command) -> Option<Answer> {
        let log = self.log.as_ref()?;
        match command {
            Command::Perform {
                operation:
                    Operation::Remove(_)
                    | Operation::RemoveAll
                    | Operation::Put(_)
                    | Operation::PutEnd(_),
                ..
            }
            | Command::Storage { .. } => {
                let waiting = log.behind()?;
                Some(Answer::Refused(Failure::LogBehind { waiting }))
            }
            _ => None,
        }
    }

    /// Logs what a step told. Called while the state is locked, so that the log has the order of the
    /// steps.
    pub(super) fn remember(&self, command: &Command, applied: &mut Applied) -> After {
        let Some(log) = &self.log else {
            return 0;
        };
        let told = |effect: &Effect| matches!(effect, Effect::Log(_));
        if applied.effects.iter().any(told) {
            let records = applied.effects.iter().filter_map(|effect| match effect {
                Effect::Log(record) => Some(record),
                _ => None,
            });
            let after = log.append(records.clone());
            let mut unlogged = self.unlogged_removes.lock();
            for record in records {
                unlogged.add(after, record);
            }
            applied.effects.retain(|effect| !told(effect));
            return after;
        }
        match command {
            // That an object is not there may be news that is not durable yet.
            Command::Perform {
                operation: Operation::Remove(_) | Operation::RemoveAll,
                ..
            }
            | Command::Storage { .. } => log.tail(),
            Command::Perform { operation, .. } if operation.mutates() && !applied.again => {
                let mut unlogged = self.unlogged_removes.lock();
                match operation {
                    Operation::Put(put) => {
                        unlogged.latest(log, put.items.iter().map(|item| &item.key))
                    }
                    Operation::PutStart(put) => {
                        unlogged.latest(log, put.items.iter().map(|(key, _)| key))
                    }
                    Operation::PutEnd(items) => {
                        unlogged.latest(log, items.iter().map(|(key, _)| key))
                    }
                    _ => 0,
                }
            }
            _ if applied.again => log.tail(),
            _ => 0,
        }
    }

    /// What was told and is not durable yet.
    pub(super) fn unlogged(&self) -> After {
        self.log.as_ref().map_or(0, |log| log.tail())
    }

    /// The answer, once what it says will be remembered.
    pub(super) async fn when_durable(self: &Arc<Self>, after: After, answer: Answer) -> Answer {
        let Some(log) = self.log.as_ref().filter(|_| after > 0) else {
            return answer;
        };
        if log.durable(after).await {
            return answer;
        }
        self.apply(&Command::LogFailed);
        Answer::Refused(Failure::LogFailed)
    }

    /// The same without waiting for it.
    pub(super) fn when_durable_then(
        self: &Arc<Self>,
        after: After,
        answer: Answer,
        then: impl FnOnce(&Arc<Self>, Answer) + Send + 'static,
    ) {
        match &self.log {
            Some(log) if after > 0 && !log.is_durable(after) => {
                let shared = Arc::clone(self);
                log.runtime.spawn(async move {
                    let answer = shared.when_durable(after, answer).await;
                    then(&shared, answer);
                });
            }
            _ => then(self, answer),
        }
    }

    /// The master ends: nothing more will be remembered.
    pub(crate) fn close_log(&self) {
        if let Some(log) = &self.log {
            log.close();
        }
    }

    /// Looks after the log: after each tick, which is soon enough for both.
    pub(super) fn tend_log(self: &Arc<Self>) {
        let Some(log) = &self.log else {
            return;
        };
        if log.has_failed() {
            self.apply(&Command::LogFailed);
        } else if log.wants_checkpoint() {
            let shared = Arc::clone(self);
            log.runtime.spawn_blocking(move || {
                let Some(log) = &shared.log else {
                    return;
                };
                let written = log.checkpoint(|from, most, into| {
                    let state = shared.state.lock();
                    state.survey(from, most, into)
                });
                if let Err(error) = written {
                    tracing::warn!(%error, "no checkpoint was written: the log goes on");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    use crate::{
        MasterService, Time,
        log::{Files, Log, Out, Recovered},
        state::{
            Caller, ClientId, Key, Measured, Offload, PutStart, Remove, Settings, State,
            StorageAnswer, StorageCall, StorageId, StorageIdentity,
        },
    };

    use super::*;

    /// A disk that takes everything, until it takes nothing.
    #[derive(Debug, Default)]
    struct Failing {
        broken: Arc<AtomicBool>,
        /// What is to be made durable waits as long.
        slow: Arc<AtomicBool>,
        /// No new file can be made.
        full: Arc<AtomicBool>,
    }

    impl Failing {
        fn check(&self) -> io::Result<()> {
            match self.broken.load(Ordering::SeqCst) {
                true => Err(io::Error::other("the disk is gone")),
                false => Ok(()),
            }
        }

        fn out(&self) -> Box<dyn Out> {
            Box::new(Self {
                broken: Arc::clone(&self.broken),
                slow: Arc::clone(&self.slow),
                full: Arc::clone(&self.full),
            })
        }
    }

    impl Files for Failing {
        fn list(&self) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }

        fn read(&self, _: &str) -> io::Result<Vec<u8>> {
            Err(io::ErrorKind::NotFound.into())
        }

        fn create(&self, _: &str) -> io::Result<Box<dyn Out>> {
            self.check()?;
            if self.full.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(self.out())
        }

        fn rename(&self, _: &str, _: &str) -> io::Result<()> {
            self.check()
        }

        fn remove(&self, _: &str) -> io::Result<()> {
            self.check()
        }

        fn cut(&self, _: &str, _: u64) -> io::Result<()> {
            self.check()
        }

        fn sync(&self) -> io::Result<()> {
            self.check()
        }
    }

    impl Out for Failing {
        fn append(&mut self, _: &[u8]) -> io::Result<()> {
            self.check()
        }

        fn sync(&mut self) -> io::Result<()> {
            while self.slow.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.check()
        }
    }

    const CLIENT: ClientId = ClientId(1);
    const STORAGE: StorageId = StorageId([7; 16]);

    async fn ask(shared: &Arc<Shared>, operation: Operation) -> Answer {
        let (client, tenant) = (CLIENT, String::new());
        let caller = Caller::Unary { client, tenant };
        shared.answer(&Command::Perform { caller, operation }).await
    }

    async fn call(shared: &Arc<Shared>, call: StorageCall) -> Answer {
        let client = CLIENT;
        shared.answer(&Command::Storage { client, call }).await
    }

    fn key() -> Key {
        Key::from(b"k".to_vec())
    }

    /// An object that is on its way to the disk of its owner.
    async fn dispatched(shared: &Arc<Shared>) {
        let segment = crate::state::SegmentIdentity {
            id: crate::state::SegmentId([1; 16]),
            name: "segment".to_owned(),
            owner: CLIENT,
            registration: 1,
            generation: 0,
            length: 1 << 20,
            owner_name: String::new(),
        };
        assert_eq!(ask(shared, Operation::Mount(segment)).await, Answer::Done);
        let storage = StorageIdentity {
            id: STORAGE,
            holder: CLIENT,
            endpoint: "a:1".to_owned(),
            segment_name: "engine".to_owned(),
            holder_name: String::new(),
        };
        let mount = StorageCall::Mount {
            storage,
            measured: Measured::default(),
            fresh: true,
        };
        assert_eq!(call(shared, mount).await, Answer::Done);
        let reconcile = StorageCall::Reconcile {
            storage: STORAGE,
            page: 0,
            objects: Vec::new(),
            last: true,
        };
        call(shared, reconcile).await;
        let put = PutStart {
            items: vec![(key(), 1000)],
            replicas: 1,
            ..PutStart::default()
        };
        let Answer::Started(started) = ask(shared, Operation::PutStart(put)).await else {
            panic!("the put did not start");
        };
        let incarnation = started.results[0].as_ref().unwrap().incarnation;
        ask(shared, Operation::PutEnd(vec![(key(), incarnation)])).await;
        let fetch = StorageCall::FetchOffloads {
            storage: STORAGE,
            limit: 0,
            limit_bytes: 0,
        };
        let fetched = call(shared, fetch).await;
        assert!(matches!(
            fetched,
            Answer::Storage(StorageAnswer::Offloads { tasks, .. }) if tasks.len() == 1
        ));
    }

    #[tokio::test]
    async fn a_master_whose_disk_fails_promises_nothing_that_it_could_forget() {
        let files = Failing::default();
        let broken = Arc::clone(&files.broken);
        let service = serve(files);
        let shared = service.shared();
        assert!(shared.now() >= Time::ZERO);
        dispatched(shared).await;
        broken.store(true, Ordering::SeqCst);
        let remove = || {
            Operation::Remove(Remove {
                items: vec![(key(), None)],
                barrier: false,
            })
        };
        // It was in the middle of it when the disk failed: nobody is told that it is done.
        let refused = Answer::Refused(Failure::LogFailed);
        assert_eq!(ask(shared, remove()).await, refused);
        // That the key is not there is as uncertain.
        assert_eq!(ask(shared, remove()).await, refused);
        let fetch = StorageCall::FetchRemoves {
            storage: STORAGE,
            limit: 0,
            after: 0,
        };
        assert_eq!(call(shared, fetch).await, refused);
        // What need not be remembered goes on.
        let put = PutStart {
            items: vec![(Key::from(b"other".to_vec()), 1000)],
            replicas: 1,
            ..PutStart::default()
        };
        let started = ask(shared, Operation::PutStart(put.clone())).await;
        assert!(matches!(started, Answer::Started(_)), "{started:?}");
        // But what was removed may be back after a restart, behind what was put in its place.
        let again = PutStart {
            items: vec![(key(), 1000)],
            ..put
        };
        assert_eq!(ask(shared, Operation::PutStart(again)).await, refused);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_checkpoint_that_cannot_be_begun_leaves_the_log_as_it_is() {
        let files = Failing::default();
        let full = Arc::clone(&files.full);
        let log = Arc::new(Log::start(Arc::new(files), &Recovered::default(), 3).unwrap());
        let mut told = 0;
        for is_full in [true, false] {
            full.store(is_full, Ordering::SeqCst);
            let of_thread = Arc::clone(&log);
            let survey = move || {
                let mut asked = false;
                let written = of_thread.checkpoint(|_, _, _| {
                    asked = true;
                    crate::state::Survey::End
                });
                written.map(|()| asked)
            };
            let asked = tokio::task::spawn_blocking(survey).await.unwrap().unwrap();
            assert_eq!(asked, !is_full);
            let record = Record::Forgotten { storage: STORAGE };
            told = log.append([&record].into_iter()).max(told);
            assert!(log.durable(told).await && !log.has_failed());
        }
    }

    fn serve(files: Failing) -> MasterService {
        let log = Log::start(Arc::new(files), &Recovered::default(), 3).unwrap();
        let settings = Settings {
            offload: Offload::Eager,
            log: true,
            ..Settings::default()
        };
        let state = State::new(3, settings);
        MasterService::with_log(state, Duration::from_secs(1), Some(log))
    }

    #[tokio::test]
    async fn law_06_neither_a_remove_nor_what_is_put_in_its_place_is_answered_before_it_is_durable()
    {
        let files = Failing::default();
        let slow = Arc::clone(&files.slow);
        let service = serve(files);
        let shared = service.shared();
        dispatched(shared).await;
        slow.store(true, Ordering::SeqCst);
        let remove = Operation::Remove(Remove {
            items: vec![(key(), None)],
            barrier: false,
        });
        let start = |key: Key| {
            Operation::PutStart(PutStart {
                items: vec![(key, 1000)],
                replicas: 1,
                ..PutStart::default()
            })
        };
        let mut removed = Box::pin(ask(shared, remove));
        let mut started = Box::pin(ask(shared, start(key())));
        // Each is applied when it is polled first.
        tokio::select! {
            biased;
            answer = &mut removed => panic!("{answer:?} is not durable"),
            answer = &mut started => panic!("{answer:?} is not durable"),
            answer = ask(shared, start(Key::from(b"other".to_vec()))) => {
                assert!(matches!(answer, Answer::Started(_)), "{answer:?}");
            }
        }
        slow.store(false, Ordering::SeqCst);
        assert_eq!(removed.await, Answer::Keys(vec![Ok(())]));
        let started = started.await;
        assert!(matches!(started, Answer::Started(_)), "{started:?}");
    }
}
