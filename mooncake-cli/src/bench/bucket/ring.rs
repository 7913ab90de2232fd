//! The limit of what is read: a ring of the kernel's that always has so many reads of the same files under
//! way, past the page cache, and nothing around it.

#![expect(unsafe_code, reason = "the kernel writes to memory by itself")]

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types::Fd};
use rustix::fs::OFlags;

use super::get::CALL_BYTES;
use super::site::{Pages, disk, scatter};
use crate::bench::{Contender, Sample, own_cpu};
use crate::output::Failure;

/// What file systems ask of places past the page cache.
const BLOCK: u64 = 4096;

/// So often in a row the kernel may refuse to take or to give anything.
const REFUSALS: u32 = 1000;

/// Reads blocks at random.
pub(super) struct RingReads {
    /// `None`: the kernel forbids rings, and the storage does without as well.
    ring: Option<IoUring>,
    files: Vec<(File, u64)>,
    block: usize,
    depth: usize,
    next: u64,
    memory: Pages,
    /// Blocks of the memory that no read has. There are as many as ours are read to, since how fast a disk is depends on
    /// where its bytes go.
    free: VecDeque<usize>,
}

impl RingReads {
    /// From the files of a storage, of which those are taken that have room for a block.
    pub(super) fn new(storage: &Path, block: usize, depth: usize) -> Result<Self, Failure> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(storage).map_err(disk)? {
            let path = entry.map_err(disk)?.path();
            if path.extension().is_some_and(|it| it == "bucket") {
                let file = open(&path).map_err(disk)?;
                let bytes = file.metadata().map_err(disk)?.len();
                if bytes > block as u64 + BLOCK {
                    files.push((file, bytes));
                }
            }
        }
        if files.is_empty() {
            return Err(Failure::new("there is no file to read plainly"));
        }
        Ok(Self {
            ring: IoUring::new(depth as u32).ok(),
            files,
            block,
            depth,
            next: 0,
            memory: Pages::new(CALL_BYTES),
            free: (0..CALL_BYTES / block).collect(),
        })
    }

    fn place(&mut self) -> (usize, u64) {
        let number = scatter(self.next);
        self.next += 1;
        let which = (number % self.files.len() as u64) as usize;
        let blocks = (self.files[which].1 - self.block as u64) / BLOCK;
        (which, (number >> 20) % blocks * BLOCK)
    }

    /// `memory` begins where all blocks do: it is not borrowed while the kernel writes to others of them.
    fn begin(&mut self, memory: *mut u8, begun: &mut [Instant], now: Instant) -> io::Result<()> {
        let (which, at) = self.place();
        let slot = self.free.pop_front().ok_or(io::ErrorKind::OutOfMemory)?;
        begun[slot] = now;
        let file = Fd(self.files[which].0.as_raw_fd());
        let block = self.block;
        let into = memory.wrapping_add(slot * block);
        let request = opcode::Read::new(file, into, block as u32)
            .offset(at)
            .build()
            .user_data(slot as u64);
        let ring = self.ring.as_mut().expect("there is one");
        // SAFETY: the slot lies within memory that this owns, no other read has it, and the files stay open;
        // `read_for` waits for all reads before it returns, or never gives the memory back.
        unsafe { ring.submission().push(&request) }.map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    /// Keeps the ring full until the time is over, and waits for what is under way then.
    fn read_for(&mut self, budget: Duration, sample: &mut Sample) -> io::Result<()> {
        let start = Instant::now();
        let (mut flying, mut failure, mut refused) = (0, None, 0);
        let memory = self.memory.bytes().as_mut_ptr();
        let mut begun = vec![start; self.free.len()];
        for _ in 0..self.depth {
            match self.begin(memory, &mut begun, start) {
                Ok(()) => flying += 1,
                Err(error) => failure = Some(error),
            }
        }
        while flying > 0 {
            let ring = self.ring.as_mut().expect("there is one");
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if refused == REFUSALS => {
                    // What is under way may still be written to: it is nobody else's ever again.
                    let memory = std::mem::replace(&mut self.memory, Pages::new(CALL_BYTES));
                    std::mem::forget(memory);
                    self.ring = None;
                    return Err(error);
                }
                Err(error) => {
                    refused += 1;
                    failure = Some(error);
                }
                Ok(_) => refused = 0,
            }
            let landed: Vec<_> = ring
                .completion()
                .map(|entry| (entry.user_data() as usize, entry.result()))
                .collect();
            let now = Instant::now();
            for (slot, result) in landed {
                flying -= 1;
                self.free.push_back(slot);
                match usize::try_from(result) {
                    Ok(bytes) if bytes == self.block => {
                        sample.operations += 1;
                        sample.latency.record(now - begun[slot]);
                    }
                    Ok(_) => failure = Some(io::ErrorKind::UnexpectedEof.into()),
                    Err(_) => failure = Some(io::Error::from_raw_os_error(-result)),
                }
                if failure.is_none() && now - start < budget {
                    match self.begin(memory, &mut begun, now) {
                        Ok(()) => flying += 1,
                        Err(error) => failure = Some(error),
                    }
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn one_by_one(&mut self, budget: Duration, sample: &mut Sample) -> io::Result<()> {
        let start = Instant::now();
        let mut last = start;
        while last - start < budget {
            let (which, at) = self.place();
            let block = self.block;
            self.files[which]
                .0
                .read_exact_at(&mut self.memory.bytes()[..block], at)?;
            let now = Instant::now();
            sample.latency.record(now - last);
            sample.operations += 1;
            last = now;
        }
        Ok(())
    }
}

/// Where the file system has no way past the page cache, the storage does not go there either.
fn open(path: &Path) -> io::Result<File> {
    let with = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits().cast_signed());
        options.open(path)
    };
    with(OFlags::DIRECT).or_else(|_| with(OFlags::empty()))
}

impl Contender for RingReads {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        let (cpu, start) = (own_cpu(), Instant::now());
        let done = match self.ring {
            Some(_) => self.read_for(budget, &mut sample),
            None => self.one_by_one(budget, &mut sample),
        };
        done.map_err(disk)?;
        sample.wall = start.elapsed();
        sample.cpu = own_cpu() - cpu;
        sample.bytes = sample.operations * self.block as u64;
        Ok(sample)
    }
}
