//! What is measured: a case each, and the cases that make up the standard suite.

use std::fmt::Write;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::super::Yardstick;
use super::pace::Pace;
use crate::config::Size;
use crate::output::Failure;

/// Over what blocks move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// The engine, to another process over TCP.
    Tcp,
    /// The engine, to another process of this host through its memory.
    Shm,
    /// The engine, to another process of this host by the kernel's copies.
    Cma,
    /// The engine, from one buffer of this process to another.
    InProcess,
    /// The engine, to and from a file past the page cache.
    File,
    /// The engine alone, over a link that moves nothing; beside it an engine for each caller.
    Null,
    /// No engine: streaming stores beside memcpy, which is what this machine allows.
    Memory,
}

/// In which direction blocks move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// From one place of this process to another.
    Copy,
    /// From the target to us.
    Read,
    /// From us to the target.
    Write,
}

/// What a case is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// The plain loop of the same pattern.
    #[default]
    Plain,
    /// The same engine with one caller.
    OneThread,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Over what.
    pub transport: Transport,
    /// In which direction.
    pub op: Op,
    /// Bytes of a block.
    pub block: u64,
    /// Blocks that each caller submits together.
    pub batch: u64,
    /// Callers.
    pub threads: u64,
    /// Whether callers look instead of sleeping.
    pub poll: bool,
    /// What it is compared with.
    pub against: Against,
    /// Blocks per second that are asked for, by all callers; `None`: as many as come back.
    pub rate: Option<f64>,
}

/// What a row should reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Goal {
    pub(super) by: Yardstick,
    pub(super) least_ratio: Option<f64>,
    pub(super) most_cpu_ratio: Option<f64>,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Transport {
    /// Its name in a row and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Cma => "cma",
            Self::InProcess => "in-process",
            Self::File => "file",
            Self::Null => "null",
            Self::Memory => "memory",
        }
    }
}

impl Op {
    /// Its name in a row and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl Case {
    /// One caller that sleeps, beside the plain loop.
    #[must_use]
    pub fn new(transport: Transport, op: Op, block: u64, batch: u64) -> Self {
        Self {
            transport,
            op,
            block,
            batch,
            threads: 1,
            poll: false,
            against: Against::Plain,
            rate: None,
        }
    }

    /// What is measured when nothing else is asked for.
    #[must_use]
    pub fn suite() -> Vec<Self> {
        let mut cases = Vec::new();
        for op in [Op::Read, Op::Write] {
            let tcp = |block, batch| Self::new(Transport::Tcp, op, block, batch);
            for batch in [1, 16] {
                let blocks = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB];
                cases.extend(blocks.map(|block| tcp(block, batch)));
            }
            cases.push(tcp(4 * KIB, 1));
            cases.push(Self {
                poll: true,
                ..tcp(4 * KIB, 1)
            });
            cases.push(tcp(4 * KIB, 128));
            cases.extend([64 * KIB, MIB].map(|block| Self {
                threads: 4,
                against: Against::OneThread,
                ..tcp(block, 16)
            }));
            cases.extend([4_097, 64 * KIB + 4, MIB + 1].map(|block| tcp(block, 16)));
            let shm = |(block, batch)| Self::new(Transport::Shm, op, block, batch);
            cases.push(Self {
                poll: true,
                ..shm((4 * KIB, 1))
            });
            let blocks = [
                (64 * KIB, 1),
                (256 * KIB, 1),
                (MIB, 1),
                (MIB, 16),
                (16 * MIB, 1),
            ];
            cases.extend(blocks.map(shm));
            let cma = |(block, batch)| Self::new(Transport::Cma, op, block, batch);
            cases.extend([(256 * KIB, 1), (MIB, 1), (MIB, 16)].map(cma));
            let in_process = |block| Self::new(Transport::InProcess, op, block, 1);
            cases.extend([64 * KIB, MIB].map(in_process));
            let file = |(block, batch)| Self::new(Transport::File, op, block, batch);
            cases.extend([(4 * KIB, 1), (4 * KIB, 32), (128 * KIB, 32), (MIB, 8)].map(file));
        }
        cases.extend([1, 2].map(|threads| Self {
            threads,
            ..Self::new(Transport::Null, Op::Read, 4 * KIB, 128)
        }));
        let copy = |block| Self::new(Transport::Memory, Op::Copy, block, 1);
        cases.extend([64 * KIB, MIB].map(copy));
        cases
    }

    pub(super) fn goal(&self) -> Goal {
        let by = match (self.rate, self.block, self.batch) {
            (Some(_), ..) => Yardstick::P50Us,
            (None, block, 1) if block < 64 * KIB => Yardstick::P50Us,
            (None, block, _) if block < 64 * KIB => Yardstick::OpsPerS,
            _ => Yardstick::GbPerS,
        };
        let large = self.block.is_power_of_two() && (64 * KIB..=16 * MIB).contains(&self.block);
        let least_ratio = match (self.against, self.batch, self.poll) {
            _ if self.rate.is_some() => None,
            (Against::Plain, 32, false)
                if self.transport == Transport::File
                    && (self.op, self.block) == (Op::Read, 128 * KIB) =>
            {
                Some(0.95)
            }
            (Against::Plain, 128, false)
                if self.transport == Transport::Null && self.threads == 2 =>
            {
                Some(0.9)
            }
            (Against::Plain, 1 | 16, false)
                if matches!(self.transport, Transport::Shm | Transport::Cma)
                    && self.op == Op::Read
                    && large
                    && self.block >= 256 * KIB
                    && self.threads == 1 =>
            {
                Some(0.9)
            }
            _ if self.transport != Transport::Tcp => None,
            (Against::OneThread, ..) => Some(0.95),
            _ if self.threads > 1 => None,
            (_, 1, false) if self.block == 4 * KIB => Some(1.0 / 1.2),
            (_, 1, true) if self.block == 4 * KIB => Some(1.0 / 1.4),
            (_, 128, false) if self.block == 4 * KIB => Some(0.6),
            (_, 1 | 16, false) if large => Some(0.9),
            _ => None,
        };
        let streams = self.block == MIB && self.batch == 16 && self.against == Against::Plain;
        Goal {
            by,
            least_ratio,
            most_cpu_ratio: (streams && least_ratio.is_some()).then_some(1.15),
        }
    }

    /// The batch of each plain connection: what the engine has under way on each of its lanes.
    pub(super) fn streams(&self, lanes: u64) -> Vec<u64> {
        if self.threads > 1 {
            return vec![self.batch; self.threads as usize];
        }
        let streams = lanes.clamp(1, self.batch);
        (0..streams)
            .map(|number| self.batch / streams + u64::from(number < self.batch % streams))
            .collect()
    }

    pub(super) fn pace(&self) -> Pace {
        let every = |rate| Duration::from_secs_f64((self.batch * self.threads) as f64 / rate);
        Pace {
            every: self.rate.map(every),
            poll: self.poll,
        }
    }

    /// Stores past the cache are the faster way to copy it.
    pub(super) fn is_streamed(&self) -> bool {
        cfg!(target_arch = "x86_64") && self.block >= 64 * KIB
    }

    /// A plain loop past the page cache can do it.
    pub(super) fn is_of_pages(&self) -> bool {
        self.block.is_multiple_of(4 * KIB)
    }

    /// What the limit is, for people.
    pub(super) fn limit(&self, lanes: u64) -> String {
        match (self.transport, self.against) {
            (Transport::Tcp, Against::Plain) => match self.streams(lanes).len() {
                1 => "1 socket".to_owned(),
                streams => format!("{streams} sockets"),
            },
            (Transport::Shm, Against::Plain) => match self.is_streamed() {
                true => "streaming copy".to_owned(),
                false => "memcpy".to_owned(),
            },
            (Transport::Cma, Against::Plain) => "vm_readv".to_owned(),
            (Transport::Memory, _) | (Transport::InProcess, Against::Plain) => "memcpy".to_owned(),
            (Transport::Null, Against::Plain) => "own engines".to_owned(),
            (Transport::File, Against::Plain) => match self.is_of_pages() {
                true => "file loop".to_owned(),
                false => "cached file loop".to_owned(),
            },
            (_, Against::OneThread) => "1 thread".to_owned(),
        }
    }

    /// The command that measures it again.
    pub(super) fn repeat(&self) -> String {
        let mut line = "mooncake bench transfer".to_owned();
        let mut say = |words: std::fmt::Arguments<'_>| {
            line.write_fmt(words).expect("a string takes everything");
        };
        if self.transport != Transport::Tcp {
            say(format_args!(" --transport {}", self.transport.name()));
        }
        if self.op != Op::Copy {
            say(format_args!(" --op {}", self.op.name()));
        }
        say(format_args!(" --block-size {}", Size::of(self.block)));
        if self.batch != 1 {
            say(format_args!(" --batch {}", self.batch));
        }
        if self.threads != 1 {
            say(format_args!(" --threads {}", self.threads));
        }
        if self.poll {
            say(format_args!(" --poll"));
        }
        if self.against == Against::OneThread {
            say(format_args!(" --against one-thread"));
        }
        if let Some(rate) = self.rate {
            say(format_args!(" --open-loop {rate}"));
        }
        line
    }

    /// The memory that is walked through has no room for it.
    pub(super) fn too_large(&self, window: u64) -> Failure {
        let Self {
            block,
            batch,
            threads,
            ..
        } = self;
        let window = Size::of(window);
        Failure::new(format!(
            "{threads} times {batch} blocks of {block} bytes do not fit into {window}"
        ))
        .remedy("a larger --window, or a smaller --block-size or --batch")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_a_batch() {
        let case = |batch| Case::new(Transport::Tcp, Op::Read, 1, batch);
        assert_eq!(case(1).streams(2), [1]);
        assert_eq!(case(16).streams(2), [8, 8]);
        assert_eq!(case(7).streams(3), [3, 2, 2]);
        let four = Case {
            threads: 4,
            ..case(16)
        };
        assert_eq!(four.streams(2), [16; 4]);
    }

    #[test]
    fn bars_are_those_of_the_pattern() {
        let tcp = |block, batch| Case::new(Transport::Tcp, Op::Write, block, batch);
        let goal = tcp(MIB, 16).goal();
        assert_eq!(goal.by, Yardstick::GbPerS);
        assert_eq!(
            (goal.least_ratio, goal.most_cpu_ratio),
            (Some(0.9), Some(1.15))
        );
        let goal = tcp(4 * KIB, 1).goal();
        assert_eq!((goal.by, goal.most_cpu_ratio), (Yardstick::P50Us, None));
        assert_eq!(tcp(4 * KIB, 128).goal().by, Yardstick::OpsPerS);
        assert_eq!(tcp(MIB + 1, 16).goal().least_ratio, None);
        let paced = Case {
            rate: Some(1.0),
            ..tcp(MIB, 16)
        };
        assert_eq!(paced.goal().least_ratio, None);
        assert_eq!(paced.pace().every, Some(Duration::from_secs(16)));
    }

    #[test]
    fn a_repeated_row_is_the_same_row() {
        let case = Case {
            threads: 4,
            against: Against::OneThread,
            ..Case::new(Transport::Tcp, Op::Read, MIB, 16)
        };
        assert_eq!(
            case.repeat(),
            "mooncake bench transfer --op read --block-size 1MiB --batch 16 --threads 4 --against one-thread"
        );
    }
}
