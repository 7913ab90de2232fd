//! Reads and writes, and knows what must come of it.

use std::{
    collections::HashMap,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use mooncake_tent::{
    Applied, Batch, Buffer, BufferDescriptor, Error, Hint, Intent, Memory, Notification,
    Permission, Priority, Reason, RegisterOptions, RegistrationId, RemoteRange, Request, Segment,
    TentEngine, TransferEngine, TransferError,
    transport::{Op, Outcome},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{PART_BYTES, common::*, ledger::Ledger};

const MOST_TASKS: usize = 8;
/// Patience of the engine, and time for peers that were stopped.
const QUIET: Duration = Duration::from_secs(40);

/// How much of what has happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) kills: u64,
    reads: u64,
    writes: u64,
    bytes: u64,
    cancelled: u64,
    timed_out: u64,
    failed: HashMap<String, u64>,
    not_submitted: HashMap<String, u64>,
    dropped: u64,
    doubts: u64,
    learnt: u64,
    numbered: u64,
    notified: u64,
    announced: u64,
    fences: u64,
    fences_failed: u64,
    renewed: u64,
    unopened: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        macro_rules! sum {
            ($($field:ident)*) => { $(self.$field += other.$field;)* };
        }
        sum! { kills reads writes bytes cancelled timed_out dropped doubts learnt numbered notified }
        sum! { announced fences fences_failed renewed unopened }
        for (mine, others) in [
            (&mut self.failed, &other.failed),
            (&mut self.not_submitted, &other.not_submitted),
        ] {
            for (why, count) in others {
                *mine.entry(why.clone()).or_default() += count;
            }
        }
    }

    /// A test in which nothing happens shows nothing.
    pub(crate) fn must_be_much(&self) {
        let most = [self.reads, self.writes, self.bytes >> 20];
        assert!(most.iter().all(|count| *count > 100), "{self:?}");
        let some = [
            self.kills,
            self.cancelled,
            self.dropped,
            self.numbered,
            self.notified,
            self.announced,
            self.fences,
            self.renewed,
        ];
        assert!(some.iter().all(|count| *count > 0), "{self:?}");
    }
}

/// What is in our part of a buffer.
enum Known {
    Bytes(Vec<u8>),
    /// A write has ended in a way of which nobody knows the result.
    Unknown,
    /// Something may land in it still.
    GivenUp,
}

/// One request, and what it moves.
struct Piece {
    op: Op,
    range: Range<u64>,
    /// Of a write.
    bytes: Vec<u8>,
    op_id: Option<u64>,
}

pub(crate) struct Caller {
    number: usize,
    engine: TentEngine,
    names: Arc<[String]>,
    ledger: Arc<Ledger>,
    draw: StdRng,
    local: Buffer,
    segments: HashMap<usize, Segment>,
    /// With the number of its owner.
    known: HashMap<RegistrationId, (usize, Known)>,
    op_ids: u64,
    notifications: u64,
    tally: Tally,
}

impl Caller {
    pub(crate) async fn new(
        number: usize,
        engine: TentEngine,
        names: Arc<[String]>,
        ledger: Arc<Ledger>,
        seed: u64,
    ) -> Self {
        let local = local(&engine, false).await;
        Self {
            number,
            engine,
            names,
            ledger,
            draw: StdRng::seed_from_u64(seed),
            local,
            segments: HashMap::new(),
            known: HashMap::new(),
            op_ids: 0,
            notifications: 0,
            tally: Tally::default(),
        }
    }

    pub(crate) async fn run(mut self) -> (Self, Tally) {
        while self.ledger.goes_on() {
            let peer = self.draw.random_range(0..self.names.len());
            let Some(segment) = self.segment(peer).await else {
                continue;
            };
            match self.draw.random_range(0..100) {
                0..88 => self.transfer(peer, &segment).await,
                88..93 => self.notify(&segment).await,
                93..95 => _ = self.fence(&segment).await,
                95..97 => self.renew().await,
                97..98 => {
                    self.segments.remove(&peer);
                    self.engine.close_segment(&segment);
                }
                _ => _ = self.engine.probe(&segment, Duration::from_secs(1)).await,
            }
        }
        let tally = self.tally.clone();
        (self, tally)
    }

    pub(crate) async fn end(self) {
        for segment in self.segments.values() {
            self.engine.close_segment(segment);
        }
        self.engine
            .unregister_memory(self.local, BUDGET)
            .await
            .unwrap();
    }

    async fn segment(&mut self, peer: usize) -> Option<Segment> {
        if let Some(segment) = self.segments.get(&peer) {
            return Some(segment.clone());
        }
        let budget = Duration::from_secs(1);
        match self.engine.open_segment(&self.names[peer], budget).await {
            Ok(segment) => {
                self.segments.insert(peer, segment.clone());
                Some(segment)
            }
            Err(error) => {
                assert!(matches!(error, Error::Unreachable { .. }), "{error}");
                self.tally.unopened += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
                None
            }
        }
    }

    async fn notify(&mut self, segment: &Segment) {
        self.notifications += 1;
        let mut message = self.notifications.to_le_bytes().to_vec();
        message.resize(self.draw.random_range(8..2_000), 7);
        let notification = Notification::new(format!("caller {}", self.number), message);
        let budget = Duration::from_secs(1);
        let sent = self.engine.send_notification(segment, notification, budget);
        self.tally.notified += u64::from(sent.await.is_ok());
    }

    /// Whether nothing that was posted before can land any more, or not for as long as anybody looks.
    async fn fence(&mut self, segment: &Segment) -> bool {
        let life = segment.incarnation();
        self.tally.fences += 1;
        let Err(error) = self.engine.fence(segment, BUDGET).await else {
            return true;
        };
        self.tally.fences_failed += 1;
        let probe = self.engine.probe(segment, BUDGET).await;
        let lives = probe.is_ok_and(|probe| probe.is_alive()) && segment.incarnation() == life;
        assert!(!lives, "a peer that lives is not fenced: {error}");
        false
    }

    /// Nothing of ours is under way.
    async fn renew(&mut self) {
        self.tally.renewed += 1;
        if self.draw.random() {
            let renewed = self.engine.renew_registration(&self.local, BUDGET);
            renewed.await.unwrap();
        } else {
            self.register_anew().await;
        }
    }

    async fn register_anew(&mut self) {
        let next = local(&self.engine, self.draw.random()).await;
        let last = std::mem::replace(&mut self.local, next);
        self.engine.unregister_memory(last, QUIET).await.unwrap();
    }

    async fn transfer(&mut self, peer: usize, segment: &Segment) {
        let descriptor = segment.descriptor();
        let offered: Vec<_> = descriptor.buffers().cloned().collect();
        let offered = offered.into_iter().filter(|buffer| {
            buffer.permission == Permission::PeersReadWrite && buffer.length >= PART_BYTES
        });
        let mut offered: Vec<BufferDescriptor> = offered.collect();
        if offered.is_empty() {
            // It is just being registered.
            self.look_again(segment).await;
            return;
        }
        let place = self.draw.random_range(0..offered.len());
        let buffer = offered.swap_remove(place);
        let id = buffer.registration;
        if !self.known.contains_key(&id) {
            self.forget_what_is_gone();
            let fresh = vec![0; PART_BYTES as usize];
            self.known.insert(id, (peer, Known::Bytes(fresh)));
        }
        match self.known[&id].1 {
            Known::Bytes(_) => {}
            Known::Unknown => {
                let Some(bytes) = self.look(segment, id, 0..PART_BYTES).await else {
                    return;
                };
                self.known.insert(id, (peer, Known::Bytes(bytes)));
                self.tally.learnt += 1;
            }
            Known::GivenUp => return,
        }

        let pieces = self.pieces(peer);
        let requests = self.requests(segment, &buffer, &pieces);
        // What was there before tells nothing afterwards.
        for piece in &pieces {
            match piece.op {
                Op::Read => {
                    let noise = vec![self.draw.random(); piece.bytes.len()];
                    self.local.memory().write_at(piece.range.start, &noise);
                }
                Op::Write => {
                    let memory = self.local.memory();
                    memory.write_at(piece.range.start, &piece.bytes);
                }
            }
        }
        let mut batch = self.engine.allocate_batch(requests.len());
        let submitted = if self.draw.random_bool(0.1) {
            self.notifications += 1;
            let message = self.notifications << 8 | self.number as u64;
            let told = Notification::new("done", message.to_le_bytes());
            let engine = &self.engine;
            let submitted = engine.submit_transfer_and_notify(&mut batch, requests, told);
            self.tally.announced += u64::from(submitted.is_ok());
            submitted.map(drop)
        } else {
            self.engine.submit_transfer(&mut batch, requests)
        };
        if let Err(error) = submitted {
            self.not_submitted(&error, segment, &pieces).await;
            return;
        }
        if self.draw.random_bool(0.05) {
            self.let_go(batch, segment, (id, peer), &pieces).await;
            return;
        }
        self.wait(&batch).await;
        self.settle(&batch, segment, (id, peer), pieces).await;
    }

    async fn not_submitted(&mut self, error: &Error, segment: &Segment, pieces: &[Piece]) {
        let kind = match error {
            Error::NotRegistered { .. } => "not registered",
            Error::NoRoute { .. } => "no route",
            Error::Infeasible { .. } => "infeasible",
            Error::Unreachable { .. } => "unreachable",
            error => panic!("{error}"),
        };
        *self.tally.not_submitted.entry(kind.to_owned()).or_default() += 1;
        for piece in pieces {
            if let Some(op_id) = piece.op_id {
                self.ledger.ended(op_id, false);
            }
        }
        self.look_again(segment).await;
    }

    /// News of the segment come by themselves, or with a question.
    async fn look_again(&self, segment: &Segment) {
        let _asked = self.engine.probe(segment, Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    /// Beside each other, with gaps.
    fn pieces(&mut self, peer: usize) -> Vec<Piece> {
        let count = self.draw.random_range(1..=MOST_TASKS);
        let mut pieces = Vec::new();
        let mut at = self.draw.random_range(0..64);
        for _ in 0..count {
            // As many of each order of magnitude.
            let magnitude = self.draw.random_range(0..=23);
            let length = self.draw.random_range(1..=1u64 << magnitude);
            if at + length > PART_BYTES {
                break;
            }
            let write = self.draw.random();
            let mut bytes = vec![0; length as usize];
            let mut op_id = None;
            if write {
                self.draw.fill(&mut bytes[..]);
                if self.draw.random_bool(0.2) {
                    self.op_ids += 1;
                    op_id = Some((self.op_ids << 8 | self.number as u64) << 8 | peer as u64);
                }
            }
            pieces.push(Piece {
                op: if write { Op::Write } else { Op::Read },
                range: at..at + length,
                bytes,
                op_id,
            });
            at += length + self.draw.random_range(0..3);
        }
        if pieces.is_empty() {
            pieces.push(Piece {
                op: Op::Read,
                range: 0..1,
                bytes: vec![0],
                op_id: None,
            });
        }
        pieces
    }

    fn place(&self, id: RegistrationId, offset: u64) -> RemoteRange {
        RemoteRange::Registered {
            registration: id,
            generation: None,
            offset: self.number as u64 * PART_BYTES + offset,
        }
    }

    fn requests(
        &mut self,
        segment: &Segment,
        buffer: &BufferDescriptor,
        pieces: &[Piece],
    ) -> Vec<Request> {
        let mut requests = Vec::new();
        let strict = self.draw.random_bool(0.1);
        for piece in pieces {
            let mut place = self.place(buffer.registration, piece.range.start);
            if strict && let RemoteRange::Registered { generation, .. } = &mut place {
                *generation = Some(buffer.generation);
            }
            let local = self.local.slice(piece.range.clone()).unwrap();
            let mut request = match piece.op {
                Op::Read => Request::read(local, segment, place),
                Op::Write => Request::write(local, segment, place),
            };
            if let Some(op_id) = piece.op_id {
                request = request.op_id(op_id);
            }
            if piece.op == Op::Write && self.draw.random_bool(0.1) {
                request = request.checksum();
            }
            if self.draw.random_bool(0.2) {
                let time = Duration::from_micros(self.draw.random_range(100..100_000));
                request = request.deadline(Instant::now() + time);
            }
            if self.draw.random() {
                let priorities = Priority::ALL;
                request = request.priority(priorities[self.draw.random_range(0..priorities.len())]);
                let intents = Intent::ALL;
                request = request.intent(intents[self.draw.random_range(0..intents.len())]);
            }
            if self.draw.random() {
                let link = ["tcp", "shm", "cma"][self.draw.random_range(0..3)];
                request = request.hint(Hint::soft(link));
            }
            requests.push(request);
        }
        requests
    }

    /// Nobody learns how they end.
    async fn let_go(
        &mut self,
        batch: Batch,
        segment: &Segment,
        (id, peer): (RegistrationId, usize),
        pieces: &[Piece],
    ) {
        self.tally.dropped += 1;
        if self.draw.random() {
            batch.cancel_all();
        }
        drop(batch);
        let life = segment.incarnation();
        let fenced = self.fence(segment).await;
        if pieces.iter().any(|piece| piece.op == Op::Write) {
            // A fence of the next life says nothing about this one; but that one is dead.
            let known = match fenced || segment.incarnation() != life {
                true => Known::Unknown,
                false => Known::GivenUp,
            };
            self.known.insert(id, (peer, known));
        }
        // They have our memory until they are quiet.
        self.register_anew().await;
    }

    async fn wait(&mut self, batch: &Batch) {
        if self.draw.random_bool(0.1) {
            let time = Duration::from_micros(self.draw.random_range(0..3_000));
            tokio::time::sleep(time).await;
            if self.draw.random() {
                batch.cancel_all();
            } else {
                batch.cancel(self.draw.random_range(0..batch.len()));
            }
        }
        match self.draw.random_range(0..3) {
            0 => {
                let ended = tokio::task::block_in_place(|| batch.wait(BUDGET));
                assert!(ended, "law 2: every task ends");
            }
            1 => terminal(batch).await,
            _ => eventually("it ends", || batch.is_terminal()).await,
        }
        let outcomes = (0..batch.len()).map(|task| batch.outcome(task));
        let quiet = tokio::time::timeout(QUIET, batch.quiescent()).await;
        assert!(
            quiet.is_ok(),
            "it does not become quiet: {:?}, {:?}",
            outcomes.collect::<Vec<_>>(),
            self.engine.gauges()
        );
    }

    /// Compares what came of it with what was there.
    async fn settle(
        &mut self,
        batch: &Batch,
        segment: &Segment,
        (id, peer): (RegistrationId, usize),
        pieces: Vec<Piece>,
    ) {
        let mut doubts = Vec::new();
        for (task, piece) in pieces.into_iter().enumerate() {
            let outcome = batch.outcome(task).unwrap();
            let length = piece.bytes.len() as u64;
            let Some((_, Known::Bytes(known))) = self.known.get_mut(&id) else {
                unreachable!("we know it while we use it");
            };
            let known = &mut known[piece.range.start as usize..piece.range.end as usize];
            let error = match &outcome {
                Outcome::Completed { bytes } => {
                    assert_eq!(*bytes, length);
                    self.tally.bytes += length;
                    match piece.op {
                        Op::Read => {
                            self.tally.reads += 1;
                            let found = bytes_of(&self.local, &piece.range);
                            assert_same(&found, known, &format!("read of {:?}", piece.range));
                        }
                        Op::Write => {
                            self.tally.writes += 1;
                            known.copy_from_slice(&piece.bytes);
                        }
                    }
                    if let Some(op_id) = piece.op_id {
                        self.tally.numbered += 1;
                        if is_here(op_id) {
                            self.ledger.ended(op_id, true);
                        }
                    }
                    continue;
                }
                Outcome::Cancelled(error) => {
                    self.tally.cancelled += 1;
                    error
                }
                Outcome::TimedOut(error) => {
                    self.tally.timed_out += 1;
                    error
                }
                Outcome::Failed(error) => {
                    let kind = kind(error);
                    *self.tally.failed.entry(kind).or_default() += 1;
                    error
                }
            };
            match (piece.op, error.applied) {
                (Op::Read, _) => {}
                (Op::Write, Applied::Nothing) => {
                    if let Some(op_id) = piece.op_id
                        && is_here(op_id)
                    {
                        self.ledger.ended(op_id, false);
                    }
                    // That is looked at, too.
                    let before = known.to_vec();
                    doubts.push((piece.range, before, outcome));
                }
                (Op::Write, Applied::UpTo(bytes)) => {
                    let bytes = bytes as usize;
                    known[..bytes].copy_from_slice(&piece.bytes[..bytes]);
                    doubts.push((piece.range, piece.bytes, outcome));
                }
                (Op::Write, Applied::Unknown) => doubts.push((piece.range, piece.bytes, outcome)),
            }
        }
        for (range, maybe, outcome) in doubts {
            self.tally.doubts += 1;
            let Some(found) = self.look(segment, id, range.clone()).await else {
                self.known.insert(id, (peer, Known::Unknown));
                return;
            };
            let Some((_, Known::Bytes(known))) = self.known.get_mut(&id) else {
                unreachable!("we know it while we use it");
            };
            let known = &mut known[range.start as usize..range.end as usize];
            let wrong =
                (0..found.len()).find(|at| found[*at] != known[*at] && found[*at] != maybe[*at]);
            assert_eq!(wrong, None, "{range:?} of a write with {outcome:?}");
            known.copy_from_slice(&found);
        }
    }

    /// What is there now; `None`: it cannot be had.
    async fn look(
        &self,
        segment: &Segment,
        id: RegistrationId,
        range: Range<u64>,
    ) -> Option<Vec<u8>> {
        for _ in 0..5 {
            segment.descriptor().buffer(id)?;
            let place = self.place(id, range.start);
            let read = Request::read(self.local.slice(range.clone()).unwrap(), segment, place);
            let mut batch = self.engine.allocate_batch(1);
            let submitted = self.engine.submit_transfer(&mut batch, vec![read]);
            if submitted.is_ok() {
                terminal(&batch).await;
                quiescent(&batch).await;
                if batch.outcome(0).unwrap().is_completed() {
                    return Some(bytes_of(&self.local, &range));
                }
            }
            self.look_again(segment).await;
        }
        None
    }

    /// Registrations that are not offered any more.
    fn forget_what_is_gone(&mut self) {
        if self.known.len() < 16 {
            return;
        }
        let segments = &self.segments;
        // Of owners whose segment is closed just now we do not know.
        self.known.retain(|id, (peer, known)| {
            let segment = segments.get(peer);
            let offered = segment.is_none_or(|open| open.descriptor().buffer(*id).is_some());
            offered || matches!(known, Known::GivenUp)
        });
    }
}

async fn local(engine: &TentEngine, foreign: bool) -> Buffer {
    let memory = match foreign {
        true => Memory::from_vec(vec![0; PART_BYTES as usize]),
        false => Memory::allocate(PART_BYTES as usize),
    };
    let options = RegisterOptions::new(Permission::Local);
    let registered = engine.register_memory(memory.unwrap(), options);
    registered.await.unwrap()
}

fn bytes_of(buffer: &Buffer, range: &Range<u64>) -> Vec<u8> {
    bytes(buffer, range.start, (range.end - range.start) as usize)
}

/// The owner of what it was written to is in this process.
fn is_here(op_id: u64) -> bool {
    op_id & 0xff >= 2
}

/// What may happen to a task that asks for nothing wrong.
fn kind(error: &TransferError) -> String {
    let kind = match &error.reason {
        Reason::StaleGeneration => "stale generation",
        Reason::UnknownRegistration => "unknown registration",
        Reason::ArrivalsFull => "arrivals full",
        Reason::Broken(_) => "broken",
        Reason::Unreachable(_) => "unreachable",
        Reason::OtherIncarnation => "other incarnation",
        Reason::TimedOut => "timed out",
        _ => panic!("{error}"),
    };
    kind.to_owned()
}
