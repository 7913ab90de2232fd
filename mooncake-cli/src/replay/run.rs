//! A run: requests in order, shared out to clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use mooncake_proto::master::{ListSegmentsRequest, ListSegmentsResponse};
use mooncake_store::core::{MasterAnswer, MasterRequest};
use mooncake_store::master::MasterClient;
use mooncake_store::{Clock, Fault};
use tokio::sync::{Mutex, mpsc};
use tokio::task::block_in_place;

use super::{Player, Served, Tally};
use crate::output::{Failure, Output};
use crate::report::{NodeSummary, Summary};
use crate::trace::Request;

/// What is replayed, and how fast.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The requests, in order.
    pub requests: Arc<Vec<Request>>,
    /// Keeps the trace's arrival times, so many times as fast; `None`: as fast as possible.
    pub speed: Option<f64>,
}

/// Whoever serves a request: a client in this process, or one in another.
pub trait Serve: Send + 'static {
    /// Serves it.
    ///
    /// # Errors
    ///
    /// It cannot serve any more.
    fn serve(&mut self, request: &Request) -> impl Future<Output = Result<Served, Failure>> + Send;
}

impl Serve for Player {
    async fn serve(&mut self, request: &Request) -> Result<Served, Failure> {
        // Its calls block.
        Ok(block_in_place(|| Self::serve(self, request)))
    }
}

/// Takes each request in order to the next client that is free, and adds up what came of it.
///
/// # Errors
///
/// A client cannot serve any more.
pub async fn replay<S: Serve>(
    plan: &Plan,
    clients: Vec<S>,
    bar: &ProgressBar,
    output: Output,
) -> Result<Summary, Failure> {
    let count = clients.len();
    let start = Instant::now();
    let next = Arc::new(Mutex::new(0_usize));
    let (done, mut results) = mpsc::channel(64);
    for client in clients {
        tokio::spawn(play(
            plan.clone(),
            client,
            start,
            Arc::clone(&next),
            done.clone(),
        ));
    }
    drop(done);
    let mut tally = Tally::default();
    let mut waiting = BTreeMap::new();
    let mut told = 0;
    let mut added = 0;
    while let Some((index, served)) = results.recv().await {
        let served: Served = served?;
        bar.inc(1);
        if let Some(error) = &served.first_error
            && told < 5
        {
            told += 1;
            bar.suspend(|| output.note(format!("request {index}: {error}")));
        }
        waiting.insert(index, served);
        // The ideal is reckoned in the order of the trace, whoever is done first.
        while let Some(served) = waiting.remove(&added) {
            tally.add(&plan.requests[added], &served);
            added += 1;
        }
    }
    bar.finish_and_clear();
    if added < plan.requests.len() {
        return Err(Failure::new(format!(
            "a client broke down: {added} of {} requests were served",
            plan.requests.len()
        )));
    }
    Ok(tally.summary(count, start.elapsed()))
}

async fn play<S: Serve>(
    plan: Plan,
    mut client: S,
    start: Instant,
    next: Arc<Mutex<usize>>,
    done: mpsc::Sender<(usize, Result<Served, Failure>)>,
) {
    loop {
        let index = {
            let mut next = next.lock().await;
            let index = *next;
            *next += 1;
            index
        };
        let Some(request) = plan.requests.get(index) else {
            return;
        };
        if let Some(speed) = plan.speed {
            let at = due(request, speed);
            tokio::time::sleep(at.saturating_sub(start.elapsed())).await;
        }
        let served = client.serve(request).await;
        let failed = served.is_err();
        // Nobody listens any more once another client has failed.
        if done.send((index, served)).await.is_err() || failed {
            return;
        }
    }
}

/// When a request is due, from the start of the run; a speed near 0 puts it off for ever.
fn due(request: &Request, speed: f64) -> Duration {
    let seconds = request.timestamp as f64 / 1e3 / speed;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// What the master knows of the nodes: evicted objects so far, and use per node.
///
/// # Errors
///
/// The master does not answer.
pub async fn totals(master: &MasterClient) -> Result<(u64, Vec<NodeSummary>), Fault> {
    let request = MasterRequest::ListSegments(ListSegmentsRequest::default());
    let deadline = Clock.now() + Duration::from_secs(5);
    let MasterAnswer::ListSegments(ListSegmentsResponse {
        segments,
        evicted_objects,
    }) = master.call(request, deadline).await?
    else {
        unreachable!("the session matches answers with their questions");
    };
    let mut nodes: Vec<_> = segments
        .into_iter()
        .map(|usage| {
            let segment = usage.segment.unwrap_or_default();
            NodeSummary {
                name: segment.owner,
                capacity_bytes: segment.length,
                used_bytes: usage.used_bytes,
                objects: usage.objects,
            }
        })
        .collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((evicted_objects, nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(timestamps: &[u64]) -> Plan {
        let request = |timestamp: &u64| Request {
            timestamp: *timestamp,
            input_length: 1,
            output_length: 1,
            hash_ids: vec![0],
        };
        Plan {
            requests: Arc::new(timestamps.iter().map(request).collect()),
            speed: None,
        }
    }

    async fn run<S: Serve>(plan: &Plan, client: S) -> Result<Summary, Failure> {
        let bar = ProgressBar::hidden();
        replay(plan, vec![client], &bar, Output::default()).await
    }

    struct Healthy;
    struct Broken;

    impl Serve for Healthy {
        async fn serve(&mut self, _request: &Request) -> Result<Served, Failure> {
            Ok(Served::default())
        }
    }

    impl Serve for Broken {
        async fn serve(&mut self, request: &Request) -> Result<Served, Failure> {
            assert_eq!(request.timestamp, 0, "this panic is part of the test");
            Ok(Served::default())
        }
    }

    #[tokio::test]
    async fn a_client_that_panics_does_not_pass_for_a_run_that_is_done() {
        let plan = plan(&[0, 1, 2]);
        let failure = run(&plan, Broken).await.unwrap_err();
        assert!(failure.human().contains("1 of 3 requests"));
        assert_eq!(run(&plan, Healthy).await.unwrap().requests, 3);
    }

    #[test]
    fn a_request_is_due_at_its_time_by_the_speed_however_small_that_is() {
        let plan = plan(&[1_500]);
        let due = |speed| due(&plan.requests[0], speed);
        assert_eq!(due(3.0), Duration::from_millis(500));
        assert_eq!(due(1e300), Duration::ZERO);
        assert_eq!(due(1e-300), Duration::MAX);
    }
}
