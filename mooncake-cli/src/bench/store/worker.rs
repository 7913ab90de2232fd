//! One client with keys of its own.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mooncake_store::core::{PutOptions, RemoveOptions};
use mooncake_store::{BlockingClient, Fault, GetInto, PutFrom};
use mooncake_tent::Buffer;

use super::{Case, Lookup, Op, POISON, Values};
use crate::commands::CLOSE_BUDGET;
use crate::latency::Latency;
use crate::output::Failure;

/// Keys of a call outside of the timed part.
const CHORE: u64 = 32;
/// What is made, checked and wiped at a time.
const PIECE: usize = 1 << 20;

/// What a worker is to do next. The workers of a case do the same at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Store what is to be read.
    Fill,
    /// Bring about what the case supposes that the client knows.
    Prepare,
    /// Work until the time or the keys are used up.
    Timed(Duration),
    /// Check what was read or put, and clean up.
    Check,
    /// Remove all that is stored.
    Clear,
}

/// What a worker did in a timed phase.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) operations: u64,
    pub(super) latency: Latency,
}

#[derive(Debug)]
pub(super) struct Worker {
    /// Holds session and engine.
    base: BlockingClient,
    /// Calls instead where nothing is to be known of the keys; another one for each walk.
    fresh: Option<BlockingClient>,
    case: Case,
    values: Values,
    prefix: String,
    /// The indices of its keys among those of all; the values of each worker are numbered from 0.
    own: Range<u64>,
    keys: Vec<Bytes>,
    /// What it stores and never reads in a timed phase.
    first: Bytes,
    source: Buffer,
    target: Buffer,
    generation: u64,
    cursor: u64,
    /// What the last timed phase worked on.
    touched: Range<u64>,
}

impl Worker {
    pub(super) fn new(
        base: BlockingClient,
        case: Case,
        values: Values,
        own: Range<u64>,
        prefix: String,
    ) -> Result<Self, Failure> {
        let bytes = ((own.end - own.start) * values.value_bytes) as usize;
        let memory = || {
            let buffer = base.allocate(bytes).map_err(no_memory)?;
            buffer.memory().prefault().map_err(no_memory)?;
            Ok::<_, Failure>(buffer)
        };
        let (source, target) = (memory()?, memory()?);
        let first = Bytes::from(format!("{prefix}/first/{}", own.start));
        let mut worker = Self {
            fresh: None,
            base,
            case,
            values,
            prefix,
            cursor: own.start,
            touched: own.start..own.start,
            own,
            keys: Vec::new(),
            first,
            source,
            target,
            generation: 0,
        };
        let mut value = vec![0; values.value_bytes as usize];
        for index in worker.own.clone() {
            crate::pattern::fill(index - worker.own.start, &mut value);
            worker
                .source
                .memory()
                .write_at(worker.place(index).start, &value);
        }
        worker.wipe(worker.own.clone());
        worker.name_keys();
        Ok(worker)
    }

    pub(super) fn run(&mut self, phase: Phase) -> Result<Done, Failure> {
        match phase {
            Phase::Fill => self.fill()?,
            Phase::Prepare => self.prepare()?,
            Phase::Timed(budget) => return self.timed(budget),
            Phase::Check => self.check()?,
            Phase::Clear => {
                self.remove(self.own.clone());
                let first = vec![self.first.clone()];
                // Cleaning up: what is gone already is no harm.
                let _gone = self.client().remove(first, RemoveOptions::default());
                self.let_go()?;
            }
        }
        Ok(Done::default())
    }

    pub(super) fn is_through(&self) -> bool {
        self.cursor == self.own.end
    }

    /// Starts the walk again, which for puts means other keys.
    pub(super) fn rewind(&mut self) {
        self.cursor = self.own.start;
        if self.case.op == Op::Put {
            self.generation += 1;
            self.name_keys();
        }
    }

    fn name_keys(&mut self) {
        let (prefix, generation) = (&self.prefix, self.generation);
        let name = |index: u64| Bytes::from(format!("{prefix}/{generation}/{index}"));
        self.keys = self.own.clone().map(name).collect();
    }

    fn key(&self, index: u64) -> Bytes {
        self.keys[(index - self.own.start) as usize].clone()
    }

    fn place(&self, index: u64) -> Range<u64> {
        let start = (index - self.own.start) * self.values.value_bytes;
        start..start + self.values.value_bytes
    }

    /// Where the source has what key `index` is to contain.
    fn source_place(&self, index: u64) -> Range<u64> {
        let start = self.own.start;
        self.place(start + self.values.id(index - start, self.generation))
    }

    fn fill(&mut self) -> Result<(), Failure> {
        let from = self.source.slice(self.place(self.own.start));
        let from = from.expect("places lie within the buffer");
        let item = PutFrom::new(self.first.clone(), from);
        all(
            self.client().put_from(vec![item], PutOptions::default()),
            "put",
        )?;
        for indices in pieces(self.own.clone(), CHORE) {
            self.put(indices)?;
        }
        if self.case.op == Op::Put {
            // The node's memory has been used now, as it has been in any store that runs a while.
            self.remove(self.own.clone());
            self.rewind();
        }
        Ok(())
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        match (self.case.op, self.case.lookup) {
            (Op::Get, Lookup::Cached) => {
                for indices in pieces(self.cursor..self.own.end, self.case.batch.max(CHORE)) {
                    self.get(indices)?;
                }
                self.wipe(self.cursor..self.own.end);
            }
            (Op::Get, Lookup::Fresh) => {
                self.let_go()?;
                self.fresh = Some(self.base.sibling());
                // It knows the node, as any client does after its first read, but none of the keys.
                let into = self.target.slice(self.place(self.own.start));
                let into = into.expect("places lie within the buffer");
                let item = GetInto::new(self.first.clone(), into);
                all(self.client().get_into(vec![item]), "get")?;
                self.wipe(self.own.start..self.own.start + 1);
            }
            (Op::Put, _) => {}
        }
        Ok(())
    }

    /// Ends the client that has called so far, if it is not the one that holds session and engine.
    fn let_go(&mut self) -> Result<(), Failure> {
        match self.fresh.take() {
            Some(client) => client
                .close(CLOSE_BUDGET)
                .map_err(|error| Failure::new("a client does not end").because(error)),
            None => Ok(()),
        }
    }

    fn client(&self) -> &BlockingClient {
        self.fresh.as_ref().unwrap_or(&self.base)
    }

    fn timed(&mut self, budget: Duration) -> Result<Done, Failure> {
        let mut done = Done::default();
        let from = self.cursor;
        let start = Instant::now();
        let mut last = start;
        while self.cursor < self.own.end && last - start < budget {
            let end = self.own.end.min(self.cursor + self.case.batch);
            let indices = self.cursor..end;
            match self.case.op {
                Op::Get => self.get(indices)?,
                Op::Put => self.put(indices)?,
            }
            self.cursor = end;
            let now = Instant::now();
            done.latency.record(now - last);
            last = now;
        }
        self.touched = from..self.cursor;
        done.operations = self.cursor - from;
        Ok(done)
    }

    fn check(&mut self) -> Result<(), Failure> {
        let touched = std::mem::take(&mut self.touched);
        if self.case.op == Op::Put {
            for indices in pieces(touched.clone(), CHORE) {
                self.get(indices)?;
            }
        }
        let mut value = vec![0; self.values.value_bytes as usize];
        for index in touched.clone() {
            self.target
                .memory()
                .read_at(self.place(index).start, &mut value);
            let index = index - self.own.start;
            self.values.check(index, self.generation, &value)?;
        }
        self.wipe(touched.clone());
        if self.case.op == Op::Put {
            self.remove(touched);
        }
        Ok(())
    }

    fn get(&self, indices: Range<u64>) -> Result<(), Failure> {
        let items = indices.map(|index| {
            let into = self.target.slice(self.place(index));
            GetInto::new(self.key(index), into.expect("places lie within the buffer"))
        });
        let results = self.client().get_into(items.collect());
        for got in all(results, "get")? {
            if got.length != self.values.value_bytes {
                return Err(Failure::new(format!(
                    "a get has {} bytes of a value of {}",
                    got.length, self.values.value_bytes
                )));
            }
        }
        Ok(())
    }

    fn put(&self, indices: Range<u64>) -> Result<(), Failure> {
        let items = indices.map(|index| {
            let from = self.source.slice(self.source_place(index));
            PutFrom::new(self.key(index), from.expect("places lie within the buffer"))
        });
        let results = self
            .client()
            .put_from(items.collect(), PutOptions::default());
        all(results, "put").map(|_| ())
    }

    fn remove(&self, indices: Range<u64>) {
        let keys = indices.map(|index| self.key(index)).collect();
        // What is gone already is no harm, and what stays shows when space runs out.
        let _gone = self.client().remove(keys, RemoveOptions { barrier: true });
    }

    fn wipe(&self, indices: Range<u64>) {
        if indices.is_empty() {
            return;
        }
        let blank = vec![POISON; PIECE];
        let (mut at, end) = (
            self.place(indices.start).start,
            self.place(indices.end - 1).end,
        );
        while at < end {
            let length = ((end - at) as usize).min(PIECE);
            self.target.memory().write_at(at, &blank[..length]);
            at += length as u64;
        }
    }
}

fn pieces(indices: Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> {
    let end = indices.end;
    indices
        .step_by(most as usize)
        .map(move |start| start..end.min(start + most))
}

/// All results, or the first fault.
fn all<T>(results: Vec<Result<T, Fault>>, what: &str) -> Result<Vec<T>, Failure> {
    let all: Result<Vec<T>, Fault> = results.into_iter().collect();
    all.map_err(|fault| Failure::new(format!("a {what} fails")).because(fault))
}

fn no_memory(error: impl std::error::Error) -> Failure {
    Failure::new("there is no memory for the values").because(error)
}
