//! The replay of a trace against the C++ store.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::store::ReadyOwner;
use super::{Wheel, understood};
use crate::output::Failure;

/// What the replay came to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
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
}

/// Replays the first `requests` requests of `trace` with one client, as fast as possible, against
/// an owner that lends `segment_bytes`.
///
/// # Errors
///
/// It does not work.
pub fn replay(
    wheel: &Wheel,
    trace: &Path,
    requests: u64,
    block_bytes: u64,
    batch: u32,
    segment_bytes: u64,
) -> Result<CppReplay, Failure> {
    let (_owner, ready) = wheel.start("store-owner", &json!({ "segment_bytes": segment_bytes }))?;
    let ready: ReadyOwner = understood(ready)?;
    let arguments = json!({
        "master": ready.master,
        "block_bytes": block_bytes,
        "batch": batch,
    });
    let (mut client, _) = wheel.start("replay", &arguments)?;
    let trace = std::path::absolute(trace).unwrap_or_else(|_| trace.to_owned());
    understood(client.ask(&json!({ "do": "replay", "trace": trace, "requests": requests }))?)
}
