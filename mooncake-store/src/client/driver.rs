//! Runs the core: hands it what happens, and does what it says.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mooncake_tent::{Batch, LocalSlice, Segment, TransferEngine, transport::Op};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot, watch},
    task::AbortHandle,
};

use super::{
    asked::Asked,
    attendant::{Attendant, Posted},
    disk_read::{DiskRead, Holders},
    scratch::{Loan, Scratch},
    transfer::{Transfer, front, result, unposted},
};
use crate::{
    Retry,
    core::{Action, ClientCore, Event, OpId, Outcome, SegmentInfo, TransferId},
    master::{MasterClient, SessionEvent},
    time::{Clock, Time},
};

/// How long a segment's owner may take to describe it, at most.
const OPEN_BUDGET: Duration = Duration::from_secs(1);

/// The local side of one item of an operation.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Memory of the caller.
    Given(SmallVec<[LocalSlice; 1]>),
    /// Memory that is lent once the length is known.
    Lent(Option<Loan>),
}

/// What an operation came to.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) outcome: Outcome,
    pub(super) places: Vec<Place>,
}

/// See the module. Whoever brings an event does what follows from it.
#[derive(Debug)]
pub(super) struct Driver {
    inner: Mutex<Inner>,
    pub(super) master: MasterClient,
    pub(super) engine: Arc<dyn TransferEngine>,
    scratch: Arc<Scratch>,
    segments: Mutex<FxHashMap<String, Segment>>,
    pub(super) holders: Holders,
    /// Where transfers are that have been posted and have not ended.
    pub(super) posted: Mutex<FxHashMap<TransferId, (Arc<Batch>, usize)>>,
    pub(super) runtime: Handle,
    /// When the timer wakes next, in the core's time.
    armed: AtomicU64,
    rearm: Arc<Notify>,
    idle: Notify,
    /// Who follows the process's own segment.
    follower: Mutex<Option<AbortHandle>>,
    pub(super) me: Weak<Self>,
}

#[derive(Debug)]
struct Inner {
    core: ClientCore,
    operations: FxHashMap<OpId, Running>,
}

#[derive(Debug)]
struct Running {
    places: Vec<Place>,
    done: oneshot::Sender<Finished>,
    /// Who waits for its transfers.
    attendant: Option<Arc<Attendant>>,
}

impl Driver {
    /// Starts to drive `core`; call it within a tokio runtime.
    pub(super) fn start(
        core: ClientCore,
        master: MasterClient,
        engine: Arc<dyn TransferEngine>,
    ) -> Arc<Self> {
        let driver = Arc::new_cyclic(|me| Self {
            inner: Mutex::new(Inner {
                core,
                operations: FxHashMap::default(),
            }),
            master,
            scratch: Scratch::new(Arc::clone(&engine)),
            engine,
            segments: Mutex::default(),
            holders: Holders::default(),
            posted: Mutex::default(),
            runtime: Handle::current(),
            armed: AtomicU64::new(Time::NEVER.0),
            rearm: Arc::default(),
            idle: Notify::new(),
            follower: Mutex::default(),
            me: Weak::clone(me),
        });
        let rearm = Arc::clone(&driver.rearm);
        driver.runtime.spawn(tick(Arc::downgrade(&driver), rearm));
        let me = Arc::downgrade(&driver);
        driver.master.listen(move |event| {
            let Some(driver) = me.upgrade() else {
                return false;
            };
            driver.heard(event);
            true
        });
        driver
    }

    /// Puts into the process's own segment, for as long as it lives.
    pub(super) fn follow(&self, life: watch::Receiver<Option<SegmentInfo>>) {
        let me = Weak::clone(&self.me);
        let task = self.runtime.spawn(stay_home(me, life));
        *self.follower.lock() = Some(task.abort_handle());
    }

    /// What was granted goes back, and what is known is forgotten.
    pub(super) fn withdraw(&self) {
        if let Some(follower) = self.follower.lock().take() {
            follower.abort();
        }
        self.home(None);
        let actions = {
            let mut inner = self.inner.lock();
            inner.core.keep_nothing(Clock.now());
            inner.drain()
        };
        self.act(actions);
    }

    fn heard(&self, event: &SessionEvent) {
        match event {
            SessionEvent::Invalidate(objects) => self.event(Event::Invalidated {
                objects: objects.clone(),
            }),
            SessionEvent::Lost | SessionEvent::Fenced(_) => self.event(Event::Lost),
            SessionEvent::Reclaim => self.event(Event::Reclaim),
            SessionEvent::Connected { .. } | SessionEvent::Missed(_) | SessionEvent::Nudge => {}
        }
    }

    fn home(&self, segment: Option<SegmentInfo>) {
        let actions = {
            let mut inner = self.inner.lock();
            let now = Clock.now();
            match segment {
                // Other clients of this session have numbers of their own: random ones, like
                // incarnations.
                Some(segment) => inner.core.lend(now, segment, rand::random::<u64>() >> 1),
                None => inner.core.withdraw(now),
            }
            inner.drain()
        };
        self.act(actions);
    }

    /// Waits until nothing is under way and all leases are given back, but not beyond the budget.
    pub(super) async fn settle(&self, budget: Duration) {
        let settled = async {
            loop {
                let idle = self.idle.notified();
                if self.inner.lock().core.is_idle() {
                    return;
                }
                idle.await;
            }
        };
        // What is not settled by then ends by the master's own deadlines.
        let _late = tokio::time::timeout(budget, settled).await;
    }

    pub(super) fn scratch(&self) -> &Arc<Scratch> {
        &self.scratch
    }

    /// Runs an operation, whose work is done by others than its caller.
    pub(super) fn run(&self, asked: Asked, budget: Duration) -> oneshot::Receiver<Finished> {
        let (finished, actions) = self.begin(asked, Clock.now() + budget, None);
        self.act(actions);
        finished
    }

    /// Starts an operation that ends at `end` at the latest; what is to be done first.
    pub(super) fn begin(
        &self,
        asked: Asked,
        end: Time,
        attendant: Option<Arc<Attendant>>,
    ) -> (oneshot::Receiver<Finished>, Actions) {
        let (done, finished) = oneshot::channel();
        let running = Running {
            places: asked.places,
            done,
            attendant,
        };
        let mut inner = self.inner.lock();
        let op = inner.core.start(Clock.now(), asked.operation, end);
        inner.operations.insert(op, running);
        (finished, inner.drain())
    }

    /// Tells the core what has happened; what follows from it.
    pub(super) fn handled(&self, events: impl IntoIterator<Item = Event>) -> Actions {
        let mut inner = self.inner.lock();
        let now = Clock.now();
        for event in events {
            inner.core.handle(now, event);
        }
        inner.drain()
    }

    pub(super) fn event(&self, event: Event) {
        self.act(self.handled([event]));
    }

    pub(super) fn act(&self, actions: Actions) {
        let (mut transfers, mut disk_reads) = (Vec::new(), Vec::new());
        for action in actions.list {
            match action {
                Action::CallMaster {
                    call,
                    request,
                    deadline,
                } => {
                    let me = Weak::clone(&self.me);
                    self.master.submit(request, deadline, move |answer| {
                        let Some(driver) = me.upgrade() else {
                            return;
                        };
                        driver.event(match answer {
                            Ok(answer) => Event::MasterAnswered { call, answer },
                            Err(fault) => Event::MasterFailed { call, fault },
                        });
                    });
                }
                Action::Read {
                    transfer,
                    op,
                    item,
                    location,
                    deadline,
                } => transfers.push(Transfer {
                    id: transfer,
                    op,
                    item,
                    direction: Op::Read,
                    location,
                    deadline,
                }),
                Action::ReadDisk {
                    transfer,
                    op,
                    item,
                    place,
                    deadline,
                } => disk_reads.push(DiskRead::new((transfer, op, item), place, deadline)),
                Action::Write {
                    transfer,
                    op,
                    item,
                    location,
                    deadline,
                } => transfers.push(Transfer {
                    id: transfer,
                    op,
                    item,
                    direction: Op::Write,
                    location,
                    deadline,
                }),
                Action::Finish { op, outcome } => self.finish(op, outcome),
                // Whatever comes of it, the end is reported when it comes.
                Action::Cancel { transfer } => {
                    let posted = self.posted.lock().get(&transfer).cloned();
                    if let Some((batch, index)) = posted {
                        batch.cancel(index);
                    }
                }
            }
        }
        if let Some(next) = actions.next {
            self.arm(next);
        }
        if actions.idle {
            self.idle.notify_waiters();
        }
        if !transfers.is_empty() {
            self.transfer(transfers);
        }
        if !disk_reads.is_empty() {
            self.read_disks(disk_reads);
        }
    }

    fn finish(&self, op: OpId, outcome: Outcome) {
        let running = self.inner.lock().operations.remove(&op);
        let running = running.expect("an operation finishes once");
        let finished = Finished {
            outcome,
            places: running.places,
        };
        // Whoever asked may have lost interest.
        let _uninterested = running.done.send(finished);
    }

    /// Posts at once what can be; the rest waits for segments to be opened or memory to be made.
    fn transfer(&self, transfers: Vec<Transfer>) {
        let homeless = transfers.iter().filter(|it| self.local(it).is_none());
        let homeless: Vec<_> = homeless.collect();
        if !homeless.is_empty()
            && let Some(loans) = self.scratch.lend_idle(&lengths(&homeless))
        {
            self.house(&homeless, loans);
        }
        let (ready, waiting): (Vec<_>, Vec<_>) = transfers
            .into_iter()
            .partition(|transfer| self.is_ready(transfer));
        if !ready.is_empty() {
            self.post(ready);
        }
        if !waiting.is_empty() {
            let driver = self.me.upgrade().expect("whoever calls holds it");
            self.runtime
                .spawn(async move { driver.prepare(waiting).await });
        }
    }

    fn is_ready(&self, transfer: &Transfer) -> bool {
        let opened = self
            .segments
            .lock()
            .contains_key(&transfer.location.segment.name);
        opened && self.local(transfer).is_some()
    }

    /// The memory of the transfer's item, as long as the transfer.
    pub(super) fn local(&self, transfer: &Transfer) -> Option<SmallVec<[LocalSlice; 1]>> {
        let inner = self.inner.lock();
        let place = inner
            .operations
            .get(&transfer.op)?
            .places
            .get(transfer.item)?;
        let length = transfer.location.length;
        match place {
            Place::Given(local) => front(local, length),
            Place::Lent(Some(loan)) => Some(SmallVec::from_buf([loan.front(length)?])),
            Place::Lent(None) => None,
        }
    }

    async fn prepare(self: Arc<Self>, waiting: Vec<Transfer>) {
        let (mut ready, homeless): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|transfer| self.local(transfer).is_some());
        if !homeless.is_empty() {
            let unhoused: Vec<_> = homeless.iter().collect();
            match self.scratch.lend(&lengths(&unhoused)).await {
                Ok(loans) => {
                    self.house(&unhoused, loans);
                    ready.extend(homeless);
                }
                Err(error) => {
                    for transfer in &homeless {
                        self.refuse(transfer, Retry::Never, error.to_string());
                    }
                }
            }
        }
        // Each segment for itself: one whose owner does not answer holds up nobody else's.
        for (name, transfers) in by_segment(ready) {
            if self.segments.lock().contains_key(&name) {
                self.post(transfers);
            } else {
                let driver = Arc::clone(&self);
                self.runtime
                    .spawn(async move { driver.open(&name, transfers).await });
            }
        }
    }

    /// A segment that is open from here on.
    pub(super) async fn segment(
        &self,
        name: &str,
        deadline: Time,
    ) -> Result<Segment, mooncake_tent::Error> {
        if let Some(segment) = self.segments.lock().get(name) {
            return Ok(segment.clone());
        }
        let left = deadline.since(Clock.now()).min(OPEN_BUDGET);
        let segment = self.engine.open_segment(name, left).await?;
        self.segments
            .lock()
            .insert(name.to_owned(), segment.clone());
        Ok(segment)
    }

    /// Opens a segment, once for all its transfers, and posts them.
    async fn open(&self, name: &str, transfers: Vec<Transfer>) {
        let deadline = transfers.iter().map(|transfer| transfer.deadline).max();
        match self.segment(name, deadline.unwrap_or(Time::NEVER)).await {
            Ok(_) => self.post(transfers),
            // Another replica may be on a node that answers.
            Err(error) => {
                for transfer in &transfers {
                    self.refuse(transfer, Retry::Elsewhere, error.to_string());
                }
            }
        }
    }

    /// Gives memory of ours to items that have none, or too little.
    pub(super) fn house(&self, homeless: &[&Transfer], loans: Vec<Loan>) {
        let mut inner = self.inner.lock();
        for (transfer, loan) in homeless.iter().zip(loans) {
            let operation = inner.operations.get_mut(&transfer.op);
            // An operation that has ended meanwhile is noticed when its transfers are posted.
            if let Some(place @ Place::Lent(_)) =
                operation.and_then(|running| running.places.get_mut(transfer.item))
            {
                *place = Place::Lent(Some(loan));
            }
        }
    }

    /// Posts a batch for each segment, so that a slow node holds up nobody else's transfers.
    fn post(&self, transfers: Vec<Transfer>) {
        for (name, transfers) in by_segment(transfers) {
            let segment = self.segments.lock().get(&name).cloned();
            match segment {
                Some(segment) => self.post_to(&segment, transfers),
                None => unreachable!("{name} was opened before"),
            }
        }
    }

    fn post_to(&self, segment: &Segment, transfers: Vec<Transfer>) {
        let mut posted = Vec::with_capacity(transfers.len());
        let mut requests = Vec::with_capacity(transfers.len());
        for transfer in transfers {
            match self.local(&transfer) {
                Some(local) => {
                    requests.push(transfer.request(local, segment));
                    posted.push(transfer);
                }
                None => {
                    let message = "the operation has ended meanwhile".to_owned();
                    self.refuse(&transfer, Retry::Never, message);
                }
            }
        }
        if requests.is_empty() {
            return;
        }
        let mut batch = self.engine.allocate_batch(requests.len());
        match self.engine.submit_transfer(&mut batch, requests) {
            Ok(()) => {
                let batch = Arc::new(batch);
                // A copy within the process has ended by now: no other thread needs to hear of it.
                let ended = batch.is_quiescent();
                let places = posted.iter().enumerate();
                let places = places.map(|(index, it)| (it.id, (Arc::clone(&batch), index)));
                self.posted.lock().extend(places);
                let attendant = self.attendant(&posted);
                let transfers = posted;
                let posted = Posted { batch, transfers };
                if ended {
                    self.act(self.ended(posted));
                    return;
                }
                let unattended = match attendant {
                    Some(attendant) => attendant.take_on(posted).err(),
                    None => Some(posted),
                };
                if let Some(posted) = unattended {
                    self.watch(posted);
                }
            }
            Err(error) => {
                for transfer in &posted {
                    self.refuse(transfer, error.retry(), error.to_string());
                }
            }
        }
    }

    fn refuse(&self, transfer: &Transfer, retry: Retry, message: String) {
        let fault = unposted(retry, &transfer.location.segment.name, message);
        self.event(Event::TransferEnded {
            transfer: transfer.id,
            result: Err(fault),
        });
    }

    /// The caller that waits for all of these transfers.
    fn attendant(&self, transfers: &[Transfer]) -> Option<Arc<Attendant>> {
        let (first, rest) = transfers.split_first()?;
        let same = rest.iter().all(|transfer| transfer.op == first.op);
        let inner = self.inner.lock();
        let running = inner.operations.get(&first.op).filter(|_| same)?;
        running.attendant.clone()
    }

    /// Waits for transfers whose caller does not.
    pub(super) fn watch(&self, posted: Posted) {
        let driver = self.me.upgrade().expect("whoever calls holds it");
        self.runtime.spawn(async move {
            posted.batch.terminal().await;
            driver.act(driver.ended(posted));
        });
    }

    /// Takes note of how transfers ended; what follows from it.
    pub(super) fn ended(&self, posted: Posted) -> Actions {
        let Posted { batch, transfers } = posted;
        {
            let mut known = self.posted.lock();
            for transfer in &transfers {
                known.remove(&transfer.id);
            }
        }
        let (ends, loud) = ends_of(&batch, &transfers);
        if !loud.is_empty() {
            let driver = self.me.upgrade().expect("whoever calls holds it");
            self.runtime.spawn(async move {
                batch.quiescent().await;
                let quiet = loud.into_iter().map(|transfer| Event::Quiet { transfer });
                driver.act(driver.handled(quiet));
            });
        }
        self.handled(ends)
    }

    /// Makes sure that the timer wakes at `next` or before.
    fn arm(&self, next: Time) {
        if self.armed.fetch_min(next.0, Ordering::AcqRel) > next.0 {
            self.rearm.notify_one();
        }
    }
}

fn lengths(transfers: &[&Transfer]) -> Vec<u64> {
    let lengths = transfers.iter().map(|transfer| transfer.location.length);
    lengths.collect()
}

/// How the transfers of a batch ended, and which are not quiet.
fn ends_of(batch: &Batch, posted: &[Transfer]) -> (Vec<Event>, VecDeque<TransferId>) {
    let mut loud = VecDeque::new();
    let end = |(index, transfer): (usize, &Transfer)| {
        let quiescent = batch.is_task_quiescent(index);
        if !quiescent {
            loud.push_back(transfer.id);
        }
        let peer = &transfer.location.segment.name;
        Event::TransferEnded {
            transfer: transfer.id,
            result: result(batch.outcome(index), quiescent, peer),
        }
    };
    let ends = posted.iter().enumerate().map(end).collect();
    (ends, loud)
}

/// Sorts transfers by the name of their segment.
fn by_segment(mut transfers: Vec<Transfer>) -> Vec<(String, Vec<Transfer>)> {
    transfers.sort_by(|a, b| a.location.segment.name.cmp(&b.location.segment.name));
    let mut groups: Vec<(String, Vec<Transfer>)> = Vec::new();
    for transfer in transfers {
        let name = &transfer.location.segment.name;
        match groups.last_mut() {
            Some((last, group)) if last == name => group.push(transfer),
            _ => groups.push((name.clone(), vec![transfer])),
        }
    }
    groups
}

/// What follows from an event: what to do, and when to look again.
#[derive(Debug)]
pub(super) struct Actions {
    list: Vec<Action>,
    next: Option<Time>,
    /// Nothing else is under way.
    idle: bool,
}

impl Actions {
    /// Something is to be asked of the master.
    pub(super) fn need_the_master(&self) -> bool {
        let asks = |action: &Action| matches!(action, Action::CallMaster { .. });
        self.list.iter().any(asks)
    }
}

impl Inner {
    fn drain(&mut self) -> Actions {
        let list = std::iter::from_fn(|| self.core.poll()).collect();
        Actions {
            list,
            next: self.core.next_deadline(),
            idle: self.core.is_idle(),
        }
    }
}

/// Whatever was granted goes back, though nobody waits for it any more.
impl Drop for Driver {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        inner.core.abandon(Clock.now());
        for action in inner.drain().list {
            if let Action::CallMaster {
                request, deadline, ..
            } = action
            {
                self.master.submit(request, deadline, |_| ());
            }
        }
    }
}

/// Tells the core where the process's own segment is.
async fn stay_home(driver: Weak<Driver>, mut life: watch::Receiver<Option<SegmentInfo>>) {
    life.mark_changed();
    loop {
        let changed = life.changed().await;
        let Some(driver) = driver.upgrade() else {
            return;
        };
        if changed.is_err() {
            driver.home(None);
            return;
        }
        let segment = life.borrow_and_update().clone();
        driver.home(segment);
    }
}

/// Tells the core that time passes, for as long as there is a driver.
async fn tick(driver: Weak<Driver>, rearm: Arc<Notify>) {
    // Looks now and then whether the driver is still there.
    const IDLE: Duration = Duration::from_secs(1);
    loop {
        let wait = {
            let Some(driver) = driver.upgrade() else {
                return;
            };
            let next = Time(driver.armed.load(Ordering::Acquire));
            let wait = next.since(Clock.now()).min(IDLE);
            if wait.is_zero() {
                driver.armed.store(Time::NEVER.0, Ordering::Release);
                driver.event(Event::Tick);
                continue;
            }
            wait
        };
        tokio::select! {
            () = rearm.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}
