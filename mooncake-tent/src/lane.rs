//! What is known of one link to one peer, as transfers found out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    Time,
    error::{Reason, Stage, TransferError},
    metrics::{Meter, MeterId},
    selector::{Circuit, CircuitConfig, Pass, RateTable},
    transport::{Op, Outcome},
};

/// What was measured counts for less after each of these.
const FADES_EVERY: Duration = Duration::from_secs(10);

/// Whether a link to a peer works, and how fast it is in each direction.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Of its times.
    start: Instant,
    /// The circuit is not closed, for those who look without a lock.
    troubled: AtomicBool,
    circuit: Mutex<Circuit>,
    rates: [Mutex<Rates>; 2],
    meter: (MeterId, Arc<Meter>),
}

#[derive(Debug, Default)]
struct Rates {
    table: RateTable,
    faded: Time,
}

impl Lane {
    /// One that works as far as is known; its times count from `start`.
    pub(crate) fn new(start: Instant, meter: (MeterId, Arc<Meter>)) -> Self {
        Self {
            start,
            troubled: AtomicBool::new(false),
            circuit: Mutex::new(Circuit::new(CircuitConfig::default())),
            rates: Default::default(),
            meter,
        }
    }

    /// It failed lately, so that not everything may go over it.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed)
    }

    /// Where what goes over it is counted.
    pub(crate) fn meter(&self) -> MeterId {
        self.meter.0
    }

    /// Its circuit, and the time for it.
    pub(crate) fn circuit(&self) -> (Circuit, Time) {
        (self.circuit.lock().clone(), self.now())
    }

    /// What was measured in this direction.
    pub(crate) fn rates(&self, op: Op) -> RateTable {
        let mut rates = self.rates[index(op)].lock();
        rates.fade(self.now());
        rates.table.clone()
    }

    /// Permission to be the one that tries it after it failed.
    pub(crate) fn admit_probe(&self) -> Option<Pass> {
        let mut circuit = self.circuit.lock();
        let pass = circuit.admit(self.now()).ok();
        pass.filter(|pass| pass.is_probe())
    }

    /// A transfer over it failed for that reason. `true`: it is not to be tried for now.
    pub(crate) fn failed(&self, pass: Option<Pass>, reason: &Reason) -> bool {
        let now = self.now();
        let why = reason.to_string();
        let mut circuit = self.circuit.lock();
        // What was posted before it opened says nothing of how it is since.
        let pass = pass.or_else(|| match circuit.is_closed() {
            true => circuit.admit(now).ok(),
            false => None,
        });
        let open = match (pass, reason) {
            (Some(pass), Reason::Unreachable(_) | Reason::OtherIncarnation) => {
                circuit.broke(pass, now, &why);
                true
            }
            (Some(pass), _) => circuit.failed(pass, now, &why),
            (None, _) => true,
        };
        self.troubled.store(!circuit.is_closed(), Ordering::Relaxed);
        open
    }

    /// A transfer ended so. Neither what the peer has answered nor what never came to the link is the
    /// link's fault.
    pub(crate) fn judge(&self, pass: Option<Pass>, error: &TransferError) {
        let answered = error.reason.is_an_answer();
        match pass {
            Some(pass) if error.stage == Stage::Resolve => self.abandoned(pass),
            Some(pass) if answered => self.succeeded(pass),
            None if answered || error.stage == Stage::Resolve => {}
            pass => drop(self.failed(pass, &error.reason)),
        }
    }

    /// The one that tried it came through.
    pub(crate) fn succeeded(&self, pass: Pass) {
        let mut circuit = self.circuit.lock();
        circuit.succeeded(pass, self.now());
        self.troubled.store(!circuit.is_closed(), Ordering::Relaxed);
    }

    /// The one that tried it says nothing of it.
    pub(crate) fn abandoned(&self, pass: Pass) {
        self.circuit.lock().abandoned(pass);
    }

    /// A transfer over it took so long. One of several that end at once may go uncounted, rather than
    /// wait.
    fn measured(&self, op: Op, length: u64, took: Duration) {
        self.meter.1.took(op, took);
        if let Some(mut rates) = self.rates[index(op)].try_lock() {
            rates.fade(self.now());
            rates.table.update(length, took);
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }
}

impl Rates {
    /// Brings it to `now`.
    fn fade(&mut self, now: Time) {
        // More than that leave nothing.
        for _ in 0..8 {
            if now.since(self.faded) < FADES_EVERY {
                return;
            }
            self.table.fade();
            self.faded += FADES_EVERY;
        }
        self.faded = now;
    }
}

fn index(op: Op) -> usize {
    usize::from(op == Op::Write)
}

/// Tells a lane how a task ended.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) lane: Arc<Lane>,
    /// When its link had it.
    pub(crate) since: Instant,
    /// The task tries whether the lane works again.
    pub(crate) pass: Option<Pass>,
}

impl Watch {
    /// The task ended for good, after `length` bytes if it completed.
    pub(crate) fn ended(&self, op: Op, length: u64, end: &Outcome) {
        match (end, self.pass) {
            (Outcome::Completed { .. }, pass) => {
                self.lane.measured(op, length, self.since.elapsed());
                if let Some(pass) = pass {
                    self.lane.succeeded(pass);
                }
            }
            (Outcome::Cancelled(_), Some(pass)) => self.lane.abandoned(pass),
            (Outcome::Failed(error) | Outcome::TimedOut(error), Some(pass)) => {
                self.lane.judge(Some(pass), error);
            }
            (_, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Incarnation;

    fn lane(start: Instant) -> Lane {
        Lane::new(start, (MeterId::NONE, Arc::default()))
    }

    fn measured(lane: &Lane, length: u64) {
        for _ in 0..RateTable::TRUSTED {
            lane.measured(Op::Read, length, Duration::from_millis(1));
        }
    }

    #[test]
    fn what_completes_is_measured_by_direction_and_what_fails_is_not() {
        let lane = Arc::new(lane(Instant::now()));
        let watch = Watch {
            lane: Arc::clone(&lane),
            since: Instant::now(),
            pass: None,
        };
        let late = Outcome::timed_out(Stage::Move, Incarnation::random());
        for _ in 0..RateTable::TRUSTED {
            watch.ended(Op::Read, 4096, &Outcome::Completed { bytes: 4096 });
            watch.ended(Op::Write, 4096, &late);
        }
        assert!(lane.rates(Op::Read).estimate(4096).is_some());
        assert!(lane.rates(Op::Write).estimate(4096).is_none());
    }

    #[test]
    fn law_12_what_was_measured_long_ago_is_unknown() {
        let lane = lane(Instant::now());
        measured(&lane, 4096);
        assert!(lane.rates(Op::Read).estimate(4096).is_some());
        let mut rates = lane.rates[0].lock();
        rates.fade(Time::ZERO + 100 * FADES_EVERY);
        assert!(rates.table.estimate(4096).is_none());
    }

    #[test]
    fn law_10_a_trial_that_was_answered_or_never_made_does_not_bar_the_lane() {
        let start = Instant::now().checked_sub(Duration::from_secs(100));
        let over = CircuitConfig::default().cooldown;
        let refused =
            |reason, stage| Outcome::Failed(TransferError::unstarted(reason, stage, None));
        for (end, mended) in [
            (refused(Reason::OutOfBounds, Stage::Admit), true),
            (refused(Reason::ArrivalsFull, Stage::Admit), true),
            (
                refused(Reason::Broken("fenced".into()), Stage::Resolve),
                false,
            ),
            (
                Outcome::timed_out(Stage::Resolve, Incarnation::random()),
                false,
            ),
        ] {
            let mut lane = lane(start.unwrap());
            assert!(lane.failed(None, &Reason::Unreachable("gone".into())));
            lane.start = lane.start.checked_sub(over).unwrap();
            let pass = lane.admit_probe();
            let lane = Arc::new(lane);
            let (since, watched) = (Instant::now(), Arc::clone(&lane));
            Watch {
                lane: watched,
                since,
                pass,
            }
            .ended(Op::Read, 1, &end);
            assert_eq!(lane.is_troubled(), !mended, "{end:?}");
            assert!(mended || lane.admit_probe().is_some(), "{end:?}");
        }
    }

    #[test]
    fn one_tries_a_lane_that_failed_and_its_end_decides() {
        let start = Instant::now().checked_sub(Duration::from_secs(100));
        let mut lane = lane(start.unwrap());
        assert!(lane.failed(None, &Reason::Unreachable("gone".into())));
        assert!(lane.is_troubled() && lane.admit_probe().is_none());
        // As if its cooldown were over.
        let over = lane.start.checked_sub(CircuitConfig::default().cooldown);
        lane.start = over.unwrap();
        let pass = lane.admit_probe().unwrap();
        assert!(lane.admit_probe().is_none(), "only one tries");
        assert!(
            lane.failed(None, &Reason::TimedOut),
            "what was posted before is no news"
        );
        lane.succeeded(pass);
        assert!(!lane.is_troubled());
    }
}
