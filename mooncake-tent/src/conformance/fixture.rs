//! Two engines and what stands between them, as the laws need it.

use std::{
    any::Any,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::remote::{Bytes, Files, Remote};
use crate::{
    Batch, Buffer, Generation, Memory, Permission, Qos, RegisterOptions, Request, Segment,
    TentEngine, TransferEngine,
    error::TransferError,
    memory::LocalBuffer,
    transport::{Op, Outcome},
};

/// Nothing takes so long unless it hangs.
pub(super) const BUDGET: Duration = Duration::from_secs(20);
/// How often a transfer is tried over a link with faults.
const TRIES: usize = 6;

/// Two engines of one process, fresh from their builders, that reach each other over the link in
/// question and no other.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fixture {
    /// Asks for transfers.
    pub initiator: TentEngine,
    /// Offers memory.
    pub target: TentEngine,
    /// The link loses or breaks things on purpose: transfers may fail.
    pub faulty: bool,
    /// What is read and written are files, not memory of the target.
    pub(super) files: Option<Files>,
    /// Where the memory here and there is, if not in ordinary memory.
    locations: Option<[&'static str; 2]>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl Fixture {
    /// Over a link that works.
    pub fn new(initiator: TentEngine, target: TentEngine) -> Self {
        Self {
            initiator,
            target,
            faulty: false,
            files: None,
            locations: None,
            kept: Vec::new(),
        }
    }

    /// Keeps what the link needs, such as a [`Relay`](super::Relay), for as long as itself.
    #[must_use]
    pub fn keep(mut self, what: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(what));
        self
    }

    /// Over a link on which transfers may fail. Give the initiator little
    /// [patience](crate::TentEngineBuilder::patience), since what is lost takes that long.
    #[must_use]
    pub fn with_faults(mut self) -> Self {
        self.faulty = true;
        self
    }

    /// Over a link whose segments are files, which the laws make in `folder`. `name` gives the name
    /// under which one is opened, to be written or only to be read. The target has nothing to do.
    #[must_use]
    pub fn with_files(
        mut self,
        folder: impl Into<PathBuf>,
        name: fn(path: &Path, write: bool) -> String,
    ) -> Self {
        self.files = Some(Files::new(folder.into(), name));
        self
    }

    /// Between memory that is registered at `here` and memory at `there`, which the link in question reads
    /// and writes.
    #[must_use]
    pub fn with_locations(mut self, here: &'static str, there: &'static str) -> Self {
        self.locations = Some([here, there]);
        self
    }

    /// Shuts both engines down; both must be able to prove that nothing moves any more.
    ///
    /// # Panics
    ///
    /// They cannot.
    pub async fn close(self) {
        for (engine, who) in [(self.initiator, "initiator"), (self.target, "target")] {
            if let Err(error) = engine.shutdown(BUDGET).await {
                panic!("law 3: the {who} cannot prove that it is quiet: {error}");
            }
        }
    }

    pub(super) async fn ground(&self, len: usize) -> Ground {
        let remote = self.offer(len, Permission::PeersReadWrite).await;
        let here = self.locations.map_or("*", |[here, _]| here);
        let local = buffer(&self.initiator, len, Permission::Local, here).await;
        let segment = self.segment_of(&remote).await;
        Ground {
            near: books(&local),
            far: remote.books(),
            remote,
            local,
            segment,
        }
    }

    /// Something that the initiator can reach.
    pub(super) async fn offer(&self, len: usize, permission: Permission) -> Remote {
        match &self.files {
            None => {
                let there = self.locations.map_or("*", |[_, there]| there);
                Remote::Memory(buffer(&self.target, len, permission, there).await)
            }
            Some(files) => {
                let write = permission == Permission::PeersReadWrite;
                let (file, name) = files.make(len as u64, write);
                let segment = self.initiator.open_segment(&name, BUDGET).await;
                Remote::File {
                    file,
                    segment: segment.expect("the link opens files"),
                }
            }
        }
    }

    /// Where it is found, as it is now.
    pub(super) async fn segment_of(&self, remote: &Remote) -> Segment {
        match remote {
            Remote::Memory(buffer) => {
                let segment = self.segment().await;
                let start = Instant::now();
                // It may have been open, and is told of changes.
                let lacks = |segment: &Segment| {
                    let known = segment.descriptor();
                    let known = known.buffer(buffer.id());
                    known.is_none_or(|known| known.generation != buffer.generation())
                };
                while buffer.local().permission() != Permission::Local && lacks(&segment) {
                    assert!(
                        start.elapsed() < BUDGET,
                        "law 8: whoever has it open is told"
                    );
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                segment
            }
            Remote::File { segment, .. } => segment.clone(),
        }
    }

    /// Registers it anew, if that makes sense.
    pub(super) async fn renew(&self, remote: &Remote) -> Generation {
        if let Remote::Memory(buffer) = remote {
            let renewed = self.target.renew_registration(buffer, BUDGET);
            renewed.await.expect("law 3: nobody holds it");
        }
        remote.generation()
    }

    /// Takes it back.
    pub(super) async fn withdraw(&self, remote: Remote) {
        match remote {
            Remote::Memory(buffer) => {
                let gone = self.target.unregister_memory(buffer, BUDGET).await;
                gone.expect("law 13: remote memory is given back");
            }
            Remote::File { segment, .. } => self.initiator.close_segment(&segment),
        }
    }

    /// The target's segment as it is now.
    async fn segment(&self) -> Segment {
        let name = self.target.segment_name();
        let opened = self.initiator.open_segment(name, BUDGET).await;
        self.initiator
            .close_segment(&opened.expect("the target describes itself"));
        let opened = self.initiator.open_segment(name, BUDGET).await;
        opened.expect("the target describes itself")
    }

    pub(super) fn carries(&self, op: Op, segment: &Segment) -> bool {
        if self.locations.is_some() {
            // What is explained is told of ordinary memory.
            return true;
        }
        let ranking = self.initiator.explain(op, 1, &Qos::new(), segment);
        !ranking.ranked.is_empty()
    }

    pub(super) fn submit(&self, requests: Vec<Request>) -> Batch {
        let mut batch = self.initiator.allocate_batch(requests.len());
        let submitted = self.initiator.submit_transfer(&mut batch, requests);
        submitted.expect("the batch has room and the link carries it");
        batch
    }

    /// Makes a transfer, waiting in one way or another; over a link with faults tries again.
    /// `false`: it never came to be, which only a link with faults may do.
    pub(super) async fn transfer(&self, make: impl Fn() -> Request, blocking: bool) -> bool {
        for _ in 0..TRIES {
            let batch = self.submit(vec![make()]);
            end(&batch, blocking).await;
            let outcome = batch.outcome(0).expect("law 2: it has ended");
            quiet(&batch).await;
            match outcome {
                Outcome::Completed { bytes } => {
                    assert_eq!(bytes, make().length(), "law 1: completed in part");
                    return true;
                }
                other => assert!(self.faulty, "law 1: it did not complete: {other:?}"),
            }
        }
        false
    }

    /// How a request ends that must not complete.
    pub(super) async fn refused(&self, request: Request, what: &str) -> Outcome {
        let batch = self.submit(vec![request]);
        end(&batch, false).await;
        quiet(&batch).await;
        let outcome = batch.outcome(0).expect("law 2: it has ended");
        assert!(!outcome.is_completed(), "{what} was completed");
        outcome
    }

    /// As [`refused`](Self::refused), with the error; `None` over a link with faults.
    pub(super) async fn refusal(&self, request: Request, what: &str) -> Option<TransferError> {
        match self.refused(request, what).await {
            Outcome::Failed(error) if !self.faulty => Some(error),
            _ if self.faulty => None,
            other => panic!("{what} should have failed: {other:?}"),
        }
    }
}

/// Memory on our side, and something on the other.
pub(super) struct Ground {
    pub(super) remote: Remote,
    pub(super) local: Buffer,
    pub(super) segment: Segment,
    pub(super) near: Arc<LocalBuffer>,
    pub(super) far: Option<Arc<LocalBuffer>>,
}

impl Ground {
    pub(super) fn here(&self) -> &dyn Bytes {
        self.local.memory()
    }

    pub(super) fn there(&self) -> &dyn Bytes {
        self.remote.bytes()
    }

    /// Leases on the memory of both sides.
    pub(super) fn leases(&self) -> u64 {
        leases(&self.near, self.far.as_ref())
    }

    pub(super) fn write(&self, at: u64, len: u64) -> Request {
        let local = self.local.slice(at..at + len).expect("it lies within");
        Request::write(local, &self.segment, self.remote.place(at))
    }

    pub(super) fn read(&self, at: u64, len: u64) -> Request {
        let local = self.local.slice(at..at + len).expect("it lies within");
        Request::read(local, &self.segment, self.remote.place(at))
    }

    /// Gives both buffers back, which only works when nothing holds them.
    pub(super) async fn close(self, with: &Fixture) {
        let local = with.initiator.unregister_memory(self.local, BUDGET).await;
        local.expect("law 13: local memory is given back");
        with.withdraw(self.remote).await;
        assert_eq!(leases(&self.near, self.far.as_ref()), 0, "law 13");
        eventually("law 13: all task cells return", || {
            with.initiator.tasks_in_use() == 0
        })
        .await;
    }
}

async fn buffer(engine: &TentEngine, len: usize, permission: Permission, location: &str) -> Buffer {
    let memory = Memory::allocate(len).expect("there is memory");
    let mut options = RegisterOptions::new(permission);
    options.location = location.to_owned();
    let buffer = engine.register_memory(memory, options).await;
    buffer.expect("the link accepts memory")
}

/// The books of a buffer, which outlive it.
pub(super) fn books(buffer: &Buffer) -> Arc<LocalBuffer> {
    Arc::clone(buffer.slice(0..1).expect("it is open").buffer())
}

fn leases(near: &LocalBuffer, far: Option<&Arc<LocalBuffer>>) -> u64 {
    near.leases() + far.map_or(0, |far| far.leases())
}

/// Bytes that tell where they belong, and in which round they were made.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8)
        .collect()
}

pub(super) fn bytes(memory: &dyn Bytes, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read_at(offset, &mut bytes);
    bytes
}

/// Compares without printing megabytes.
pub(super) fn assert_same(found: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let differs = found.iter().zip(wanted).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first byte that differs");
}

pub(super) async fn end(batch: &Batch, blocking: bool) {
    match blocking {
        true => assert!(batch.wait(BUDGET), "law 2: a task does not end"),
        false => {
            let ended = tokio::time::timeout(BUDGET, batch.terminal()).await;
            assert!(ended.is_ok(), "law 2: a task does not end");
        }
    }
}

pub(super) async fn quiet(batch: &Batch) {
    let quiet = tokio::time::timeout(BUDGET, batch.quiescent()).await;
    assert!(quiet.is_ok(), "law 3: a batch does not become quiet");
}

pub(super) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < BUDGET, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
