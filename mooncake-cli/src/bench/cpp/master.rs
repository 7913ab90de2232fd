//! Calls of the C++ store's master.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::store::ReadyOwner;
use super::{Wheel, rounds, understood};
use crate::bench::child::LineChild;
use crate::bench::{Contender, ProcessCpu, Sample};
use crate::output::Failure;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MasterOp {
    /// Whether keys exist, which they do.
    Exist,
    /// Whether keys exist, which they do not.
    ExistMiss,
    /// Objects of 64 bytes in memory of the caller's own process: start and end of puts.
    Put,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct MasterCase {
    /// What is called.
    pub op: MasterOp,
    /// Keys of one call; 1 uses the call for a single key.
    pub batch: u64,
    /// Length of a key.
    pub key_bytes: u64,
    /// How many keys there are.
    pub keys: u64,
}

/// A C++ master and clients of it that call one at a time, each a process. The clients lend the
/// memory: with a single one no payload crosses a socket.
#[derive(Debug)]
pub struct MasterCalls {
    clients: Vec<LineChild>,
    _owner: LineChild,
    master: u32,
    cases: u64,
}

impl MasterCalls {
    /// Starts the processes.
    ///
    /// # Errors
    ///
    /// One of them does not start.
    pub fn start(wheel: &Wheel, clients: usize) -> Result<Self, Failure> {
        let (owner, ready) = wheel.start("store-owner", &json!({ "segment_bytes": 0 }))?;
        let ready: ReadyOwner = understood(ready)?;
        let arguments = json!({ "master": ready.master, "segment_bytes": 256 << 20 });
        let clients = (0..clients).map(|_| Ok(wheel.start("master-client", &arguments)?.0));
        Ok(Self {
            clients: clients.collect::<Result<_, Failure>>()?,
            _owner: owner,
            master: ready.master_pid,
            cases: 0,
        })
    }

    /// The master's process.
    #[must_use]
    pub fn master(&self) -> ProcessCpu {
        ProcessCpu::of(self.master)
    }

    /// Prepares a case.
    ///
    /// # Errors
    ///
    /// It does not work.
    pub fn begin(&mut self, case: MasterCase) -> Result<(), Failure> {
        self.cases += 1;
        for (number, client) in self.clients.iter_mut().enumerate() {
            client.ask(&json!({
                "do": "case",
                "op": case.op,
                "batch": case.batch,
                "key_bytes": case.key_bytes,
                "count": case.keys,
                "prefix": format!("{}-{number}", self.cases),
            }))?;
        }
        Ok(())
    }

    /// Removes what the case has stored.
    ///
    /// # Errors
    ///
    /// It does not work.
    pub fn end(&mut self) -> Result<(), Failure> {
        for client in &mut self.clients {
            client.ask(&json!({ "do": "end" }))?;
        }
        Ok(())
    }
}

impl Contender for MasterCalls {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        rounds(&mut self.clients, &[self.master], budget)
    }
}
