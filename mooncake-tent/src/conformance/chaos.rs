//! A link that misbehaves on purpose, over one that does not.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::{
    error::{Applied, Error, Reason, Result, Stage, TransferError},
    identity::{PeerId, RegistrationId},
    memory::LocalBuffer,
    platform::after,
    selector::LinkDevices,
    transport::{
        Attachment, BatchState, BoxFuture, Capabilities, InstallContext, LinkGauges, Opened,
        Outcome, Peer, SubBatch, TaskRef, TaskSlab, TaskSpec, Tasks, Transport,
    },
};

/// How often the courier looks at what is under way.
const GLANCE: Duration = Duration::from_micros(500);
/// How long the courier outlives its link for what is still under way.
const LEAVE: Duration = Duration::from_secs(2);

/// What a [`Chaos`] does to tasks: how many of a thousand, by a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mischief {
    /// The same seed and the same order of tasks bring the same faults.
    pub seed: u64,
    /// Whole submissions that are answered *busy*.
    pub busy: u32,
    /// Tasks that fail before anything was done.
    pub refuse: u32,
    /// Tasks that nobody hears of again until their deadline.
    pub lose: u32,
    /// Tasks that are done, but whose end is not told before their deadline.
    pub lose_end: u32,
    /// Tasks that are submitted later, behind others.
    pub delay: u32,
    /// Tasks whose end is told later than that of others.
    pub withhold: u32,
    /// Tasks that fail while their bytes still move.
    pub part_loudly: u32,
    /// Tasks of which only a part is done before they fail.
    pub truncate: u32,
    /// Tasks of which only a part is done before they fail, and the link knows how large it is.
    pub stop: u32,
    /// Tasks that are done twice and reported thrice.
    pub duplicate: u32,
    /// Tasks that are said to be completed with fewer bytes than they have.
    pub lie: u32,
    /// Tasks of one submission are submitted in another order.
    pub reorder: bool,
    /// The longest of all delays.
    pub longest: Duration,
    /// The link breaks after so many bytes: the request that reaches it is done in part, later ones
    /// fail.
    pub cut_after: Option<u64>,
    /// The link says nothing more after so many tasks.
    pub silent_after: Option<u64>,
}

impl Mischief {
    /// No faults at all.
    pub fn none(seed: u64) -> Self {
        Self {
            seed,
            busy: 0,
            refuse: 0,
            lose: 0,
            lose_end: 0,
            delay: 0,
            withhold: 0,
            part_loudly: 0,
            truncate: 0,
            stop: 0,
            duplicate: 0,
            lie: 0,
            reorder: false,
            longest: Duration::from_millis(5),
            cut_after: None,
            silent_after: None,
        }
    }

    /// Some of each fault that a task can have.
    pub fn all(seed: u64) -> Self {
        Self {
            busy: 20,
            refuse: 50,
            lose: 5,
            lose_end: 5,
            delay: 150,
            withhold: 150,
            part_loudly: 50,
            truncate: 50,
            duplicate: 100,
            lie: 30,
            reorder: true,
            ..Self::none(seed)
        }
    }
}

/// How often a [`Chaos`] did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChaosCounts {
    /// Tasks that came.
    pub tasks: u64,
    /// Of these, the ones with a fault.
    pub faults: u64,
}

/// Wraps a link and loses, delays, repeats, reorders, refuses, cuts and lies by a seeded plan. It
/// never helps: what it reports is true at best.
pub struct Chaos<T> {
    link: T,
    shared: Arc<Shared>,
}

struct Shared {
    mischief: Mischief,
    /// The engine's tasks, and those that the wrapped link sees in their place.
    tasks: OnceLock<(Tasks, Tasks)>,
    flights: Mutex<Flights>,
    changed: Condvar,
    stopped: AtomicBool,
    came: AtomicU64,
    faults: AtomicU64,
    bytes: AtomicU64,
    dice: Mutex<Dice>,
}

#[derive(Default)]
struct Flights {
    next: u64,
    all: Vec<Flight>,
}

/// A task on its way.
struct Flight {
    id: u64,
    real: TaskRef,
    peer: PeerId,
    deadline: Instant,
    sub_batch: Arc<dyn SubBatch>,
    progress: Progress,
    /// Not submitted before.
    start: Instant,
    /// How many bytes of it are done.
    most: u64,
    copies: u32,
    /// Its end is not told before.
    tell: Instant,
    end: End,
    told: bool,
}

enum Progress {
    Waiting,
    Lost,
    Posted(Vec<TaskRef>, Arc<BatchState>),
}

enum End {
    AsItIs,
    /// It broke, whether or not the bytes still move.
    Broken,
    /// Completed, with a byte less.
    Short,
    /// It broke when all of the part was done.
    Stopped,
}

impl<T: Transport> Chaos<T> {
    /// Misbehaves over `link`.
    pub fn new(link: T, mischief: Mischief) -> Self {
        let dice = Dice(mischief.seed);
        Self {
            link,
            shared: Arc::new(Shared {
                mischief,
                tasks: OnceLock::new(),
                flights: Mutex::default(),
                changed: Condvar::new(),
                stopped: AtomicBool::new(false),
                came: AtomicU64::new(0),
                faults: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                dice: Mutex::new(dice),
            }),
        }
    }

    /// What it did so far.
    pub fn counts(&self) -> ChaosCounts {
        ChaosCounts {
            tasks: self.shared.came.load(Ordering::Relaxed),
            faults: self.shared.faults.load(Ordering::Relaxed),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Chaos<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chaos")
            .field("link", &self.link)
            .field("mischief", &self.shared.mischief)
            .finish_non_exhaustive()
    }
}

impl<T> Drop for Chaos<T> {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl<T: Transport> Transport for Chaos<T> {
    fn name(&self) -> &'static str {
        self.link.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn install(&self, engine: InstallContext) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let ours = Arc::new(TaskSlab::new());
            let tasks = (Arc::clone(&engine.tasks), Arc::clone(&ours));
            self.shared.tasks.set(tasks).map_err(|_| Error::Install {
                link: "chaos",
                message: "it serves another engine already".to_owned(),
            })?;
            let shared = Arc::clone(&self.shared);
            thread::Builder::new()
                .name("chaos".to_owned())
                .spawn(move || shared.carry())
                .map_err(Error::system("chaos: no thread"))?;
            let engine = InstallContext {
                tasks: ours,
                ..engine
            };
            self.link.install(engine).await
        })
    }

    fn endpoint(&self) -> Option<String> {
        self.link.endpoint()
    }

    fn uninstall(&self, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.shared.stop();
            let end = after(budget);
            let stopped = self.link.uninstall(budget).await;
            let mine: Vec<_> = self.shared.under_way(|_| true);
            let quiet = self.shared.until_gone(&mine, end).await;
            stopped?;
            match quiet {
                true => Ok(()),
                false => Err(Error::Unreachable {
                    segment: "chaos".to_owned(),
                    message: format!("tasks are still under way after {budget:?}"),
                }),
            }
        })
    }

    fn add_memory_buffer<'a>(
        &'a self,
        buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, Result<Attachment>> {
        self.link.add_memory_buffer(buffer)
    }

    fn remove_memory_buffer(&self, id: RegistrationId) -> BoxFuture<'_, Result<()>> {
        self.link.remove_memory_buffer(id)
    }

    fn allocate_sub_batch(&self, capacity: usize) -> Result<Box<dyn SubBatch>> {
        Ok(Box::new(ChaosSubBatch {
            link: Arc::from(self.link.allocate_sub_batch(capacity)?),
            shared: Arc::clone(&self.shared),
        }))
    }

    fn joins(&self) -> &[(&str, &str)] {
        self.link.joins()
    }

    fn devices(&self) -> LinkDevices<'_> {
        self.link.devices()
    }

    fn reaches(&self, peer: &Peer) -> bool {
        self.link.reaches(peer)
    }

    fn open<'a>(&'a self, name: &'a str) -> Option<BoxFuture<'a, Result<Opened>>> {
        self.link.open(name)
    }

    fn close(&self, peer: PeerId) {
        self.link.close(peer);
    }

    fn warm_up<'a>(&'a self, peer: &'a Arc<Peer>, budget: Duration) -> BoxFuture<'a, Result<()>> {
        self.link.warm_up(peer, budget)
    }

    fn fence(&self, peer: PeerId, budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let end = after(budget);
            let before = self.shared.under_way(|flight| flight.peer == peer);
            self.shared.give_up(&before);
            self.link.fence(peer, budget).await?;
            match self.shared.until_gone(&before, end).await {
                true => Ok(()),
                false => Err(Error::Unreachable {
                    segment: peer.to_string(),
                    message: format!("tasks are still under way after {budget:?}"),
                }),
            }
        })
    }

    fn estimated_bandwidth(&self) -> Option<f64> {
        self.link.estimated_bandwidth()
    }

    fn gauges(&self) -> LinkGauges {
        self.link.gauges()
    }
}

struct ChaosSubBatch {
    link: Arc<dyn SubBatch>,
    shared: Arc<Shared>,
}

impl fmt::Debug for ChaosSubBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChaosSubBatch").field(&self.link).finish()
    }
}

impl SubBatch for ChaosSubBatch {
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> Result<()> {
        let mischief = &self.shared.mischief;
        let mut order = tasks.to_vec();
        {
            let mut dice = self.shared.dice.lock();
            if dice.hits(mischief.busy) {
                return Err(Error::Busy {
                    what: "the link",
                    limit: 0,
                });
            }
            if mischief.reorder {
                for i in (1..order.len()).rev() {
                    order.swap(i, dice.below(i as u64 + 1) as usize);
                }
            }
        }
        for task in order {
            self.shared.take(task, &self.link);
        }
        Ok(())
    }

    fn cancel_transfer_task(&self, task: TaskRef) {
        // An early end is no more than a wish: what the link below does not have goes on.
        let flights = self.shared.flights.lock();
        let flights = flights.all.iter().filter(|flight| flight.real == task);
        for flight in flights {
            if let Progress::Posted(refs, _) = &flight.progress {
                refs.iter()
                    .for_each(|task| flight.sub_batch.cancel_transfer_task(*task));
            }
        }
    }

    fn drive(&self, budget: Duration) -> bool {
        // Its tasks may end without anything that moves below.
        self.link.drive(budget.min(2 * GLANCE))
    }

    fn hand_over(&self) {
        self.link.hand_over();
    }
}

impl Shared {
    fn tasks(&self) -> &(Tasks, Tasks) {
        self.tasks.get().expect("it is installed")
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let _guard = self.flights.lock();
        self.changed.notify_all();
    }

    /// Decides what becomes of a task.
    fn take(&self, real: TaskRef, sub_batch: &Arc<dyn SubBatch>) {
        let (engine, _) = self.tasks();
        let Some(spec) = engine.spec(real) else {
            return;
        };
        let number = self.came.fetch_add(1, Ordering::Relaxed);
        let before = self.bytes.fetch_add(spec.length, Ordering::Relaxed);
        let now = Instant::now();
        let mischief = &self.mischief;
        let mut flight = Flight {
            id: 0,
            real,
            peer: spec.peer.id(),
            deadline: spec.deadline.unwrap_or(now + mischief.longest),
            sub_batch: Arc::clone(sub_batch),
            progress: Progress::Waiting,
            start: now,
            most: spec.length,
            copies: 1,
            tell: now,
            end: End::AsItIs,
            told: false,
        };
        let mut dice = self.dice.lock();
        let roll = &mut *dice;
        let peer = Some(spec.peer.id());
        let refused = roll.hits(mischief.refuse).then(|| roll.refusal());
        let (delayed, withheld) = (roll.hits(mischief.delay), roll.hits(mischief.withhold));
        if delayed {
            flight.start += roll.time(mischief.longest);
        }
        if withheld {
            flight.tell += roll.time(mischief.longest);
        }
        let mut fault = refused.is_some() || delayed || withheld;
        if mischief.silent_after.is_some_and(|after| number >= after) || roll.hits(mischief.lose) {
            flight.progress = Progress::Lost;
            fault = true;
        } else if roll.hits(mischief.lose_end) {
            flight.tell = flight.deadline;
            fault = true;
        } else if roll.hits(mischief.part_loudly) {
            flight.end = End::Broken;
            fault = true;
        } else if roll.hits(mischief.truncate) {
            flight.most = roll.below(spec.length);
            flight.end = End::Broken;
            fault = true;
        } else if roll.hits(mischief.duplicate) {
            flight.copies = 2;
            fault = true;
        } else if roll.hits(mischief.lie) {
            flight.end = End::Short;
            fault = true;
        } else if roll.hits(mischief.stop) {
            flight.most = roll.below(spec.length);
            flight.end = End::Stopped;
            fault = true;
        }
        drop(dice);
        self.faults.fetch_add(u64::from(fault), Ordering::Relaxed);
        let broken = mischief.cut_after.filter(|cut| before + spec.length > *cut);
        if let Some(reason) = refused {
            let error = TransferError::unstarted(reason, Stage::Post, peer);
            return engine.finish(real, Outcome::Failed(error), true);
        }
        if let Some(cut) = broken {
            if before >= cut {
                return engine.finish(real, cut_off(flight.peer, false), true);
            }
            flight.most = cut - before;
            flight.end = End::Broken;
        }
        let mut flights = self.flights.lock();
        if self.stopped.load(Ordering::Acquire) {
            drop(flights);
            return engine.finish(real, stopped(flight.peer), true);
        }
        flights.next += 1;
        flight.id = flights.next;
        if matches!(flight.progress, Progress::Waiting) && flight.start <= now {
            self.post(&mut flight);
        }
        flights.all.push(flight);
        self.changed.notify_all();
    }

    /// Hands a task to the link below, under other names.
    fn post(&self, flight: &mut Flight) {
        let (engine, ours) = self.tasks();
        let state = Arc::new(BatchState::default());
        let mut refs = Vec::new();
        if let Some(spec) = engine.spec(flight.real).filter(|_| flight.most > 0) {
            let spec = shortened(spec, flight.most);
            let taken = ours.take(&state, flight.copies as usize, &mut refs);
            let posted = taken.and_then(|()| {
                let copies = (0..flight.copies).map(|_| (spec.clone(), false));
                ours.begin(&state, &refs, copies);
                flight.sub_batch.submit_transfer_tasks(&refs)
            });
            if posted.is_err() {
                for task in &refs {
                    let reason = Reason::Broken("the link refuses it".into());
                    let error = TransferError::unstarted(reason, Stage::Post, Some(flight.peer));
                    ours.finish(*task, Outcome::Failed(error), true);
                }
            }
        }
        flight.progress = Progress::Posted(refs, state);
    }

    fn carry(&self) {
        let mut leave = None;
        let mut flights = self.flights.lock();
        loop {
            let now = Instant::now();
            let is_stopped = self.stopped.load(Ordering::Acquire);
            flights
                .all
                .retain_mut(|flight| !self.advance(flight, now, is_stopped));
            if is_stopped {
                let leave = *leave.get_or_insert(now + LEAVE);
                if flights.all.is_empty() || now >= leave {
                    return;
                }
            }
            match flights.all.is_empty() {
                true => self.changed.wait(&mut flights),
                false => drop(self.changed.wait_for(&mut flights, GLANCE)),
            }
        }
    }

    /// Brings a task further; `true`: it is over.
    fn advance(&self, flight: &mut Flight, now: Instant, is_stopped: bool) -> bool {
        let (engine, ours) = self.tasks();
        match &flight.progress {
            Progress::Lost | Progress::Waiting if is_stopped => {
                engine.finish(flight.real, stopped(flight.peer), true);
                return true;
            }
            Progress::Lost => {
                let over = now >= flight.deadline;
                if over {
                    let end = Outcome::timed_out(Stage::Post, flight.peer);
                    engine.finish(flight.real, end, true);
                }
                return over;
            }
            Progress::Waiting if now < flight.start => return false,
            Progress::Waiting => {
                self.post(flight);
                flight.sub_batch.hand_over();
            }
            Progress::Posted(..) => {}
        }
        let Progress::Posted(refs, state) = &flight.progress else {
            unreachable!("it was just posted");
        };
        let quiet = state.is_quiescent();
        if !flight.told {
            let done = state.is_terminal();
            let is_lost = flight.tell >= flight.deadline;
            let end = match flight.end {
                _ if is_lost && now >= flight.deadline => {
                    Some(Outcome::timed_out(Stage::Post, flight.peer).underway(quiet))
                }
                _ if is_lost && !is_stopped => None,
                End::Broken => Some(cut_off(flight.peer, true)),
                _ if !done || (now < flight.tell && !is_stopped) => None,
                End::Stopped if !quiet => None,
                End::AsItIs | End::Short | End::Stopped => Some(self.outcome(flight, refs)),
            };
            let Some(end) = end else {
                return false;
            };
            let repeat = flight.copies > 1 && end.is_completed() && quiet;
            engine.finish(flight.real, end.clone(), quiet);
            flight.told = true;
            if repeat {
                engine.finish(flight.real, end, true);
                engine.settle(flight.real);
            }
            if quiet {
                ours.release(refs);
                return true;
            }
        }
        if quiet {
            engine.settle(flight.real);
            ours.release(refs);
        }
        quiet
    }

    fn outcome(&self, flight: &Flight, refs: &[TaskRef]) -> Outcome {
        let (_, ours) = self.tasks();
        let ends: Vec<_> = refs.iter().filter_map(|task| ours.outcome(*task)).collect();
        let failure = ends.iter().find(|end| !end.is_completed());
        match (failure.or_else(|| ends.first()), &flight.end) {
            (None | Some(Outcome::Completed { .. }), End::Stopped) => {
                let mut end = cut_off(flight.peer, false);
                if let Outcome::Failed(error) = &mut end {
                    (error.applied, error.stage) = (Applied::UpTo(flight.most), Stage::Move);
                }
                end
            }
            (Some(Outcome::Completed { bytes }), End::Short) => {
                Outcome::Completed { bytes: bytes - 1 }
            }
            (Some(Outcome::Failed(error)), _) if flight.copies > 1 => {
                // The other copy may have been applied.
                let mut error = error.clone();
                error.applied = Applied::Unknown;
                Outcome::Failed(error)
            }
            (Some(end), _) => end.clone(),
            (None, _) => cut_off(flight.peer, false),
        }
    }

    fn under_way(&self, which: impl Fn(&Flight) -> bool) -> Vec<u64> {
        let flights = self.flights.lock();
        let which = flights.all.iter().filter(|flight| which(flight));
        which.map(|flight| flight.id).collect()
    }

    /// What was not handed to the link yet never will be.
    fn give_up(&self, ids: &[u64]) {
        let (engine, _) = self.tasks();
        self.flights.lock().all.retain(|flight| {
            let idle = !matches!(flight.progress, Progress::Posted(..));
            let given_up = idle && ids.contains(&flight.id);
            if given_up {
                engine.finish(flight.real, cut_off(flight.peer, false), true);
            }
            !given_up
        });
    }

    async fn until_gone(&self, ids: &[u64], end: Instant) -> bool {
        while !self.under_way(|flight| ids.contains(&flight.id)).is_empty() {
            if Instant::now() >= end {
                return false;
            }
            tokio::time::sleep(GLANCE).await;
        }
        true
    }
}

fn cut_off(peer: PeerId, underway: bool) -> Outcome {
    let reason = Reason::Broken("cut off".into());
    let error = TransferError::unstarted(reason, Stage::Post, Some(peer));
    Outcome::Failed(match underway {
        true => error.underway(false),
        false => error,
    })
}

fn stopped(peer: PeerId) -> Outcome {
    Outcome::Failed(TransferError::unstarted(
        Reason::Stopped,
        Stage::Post,
        Some(peer),
    ))
}

/// The first `most` bytes of what `spec` asks.
fn shortened(mut spec: TaskSpec, most: u64) -> TaskSpec {
    let mut left = most.min(spec.length);
    spec.length = left;
    spec.origin = None;
    let mut local = SmallVec::new();
    for slice in &spec.local {
        let taken = slice.len().min(left);
        if taken > 0 {
            local.push(slice.part(0..taken));
        }
        left -= taken;
    }
    spec.local = local;
    spec
}

/// Small, seeded and good enough for faults.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn hits(&mut self, of_a_thousand: u32) -> bool {
        self.below(1000) < u64::from(of_a_thousand)
    }

    fn time(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.below(1000) as f64 / 1000.0)
    }

    fn refusal(&mut self) -> Reason {
        match self.below(5) {
            0 => Reason::StaleGeneration,
            1 => Reason::UnknownRegistration,
            2 => Reason::Unreachable("nobody answers".into()),
            3 => Reason::OtherIncarnation,
            _ => Reason::Broken("refused".into()),
        }
    }
}
