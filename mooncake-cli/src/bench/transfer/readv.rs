//! The kernel's copies out of another process, without any engine.

#![expect(unsafe_code, reason = "the call that the limit of a link is made of")]

use std::io;
use std::time::Duration;

use super::super::{Contender, Sample, own_cpu};
use super::Conditions;
use super::case::{Case, Op};
use super::contents::check_and_wipe;
use super::pace::{sample, together};
use super::pool::{Pool, Region};
use super::walk::{Walk, Walked};
use crate::output::Failure;

/// `process_vm_readv`, a block at a time.
#[derive(Debug)]
pub(super) struct Readv {
    case: Case,
    verify: bool,
    pid: i32,
    /// Where the memory that is read begins in its process.
    address: u64,
    callers: Vec<Caller>,
}

#[derive(Debug)]
struct Caller {
    walk: Walk,
    to: Region,
    /// Where its part of the other process's memory begins.
    from: u64,
}

impl Readv {
    /// Out of the process and address that `place` names.
    pub(super) fn new(
        case: &Case,
        conditions: &Conditions,
        pool: &Pool,
        place: (Option<u32>, u64),
    ) -> Result<Self, Failure> {
        let Conditions { window, verify, .. } = *conditions;
        let region = conditions.reach(case) / case.threads;
        let walk = Walk::new(0, region, case.block, case.batch);
        let walk = walk.ok_or_else(|| case.too_large(window))?;
        let (pid, address) = place;
        let pid = pid.and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.ok_or_else(|| Failure::new("the target has ended"))?;
        let caller = |number| {
            let mut to = pool.take(region);
            to.prepare(false);
            let from = address + number * region;
            Caller { walk, to, from }
        };
        Ok(Self {
            case: *case,
            // What is written is not there to be read.
            verify: verify && case.op == Op::Read && case.threads == 1,
            pid,
            address,
            callers: (0..case.threads).map(caller).collect(),
        })
    }
}

impl Contender for Readv {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let Case { block, batch, .. } = self.case;
        let (pid, pace) = (self.pid, self.case.pace());
        let cpu = own_cpu();
        let (tallies, wall) = together(&mut self.callers, |caller| {
            pace.run(budget, |number| {
                for i in number * batch..(number + 1) * batch {
                    let at = caller.walk.dest(i) as usize;
                    let into = &mut caller.to.bytes[at..at + block as usize];
                    read(pid, caller.from + caller.walk.source(i), into)?;
                }
                Ok(())
            })
        })?;
        let cpu = own_cpu() - cpu;
        if self.verify {
            debug_assert_eq!(self.callers[0].from, self.address);
            for (caller, tally) in self.callers.iter_mut().zip(&tallies) {
                let walked = Walked {
                    walk: caller.walk,
                    done: tally.batches * batch,
                };
                let memory = &mut caller.to.bytes.as_mut_slice();
                check_and_wipe(memory, walked, "what the kernel has copied")?;
            }
        }
        let tallies = tallies.iter().map(|tally| (tally, batch));
        Ok(sample(tallies, block, wall, cpu))
    }
}

fn read(pid: i32, address: u64, into: &mut [u8]) -> Result<(), Failure> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let local = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut((address as usize) + done),
            iov_len: rest.len(),
        };
        // SAFETY: the local range is ours alone; the kernel checks the other one.
        let read =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(read) {
            Ok(read) if read > 0 => done += read,
            _ => {
                let error = io::Error::last_os_error();
                return Err(Failure::new("the target cannot be read").because(error));
            }
        }
    }
    Ok(())
}
