//! Another process of this host, as the side that asks.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustc_hash::FxHashMap;

use super::{
    HostConfig, Lent, Medium, Process,
    place::socket_name,
    socket,
    wire::{self, Answer, Purpose, Request, Status},
    writes::Writes,
};
use crate::{
    error::Reason,
    identity::{Generation, Incarnation, PeerId, RegistrationId},
    memory::{MarkRef, PeerMarks, Piece},
    platform::after,
    transport::Tasks,
};

/// After a peer did not answer, nobody asks it for so long.
const REST: Duration = Duration::from_millis(200);

/// What we know of a peer, and how we ask it.
#[derive(Debug)]
pub(super) struct Session<M: Medium> {
    peer: PeerId,
    initiator: Incarnation,
    config: HostConfig,
    lender: Mutex<Lender>,
    views: ArcSwap<Views<M>>,
    pub(super) writes: Writes<M>,
    /// What was asked before one of them is not begun after it.
    fences: AtomicU64,
    stopped: AtomicBool,
    /// Held while copying; who gets it alone has waited for all that had begun.
    copying: RwLock<()>,
}

type Views<M> = FxHashMap<(RegistrationId, Generation), Arc<Registration<M>>>;

/// A registration of the peer that was lent to us.
#[derive(Debug)]
pub(super) struct Registration<M: Medium> {
    view: M::View,
    mark: MarkRef,
    pub(super) length: u64,
    owner: Arc<Owner>,
}

/// Who lends: its process and its marks.
#[derive(Debug)]
struct Owner {
    process: Process,
    marks: PeerMarks,
}

#[derive(Debug, Default)]
struct Lender {
    open: Option<(Arc<OwnedFd>, Arc<Owner>)>,
    /// Until when it is not asked, and why.
    rests: Option<(Instant, Reason)>,
}

impl Lender {
    /// Why it is not asked just now.
    fn rests(&self) -> Option<Reason> {
        let (until, reason) = self.rests.as_ref()?;
        (Instant::now() < *until).then(|| reason.clone())
    }
}

/// How a copy ended that did not bring what was asked for.
#[derive(Debug)]
pub(super) struct CopyError {
    pub(super) reason: Reason,
    /// The destination is as it was.
    pub(super) untouched: bool,
}

impl<M: Medium> Session<M> {
    pub(super) fn new(
        peer: PeerId,
        initiator: Incarnation,
        tasks: Tasks,
        config: &HostConfig,
    ) -> Self {
        Self {
            peer,
            initiator,
            config: config.clone(),
            lender: Mutex::default(),
            views: ArcSwap::default(),
            writes: Writes::new(peer, initiator, tasks, config),
            fences: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            copying: RwLock::new(()),
        }
    }

    pub(super) fn peer(&self) -> PeerId {
        self.peer
    }

    pub(super) fn config(&self) -> &HostConfig {
        &self.config
    }

    /// How many fences there were.
    pub(super) fn fences(&self) -> u64 {
        self.fences.load(Ordering::Acquire)
    }

    /// What is asked before this has ended, or never begins, when it returns well.
    pub(super) fn fence(&self, end: Instant) -> bool {
        self.fences.fetch_add(1, Ordering::AcqRel);
        self.writes.fence();
        self.drain(end)
    }

    /// A registration that was lent before.
    pub(super) fn known(
        &self,
        registration: RegistrationId,
        generation: Generation,
    ) -> Option<Arc<Registration<M>>> {
        self.views.load().get(&(registration, generation)).cloned()
    }

    /// A registration, which is asked for if it is not known. Waits until `end` at most.
    pub(super) fn registration(
        &self,
        registration: RegistrationId,
        generation: Generation,
        end: Instant,
    ) -> Result<Arc<Registration<M>>, Reason> {
        if let Some(known) = self.known(registration, generation) {
            return Ok(known);
        }
        let end = end.min(after(self.config.lend_timeout));
        let mut lender = self.lender.try_lock_until(end).ok_or_else(no_answer)?;
        // Who was here before may have asked for the same.
        if let Some(known) = self.known(registration, generation) {
            return Ok(known);
        }
        if let Some(reason) = lender.rests() {
            return Err(reason);
        }
        if let Err(reason) = self.connected(&mut lender, end) {
            lender.rests = Some((after(REST), reason.clone()));
            return Err(reason);
        }
        match self.ask(&mut lender, registration, generation, end) {
            Ok(lent) => {
                let lent = Arc::new(lent);
                self.views.rcu(|views| {
                    let mut views = Views::clone(views);
                    views.insert((registration, generation), Arc::clone(&lent));
                    views
                });
                Ok(lent)
            }
            Err(reason) => {
                if !is_refusal(&reason) {
                    // An answer may come that nobody waits for any more.
                    lender.open = None;
                }
                Err(reason)
            }
        }
    }

    /// Connects, so that a first transfer need not.
    pub(super) fn greet(&self, end: Instant) -> Result<(), Reason> {
        let mut lender = self.lender.try_lock_until(end).ok_or_else(no_answer)?;
        self.connected(&mut lender, end).map(drop)
    }

    fn ask(
        &self,
        lender: &mut Lender,
        registration: RegistrationId,
        generation: Generation,
        end: Instant,
    ) -> Result<Registration<M>, Reason> {
        let (socket, owner) = self.connected(lender, end)?.clone();
        let request = Request::Lend {
            registration,
            generation,
        };
        let begun = Instant::now();
        let answered = exchange(&socket, request, end);
        if let Err(reason) = &answered
            && begun.elapsed() >= self.config.lend_timeout / 2
        {
            // Others need not wait as long for the same silence.
            lender.rests = Some((after(REST), reason.clone()));
        }
        let (answer, file) = answered?;
        let Answer::Lent {
            status,
            mark,
            length,
            address,
        } = answer
        else {
            return Err(protocol());
        };
        if let Some(reason) = status.reason() {
            return Err(reason);
        }
        let lent = Lent { length, address };
        let view = match M::view(lent, file, &owner.process) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // It may not have allowed us yet.
                let (answer, _) = exchange(&socket, Request::Admit, end)?;
                if answer != Answer::Admitted(Status::Done) {
                    return Err(unreachable(&error));
                }
                M::view(lent, None, &owner.process)
            }
            made => made,
        };
        Ok(Registration {
            view: view.map_err(|error| unreachable(&error))?,
            mark,
            length,
            owner,
        })
    }

    fn connected<'a>(
        &self,
        lender: &'a mut Lender,
        end: Instant,
    ) -> Result<&'a (Arc<OwnedFd>, Arc<Owner>), Reason> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(Reason::Stopped);
        }
        if lender
            .open
            .as_ref()
            .is_some_and(|(_, owner)| !owner.process.is_alive_now())
        {
            lender.open = None;
        }
        if lender.open.is_none() {
            lender.open = Some(self.connect(end)?);
        }
        Ok(lender.open.as_ref().expect("it was just opened"))
    }

    fn connect(&self, end: Instant) -> Result<(Arc<OwnedFd>, Arc<Owner>), Reason> {
        let socket = socket::connect(&socket_name(M::NAME, self.peer));
        let socket = Arc::new(socket.map_err(|error| unreachable(&error))?);
        let process = trusted(&socket, &self.config)?;
        let hello = Request::Hello {
            purpose: Purpose::Lend,
            initiator: self.initiator,
            target: self.peer,
        };
        let (answer, file) = exchange(&socket, hello, end)?;
        welcomed(answer, self.peer)?;
        let file = file.ok_or_else(protocol)?;
        let marks = PeerMarks::map(file.as_fd());
        let marks = marks.map_err(|error| unreachable(&error))?;
        Ok((socket, Arc::new(Owner { process, marks })))
    }

    /// Copies from the peer's memory, unless there was a fence since `fences`.
    pub(super) fn copy(
        &self,
        from: &Registration<M>,
        at: u64,
        into: Piece,
        fences: u64,
    ) -> Result<(), CopyError> {
        let Some(_copying) = self.begin(fences) else {
            return Err(CopyError {
                reason: Reason::Broken("the peer was fenced meanwhile".into()),
                untouched: true,
            });
        };
        from.check().map_err(|reason| CopyError {
            reason,
            untouched: true,
        })?;
        let copied = M::copy(&from.view, &from.owner.process, at, into);
        // What was copied from memory that was taken back meanwhile is not what was asked for.
        let copied = copied.map_err(|error| unreachable(&error));
        from.check().and(copied).map_err(|reason| CopyError {
            reason,
            untouched: false,
        })
    }

    fn begin(&self, fences: u64) -> Option<RwLockReadGuard<'_, ()>> {
        let copying = self.copying.read();
        let wanted = self.fences() == fences && !self.stopped.load(Ordering::Acquire);
        wanted.then_some(copying)
    }

    /// Forgets what is not lent any more, so that its memory goes back to the system. `true`: there is
    /// more to look after.
    pub(super) fn sweep(&self) -> bool {
        let views = self.views.load();
        let over = |lent: &Registration<M>| lent.check().is_err();
        if views.values().any(|lent| over(lent)) {
            self.views.rcu(|views| {
                let kept = views.iter().filter(|(_, lent)| !over(lent));
                kept.map(|(name, lent)| (*name, Arc::clone(lent)))
                    .collect::<Views<M>>()
            });
        }
        if let Some(mut lender) = self.lender.try_lock() {
            lender.open = lender
                .open
                .take()
                .filter(|(_, owner)| owner.process.is_alive_now());
        }
        !self.views.load().is_empty() || self.connections() > 0
    }

    /// Our connections with it.
    pub(super) fn connections(&self) -> u64 {
        // Who asks just now has one.
        let lends = self
            .lender
            .try_lock()
            .is_none_or(|lender| lender.open.is_some());
        u64::from(lends) + u64::from(self.writes.is_connected())
    }

    /// Begins nothing any more.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.fences.fetch_add(1, Ordering::AcqRel);
        self.writes.stop();
        self.views.store(Arc::default());
        if let Some(mut lender) = self.lender.try_lock() {
            lender.open = None;
        }
    }

    /// Waits for all copies that have begun.
    pub(super) fn drain(&self, end: Instant) -> bool {
        self.writes.drain(end) && self.copying.try_write_until(end).is_some()
    }
}

impl<M: Medium> Registration<M> {
    /// It is still what was lent.
    fn check(&self) -> Result<(), Reason> {
        if !self.owner.marks.is_open(self.mark) {
            return Err(Reason::StaleGeneration);
        }
        if !self.owner.process.is_alive() {
            return Err(Reason::Unreachable(
                "its process has ended, or does not serve us any more".into(),
            ));
        }
        Ok(())
    }
}

/// The process behind a socket, if it is one that may be there.
pub(super) fn trusted(socket: &Arc<OwnedFd>, config: &HostConfig) -> Result<Process, Reason> {
    let process = Process::behind(socket).map_err(|error| unreachable(&error))?;
    let ours = rustix::process::geteuid().as_raw();
    match process.uid() {
        uid if uid == ours || config.users.contains(&uid) => Ok(process),
        uid => Err(Reason::Unreachable(
            format!("user {uid} listens there, whom we do not trust").into(),
        )),
    }
}

pub(super) fn welcomed(answer: Answer, peer: PeerId) -> Result<(), Reason> {
    match answer {
        Answer::Welcome { status, target } if target == peer => match status {
            Status::Permission => Err(Reason::Unreachable("it does not serve our user".into())),
            status => status.reason().map_or(Ok(()), Err),
        },
        Answer::Welcome { .. } => Err(Reason::OtherIncarnation),
        _ => Err(protocol()),
    }
}

fn exchange(
    socket: &OwnedFd,
    request: Request,
    end: Instant,
) -> Result<(Answer, Option<OwnedFd>), Reason> {
    // Who turns us away may have closed already; its answer is there all the same.
    let sent = socket::send(socket, &request.encode(), None);
    let mut message = [0; wire::BYTES];
    let mut received = socket::receive_until(socket, &mut message, end);
    if matches!(&received, Err(error) if error.kind() == io::ErrorKind::ConnectionReset) {
        received = socket::receive_until(socket, &mut message, end);
    }
    let (length, file) = match (sent, received) {
        (Err(error), Err(_) | Ok((0, _))) | (Ok(()), Err(error)) => {
            return Err(unreachable(&error));
        }
        (_, Ok(received)) => received,
    };
    if length == 0 {
        return Err(Reason::Unreachable("it has ended the session".into()));
    }
    let answer = Answer::decode(&message[..length]).map_err(|_| protocol())?;
    Ok((answer, file))
}

/// The peer has answered, and may be asked for something else.
fn is_refusal(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::OutOfBounds
            | Reason::Permission
            | Reason::StaleGeneration
            | Reason::UnknownRegistration
    )
}

fn no_answer() -> Reason {
    unreachable(&io::ErrorKind::TimedOut.into())
}

pub(super) fn unreachable(error: &io::Error) -> Reason {
    Reason::Unreachable(error.to_string().into())
}

pub(super) fn protocol() -> Reason {
    Reason::Protocol("its answer makes no sense".into())
}
