//! One transfer that is followed step by step.

use std::time::Duration;

use mooncake_tent::{
    Permission, RemoteRange, Request, Segment, TentEngine, Trace, TransferEngine,
    transport::{Op, Outcome},
};

use super::Links;
use super::engine::{register, unusable};
use super::roles::{PATIENCE, initiating};
use crate::output::Failure;

/// A transfer that was made, and what became of it.
#[derive(Debug)]
pub struct Traced {
    /// How it ended.
    pub outcome: Outcome,
    /// What happened on the way.
    pub trace: Trace,
}

/// Moves `bytes` at the start of the largest buffer of `target`. A write brings back what has just been
/// read there, so that it changes nothing.
///
/// # Errors
///
/// The target does not answer, has no such buffer, or no link can carry it.
pub async fn traced(target: &str, op: Op, bytes: u64, links: Links) -> Result<Traced, Failure> {
    let engine = initiating(links).build().await.map_err(unusable)?;
    let traced = traced_by(&engine, target, op, bytes).await;
    // What is not quiet by then ends with the process.
    let _late = engine.shutdown(Duration::from_secs(2)).await;
    traced
}

async fn traced_by(
    engine: &TentEngine,
    target: &str,
    op: Op,
    bytes: u64,
) -> Result<Traced, Failure> {
    let segment = engine.open_segment(target, PATIENCE).await;
    let segment = segment.map_err(|error| {
        Failure::new(format!("the target {target} cannot be reached")).because(error)
    })?;
    let at = largest(&segment, target, bytes)?;
    let local = register(engine, bytes, Permission::Local).await?;
    let all = || local.all().map_err(unusable);
    if op == Op::Write {
        let read = Request::read(all()?, &segment, at);
        let outcome = ended(engine, read).await?;
        if let Some(error) = outcome.error() {
            let what = format!("what is to be written back cannot be read from {target}");
            return Err(Failure::new(what).because(error));
        }
    }
    let trace = Trace::new();
    let request = match op {
        Op::Read => Request::read(all()?, &segment, at),
        Op::Write => Request::write(all()?, &segment, at),
    };
    Ok(Traced {
        outcome: ended(engine, request.trace(&trace)).await?,
        trace,
    })
}

/// The start of the largest buffer, if it is large enough.
fn largest(segment: &Segment, target: &str, bytes: u64) -> Result<RemoteRange, Failure> {
    let descriptor = segment.descriptor();
    let largest = descriptor.buffers().max_by_key(|buffer| buffer.length);
    let Some(largest) = largest else {
        return Err(Failure::new(format!("{target} offers no memory")));
    };
    if largest.length < bytes {
        let length = largest.length;
        let what = format!("the largest buffer of {target} has {length} bytes");
        return Err(Failure::new(what).remedy("less, with --size"));
    }
    Ok(RemoteRange::Registered {
        registration: largest.registration,
        generation: Some(largest.generation),
        offset: 0,
    })
}

async fn ended(engine: &TentEngine, request: Request) -> Result<Outcome, Failure> {
    let mut batch = engine.allocate_batch(1);
    let submitted = engine.submit_transfer(&mut batch, vec![request]);
    submitted.map_err(|error| Failure::new("the transfer is refused").because(error))?;
    batch.terminal().await;
    // Whoever is not quiet by then is told as it is.
    let _late = tokio::time::timeout(PATIENCE, batch.quiescent()).await;
    batch
        .outcome(0)
        .ok_or_else(|| Failure::new("the transfer has no end"))
}
