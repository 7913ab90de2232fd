//! A closed loop of single calls over one connection, as tools and other languages make them.

use std::time::{Duration, Instant};

use mooncake_proto::master::{ExistRequest, master_client::MasterClient};
use tonic::transport::{Channel, Endpoint};

use super::plan::{Plan, Source};
use crate::{bench::Sample, latency::Latency, output::Failure};

/// Connects as simply as one can.
///
/// # Errors
///
/// Nobody answers.
pub(super) async fn connect(address: &str) -> Result<MasterClient<Channel>, Failure> {
    let failed = |error| Failure::new("the master cannot be reached").because(error);
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(failed)?;
    let channel = endpoint.tcp_nodelay(true).connect().await.map_err(failed)?;
    Ok(MasterClient::new(channel))
}

/// Asks for existing keys, as many calls at once as the plan says.
///
/// # Errors
///
/// A call fails, or does not find its keys.
pub(super) async fn run(
    client: &MasterClient<Channel>,
    plan: Plan,
    source: &mut Source,
    budget: Duration,
) -> Result<Sample, Failure> {
    let began = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..plan.depth {
        let mut client = client.clone();
        // Each has keys of its own, so that none waits for another's.
        let keys: Vec<_> = (0..KEYS_A_CALLER)
            .map(|_| source.take(plan.batch))
            .collect();
        callers.spawn(async move {
            let mut latency = Latency::default();
            let mut now = Instant::now();
            for keys in keys.iter().cycle() {
                if now - began >= budget {
                    break;
                }
                let request = ExistRequest {
                    keys: keys.clone(),
                    ..ExistRequest::default()
                };
                let answer = client.exist(request).await;
                let answer = answer.map_err(|status| {
                    Failure::new("the master refuses a call").cause(status.message())
                })?;
                let results = answer.into_inner().results;
                if results.len() != keys.len() || !results.iter().all(|one| one.exists) {
                    return Err(Failure::new("the master has lost keys"));
                }
                latency.record(now.elapsed());
                now = Instant::now();
            }
            Ok(latency)
        });
    }
    let mut sample = Sample::default();
    while let Some(latency) = callers.join_next().await {
        let latency = latency.map_err(|error| Failure::new("a caller is lost").because(error))?;
        sample.latency.merge(&latency?);
    }
    sample.operations = sample.latency.count() * plan.batch as u64;
    sample.wall = began.elapsed();
    Ok(sample)
}

const KEYS_A_CALLER: usize = 256;
