//! The replay of a trace against the C++ store.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::store::ReadyOwner;
use super::{Wheel, understood};
use crate::output::Failure;

/// What the replay came to.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CppReplay {
    /// Requests that were run.
    pub requests: u64,
    /// Blocks of all prompts.
    pub blocks_total: u64,
    /// Blocks that the store had, from a prompt's first one on.
    pub blocks_hit: u64,
    /// Blocks that had a wrong byte.
    pub byte_errors: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Bytes that were read.
    pub bytes_get: u64,
    /// Bytes that were written.
    pub bytes_put: u64,
    /// How long the run took.
    pub seconds: f64,
    /// How many times as long as ours that is.
    #[serde(skip_deserializing)]
    pub ratio: f64,
}

/// What is replayed.
#[derive(Clone, Debug)]
pub struct ReplayCase {
    /// The trace.
    pub trace: PathBuf,
    /// How many of its requests, from the first one on.
    pub requests: u64,
    /// Length of a block.
    pub block_bytes: u64,
    /// Blocks of one call.
    pub batch: u32,
    /// What the owner lends.
    pub segment_bytes: u64,
}

/// Replays a trace with one client, as fast as possible.
///
/// # Errors
///
/// It does not work.
pub fn replay(wheel: &Wheel, case: &ReplayCase) -> Result<CppReplay, Failure> {
    let arguments = json!({ "segment_bytes": case.segment_bytes });
    let (_owner, ready) = wheel.start("store-owner", &arguments)?;
    let ready: ReadyOwner = understood(ready)?;
    let arguments = json!({
        "master": ready.master,
        "block_bytes": case.block_bytes,
        "batch": case.batch,
    });
    let (mut client, _) = wheel.start("replay", &arguments)?;
    let request = json!({ "do": "replay", "trace": case.trace, "requests": case.requests });
    understood(client.ask(&request)?)
}
