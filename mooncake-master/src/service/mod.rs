//! The gRPC service: single calls, and the pipelined session.

mod answer;
mod clock;
mod fault;
mod remember;
mod request;
mod session;
mod sessions;
mod step;
mod storages;
mod unary;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mooncake_proto::master::{self as proto, answer::Answer as Reply};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, oneshot};

pub(crate) use clock::epoch_by_date;
pub use session::SessionStream;

/// Between the wire and the state machine, for those that drive [`State`] without the service.
pub mod wire {
    pub use super::{
        answer::{Terms, refusal, reply},
        request::operation,
    };
}

use self::{
    answer::Terms,
    clock::Clock,
    remember::{After, Unlogged},
    sessions::{Registration, Sessions},
    step::whole,
};
use crate::{
    Time,
    log::Log,
    metrics::Traffic,
    state::{Answer, Caller, Command, Counters, Effect, Failure, Operation, State},
};

/// How often the state machine looks for what is over.
const TICK: Duration = Duration::from_millis(100);

/// The master as a gRPC service. Clones serve the same state.
///
/// [`Master`](crate::Master) runs it with its listeners; taken alone it goes into any `tonic`
/// server, beside [`run_ticks`](Self::run_ticks). A panic in a step of the state ends the process:
/// what it leaves half changed must not be served.
#[derive(Clone, Debug)]
pub struct MasterService {
    shared: Arc<Shared>,
}

impl MasterService {
    /// Serves `state`, whose clock starts now. Clients are asked to ping at the interval. What must
    /// outlive the master does not.
    pub fn new(state: State, ping_interval: Duration) -> Self {
        Self::with_log(state, ping_interval, None)
    }

    /// The same with a log, which the state must be in step with.
    pub(crate) fn with_log(state: State, ping_interval: Duration, log: Option<Log>) -> Self {
        let settings = state.settings();
        let terms = Terms {
            epoch: state.epoch(),
            ping_interval,
            client_ttl: settings.client_ttl,
            lease_ttl: settings.lease_ttl,
            put_deadline: settings.put_deadline,
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                clock: Clock::start(),
                sessions: Sessions::default(),
                promised: Mutex::default(),
                log,
                unlogged_removes: Mutex::default(),
                more: Notify::new(),
                traffic: Traffic::default(),
                terms,
                stopping: AtomicBool::new(false),
            }),
        }
    }

    /// Lets time pass in the state machine, for as long as it is polled.
    pub async fn run_ticks(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.shared.more.notified() => {}
            }
            loop {
                let ticked = self.shared.apply(&Command::Tick);
                self.shared.tend_log();
                if ticked != (Answer::Ticked { more: true }) {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// The state machine and what surrounds it.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    clock: Clock,
    sessions: Sessions,
    /// Single calls that wait for their answers, by ticket.
    promised: Mutex<FxHashMap<u64, oneshot::Sender<Answer>>>,
    /// What must outlive the master goes there.
    log: Option<Log>,
    unlogged_removes: Mutex<Unlogged>,
    /// The state machine has work that should not wait for the next tick.
    more: Notify,
    traffic: Traffic,
    terms: Terms,
    stopping: AtomicBool,
}

impl Shared {
    /// For commands whose answers promise nothing that must be remembered.
    pub(crate) fn apply(self: &Arc<Self>, command: &Command) -> Answer {
        let mut answers = self.apply_if(|| true, std::iter::once(command));
        let answer = answers.as_mut().and_then(Vec::pop);
        answer.expect("one command has one answer").0
    }

    /// As [`apply`](Self::apply), also where the answer takes its time.
    pub(crate) async fn answer(self: &Arc<Self>, command: &Command) -> Answer {
        match self.apply_waited(command) {
            Ok((answer, after)) => self.when_durable(after, answer).await,
            // None comes from a master that stops.
            Err(promised) => promised.await.unwrap_or(Answer::Refused(Failure::Fenced)),
        }
    }

    /// The answer, or where it will come.
    fn apply_waited(
        self: &Arc<Self>,
        command: &Command,
    ) -> Result<(Answer, After), oneshot::Receiver<Answer>> {
        if let Some(busy) = self.busy(command) {
            return Ok((busy, 0));
        }
        let mut effects = Vec::new();
        let answer = {
            let mut state = self.state.lock();
            let now = self.clock.now();
            let mut applied = whole(|| state.apply(now, command));
            let after = self.remember(command, &mut applied);
            effects.extend(applied.effects);
            match applied.answer {
                Answer::Later { ticket } => {
                    self.more.notify_one();
                    let (sender, receiver) = oneshot::channel();
                    // While the state is locked it cannot come.
                    self.promised.lock().insert(ticket, sender);
                    Err(receiver)
                }
                answer => Ok((answer, after)),
            }
        };
        whole(|| self.tell(effects));
        answer
    }

    /// Applies commands of a stream in order, with no other in between; `None`: another stream has
    /// taken its place.
    fn apply_of<'a>(
        self: &Arc<Self>,
        registration: &Registration,
        commands: impl Iterator<Item = &'a Command>,
    ) -> Option<Vec<(Answer, After)>> {
        self.apply_if(|| self.sessions.is_current(registration), commands)
    }

    fn apply_if<'a>(
        self: &Arc<Self>,
        wanted: impl FnOnce() -> bool,
        commands: impl Iterator<Item = &'a Command>,
    ) -> Option<Vec<(Answer, After)>> {
        let mut answers = Vec::with_capacity(commands.size_hint().1.unwrap_or(1));
        let mut effects: Vec<Effect> = Vec::new();
        {
            let mut state = self.state.lock();
            // Under the lock: whatever is applied for the newer stream comes after this.
            if !wanted() {
                return None;
            }
            // Read under the lock, so that no step is earlier than one before it.
            let now = self.clock.now();
            for command in commands {
                if let Some(busy) = self.busy(command) {
                    answers.push((busy, 0));
                    continue;
                }
                let mut applied = whole(|| state.apply(now, command));
                let after = self.remember(command, &mut applied);
                if let Answer::Later { .. } = applied.answer {
                    self.more.notify_one();
                }
                answers.push((applied.answer, after));
                effects.extend(applied.effects);
            }
        }
        whole(|| self.tell(effects));
        Some(answers)
    }

    /// Lets others know what concerns them.
    fn tell(self: &Arc<Self>, effects: Vec<Effect>) {
        if effects.is_empty() {
            return;
        }
        let untold = self.sessions.invalidate(&effects);
        self.traffic.untold_invalidations.inc_by(untold);
        for effect in effects {
            match effect {
                Effect::Reclaim { client } => {
                    self.sessions.reclaim(client);
                    continue;
                }
                Effect::Nudge { client } => {
                    self.sessions.nudge(client);
                    continue;
                }
                _ => {}
            }
            let Effect::Settled {
                ticket,
                caller,
                operation,
                answer,
            } = effect
            else {
                continue;
            };
            // The answer may be about what other steps have told.
            let settled = (ticket, caller, operation);
            self.when_durable_then(self.unlogged(), answer, move |shared, answer| {
                shared.give(settled, answer);
            });
        }
    }

    /// Gives an answer that was promised.
    fn give(&self, (ticket, caller, operation): (u64, Caller, Operation), answer: Answer) {
        match caller {
            Caller::Session { client, number } => {
                let answer = Some(self.reply(&operation, answer));
                let answer = proto::Answer { number, answer };
                self.sessions.answer(client, answer);
            }
            Caller::Unary { .. } => {
                if let Some(waiting) = self.promised.lock().remove(&ticket) {
                    // The caller may be gone.
                    let _ = waiting.send(answer);
                }
            }
        }
    }

    fn reply(&self, operation: &Operation, answer: Answer) -> Reply {
        self.traffic.count(operation, &answer);
        answer::reply(&self.terms, operation, answer)
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.terms.epoch
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.lock().counters()
    }

    pub(crate) fn open_sessions(&self) -> usize {
        self.sessions.count()
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Ends all sessions; no new one begins.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.sessions.stop();
        self.promised.lock().clear();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
