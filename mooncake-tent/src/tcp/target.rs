//! The end that owns the memory: accepts lanes and serves each by a thread of its own.

#[cfg(feature = "fuzzing")]
pub(super) mod fuzz;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::{
    TcpConfig,
    fenced::{FencedLanes, LaneName},
    inbox::{Cursor, Inbox},
    outbox::{Frame, Outbox},
    peers::spawn,
    socket::{Mode, notice_vanished_peer, read_whole, readable_before},
    wire::{
        ANSWER_BYTES, AnswerHeader, Extension, FLAGS_AT, Flags, HELLO_BYTES, Hello, HelloAnswer,
        LARGEST_REQUEST, LONG_REQUEST_BYTES, LaneClock, Malformed, REQUEST_BYTES, RequestHeader,
        Status, Verb, Welcome,
    },
};
use crate::{
    credit::{Account, Credit, Ledger},
    error::{Error, Result},
    identity::Incarnation,
    memory::{Access, Admission, BufferTable, LocalSlice, Refusal},
    metrics::Served,
    platform::after,
    spin::Spin,
    transport::{Arrival, ArrivalBook, InstallContext, LinkGauges, Op},
};

/// How long a connection may take for its whole hello.
const HELLO_BUDGET: Duration = Duration::from_secs(5);
/// Connections that have not said hello yet; the oldest makes room for a new one.
const STRANGERS: usize = 1024;
/// Connections that the system holds before we accept them.
const BACKLOG: i32 = 1024;
/// A connection counts as one that has just come for so long: who has something to say says it at
/// once, and who does not holds up nobody.
const JUST_COME: Duration = Duration::from_millis(50);
/// When who finds all seats taken should come again.
const AGAIN_MS: u32 = 50;
/// Answers are sent at the latest when so many, or so many bytes, wait.
const ANSWERS: usize = 32;
const ANSWER_PAYLOAD: u64 = 1 << 20;
/// A payload from here on is worth an answer of its own.
const LARGE: u64 = 64 << 10;

/// The accepting end of the link.
#[derive(Debug)]
pub(super) struct Target {
    address: SocketAddr,
    listener: TcpListener,
    shared: Arc<Shared>,
    acceptor: Mutex<Option<thread::JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    incarnation: Incarnation,
    buffers: Arc<BufferTable>,
    arrivals: Arc<ArrivalBook>,
    served: Arc<Served>,
    config: TcpConfig,
    ledger: Arc<Ledger>,
    lanes: Mutex<AcceptedLanes>,
    /// A lane's thread has ended.
    ended: Condvar,
    /// A connection has said hello, or ended.
    greeted: Condvar,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct AcceptedLanes {
    /// Connections that have not said hello yet, by a number of ours, oldest first.
    strangers: BTreeMap<u64, Stranger>,
    next_stranger: u64,
    lanes: FxHashMap<LaneName, Accepted>,
    /// Connections that carry fences, one of each initiator: they need no seat.
    errands: FxHashMap<Incarnation, Accepted>,
    fenced: FencedLanes,
}

impl AcceptedLanes {
    fn sockets(&self) -> impl Iterator<Item = &TcpStream> {
        let accepted = self.lanes.values().chain(self.errands.values());
        let accepted = accepted.map(|lane| &lane.socket);
        let strangers = self.strangers.values();
        accepted.chain(strangers.map(|stranger| &stranger.socket))
    }

    /// Until when one has to wait for the next connection, with so many at once: by then one of those
    /// that have just come counts no more.
    fn wait_for_next(&self, at_once: usize) -> Option<Instant> {
        // In the order in which they came.
        let now = Instant::now();
        let just_come = self.strangers.values().filter(|it| now < it.silent_until);
        let mut newest = just_come.rev().skip(at_once.max(1) - 1);
        newest.next().map(|stranger| stranger.silent_until)
    }

    fn fence(&mut self, name: LaneName) {
        let present = |initiator| self.lanes.keys().any(|(other, _)| *other == initiator);
        self.fenced.add(name, present);
    }
}

/// A connection that has not said hello yet.
#[derive(Debug)]
struct Stranger {
    socket: TcpStream,
    /// It has just come.
    silent_until: Instant,
}

/// A lane that has said hello.
#[derive(Debug)]
struct Accepted {
    /// The number that it had as a stranger.
    number: u64,
    socket: TcpStream,
    moving: Moving,
}

/// What a lane begins with.
type Greeted = (Hello, LaneClock, Moving, Option<Account>);

/// Bytes that a lane has to move before its peer is served. Only the lane's thread writes it.
type Moving = Arc<AtomicU64>;

impl Target {
    pub(super) fn start(
        listen: SocketAddr,
        config: &TcpConfig,
        engine: &InstallContext,
    ) -> Result<Self> {
        let what = format!("TCP link: cannot listen on {listen}");
        let listener = TcpListener::bind(listen).map_err(Error::system(what))?;
        rustix::net::listen(&listener, BACKLOG)
            .map_err(|error| Error::system("TCP link: cannot listen")(error.into()))?;
        let address = listener
            .local_addr()
            .map_err(Error::system("tcp: own address"))?;
        let shared = Arc::new(Shared {
            incarnation: engine.incarnation,
            buffers: Arc::clone(&engine.buffers),
            arrivals: Arc::clone(&engine.arrivals),
            served: Arc::clone(engine.served()),
            ledger: ledger(config),
            config: config.clone(),
            lanes: Mutex::default(),
            ended: Condvar::new(),
            greeted: Condvar::new(),
            stopped: AtomicBool::new(false),
        });
        let accepting = listener
            .try_clone()
            .map_err(Error::system("tcp: listener"))?;
        let acceptor = {
            let shared = Arc::clone(&shared);
            spawn("tcp-accept", move || accept(&accepting, &shared))
        };
        let acceptor = acceptor.map_err(Error::system("TCP link: no thread to accept"))?;
        Ok(Self {
            address,
            listener,
            shared,
            acceptor: Mutex::new(Some(acceptor)),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn gauges(&self) -> LinkGauges {
        let credit = self.shared.ledger.held();
        let lanes = self.shared.lanes.lock();
        let accepted = lanes.lanes.values();
        LinkGauges {
            peer_credit_bytes: credit.bytes,
            peer_credit_requests: credit.requests,
            connections: lanes.sockets().count() as u64,
            peer_bytes_in_flight: accepted
                .map(|lane| lane.moving.load(Ordering::Relaxed))
                .sum(),
            ..LinkGauges::default()
        }
    }

    /// Ends all lanes and waits for their threads.
    pub(super) fn stop(&self, budget: Duration) -> Result<()> {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.greeted.notify_all();
        // Wakes the acceptor, which then sees that it should stop.
        let _not_listening = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let acceptor = self.acceptor.lock().take();
        if acceptor.is_some_and(|acceptor| acceptor.join().is_err()) {
            tracing::error!("the TCP link's acceptor has panicked");
        }
        let end = after(budget);
        let mut lanes = self.shared.lanes.lock();
        for socket in lanes.sockets() {
            let _gone = socket.shutdown(Shutdown::Both);
        }
        while lanes.sockets().next().is_some() {
            if self.shared.ended.wait_until(&mut lanes, end).timed_out() {
                return Err(Error::Install {
                    link: super::link::NAME,
                    message: format!(
                        "{} lanes have not ended within {budget:?}",
                        lanes.sockets().count()
                    ),
                });
            }
        }
        Ok(())
    }
}

/// What peers may have under way.
fn ledger(config: &TcpConfig) -> Arc<Ledger> {
    let totals = Credit {
        bytes: config.credit_bytes,
        requests: config.credit_requests,
    };
    Ledger::new(totals, config.lanes_accepted)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stopped.load(Ordering::Acquire) {
        shared.until_next();
        match listener.accept() {
            Ok((socket, _)) => shared.welcome(socket),
            Err(error) => {
                if !shared.stopped.load(Ordering::Acquire) {
                    tracing::warn!(%error, "TCP link: accepting failed");
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

impl Shared {
    /// What became of a peer's request.
    fn count(&self, request: &RequestHeader, status: &Status) {
        let op = match request.verb {
            Verb::Read => Op::Read,
            Verb::Write => Op::Write,
            Verb::Fence | Verb::GiveBack => return,
        };
        match status {
            Status::Applied => self.served.done(op, request.length),
            _ => self.served.refused(op),
        }
    }

    /// Waits until not too many have just come. Those that come meanwhile wait with the system.
    fn until_next(&self) {
        let mut lanes = self.lanes.lock();
        while !self.stopped.load(Ordering::Acquire)
            && let Some(end) = lanes.wait_for_next(self.config.hellos_at_once)
        {
            self.greeted.wait_until(&mut lanes, end);
        }
    }

    fn welcome(self: &Arc<Self>, socket: TcpStream) {
        let Ok(ours) = socket.try_clone() else {
            return;
        };
        let number = {
            let mut lanes = self.lanes.lock();
            if lanes.strangers.len() >= STRANGERS
                && let Some((_, oldest)) = lanes.strangers.pop_first()
            {
                // Who has something to say says it at once.
                tracing::debug!("TCP link: a connection is closed that has not said hello");
                let _gone = oldest.socket.shutdown(Shutdown::Both);
            }
            lanes.next_stranger += 1;
            let number = lanes.next_stranger;
            let stranger = Stranger {
                socket: ours,
                silent_until: after(JUST_COME),
            };
            lanes.strangers.insert(number, stranger);
            number
        };
        let shared = Arc::clone(self);
        let seat = Seat { shared, number };
        let spawned = spawn("tcp-lane", move || {
            let shared = &seat.shared;
            match shared.greet(number, &socket) {
                Ok(Some((hello, clock, moving, account))) => {
                    let end = Lane::new(shared, &socket, &hello, clock, moving, account).serve();
                    let why = end.expect_err("a lane is served until it ends");
                    let (peer, lane) = (hello.initiator, hello.lane);
                    tracing::debug!(%peer, lane, %why, "a peer's lane ended");
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a connection ended before its hello"),
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "TCP link: no thread for one more lane");
        }
    }

    /// Exchanges hellos; `None` if the lane is turned away.
    fn greet(&self, number: u64, socket: &TcpStream) -> io::Result<Option<Greeted>> {
        let patience = self.patience();
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(patience))?;
        notice_vanished_peer(socket)?;
        let mut stream = socket;
        let mut bytes = [0; HELLO_BYTES];
        let end = after(HELLO_BUDGET.min(patience));
        read_whole(socket, &mut bytes, end, || false)?;
        let clock = LaneClock::start();
        socket.set_read_timeout(None)?;
        let hello = Hello::decode(&bytes).map_err(garbage)?;
        let moving = Moving::default();
        let (welcome, account) = match self.admit(number, &hello, &moving) {
            Ok(account) => (Welcome::Accepted, account),
            Err(welcome) => (welcome, None),
        };
        let granted = account.as_ref().map(Account::granted);
        let answer = HelloAnswer {
            welcome,
            target: self.incarnation,
            largest_request: LARGEST_REQUEST,
            granted: granted.unwrap_or_default(),
            again_ms: if welcome == Welcome::Busy {
                AGAIN_MS
            } else {
                0
            },
        };
        stream.write_all(&answer.encode())?;
        Ok((welcome == Welcome::Accepted).then_some((hello, clock, moving, account)))
    }

    /// How long a message may take, whatever its payload.
    fn patience(&self) -> Duration {
        self.config.message_timeout.max(Duration::from_millis(1))
    }

    /// Gives a lane its seat, and credit unless it is on an errand; or says why not.
    fn admit(
        &self,
        number: u64,
        hello: &Hello,
        moving: &Moving,
    ) -> Result<Option<Account>, Welcome> {
        let name = (hello.initiator, hello.lane);
        if hello.target != self.incarnation {
            return Err(Welcome::OtherIncarnation);
        }
        let mut lanes = self.lanes.lock();
        let of_peer = lanes.lanes.keys().filter(|lane| lane.0 == name.0).count();
        let known = lanes.fenced.contains(name) || lanes.lanes.contains_key(&name);
        if known || (!hello.errand && of_peer >= self.config.lanes_accepted_per_peer) {
            return Err(Welcome::Full);
        }
        let seats = match hello.errand {
            true => lanes.errands.len() - usize::from(lanes.errands.contains_key(&name.0)),
            false => lanes.lanes.len(),
        };
        let limit = self.config.lanes_accepted;
        if seats >= limit {
            tracing::warn!(limit, "TCP link: too many lanes");
            return Err(Welcome::Busy);
        }
        let account = match hello.errand {
            true => None,
            false => {
                let account = self.ledger.open(hello.initiator, hello.most);
                if account.is_none() {
                    let limit = self.ledger.seats();
                    tracing::warn!(limit, "TCP link: no credit for more lanes");
                    return Err(Welcome::Busy);
                }
                account
            }
        };
        let Some(Stranger { socket, .. }) = lanes.strangers.remove(&number) else {
            // It took so long that others were given its place.
            return Err(Welcome::Busy);
        };
        self.greeted.notify_one();
        let lane = Accepted {
            number,
            socket,
            moving: Arc::clone(moving),
        };
        if !hello.errand {
            lanes.lanes.insert(name, lane);
        } else if let Some(older) = lanes.errands.insert(name.0, lane) {
            let _gone = older.socket.shutdown(Shutdown::Both);
        }
        Ok(account)
    }

    /// Ends a lane and waits until its thread has ended; it can never come back.
    fn fence(&self, name: LaneName, end: Instant) -> bool {
        let mut lanes = self.lanes.lock();
        lanes.fence(name);
        if let Some(lane) = lanes.lanes.get(&name) {
            let _gone = lane.socket.shutdown(Shutdown::Both);
        }
        while lanes.lanes.contains_key(&name) {
            if self.ended.wait_until(&mut lanes, end).timed_out() {
                return !lanes.lanes.contains_key(&name);
            }
        }
        true
    }
}

/// A connection's place among the lanes, given back when its thread ends, however that comes about.
struct Seat {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut lanes = self.shared.lanes.lock();
        lanes.strangers.remove(&self.number);
        lanes.lanes.retain(|_, lane| lane.number != self.number);
        lanes.errands.retain(|_, lane| lane.number != self.number);
        drop(lanes);
        self.shared.greeted.notify_one();
        self.shared.ended.notify_all();
    }
}

/// How long a message may take as its payload comes or goes: at least a byte in each µs beside some
/// patience, so that no trickle holds a lane.
struct Pace {
    end: Instant,
}

impl Pace {
    fn start(patience: Duration) -> Self {
        Self {
            end: after(patience),
        }
    }

    /// When the next byte is due after so many.
    fn due(&self, bytes: u64) -> Instant {
        self.end + Duration::from_micros(bytes)
    }
}

/// Serves the requests of one lane, in order.
struct Lane<'a> {
    shared: &'a Shared,
    socket: &'a TcpStream,
    initiator: Incarnation,
    errand: bool,
    clock: LaneClock,
    admission: Admission,
    inbox: Inbox,
    answers: Outbox<ANSWER_BYTES>,
    /// Bytes of the write that is arriving.
    arriving: u64,
    moving: Moving,
    /// `None` on an errand, which transfers nothing.
    account: Option<Account>,
    spin: Spin,
}

impl<'a> Lane<'a> {
    fn new(
        shared: &'a Shared,
        socket: &'a TcpStream,
        hello: &Hello,
        clock: LaneClock,
        moving: Moving,
        account: Option<Account>,
    ) -> Self {
        Self {
            shared,
            socket,
            initiator: hello.initiator,
            errand: hello.errand,
            clock,
            admission: Admission::default(),
            inbox: Inbox::new(),
            answers: Outbox::new(),
            arriving: 0,
            moving,
            account,
            spin: Spin::new(shared.config.spin),
        }
    }

    fn serve(&mut self) -> io::Result<std::convert::Infallible> {
        // When the message must be whole of which a part is here.
        let mut due = None;
        loop {
            while let Some((request, extension)) = self.next_request().map_err(garbage)? {
                self.request(&request, extension)?;
                due = None;
            }
            // Between messages a peer may be silent as long as it likes, unless it is on an errand.
            if self.inbox.is_empty() && !self.errand {
                due = None;
                self.more(None, None)?;
            } else {
                let patience = self.shared.patience();
                let due = *due.get_or_insert_with(|| after(patience));
                self.more(None, Some(due))?;
            }
        }
    }

    /// `None`: it is not wholly here.
    fn next_request(&mut self) -> Result<Option<(RequestHeader, Extension)>, Malformed> {
        let flags = self.inbox.waiting().get(FLAGS_AT);
        if flags.is_some_and(|flags| *flags != 0) {
            let long = self.inbox.message::<LONG_REQUEST_BYTES>();
            return long.map(|it| RequestHeader::decode_long(&it)).transpose();
        }
        let Some(bytes) = self.inbox.message::<REQUEST_BYTES>() else {
            return Ok(None);
        };
        let request = RequestHeader::decode(&bytes)?;
        Ok(Some((request, Extension::default())))
    }

    fn request(&mut self, request: &RequestHeader, extension: Extension) -> io::Result<()> {
        if request.length > LARGEST_REQUEST {
            return Err(garbage(Malformed::Unknown("length")));
        }
        if self.errand && request.verb != Verb::Fence {
            return Err(garbage(Malformed::Unknown("transfer on an errand")));
        }
        if let Some(account) = &mut self.account {
            let kept = match request.verb {
                Verb::GiveBack => account.give_back(request.given_back()),
                verb => account.take(verb.cost(request.length)),
            };
            kept.map_err(|beyond| io::Error::new(io::ErrorKind::InvalidData, beyond))?;
        }
        let deadline = self.clock.to_local(request.deadline_us);
        if request.verb != Verb::Fence && deadline.is_some_and(|end| end <= Instant::now()) {
            return Err(overdue());
        }
        if request.verb != Verb::Write {
            self.inbox.expect_nothing();
        }
        let (status, payload) = match request.verb {
            Verb::Read => match self.admit(request, Access::Read) {
                Ok(slice) => (Status::Applied, smallvec![slice]),
                Err(refusal) => (Status::Refused(refusal), SmallVec::new()),
            },
            Verb::Write => {
                let status = match self.admit(request, Access::Write) {
                    Ok(slice) if request.flags.is_empty() => {
                        self.take(slice, deadline)?;
                        Status::Applied
                    }
                    Ok(slice) => self.take_flagged(slice, request.flags, extension, deadline)?,
                    Err(refusal) => {
                        self.discard(request.length, deadline)?;
                        Status::Refused(refusal)
                    }
                };
                (status, SmallVec::new())
            }
            Verb::Fence => {
                let lane = (self.initiator, request.registration.0);
                let longest = after(self.shared.patience());
                let end = deadline.map_or(longest, |deadline| deadline.min(longest));
                let status = match self.shared.fence(lane, end) {
                    true => Status::Applied,
                    false => Status::StillRunning,
                };
                (status, SmallVec::new())
            }
            Verb::GiveBack => return Ok(()),
        };
        self.shared.count(request, &status);
        self.answer(request, status, payload)
    }

    fn admit(&mut self, request: &RequestHeader, access: Access) -> Result<LocalSlice, Refusal> {
        let end = request
            .offset
            .checked_add(request.length)
            .ok_or(Refusal::OutOfBounds)?;
        let range = request.offset..end;
        let (id, generation) = (request.registration, request.generation);
        let buffers = &self.shared.buffers;
        self.admission.admit(buffers, id, generation, range, access)
    }

    /// Receives a write's payload straight into its place, as long as its deadline is not over.
    fn take(&mut self, slice: LocalSlice, deadline: Option<Instant>) -> io::Result<()> {
        let length = slice.len();
        self.arriving = length;
        self.note_moving();
        self.inbox.expect(length);
        let mut cursor = Cursor::new(smallvec![slice]);
        self.inbox.deliver(&mut cursor);
        if cursor.is_done() {
            self.arriving = 0;
            self.note_moving();
            return Ok(());
        }
        let pace = Pace::start(self.shared.patience());
        while !cursor.is_done() {
            let due = pace.due(length - cursor.remaining());
            self.more(Some(&mut cursor), Some(earlier(due, deadline)))?;
            self.inbox.deliver(&mut cursor);
        }
        self.arriving = 0;
        self.note_moving();
        Ok(())
    }

    /// As [`take`](Self::take), and does what a write's flags ask for once all of it is at its place.
    fn take_flagged(
        &mut self,
        slice: LocalSlice,
        flags: Flags,
        extension: Extension,
        deadline: Option<Instant>,
    ) -> io::Result<Status> {
        let length = slice.len();
        // Before a byte is applied: later there must be room.
        let seat = flags.tells.then(|| self.shared.arrivals.reserve());
        if matches!(seat, Some(None)) {
            drop(slice);
            self.discard(length, deadline)?;
            return Ok(Status::NoRoom);
        }
        let place = flags.checked.then(|| slice.clone());
        self.take(slice, deadline)?;
        let found = place.map(|place| place.checksum(0));
        if found.is_some_and(|found| found != extension.payload) {
            return Ok(Status::Corrupted);
        }
        if let Some(seat) = seat.flatten() {
            seat.report(Arrival {
                checksum: found,
                ..Arrival::new(self.initiator, extension.op_id, length)
            });
        }
        Ok(Status::Applied)
    }

    /// A refused write's payload still has to be passed over.
    fn discard(&mut self, length: u64, deadline: Option<Instant>) -> io::Result<()> {
        self.inbox.expect_nothing();
        let mut left = length - self.inbox.discard(length);
        let pace = Pace::start(self.shared.patience());
        while left > 0 {
            let due = pace.due(length - left);
            self.more(None, Some(earlier(due, deadline)))?;
            left -= self.inbox.discard(left);
        }
        Ok(())
    }

    fn answer(
        &mut self,
        request: &RequestHeader,
        status: Status,
        payload: SmallVec<[LocalSlice; 1]>,
    ) -> io::Result<()> {
        let mut header = AnswerHeader {
            status,
            verb: request.verb,
            check: None,
            tag: request.tag,
            length: payload.iter().map(LocalSlice::len).sum(),
            granted: self
                .account
                .as_mut()
                .map(Account::grant)
                .unwrap_or_default(),
        };
        if request.flags.checked {
            header.check = Some(header.checksum(&payload));
        }
        self.answers.push(Frame {
            tag: request.tag,
            before: 0,
            cost: Credit::default(),
            header: header.encode(),
            head: ANSWER_BYTES,
            joined: false,
            single: true,
            payload,
            deadline: None,
        });
        self.note_moving();
        let enough = self.answers.frames() >= ANSWERS
            || self.answers.bytes() >= ANSWER_PAYLOAD
            || request.length >= LARGE;
        if enough {
            self.send_answers()?;
        }
        Ok(())
    }

    /// Answers that wait go out before their lane sleeps.
    fn send_answers(&mut self) -> io::Result<()> {
        let all = self.answers.bytes();
        let mut pace = None;
        while self.answers.send_some(self.socket, Mode::Sleep)? {
            let pace = pace.get_or_insert_with(|| Pace::start(self.shared.patience()));
            if pace.due(all - self.answers.bytes()) <= Instant::now() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        if let Some(account) = &mut self.account {
            account.settle();
        }
        self.note_moving();
        Ok(())
    }

    fn note_moving(&self) {
        let bytes = self.arriving + self.answers.bytes();
        self.moving.store(bytes, Ordering::Relaxed);
    }

    /// Receives more, if need be after a sleep, but nothing once it is `due`.
    fn more(&mut self, mut cursor: Option<&mut Cursor>, due: Option<Instant>) -> io::Result<()> {
        let between = cursor.is_none();
        let mut once = |inbox: &mut Inbox| {
            if due.is_some_and(|due| due <= Instant::now()) {
                return Some(Err(overdue()));
            }
            match inbox.fill(self.socket, cursor.as_deref_mut(), Mode::Try) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                end => Some(end),
            }
        };
        if let Some(end) = once(&mut self.inbox) {
            return end;
        }
        if self.answers.frames() > 0 {
            self.send_answers()?;
        }
        // A request whose payload is on its way holds its buffer by itself.
        if between {
            self.admission.rest();
        }
        if let Some(end) = self.spin.until(|| once(&mut self.inbox)) {
            return end;
        }
        let Some(due) = due else {
            return self.inbox.fill(self.socket, cursor, Mode::Sleep);
        };
        loop {
            readable_before(self.socket, due)?;
            if let Some(end) = once(&mut self.inbox) {
                return end;
            }
        }
    }
}

fn earlier(due: Instant, deadline: Option<Instant>) -> Instant {
    deadline.map_or(due, |deadline| deadline.min(due))
}

fn overdue() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "a message came too late")
}

fn garbage(what: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::{
        iter,
        os::{fd::OwnedFd, unix::net::UnixStream},
    };

    use super::*;
    use crate::memory::{Memory, Permission};

    #[test]
    fn small_requests_behind_a_large_write_are_received_many_at_once() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = TcpStream::from(OwnedFd::from(ours));
        let buffers = Arc::new(BufferTable::new());
        let memory = Memory::allocate(LARGE as usize).unwrap();
        let buffer = buffers.prepare(memory, Permission::PeersReadWrite, String::new());
        buffers.publish(&buffer);
        let life = Incarnation::random();
        let shared = Shared {
            incarnation: life,
            buffers,
            arrivals: ArrivalBook::new(0),
            served: Arc::default(),
            ledger: ledger(&TcpConfig::default()),
            config: TcpConfig::default(),
            lanes: Mutex::default(),
            ended: Condvar::new(),
            greeted: Condvar::new(),
            stopped: AtomicBool::new(false),
        };
        let hello = Hello {
            initiator: life,
            target: life,
            lane: 1,
            most: Credit::default(),
            errand: false,
        };
        let clock = LaneClock::start();
        let moving = Moving::default();
        let mut lane = Lane::new(&shared, &socket, &hello, clock, moving, None);
        let request = |verb, length| RequestHeader {
            verb,
            flags: Flags::default(),
            deadline_us: 0,
            tag: 0,
            registration: buffer.id(),
            generation: buffer.generation(),
            offset: 0,
            length,
        };
        theirs.write_all(&[7; LARGE as usize]).unwrap();
        let nothing = Extension::default();
        lane.request(&request(Verb::Write, LARGE), nothing).unwrap();
        lane.request(&request(Verb::Read, 8), nothing).unwrap();
        theirs.write_all(&[0; 10 * REQUEST_BYTES]).unwrap();
        lane.more(None, None).unwrap();
        let received = iter::from_fn(|| lane.inbox.message::<REQUEST_BYTES>()).count();
        assert_eq!(received, 10);
    }

    #[test]
    fn those_that_have_just_come_hold_up_the_next_for_a_moment_only() {
        let mut lanes = AcceptedLanes::default();
        assert_eq!(lanes.wait_for_next(1), None);
        let now = Instant::now();
        for number in 1..=3 {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let stranger = Stranger {
                socket: TcpStream::from(OwnedFd::from(ours)),
                silent_until: now + Duration::from_secs(1000 * number),
            };
            lanes.strangers.insert(number, stranger);
        }
        let seconds = |at_once| {
            let wait: Option<Instant> = lanes.wait_for_next(at_once);
            wait.map(|until| until.duration_since(now).as_secs())
        };
        assert_eq!(seconds(4), None);
        assert_eq!(seconds(3), Some(1000));
        // With room for two, the first and the second have to go.
        assert_eq!(seconds(2), Some(2000));
        assert_eq!(seconds(1), Some(3000));
        assert_eq!(seconds(0), Some(3000), "one is always let in");
    }

    #[test]
    fn a_trickle_does_not_keep_up_with_the_pace() {
        let start = Instant::now();
        let pace = Pace::start(Duration::from_secs(1));
        let slow = pace.due(1_000);
        assert!(slow < start + Duration::from_secs(2));
        assert!(pace.due(10_000_000) > start + Duration::from_secs(10));
    }
}
