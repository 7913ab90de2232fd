//! Calls of the C++ store's master.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::store::ReadyOwner;
use super::{Wheel, round, understood};
use crate::bench::child::LineChild;
use crate::bench::{Contender, ProcessCpu, Sample};
use crate::output::Failure;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MasterOp {
    /// Whether keys exist, which they do.
    Exist,
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

/// A C++ master and one client of it that calls, each a process. The client lends the memory, so
/// that no payload crosses a socket.
#[derive(Debug)]
pub struct MasterCalls {
    client: LineChild,
    _owner: LineChild,
    master: ProcessCpu,
    cases: u64,
}

impl MasterCalls {
    /// Starts the processes.
    ///
    /// # Errors
    ///
    /// One of them does not start.
    pub fn start(wheel: &Wheel) -> Result<Self, Failure> {
        let (owner, ready) = wheel.start("store-owner", &json!({ "segment_bytes": 0 }))?;
        let ready: ReadyOwner = understood(ready)?;
        let arguments = json!({ "master": ready.master, "segment_bytes": 256 << 20 });
        let (client, _) = wheel.start("master-client", &arguments)?;
        Ok(Self {
            client,
            _owner: owner,
            master: ProcessCpu::of(ready.master_pid),
            cases: 0,
        })
    }

    /// The master's process.
    #[must_use]
    pub fn master(&self) -> ProcessCpu {
        self.master
    }

    /// Prepares a case.
    ///
    /// # Errors
    ///
    /// It does not work.
    pub fn begin(&mut self, case: MasterCase) -> Result<(), Failure> {
        self.cases += 1;
        self.client.ask(&json!({
            "do": "case",
            "op": case.op,
            "batch": case.batch,
            "key_bytes": case.key_bytes,
            "count": case.keys,
            "prefix": format!("case-{}", self.cases),
        }))?;
        Ok(())
    }

    /// Removes what the case has stored.
    ///
    /// # Errors
    ///
    /// It does not work.
    pub fn end(&mut self) -> Result<(), Failure> {
        self.client.ask(&json!({ "do": "end" }))?;
        Ok(())
    }
}

impl Contender for MasterCalls {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        round(&mut self.client, &[self.master], budget)
    }
}
