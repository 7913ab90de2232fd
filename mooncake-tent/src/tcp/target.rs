//! The end that owns the memory: accepts lanes and serves each by a thread of its own.

#[cfg(feature = "fuzzing")]
pub(super) mod fuzz;

use std::{
    collections::VecDeque,
    io::{self, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

use super::{
    TcpConfig,
    inbox::{Cursor, Inbox},
    outbox::{Frame, Outbox},
    peers::spawn,
    socket::{Mode, read_whole},
    spin::Spin,
    wire::{
        ANSWER_BYTES, AnswerHeader, HELLO_BYTES, Hello, HelloAnswer, LARGEST_REQUEST, Malformed,
        REQUEST_BYTES, RequestHeader, Status, Verb, Welcome,
    },
};
use crate::{
    error::{Error, Result},
    identity::Incarnation,
    memory::{Access, BufferTable, LocalSlice, Refusal},
    platform::after,
    transport::{InstallContext, LinkGauges},
};

/// A lane that stops in the middle of something is ended after this.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a connection may take for its whole hello.
const HELLO_BUDGET: Duration = Duration::from_secs(5);
/// Answers are sent at the latest when so many, or so many bytes, wait.
const ANSWERS: usize = 32;
const ANSWER_PAYLOAD: u64 = 1 << 20;
/// A payload from here on is worth an answer of its own.
const LARGE: u64 = 64 << 10;
/// Fenced lanes that are remembered.
const FENCED: usize = 65_536;

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
    config: TcpConfig,
    lanes: Mutex<AcceptedLanes>,
    /// A lane's thread has ended.
    ended: Condvar,
    stopped: AtomicBool,
}

/// The name of a lane: who opened it, and its number there.
type LaneName = (Incarnation, u64);

#[derive(Debug, Default)]
struct AcceptedLanes {
    /// Connections that have not said hello yet, by a number of ours.
    strangers: FxHashMap<u64, TcpStream>,
    next_stranger: u64,
    lanes: FxHashMap<LaneName, Accepted>,
    /// Lanes that may not come back, oldest first.
    fenced: VecDeque<LaneName>,
    is_fenced: FxHashSet<LaneName>,
}

/// A lane that has said hello.
#[derive(Debug)]
struct Accepted {
    /// The number that it had as a stranger.
    number: u64,
    socket: TcpStream,
    moving: Moving,
}

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
        let address = listener
            .local_addr()
            .map_err(Error::system("tcp: own address"))?;
        let shared = Arc::new(Shared {
            incarnation: engine.incarnation,
            buffers: Arc::clone(&engine.buffers),
            config: config.clone(),
            lanes: Mutex::default(),
            ended: Condvar::new(),
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
        let lanes = self.shared.lanes.lock();
        let accepted = lanes.lanes.values();
        LinkGauges {
            connections: (lanes.lanes.len() + lanes.strangers.len()) as u64,
            peer_bytes_in_flight: accepted
                .map(|lane| lane.moving.load(Ordering::Relaxed))
                .sum(),
        }
    }

    /// Ends all lanes and waits for their threads.
    pub(super) fn stop(&self, budget: Duration) -> Result<()> {
        self.shared.stopped.store(true, Ordering::Release);
        // Wakes the acceptor, which then sees that it should stop.
        let _not_listening = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let acceptor = self.acceptor.lock().take();
        if acceptor.is_some_and(|acceptor| acceptor.join().is_err()) {
            tracing::error!("the TCP link's acceptor has panicked");
        }
        let end = after(budget);
        let mut lanes = self.shared.lanes.lock();
        let accepted = lanes.lanes.values().map(|lane| &lane.socket);
        for socket in accepted.chain(lanes.strangers.values()) {
            let _gone = socket.shutdown(Shutdown::Both);
        }
        while !(lanes.lanes.is_empty() && lanes.strangers.is_empty()) {
            if self.shared.ended.wait_until(&mut lanes, end).timed_out() {
                return Err(Error::Install {
                    link: super::link::NAME,
                    message: format!(
                        "{} lanes have not ended within {budget:?}",
                        lanes.lanes.len()
                    ),
                });
            }
        }
        Ok(())
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stopped.load(Ordering::Acquire) {
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
    fn welcome(self: &Arc<Self>, socket: TcpStream) {
        let Ok(ours) = socket.try_clone() else {
            return;
        };
        let number = {
            let mut lanes = self.lanes.lock();
            if lanes.lanes.len() + lanes.strangers.len() >= self.config.lanes_accepted {
                tracing::warn!(
                    limit = self.config.lanes_accepted,
                    "TCP link: too many lanes"
                );
                return;
            }
            lanes.next_stranger += 1;
            let number = lanes.next_stranger;
            lanes.strangers.insert(number, ours);
            number
        };
        let shared = Arc::clone(self);
        let seat = Seat { shared, number };
        let spawned = spawn("tcp-lane", move || {
            let shared = &seat.shared;
            match shared.greet(number, &socket) {
                Ok(Some((name, moving))) => {
                    let end = Lane::new(shared, &socket, name.0, moving).serve();
                    let why = end.expect_err("a lane is served until it ends");
                    tracing::debug!(peer = %name.0, lane = name.1, %why, "a peer's lane ended");
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
    fn greet(&self, number: u64, socket: &TcpStream) -> io::Result<Option<(LaneName, Moving)>> {
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut stream = socket;
        let mut bytes = [0; HELLO_BYTES];
        read_whole(socket, &mut bytes, after(HELLO_BUDGET), || false)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let hello = Hello::decode(&bytes).map_err(garbage)?;
        let name = (hello.initiator, hello.lane);
        let moving = Moving::default();
        let welcome = self.admit(number, name, &hello, &moving);
        let answer = HelloAnswer {
            welcome,
            target: self.incarnation,
            largest_request: LARGEST_REQUEST,
            window: u32::try_from(self.config.window).unwrap_or(u32::MAX),
        };
        stream.write_all(&answer.encode())?;
        Ok((welcome == Welcome::Accepted).then_some((name, moving)))
    }

    fn admit(&self, number: u64, name: LaneName, hello: &Hello, moving: &Moving) -> Welcome {
        if hello.target != self.incarnation {
            return Welcome::OtherIncarnation;
        }
        let mut lanes = self.lanes.lock();
        let of_peer = lanes.lanes.keys().filter(|lane| lane.0 == name.0).count();
        let known = lanes.is_fenced.contains(&name) || lanes.lanes.contains_key(&name);
        if known || of_peer >= self.config.lanes_accepted_per_peer {
            return Welcome::Full;
        }
        match lanes.strangers.remove(&number) {
            Some(socket) => {
                let moving = Arc::clone(moving);
                let lane = Accepted {
                    number,
                    socket,
                    moving,
                };
                lanes.lanes.insert(name, lane);
                Welcome::Accepted
            }
            None => Welcome::Full,
        }
    }

    /// Ends a lane and waits until its thread has ended; it can never come back.
    fn fence(&self, name: LaneName, budget: Duration) -> bool {
        let end = after(budget);
        let mut lanes = self.lanes.lock();
        if lanes.is_fenced.insert(name) {
            lanes.fenced.push_back(name);
            if lanes.fenced.len() > FENCED {
                let oldest = lanes.fenced.pop_front().expect("it is not empty");
                lanes.is_fenced.remove(&oldest);
            }
        }
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
        drop(lanes);
        self.shared.ended.notify_all();
    }
}

/// Serves the requests of one lane, in order.
struct Lane<'a> {
    shared: &'a Shared,
    socket: &'a TcpStream,
    initiator: Incarnation,
    inbox: Inbox,
    answers: Outbox<ANSWER_BYTES>,
    /// Bytes of the write that is arriving.
    arriving: u64,
    moving: Moving,
    spin: Spin,
}

impl<'a> Lane<'a> {
    fn new(
        shared: &'a Shared,
        socket: &'a TcpStream,
        initiator: Incarnation,
        moving: Moving,
    ) -> Self {
        Self {
            shared,
            socket,
            initiator,
            inbox: Inbox::new(),
            answers: Outbox::new(),
            arriving: 0,
            moving,
            spin: Spin::new(shared.config.spin),
        }
    }

    fn serve(&mut self) -> io::Result<std::convert::Infallible> {
        loop {
            while let Some(bytes) = self.inbox.message::<REQUEST_BYTES>() {
                let request = RequestHeader::decode(&bytes).map_err(garbage)?;
                self.request(&request)?;
            }
            self.more(None, false)?;
        }
    }

    fn request(&mut self, request: &RequestHeader) -> io::Result<()> {
        if request.length > LARGEST_REQUEST {
            return Err(garbage(Malformed::Unknown("length")));
        }
        let (status, payload) = match request.verb {
            Verb::Read => match self.admit(request, Access::Read) {
                Ok(slice) => (Status::Applied, smallvec![slice]),
                Err(refusal) => (Status::Refused(refusal), SmallVec::new()),
            },
            Verb::Write => {
                let status = match self.admit(request, Access::Write) {
                    Ok(slice) => {
                        self.take(slice)?;
                        Status::Applied
                    }
                    Err(refusal) => {
                        self.discard(request.length)?;
                        Status::Refused(refusal)
                    }
                };
                (status, SmallVec::new())
            }
            Verb::Fence => {
                let lane = (self.initiator, request.registration.0);
                let budget = Duration::from_micros(request.budget_us.into()).min(PATIENCE);
                let status = match self.shared.fence(lane, budget) {
                    true => Status::Applied,
                    false => Status::StillRunning,
                };
                (status, SmallVec::new())
            }
        };
        self.answer(request, status, payload)
    }

    fn admit(&self, request: &RequestHeader, access: Access) -> Result<LocalSlice, Refusal> {
        let end = request
            .offset
            .checked_add(request.length)
            .ok_or(Refusal::OutOfBounds)?;
        let range = request.offset..end;
        let buffers = &self.shared.buffers;
        buffers.admit(request.registration, request.generation, range, access)
    }

    /// Receives a write's payload straight into its place.
    fn take(&mut self, slice: LocalSlice) -> io::Result<()> {
        self.arriving = slice.len();
        self.note_moving();
        self.inbox.expect(slice.len());
        let mut cursor = Cursor::new(smallvec![slice]);
        self.inbox.deliver(&mut cursor);
        while !cursor.is_done() {
            self.more(Some(&mut cursor), true)?;
            self.inbox.deliver(&mut cursor);
        }
        self.arriving = 0;
        self.note_moving();
        Ok(())
    }

    /// A refused write's payload still has to be passed over.
    fn discard(&mut self, mut length: u64) -> io::Result<()> {
        length -= self.inbox.discard(length);
        while length > 0 {
            self.more(None, true)?;
            length -= self.inbox.discard(length);
        }
        Ok(())
    }

    fn answer(
        &mut self,
        request: &RequestHeader,
        status: Status,
        payload: SmallVec<[LocalSlice; 1]>,
    ) -> io::Result<()> {
        let header = AnswerHeader {
            status,
            verb: request.verb,
            tag: request.tag,
            length: payload.iter().map(LocalSlice::len).sum(),
        };
        self.answers.push(Frame {
            tag: request.tag,
            header: header.encode(),
            payload,
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
        self.answers.send(self.socket, None, Mode::Sleep)?;
        self.note_moving();
        Ok(())
    }

    fn note_moving(&self) {
        let bytes = self.arriving + self.answers.bytes();
        self.moving.store(bytes, Ordering::Relaxed);
    }

    /// Receives more, if need be after a sleep. In the middle of a message a silent peer is given
    /// up after a while; between messages it may be silent as long as it likes.
    fn more(&mut self, mut cursor: Option<&mut Cursor>, midway: bool) -> io::Result<()> {
        let socket = self.socket;
        let mut once =
            |inbox: &mut Inbox| match inbox.fill(socket, cursor.as_deref_mut(), Mode::Try) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                end => Some(end),
            };
        if let Some(end) = once(&mut self.inbox) {
            return end;
        }
        self.send_answers()?;
        if let Some(end) = self.spin.until(|| once(&mut self.inbox)) {
            return end;
        }
        let midway = midway || !self.inbox.is_empty();
        loop {
            match self
                .inbox
                .fill(self.socket, cursor.as_deref_mut(), Mode::Sleep)
            {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !midway => {}
                end => return end,
            }
        }
    }
}

fn garbage(what: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
