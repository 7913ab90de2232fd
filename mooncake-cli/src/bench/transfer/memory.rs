//! Copies within this process, as far as the machine goes.

use std::time::Duration;

use super::super::{Contender, Sample, own_cpu};
use super::Conditions;
use super::case::Case;
use super::contents::{check_and_wipe, fill, wipe};
use super::pace::{sample, together};
use super::walk::{Walk, Walked};
use crate::output::Failure;

/// Moves one block.
type Copy = fn(&mut [u8], &[u8]);

/// A block at a time from one region to the other.
#[derive(Debug)]
pub(super) struct Copier {
    case: Case,
    verify: bool,
    copy: Copy,
    whose: &'static str,
    callers: Vec<Caller>,
}

#[derive(Debug)]
struct Caller {
    walk: Walk,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copier {
    /// By the copy of the C library.
    pub(super) fn memcpy(case: &Case, conditions: &Conditions) -> Result<Self, Failure> {
        Self::new(case, conditions, <[u8]>::copy_from_slice, "memcpy")
    }

    /// By stores past the cache.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn streaming(case: &Case, conditions: &Conditions) -> Result<Self, Failure> {
        let whose = "the streaming copy";
        Self::new(case, conditions, super::streaming::copy, whose)
    }

    fn new(
        case: &Case,
        conditions: &Conditions,
        copy: Copy,
        whose: &'static str,
    ) -> Result<Self, Failure> {
        let Conditions { window, verify, .. } = *conditions;
        let region = window / case.threads;
        let walk = Walk::new(0, region, case.block, case.batch);
        let walk = walk.ok_or_else(|| case.too_large(window))?;
        let caller = || {
            let (mut from, mut to) = (vec![0; region as usize], vec![0; region as usize]);
            fill(from.as_mut_slice(), region);
            wipe(&mut to.as_mut_slice(), 0, region);
            Caller { walk, from, to }
        };
        Ok(Self {
            case: *case,
            verify,
            copy,
            whose,
            callers: (0..case.threads).map(|_| caller()).collect(),
        })
    }
}

impl Contender for Copier {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let Case { block, batch, .. } = self.case;
        let (copy, pace) = (self.copy, self.case.pace());
        let cpu = own_cpu();
        let (tallies, wall) = together(&mut self.callers, |caller| {
            pace.run(budget, |number| {
                for i in number * batch..(number + 1) * batch {
                    let (to, from) = (caller.walk.dest(i), caller.walk.source(i));
                    copy(
                        &mut caller.to[to as usize..(to + block) as usize],
                        &caller.from[from as usize..(from + block) as usize],
                    );
                }
                Ok(())
            })
        })?;
        let cpu = own_cpu() - cpu;
        if self.verify {
            for (caller, tally) in self.callers.iter_mut().zip(&tallies) {
                let walked = Walked {
                    walk: caller.walk,
                    done: tally.batches * batch,
                };
                let whose = format!("what {} has copied", self.whose);
                check_and_wipe(&mut caller.to.as_mut_slice(), walked, &whose)?;
            }
        }
        let tallies = tallies.iter().map(|tally| (tally, batch));
        Ok(sample(tallies, block, wall, cpu))
    }
}
