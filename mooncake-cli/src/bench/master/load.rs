//! A closed loop on one session: as many calls under way as the plan says, until time or keys are
//! used up.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use mooncake_proto::{
    Fault,
    master::{
        ExistRequest, KeyIncarnation, LookupRequest, PutEndRequest, PutItem, PutStartRequest,
        PutStartResponse, ReleaseRequest, lookup_result, put_start_result,
    },
};
use mooncake_store::{
    Clock,
    core::{MasterAnswer, MasterRequest},
    master::MasterClient,
};
use tokio::sync::Notify;

use super::plan::{Plan, Source, Work};
use crate::{bench::Sample, latency::Latency, output::Failure};

/// What every object holds: the least that says that it exists.
pub(super) const VALUE_BYTES: u64 = 64;
/// How long a call may take before the master counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    /// After this long.
    Elapsed(Duration),
    /// After so many keys.
    Keys(u64),
}

/// Loads the session and tells what was done; the processor time is left to the caller.
///
/// # Errors
///
/// A call fails, or is answered by what cannot be true.
pub(super) async fn run(
    client: &MasterClient,
    plan: Plan,
    source: &mut Source,
    until: Until,
) -> Result<Sample, Failure> {
    let taken = std::mem::replace(
        source,
        Source::Known {
            keys: Vec::new(),
            at: 0,
        },
    );
    let began = Instant::now();
    let (end, left) = match until {
        Until::Elapsed(budget) => (Some(began + budget), u64::MAX),
        Until::Keys(keys) => (None, keys),
    };
    let pipeline = Arc::new(Pipeline {
        client: client.clone(),
        plan,
        progress: Mutex::new(Progress {
            source: taken,
            end,
            left,
            open: plan.depth,
            operations: 0,
            latency: Latency::default(),
            failed: None,
        }),
        over: Notify::new(),
    });
    for _ in 0..plan.depth {
        pipeline.next(Instant::now());
    }
    pipeline.over.notified().await;
    let wall = began.elapsed();
    let mut progress = pipeline.lock();
    std::mem::swap(source, &mut progress.source);
    match progress.failed.take() {
        Some(failure) => Err(failure),
        None => Ok(Sample {
            operations: progress.operations,
            wall,
            latency: std::mem::take(&mut progress.latency),
            ..Sample::default()
        }),
    }
}

/// The first request of such a call.
pub(super) fn request(work: Work, keys: Vec<Bytes>) -> MasterRequest {
    match work {
        Work::Exist { .. } => MasterRequest::Exist(ExistRequest {
            keys,
            ..ExistRequest::default()
        }),
        Work::Put => MasterRequest::PutStart(PutStartRequest {
            items: keys.into_iter().map(item).collect(),
            replicas: 1,
            ..PutStartRequest::default()
        }),
        Work::Query => MasterRequest::Lookup(LookupRequest {
            keys,
            ..LookupRequest::default()
        }),
    }
}

/// The request that ends what was started.
pub(super) fn put_end(
    keys: Vec<Bytes>,
    started: PutStartResponse,
) -> Result<MasterRequest, Failure> {
    let count = keys.len();
    let results = started.results.into_iter();
    let items = keys.into_iter().zip(results).map(|(key, one)| {
        let incarnation = match one.result {
            Some(put_start_result::Result::Object(object)) => object.incarnation,
            Some(put_start_result::Result::Error(detail)) => {
                return Err(refused(&Fault::from(detail)));
            }
            None => None,
        };
        Ok(KeyIncarnation { key, incarnation })
    });
    let items = items.collect::<Result<Vec<_>, Failure>>()?;
    if items.len() != count {
        return Err(wrong("a put of a batch"));
    }
    Ok(MasterRequest::PutEnd(PutEndRequest {
        items,
        ..PutEndRequest::default()
    }))
}

fn item(key: Bytes) -> PutItem {
    PutItem {
        key,
        length: VALUE_BYTES,
    }
}

fn refused(fault: &Fault) -> Failure {
    Failure::new("the master refuses a call").because(fault)
}

fn wrong(what: &str) -> Failure {
    Failure::new(format!("the master's answer to {what} cannot be true"))
}

struct Pipeline {
    client: MasterClient,
    plan: Plan,
    progress: Mutex<Progress>,
    over: Notify,
}

struct Progress {
    source: Source,
    end: Option<Instant>,
    /// Keys that may still be asked for.
    left: u64,
    /// Calls under way.
    open: usize,
    operations: u64,
    latency: Latency,
    failed: Option<Failure>,
}

impl Pipeline {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call, or ends one of the places for calls if it is time.
    fn next(self: &Arc<Self>, now: Instant) {
        let mut progress = self.lock();
        let over = progress.end.is_some_and(|end| now >= end) || progress.left == 0;
        if over || progress.failed.is_some() {
            progress.open -= 1;
            if progress.open == 0 {
                self.over.notify_one();
            }
            return;
        }
        let batch = usize::try_from(progress.left).unwrap_or(usize::MAX);
        let batch = batch.min(self.plan.batch);
        progress.left -= batch as u64;
        let keys = progress.source.take(batch);
        drop(progress);
        match self.plan.work {
            Work::Exist { found } => self.exist(now, keys, found),
            Work::Put => self.put(now, keys),
            Work::Query => self.query(now, keys),
        }
    }

    fn ended(self: &Arc<Self>, begun: Instant, keys: usize) {
        let now = Instant::now();
        {
            let mut progress = self.lock();
            progress.operations += keys as u64;
            progress.latency.record(now - begun);
        }
        self.next(now);
    }

    fn failed(self: &Arc<Self>, failure: Failure) {
        self.lock().failed.get_or_insert(failure);
        self.next(Instant::now());
    }

    fn call(
        self: &Arc<Self>,
        request: MasterRequest,
        then: impl FnOnce(&Arc<Self>, MasterAnswer) + Send + 'static,
    ) {
        let this = Arc::clone(self);
        let deadline = Clock.now() + PATIENCE;
        self.client
            .submit(request, deadline, move |answer| match answer {
                Ok(answer) => then(&this, answer),
                Err(fault) => this.failed(refused(&fault)),
            });
    }

    fn exist(self: &Arc<Self>, begun: Instant, keys: Vec<Bytes>, found: bool) {
        let count = keys.len();
        let request = request(Work::Exist { found }, keys);
        self.call(request, move |this, answer| match answer {
            MasterAnswer::Exist(answer)
                if answer.results.len() == count
                    && answer.results.iter().all(|one| one.exists == found) =>
            {
                this.ended(begun, count);
            }
            _ => this.failed(wrong("an existence check")),
        });
    }

    fn put(self: &Arc<Self>, begun: Instant, keys: Vec<Bytes>) {
        let count = keys.len();
        let request = request(Work::Put, keys.clone());
        self.call(request, move |this, answer| {
            let MasterAnswer::PutStart(started) = answer else {
                return this.failed(wrong("the start of a put"));
            };
            let request = match put_end(keys, started) {
                Ok(request) => request,
                Err(failure) => return this.failed(failure),
            };
            this.call(request, move |this, answer| match answer {
                MasterAnswer::PutEnd(answer)
                    if answer.results.len() == count
                        && answer.results.iter().all(|one| one.error.is_none()) =>
                {
                    this.ended(begun, count);
                }
                _ => this.failed(wrong("the end of a put")),
            });
        });
    }

    fn query(self: &Arc<Self>, begun: Instant, keys: Vec<Bytes>) {
        let count = keys.len();
        let request = request(Work::Query, keys);
        self.call(request, move |this, answer| {
            let found = |one: &mooncake_proto::master::LookupResult| {
                matches!(one.result, Some(lookup_result::Result::Object(_)))
            };
            match answer {
                MasterAnswer::Lookup(answer)
                    if answer.results.len() == count && answer.results.iter().all(found) =>
                {
                    let leases = vec![answer.lease];
                    let release = MasterRequest::Release(ReleaseRequest { leases });
                    // As readers do: nobody waits for the answer, but it counts as work.
                    this.lock().open += 1;
                    this.call(release, |this, _| this.released());
                    this.ended(begun, count);
                }
                _ => this.failed(wrong("a look-up")),
            }
        });
    }

    fn released(&self) {
        let mut progress = self.lock();
        progress.open -= 1;
        if progress.open == 0 {
            self.over.notify_one();
        }
    }
}
