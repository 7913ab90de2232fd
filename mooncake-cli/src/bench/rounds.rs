//! Contenders take turns, so that whatever else the machine does hits all of them.

use std::time::Duration;

use super::{
    figures::{Figures, Sample, median},
    row::Yardstick,
};
use crate::output::Failure;

/// Something that can be measured again and again.
pub trait Contender {
    /// Works for about `budget`, and tells what it has done.
    ///
    /// # Errors
    ///
    /// It cannot go on, or moved wrong bytes.
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure>;
}

/// How long and how often each contender has its turn.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// Turns of each contender.
    pub rounds: usize,
    /// The length of one.
    pub budget: Duration,
}

impl Turns {
    /// Lets `contenders` take turns. The order is reversed from round to round, so that nobody always
    /// runs after the same other one. What they do before the first round is not counted.
    ///
    /// # Errors
    ///
    /// A contender fails.
    pub fn measure(self, contenders: &mut [&mut dyn Contender]) -> Result<Rounds, Failure> {
        let mut samples = vec![Vec::with_capacity(self.rounds); contenders.len()];
        for contender in &mut *contenders {
            contender.round(self.budget / 8)?;
        }
        for round in 0..self.rounds {
            for turn in 0..contenders.len() {
                let who = match round % 2 {
                    0 => turn,
                    _ => contenders.len() - 1 - turn,
                };
                samples[who].push(contenders[who].round(self.budget)?);
            }
        }
        Ok(Rounds { samples })
    }
}

/// What the contenders did, each in the order in which they were given.
#[derive(Clone, Debug)]
pub struct Rounds {
    samples: Vec<Vec<Sample>>,
}

impl Rounds {
    /// The medians of contender number `who`.
    #[must_use]
    pub fn figures(&self, who: usize) -> Figures {
        Figures::medians(&self.samples[who])
    }

    /// How `ours` compares with `theirs`: the median of the ratios of each round, above 1 where ours
    /// is better by this yardstick.
    #[must_use]
    pub fn ratio(&self, ours: usize, theirs: usize, by: Yardstick) -> f64 {
        let pairs = self.samples[ours].iter().zip(&self.samples[theirs]);
        let ratios = pairs.map(|(ours, theirs)| by.compare(&ours.figures(), &theirs.figures()));
        median(ratios)
    }

    /// Our processor time per operation in multiples of theirs: the median of the ratios of each round.
    #[must_use]
    pub fn cpu_ratio(&self, ours: usize, theirs: usize) -> f64 {
        let pairs = self.samples[ours].iter().zip(&self.samples[theirs]);
        let per_op = |sample: &Sample| sample.figures().cpu_us_per_op;
        let ratios = pairs
            .map(|(ours, theirs)| (per_op(ours), per_op(theirs)))
            .map(|(ours, theirs)| if theirs > 0.0 { ours / theirs } else { 0.0 });
        median(ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted {
        log: std::rc::Rc<std::cell::RefCell<Vec<&'static str>>>,
        name: &'static str,
        operations: Vec<u64>,
    }

    impl Contender for Counted {
        fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
            self.log.borrow_mut().push(self.name);
            Ok(Sample {
                operations: self.operations.pop().unwrap_or(0),
                wall: budget,
                ..Sample::default()
            })
        }
    }

    #[test]
    fn turns_alternate_and_ratios_are_taken_within_a_round() {
        let log = std::rc::Rc::default();
        let mut ours = Counted {
            log: std::rc::Rc::clone(&log),
            name: "ours",
            // From the last to the first; the last warms up.
            operations: vec![30, 200, 10, 1],
        };
        let mut theirs = Counted {
            log: std::rc::Rc::clone(&log),
            name: "theirs",
            operations: vec![10, 100, 20, 1],
        };
        let turns = Turns {
            rounds: 3,
            budget: Duration::from_secs(8),
        };
        let rounds = turns.measure(&mut [&mut ours, &mut theirs]).unwrap();
        let order = ["ours", "theirs"];
        let expected = [order, order, ["theirs", "ours"], order].concat();
        assert_eq!(*log.borrow(), expected);
        assert_eq!(rounds.ratio(0, 1, Yardstick::OpsPerS), 2.0);
        assert_eq!(rounds.figures(0).ops_per_s, 30.0 / 8.0);
    }
}
