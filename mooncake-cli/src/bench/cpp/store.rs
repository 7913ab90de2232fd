//! Gets and puts of the C++ store.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::{Wheel, round, understood};
use crate::bench::child::LineChild;
use crate::bench::{Contender, Sample};
use crate::output::Failure;

/// Where objects are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In a process of its own.
    Owner,
    /// In the process that gets and puts.
    Client,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct CppCase {
    /// `get` or `put`.
    pub op: &'static str,
    /// A file with the values, one after the other.
    pub contents: PathBuf,
    /// Length of each.
    pub value_bytes: u64,
    /// Keys of one call.
    pub batch: u64,
    /// Threads that call.
    pub clients: u64,
}

/// A C++ master, an owner of memory and a client, each a process. It measures one case at a time.
#[derive(Debug)]
pub struct CppStore {
    client: LineChild,
    _owner: LineChild,
    /// The processes of owner and master.
    beside: Vec<u32>,
    cases: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct ReadyOwner {
    pub(super) master: String,
    pub(super) master_pid: u32,
    pub(super) pid: u32,
}

impl CppStore {
    /// Starts the processes; `segment_bytes` are lent.
    ///
    /// # Errors
    ///
    /// One of them does not start.
    pub fn start(wheel: &Wheel, home: Home, segment_bytes: u64) -> Result<Self, Failure> {
        let (owners, clients) = match home {
            Home::Owner => (segment_bytes, 0),
            Home::Client => (0, segment_bytes),
        };
        let (owner, ready) = wheel.start("store-owner", &json!({ "segment_bytes": owners }))?;
        let ready: ReadyOwner = understood(ready)?;
        let arguments = json!({ "master": ready.master, "segment_bytes": clients });
        let (client, _) = wheel.start("store-client", &arguments)?;
        Ok(Self {
            client,
            _owner: owner,
            beside: vec![ready.pid, ready.master_pid],
            cases: 0,
        })
    }

    /// Prepares a case: stores what is to be read.
    ///
    /// # Errors
    ///
    /// It does not work.
    pub fn begin(&mut self, case: &CppCase) -> Result<(), Failure> {
        self.cases += 1;
        self.client.ask(&json!({
            "do": "case",
            "op": case.op,
            "contents": case.contents,
            "value_bytes": case.value_bytes,
            "batch": case.batch,
            "clients": case.clients,
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

impl Contender for CppStore {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        round(&mut self.client, &self.beside, budget)
    }
}
