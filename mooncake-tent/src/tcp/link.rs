//! The link as the engine sees it.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use super::{
    TcpConfig,
    lane::{Post, Received, Receiver, SharedLane, overdue},
    peers::{Lanes, Peers},
    poller::Poller,
    target::Target,
    wire::{Extension, Flags, Verb},
};
use crate::{
    error::{Error, Reason, Result, Stage, TransferError},
    identity::{PeerId, RegistrationId},
    memory::{LocalBuffer, LocalSlice, checksum},
    platform::after,
    sync::MutexGuard,
    transport::{
        Attachment, BoxFuture, Capabilities, Claim, InstallContext, LinkGauges, Op, Outcome, Peer,
        Posting, SubBatch, TaskRef, Tasks, Transport,
    },
};

pub(super) const NAME: &str = "tcp";

/// Writes go to one lane up to here, then to the least loaded …
const LANE_SHARE: u64 = 1 << 20;
/// … and reads up to here: who receives all of one stream on another processor than its sender's is
/// always close behind it, and both wait for each other's cache lines.
const READ_SHARE: u64 = 512 << 10;

/// A request is not cut into smaller ones, however little credit there is.
const LEAST_PIECE: u64 = 16 << 10;

/// What goes to one lane before the next has its turn.
fn lane_share(verb: Verb) -> u64 {
    match verb {
        Verb::Read => READ_SHARE,
        Verb::Write | Verb::Fence | Verb::GiveBack => LANE_SHARE,
    }
}

/// With so much to do a lane is worth a thread of its own.
fn thread_share(reads: bool) -> u64 {
    match reads {
        true => READ_SHARE * 3 / 4,
        false => LANE_SHARE,
    }
}

/// Moves bytes over TCP. See the [module](crate::tcp).
#[derive(Clone)]
pub struct TcpTransport {
    config: TcpConfig,
    installed: Arc<OnceLock<Installed>>,
}

struct Installed {
    tasks: Tasks,
    peers: Arc<Peers>,
    target: Option<Target>,
}

impl TcpTransport {
    /// A link with these settings.
    pub fn new(config: TcpConfig) -> Self {
        Self {
            config,
            installed: Arc::default(),
        }
    }

    fn installed(&self) -> Result<&Installed> {
        self.installed.get().ok_or_else(|| Error::Install {
            link: NAME,
            message: "it is not installed".to_owned(),
        })
    }
}

impl Default for TcpTransport {
    fn default() -> Self {
        Self::new(TcpConfig::default())
    }
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpTransport")
            .field("config", &self.config)
            .field("endpoint", &self.endpoint())
            .finish_non_exhaustive()
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            target_applies: true,
            cancellation: true,
            receipts: true,
            ..Capabilities::read_write()
        }
    }

    fn install(&self, engine: InstallContext) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let poller = Poller::new(self.config.threads).map_err(Error::system("tcp: epoll"))?;
            let listen = self.config.listen;
            let target = listen.map(|listen| Target::start(listen, &self.config, &engine));
            let target = target.transpose()?;
            let peers = Peers::new(
                engine.incarnation,
                Arc::clone(&engine.tasks),
                self.config.clone(),
                poller,
            );
            // Its end is the end of all of it, also if it does not get further.
            let installed = Installed {
                tasks: engine.tasks,
                peers,
                target,
            };
            let peers = &installed.peers;
            let started = peers.poller().start(peers);
            started.map_err(Error::system("tcp: no thread"))?;
            self.installed.set(installed).map_err(|_| Error::Install {
                link: NAME,
                message: "it serves another engine already".to_owned(),
            })
        })
    }

    fn claims(&self) -> Vec<Claim> {
        self.config.listen.map(Claim::Address).into_iter().collect()
    }

    fn endpoint(&self) -> Option<String> {
        let installed = self.installed.get()?;
        let target = installed.target.as_ref()?;
        let listening = || target.address().to_string();
        Some(self.config.advertise.clone().unwrap_or_else(listening))
    }

    fn uninstall(&self, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let Ok(installed) = self.installed() else {
                return Ok(());
            };
            installed.stop(budget)
        })
    }

    fn add_memory_buffer<'a>(
        &'a self,
        _buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, Result<Attachment>> {
        // Requests find buffers in the engine's table; there is nothing to prepare.
        Box::pin(async { self.installed().map(|_| Attachment::Attached) })
    }

    fn remove_memory_buffer(&self, _id: RegistrationId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn allocate_sub_batch(&self, _capacity: usize) -> Result<Box<dyn SubBatch>> {
        let installed = self.installed()?;
        Ok(Box::new(TcpSubBatch {
            tasks: Arc::clone(&installed.tasks),
            peers: Arc::clone(&installed.peers),
            carriers: Mutex::default(),
            plan: Mutex::default(),
        }))
    }

    fn reaches(&self, peer: &Peer) -> bool {
        peer.endpoint(NAME).is_some()
    }

    fn warm_up<'a>(&'a self, peer: &'a Arc<Peer>, budget: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let warm = self.installed()?.peers.warm_up(peer, budget).await;
            warm.map_err(|reason| Error::Unreachable {
                segment: peer.id().to_string(),
                message: reason.to_string(),
            })
        })
    }

    fn fence(&self, peer: PeerId, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let fenced = self.installed()?.peers.fence(peer, budget).await;
            fenced.map_err(|after| Error::Unreachable {
                segment: peer.to_string(),
                message: format!("it has not confirmed the fence after {after:?}"),
            })
        })
    }

    fn estimated_bandwidth(&self) -> Option<f64> {
        None
    }

    fn gauges(&self) -> LinkGauges {
        let Some(installed) = self.installed.get() else {
            return LinkGauges::default();
        };
        let accepted = installed.target.as_ref().map(Target::gauges);
        let mut gauges = accepted.unwrap_or_default();
        let lanes = installed.peers.poller().lanes();
        gauges.connections += lanes.len() as u64;
        gauges.waiting_for_credit = lanes.iter().filter(|lane| lane.is_broke()).count() as u64;
        gauges
    }
}

impl Installed {
    fn stop(&self, budget: Duration) -> Result<()> {
        let end = after(budget);
        self.peers.cut_all(end);
        let accepted = self
            .target
            .as_ref()
            .map_or(Ok(()), |target| target.stop(budget));
        let quiet = self.peers.until_quiet(end);
        self.peers.poller().stop();
        accepted.and(quiet)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        if let Err(error) = self.stop(Duration::from_secs(1)) {
            tracing::warn!(%error, "the TCP link did not stop");
        }
    }
}

/// The lanes that carry one batch.
#[derive(Debug)]
struct TcpSubBatch {
    tasks: Tasks,
    peers: Arc<Peers>,
    carriers: Mutex<SmallVec<[Carrier; 2]>>,
    plan: Mutex<Plan>,
}

/// What a submission is made with, and leaves for the next one of the same batch.
#[derive(Debug, Default)]
struct Plan {
    /// For the lane whose turn it is; empty between submissions.
    posts: Vec<Post>,
    /// The last lane that was given something, and how much in its turn.
    last: Option<(u64, u64)>,
}

/// A lane of a batch.
#[derive(Clone, Debug)]
struct Carrier {
    lane: SharedLane,
    /// It has so much to do that a thread of the link does it, beside whoever waits.
    given: bool,
}

impl TcpSubBatch {
    /// Adds what `task` asks to what the lane whose turn it is will be given.
    fn plan(&self, task: TaskRef, spec: Posting, turn: &mut Turn, posts: &mut Vec<Post>) {
        let flags = Flags {
            tells: spec.receipt.op_id.is_some(),
            checked: spec.receipt.checksum || self.peers.config().checksums,
        };
        let whole = Post {
            task,
            verb: match spec.op {
                Op::Read => Verb::Read,
                Op::Write => Verb::Write,
            },
            flags,
            extension: Extension {
                op_id: spec.receipt.op_id.unwrap_or_default(),
                payload: 0,
            },
            local: spec.local,
            registration: spec.registration,
            generation: spec.generation,
            offset: spec.offset,
            length: spec.length,
            deadline: spec.deadline,
            single: false,
        };
        let slices = spec.length.div_ceil(self.piece(turn));
        // One that tells is told of as a whole: its last byte is that of its only request.
        if slices == 1 || flags.tells {
            return self.add(whole, turn, posts);
        }
        self.tasks
            .split(task, u32::try_from(slices).unwrap_or(u32::MAX));
        let at = |i: u64| (u128::from(spec.length) * u128::from(i) / u128::from(slices)) as u64;
        for i in 0..slices {
            let (start, end) = (at(i), at(i + 1));
            let part = Post {
                local: cut(&whole.local, start, end),
                offset: whole.offset + start,
                length: end - start,
                ..whole
            };
            self.add(part, turn, posts);
        }
    }

    /// The most bytes of one request, which suit its lane.
    fn piece(&self, turn: &Turn) -> u64 {
        let most = self.peers.config().slice_bytes.max(1);
        let piece = turn.lanes[turn.current].piece();
        piece.max(LEAST_PIECE).min(most)
    }

    fn add(&self, mut post: Post, turn: &mut Turn, posts: &mut Vec<Post>) {
        if post.flags.checked && post.verb == Verb::Write {
            post.extension.payload = checksum(&post.local, 0);
        }
        if turn.is_over(post.verb) {
            Self::post(turn, posts);
            turn.pass_on();
        }
        turn.given += post.length;
        posts.push(post);
    }

    /// Queues what was planned for the lane whose turn it is.
    fn post(turn: &Turn, posts: &mut Vec<Post>) {
        turn.lanes[turn.current].post_or_end(posts);
    }

    /// Has `used` lanes send what was posted on them.
    fn carry(&self, used: Lanes, reads: bool) {
        let mut carriers = self.carriers.lock();
        for lane in used {
            if !carriers.iter().any(|known| known.lane.id() == lane.id()) {
                carriers.push(Carrier { lane, given: false });
            }
        }
        // Whoever waits serves one lane, and those that have little to do.
        let mut first = true;
        let enough = thread_share(reads);
        for carrier in &mut *carriers {
            let much = carrier.lane.load() >= enough && carrier.lane.socket().is_some();
            carrier.given = much && !std::mem::take(&mut first);
            if carrier.given {
                self.peers.poller().take_over(&carrier.lane);
            }
        }
        for carrier in carriers.iter().filter(|carrier| !carrier.given) {
            carrier.lane.flush();
        }
    }

    fn lanes_of(&self, peer: &Peer) -> Result<Lanes, TransferError> {
        self.peers
            .lanes(peer)
            .map_err(|reason| TransferError::unstarted(reason, Stage::Connect, Some(peer.id())))
    }
}

/// How a task ends that need not be posted at all.
fn hopeless(spec: &Posting, now: Instant) -> Option<Outcome> {
    if spec.offset.checked_add(spec.length).is_none() {
        let peer = Some(spec.peer);
        let error = TransferError::unstarted(Reason::OutOfBounds, Stage::Admit, peer);
        return Some(Outcome::Failed(error));
    }
    let late = spec.deadline.is_some_and(|end| end <= now);
    late.then(|| Outcome::timed_out(Stage::Post, spec.peer))
}

/// The part `start..end` of scattered memory.
pub(super) fn cut(local: &[LocalSlice], start: u64, end: u64) -> SmallVec<[LocalSlice; 1]> {
    if let [only] = local {
        return SmallVec::from_buf([only.part(start..end)]);
    }
    let mut parts = SmallVec::new();
    let mut before = 0;
    for slice in local {
        let from = start.max(before) - before;
        let to = end.min(before + slice.len()).saturating_sub(before);
        if from < to {
            parts.push(slice.part(from..to));
        }
        before += slice.len();
    }
    parts
}

/// Whose turn it is to take the next requests of a batch.
struct Turn {
    lanes: Lanes,
    current: usize,
    given: u64,
}

impl Turn {
    /// Goes on with the lane that was `last` and what it was given.
    fn new(lanes: Lanes, last: Option<(u64, u64)>) -> Self {
        let known = last.and_then(|(id, given)| {
            let current = lanes.iter().position(|lane| lane.id() == id)?;
            Some((current, given))
        });
        let (current, given) = known.unwrap_or_default();
        let mut turn = Self {
            lanes,
            current,
            given,
        };
        if known.is_none() {
            turn.pass_on();
        }
        turn
    }

    fn is_over(&self, next: Verb) -> bool {
        self.given >= lane_share(next)
    }

    /// It is the turn of whoever has least to do.
    fn pass_on(&mut self) {
        let loads = self.lanes.iter().map(|lane| lane.load()).enumerate();
        let (least, _) = loads
            .min_by_key(|(_, load)| *load)
            .expect("a peer has a lane");
        (self.current, self.given) = (least, 0);
    }
}

impl SubBatch for TcpSubBatch {
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> Result<()> {
        let mut turn: Option<(PeerId, Turn)> = None;
        let mut used = Lanes::new();
        let mut reads = true;
        let now = Instant::now();
        let Plan { mut posts, last } = std::mem::take(&mut *self.plan.lock());
        for task in tasks {
            let Some(spec) = self.tasks.posting(*task) else {
                continue;
            };
            if let Some(end) = hopeless(&spec, now) {
                self.tasks.finish(*task, end, true);
                continue;
            }
            if turn.as_ref().is_none_or(|(peer, _)| *peer != spec.peer) {
                let Some(whole) = self.tasks.spec(*task) else {
                    continue;
                };
                match self.lanes_of(&whole.peer) {
                    Ok(lanes) => {
                        if let Some((_, before)) = &turn {
                            Self::post(before, &mut posts);
                        }
                        used.extend(lanes.iter().cloned());
                        turn = Some((spec.peer, Turn::new(lanes, last)));
                    }
                    Err(error) => {
                        self.tasks.finish(*task, Outcome::Failed(error), true);
                        continue;
                    }
                }
            }
            let (_, turn) = turn.as_mut().expect("it was just made");
            reads &= spec.op == Op::Read;
            self.plan(*task, spec, turn, &mut posts);
        }
        let last = turn.map(|(_, turn)| {
            Self::post(&turn, &mut posts);
            (turn.lanes[turn.current].id(), turn.given)
        });
        *self.plan.lock() = Plan { posts, last };
        self.carry(used, reads);
        Ok(())
    }

    fn cancel_transfer_task(&self, task: TaskRef) {
        let Some(spec) = self.tasks.spec(task) else {
            return;
        };
        // All of the peer's lanes: a retry may have brought it onto others than the batch's.
        for lane in self.peers.lanes_now(spec.peer.id()) {
            lane.cancel(task);
        }
    }

    fn drive(&self, budget: Duration) -> bool {
        let carriers = self.carriers.lock().clone();
        let mut driven = Driven::new();
        for Carrier { lane, given } in &carriers {
            if *given || lane.socket().is_none() || lane.is_broken() || !lane.is_busy() {
                continue;
            }
            match lane.try_receiver() {
                Some(receiver) => driven.push((lane, receiver)),
                // Whoever receives may sleep while the socket takes our frames again.
                None if lane.flush() => self.peers.poller().watch(lane),
                None => {}
            }
        }
        !driven.is_empty() && drive(&self.peers, &mut driven, budget)
    }

    fn recycle(&mut self) -> bool {
        self.carriers.get_mut().clear();
        self.plan.get_mut().last = None;
        true
    }

    fn hand_over(&self) {
        for Carrier { lane, .. } in &*self.carriers.lock() {
            if !lane.is_broken() && lane.is_busy() {
                self.peers.poller().watch(lane);
            }
        }
    }
}

/// Lanes whose receiving end the calling thread has.
type Driven<'a> = SmallVec<[(&'a SharedLane, MutexGuard<'a, Receiver>); 2]>;

/// Looks, and if nothing moves sleeps once. `true`: the caller looks whether what it waits for has
/// ended, by our hand or another's, and comes back.
fn drive(peers: &Peers, driven: &mut Driven<'_>, budget: Duration) -> bool {
    let start = Instant::now();
    // One lane's experience serves for all of them.
    let mut spin = driven[0].1.spin;
    let moved = spin.until(|| move_once(peers, driven).then_some(()));
    driven[0].1.spin = spin;
    if moved.is_some() {
        return true;
    }
    let left = budget.saturating_sub(start.elapsed());
    if left.is_zero() {
        return true;
    }
    sleep(driven, left);
    if !move_once(peers, driven) {
        let now = Instant::now();
        for (lane, receiver) in driven.iter_mut() {
            if lane.end_overdue(now) || receiver.is_overdue(|| now) {
                peers.retire(lane, receiver, &overdue());
            }
        }
    }
    true
}

fn move_once(peers: &Peers, driven: &mut Driven<'_>) -> bool {
    let mut moved = false;
    for (lane, receiver) in driven.iter_mut() {
        lane.flush();
        match lane.receive(receiver) {
            Ok(Received::Nothing) => {}
            Ok(Received::Answers) => {
                peers.even_out(lane);
                moved = true;
            }
            Ok(Received::Bytes) => moved = true,
            Err(reason) => {
                peers.retire(lane, receiver, &reason);
                moved = true;
            }
        }
    }
    moved
}

fn sleep(driven: &Driven<'_>, most: Duration) {
    let mut sockets: SmallVec<[PollFd<'_>; 2]> = driven
        .iter()
        .filter_map(|(lane, _)| {
            let mut events = PollFlags::IN;
            if lane.try_flush() != Some(false) {
                events |= PollFlags::OUT;
            }
            Some(PollFd::new(lane.socket()?, events))
        })
        .collect();
    let most = most.min(Duration::from_millis(50));
    let timeout = Timespec::try_from(most).expect("at most 50 ms");
    // Whether it was woken, interrupted or timed out: the caller looks again.
    let _woken = poll(&mut sockets, Some(&timeout));
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use super::*;
    use crate::{
        identity::Generation,
        tcp::lane::{Lane, PeerLoad},
        transport::TaskSlab,
    };

    fn post(length: u64) -> Post {
        Post {
            task: TaskRef::NONE,
            verb: Verb::Read,
            local: SmallVec::new(),
            registration: RegistrationId(1),
            generation: Generation(1),
            offset: 0,
            length,
            deadline: None,
            flags: Flags::default(),
            extension: Extension::default(),
            single: false,
        }
    }

    #[test]
    fn a_batch_that_comes_in_portions_stays_on_a_lane_for_its_share() {
        let tasks: Tasks = Arc::new(TaskSlab::new());
        let (config, load) = (TcpConfig::default(), Arc::<PeerLoad>::default());
        let peer = PeerId::from_u64(1).unwrap();
        let lane = |id| Lane::new(id, peer, Arc::clone(&tasks), &config, Arc::clone(&load));
        let lanes: Lanes = (1..=2).map(|id| Arc::new(lane(id))).collect();
        let portion = |last, bytes| {
            let mut turn = Turn::new(lanes.clone(), last);
            if turn.is_over(Verb::Read) {
                turn.pass_on();
            }
            let lane = &turn.lanes[turn.current];
            assert!(lane.post(&mut vec![post(bytes)]));
            turn.given += bytes;
            Some((lane.id(), turn.given))
        };
        let half = READ_SHARE / 2;
        let first = portion(None, half);
        assert_eq!(first, Some((1, half)));
        let second = portion(first, half);
        assert_eq!(second, Some((1, READ_SHARE)));
        assert_eq!(portion(second, half), Some((2, half)), "its share is full");
        // Another batch goes where there is least to do, and so does one whose lane has gone.
        assert_eq!(portion(None, half), Some((2, half)));
        assert_eq!(portion(Some((3, 0)), 1), Some((1, 1)));
    }
}
