//! The side that owns memory: lends it to readers, and fetches what is written to it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use rustix::{
    event::PollFlags,
    net::{Shutdown, shutdown},
};
use smallvec::SmallVec;

use super::{
    HostConfig, Lent, Medium, Process,
    place::socket_name,
    process::credentials,
    socket,
    sources::Sources,
    wire::{self, Answer, Message, Purpose, Receipt, Request, Status, TOGETHER, Write},
};
use crate::{
    error::{Error, Result},
    identity::{Generation, Incarnation, RegistrationId},
    memory::{Access, BufferTable, LocalSlice, MarkPage, MarkRef},
    metrics::Served,
    platform::after,
    spin::Spin,
    transport::{Arrival, ArrivalBook, InstallContext, LinkGauges, Op},
};

/// How long a hello may take.
const HELLO: Duration = Duration::from_secs(5);
/// How long a slow listener waits when it cannot accept.
const PAUSE: Duration = Duration::from_millis(10);

const NO_MARK: MarkRef = MarkRef {
    place: 0,
    edition: 0,
};

/// Serves other processes of this host, each session on a thread of its own.
#[derive(Debug)]
pub(super) struct Server {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    incarnation: Incarnation,
    buffers: Arc<BufferTable>,
    arrivals: Arc<ArrivalBook>,
    served: Arc<Served>,
    marks: Arc<MarkPage>,
    config: HostConfig,
    listener: Arc<OwnedFd>,
    stopped: AtomicBool,
    sessions: Mutex<Sessions>,
    ended: Condvar,
    bytes_in_flight: AtomicU64,
}

#[derive(Debug, Default)]
struct Sessions {
    next: u64,
    open: FxHashMap<u64, Arc<OwnedFd>>,
    accepting: bool,
}

impl Server {
    pub(super) fn start<M: Medium>(
        engine: &InstallContext,
        marks: Arc<MarkPage>,
        config: HostConfig,
    ) -> Result<Self> {
        let what = || format!("{}: cannot listen", M::NAME);
        let incarnation = engine.incarnation;
        let listener = socket::listen(&socket_name(M::NAME, incarnation));
        let shared = Arc::new(Shared {
            incarnation,
            buffers: Arc::clone(&engine.buffers),
            arrivals: Arc::clone(&engine.arrivals),
            served: Arc::clone(engine.served()),
            marks,
            config,
            listener: Arc::new(listener.map_err(Error::system(what()))?),
            stopped: AtomicBool::new(false),
            sessions: Mutex::default(),
            ended: Condvar::new(),
            bytes_in_flight: AtomicU64::new(0),
        });
        shared.sessions.lock().accepting = true;
        let accepting = Arc::clone(&shared);
        thread::Builder::new()
            .name(format!("{}-accept", M::NAME))
            .spawn(move || accepting.accept::<M>())
            .map_err(Error::system(what()))?;
        Ok(Self { shared })
    }

    pub(super) fn gauges(&self) -> LinkGauges {
        let shared = &self.shared;
        LinkGauges {
            connections: shared.sessions.lock().open.len() as u64,
            peer_bytes_in_flight: shared.bytes_in_flight.load(Ordering::Relaxed),
            ..LinkGauges::default()
        }
    }

    /// Nothing is copied into our memory any more when this returns well.
    pub(super) fn stop(&self, budget: Duration) -> Result<()> {
        let shared = &self.shared;
        shared.stopped.store(true, Ordering::Release);
        let _woken = shutdown(&shared.listener, Shutdown::Both);
        let end = after(budget);
        let mut sessions = shared.sessions.lock();
        for socket in sessions.open.values() {
            let _woken = shutdown(socket, Shutdown::Read);
        }
        while !sessions.open.is_empty() || sessions.accepting {
            if shared.ended.wait_until(&mut sessions, end).timed_out() {
                return Err(Error::Busy {
                    what: "sessions that still copy",
                    limit: sessions.open.len(),
                });
            }
        }
        Ok(())
    }
}

impl Shared {
    fn accept<M: Medium>(self: &Arc<Self>) {
        while !self.stopped.load(Ordering::Acquire) {
            match socket::accept(&self.listener) {
                Ok(socket) => self.admit::<M>(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    socket::wait(&self.listener, PollFlags::IN, Duration::from_secs(60));
                }
                Err(error) => {
                    if !self.stopped.load(Ordering::Acquire) {
                        tracing::warn!(link = M::NAME, %error, "a session is not accepted");
                        thread::sleep(PAUSE);
                    }
                }
            }
        }
        self.sessions.lock().accepting = false;
        self.ended.notify_all();
    }

    /// Has a thread serve a new session.
    fn admit<M: Medium>(self: &Arc<Self>, socket: OwnedFd) {
        let socket = Arc::new(socket);
        if let Err(status) = self.permits(&socket) {
            return self.turn_away(&socket, status);
        }
        let Some(number) = self.seat(&socket) else {
            return self.turn_away(&socket, Status::Full);
        };
        let open = OpenSession {
            shared: Arc::clone(self),
            number,
        };
        let started = thread::Builder::new()
            .name(format!("{}-session", M::NAME))
            .spawn(move || {
                // The socket is closed, as proof to the peer, after the last copy.
                let ended = open.shared.serve::<M>(&socket);
                if let Err(error) = ended {
                    tracing::debug!(link = M::NAME, %error, "a session ended");
                }
                drop(socket);
                drop(open);
            });
        if let Err(error) = started {
            tracing::warn!(link = M::NAME, %error, "no thread for a session");
        }
    }

    /// Whether the process at the other end may reach our memory.
    fn permits(&self, socket: &OwnedFd) -> Result<(), Status> {
        let ours = rustix::process::geteuid().as_raw();
        match credentials(socket) {
            Ok((_, user)) if user == ours || self.config.users.contains(&user) => Ok(()),
            Ok((_, user)) => {
                tracing::debug!(user, "a process of another user may not reach our memory");
                Err(Status::Permission)
            }
            Err(_) => Err(Status::Permission),
        }
    }

    /// A number for one more session; `None`: there are as many as we take.
    fn seat(&self, socket: &Arc<OwnedFd>) -> Option<u64> {
        let mut sessions = self.sessions.lock();
        // Each peer has two.
        let full = sessions.open.len() >= 2 * self.config.peers;
        if full || self.stopped.load(Ordering::Acquire) {
            return None;
        }
        sessions.next += 1;
        let number = sessions.next;
        sessions.open.insert(number, Arc::clone(socket));
        Some(number)
    }

    fn turn_away(&self, socket: &OwnedFd, status: Status) {
        let _told = socket::send(socket, &self.welcome(status), None);
    }

    fn welcome(&self, status: Status) -> Message {
        let target = self.incarnation;
        Answer::Welcome { status, target }.encode()
    }

    fn serve<M: Medium>(&self, socket: &Arc<OwnedFd>) -> io::Result<()> {
        let peer = Process::behind(socket)?;
        let mut hello = [0; wire::BYTES];
        let (length, _) = socket::receive_until(socket, &mut hello, after(HELLO))?;
        let Ok(Request::Hello {
            purpose,
            initiator,
            target,
        }) = Request::decode(&hello[..length])
        else {
            return Err(nonsense());
        };
        if target != self.incarnation {
            return socket::send(socket, &self.welcome(Status::OtherIncarnation), None);
        }
        let welcome = self.welcome(Status::Done);
        match purpose {
            Purpose::Lend => {
                socket::send(socket, &welcome, Some(self.marks.as_fd()))?;
                self.lend::<M>(socket, &peer)
            }
            Purpose::Write => {
                socket::send(socket, &welcome, None)?;
                self.write::<M>(socket, &peer, initiator)
            }
        }
    }

    fn lend<M: Medium>(&self, socket: &OwnedFd, peer: &Process) -> io::Result<()> {
        let mut message = [0; wire::BYTES];
        loop {
            let Some((length, _)) = self.next(socket, &mut message, None)? else {
                return Ok(());
            };
            match Request::decode(&message[..length]) {
                Ok(Request::Lend {
                    registration,
                    generation,
                }) => self.lend_one::<M>(socket, registration, generation)?,
                Ok(Request::Admit) => {
                    let status = match M::admit(peer) {
                        Ok(()) => Status::Done,
                        Err(_) => Status::Permission,
                    };
                    answer(socket, &Answer::Admitted(status).encode())?;
                }
                _ => return Err(nonsense()),
            }
        }
    }

    fn lend_one<M: Medium>(
        &self,
        socket: &OwnedFd,
        registration: RegistrationId,
        generation: Generation,
    ) -> io::Result<()> {
        let lent = self.buffers.lend(registration, generation);
        let (status, mark, buffer) = match lent {
            Ok((mark, buffer)) => (Status::Done, mark, Some(buffer)),
            Err(refusal) => (refusal.into(), NO_MARK, None),
        };
        let memory = buffer.as_ref().map(|lease| lease.buffer().memory());
        let answer = Answer::Lent {
            status,
            mark,
            length: memory.map_or(0, |memory| memory.len() as u64),
            address: memory.map_or(0, |memory| memory.address()),
        };
        let file = memory.map(M::file).transpose()?.flatten();
        socket::send(socket, &answer.encode(), file)
    }

    fn write<M: Medium>(
        &self,
        socket: &OwnedFd,
        peer: &Process,
        initiator: Incarnation,
    ) -> io::Result<()> {
        let mut sources = Sources::<M>::new();
        let mut packet = [0; wire::BYTES * TOGETHER];
        let mut answers = Vec::with_capacity(packet.len());
        let mut spin = Spin::new(self.config.spin);
        loop {
            let Some((length, file)) = self.next(socket, &mut packet, Some(&mut spin))? else {
                return Ok(());
            };
            let (messages, rest) = packet[..length].as_chunks::<{ wire::BYTES }>();
            if !rest.is_empty() {
                return Err(nonsense());
            }
            let mut file = file;
            let mut messages = messages.iter();
            while let Some(message) = messages.next() {
                let (write, length, status) = match Request::decode(message) {
                    Ok(Request::Offer {
                        source,
                        length,
                        address,
                    }) => {
                        let lent = Lent { length, address };
                        sources.offer(source, lent, file.take(), peer);
                        continue;
                    }
                    Ok(Request::Forget { source }) => {
                        sources.forget(source);
                        continue;
                    }
                    Ok(Request::Write(write)) => {
                        let status = self.apply(std::slice::from_ref(&write), &sources, peer);
                        (write, write.length, status.err().unwrap_or(Status::Done))
                    }
                    Ok(Request::Receipt(receipt)) => {
                        let pieces = messages.by_ref().take(receipt.pieces as usize);
                        let pieces = pieces.map(|piece| Request::decode(piece));
                        let (pieces, length) = together(receipt, pieces).ok_or_else(nonsense)?;
                        let told = self.apply_told(receipt, &pieces, initiator, &sources, peer);
                        (pieces[0], length, told.err().unwrap_or(Status::Done))
                    }
                    _ => return Err(nonsense()),
                };
                match status {
                    Status::Done => self.served.done(Op::Write, length),
                    // It is offered and comes once more.
                    Status::UnknownSource => {}
                    _ => self.served.refused(Op::Write),
                }
                let tag = write.tag;
                answers.extend_from_slice(&Answer::Wrote { tag, status }.encode());
                // Who waits for a large one is not kept waiting for the others.
                if length >= self.config.inline_bytes {
                    answer(socket, &answers)?;
                    answers.clear();
                }
            }
            if !answers.is_empty() {
                answer(socket, &answers)?;
                answers.clear();
            }
        }
    }

    /// Fetches what follows each other at its place.
    fn apply<M: Medium>(
        &self,
        pieces: &[Write],
        sources: &Sources<M>,
        peer: &Process,
    ) -> Result<(), Status> {
        let destination = self.admit_write(pieces)?;
        self.fetch(pieces, &destination, sources, peer)
    }

    /// As [`apply`](Self::apply), and does what the receipt asks once all of it is at its place.
    fn apply_told<M: Medium>(
        &self,
        receipt: Receipt,
        pieces: &[Write],
        initiator: Incarnation,
        sources: &Sources<M>,
        peer: &Process,
    ) -> Result<(), Status> {
        let destination = self.admit_write(pieces)?;
        for piece in pieces {
            sources.check(piece)?;
        }
        // Before a byte is applied: later there must be room.
        let seat = match receipt.op_id {
            Some(op_id) => {
                let seat = self.arrivals.reserve().ok_or(Status::NoRoom)?;
                Some((seat, op_id))
            }
            None => None,
        };
        self.fetch(pieces, &destination, sources, peer)?;
        let found = receipt.checksum.map(|_| destination.checksum(0));
        if found != receipt.checksum {
            return Err(Status::Corrupted);
        }
        if let Some((seat, op_id)) = seat {
            seat.report(Arrival {
                checksum: found,
                ..Arrival::new(initiator, op_id, destination.len())
            });
        }
        Ok(())
    }

    /// The place of all pieces.
    fn admit_write(&self, pieces: &[Write]) -> Result<LocalSlice, Status> {
        let first = &pieces[0];
        if self.stopped.load(Ordering::Acquire) {
            return Err(Status::Stopping);
        }
        if is_late(first) {
            return Err(Status::Late);
        }
        let mut lengths = pieces.iter().map(|piece| piece.length);
        let end = lengths.try_fold(first.offset, u64::checked_add);
        let end = end.ok_or(Status::OutOfBounds)?;
        let (registration, generation) = (first.registration, first.generation);
        let range = first.offset..end;
        let admitted = self
            .buffers
            .admit(registration, generation, range, Access::Write);
        Ok(admitted?)
    }

    fn fetch<M: Medium>(
        &self,
        pieces: &[Write],
        destination: &LocalSlice,
        sources: &Sources<M>,
        peer: &Process,
    ) -> Result<(), Status> {
        let _moving = InFlight::begin(&self.bytes_in_flight, destination.len());
        let stopped = || self.stopped.load(Ordering::Acquire);
        let chunk = self.config.chunk_bytes;
        let mut at = 0;
        for piece in pieces {
            let goes_on = || !stopped() && !is_late(piece) && peer.is_alive();
            // The bytes of the pieces before it are at their place.
            if at > 0 && !goes_on() {
                return Err(Status::Interrupted);
            }
            let end = at + piece.length;
            let status = match pieces {
                [_] => sources.fetch(piece, destination, peer, chunk, goes_on),
                _ => sources.fetch(piece, &destination.part(at..end), peer, chunk, goes_on),
            };
            if status != Status::Done {
                return Err(status);
            }
            at = end;
        }
        Ok(())
    }

    /// The next packet; `None`: the session is over.
    fn next(
        &self,
        socket: &OwnedFd,
        into: &mut [u8],
        spin: Option<&mut Spin>,
    ) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
        let look = |into: &mut [u8]| match socket::receive(socket, into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            done => Some(done),
        };
        let found = match spin {
            Some(spin) => spin.until(|| look(into)),
            None => look(into),
        };
        let mut found = found;
        while found.is_none() {
            socket::wait(socket, PollFlags::IN, Duration::from_secs(3600));
            found = look(into);
        }
        let (length, file) = found.expect("it was just found")?;
        let over = length == 0 || self.stopped.load(Ordering::Acquire);
        Ok((!over).then_some((length, file)))
    }
}

fn is_late(write: &Write) -> bool {
    write.deadline != 0 && socket::now() >= write.deadline
}

/// The pieces of a write with a receipt, and their length; `None`: they are not what it says.
fn together(
    receipt: Receipt,
    pieces: impl Iterator<Item = Result<Request, wire::Nonsense>>,
) -> Option<(SmallVec<[Write; 1]>, u64)> {
    let mut together = SmallVec::<[Write; 1]>::new();
    let mut length = 0_u64;
    for piece in pieces {
        let Ok(Request::Write(piece)) = piece else {
            return None;
        };
        if piece.length == 0 {
            return None;
        }
        if let Some(first) = together.first() {
            let follows = piece.registration == first.registration
                && piece.generation == first.generation
                && first.offset.checked_add(length) == Some(piece.offset)
                && piece.deadline == first.deadline;
            if !follows {
                return None;
            }
        }
        length = length.checked_add(piece.length)?;
        together.push(piece);
    }
    (together.len() as u64 == receipt.pieces).then_some((together, length))
}

/// Sends an answer. A peer that takes no answers has them waiting in its own socket.
fn answer(socket: &OwnedFd, packet: &[u8]) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match socket::send(socket, packet, None) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && start.elapsed() < HELLO => {
                socket::wait(socket, PollFlags::OUT, HELLO);
            }
            done => return done,
        }
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, wire::Nonsense)
}

/// Bytes that move, on the gauge for as long as they do.
struct InFlight<'a> {
    gauge: &'a AtomicU64,
    bytes: u64,
}

impl<'a> InFlight<'a> {
    fn begin(gauge: &'a AtomicU64, bytes: u64) -> Self {
        gauge.fetch_add(bytes, Ordering::Relaxed);
        Self { gauge, bytes }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.gauge.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Counts a session until its thread has ended.
struct OpenSession {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.shared.sessions.lock().open.remove(&self.number);
        self.shared.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, length: u64) -> Write {
        Write {
            tag: 0,
            source: RegistrationId(1),
            from: 0,
            length,
            registration: RegistrationId(2),
            generation: Generation(3),
            offset,
            deadline: 4,
        }
    }

    #[test]
    fn law_04_pieces_that_are_not_what_their_receipt_says_are_nonsense() {
        let length = |said: u64, pieces: &[Write]| {
            let receipt = Receipt {
                op_id: Some(1),
                checksum: None,
                pieces: said,
            };
            let pieces = pieces.iter().map(|piece| Ok(Request::Write(*piece)));
            together(receipt, pieces).map(|(_, length)| length)
        };
        let (first, second) = (piece(10, 5), piece(15, 7));
        assert_eq!(length(2, &[first, second]), Some(12));
        assert_eq!(length(1, &[first]), Some(5));
        for (said, pieces) in [
            (2, vec![first]),
            (2, vec![second, first]),
            (2, vec![first, piece(16, 7)]),
            (2, vec![piece(0, u64::MAX), piece(u64::MAX, u64::MAX)]),
            (
                2,
                vec![
                    first,
                    Write {
                        generation: Generation(4),
                        ..second
                    },
                ],
            ),
            (
                2,
                vec![
                    first,
                    Write {
                        deadline: 0,
                        ..second
                    },
                ],
            ),
        ] {
            assert_eq!(length(said, &pieces), None, "{said} {pieces:?}");
        }
        let receipt = Receipt {
            op_id: None,
            checksum: Some(1),
            pieces: 1,
        };
        let empty = [piece(10, 0), piece(10, 5)].map(|it| Ok(Request::Write(it)));
        assert_eq!(together(receipt, empty.into_iter()), None);
        assert_eq!(together(receipt, [Ok(Request::Admit)].into_iter()), None);
        assert_eq!(together(receipt, [Err(wire::Nonsense)].into_iter()), None);
    }
}
