//! Tasks that wait until they may go, and what lets them.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::{runtime::Handle, sync::Notify};

use super::{
    parts::{Scratch, To},
    tent::Shared,
};
use crate::{
    Time,
    admission::{AdmissionConfig, Bounds, Charge, Contracts, Entry, Gate, Offer, Refusal},
    error::{Error, Reason, Result, Stage, TransferError},
    lane::{Lane, Watch},
    qos::Qos,
    segment::Segment,
    trace::TraceEvent,
    transport::{
        NextPart, Op, Outcome, Rest, RestTerms, SubBatch, TaskRef, TaskSpec, Tasks, Ticket,
    },
};

/// The gate of an engine, and those that wait there.
pub(super) struct Parking {
    start: Instant,
    contracts: Contracts,
    tasks: Tasks,
    state: Mutex<State>,
    /// Something has changed that may let somebody go.
    changed: Notify,
    me: Weak<Self>,
}

struct State {
    gate: Gate<Parked>,
    numbers: FxHashMap<TaskRef, u64>,
}

/// A task that waits.
#[derive(Clone)]
struct Parked {
    task: TaskRef,
    link: usize,
    segment: Segment,
    /// A fence that came since then counts.
    fences: u64,
    since: Instant,
}

/// What a planned request has to pass.
#[derive(Debug)]
pub(super) struct Gated {
    bounds: Bounds,
    deadline: Instant,
    segment: Segment,
    fences: u64,
    decided: Decided,
    /// What comes after its first part.
    rest: Option<Box<Rest>>,
}

#[derive(Debug)]
enum Decided {
    NotYet,
    Goes(Pass),
    Waits { number: u64, link: usize },
}

/// What is charged for a task, until it is quiet.
#[derive(Debug)]
struct Pass {
    parking: Arc<Parking>,
    charge: Charge,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.parking.state.lock().gate.release(&self.charge);
        self.parking.changed.notify_one();
    }
}

impl fmt::Debug for Parking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parking({} wait)", self.waiting())
    }
}

impl Parking {
    pub(super) fn new(config: AdmissionConfig, tasks: Tasks) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            start: Instant::now(),
            tasks,
            state: Mutex::new(State {
                gate: Gate::new(&config),
                numbers: FxHashMap::default(),
            }),
            contracts: config.contracts,
            changed: Notify::new(),
            me: Weak::clone(me),
        })
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().gate.waiting()
    }

    /// Brings `qos` to what its contract lets it ask, and says what that is.
    pub(super) fn bind(&self, qos: &mut Qos) -> Bounds {
        let bounds = self
            .contracts
            .terms(qos.tenant(), qos.intent(), qos.said_priority());
        if qos.priority() != bounds.priority {
            *qos = std::mem::take(qos).with_priority(bounds.priority);
        }
        bounds
    }

    /// Lets each planned request go or wait; or none of them.
    pub(super) fn admit(&self, scratch: &mut Scratch) -> Result<()> {
        let now = self.time(Instant::now());
        let mut state = self.state.lock();
        let all = scratch.specs.iter_mut().zip(&mut scratch.gated);
        let mut refused = None;
        for (((spec, _), gated), link) in all.zip(&mut scratch.links) {
            let place = match (*link, &spec.origin) {
                (To::Link(place), _) => place,
                // Whoever goes without knowing where to comes back and then knows.
                (To::Nowhere, Some(origin)) => usize::from(origin.link),
                (To::Nowhere | To::Later, _) => continue,
            };
            let most = state.gate.most_bytes(&gated.bounds);
            let divisible = spec.receipt.is_none() && matches!(*link, To::Link(_));
            if let Some(most) = most.filter(|most| divisible && *most < spec.length) {
                let terms = RestTerms {
                    segment: gated.segment.clone(),
                    fences: gated.fences,
                    deadline: gated.deadline,
                    link: place,
                };
                gated.rest = Some(Box::new(Rest::cut(spec, most, terms)));
            }
            let entry = Entry {
                bytes: spec.length,
                deadline: self.time(gated.deadline),
                tenant: spec.qos.tenant(),
                intent: spec.qos.intent(),
                bounds: gated.bounds,
            };
            match state.gate.offer(now, &entry) {
                Ok(Offer::Goes(charge)) => {
                    let parking = self.me.upgrade().expect("it is borrowed from its Arc");
                    gated.decided = Decided::Goes(Pass { parking, charge });
                }
                Ok(Offer::Waits(number)) => {
                    gated.decided = Decided::Waits {
                        number,
                        link: place,
                    };
                    *link = To::Later;
                }
                Err(refusal) => {
                    refused = Some(refused_with(refusal, spec));
                    break;
                }
            }
        }
        let Some(error) = refused else {
            return Ok(());
        };
        for gated in &scratch.gated {
            if let Decided::Waits { number, .. } = gated.decided {
                state.gate.leave(number);
            }
        }
        // Those that were to go release what was charged for them with the scratch.
        Err(error)
    }

    /// Those that were to wait do not: they have no cells.
    pub(super) fn forget(&self, scratch: &Scratch) {
        let mut state = self.state.lock();
        for gated in &scratch.gated {
            if let Decided::Waits { number, .. } = gated.decided {
                state.gate.leave(number);
            }
        }
    }

    /// `task` has begun, and goes with what was charged for it or waits.
    pub(super) fn settle(&self, task: TaskRef, gated: Gated) {
        if let Some(rest) = gated.rest {
            self.tasks.divide(task, rest);
        }
        match gated.decided {
            Decided::NotYet => {}
            Decided::Goes(pass) => self.tasks.charge(task, ticket(pass)),
            Decided::Waits { number, link } => {
                let parked = Parked {
                    task,
                    link,
                    segment: gated.segment,
                    fences: gated.fences,
                    since: Instant::now(),
                };
                self.park(number, parked);
            }
        }
    }

    /// A task waits under this number.
    fn park(&self, number: u64, parked: Parked) {
        let task = parked.task;
        let me = self.me.upgrade().expect("it is borrowed from its Arc");
        let me: Arc<dyn SubBatch> = me;
        self.tasks.carried_by(task, &me);
        {
            let mut state = self.state.lock();
            state.gate.name(number, parked);
            state.numbers.insert(task, number);
        }
        if self.tasks.is_unwanted(task) {
            // Whoever cancelled it before has not found it.
            self.cancel_transfer_task(task);
        }
        self.changed.notify_one();
    }

    /// The next part of a task comes: it goes if it is handed back, or else waits.
    fn come_back(&self, task: TaskRef, part: NextPart) -> Result<Option<(Parked, Pass)>, Refusal> {
        let NextPart {
            bytes,
            mut qos,
            terms,
        } = part;
        let bounds = self.bind(&mut qos);
        let entry = Entry {
            bytes,
            deadline: self.time(terms.deadline),
            tenant: qos.tenant(),
            intent: qos.intent(),
            bounds,
        };
        let parked = Parked {
            task,
            link: terms.link,
            segment: terms.segment,
            fences: terms.fences,
            since: Instant::now(),
        };
        let now = self.time(Instant::now());
        let offer = self.state.lock().gate.come_back(now, &entry)?;
        match offer {
            Offer::Goes(charge) => {
                let parking = self.me.upgrade().expect("it is borrowed from its Arc");
                Ok(Some((parked, Pass { parking, charge })))
            }
            Offer::Waits(number) => {
                self.park(number, parked);
                Ok(None)
            }
        }
    }

    /// Nobody goes any more; those that wait end.
    pub(super) fn close(&self) {
        loop {
            let parked = {
                let mut state = self.state.lock();
                let parked = state.gate.close();
                if let Some(parked) = &parked {
                    state.numbers.remove(&parked.task);
                }
                parked
            };
            let Some(parked) = parked else {
                return;
            };
            let peer = Some(parked.segment.incarnation());
            let error = TransferError::unstarted(Reason::Stopped, Stage::Resolve, peer);
            self.tasks.finish(parked.task, Outcome::Failed(error), true);
        }
    }

    /// What may go or is too late.
    fn turn(&self) -> Option<Move> {
        let now = self.time(Instant::now());
        let mut state = self.state.lock();
        let turn = match state.gate.late(now) {
            Some(parked) => Move::Late(parked),
            None => {
                let (parked, charge) = state.gate.next(now)?;
                let parking = self.me.upgrade().expect("it is borrowed from its Arc");
                Move::Goes(parked, Pass { parking, charge })
            }
        };
        let (Move::Late(parked) | Move::Goes(parked, _)) = &turn;
        state.numbers.remove(&parked.task);
        Some(turn)
    }

    fn next_event(&self) -> Option<Instant> {
        let at = self.state.lock().gate.next_event()?;
        self.start.checked_add(at.since(Time::ZERO))
    }

    fn time(&self, at: Instant) -> Time {
        Time::ZERO + at.saturating_duration_since(self.start)
    }
}

enum Move {
    Goes(Parked, Pass),
    Late(Parked),
}

fn ticket(pass: Pass) -> Ticket {
    Box::new(pass)
}

fn refused_with(refusal: Refusal, spec: &TaskSpec) -> Error {
    match refusal {
        Refusal::Full(limit) => Error::Busy {
            what: "the list of requests that wait",
            limit,
        },
        Refusal::MayNotWait => Error::OverLimit {
            tenant: spec.qos.tenant().unwrap_or_default().to_owned(),
        },
        Refusal::Stopped => Error::Invalid("the engine is shut down".to_owned()),
    }
}

/// It carries those that wait, so that they can be cancelled.
impl SubBatch for Parking {
    fn submit_transfer_tasks(&self, _tasks: &[TaskRef]) -> Result<()> {
        unreachable!("tasks come through the gate");
    }

    fn cancel_transfer_task(&self, task: TaskRef) {
        let parked = {
            let mut state = self.state.lock();
            let number = state.numbers.remove(&task);
            number.and_then(|number| state.gate.leave(number))
        };
        if let Some(parked) = parked {
            let end = Outcome::cancelled(Stage::Resolve, parked.segment.incarnation());
            self.tasks.finish(task, end, true);
            self.changed.notify_one();
        }
    }

    fn drive(&self, _budget: Duration) -> bool {
        false
    }

    fn hand_over(&self) {}
}

impl Gated {
    pub(super) fn new(bounds: Bounds, deadline: Instant, segment: &Segment, fences: u64) -> Self {
        Self {
            bounds,
            deadline,
            segment: segment.clone(),
            fences,
            decided: Decided::NotYet,
            rest: None,
        }
    }
}

/// Closes the gate with its engine.
#[derive(Debug)]
pub(super) struct Gatekeeper(pub(super) Arc<Parking>);

impl Drop for Gatekeeper {
    fn drop(&mut self) {
        self.0.close();
        self.0.changed.notify_one();
    }
}

/// Lets go who may, whenever something changes.
pub(super) fn watch(parking: Arc<Parking>, engine: Weak<Shared>, runtime: &Handle) {
    // With the runtime nobody is left who would let them go.
    let keeper = Gatekeeper(parking);
    runtime.spawn(async move {
        loop {
            let parking = &keeper.0;
            let changed = parking.changed.notified();
            match parking.next_event() {
                Some(event) => drop(tokio::time::timeout_at(event.into(), changed).await),
                None => changed.await,
            }
            let Some(engine) = engine.upgrade() else {
                return;
            };
            engine.let_go(parking);
        }
    });
}

/// Refuses what `lane` will not have done in time, as far as was measured.
pub(super) fn feasible(
    link: &'static str,
    lane: &Lane,
    (op, length): (Op, u64),
    left: Duration,
) -> Result<()> {
    match lane.rates(op).estimate(length) {
        Some(needed) if needed > left => Err(Error::Infeasible {
            link,
            length,
            needed,
            left,
        }),
        _ => Ok(()),
    }
}

impl Shared {
    /// Posts what may go and ends what is too late.
    fn let_go(&self, parking: &Parking) {
        while let Some(turn) = parking.turn() {
            let tasks = &self.parts.context.tasks;
            match turn {
                Move::Late(parked) => {
                    self.tally.waited_too_long.one();
                    let peer = parked.segment.incarnation();
                    let end = Outcome::timed_out(Stage::Resolve, peer);
                    tasks.finish(parked.task, end, true);
                }
                Move::Goes(parked, pass) => {
                    let waited = parked.since.elapsed();
                    self.tally.waits.add(waited);
                    if let Some(trace) = tasks.trace(parked.task) {
                        trace.note(TraceEvent::LetGo { waited });
                    }
                    self.go(parked, pass);
                }
            }
        }
    }

    /// The next part of a task has its turn.
    pub(super) fn next_part(&self, task: TaskRef) {
        let tasks = &self.parts.context.tasks;
        let (Some(gate), Some(part)) = (&self.gate, tasks.next_part(task)) else {
            return;
        };
        match gate.0.come_back(task, part) {
            Ok(Some((parked, pass))) => self.go(parked, pass),
            Ok(None) => {}
            Err(_) => self.fail(&[task], &Reason::Stopped, Stage::Resolve),
        }
    }

    fn go(&self, parked: Parked, pass: Pass) {
        let Parked {
            task,
            link,
            segment,
            fences,
            ..
        } = parked;
        let tasks = &self.parts.context.tasks;
        tasks.charge(task, ticket(pass));
        let (now, attempts) = (Instant::now(), self.parts.attempts);
        if let Some(watch) = tasks.unwatch(task) {
            let since = now;
            tasks.watch(task, Some(Watch { since, ..watch }));
        }
        tasks.amend(task, |spec| {
            if let Some(origin) = &spec.origin {
                let end = |end| attempts.end(now, end, origin.others, None);
                spec.deadline = origin.deadline.map(end);
            }
        });
        self.launch(task, link, &segment, fences);
    }
}
