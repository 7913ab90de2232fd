//! An initiator's connection to a peer: requests in a window, answers in their order.

mod answers;
mod credit;
#[cfg(all(test, mooncake_loom))]
mod loom_models;
#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod model;
mod relief;
mod runs;

use std::{
    collections::VecDeque,
    io,
    net::{Shutdown, TcpStream},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use self::credit::{Allowance, Granted};
use super::{
    TcpConfig,
    inbox::{Cursor, Inbox},
    outbox::{Frame, Limit, Outbox, Sent},
    socket::{IoPieces, Mode},
    wire::{
        ANSWER_BYTES, AnswerHeader, Extension, Flags, LONG_REQUEST_BYTES, LaneClock, RequestHeader,
        Status, Verb, refused,
    },
};
use crate::{
    error::{Reason, Stage, TransferError},
    identity::{Generation, PeerId, RegistrationId},
    memory::{LocalSlice, Refusal},
    spin::Spin,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    transport::{Outcome, TaskRef, Tasks},
};

/// A part of a task that one request carries.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) task: TaskRef,
    pub(super) verb: Verb,
    pub(super) local: SmallVec<[LocalSlice; 1]>,
    pub(super) registration: RegistrationId,
    pub(super) generation: Generation,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) deadline: Option<Instant>,
    pub(super) flags: Flags,
    pub(super) extension: Extension,
    /// It goes by itself, whatever its neighbours are.
    pub(super) single: bool,
}

/// A request that awaits its answer.
#[derive(Debug)]
struct Pending {
    /// `None`: it was cancelled, and what its answer brings is dropped.
    task: Option<TaskRef>,
    verb: Verb,
    tag: u64,
    /// A read's destination.
    local: SmallVec<[LocalSlice; 1]>,
    /// In the peer's registration.
    offset: u64,
    length: u64,
    run: Run,
    deadline: Option<Instant>,
    checked: bool,
    /// What a checked read's payload has to fit.
    answer: Option<AnswerHeader>,
    /// It was cancelled in the middle of its frame.
    unwanted: bool,
}

impl Pending {
    fn is_overdue(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// What a request asks for with those behind it; see [`runs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// How many they are; 0 if it follows another one.
    tasks: u32,
    /// Of all of them together.
    bytes: u64,
}

/// See the module. Sending and receiving have a lock each, so that a submitter need not wait for
/// whoever receives.
#[derive(Debug)]
pub(super) struct Lane {
    id: u64,
    peer: PeerId,
    tasks: Tasks,
    window: u64,
    window_bytes: u64,
    /// Neighbours go as one request up to this length.
    run_bytes: u64,
    socket: OnceLock<TcpStream>,
    broken: AtomicBool,
    /// Why it was cut from outside; the receiver finds it here.
    cut: OnceLock<Reason>,
    outbox: Mutex<Sender>,
    /// The requests below were sent; a little later than they were.
    sent_below: AtomicU64,
    /// Somebody found the outbox taken: whoever has it looks once more before going.
    look_again: AtomicBool,
    pending: Mutex<VecDeque<Pending>>,
    receiver: Mutex<Receiver>,
    load: AtomicU64,
    /// Of all lanes to its peer together.
    peer_load: Arc<PeerLoad>,
    granted: Granted,
    /// What it has to send waits for credit.
    broke: AtomicBool,
    /// It is so old that new requests go to others.
    aged: AtomicBool,
    /// Tasks whose payload shall be dropped by whoever receives it now.
    cancelled: Mutex<Vec<TaskRef>>,
    some_cancelled: AtomicBool,
}

#[derive(Debug)]
struct Sender {
    outbox: Outbox<LONG_REQUEST_BYTES>,
    next_tag: u64,
    /// Bytes of all requests that were queued here, but for those that went to another lane.
    posted: u64,
    /// `None` while it connects.
    clock: Option<LaneClock>,
    /// Where sending stood still in the middle of an unwanted request when it was last looked at.
    stuck: Option<(u64, u64)>,
}

impl Sender {
    /// The requests below it were sent.
    fn sent_below(&self) -> u64 {
        self.outbox.first().unwrap_or(self.next_tag)
    }
}

/// What the receiving thread owns while it receives.
#[derive(Debug)]
pub(super) struct Receiver {
    inbox: Inbox,
    /// The reads whose payloads are arriving, of one answer.
    reading: VecDeque<(Pending, Sink)>,
    /// Requests whose answers are wholly here; empty between steps.
    whole: Vec<Pending>,
    answered: u64,
    allowance: Allowance,
    pub(super) spin: Spin,
}

/// Where a payload goes.
#[derive(Debug)]
enum Sink {
    Place(Cursor),
    /// So many bytes are still to be dropped.
    Nowhere(u64),
}

impl Receiver {
    /// The deadline of the read whose payload is arriving has passed.
    pub(super) fn is_overdue(&self, now: impl FnOnce() -> Instant) -> bool {
        self.reading
            .front()
            .and_then(|(pending, _)| pending.deadline)
            .is_some_and(|deadline| deadline <= now())
    }
}

/// What receiving has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Requests were answered.
    Answers,
    /// Bytes, but no end of a request yet.
    Bytes,
    /// Nothing is there now.
    Nothing,
}

/// Writes of a broken lane, whose bytes may still land until the lane is fenced, or their deadlines
/// have passed for the target, too.
#[derive(Debug, Default)]
pub(super) struct Loud {
    pub(super) tasks: Vec<TaskRef>,
    last_deadline: Option<Instant>,
    without_deadline: bool,
}

impl Loud {
    /// The last of their deadlines; `None` if there is one without.
    pub(super) fn last_deadline(&self) -> Option<Instant> {
        self.last_deadline.filter(|_| !self.without_deadline)
    }

    fn add(&mut self, task: TaskRef, deadline: Option<Instant>) {
        self.tasks.push(task);
        self.last_deadline = self.last_deadline.max(deadline);
        self.without_deadline |= deadline.is_none();
    }
}

impl Lane {
    /// A lane that is not connected yet. `peer_load` counts for all lanes to its peer.
    pub(super) fn new(
        id: u64,
        peer: PeerId,
        tasks: Tasks,
        config: &TcpConfig,
        peer_load: Arc<PeerLoad>,
    ) -> Self {
        Self {
            id,
            peer,
            tasks,
            window: config.window as u64,
            window_bytes: config.window_bytes.max(1),
            run_bytes: runs::MOST_BYTES.min(config.slice_bytes),
            socket: OnceLock::new(),
            broken: AtomicBool::new(false),
            cut: OnceLock::new(),
            outbox: Mutex::new(Sender {
                outbox: Outbox::new(),
                next_tag: 0,
                posted: 0,
                clock: None,
                stuck: None,
            }),
            sent_below: AtomicU64::new(0),
            look_again: AtomicBool::new(false),
            pending: Mutex::default(),
            receiver: Mutex::new(Receiver {
                inbox: Inbox::new(),
                reading: VecDeque::new(),
                whole: Vec::new(),
                answered: 0,
                allowance: Allowance::default(),
                spin: Spin::new(config.spin),
            }),
            load: AtomicU64::new(0),
            peer_load,
            granted: Granted::default(),
            broke: AtomicBool::new(false),
            aged: AtomicBool::new(false),
            cancelled: Mutex::default(),
            some_cancelled: AtomicBool::new(false),
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Bytes that were posted and not answered.
    pub(super) fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }

    fn load_more(&self, bytes: u64) {
        self.load.fetch_add(bytes, Ordering::Relaxed);
        self.peer_load.fetch_add(bytes, Ordering::Relaxed);
    }

    fn load_less(&self, bytes: u64) {
        self.load.fetch_sub(bytes, Ordering::Relaxed);
        self.peer_load.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// It ends soon, if it has not.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.get().is_some()
    }

    /// It takes no new requests, on account of its age.
    pub(super) fn is_aged(&self) -> bool {
        self.aged.load(Ordering::Relaxed)
    }

    /// Marks a lane that is older than `life`. `true`: it is so for a while.
    pub(super) fn grow_old(&self, life: Duration) -> bool {
        let clock = self.outbox.lock().clock;
        let age = clock.map_or(Duration::ZERO, LaneClock::elapsed);
        if age < life {
            return false;
        }
        self.aged.store(true, Ordering::Relaxed);
        // Whoever chose it before has posted by now.
        age > life + life / 8
    }

    /// Why it was cut, if it was.
    pub(super) fn why(&self) -> Option<Reason> {
        self.cut.get().cloned()
    }

    /// `None` while it connects.
    pub(super) fn socket(&self) -> Option<&TcpStream> {
        self.socket.get()
    }

    /// Requests wait for their answer.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.lock().is_empty() || self.receiver_is_reading()
    }

    /// As no [`is_busy`](Self::is_busy), for whoever has the receiving end.
    pub(super) fn is_at_rest(&self, receiver: &Receiver) -> bool {
        receiver.reading.is_empty() && self.pending.lock().is_empty()
    }

    fn receiver_is_reading(&self) -> bool {
        // Who holds the lock looks for itself before it goes.
        self.receiver
            .try_lock()
            .is_some_and(|receiver| !receiver.reading.is_empty())
    }

    /// From now on frames can be sent.
    pub(super) fn connected(&self, socket: TcpStream, clock: LaneClock) {
        let mut sender = self.outbox.lock();
        sender.clock = Some(clock);
        sender.outbox.amend(|frame| {
            RequestHeader::set_deadline(&mut frame.header, clock.to_wire(frame.deadline));
        });
        if self.socket.set(socket).is_err() {
            unreachable!("a lane connects once");
        }
        drop(sender);
        if self.is_cut() {
            // Whoever cut it may have found no socket to shut down.
            self.shut_down();
        }
    }

    /// Queues requests; `false` leaves them there if the lane is broken.
    pub(super) fn post(&self, posts: &mut Vec<Post>) -> bool {
        let mut sender = self.outbox.lock();
        if self.is_broken() {
            return false;
        }
        self.load_more(posts.iter().map(|post| post.length).sum());
        let mut pending = self.pending.lock();
        for post in posts.drain(..) {
            let tag = sender.next_tag;
            sender.next_tag += 1;
            let header = RequestHeader {
                verb: post.verb,
                flags: post.flags,
                deadline_us: sender.clock.map_or(0, |clock| clock.to_wire(post.deadline)),
                tag,
                registration: post.registration,
                generation: post.generation,
                offset: post.offset,
                length: post.length,
            };
            let (payload, local) = match post.verb {
                Verb::Write => (post.local, SmallVec::new()),
                Verb::Read | Verb::Fence | Verb::GiveBack => (SmallVec::new(), post.local),
            };
            pending.push_back(Pending {
                task: Some(post.task),
                verb: post.verb,
                tag,
                local,
                offset: post.offset,
                length: post.length,
                run: Run::of_one(post.length),
                deadline: post.deadline,
                checked: post.flags.checked,
                answer: None,
                unwanted: false,
            });
            let before = sender.posted;
            sender.posted += post.length;
            sender.outbox.push(Frame {
                tag,
                before,
                cost: post.verb.cost(post.length),
                header: header.encode_long(post.extension),
                head: header.sent_bytes(),
                joined: false,
                single: post.single,
                payload,
                deadline: post.deadline,
            });
        }
        true
    }

    /// Queues requests, or ends them if the lane is broken.
    pub(super) fn post_or_end(&self, posts: &mut Vec<Post>) {
        if self.post(posts) {
            return;
        }
        for post in posts.drain(..) {
            let broken = || Reason::Broken("the lane ended meanwhile".into());
            let reason = self.why().unwrap_or_else(broken);
            let error = TransferError::unstarted(reason, Stage::Post, Some(self.peer));
            let end = Outcome::Failed(error);
            self.tasks.finish_slice(post.task, post.offset, end, true);
        }
    }

    /// Sends what the socket and the window take now. `true`: frames wait for the socket.
    pub(super) fn flush(&self) -> bool {
        self.try_flush().unwrap_or(false)
    }

    /// As [`flush`](Self::flush); `None`: another has the outbox. It sends our frames if it sends at
    /// all, and whether some wait for the socket is yet to be seen.
    pub(super) fn try_flush(&self) -> Option<bool> {
        let Some(socket) = self.socket() else {
            return Some(false);
        };
        self.look_again.store(true, Ordering::Relaxed);
        loop {
            // Pairs with the fence below: either the holder sees the flag or we get the lock.
            fence(Ordering::SeqCst);
            let mut sender = self.outbox.try_lock()?;
            self.look_again.store(false, Ordering::Relaxed);
            let limit = self.window_end(&sender);
            let sent = loop {
                self.join(&mut sender, limit);
                match sender.outbox.send(socket, limit, Mode::Try) {
                    Ok(Sent::Some) => {}
                    end => break end,
                }
            };
            self.sent_below
                .store(sender.sent_below(), Ordering::Relaxed);
            self.broke
                .store(matches!(sent, Ok(Sent::Broke)), Ordering::Relaxed);
            drop(sender);
            let blocked = match sent {
                Ok(Sent::All | Sent::Some | Sent::Broke) => false,
                Ok(Sent::Overdue) => {
                    self.end_overdue(Instant::now());
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.cut(overdue());
                    return Some(false);
                }
                Err(error) => {
                    self.cut(Reason::Broken(error.to_string().into()));
                    return Some(false);
                }
            };
            fence(Ordering::SeqCst);
            if blocked || !self.look_again.load(Ordering::Relaxed) {
                return Some(blocked);
            }
        }
    }

    fn was_sent(&self, tag: u64) -> bool {
        // Whoever sends may not have said so yet.
        tag < self.sent_below.load(Ordering::Relaxed) || tag < self.outbox.lock().sent_below()
    }

    /// What waits until earlier requests are answered.
    fn window_end(&self, sender: &Sender) -> Limit {
        let pending = self.pending.lock();
        let oldest = pending.front().map_or(sender.next_tag, |oldest| oldest.tag);
        let answered = sender.posted.saturating_sub(self.load());
        Limit {
            tag: oldest + self.window,
            before: answered + self.window_bytes.min(self.granted.window()),
            granted: self.granted.now(),
            alone: oldest,
        }
    }

    /// The right to receive; `None` while another thread has it.
    pub(super) fn try_receiver(&self) -> Option<MutexGuard<'_, Receiver>> {
        self.receiver.try_lock()
    }

    /// As [`try_receiver`](Self::try_receiver), but waits for whoever has it.
    pub(super) fn receiver(&self) -> MutexGuard<'_, Receiver> {
        self.receiver.lock()
    }

    /// As somebody does who cancels or relieves.
    #[cfg(test)]
    #[cfg(not(mooncake_loom))]
    pub(super) fn hold_outbox(&self) -> impl Drop + '_ {
        self.outbox.lock()
    }

    /// Receives once and acts on what came. An error ends the lane: call [`fail`](Self::fail).
    pub(super) fn receive(&self, receiver: &mut Receiver) -> Result<Received, Reason> {
        let Some(socket) = self.socket() else {
            return Ok(Received::Nothing);
        };
        self.drop_cancelled(receiver);
        let mut pieces = IoPieces::new();
        for (_, sink) in &receiver.reading {
            let Sink::Place(cursor) = sink else { break };
            if !cursor.name(&mut pieces) {
                break;
            }
        }
        match receiver.inbox.receive(socket, &mut pieces, Mode::Try) {
            Ok(placed) => receiver.placed(placed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Received::Nothing);
            }
            Err(error) => {
                let broken = || Reason::Broken(error.to_string().into());
                return Err(self.why().unwrap_or_else(broken));
            }
        }
        let answered = receiver.answered;
        while self.step(receiver)? {}
        // Bytes that trickle in do not keep a request alive.
        if receiver.is_overdue(Instant::now) {
            return Err(overdue());
        }
        Ok(if receiver.answered > answered {
            self.tune(receiver);
            Received::Answers
        } else {
            Received::Bytes
        })
    }

    /// Acts on one message or payload; `false`: more bytes are needed.
    fn step(&self, receiver: &mut Receiver) -> Result<bool, Reason> {
        if let Some((_, sink)) = receiver.reading.front_mut() {
            let done = match sink {
                Sink::Place(cursor) => {
                    receiver.inbox.deliver(cursor);
                    cursor.is_done()
                }
                Sink::Nowhere(left) => {
                    *left -= receiver.inbox.discard(*left);
                    *left == 0
                }
            };
            if !done {
                return Ok(false);
            }
            let (pending, sink) = receiver.reading.pop_front().expect("it was just there");
            let bytes = pending.length;
            let end = match (&sink, pending.answer) {
                (Sink::Place(cursor), Some(answer))
                    if answer.check != Some(answer.checksum(cursor.slices())) =>
                {
                    self.corrupted()
                }
                _ => Outcome::Completed { bytes },
            };
            drop(sink);
            self.answered(receiver, pending, end);
            return Ok(true);
        }
        if self.take_whole(receiver) {
            return Ok(true);
        }
        let Some(bytes) = receiver.inbox.message::<ANSWER_BYTES>() else {
            return Ok(false);
        };
        let answer = AnswerHeader::decode(&bytes).map_err(|what| violation(&what.to_string()))?;
        let mut whole = std::mem::take(&mut receiver.whole);
        self.take_answered(&answer, &mut receiver.allowance, &mut whole)?;
        receiver.inbox.expect(answer.length);
        if whole.len() > 1 && answer.status == Status::Refused(Refusal::OutOfBounds) {
            self.ask_one_by_one(&mut whole);
        }
        for pending in whole.drain(..) {
            self.take_answer(receiver, pending, answer);
        }
        receiver.whole = whole;
        Ok(true)
    }

    /// Acts on the header of a request's answer.
    fn take_answer(&self, receiver: &mut Receiver, mut pending: Pending, answer: AnswerHeader) {
        let bytes = pending.length;
        let end = match (answer.status, pending.verb) {
            (Status::Applied, Verb::Read) => {
                pending.answer = pending.checked.then_some(answer);
                let sink = match pending.task {
                    Some(_) => Sink::Place(Cursor::new(std::mem::take(&mut pending.local))),
                    None => {
                        receiver.inbox.expect_nothing();
                        Sink::Nowhere(bytes)
                    }
                };
                return receiver.reading.push_back((pending, sink));
            }
            (Status::Applied, Verb::Write | Verb::Fence | Verb::GiveBack) => {
                Outcome::Completed { bytes }
            }
            (Status::Refused(refusal), _) => Outcome::Failed(refused(refusal, self.peer)),
            (Status::NoRoom, _) => {
                let (reason, peer) = (Reason::ArrivalsFull, Some(self.peer));
                Outcome::Failed(TransferError::unstarted(reason, Stage::Admit, peer))
            }
            (Status::Corrupted, _) => self.corrupted(),
            (Status::StillRunning, _) => unreachable!("it fits no request of a lane"),
        };
        self.answered(receiver, pending, end);
    }

    /// How a request ends whose payload has come to its place and is not what was sent.
    fn corrupted(&self) -> Outcome {
        let error = TransferError::unstarted(Reason::Corrupted, Stage::Move, Some(self.peer));
        Outcome::Failed(error.underway(true))
    }

    fn answered(&self, receiver: &mut Receiver, pending: Pending, end: Outcome) {
        receiver.answered += 1;
        self.load_less(pending.length);
        // Who waits for the end finds our leases returned.
        drop(pending.local);
        if let Some(task) = pending.task {
            self.tasks.finish_slice(task, pending.offset, end, true);
        }
    }

    /// Ends a task early where that needs nobody else: what was not sent, and reads. What a write
    /// has handed over whole is for the target to answer; one that is in the middle of its frame
    /// goes on unless it [stands still](Self::is_stuck).
    pub(super) fn cancel(&self, task: TaskRef) {
        let mut sender = self.outbox.lock();
        let mut pending = self.pending.lock();
        if !pending.iter().any(|pending| pending.task == Some(task)) {
            drop((sender, pending));
            return self.cancel_reading(task);
        }
        let withdrawn = withdraw(&mut sender, &mut pending, |pending| {
            pending.task == Some(task)
        });
        let begun = sender.outbox.begun();
        let is_begun = |tag| begun.as_ref().is_some_and(|it| it.tags.contains(tag));
        let mut reads = 0;
        let mut places = Vec::new();
        for pending in pending
            .iter_mut()
            .filter(|pending| pending.task == Some(task))
        {
            if pending.verb == Verb::Read {
                // Its answer goes to nobody.
                pending.task = None;
                places.push(std::mem::take(&mut pending.local));
                reads += 1;
            } else if is_begun(&pending.tag) {
                pending.unwanted = true;
            }
        }
        drop((sender, pending, places));
        for pending in withdrawn {
            self.end_unsent(pending, Outcome::cancelled(self.unsent_stage(), self.peer));
        }
        for _ in 0..reads {
            self.tasks.finish(task, self.cancelled_read(), true);
        }
        self.cancel_reading(task);
    }

    /// The payload that is arriving may be the task's.
    fn cancel_reading(&self, task: TaskRef) {
        self.cancelled.lock().push(task);
        self.some_cancelled.store(true, Ordering::Release);
        // Otherwise whoever receives looks at it soon.
        if let Some(mut receiver) = self.try_receiver() {
            self.drop_cancelled(&mut receiver);
        }
    }

    /// Drops the rest of a payload that nobody wants any more.
    pub(super) fn drop_cancelled(&self, receiver: &mut Receiver) {
        if !self.some_cancelled.load(Ordering::Acquire) {
            return;
        }
        self.some_cancelled.store(false, Ordering::Release);
        let cancelled = std::mem::take(&mut *self.cancelled.lock());
        for (pending, sink) in &mut receiver.reading {
            if let (Sink::Place(cursor), Some(task)) = (&*sink, pending.task)
                && cancelled.contains(&task)
            {
                *sink = Sink::Nowhere(cursor.remaining());
                receiver.inbox.expect_nothing();
                pending.task = None;
                self.tasks.finish(task, self.cancelled_read(), true);
            }
        }
    }

    /// A cancelled write stands in the middle of its frame, and did so when we last looked.
    pub(super) fn is_stuck(&self) -> bool {
        self.flush();
        let mut sender = self.outbox.lock();
        let begun = sender.outbox.begun().filter(|begun| {
            let pending = self.pending.lock();
            let mut unwanted = pending.iter().filter(|it| it.unwanted);
            unwanted.any(|it| begun.tags.contains(&it.tag))
        });
        let begun = begun.map(|begun| begun.place);
        let before = std::mem::replace(&mut sender.stuck, begun);
        begun.is_some() && begun == before
    }

    fn cancelled_read(&self) -> Outcome {
        Outcome::cancelled(Stage::Move, self.peer).underway(true)
    }

    /// How far a request has come of which nothing was sent.
    fn unsent_stage(&self) -> Stage {
        match self.socket() {
            Some(_) => Stage::Post,
            None => Stage::Connect,
        }
    }

    /// Ends a request of which nothing was sent.
    fn end_unsent(&self, pending: Pending, end: Outcome) {
        self.load_less(pending.length);
        drop(pending.local);
        if let Some(task) = pending.task {
            self.tasks.finish_slice(task, pending.offset, end, true);
        }
    }

    /// Ends the connection; whoever receives notices and fails the lane.
    pub(super) fn cut(&self, reason: Reason) {
        // Only the first reason counts.
        let _first = self.cut.set(reason);
        self.shut_down();
    }

    fn shut_down(&self) {
        if let Some(socket) = self.socket() {
            // An error means that the connection is already gone.
            let _gone = socket.shutdown(Shutdown::Both);
        }
    }

    /// Ends overdue requests of which nothing was sent. `true`: others are overdue, too, and only
    /// the end of the lane ends them.
    pub(super) fn end_overdue(&self, now: Instant) -> bool {
        let mut sender = self.outbox.lock();
        let mut pending = self.pending.lock();
        if !pending.iter().any(|pending| pending.is_overdue(now)) {
            return false;
        }
        let withdrawn = withdraw(&mut sender, &mut pending, |pending| pending.is_overdue(now));
        let others = pending.iter().any(|pending| pending.is_overdue(now));
        drop((sender, pending));
        for pending in withdrawn {
            self.end_unsent(pending, Outcome::timed_out(self.unsent_stage(), self.peer));
        }
        others
    }

    /// Fails all that is under way on a lane whose connection is gone or was never made. Returns
    /// writes that may still land at the target.
    pub(super) fn fail(&self, receiver: &mut Receiver, reason: &Reason) -> Loud {
        let mut sender = self.outbox.lock();
        self.cut(reason.clone());
        self.broken.store(true, Ordering::Release);
        let unsent = sender.outbox.first_unsent().unwrap_or(sender.next_tag);
        sender.outbox.clear();
        drop(sender);
        let reading = receiver.reading.drain(..).map(|(pending, _)| pending);
        let pending = std::mem::take(&mut *self.pending.lock());
        let now = Instant::now();
        let mut loud = Loud::default();
        for pending in reading.chain(pending) {
            self.load_less(pending.length);
            let Some(task) = pending.task else {
                continue;
            };
            let sent = pending.tag < unsent;
            // We receive no more, so a read is quiet. A write may sit in the target's socket.
            let quiet = !sent || pending.verb != Verb::Write;
            let stage = self.unsent_stage();
            let end = if pending.unwanted {
                Outcome::cancelled(stage, self.peer)
            } else if pending.is_overdue(now) {
                Outcome::timed_out(stage, self.peer)
            } else {
                let error = TransferError::unstarted(reason.clone(), stage, Some(self.peer));
                Outcome::Failed(error)
            };
            let end = if sent { end.underway(quiet) } else { end };
            drop(pending.local);
            if !quiet {
                // Nothing is read from its memory any more: the socket is shut.
                self.tasks.release_source(task);
                loud.add(task, pending.deadline);
            }
            self.tasks.finish_slice(task, pending.offset, end, quiet);
        }
        loud
    }
}

/// Takes out those requests of which nothing was sent and that `which` names, with their frames.
fn withdraw(
    sender: &mut Sender,
    pending: &mut VecDeque<Pending>,
    which: impl Fn(&Pending) -> bool,
) -> VecDeque<Pending> {
    runs::part(sender, pending);
    let unsent = sender.outbox.first_not_begun().unwrap_or(sender.next_tag);
    let (withdrawn, kept): (VecDeque<_>, VecDeque<_>) = pending
        .drain(..)
        .partition(|pending| pending.tag >= unsent && which(pending));
    *pending = kept;
    // Both are in the order of their tags.
    let mut tags = withdrawn.iter().map(|pending| pending.tag).peekable();
    sender
        .outbox
        .retain(|frame| tags.next_if_eq(&frame.tag).is_none());
    withdrawn
}

/// Bytes that wait for an answer on all lanes to a peer.
pub(super) type PeerLoad = AtomicU64;

/// Shared by its users and the thread that watches it.
pub(super) type SharedLane = Arc<Lane>;

/// Why a lane ends whose peer took longer than a caller allowed.
pub(super) fn overdue() -> Reason {
    Reason::Broken("a request's deadline passed".into())
}

/// Why a lane ends whose peer does not take a write that was cancelled.
pub(super) fn stuck() -> Reason {
    Reason::Broken("a cancelled write stood still in the middle".into())
}

/// Why a lane ends that is replaced.
pub(super) fn aged() -> Reason {
    Reason::Broken("it has served for long enough".into())
}

fn violation(what: &str) -> Reason {
    Reason::Protocol(what.into())
}
