//! Whether to try a link to a peer at all.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::Health;
use crate::time::Time;

/// When a [`Circuit`] opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitConfig {
    /// So many faults within the window open it; at least 1.
    pub errors: u32,
    /// How long a fault counts.
    pub window: Duration,
    /// How long it stays open the first time. Each time that follows soon, it is twice as long.
    pub cooldown: Duration,
    /// At most so long.
    pub most_cooldown: Duration,
    /// A probe of which nothing was heard for so long is lost.
    pub probe_patience: Duration,
}

impl Default for CircuitConfig {
    /// Three faults in 10 s open it for 100 ms, then twice as long up to 10 s; a probe has 1 s.
    fn default() -> Self {
        Self {
            errors: 3,
            window: Duration::from_secs(10),
            cooldown: Duration::from_millis(100),
            most_cooldown: Duration::from_secs(10),
            probe_patience: Duration::from_secs(1),
        }
    }
}

/// The circuit breaker of one link to one peer. Closed, it lets everything through; open, nothing;
/// half open, one request, whose end decides.
///
/// A fault is an event of the link: a connection that broke counts once, however many transfers it
/// ended. What a peer refuses for a good reason is no fault.
#[derive(Clone, Debug)]
pub struct Circuit {
    config: CircuitConfig,
    state: State,
    /// Grows with every change of state, so that what was let through before it decides nothing.
    epoch: u64,
    /// For how long it opens next.
    cooldown: Duration,
    /// When it was closed last after having been open.
    mended: Option<Time>,
}

#[derive(Clone, Debug)]
enum State {
    /// With the faults of the window, the oldest first.
    Closed(VecDeque<Time>),
    HalfOpen {
        why: Arc<str>,
        /// When the request that tries was let through.
        probe: Option<Time>,
    },
    Open {
        why: Arc<str>,
        until: Time,
    },
}

/// The permission to post a request; its end is reported with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the circuit waits to hear how the request ended"]
pub struct Pass {
    epoch: u64,
    probe: bool,
}

impl Pass {
    /// The request tries a link that failed: it is the only one, and may fail again.
    pub fn is_probe(self) -> bool {
        self.probe
    }
}

/// No request is let through now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("circuit open for {left:?} more: {why}")]
pub struct CircuitOpen {
    /// What made it open.
    pub why: Arc<str>,
    /// When to ask again.
    pub left: Duration,
}

impl Circuit {
    /// A closed circuit.
    pub fn new(config: CircuitConfig) -> Self {
        Self {
            config,
            state: State::Closed(VecDeque::new()),
            epoch: 0,
            cooldown: config.cooldown,
            mended: None,
        }
    }

    /// Lets a request through, or says why not.
    pub fn admit(&mut self, now: Time) -> Result<Pass, CircuitOpen> {
        let (why, ready) = match &self.state {
            State::Closed(_) => {
                return Ok(Pass {
                    epoch: self.epoch,
                    probe: false,
                });
            }
            State::HalfOpen { why, probe } => {
                let lost = |since: &Time| *since + self.config.probe_patience;
                (why, probe.as_ref().map_or(now, lost))
            }
            State::Open { why, until } => (why, *until),
        };
        if now < ready {
            return Err(CircuitOpen {
                why: Arc::clone(why),
                left: ready.since(now),
            });
        }
        let why = Arc::clone(why);
        self.enter(State::HalfOpen {
            why,
            probe: Some(now),
        });
        Ok(Pass {
            epoch: self.epoch,
            probe: true,
        })
    }

    /// The request came through.
    pub fn succeeded(&mut self, pass: Pass, now: Time) {
        if pass.epoch == self.epoch && pass.probe {
            self.mended = Some(now);
            self.enter(State::Closed(VecDeque::new()));
        }
    }

    /// The link failed under the request. `true`: the circuit is open now.
    pub fn failed(&mut self, pass: Pass, now: Time, why: &str) -> bool {
        let window = self.config.window;
        match &mut self.state {
            _ if pass.epoch != self.epoch => false,
            State::Closed(faults) => {
                while faults.front().is_some_and(|at| now.since(*at) > window) {
                    faults.pop_front();
                }
                faults.push_back(now);
                let enough = faults.len() >= self.config.errors as usize;
                if enough {
                    self.open(now, why);
                }
                enough
            }
            State::HalfOpen { .. } | State::Open { .. } => {
                self.open(now, why);
                true
            }
        }
    }

    /// The link says that the peer cannot be reached over it at all: it opens at once.
    pub fn broke(&mut self, pass: Pass, now: Time, why: &str) {
        if pass.epoch == self.epoch {
            self.open(now, why);
        }
    }

    /// The request ended without saying anything about the link, such as by being cancelled.
    pub fn abandoned(&mut self, pass: Pass) {
        if let State::HalfOpen { probe, .. } = &mut self.state
            && pass.epoch == self.epoch
        {
            *probe = None;
        }
    }

    /// It lets everything through.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// For the selector.
    pub fn health(&self, now: Time) -> Health<'_> {
        match &self.state {
            State::HalfOpen {
                why,
                probe: Some(since),
            } if now < *since + self.config.probe_patience => Health::Open {
                why,
                left: (*since + self.config.probe_patience).since(now),
            },
            State::Closed(_) => Health::Closed,
            State::Open { why, until } if now < *until => Health::Open {
                why,
                left: until.since(now),
            },
            State::Open { why, .. } | State::HalfOpen { why, .. } => Health::HalfOpen { why },
        }
    }

    /// When an open one lets a request try.
    pub fn next_try(&self) -> Option<Time> {
        match &self.state {
            State::Open { until, .. } => Some(*until),
            State::Closed(_) | State::HalfOpen { .. } => None,
        }
    }

    fn open(&mut self, now: Time, why: &str) {
        let relapse = match self.state {
            State::Closed(_) => self
                .mended
                .is_some_and(|mended| now.since(mended) <= self.config.window),
            State::HalfOpen { .. } | State::Open { .. } => true,
        };
        if !relapse {
            self.cooldown = self.config.cooldown;
        }
        let until = now + self.cooldown;
        self.cooldown = (self.cooldown * 2).min(self.config.most_cooldown);
        self.enter(State::Open {
            why: why.into(),
            until,
        });
    }

    fn enter(&mut self, state: State) {
        self.epoch += 1;
        self.state = state;
    }
}

impl Default for Circuit {
    fn default() -> Self {
        Self::new(CircuitConfig::default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Time {
        Time(ms * 1000)
    }

    fn opened_at(now: Time) -> Circuit {
        let mut circuit = Circuit::default();
        let pass = circuit.admit(now).unwrap();
        circuit.broke(pass, now, "refused");
        circuit
    }

    #[test]
    fn faults_within_the_window_open_it_and_scattered_ones_do_not() {
        let mut circuit = Circuit::default();
        for at in [0, 6_000, 12_000, 18_000] {
            let pass = circuit.admit(ms(at)).unwrap();
            assert!(!circuit.failed(pass, ms(at), "reset"));
        }
        let pass = circuit.admit(ms(19_000)).unwrap();
        assert!(circuit.failed(pass, ms(19_000), "reset"));
        let open = circuit.admit(ms(19_040)).unwrap_err();
        assert_eq!(open.left, Duration::from_millis(60));
        assert_eq!(open.to_string(), "circuit open for 60ms more: reset");
        assert_eq!(circuit.next_try(), Some(ms(19_100)));
    }

    #[test]
    fn a_half_open_one_lets_one_request_try_and_its_end_decides() {
        let mut circuit = opened_at(ms(0));
        assert!(matches!(circuit.health(ms(99)), Health::Open { .. }));
        assert_eq!(circuit.health(ms(100)), Health::HalfOpen { why: "refused" });
        let probe = circuit.admit(ms(100)).unwrap();
        assert!(probe.is_probe());
        assert!(circuit.admit(ms(101)).is_err(), "only one tries");
        circuit.failed(probe, ms(110), "refused again");
        let second = circuit.admit(ms(309)).unwrap_err();
        assert_eq!(second.left, Duration::from_millis(1), "twice as long");
        let probe = circuit.admit(ms(310)).unwrap();
        circuit.succeeded(probe, ms(320));
        assert_eq!(circuit.health(ms(320)), Health::Closed);
        assert!(!circuit.admit(ms(320)).unwrap().is_probe());
    }

    #[test]
    fn a_probe_that_says_nothing_makes_way_for_another() {
        let mut circuit = opened_at(ms(0));
        let probe = circuit.admit(ms(100)).unwrap();
        circuit.abandoned(probe);
        let lost = circuit.admit(ms(101)).unwrap();
        assert!(circuit.admit(ms(1_100)).is_err());
        let third = circuit.admit(ms(1_101)).unwrap();
        circuit.succeeded(lost, ms(1_102));
        assert!(
            circuit.admit(ms(1_102)).is_err(),
            "a probe that was given up decides nothing"
        );
        circuit.succeeded(third, ms(1_103));
        assert_eq!(circuit.health(ms(1_103)), Health::Closed);
    }

    #[test]
    fn law_07_what_was_let_through_before_it_opened_changes_nothing() {
        let mut circuit = Circuit::default();
        let early = circuit.admit(ms(0)).unwrap();
        let bad = circuit.admit(ms(0)).unwrap();
        circuit.broke(bad, ms(1), "refused");
        circuit.succeeded(early, ms(2));
        assert!(circuit.admit(ms(2)).is_err());
        let probe = circuit.admit(ms(101)).unwrap();
        assert!(!circuit.failed(early, ms(102), "the old connection"));
        circuit.succeeded(probe, ms(103));
        assert_eq!(circuit.health(ms(103)), Health::Closed);
    }

    #[test]
    fn one_that_fails_soon_after_it_was_mended_stays_open_longer() {
        let mut circuit = opened_at(ms(0));
        for (at, cooldown) in [(100, 200), (400, 400), (30_000, 100)] {
            let probe = circuit.admit(ms(at)).unwrap();
            circuit.succeeded(probe, ms(at));
            // The last time it had been well for longer than the window.
            let fails = ms(if cooldown == 100 { at + 10_001 } else { at });
            let pass = circuit.admit(fails).unwrap();
            circuit.broke(pass, fails, "refused");
            assert_eq!(
                circuit.next_try(),
                Some(fails + Duration::from_millis(cooldown))
            );
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_it_never_stays_open_longer_than_it_may_and_one_probes_at_a_time(
            steps in prop::collection::vec((0..5u8, 0..400u64), 1..300)
        ) {
            let config = CircuitConfig { most_cooldown: Duration::from_millis(900), ..CircuitConfig::default() };
            let mut circuit = Circuit::new(config);
            let mut now = Time::ZERO;
            let mut held: Vec<Pass> = Vec::new();
            let mut probing: Option<Time> = None;
            for (what, pause) in steps {
                now += Duration::from_millis(pause);
                match circuit.admit(now) {
                    Ok(pass) => {
                        if pass.is_probe() {
                            let alone = probing.is_none_or(|since| now.since(since) >= config.probe_patience);
                            prop_assert!(alone);
                            probing = Some(now);
                        } else {
                            probing = None;
                        }
                        held.push(pass);
                    }
                    Err(open) => prop_assert!(open.left <= config.probe_patience.max(config.most_cooldown)),
                }
                let Some(pass) = held.pop() else { continue };
                let current = pass.epoch == circuit.epoch && pass.probe;
                match what {
                    0 => circuit.succeeded(pass, now),
                    1 => { circuit.failed(pass, now, "reset"); }
                    2 => circuit.broke(pass, now, "refused"),
                    3 => circuit.abandoned(pass),
                    _ => { held.push(pass); continue; }
                }
                if current {
                    probing = None;
                }
            }
        }
    }
}
