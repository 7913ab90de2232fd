//! The gRPC service: single calls, and the pipelined session.

mod answer;
mod clock;
mod fault;
mod request;
mod session;
mod sessions;
mod unary;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mooncake_proto::master::answer::Answer as Reply;
use parking_lot::Mutex;

pub(crate) use clock::epoch_by_date;
pub use session::SessionStream;

/// Between the wire and the state machine, for those that drive [`State`] without the service.
pub mod wire {
    pub use super::{
        answer::{Terms, refusal, reply},
        request::operation,
    };
}

use self::{answer::Terms, clock::Clock, sessions::Sessions};
use crate::{
    Time,
    metrics::Traffic,
    state::{Answer, Command, Counters, Effect, Operation, State},
};

/// How often the state machine looks for what is over.
const TICK: Duration = Duration::from_millis(100);

/// The master as a gRPC service. Clones serve the same state.
///
/// [`Master`](crate::Master) runs it with its listeners; taken alone it goes into any `tonic`
/// server, beside [`run_ticks`](Self::run_ticks).
#[derive(Clone, Debug)]
pub struct MasterService {
    shared: Arc<Shared>,
}

impl MasterService {
    /// Serves `state`, whose clock starts now. Clients are asked to ping at the interval.
    pub fn new(state: State, ping_interval: Duration) -> Self {
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
            ticks.tick().await;
            self.shared.apply(&Command::Tick);
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
    traffic: Traffic,
    terms: Terms,
    stopping: AtomicBool,
}

impl Shared {
    pub(crate) fn apply(&self, command: &Command) -> Answer {
        let mut answers = self.apply_all(std::iter::once(command));
        answers.pop().expect("one command has one answer")
    }

    /// Applies commands in order, with no other in between.
    fn apply_all<'a>(&self, commands: impl Iterator<Item = &'a Command>) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(commands.size_hint().1.unwrap_or(1));
        let mut effects: Vec<Effect> = Vec::new();
        {
            let mut state = self.state.lock();
            // Read under the lock, so that no step is earlier than one before it.
            let now = self.clock.now();
            for command in commands {
                let applied = state.apply(now, command);
                answers.push(applied.answer);
                effects.extend(applied.effects);
            }
        }
        if !effects.is_empty() {
            let untold = self.sessions.invalidate(&effects);
            self.traffic.untold_invalidations.inc_by(untold);
        }
        answers
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
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
