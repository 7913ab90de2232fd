//! Writes that a peer has been asked to fetch.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use rustix::event::PollFlags;

use super::{
    HostConfig, Medium,
    place::socket_name,
    session::{protocol, trusted, unreachable, welcomed},
    socket,
    wire::{self, Answer, Message, Purpose, Request, Status, TOGETHER, Write},
};
use crate::{
    error::{Reason, Stage, TransferError},
    identity::{Incarnation, PeerId, RegistrationId},
    memory::LocalSlice,
    spin::Spin,
    transport::{Outcome, TaskRef, Tasks},
};

/// How long who drives sleeps at most before looking at deadlines.
const TICK: Duration = Duration::from_millis(20);

/// The writes to one peer.
#[derive(Debug)]
pub(super) struct Writes<M: Medium> {
    peer: PeerId,
    initiator: Incarnation,
    tasks: Tasks,
    config: HostConfig,
    sender: Mutex<Sender>,
    /// Whoever has this takes answers.
    receiver: Mutex<Spin>,
    /// That wait or are under way.
    open: AtomicUsize,
    medium: std::marker::PhantomData<M>,
}

#[derive(Debug, Default)]
struct Sender {
    socket: Option<Arc<OwnedFd>>,
    welcomed: bool,
    /// The peer has said that it takes nothing of what we sent.
    refused: bool,
    offered: FxHashSet<RegistrationId>,
    waiting: VecDeque<Posted>,
    /// In the order in which they were sent, which is that of the answers.
    sent: VecDeque<Posted>,
    next_tag: u64,
    /// How many fences there were.
    fences: u64,
    stopped: bool,
    /// Sessions that we ended, whose peer may still copy.
    ending: Vec<Ending>,
}

#[derive(Debug)]
struct Ending {
    socket: Arc<OwnedFd>,
    posted: VecDeque<Posted>,
}

/// The rest of a write with a receipt, which has all slices of its task in one.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) receipt: wire::Receipt,
    /// Those behind the first.
    pub(super) more: Vec<(Write, LocalSlice)>,
}

/// A slice of a task.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) task: TaskRef,
    pub(super) write: Write,
    /// Leased until the answer: the peer reads from it.
    pub(super) local: LocalSlice,
    /// What belongs to it, if the target is asked for more than to apply it.
    pub(super) told: Option<Box<Told>>,
    pub(super) deadline: Option<Instant>,
    /// Its task was told of its end, but not that it is quiet.
    pub(super) ended: bool,
    pub(super) offered_again: bool,
    /// How many fences there were when it was posted.
    pub(super) fences: u64,
}

impl Posted {
    /// All that it consists of.
    fn pieces(&self) -> impl Iterator<Item = (&Write, &LocalSlice)> {
        let more = self.told.iter().flat_map(|told| &told.more);
        let more = more.map(|(write, local)| (write, local));
        std::iter::once((&self.write, &self.local)).chain(more)
    }

    fn length(&self) -> u64 {
        self.pieces().map(|(write, _)| write.length).sum()
    }

    /// So many messages.
    fn messages(&self) -> usize {
        match &self.told {
            None => 1,
            Some(told) => 2 + told.more.len(),
        }
    }

    fn encode(&self, packet: &mut [Message]) {
        let receipt = self
            .told
            .as_ref()
            .map(|told| Request::Receipt(told.receipt));
        let writes = self.pieces().map(|(write, _)| Request::Write(*write));
        for (message, request) in packet.iter_mut().zip(receipt.into_iter().chain(writes)) {
            *message = request.encode();
        }
    }
}

impl<M: Medium> Writes<M> {
    pub(super) fn new(
        peer: PeerId,
        initiator: Incarnation,
        tasks: Tasks,
        config: &HostConfig,
    ) -> Self {
        Self {
            peer,
            initiator,
            tasks,
            config: config.clone(),
            sender: Mutex::default(),
            receiver: Mutex::new(Spin::new(config.spin)),
            open: AtomicUsize::new(0),
            medium: std::marker::PhantomData,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    pub(super) fn is_connected(&self) -> bool {
        self.sender.lock().socket.is_some()
    }

    /// Adds a write; [`flush`](Self::flush) sends it.
    pub(super) fn post(&self, mut posted: Posted) {
        self.open.fetch_add(1, Ordering::AcqRel);
        let mut sender = self.sender.lock();
        if sender.stopped {
            let error = TransferError::unstarted(Reason::Stopped, Stage::Post, Some(self.peer));
            return self.end_unsent(posted, Outcome::Failed(error));
        }
        posted.fences = sender.fences;
        sender.waiting.push_back(posted);
    }

    /// Sends what the peer takes now.
    pub(super) fn flush(&self) {
        let mut sender = self.sender.lock();
        if let Err(reason) = self.flush_locked(&mut sender) {
            self.break_off(&mut sender, &reason);
        }
    }

    fn flush_locked(&self, sender: &mut Sender) -> Result<(), Reason> {
        let window = self.config.window.max(1);
        while !sender.waiting.is_empty() && sender.sent.len() < window {
            self.connect(sender)?;
            let socket = Arc::clone(sender.socket.as_ref().expect("it is connected"));
            let room = (window - sender.sent.len()).min(TOGETHER);
            let mut packet = [[0; wire::BYTES]; TOGETHER];
            let (mut count, mut filled) = (0, 0);
            for posted in sender.waiting.iter_mut().take(room) {
                let unknown = |(write, _): (&Write, _)| !sender.offered.contains(&write.source);
                let end = filled + posted.messages();
                if end > TOGETHER || posted.pieces().any(unknown) {
                    break;
                }
                posted.write.tag = sender.next_tag + count as u64;
                posted.encode(&mut packet[filled..end]);
                (count, filled) = (count + 1, end);
            }
            if count == 0 {
                let first = sender.waiting.front().expect("it is not empty");
                let unknown = first
                    .pieces()
                    .find(|(write, _)| !sender.offered.contains(&write.source));
                let (write, local) = unknown.expect("one of it is not offered");
                let (source, offered) = (write.source, offer::<M>(&socket, local));
                match offered {
                    Ok(true) => {
                        sender.offered.insert(source);
                    }
                    Ok(false) => return Ok(()),
                    Err(Reason::Unreachable(why)) => {
                        // Its memory cannot be offered; that of others can.
                        let first = sender.waiting.pop_front().expect("it was just there");
                        let reason = Reason::Unreachable(why);
                        let peer = Some(self.peer);
                        let error = TransferError::unstarted(reason, Stage::Post, peer);
                        self.end_unsent(first, Outcome::Failed(error));
                    }
                    Err(reason) => return Err(reason),
                }
                continue;
            }
            if !sent(&socket, packet[..filled].as_flattened(), None)? {
                return Ok(());
            }
            sender.next_tag += count as u64;
            let begun = sender.waiting.drain(..count);
            sender.sent.extend(begun);
        }
        Ok(())
    }

    fn connect(&self, sender: &mut Sender) -> Result<(), Reason> {
        if sender.socket.is_some() {
            return Ok(());
        }
        let socket = socket::connect(&socket_name(M::NAME, self.peer));
        let socket = Arc::new(socket.map_err(|error| unreachable(&error))?);
        let process = trusted(&socket, &self.config)?;
        if let Err(error) = M::admit(&process) {
            tracing::debug!(link = M::NAME, %error, "a peer is not admitted");
        }
        let hello = Request::Hello {
            purpose: Purpose::Write,
            initiator: self.initiator,
            target: self.peer,
        };
        // Its answer is awaited with those of the writes.
        sent(&socket, &hello.encode(), None)?;
        sender.socket = Some(socket);
        (sender.welcomed, sender.refused) = (false, false);
        sender.next_tag = 0;
        Ok(())
    }

    /// Takes answers, or sleeps for a while. `false`: others are at it, or nothing is under way.
    pub(super) fn drive(&self, budget: Duration) -> bool {
        let Some(mut spin) = self.receiver.try_lock() else {
            return false;
        };
        self.settle();
        self.flush();
        let Some((socket, events)) = self.expects() else {
            return false;
        };
        let taken = spin.until(|| self.receive(&socket));
        if taken.is_none() {
            socket::wait(&socket, events, budget.min(TICK));
            let _taken = self.receive(&socket);
        }
        self.end_overdue(Instant::now());
        true
    }

    /// Takes the answers that are there, without waiting. `false`: others are at it.
    pub(super) fn look(&self) -> bool {
        let Some(_spin) = self.receiver.try_lock() else {
            return false;
        };
        self.settle();
        if let Some((socket, _)) = self.expects() {
            let _taken = self.receive(&socket);
        }
        self.flush();
        self.end_overdue(Instant::now());
        true
    }

    /// The socket on which something is expected, and what.
    pub(super) fn expects(&self) -> Option<(Arc<OwnedFd>, PollFlags)> {
        let sender = self.sender.lock();
        let socket = sender.socket.as_ref()?;
        let mut events = PollFlags::empty();
        if !sender.sent.is_empty() {
            events |= PollFlags::IN;
        }
        if !sender.waiting.is_empty() && sender.sent.len() < self.config.window.max(1) {
            events |= PollFlags::OUT;
        }
        (!events.is_empty()).then(|| (Arc::clone(socket), events))
    }

    /// Something was sent that has not been answered.
    fn is_under_way(&self) -> bool {
        let sender = self.sender.lock();
        sender.socket.is_some() && !sender.sent.is_empty()
    }

    /// `Some`: something came.
    fn receive(&self, socket: &OwnedFd) -> Option<()> {
        let mut packet = [0; wire::BYTES * TOGETHER];
        let received = socket::receive(socket, &mut packet);
        let mut sender = self.sender.lock();
        // Another one may have broken off meanwhile.
        let current = sender.socket.as_deref();
        if !current.is_some_and(|current| std::ptr::eq(current, socket)) {
            return Some(());
        }
        let taken = match received {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
            Err(error) => Err(Reason::Broken(error.to_string().into())),
            Ok((0, _)) => Err(Reason::Broken("the peer has ended the session".into())),
            Ok((length, _)) => self.take(&mut sender, &packet[..length]),
        };
        if let Err(reason) = taken.and_then(|()| self.flush_locked(&mut sender)) {
            self.break_off(&mut sender, &reason);
        }
        Some(())
    }

    fn take(&self, sender: &mut Sender, packet: &[u8]) -> Result<(), Reason> {
        let (messages, rest) = packet.as_chunks::<{ wire::BYTES }>();
        if !rest.is_empty() {
            return Err(protocol());
        }
        for message in messages {
            self.take_one(sender, message)?;
        }
        Ok(())
    }

    fn take_one(&self, sender: &mut Sender, message: &Message) -> Result<(), Reason> {
        let answer = Answer::decode(message).map_err(|_| protocol())?;
        if !sender.welcomed {
            let welcome = welcomed(answer, self.peer);
            sender.refused = matches!(answer, Answer::Welcome { .. }) && welcome.is_err();
            welcome?;
            sender.welcomed = true;
            return Ok(());
        }
        let expected = sender.sent.front().map(|posted| posted.write.tag);
        match answer {
            Answer::Wrote { tag, status } if Some(tag) == expected => {
                let mut posted = sender.sent.pop_front().expect("it is expected");
                let again = !posted.offered_again && !posted.ended && !sender.stopped;
                if status == Status::UnknownSource && again && posted.fences == sender.fences {
                    for (write, _) in posted.pieces() {
                        sender.offered.remove(&write.source);
                    }
                    posted.offered_again = true;
                    sender.waiting.push_front(posted);
                } else {
                    self.finish(posted, status);
                }
                Ok(())
            }
            _ => Err(protocol()),
        }
    }

    fn finish(&self, posted: Posted, status: Status) {
        let end = match status.reason() {
            None => Outcome::Completed {
                bytes: posted.length(),
            },
            Some(reason) => {
                let late = reason == Reason::TimedOut;
                let error = TransferError::unstarted(reason, Stage::Admit, Some(self.peer));
                let end = if late {
                    Outcome::TimedOut(error)
                } else {
                    Outcome::Failed(error)
                };
                if status.is_untouched() {
                    end
                } else {
                    end.underway(true)
                }
            }
        };
        self.end_sent(posted, end);
    }

    /// The peer does nothing more for this one. It ends so unless it has ended before.
    fn end_sent(&self, posted: Posted, end: Outcome) {
        let (task, ended) = (posted.task, posted.ended);
        // Its lease ends before anybody is told.
        drop(posted);
        self.open.fetch_sub(1, Ordering::AcqRel);
        if ended {
            self.tasks.settle(task);
        } else {
            self.tasks.finish(task, end, true);
        }
    }

    /// Ends what waits or is under way beyond its deadline. The peer may be at it still.
    fn end_overdue(&self, now: Instant) {
        let mut sender = self.sender.lock();
        let is_overdue =
            |posted: &Posted| !posted.ended && posted.deadline.is_some_and(|end| end <= now);
        if sender.waiting.iter().any(is_overdue) {
            let waiting = std::mem::take(&mut sender.waiting);
            for posted in waiting {
                if is_overdue(&posted) {
                    self.end_unsent(posted, Outcome::timed_out(Stage::Post, self.peer));
                } else {
                    sender.waiting.push_back(posted);
                }
            }
        }
        for posted in sender.sent.iter_mut().filter(|posted| is_overdue(posted)) {
            posted.ended = true;
            let end = Outcome::timed_out(Stage::Move, self.peer).underway(false);
            self.tasks.finish(posted.task, end, false);
        }
    }

    fn end_unsent(&self, posted: Posted, end: Outcome) {
        let task = posted.task;
        // Its lease ends before anybody is told.
        drop(posted);
        self.open.fetch_sub(1, Ordering::AcqRel);
        self.tasks.finish(task, end, true);
    }

    /// Ends those of `task` that the peer has not got.
    pub(super) fn cancel(&self, task: TaskRef) {
        let mut sender = self.sender.lock();
        if !sender.waiting.iter().any(|posted| posted.task == task) {
            return;
        }
        let waiting = std::mem::take(&mut sender.waiting);
        for posted in waiting {
            if posted.task == task {
                self.end_unsent(posted, Outcome::cancelled(Stage::Post, self.peer));
            } else {
                sender.waiting.push_back(posted);
            }
        }
    }

    /// The session is over. The peer closes it after its last copy, as does the system when its process
    /// ends: then all is quiet.
    fn break_off(&self, sender: &mut Sender, reason: &Reason) {
        self.take_the_rest(sender);
        tracing::debug!(link = M::NAME, peer = %self.peer, %reason, "writes broke off");
        let (reason, stage) = match (sender.welcomed, reason) {
            (true, reason) => (reason.clone(), Stage::Post),
            // It went without a word that we could still read.
            (false, Reason::Broken(_)) => (unwelcome(), Stage::Connect),
            (false, reason) => (reason.clone(), Stage::Connect),
        };
        for posted in std::mem::take(&mut sender.waiting) {
            let error = TransferError::unstarted(reason.clone(), stage, Some(self.peer));
            self.end_unsent(posted, Outcome::Failed(error));
        }
        sender.offered.clear();
        let mut posted = std::mem::take(&mut sender.sent);
        let Some(socket) = sender.socket.take() else {
            return;
        };
        let error = TransferError::unstarted(reason, Stage::Connect, Some(self.peer));
        if sender.refused || has_closed(&socket) {
            // Who was not welcome has nothing of ours.
            let error = match sender.welcomed {
                true => error.underway(true),
                false => error,
            };
            for posted in posted {
                self.end_sent(posted, Outcome::Failed(error.clone()));
            }
            return;
        }
        for posted in posted.iter_mut().filter(|posted| !posted.ended) {
            posted.ended = true;
            let end = Outcome::Failed(error.clone().underway(false));
            self.tasks.finish(posted.task, end, false);
        }
        if !posted.is_empty() {
            // The peer finds the end of what we say, and closes in its turn.
            let _told = rustix::net::shutdown(&socket, rustix::net::Shutdown::Write);
            sender.ending.push(Ending { socket, posted });
        }
    }

    /// Takes the answers of a session that broke: the news of its end comes before them.
    fn take_the_rest(&self, sender: &mut Sender) {
        let Some(socket) = sender.socket.clone() else {
            return;
        };
        let mut packet = [0; wire::BYTES * TOGETHER];
        let mut errors = 0;
        while errors < 2 {
            match socket::receive(&socket, &mut packet) {
                Ok((0, _)) => return,
                Ok((length, _)) if self.take(sender, &packet[..length]).is_ok() => {}
                Ok(_) => return,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => errors += 1,
            }
        }
    }

    /// Notices that the peer of an idle session has gone.
    pub(super) fn sweep(&self) {
        let mut sender = self.sender.lock();
        let gone = sender
            .socket
            .as_ref()
            .is_some_and(|socket| has_closed(socket));
        if gone && sender.sent.is_empty() && sender.waiting.is_empty() {
            self.break_off(
                &mut sender,
                &Reason::Broken("the peer has ended the session".into()),
            );
        }
    }

    /// Settles what was under way in sessions that we ended, once their peer has closed them. `true`:
    /// some have not been.
    pub(super) fn settle(&self) -> bool {
        let mut sender = self.sender.lock();
        let closed = sender
            .ending
            .extract_if(.., |ending| has_closed(&ending.socket));
        for ended in closed {
            for posted in ended.posted {
                let error = TransferError::unstarted(Reason::Stopped, Stage::Move, Some(self.peer));
                self.end_sent(posted, Outcome::Failed(error.underway(true)));
            }
        }
        !sender.ending.is_empty()
    }

    /// Nothing that was posted before is sent after this.
    pub(super) fn fence(&self) {
        self.sender.lock().fences += 1;
        self.end_waiting(&Reason::Broken("the peer was fenced meanwhile".into()));
    }

    /// Ends what the peer has not got.
    fn end_waiting(&self, reason: &Reason) {
        let mut sender = self.sender.lock();
        for posted in std::mem::take(&mut sender.waiting) {
            let error = TransferError::unstarted(reason.clone(), Stage::Post, Some(self.peer));
            self.end_unsent(posted, Outcome::Failed(error));
        }
    }

    /// Waits until all that was sent has been answered, or cannot be any more.
    pub(super) fn drain(&self, end: Instant) -> bool {
        while self.settle() || self.is_under_way() {
            if Instant::now() >= end {
                return false;
            }
            if let Some((socket, _)) = self.expects() {
                socket::wait(&socket, PollFlags::IN, Duration::from_millis(1));
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.look();
        }
        true
    }

    /// Tells the peer what is not written from any more.
    pub(super) fn forget(&self, is_gone: impl Fn(RegistrationId) -> bool) {
        let mut sender = self.sender.lock();
        let Some(socket) = sender.socket.clone() else {
            return;
        };
        let gone: Vec<_> = sender
            .offered
            .iter()
            .copied()
            .filter(|id| is_gone(*id))
            .collect();
        for source in gone {
            let told = sent(&socket, &Request::Forget { source }.encode(), None);
            if matches!(told, Ok(true)) {
                sender.offered.remove(&source);
            }
        }
    }

    /// Takes no more writes.
    pub(super) fn stop(&self) {
        self.sender.lock().stopped = true;
        self.end_waiting(&Reason::Stopped);
    }

    /// Ends the session.
    pub(super) fn close(&self) {
        let mut sender = self.sender.lock();
        self.break_off(&mut sender, &Reason::Stopped);
    }
}

fn unwelcome() -> Reason {
    let what =
        "it does not welcome us: it has all the sessions that it takes, or does not serve our user";
    Reason::Unreachable(what.into())
}

/// Offers the memory that a write comes from; `false`: not now.
fn offer<M: Medium>(socket: &OwnedFd, local: &LocalSlice) -> Result<bool, Reason> {
    let buffer = local.buffer();
    let memory = buffer.memory();
    let offer = Request::Offer {
        source: buffer.id(),
        length: memory.len() as u64,
        address: memory.address(),
    };
    let file = M::file(memory).map_err(|error| unreachable(&error))?;
    sent(socket, &offer.encode(), file)
}

/// `false`: the socket takes no more just now.
fn sent(
    socket: &OwnedFd,
    packet: &[u8],
    file: Option<std::os::fd::BorrowedFd<'_>>,
) -> Result<bool, Reason> {
    match socket::send(socket, packet, file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(Reason::Broken(error.to_string().into())),
    }
}

/// Whether the other end has gone, and not we.
fn has_closed(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, Timespec, poll};
    let mut sockets = [PollFd::new(socket, PollFlags::empty())];
    let looked = poll(&mut sockets, Some(&Timespec::default()));
    matches!(looked, Ok(n) if n > 0) && sockets[0].revents().contains(PollFlags::HUP)
}
