//! The book over HTTP.
//!
//! | Request | Answer |
//! |---|---|
//! | `GET /metadata?key=K` | 200 and the value; 404 |
//! | `PUT /metadata?key=K&owner=O&ttl_ms=T` | 200; 409 and the value of another owner, whom `&replaces=P` names to take it over; 507 when there is no room |
//! | `DELETE /metadata?key=K&owner=O` | 200; 404; 409 and the value of another owner |
//! | `GET /health`, `/healthz` | `{"status": "serving"}` |
//! | `GET /metrics` | all numbers, as text in the format of Prometheus |
//!
//! What makes no sense is answered by 400 or 413 and a line that says why.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde::Deserialize;

use super::book::{Book, Put, Removal, Wanted};
use super::clock::Clock;

/// The longest key and the longest name of an owner, in bytes.
const LONGEST_TEXT: usize = 1024;
/// The largest value.
const LARGEST_VALUE: usize = 16 << 10;
/// How often ended leases are looked for.
const SWEEP: Duration = Duration::from_millis(100);

/// What is served. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Service {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    book: Mutex<(Clock, Book)>,
    longest_lease: Duration,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    gets: AtomicU64,
    misses: AtomicU64,
    puts: AtomicU64,
    removals: AtomicU64,
    conflicts: AtomicU64,
    refused: AtomicU64,
    expired: AtomicU64,
}

/// What a request says besides its value.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    key: String,
    owner: Option<String>,
    replaces: Option<String>,
    ttl_ms: Option<u64>,
}

/// Why a request is not done, for whoever made it.
#[derive(Debug)]
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

impl Service {
    /// Entries take so many bytes at most, and last so long unless they are renewed.
    pub(super) fn new(capacity: u64, longest_lease: Duration) -> Self {
        let book = (Clock::start(Instant::now()), Book::new(capacity));
        Self {
            shared: Arc::new(Shared {
                book: Mutex::new(book),
                longest_lease,
                counts: Counts::default(),
            }),
        }
    }

    /// Drops entries whose leases have ended, for ever.
    pub(super) async fn sweep(self) {
        let mut ticks = tokio::time::interval(SWEEP);
        loop {
            ticks.tick().await;
            let expired = self.with(|now, book| book.expire(now));
            let counts = &self.shared.counts;
            counts.expired.fetch_add(expired, Ordering::Relaxed);
        }
    }

    pub(super) fn routes(self) -> Router {
        let health = || async { Json(serde_json::json!({ "status": "serving" })) };
        Router::new()
            .route("/metadata", get(fetch).put(store).delete(remove))
            .route("/health", get(health))
            .route("/healthz", get(health))
            .route("/metrics", get(metrics))
            .layer(DefaultBodyLimit::max(LARGEST_VALUE))
            .with_state(self)
    }

    fn with<T>(&self, act: impl FnOnce(Duration, &mut Book) -> T) -> T {
        let mut locked: MutexGuard<'_, (Clock, Book)> = self
            .shared
            .book
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (clock, book) = &mut *locked;
        let now = clock.now(Instant::now());
        act(now, book)
    }

    fn refuse(&self, status: StatusCode, why: impl fmt::Display) -> Refusal {
        count(&self.shared.counts.refused);
        Refusal(status, format!("{why}\n"))
    }

    fn conflict(&self, value: Bytes) -> Response {
        count(&self.shared.counts.conflicts);
        (StatusCode::CONFLICT, value).into_response()
    }

    /// What a request says, if it makes sense.
    fn asked(&self, query: Result<Query<Asked>, QueryRejection>) -> Result<Asked, Refusal> {
        let bad = |why: &dyn fmt::Display| self.refuse(StatusCode::BAD_REQUEST, why);
        let Query(asked) = query.map_err(|rejected| bad(&rejected.body_text()))?;
        let texts = [
            Some(&asked.key),
            asked.owner.as_ref(),
            asked.replaces.as_ref(),
        ];
        for text in texts.into_iter().flatten() {
            if !(1..=LONGEST_TEXT).contains(&text.len()) {
                let why = format_args!("key, owner and replaces have 1 to {LONGEST_TEXT} bytes");
                return Err(bad(&why));
            }
        }
        Ok(asked)
    }
}

async fn fetch(
    State(service): State<Service>,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refusal> {
    let asked = service.asked(query)?;
    count(&service.shared.counts.gets);
    match service.with(|now, book| book.get(now, &asked.key)) {
        Some(value) => Ok(value.into_response()),
        None => {
            count(&service.shared.counts.misses);
            Ok(absent())
        }
    }
}

async fn store(
    State(service): State<Service>,
    query: Result<Query<Asked>, QueryRejection>,
    value: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    let asked = service.asked(query)?;
    let value =
        value.map_err(|rejected| service.refuse(rejected.status(), rejected.body_text()))?;
    let longest = service.shared.longest_lease;
    let ttl = asked.ttl_ms.map(Duration::from_millis);
    let sensible = ttl.filter(|ttl| !ttl.is_zero() && *ttl <= longest);
    let (Some(owner), Some(ttl)) = (asked.owner, sensible) else {
        let why = format!(
            "a value needs an owner, and a ttl_ms of 1 to {}",
            longest.as_millis()
        );
        return Err(service.refuse(StatusCode::BAD_REQUEST, why));
    };
    let wanted = Wanted {
        key: asked.key,
        owner,
        replaces: asked.replaces,
        ttl,
        value,
    };
    match service.with(|now, book| book.put(now, wanted)) {
        Put::Stored => {
            count(&service.shared.counts.puts);
            Ok(StatusCode::OK.into_response())
        }
        Put::HeldBy(value) => Ok(service.conflict(value)),
        Put::Full => Err(service.refuse(StatusCode::INSUFFICIENT_STORAGE, "there is no room")),
    }
}

async fn remove(
    State(service): State<Service>,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refusal> {
    let asked = service.asked(query)?;
    let Some(owner) = asked.owner else {
        return Err(service.refuse(StatusCode::BAD_REQUEST, "only its owner removes a value"));
    };
    match service.with(|now, book| book.remove(now, &asked.key, &owner)) {
        Removal::Removed => {
            count(&service.shared.counts.removals);
            Ok(StatusCode::OK.into_response())
        }
        Removal::Absent => Ok(absent()),
        Removal::HeldBy(value) => Ok(service.conflict(value)),
    }
}

fn absent() -> Response {
    (StatusCode::NOT_FOUND, "there is no such key\n").into_response()
}

async fn metrics(State(service): State<Service>) -> impl IntoResponse {
    let mut registry = Registry::with_prefix("mooncake_metadata");
    registry.register_collector(Box::new(service));
    let mut body = String::new();
    text::encode(&mut body, &registry).expect("writing to a string does not fail");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], body)
}

impl Collector for Service {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (entries, bytes) = self.with(|_, book| (book.len() as u64, book.bytes()));
        for (name, help, value) in [
            ("entries", "Keys that have a value", entries),
            ("bytes", "What these take", bytes),
        ] {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            ConstGauge::new(value).encode(gauge)?;
        }
        let counts = &self.shared.counts;
        for (name, help, value) in [
            ("gets", "Values that were asked for", &counts.gets),
            ("misses", "Those that there were not", &counts.misses),
            ("puts", "Values that were put or renewed", &counts.puts),
            (
                "removals",
                "Values that their owners removed",
                &counts.removals,
            ),
            (
                "conflicts",
                "Requests for what another owner has",
                &counts.conflicts,
            ),
            (
                "refused",
                "Requests that made no sense, or found no room",
                &counts.refused,
            ),
            ("expired", "Values whose leases ended", &counts.expired),
        ] {
            let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value.load(Ordering::Relaxed)).encode(counter)?;
        }
        Ok(())
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
