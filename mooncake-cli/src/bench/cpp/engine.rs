//! Reads and writes of the C++ transfer engine.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::{Wheel, round, understood};
use crate::bench::child::LineChild;
use crate::bench::{Contender, Sample};
use crate::output::Failure;

/// What is measured.
#[derive(Clone, Debug)]
pub struct EngineCase {
    /// `read` or `write`.
    pub op: &'static str,
    /// A file with the blocks, one after the other: as large as the memory to walk over.
    pub contents: PathBuf,
    /// Length of a block.
    pub block_bytes: u64,
    /// Blocks that are submitted together.
    pub batch: u64,
    /// Threads that submit.
    pub threads: u64,
}

/// Two C++ engines over TCP, each in a process of its own. What is read is checked.
#[derive(Debug)]
pub struct EnginePair {
    initiator: LineChild,
    target: LineChild,
    target_process: u32,
    writes: bool,
}

#[derive(Debug, Deserialize)]
struct ReadyTarget {
    pid: u32,
    segment: String,
    address: u64,
}

impl EnginePair {
    /// Starts the engines.
    ///
    /// # Errors
    ///
    /// One of them does not start.
    pub fn start(wheel: &Wheel, case: &EngineCase) -> Result<Self, Failure> {
        let arguments = json!({ "contents": case.contents, "block_bytes": case.block_bytes });
        let (target, ready) = wheel.start("engine-target", &arguments)?;
        let ready: ReadyTarget = understood(ready)?;
        let arguments = json!({
            "contents": case.contents,
            "segment": ready.segment,
            "address": ready.address,
            "op": case.op,
            "block_bytes": case.block_bytes,
            "batch": case.batch,
            "threads": case.threads,
        });
        let (initiator, _) = wheel.start("engine-initiator", &arguments)?;
        Ok(Self {
            initiator,
            target,
            target_process: ready.pid,
            writes: case.op == "write",
        })
    }

    /// Checks that what is written arrives, once the rounds are over. What is read is checked in
    /// each of them.
    ///
    /// # Errors
    ///
    /// A byte is wrong.
    pub fn check(&mut self) -> Result<(), Failure> {
        if self.writes {
            self.target.ask(&json!({ "do": "poison" }))?;
            self.initiator.ask(&json!({ "do": "walk" }))?;
            self.target.ask(&json!({ "do": "check" }))?;
        }
        Ok(())
    }
}

impl Contender for EnginePair {
    fn round(&mut self, budget: Duration) -> Result<Sample, Failure> {
        round(&mut self.initiator, &[self.target_process], budget)
    }
}
