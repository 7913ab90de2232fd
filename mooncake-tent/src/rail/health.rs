//! One rail: open, cooling down after errors, or tried by a single slice.

use std::time::Duration;

use smallvec::SmallVec;

use crate::Time;

/// When a rail is closed, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailPolicy {
    /// So many errors within [`error_window`](Self::error_window) close a rail; 0 counts as 1.
    pub error_threshold: u32,
    /// How long an error is held against a rail.
    pub error_window: Duration,
    /// For how long a rail is closed at first.
    pub cooldown: Duration,
    /// Each time that the trial fails, or the rail soon after it, the cooldown doubles up to this.
    pub max_cooldown: Duration,
    /// A trial of which nothing was heard for so long is given up, and another one let through.
    pub probe_patience: Duration,
}

impl Default for RailPolicy {
    /// Three errors within 10 s; closed for 1 s, at most for 30 s, since a trial costs one slice;
    /// 5 s for a trial.
    fn default() -> Self {
        Self {
            error_threshold: 3,
            error_window: Duration::from_secs(10),
            cooldown: Duration::from_secs(1),
            max_cooldown: Duration::from_secs(30),
            probe_patience: Duration::from_secs(5),
        }
    }
}

/// What may be posted on a rail now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    /// Anything.
    Open(Permit),
    /// One slice, whose outcome decides. It is given to one caller at a time.
    Probe(Permit),
    /// Nothing; asking again makes sense then.
    Closed {
        /// The end of the cooldown, or of the patience with a trial.
        until: Time,
    },
}

impl Admission {
    /// What goes with the slices, if any may be posted.
    pub fn permit(self) -> Option<Permit> {
        match self {
            Self::Open(permit) | Self::Probe(permit) => Some(permit),
            Self::Closed { .. } => None,
        }
    }
}

/// Goes with a slice and comes back with its outcome, which counts only for the state of the rail in
/// which the slice was admitted: late news of an old burst cannot close a rail that has recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permit {
    epoch: u64,
}

/// How a rail is, for those who look on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailState {
    /// It carries slices.
    Open {
        /// Errors that are still held against it.
        errors: u32,
    },
    /// It carries none.
    Cooling {
        /// When it may be tried.
        until: Time,
    },
    /// It carries one slice as a trial.
    Probing {
        /// When the trial is given up.
        until: Time,
    },
}

/// The health of one rail.
///
/// Only failures need to be reported at once; the success of a slice matters if it was a
/// [`Probe`](Admission::Probe), and changes nothing otherwise.
#[derive(Clone, Debug, Default)]
pub struct RailHealth {
    state: State,
    /// Grows with each change of the state.
    epoch: u64,
    /// When the last errors were, oldest first.
    errors: SmallVec<[Time; 4]>,
    /// What the last cooldown was.
    cooldown: Duration,
    recovered: Time,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Open,
    Cooling {
        until: Time,
    },
    Probing {
        until: Time,
    },
}

impl RailHealth {
    /// A rail of which nothing bad is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to post on the rail.
    pub fn admit(&mut self, now: Time, policy: &RailPolicy) -> Admission {
        match self.state {
            State::Open => Admission::Open(self.permit()),
            State::Cooling { until } | State::Probing { until } if now < until => {
                Admission::Closed { until }
            }
            State::Cooling { .. } | State::Probing { .. } => {
                let until = now + policy.probe_patience;
                self.enter(State::Probing { until });
                Admission::Probe(self.permit())
            }
        }
    }

    /// A slice was moved.
    pub fn succeeded(&mut self, now: Time, permit: Permit) {
        if permit == self.permit() && matches!(self.state, State::Probing { .. }) {
            self.errors.clear();
            self.recovered = now;
            self.enter(State::Open);
        }
    }

    /// No slice was posted: the next one who asks may have the trial.
    pub fn unused(&mut self, now: Time, permit: Permit) {
        if permit == self.permit() && matches!(self.state, State::Probing { .. }) {
            self.enter(State::Cooling { until: now });
        }
    }

    /// A slice failed for a reason that lies with the rail, or was not heard of in time.
    pub fn failed(&mut self, now: Time, permit: Permit, policy: &RailPolicy) {
        if permit != self.permit() {
            return;
        }
        let threshold = policy.error_threshold.max(1) as usize;
        self.errors
            .retain(|error| now.since(*error) < policy.error_window);
        self.errors.push(now);
        let enough = self.errors.len() >= threshold;
        match self.state {
            State::Open if enough => self.close(now, policy),
            State::Probing { .. } => self.close(now, policy),
            State::Open | State::Cooling { .. } => {}
        }
    }

    /// The link says that the rail is dead: it is closed whatever the window says.
    pub fn lost(&mut self, now: Time, policy: &RailPolicy) {
        if !matches!(self.state, State::Cooling { .. }) {
            self.close(now, policy);
        }
    }

    /// The link says that the rail is back: it may be tried without waiting for the cooldown.
    pub fn restored(&mut self, now: Time) {
        if let State::Cooling { until } = &mut self.state {
            *until = now.min(*until);
        }
    }

    /// How it is.
    pub fn state(&self) -> RailState {
        match self.state {
            State::Open => RailState::Open {
                errors: u32::try_from(self.errors.len()).unwrap_or(u32::MAX),
            },
            State::Cooling { until } => RailState::Cooling { until },
            State::Probing { until } => RailState::Probing { until },
        }
    }

    fn close(&mut self, now: Time, policy: &RailPolicy) {
        // It was not well for as long as it had been closed: a relapse.
        let relapse = match self.state {
            State::Open => now.since(self.recovered) < self.cooldown,
            State::Cooling { .. } | State::Probing { .. } => true,
        };
        let first = policy.cooldown.min(policy.max_cooldown);
        self.cooldown = if relapse {
            let doubled = self.cooldown.saturating_mul(2);
            doubled.clamp(first, policy.max_cooldown)
        } else {
            first
        };
        self.errors.clear();
        self.enter(State::Cooling {
            until: now + self.cooldown,
        });
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.epoch += 1;
    }

    fn permit(&self) -> Permit {
        Permit { epoch: self.epoch }
    }
}

#[cfg(test)]
mod tests;
