//! The limit of a store's row: the same bytes in the same pattern over bare blocking sockets.
//!
//! A peer process answers requests of 48 bytes. A batch's requests are shared out to the
//! connections and go out at once on each; the batch is done when all answers are there. What a
//! store has to ask its master goes in front and behind as round trips of the same size.

mod peer;
mod stream;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde::Deserialize;

use self::stream::Stream;
use super::{Contender, ProcessCpu, Sample, own_cpu};
use crate::cluster::Process;
use crate::output::Failure;

pub(crate) use peer::{Peer, ReadyPeer};

/// How long the peer may take to be ready: it touches all its memory first.
const READY_BUDGET: Duration = Duration::from_secs(30);

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer.
    Read,
    /// To the peer, which acknowledges each block with a byte.
    Write,
}

/// A pattern of requests.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Which way the bytes go.
    pub direction: Direction,
    /// Length of a block.
    pub block_bytes: u64,
    /// Blocks that are asked for together.
    pub batch: u64,
    /// Connections that share a batch.
    pub connections: u64,
    /// Round trips of 48 bytes there and 64 back before each batch.
    pub before: u32,
    /// The same after each batch.
    pub after: u32,
    /// Memory to walk over on each side, so that it is cold.
    pub walk_bytes: u64,
}

impl Pattern {
    /// What it is, for a table.
    #[must_use]
    pub fn name(&self) -> String {
        let trips = self.before + self.after;
        match (self.connections, trips) {
            (1, 0) => "1 round trip".to_owned(),
            (1, trips) => format!("{} round trips", trips + 1),
            (connections, 0) => format!("{connections} plain streams"),
            (connections, trips) => format!("{connections} plain streams, {trips} trips"),
        }
    }
}

/// One end of the pattern; the other is a process of its own.
#[derive(Debug)]
pub struct Plain {
    pattern: Pattern,
    first: Stream,
    others: Vec<Worker>,
    peer: ProcessCpu,
    /// Ends with this.
    _process: Process,
}

/// A thread with a connection.
#[derive(Debug)]
struct Worker {
    work: Sender<u64>,
    done: Receiver<Result<(), Failure>>,
}

#[derive(Debug, Deserialize)]
struct Ready {
    ready: ReadyPeer,
}

impl Plain {
    /// Starts the peer and connects.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub async fn start(pattern: Pattern) -> Result<Self, Failure> {
        let share = (pattern.walk_bytes / pattern.connections)
            .max(pattern.block_bytes * pattern.batch.div_ceil(pattern.connections));
        let memory = format!("--memory={share}");
        let mut process =
            Process::server("the plain peer", &["bench", "plain-peer", memory.as_str()])?;
        let ready: Ready = process.ready(READY_BUDGET).await?;
        let address = ready.ready.address;
        let first = Stream::connect(&address, &pattern, share)?;
        let mut others = Vec::new();
        for _ in 1..pattern.connections {
            let mut stream = Stream::connect(&address, &pattern, share)?;
            let (work, wanted) = channel();
            let (tell, done) = channel();
            std::thread::spawn(move || {
                for blocks in wanted {
                    if tell.send(stream.blocks(blocks)).is_err() {
                        return;
                    }
                }
            });
            others.push(Worker { work, done });
        }
        let pid = process.id().unwrap_or_default();
        Ok(Self {
            pattern,
            first,
            others,
            peer: ProcessCpu::of(pid),
            _process: process,
        })
    }

    fn batch(&mut self) -> Result<(), Failure> {
        let gone = || Failure::new("a thread of the plain sockets has ended");
        for _ in 0..self.pattern.before {
            self.first.ask()?;
        }
        let connections = self.pattern.connections;
        let share = |number: u64| {
            let blocks = self.pattern.batch;
            blocks * (number + 1) / connections - blocks * number / connections
        };
        for (number, other) in (1..).zip(&self.others) {
            other.work.send(share(number)).map_err(|_| gone())?;
        }
        let ours = share(0);
        self.first.blocks(ours)?;
        for other in &self.others {
            other.done.recv().map_err(|_| gone())??;
        }
        for _ in 0..self.pattern.after {
            self.first.ask()?;
        }
        Ok(())
    }
}

impl Contender for Plain {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        let mut sample = Sample::default();
        let (own, peer) = (own_cpu(), self.peer.read());
        let start = Instant::now();
        let mut last = start;
        while last - start < budget {
            self.batch()?;
            let now = Instant::now();
            sample.latency.record(now - last);
            sample.operations += self.pattern.batch;
            last = now;
        }
        sample.wall = last - start;
        sample.bytes = sample.operations * self.pattern.block_bytes;
        sample.cpu = (own_cpu() - own) + self.peer.read().saturating_sub(peer);
        Ok(sample)
    }
}
