//! When batches start, and what became of them.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::super::Sample;
use crate::latency::Latency;
use crate::output::Failure;

/// How batches follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// The time from one start to the next; `None`: as soon as the one before has ended.
    pub(super) every: Option<Duration>,
    /// Whether the caller may sleep until then.
    pub(super) poll: bool,
}

/// How far from its end a sleep is left, since nobody is woken on time.
const WAKE_EARLY: Duration = Duration::from_micros(150);

/// What one caller did.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) batches: u64,
    latency: Latency,
    end: Option<Instant>,
}

impl Pace {
    /// Runs batches for `budget`, at least one. Each is told its number.
    ///
    /// The latency of a batch counts from when it should have started: a slow one makes those that
    /// had to wait for it slow, too.
    pub(super) fn run(
        self,
        budget: Duration,
        mut batch: impl FnMut(u64) -> Result<(), Failure>,
    ) -> Result<Tally, Failure> {
        let mut tally = Tally::default();
        let start = Instant::now();
        let mut due = start;
        loop {
            self.wait_until(due);
            batch(tally.batches)?;
            let now = Instant::now();
            tally.batches += 1;
            tally.latency.record(now - due);
            tally.end = Some(now);
            due = self.next_start(start, tally.batches, now);
            if due >= start + budget {
                return Ok(tally);
            }
        }
    }

    /// When batch `number` should start, if the one before has ended `now`.
    fn next_start(self, start: Instant, number: u64, now: Instant) -> Instant {
        match self.every {
            None => now,
            Some(every) => start + Duration::from_nanos(every.as_nanos() as u64 * number),
        }
    }

    fn wait_until(self, due: Instant) {
        if self.every.is_none() {
            return;
        }
        if !self.poll {
            let left = due.saturating_duration_since(Instant::now());
            thread::sleep(left.saturating_sub(WAKE_EARLY));
        }
        while Instant::now() < due {
            std::hint::spin_loop();
        }
    }
}

/// Lets each of `callers` run on a thread of its own, all from the same moment on. The first has the
/// calling thread if it is alone. Tells what each did, and how long all took.
pub(super) fn together<C: Send>(
    callers: &mut [C],
    run: impl Fn(&mut C) -> Result<Tally, Failure> + Sync,
) -> Result<(Vec<Tally>, Duration), Failure> {
    if let [alone] = callers {
        let start = Instant::now();
        let tally = run(alone)?;
        let end = tally.end.unwrap_or(start);
        return Ok((vec![tally], end - start));
    }
    let gate = Barrier::new(callers.len() + 1);
    let (start, tallies) = thread::scope(|scope| {
        let threads: Vec<_> = callers
            .iter_mut()
            .map(|caller| {
                scope.spawn(|| {
                    gate.wait();
                    run(caller)
                })
            })
            .collect();
        gate.wait();
        let start = Instant::now();
        let ended = threads.into_iter().map(|thread| {
            let lost = |_| Err(Failure::new("a caller's thread panicked"));
            thread.join().unwrap_or_else(lost)
        });
        (start, ended.collect::<Result<Vec<_>, _>>())
    });
    let tallies = tallies?;
    let end = tallies.iter().filter_map(|tally| tally.end).max();
    let wall = end.map_or(Duration::ZERO, |end| end - start);
    Ok((tallies, wall))
}

/// The sum of what callers did, each in batches of its own size.
pub(super) fn sample<'a>(
    tallies: impl IntoIterator<Item = (&'a Tally, u64)>,
    block: u64,
    wall: Duration,
    cpu: Duration,
) -> Sample {
    let mut sample = Sample {
        wall,
        cpu,
        ..Sample::default()
    };
    for (tally, batch) in tallies {
        sample.operations += tally.batches * batch;
        sample.latency.merge(&tally.latency);
    }
    sample.bytes = sample.operations * block;
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_batch_makes_those_behind_it_late() {
        let every = Duration::from_millis(1);
        let pace = Pace {
            every: Some(every),
            poll: false,
        };
        let slow = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(30) {}
        };
        let tally = pace.run(Duration::from_millis(40), |number| {
            if number == 5 {
                slow();
            }
            Ok(())
        });
        let tally = tally.unwrap();
        assert_eq!(tally.batches, 40);
        // Without counting from the intended start, only one of them would be late.
        assert!(tally.latency.quantile_us(0.75) > 1_000.0);
    }

    #[test]
    fn a_closed_loop_runs_at_least_once() {
        let pace = Pace {
            every: None,
            poll: false,
        };
        let mut runs = 0;
        let tally = pace.run(Duration::ZERO, |_| {
            runs += 1;
            Ok(())
        });
        assert_eq!((tally.unwrap().batches, runs), (1, 1));
    }

    #[test]
    fn callers_are_added_up() {
        let pace = Pace {
            every: None,
            poll: true,
        };
        let mut callers = [1_u64, 2, 3];
        let (tallies, wall) = together(&mut callers, |caller| {
            let budget = Duration::from_micros(*caller);
            pace.run(budget, |_| Ok(()))
        })
        .unwrap();
        let batches: u64 = tallies.iter().map(|tally| tally.batches).sum();
        let sum = sample(tallies.iter().map(|tally| (tally, 2)), 10, wall, wall);
        assert_eq!(
            (sum.operations, sum.bytes, sum.latency.count()),
            (2 * batches, 20 * batches, batches)
        );
        let failed = together(&mut callers, |caller| match *caller {
            2 => Err(Failure::new("no")),
            _ => Ok(Tally::default()),
        });
        assert!(failed.is_err());
    }
}
