//! The peers that this process reaches over TCP, with their lanes.

use std::{
    io::{self, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::{
    TcpConfig,
    dial::{Dial, nth_pause},
    lane::{Lane, Loud, PeerLoad, Receiver, SharedLane},
    poller::Poller,
    socket::{connect, notice_vanished_peer, read_whole},
    wire::{
        ANSWER_BYTES, AnswerHeader, Flags, HELLO_BYTES, Hello, HelloAnswer, LaneClock,
        RequestHeader, Status, Verb, Welcome,
    },
};
use crate::{
    credit::Credit,
    error::{Error, Reason},
    identity::{Generation, Incarnation, PeerId, RegistrationId},
    platform::{after, jittered},
    sync::atomic::AtomicU64,
    transport::{Peer, TaskRef, Tasks},
};

pub(super) type Lanes = SmallVec<[SharedLane; 2]>;

/// So many lives of peers are remembered, although nothing goes to them.
const IDLE_PEERS: usize = 1024;
/// How long a fence waits for the target in one try.
const FENCE_BUDGET: Duration = Duration::from_secs(2);
/// How long a lane's end waits between two looks at who receives.
const A_MOMENT: Duration = Duration::from_millis(1);
/// Who tells us to come again later than this is not believed.
const LONGEST_HINT: Duration = Duration::from_secs(1);
/// How long errands may take to end once they should.
const QUIT_BUDGET: Duration = Duration::from_millis(200);

/// All peers of one installed link.
#[derive(Debug)]
pub(super) struct Peers {
    incarnation: Incarnation,
    tasks: Tasks,
    config: TcpConfig,
    poller: Arc<Poller>,
    peers: Mutex<FxHashMap<PeerId, Arc<PeerLanes>>>,
    next_lane: AtomicU64,
    /// No new lanes.
    stopped: AtomicBool,
    /// Threads that connect, fence or retire a lane.
    errands: Mutex<usize>,
    errand_ended: Condvar,
    /// Errands end now.
    quit: AtomicBool,
    me: Weak<Self>,
    /// There is none for the next errand.
    #[cfg(test)]
    no_thread: AtomicBool,
}

/// The lanes to one peer. The lock of `lanes` is taken before that of `dial`.
#[derive(Debug)]
pub(super) struct PeerLanes {
    id: PeerId,
    endpoint: String,
    lanes: Mutex<Lanes>,
    /// Bytes that wait for an answer, on all of them.
    load: Arc<PeerLoad>,
    dial: Mutex<Dial>,
    /// Somebody waits for a lane until then, though no request does.
    warming_until: Mutex<Option<Instant>>,
    /// Broken lanes whose writes may still land; counted before they are among `dead`.
    loud: AtomicU64,
    dead: Mutex<DeadLanes>,
    /// There is another dead lane, or it is time to quit.
    fence_wanted: Condvar,
    changed: Notify,
}

#[derive(Debug, Default)]
struct DeadLanes {
    lanes: Vec<DeadLane>,
    /// A thread looks after them.
    fencing: bool,
}

#[derive(Debug)]
struct DeadLane {
    id: u64,
    writes: Vec<TaskRef>,
    /// Nothing of it can land from then on, whatever the peer says.
    quiet_at: Option<Instant>,
}

/// A connection, and what the peer has granted it to begin with.
type Connected = (TcpStream, LaneClock, Credit);

/// Why a connection did not come to be.
enum Turned {
    Away(Reason),
    /// After so long there may be room.
    Busy(Duration),
    /// It has too much to do to answer in time.
    Late(Reason),
}

impl Turned {
    /// An answer that did not come.
    fn unanswered(endpoint: &str, error: &io::Error) -> Self {
        let reason = Reason::Unreachable(format!("{endpoint}: {error}").into());
        match error.kind() {
            io::ErrorKind::TimedOut
            | io::ErrorKind::WouldBlock
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::UnexpectedEof => Self::Late(reason),
            _ => Self::Away(reason),
        }
    }
}

impl From<Reason> for Turned {
    fn from(reason: Reason) -> Self {
        Self::Away(reason)
    }
}

impl From<Turned> for Reason {
    fn from(turned: Turned) -> Self {
        match turned {
            Turned::Away(reason) | Turned::Late(reason) => reason,
            Turned::Busy(_) => Self::Unreachable("it has all the lanes that it takes".into()),
        }
    }
}

impl Peers {
    pub(super) fn new(
        incarnation: Incarnation,
        tasks: Tasks,
        config: TcpConfig,
        poller: Arc<Poller>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            incarnation,
            tasks,
            config,
            poller,
            peers: Mutex::default(),
            next_lane: AtomicU64::new(1),
            stopped: AtomicBool::new(false),
            errands: Mutex::default(),
            errand_ended: Condvar::new(),
            quit: AtomicBool::new(false),
            #[cfg(test)]
            no_thread: AtomicBool::new(false),
            me: Weak::clone(me),
        })
    }

    pub(super) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    pub(super) fn config(&self) -> &TcpConfig {
        &self.config
    }

    fn arc(&self) -> Arc<Self> {
        self.me.upgrade().expect("whoever calls holds it")
    }

    /// The lanes to `peer`, replaced where they broke. New ones connect in the background, and carry
    /// requests before that only if there is no other.
    pub(super) fn lanes(&self, peer: &Peer) -> Result<Lanes, Reason> {
        let entry = self.entry(peer)?;
        let mut lanes = entry.lanes.lock();
        // Under the lock: who stops us takes it afterwards and finds what we open.
        if self.stopped.load(Ordering::Acquire) {
            return Err(Reason::Stopped);
        }
        // One that is cut stays on the list until it is retired, for whoever fences.
        let usable = |lane: &&SharedLane| !lane.is_cut() && !lane.is_broken() && !lane.is_aged();
        let mut usable: Lanes = lanes.iter().filter(usable).cloned().collect();
        let wanted = self.config.lanes_per_peer.max(1);
        if usable.len() < wanted {
            let mut dial = entry.dial.lock();
            match dial.bar() {
                Some(reason) if usable.is_empty() => return Err(reason.clone()),
                Some(_) => {}
                None => {
                    let fresh: Lanes = (usable.len()..wanted).map(|_| self.fresh(&entry)).collect();
                    dial.waiting.extend(fresh.iter().cloned());
                    self.start_dial(&entry, &mut dial)?;
                    lanes.extend(fresh.iter().cloned());
                    usable.extend(fresh);
                }
            }
        }
        drop(lanes);
        if usable.iter().any(|lane| lane.socket().is_some()) {
            usable.retain(|lane| lane.socket().is_some());
        }
        Ok(usable)
    }

    /// What is known of `peer`.
    fn entry(&self, peer: &Peer) -> Result<Arc<PeerLanes>, Reason> {
        let endpoint = peer
            .endpoint(super::link::NAME)
            .ok_or_else(|| Reason::Unreachable("it names no TCP address".into()))?;
        let mut peers = self.peers.lock();
        let is_full = peers.len() >= IDLE_PEERS && peers.len() == peers.capacity();
        if is_full && !peers.contains_key(&peer.id()) {
            // Nobody else can get at one that only this map has.
            peers.retain(|_, peer| Arc::strong_count(peer) > 1 || !peer.is_idle());
        }
        let entry = peers.entry(peer.id()).or_insert_with(|| {
            Arc::new(PeerLanes {
                id: peer.id(),
                endpoint: endpoint.to_owned(),
                lanes: Mutex::default(),
                load: Arc::default(),
                dial: Mutex::default(),
                warming_until: Mutex::default(),
                loud: AtomicU64::new(0),
                dead: Mutex::default(),
                fence_wanted: Condvar::new(),
                changed: Notify::new(),
            })
        });
        Ok(Arc::clone(entry))
    }

    /// The lanes to a peer that are there, whatever their state.
    pub(super) fn lanes_now(&self, peer: PeerId) -> Lanes {
        let peer = self.peers.lock().get(&peer).cloned();
        peer.map_or_else(Lanes::new, |peer| peer.lanes.lock().clone())
    }

    /// Has a lane with little to do take over what others to its peer have not begun.
    pub(super) fn even_out(&self, lane: &SharedLane) {
        if lane.has_time() {
            let others = self.lanes_now(lane.peer());
            let busier = others.iter().filter(|other| other.id() != lane.id());
            if let Some(busiest) = busier.max_by_key(|other| other.load())
                && lane.relieve(busiest)
            {
                lane.flush();
            }
        }
    }

    /// A lane that is not connected yet.
    fn fresh(&self, peer: &PeerLanes) -> SharedLane {
        Arc::new(Lane::new(
            self.next_lane.fetch_add(1, Ordering::Relaxed),
            peer.id,
            Arc::clone(&self.tasks),
            &self.config,
            Arc::clone(&peer.load),
        ))
    }

    fn start_dial(&self, peer: &Arc<PeerLanes>, dial: &mut Dial) -> Result<(), Reason> {
        if !dial.running {
            let peer = Arc::clone(peer);
            let errand = self.errand("tcp-connect", move |peers| peers.dial(&peer));
            if let Err(error) = errand {
                dial.waiting.clear();
                return Err(Reason::Unreachable(format!("no thread: {error}").into()));
            }
            dial.running = true;
        }
        for lane in &dial.waiting {
            self.poller.adopt(lane);
        }
        Ok(())
    }

    /// Connects the lanes that wait, one after the other. The failure of one is that of all.
    fn dial(&self, peer: &PeerLanes) {
        loop {
            let next = {
                let mut dial = peer.dial.lock();
                dial.running = !dial.waiting.is_empty();
                dial.waiting.front().cloned()
            };
            let Some(lane) = next else {
                return;
            };
            match self.reach(peer, &lane) {
                Ok((socket, clock, granted)) => {
                    lane.begin_with(granted, clock.elapsed());
                    peer.dial.lock().succeeded();
                    lane.connected(socket, clock);
                    self.poller.add(&lane);
                    self.poller.watch(&lane);
                }
                Err(_) if lane.is_cut() => {
                    peer.dial.lock().waiting.pop_front();
                    self.end_unconnected(&lane, &Reason::Stopped);
                }
                Err(reason) => {
                    let failed = peer.dial.lock().failed(&reason);
                    for lane in failed {
                        self.end_unconnected(&lane, &reason);
                    }
                }
            }
            peer.changed.notify_waiters();
        }
    }

    fn end_unconnected(&self, lane: &Lane, reason: &Reason) {
        let reason = lane.why().unwrap_or_else(|| reason.clone());
        let mut receiver = lane.receiver();
        self.retire(lane, &mut receiver, &reason);
    }

    /// Connects `lane`. A peer that is busy is asked again, when it says so, for as long as requests
    /// wait, unless another lane can take them, or for as long as somebody warms up.
    fn reach(&self, peer: &PeerLanes, lane: &Lane) -> Result<Connected, Reason> {
        let patience = after(self.config.connect_timeout);
        let gives_up = || lane.is_cut();
        for n in 0.. {
            let end = after(self.config.connect_timeout);
            let (turned, pause) = match self.connect(peer, lane.id(), false, end, gives_up) {
                Ok(connected) => return Ok(connected),
                Err(Turned::Busy(hint)) if !peer.has_other(lane) => {
                    (Turned::Busy(hint), nth_pause(n).max(jittered(hint)))
                }
                Err(Turned::Late(reason)) if peer.is_warming() => {
                    (Turned::Late(reason), nth_pause(n))
                }
                Err(turned) => return Err(turned.into()),
            };
            self.pause(pause);
            let busy = matches!(turned, Turned::Busy(_));
            let waits = busy && (lane.is_busy() || Instant::now() < patience);
            let wanted = waits || peer.is_warming();
            if !wanted || gives_up() || self.quit.load(Ordering::Acquire) {
                return Err(turned.into());
            }
        }
        unreachable!("nobody waits for so many tries")
    }

    /// Waits a little, or until it is time to quit.
    fn pause(&self, pause: Duration) {
        let end = after(pause);
        let mut errands = self.errands.lock();
        while !self.quit.load(Ordering::Acquire) {
            let waited = self.errand_ended.wait_until(&mut errands, end);
            if waited.timed_out() {
                return;
            }
        }
    }

    /// Runs `work` on a thread of its own that [`until_quiet`](Self::until_quiet) waits for.
    fn errand(&self, name: &str, work: impl FnOnce(&Self) + Send + 'static) -> io::Result<()> {
        let errand = self.begin_errand();
        #[cfg(test)]
        if self.no_thread.swap(false, Ordering::AcqRel) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        spawn(name, move || work(&errand.0)).map(drop)
    }

    fn begin_errand(&self) -> Errand {
        *self.errands.lock() += 1;
        Errand(self.arc())
    }

    /// A connection that has said hello as `lane`.
    fn connect(
        &self,
        peer: &PeerLanes,
        lane: u64,
        errand: bool,
        end: Instant,
        gives_up: impl Fn() -> bool,
    ) -> Result<Connected, Turned> {
        let gives_up = || gives_up() || self.quit.load(Ordering::Acquire);
        if gives_up() {
            return Err(Reason::Stopped.into());
        }
        let unreachable = |error: io::Error| Turned::unanswered(&peer.endpoint, &error);
        let address = peer
            .endpoint
            .to_socket_addrs()
            .map_err(unreachable)?
            .next()
            .ok_or_else(|| unreachable(io::ErrorKind::AddrNotAvailable.into()))?;
        let mut socket = connect(address, end, gives_up).map_err(unreachable)?;
        socket.set_nodelay(true).map_err(unreachable)?;
        notice_vanished_peer(&socket).map_err(unreachable)?;
        let hello = Hello {
            initiator: self.incarnation,
            target: peer.id,
            lane,
            most: Credit {
                bytes: self.config.window_bytes,
                requests: self.config.window as u64,
            },
            errand,
        };
        let clock = LaneClock::start();
        socket.write_all(&hello.encode()).map_err(unreachable)?;
        let mut answer = [0; HELLO_BYTES];
        read_whole(&socket, &mut answer, end, gives_up).map_err(unreachable)?;
        if clock.elapsed() > self.config.connect_timeout {
            // Its clock may have begun so late that its deadlines are worth nothing.
            return Err(unreachable(io::ErrorKind::TimedOut.into()));
        }
        let answer = HelloAnswer::decode(&answer)
            .map_err(|what| Reason::Protocol(what.to_string().into()))?;
        match answer.welcome {
            Welcome::Accepted if answer.target == peer.id => {}
            Welcome::Accepted | Welcome::OtherIncarnation => {
                return Err(Reason::OtherIncarnation.into());
            }
            Welcome::Full => {
                let what = "it takes no more lanes from us";
                return Err(Reason::Unreachable(what.into()).into());
            }
            Welcome::Busy => {
                let hint = Duration::from_millis(answer.again_ms.into());
                return Err(Turned::Busy(hint.min(LONGEST_HINT)));
            }
        }
        socket.set_read_timeout(None).map_err(unreachable)?;
        Ok((socket, clock, answer.granted))
    }

    /// Fails what is under way on a lane that is over, and fences writes that may still land.
    pub(super) fn retire(&self, lane: &Lane, receiver: &mut Receiver, reason: &Reason) {
        if lane.is_broken() {
            return;
        }
        tracing::debug!(peer = %lane.peer(), lane = lane.id(), %reason, "a lane ended");
        // Before the poller forgets the lane: who stops us finds it there, or waits for this.
        let _errand = self.begin_errand();
        self.poller.remove(lane);
        let peer = self.peers.lock().get(&lane.peer()).cloned();
        let peer = peer.expect("a peer that has a lane is not forgotten");
        // Counted before any task ends, so that whoever sees the end and asks for a fence waits.
        peer.loud.fetch_add(1, Ordering::AcqRel);
        let loud = lane.fail(receiver, reason);
        // Its socket is closed once nobody uses it any more.
        peer.lanes.lock().retain(|other| other.id() != lane.id());
        if loud.tasks.is_empty() {
            peer.settled();
            return;
        }
        self.fence_soon(&peer, lane.id(), loud);
    }

    fn fence_soon(&self, peer: &Arc<PeerLanes>, lane: u64, loud: Loud) {
        let late = self.config.late();
        peer.dead.lock().lanes.push(DeadLane {
            id: lane,
            quiet_at: loud.last_deadline().and_then(|last| last.checked_add(late)),
            writes: loud.tasks,
        });
        peer.fence_wanted.notify_all();
        self.begin_fencing(peer);
    }

    /// Sees to it that a thread looks after the peer's dead lanes.
    fn begin_fencing(&self, peer: &Arc<PeerLanes>) {
        let mut dead = peer.dead.lock();
        if dead.fencing || dead.lanes.is_empty() || self.quit.load(Ordering::Acquire) {
            return;
        }
        let fenced = Arc::clone(peer);
        match self.errand("tcp-fence", move |peers| peers.fence_dead(&fenced)) {
            Ok(()) => dead.fencing = true,
            Err(error) => {
                tracing::warn!(%error, peer = %peer.id, "writes of a broken lane are quarantined: no thread");
                self.poller.fence_later();
            }
        }
    }

    /// As far as there was no thread for it before.
    pub(super) fn fence_at_last(&self) {
        let peers: Vec<_> = self.peers.lock().values().cloned().collect();
        for peer in &peers {
            self.begin_fencing(peer);
        }
    }

    /// Tries until there is proof for each dead lane that nothing of it lands any more: the peer
    /// confirms that its reader has ended, or is another process, or its last deadline has passed
    /// there, too.
    fn fence_dead(&self, peer: &PeerLanes) {
        for n in 0.. {
            let now = Instant::now();
            self.settle(peer, |lane| lane.quiet_at.is_some_and(|at| at <= now));
            let (lanes, next): (Vec<u64>, _) = {
                let mut dead = peer.dead.lock();
                dead.fencing = !dead.lanes.is_empty() && !self.quit.load(Ordering::Acquire);
                if !dead.fencing {
                    if !dead.lanes.is_empty() {
                        tracing::warn!(
                            peer = %peer.id, lanes = dead.lanes.len(),
                            "writes of broken lanes stay quarantined: their end is not proven"
                        );
                    }
                    return;
                }
                let next = dead.lanes.iter().filter_map(|lane| lane.quiet_at).min();
                (dead.lanes.iter().map(|lane| lane.id).collect(), next)
            };
            match self.ask_for_fences(peer, &lanes, next) {
                Ok(()) => {}
                Err(Reason::OtherIncarnation) => self.settle(peer, |lane| lanes.contains(&lane.id)),
                Err(reason) => {
                    tracing::debug!(peer = %peer.id, %reason, "a fence is not proven yet");
                }
            }
            let mut dead = peer.dead.lock();
            let others = dead.lanes.iter().any(|lane| !lanes.contains(&lane.id));
            if !dead.lanes.is_empty() && !others && !self.quit.load(Ordering::Acquire) {
                let end = after(nth_pause(n));
                let end = next.map_or(end, |next| next.min(end));
                peer.fence_wanted.wait_until(&mut dead, end);
            }
        }
    }

    /// The writes of those dead lanes that `which` names can land no more.
    fn settle(&self, peer: &PeerLanes, which: impl Fn(&DeadLane) -> bool) {
        let quiet: Vec<_> = {
            let mut dead = peer.dead.lock();
            let (quiet, loud) = dead.lanes.drain(..).partition(which);
            dead.lanes = loud;
            quiet
        };
        for lane in quiet {
            for task in lane.writes {
                self.tasks.settle(task);
            }
            peer.settled();
        }
    }

    /// Asks on one connection for the fence of each lane. Tries no longer than until `next`, when
    /// time itself proves one of them.
    fn ask_for_fences(
        &self,
        peer: &PeerLanes,
        lanes: &[u64],
        next: Option<Instant>,
    ) -> Result<(), Reason> {
        let soon = |budget| {
            let end = after(budget);
            next.map_or(end, |next| next.min(end))
        };
        let errand = self.next_lane.fetch_add(1, Ordering::Relaxed);
        let end = soon(self.config.connect_timeout);
        let connected = self.connect(peer, errand, true, end, || false);
        let (mut socket, clock, _) = connected.map_err(Reason::from)?;
        let broken = |error: io::Error| Reason::Broken(error.to_string().into());
        for lane in lanes {
            let request = RequestHeader {
                verb: Verb::Fence,
                flags: Flags::default(),
                deadline_us: clock.to_wire(Some(after(FENCE_BUDGET))),
                tag: 0,
                registration: RegistrationId(*lane),
                generation: Generation(0),
                offset: 0,
                length: 0,
            };
            socket.write_all(&request.encode()).map_err(broken)?;
            let mut answer = [0; ANSWER_BYTES];
            let end = soon(FENCE_BUDGET + self.config.connect_timeout);
            let gives_up = || self.quit.load(Ordering::Acquire);
            read_whole(&socket, &mut answer, end, gives_up).map_err(broken)?;
            match AnswerHeader::decode(&answer) {
                Ok(answer) if answer.status == Status::Applied => {
                    self.settle(peer, |dead| dead.id == *lane);
                }
                Ok(_) => tracing::debug!(peer = %peer.id, lane, "the lane's reader still runs"),
                Err(what) => return Err(Reason::Protocol(what.to_string().into())),
            }
        }
        Ok(())
    }

    /// Cuts all lanes to `peer` and waits until nothing that was posted on them can land.
    pub(super) async fn fence(&self, id: PeerId, budget: Duration) -> Result<(), Duration> {
        let Some(peer) = self.peers.lock().get(&id).cloned() else {
            return Ok(());
        };
        let start = Instant::now();
        let lanes = peer.lanes.lock().clone();
        for lane in &lanes {
            lane.cut(Reason::Broken("the peer is being fenced".into()));
            self.poller.watch(lane);
        }
        loop {
            let changed = peer.changed.notified();
            if are_quiet(&lanes, &peer.loud) {
                return Ok(());
            }
            let left = budget.saturating_sub(start.elapsed());
            if tokio::time::timeout(left, changed).await.is_err() {
                return Err(start.elapsed());
            }
        }
    }

    /// Waits until a lane to `peer` is connected.
    pub(super) async fn warm_up(&self, peer: &Peer, budget: Duration) -> Result<(), Reason> {
        let start = Instant::now();
        let entry = self.entry(peer)?;
        // Before anybody connects for us.
        entry.warm_until(after(budget));
        let lanes = self.lanes(peer)?;
        loop {
            let changed = entry.changed.notified();
            let is_connected = |lane: &&SharedLane| lane.socket().is_some() && !lane.is_broken();
            let connected = lanes.iter().filter(is_connected).count();
            let broken = lanes.iter().filter(|lane| lane.is_broken());
            if connected + broken.clone().count() == lanes.len() {
                let why = || broken.clone().find_map(|lane| lane.why());
                return match connected {
                    0 => Err(why().unwrap_or(Reason::Stopped)),
                    _ => Ok(()),
                };
            }
            let left = budget.saturating_sub(start.elapsed());
            if tokio::time::timeout(left, changed).await.is_err() {
                let what = format!("{}: no connection within {budget:?}", entry.endpoint);
                return Err(Reason::Unreachable(what.into()));
            }
        }
    }

    /// Ends all lanes, for good. What was under way on them fails.
    pub(super) fn cut_all(&self, end: Instant) {
        self.stopped.store(true, Ordering::Release);
        let peers: Vec<_> = self.peers.lock().values().cloned().collect();
        for peer in peers {
            // Whoever opens lanes now has the lock, or sees that we stop.
            drop(peer.lanes.lock());
        }
        for lane in self.poller.lanes() {
            lane.cut(Reason::Stopped);
            let mut receiver = lane.try_receiver();
            // Who has it may be further up on our own stack, in a waker that dropped the last owner
            // of the engine: then the lane is retired as soon as we are back there.
            while receiver.is_none() && Instant::now() < end {
                self.pause(A_MOMENT);
                receiver = lane.try_receiver();
            }
            if let Some(mut receiver) = receiver {
                self.retire(&lane, &mut receiver, &Reason::Stopped);
            }
        }
    }

    /// Waits for proof that no write of the lanes that were cut can land.
    pub(super) fn until_quiet(&self, end: Instant) -> Result<(), Error> {
        self.fence_at_last();
        let mut errands = self.errands.lock();
        while *errands > 0 && !self.errand_ended.wait_until(&mut errands, end).timed_out() {}
        self.quit.store(true, Ordering::Release);
        self.errand_ended.notify_all();
        drop(errands);
        let peers: Vec<_> = self.peers.lock().values().cloned().collect();
        for peer in &peers {
            // Whoever looks after dead lanes waits, or sees that it should quit.
            drop(peer.dead.lock());
            peer.fence_wanted.notify_all();
        }
        let end = after(QUIT_BUDGET);
        let mut errands = self.errands.lock();
        while *errands > 0 && !self.errand_ended.wait_until(&mut errands, end).timed_out() {}
        drop(errands);
        let loud = |peer: &&Arc<PeerLanes>| peer.loud.load(Ordering::Acquire) > 0;
        if let Some(lane) = self.poller.lanes().first() {
            return Err(Error::Unreachable {
                segment: lane.peer().to_string(),
                message: "somebody still receives on a lane to it".to_owned(),
            });
        }
        match peers.iter().find(loud) {
            Some(peer) => Err(Error::Unreachable {
                segment: peer.id.to_string(),
                message: "it has not confirmed that nothing lands any more".to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// Work that [`Peers::until_quiet`] waits for.
struct Errand(Arc<Peers>);

impl Drop for Errand {
    fn drop(&mut self) {
        *self.0.errands.lock() -= 1;
        self.0.errand_ended.notify_all();
    }
}

impl PeerLanes {
    /// Somebody waits for a lane until then.
    fn warm_until(&self, end: Instant) {
        let mut until = self.warming_until.lock();
        *until = (*until).max(Some(end));
    }

    fn is_warming(&self) -> bool {
        let until = *self.warming_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Another lane is connected.
    fn has_other(&self, than: &Lane) -> bool {
        let connected = |lane: &SharedLane| lane.socket().is_some() && !lane.is_cut();
        let lanes = self.lanes.lock();
        lanes
            .iter()
            .any(|lane| lane.id() != than.id() && connected(lane))
    }

    /// There is nothing to say of it that is not true of a peer that was never met.
    fn is_idle(&self) -> bool {
        self.lanes.lock().is_empty()
            && self.loud.load(Ordering::Acquire) == 0
            && self.dial.lock().bar().is_none()
    }

    fn settled(&self) {
        self.loud.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }
}

/// All `lanes` to a peer are broken, and of no broken one writes may still land.
pub(super) fn are_quiet(lanes: &[SharedLane], loud: &AtomicU64) -> bool {
    // In this order: who retires a lane counts it as loud before it breaks.
    lanes.iter().all(|lane| lane.is_broken()) && loud.load(Ordering::Acquire) == 0
}

pub(super) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use super::*;
    use crate::transport::TaskSlab;

    #[test]
    fn peers_to_which_nothing_goes_are_forgotten_when_they_are_many() {
        let me = Incarnation::random();
        let poller = Poller::new(1).unwrap();
        let tasks = Arc::new(TaskSlab::with_failovers(0));
        let peers = Peers::new(me, tasks, TcpConfig::default(), poller);
        let met = || {
            let endpoint = (
                super::super::link::NAME.to_owned(),
                "127.0.0.1:1".to_owned(),
            );
            let peer = Peer::new(Incarnation::random(), vec![endpoint]);
            peers.entry(&peer).unwrap()
        };
        let (held, loud) = (met(), met());
        loud.loud.fetch_add(1, Ordering::AcqRel);
        let loud = loud.id;
        for _ in 0..20 * IDLE_PEERS {
            met();
        }
        let kept = peers.peers.lock();
        assert!(kept.len() < 4 * IDLE_PEERS, "{}", kept.len());
        assert!(kept.contains_key(&held.id) && kept.contains_key(&loud));
    }

    #[test]
    fn law_03_what_is_dead_is_fenced_though_there_was_no_thread_at_first() {
        let poller = Poller::new(1).unwrap();
        let tasks = Arc::new(TaskSlab::with_failovers(0));
        let peers = Peers::new(Incarnation::random(), tasks, TcpConfig::default(), poller);
        peers.poller().start(&peers).unwrap();
        let endpoint = (
            super::super::link::NAME.to_owned(),
            "127.0.0.1:1".to_owned(),
        );
        let peer = Peer::new(Incarnation::random(), vec![endpoint]);
        let peer = peers.entry(&peer).unwrap();
        peer.loud.fetch_add(1, Ordering::AcqRel);
        peer.dead.lock().lanes.push(DeadLane {
            id: 1,
            writes: Vec::new(),
            quiet_at: Some(Instant::now()),
        });
        peers.no_thread.store(true, Ordering::Release);
        peers.begin_fencing(&peer);
        assert!(!peer.dead.lock().fencing);
        let end = after(Duration::from_secs(20));
        while peer.loud.load(Ordering::Acquire) > 0 {
            assert!(Instant::now() < end, "nobody looks after it");
            thread::sleep(Duration::from_millis(5));
        }
        peers.until_quiet(end).unwrap();
        peers.poller().stop();
    }
}
