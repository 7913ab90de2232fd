//! Connects to many peers before the first transfers need it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Semaphore, task::JoinSet};

use super::{TentEngine, TransferEngine};
use crate::{
    error::{Error, Result},
    platform::after,
    segment::Segment,
};

/// So many peers are connected at a time.
const AT_ONCE: usize = 32;
/// Each begins at a random moment within so much for each peer of a portion …
const SPREAD: Duration = Duration::from_millis(1);
/// … but within this part of the budget.
const SPREAD_SHARE: u32 = 8;

/// What came of warming up one peer.
#[derive(Debug)]
#[non_exhaustive]
pub struct WarmUp {
    /// The peer's segment.
    pub segment: Segment,
    /// It is connected, or why not.
    pub result: Result<()>,
    /// How long it took, from the call on.
    pub took: Duration,
}

impl TentEngine {
    /// Connects whatever first transfers to these segments would need, several at a time and each
    /// after a short random pause, so that many engines that do this to one peer do not come all at
    /// once. A peer that is busy says when to come again, and is asked again until the budget is over.
    ///
    /// One result for each segment, in their order: that one of them fails holds up no other. Losing
    /// the future leaves connections that were made.
    pub async fn warm_up_peers(&self, segments: &[Segment], budget: Duration) -> Vec<WarmUp> {
        let (start, end) = (Instant::now(), after(budget));
        let at_once = Arc::new(Semaphore::new(AT_ONCE));
        let spread = (SPREAD * segments.len().clamp(1, AT_ONCE) as u32).min(budget / SPREAD_SHARE);
        let mut under_way = JoinSet::new();
        for (place, segment) in segments.iter().enumerate() {
            let (engine, segment) = (self.clone(), segment.clone());
            let at_once = Arc::clone(&at_once);
            under_way.spawn(async move {
                let turn = tokio::time::timeout_at(end.into(), at_once.acquire_owned()).await;
                let result = match turn {
                    Ok(_turn) => {
                        tokio::time::sleep(spread.mul_f64(rand::random())).await;
                        let left = end.saturating_duration_since(Instant::now());
                        engine.warm_up(&segment, left).await
                    }
                    Err(_) => Err(not_begun(&segment, budget)),
                };
                (place, result, start.elapsed())
            });
        }
        let mut results: Vec<Option<(Result<()>, Duration)>> = Vec::new();
        results.resize_with(segments.len(), || None);
        while let Some(ended) = under_way.join_next().await {
            if let Ok((place, result, took)) = ended {
                results[place] = Some((result, took));
            }
        }
        let of = |(segment, ended): (&Segment, Option<_>)| {
            let (result, took) =
                ended.unwrap_or_else(|| (Err(not_begun(segment, budget)), start.elapsed()));
            WarmUp {
                segment: segment.clone(),
                result,
                took,
            }
        };
        segments.iter().zip(results).map(of).collect()
    }
}

fn not_begun(segment: &Segment, budget: Duration) -> Error {
    Error::Unreachable {
        segment: segment.name().to_owned(),
        message: format!("other peers took all of {budget:?}"),
    }
}
