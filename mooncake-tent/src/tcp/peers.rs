//! The peers that this process reaches over TCP, with their lanes.

use std::{
    io::{self, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
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
    lane::{Lane, Receiver, SharedLane},
    poller::Poller,
    socket::{connect, read_whole},
    wire::{
        ANSWER_BYTES, AnswerHeader, HELLO_BYTES, Hello, HelloAnswer, RequestHeader, Status, Verb,
        Welcome,
    },
};
use crate::{
    error::{Error, Reason},
    identity::{Generation, Incarnation, PeerId, RegistrationId},
    platform::after,
    transport::{Peer, TaskRef, Tasks},
};

pub(super) type Lanes = SmallVec<[SharedLane; 2]>;

/// How long a fence waits for the target in one try.
const FENCE_BUDGET: Duration = Duration::from_secs(2);
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
}

/// The lanes to one peer.
#[derive(Debug)]
pub(super) struct PeerLanes {
    id: PeerId,
    endpoint: String,
    lanes: Mutex<Lanes>,
    /// Broken lanes whose writes may still land.
    loud: AtomicU64,
    changed: Notify,
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

    /// The lanes to `peer`, replaced where they broke. New ones connect in the background.
    pub(super) fn lanes(&self, peer: &Peer) -> Result<Lanes, Reason> {
        let endpoint = peer
            .endpoint(super::link::NAME)
            .ok_or_else(|| Reason::Unreachable("it names no TCP address".into()))?;
        let entry = {
            let mut peers = self.peers.lock();
            let entry = peers.entry(peer.id()).or_insert_with(|| {
                Arc::new(PeerLanes {
                    id: peer.id(),
                    endpoint: endpoint.to_owned(),
                    lanes: Mutex::default(),
                    loud: AtomicU64::new(0),
                    changed: Notify::new(),
                })
            });
            Arc::clone(entry)
        };
        let mut lanes = entry.lanes.lock();
        // Under the lock: who stops us takes it afterwards and finds what we open.
        if self.stopped.load(Ordering::Acquire) {
            return Err(Reason::Stopped);
        }
        // One that is cut stays on the list until it is retired, for whoever fences.
        let usable = |lane: &&SharedLane| !lane.is_cut() && !lane.is_broken();
        let mut usable: Lanes = lanes.iter().filter(usable).cloned().collect();
        while usable.len() < self.config.lanes_per_peer.max(1) {
            let lane = self.open(&entry)?;
            lanes.push(Arc::clone(&lane));
            usable.push(lane);
        }
        Ok(usable)
    }

    fn open(&self, peer: &Arc<PeerLanes>) -> Result<SharedLane, Reason> {
        let lane = Arc::new(Lane::new(
            self.next_lane.fetch_add(1, Ordering::Relaxed),
            peer.id,
            Arc::clone(&self.tasks),
            self.config.window,
            self.config.spin,
        ));
        self.poller.adopt(&lane);
        let (peer, opened) = (Arc::clone(peer), Arc::clone(&lane));
        let errand = self.errand("tcp-connect", move |peers| {
            match peers.connect(&peer, opened.id(), || opened.is_cut()) {
                Ok(socket) => {
                    opened.connected(socket);
                    peers.poller.add(&opened);
                    peers.poller.watch(&opened);
                }
                Err(reason) => {
                    let reason = opened.why().unwrap_or(reason);
                    let mut receiver = opened.receiver();
                    peers.retire(&opened, &mut receiver, &reason);
                }
            }
            peer.changed.notify_waiters();
        });
        if let Err(error) = errand {
            self.poller.remove(&lane);
            return Err(Reason::Unreachable(format!("no thread: {error}").into()));
        }
        Ok(lane)
    }

    /// Runs `work` on a thread of its own that [`until_quiet`](Self::until_quiet) waits for.
    fn errand(&self, name: &str, work: impl FnOnce(&Self) + Send + 'static) -> io::Result<()> {
        let errand = self.begin_errand();
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
        gives_up: impl Fn() -> bool,
    ) -> Result<TcpStream, Reason> {
        let gives_up = || gives_up() || self.quit.load(Ordering::Acquire);
        let unreachable =
            |error: io::Error| Reason::Unreachable(format!("{}: {error}", peer.endpoint).into());
        let address = peer
            .endpoint
            .to_socket_addrs()
            .map_err(unreachable)?
            .next()
            .ok_or_else(|| unreachable(io::ErrorKind::AddrNotAvailable.into()))?;
        let end = after(self.config.connect_timeout);
        let mut socket = connect(address, end, gives_up).map_err(unreachable)?;
        socket.set_nodelay(true).map_err(unreachable)?;
        let hello = Hello {
            initiator: self.incarnation,
            target: peer.id,
            lane,
            window: u32::try_from(self.config.window).unwrap_or(u32::MAX),
        };
        socket.write_all(&hello.encode()).map_err(unreachable)?;
        let mut answer = [0; HELLO_BYTES];
        read_whole(&socket, &mut answer, end, gives_up).map_err(unreachable)?;
        let answer = HelloAnswer::decode(&answer)
            .map_err(|what| Reason::Protocol(what.to_string().into()))?;
        match answer.welcome {
            Welcome::Accepted if answer.target == peer.id => {}
            Welcome::Accepted | Welcome::OtherIncarnation => return Err(Reason::OtherIncarnation),
            Welcome::Full => return Err(Reason::Unreachable("it takes no more lanes".into())),
        }
        socket.set_read_timeout(None).map_err(unreachable)?;
        Ok(socket)
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
        let peer = peer.expect("a lane's peer is never forgotten");
        // Counted before any task ends, so that whoever sees the end and asks for a fence waits.
        peer.loud.fetch_add(1, Ordering::AcqRel);
        let loud = lane.fail(receiver, reason);
        // Its socket is closed once nobody uses it any more.
        peer.lanes.lock().retain(|other| other.id() != lane.id());
        if loud.is_empty() {
            peer.settled();
            return;
        }
        let lane = lane.id();
        let errand = self.errand("tcp-fence", move |peers| {
            if peers.fence_lane(&peer, lane, &loud) {
                peer.settled();
            }
        });
        if let Err(error) = errand {
            tracing::warn!(%error, lane, "writes of a broken lane stay quarantined: no thread");
        }
    }

    /// Tries until the target confirms that the lane's reader has ended, or is another process.
    /// `false`: neither could be learned.
    fn fence_lane(&self, peer: &PeerLanes, lane: u64, loud: &[TaskRef]) -> bool {
        let mut pause = Duration::from_millis(10);
        while !self.quit.load(Ordering::Acquire) {
            match self.ask_for_fence(peer, lane) {
                Ok(()) | Err(Reason::OtherIncarnation) => {
                    for task in loud {
                        self.tasks.settle(*task);
                    }
                    return true;
                }
                Err(reason) => {
                    tracing::debug!(peer = %peer.id, lane, %reason, "a fence is not proven yet");
                }
            }
            let mut errands = self.errands.lock();
            if !self.quit.load(Ordering::Acquire) {
                self.errand_ended.wait_for(&mut errands, pause);
            }
            drop(errands);
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        tracing::warn!(
            peer = %peer.id, lane, writes = loud.len(),
            "writes of a broken lane stay quarantined: the target never confirmed their end"
        );
        false
    }

    fn ask_for_fence(&self, peer: &PeerLanes, lane: u64) -> Result<(), Reason> {
        let errand = self.next_lane.fetch_add(1, Ordering::Relaxed);
        let mut socket = self.connect(peer, errand, || false)?;
        let broken = |error: io::Error| Reason::Broken(error.to_string().into());
        let request = RequestHeader {
            verb: Verb::Fence,
            budget_us: FENCE_BUDGET.as_micros() as u32,
            tag: 0,
            registration: RegistrationId(lane),
            generation: Generation(0),
            offset: 0,
            length: 0,
        };
        socket.write_all(&request.encode()).map_err(broken)?;
        let mut answer = [0; ANSWER_BYTES];
        let end = after(FENCE_BUDGET + self.config.connect_timeout);
        let gives_up = || self.quit.load(Ordering::Acquire);
        read_whole(&socket, &mut answer, end, gives_up).map_err(broken)?;
        match AnswerHeader::decode(&answer) {
            Ok(answer) if answer.status == Status::Applied => Ok(()),
            Ok(_) => Err(Reason::Broken("the lane's reader still runs".into())),
            Err(what) => Err(Reason::Protocol(what.to_string().into())),
        }
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
            let quiet = peer.loud.load(Ordering::Acquire) == 0;
            if quiet && lanes.iter().all(|lane| lane.is_broken()) {
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
        let lanes = self.lanes(peer)?;
        let entry = self.peers.lock().get(&peer.id()).cloned();
        let entry = entry.expect("its lanes were just made");
        loop {
            let changed = entry.changed.notified();
            if lanes.iter().any(|lane| lane.is_broken()) {
                return Err(Reason::Unreachable(
                    format!("{}: no connection", entry.endpoint).into(),
                ));
            }
            if lanes.iter().all(|lane| lane.socket().is_some()) {
                return Ok(());
            }
            let left = budget.saturating_sub(start.elapsed());
            if tokio::time::timeout(left, changed).await.is_err() {
                let what = format!("{}: no connection within {budget:?}", entry.endpoint);
                return Err(Reason::Unreachable(what.into()));
            }
        }
    }

    /// Ends all lanes, now and for good. What was under way on them fails.
    pub(super) fn cut_all(&self) {
        self.stopped.store(true, Ordering::Release);
        let peers: Vec<_> = self.peers.lock().values().cloned().collect();
        for peer in peers {
            // Whoever opens lanes now has the lock, or sees that we stop.
            drop(peer.lanes.lock());
        }
        for lane in self.poller.lanes() {
            lane.cut(Reason::Stopped);
            let mut receiver = lane.receiver();
            self.retire(&lane, &mut receiver, &Reason::Stopped);
        }
    }

    /// Waits for proof that no write of the lanes that were cut can land.
    pub(super) fn until_quiet(&self, end: Instant) -> Result<(), Error> {
        let mut errands = self.errands.lock();
        while *errands > 0 && !self.errand_ended.wait_until(&mut errands, end).timed_out() {}
        self.quit.store(true, Ordering::Release);
        self.errand_ended.notify_all();
        let end = after(QUIT_BUDGET);
        while *errands > 0 && !self.errand_ended.wait_until(&mut errands, end).timed_out() {}
        drop(errands);
        let peers = self.peers.lock();
        let loud = |peer: &&Arc<PeerLanes>| peer.loud.load(Ordering::Acquire) > 0;
        match peers.values().find(loud) {
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
    fn settled(&self) {
        self.loud.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }
}

pub(super) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}
