//! The limit for files: a ring of the kernel's with the same pattern, and nothing around it.
//!
//! For each batch the caller puts in a read or write for every block, and waits for all of them in
//! the same call. The file is opened past the page cache, as the engine opens it, and the memory is
//! the engine's own: how fast a disk is depends on where its bytes go.

#![expect(unsafe_code, reason = "the kernel moves bytes by itself")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, opcode, types::Fd};
use mooncake_tent::{LocalSlice, Memory};
use rustix::fs::OFlags;

use super::super::{Contender, Sample, own_cpu};
use super::Conditions;
use super::case::{Case, Op};
use super::contents::check_and_wipe;
use super::file::BenchFile;
use super::pace::{sample, together};
use super::walk::{Walk, Walked};
use crate::output::Failure;

/// As many callers as a case has, each with a ring of its own.
pub(super) struct FileLoop {
    case: Case,
    verify: bool,
    /// All of it.
    memory: LocalSlice,
    file: Arc<BenchFile>,
    opened: File,
    callers: Vec<Caller>,
}

struct Caller {
    /// `None`: the kernel forbids rings, and the engine does without as well.
    ring: Option<IoUring>,
    walk: Walk,
}

impl FileLoop {
    pub(super) fn new(
        case: &Case,
        conditions: &Conditions,
        memory: LocalSlice,
        file: &Arc<BenchFile>,
    ) -> Result<Self, Failure> {
        let Conditions { window, verify, .. } = *conditions;
        let region = conditions.reach(case) / case.threads;
        let caller = |number| {
            let walk = Walk::new(number * region, region, case.block, case.batch);
            Ok(Caller {
                ring: IoUring::new(case.batch as u32).ok(),
                walk: walk.ok_or_else(|| case.too_large(window))?,
            })
        };
        Ok(Self {
            case: *case,
            verify,
            memory,
            file: Arc::clone(file),
            opened: open(file, case.is_of_pages()).map_err(broken)?,
            callers: (0..case.threads)
                .map(caller)
                .collect::<Result<_, Failure>>()?,
        })
    }
}

/// Where the file system has no way past the page cache, the engine does not go there either.
fn open(file: &BenchFile, direct: bool) -> io::Result<File> {
    let with = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(flags.bits().cast_signed());
        options.open(file.path())
    };
    match direct {
        true => with(OFlags::DIRECT).or_else(|_| with(OFlags::empty())),
        false => with(OFlags::empty()),
    }
}

impl Caller {
    fn batch(&mut self, case: &Case, memory: &Memory, file: &File, number: u64) -> io::Result<()> {
        let (first, walk) = (number * case.batch, self.walk);
        let blocks = (first..first + case.batch).map(|i| {
            let (local, remote) = match case.op {
                Op::Write => (walk.source(i), walk.dest(i)),
                _ => (walk.dest(i), walk.source(i)),
            };
            ((memory.address() + local) as *mut u8, remote)
        });
        let Some(ring) = &mut self.ring else {
            return one_by_one(case, file, blocks);
        };
        let file = Fd(file.as_raw_fd());
        for (at, remote) in blocks {
            let block = case.block as u32;
            let request = match case.op {
                Op::Write => opcode::Write::new(file, at, block).offset(remote).build(),
                _ => opcode::Read::new(file, at, block).offset(remote).build(),
            };
            // SAFETY: the block lies within the memory, which lives until all requests have
            // completed: a batch waits for its own, whatever becomes of them.
            unsafe { ring.submission().push(&request) }.expect("a ring has room for a batch");
        }
        ring.submit_and_wait(case.batch as usize)?;
        let mut left = case.batch;
        let mut short = None;
        while left > 0 {
            for completion in ring.completion() {
                left -= 1;
                if completion.result() != case.block as i32 {
                    short = Some(completion.result());
                }
            }
            if left > 0 {
                ring.submit_and_wait(1)?;
            }
        }
        match short {
            None => Ok(()),
            Some(error) if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Contender for FileLoop {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let Self { case, memory, .. } = self;
        let memory = memory.buffer().memory();
        let pace = case.pace();
        let file = &self.opened;
        let cpu = own_cpu();
        let (tallies, wall) = together(&mut self.callers, |caller| {
            pace.run(budget, |number| {
                caller.batch(case, memory, file, number).map_err(broken)
            })
        })?;
        let cpu = own_cpu() - cpu;
        if self.verify {
            let walked = self
                .callers
                .iter()
                .zip(&tallies)
                .map(|(caller, tally)| Walked {
                    walk: caller.walk,
                    done: tally.batches * case.batch,
                });
            let walked: Vec<_> = walked.collect();
            if case.op == Op::Write {
                self.file.check(walked, "what a file loop has written")?;
            } else {
                for walked in walked {
                    check_and_wipe(&mut &*memory, walked, "what a file loop has read")?;
                }
            }
        }
        let tallies = tallies.iter().map(|tally| (tally, case.batch));
        Ok(sample(tallies, case.block, wall, cpu))
    }
}

fn one_by_one(
    case: &Case,
    file: &File,
    blocks: impl Iterator<Item = (*mut u8, u64)>,
) -> io::Result<()> {
    for (at, remote) in blocks {
        // SAFETY: the block lies within the memory, and nobody else looks at it meanwhile.
        let block = unsafe { std::slice::from_raw_parts_mut(at, case.block as usize) };
        match case.op {
            Op::Write => file.write_all_at(block, remote)?,
            _ => file.read_exact_at(block, remote)?,
        }
    }
    Ok(())
}

fn broken(error: io::Error) -> Failure {
    Failure::new("a plain file loop failed").because(error)
}
