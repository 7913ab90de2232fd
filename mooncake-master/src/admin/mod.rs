//! HTTP pages for operators.
//!
//! | Page | Answer |
//! |---|---|
//! | `/health` | `{"status": "serving", "epoch", "uptime_ms"}` |
//! | `/metrics` | all numbers, as text in the format of Prometheus |
//! | `/keys?tenant=&prefix=&after=&limit=` | `{"keys": [{"key", "key_hex", "length", "replicas", "incarnation": {"epoch", "sequence"}}], "more"}`, ordered by key. `key` shows bytes that are no printable ASCII as escapes; `key_hex` is exact, and `after_hex` takes it to ask for the next page |
//! | `/segments` | `{"segments": [{"id", "name", "owner", "owner_incarnation", "registration", "generation", "length", "used_bytes", "quarantined_bytes", "objects", "silent_ms"}]}` |
//! | `/storages` | `{"storages": [{"id", "holder", "holder_incarnation", "endpoint", "capacity_bytes", "used_bytes", "live_bytes", "dead_bytes", "queued_bytes", "value_bytes", "objects", "known_value_bytes", "known_objects", "remove_tasks", "offload_tasks", "mounted", "reconciled", "silent_ms"}]}`. What begins with `known_` is what the master counts, the rest of the bytes and `objects` what the holder measured |
//!
//! Numbers that need 64 bits (`owner_incarnation`, `registration`) are hexadecimal strings. What
//! cannot be answered is `{"error": "…"}` with a status of 400.

mod keys;
mod segments;
mod storages;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State as Of,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};

use crate::{metrics::Metrics, service::Shared, state::Failure};

/// All pages over one master.
pub(crate) fn pages(shared: &Arc<Shared>) -> Router {
    let metrics = Arc::new(Metrics::new(shared));
    Router::new()
        .route("/health", get(health))
        .route("/keys", get(keys::page))
        .route("/segments", get(segments::page))
        .route("/storages", get(storages::page))
        .route("/metrics", get(move || async move { text(metrics.text()) }))
        .with_state(Arc::clone(shared))
}

async fn health(Of(shared): Of<Arc<Shared>>) -> Json<Value> {
    Json(json!({
        "status": "serving",
        "epoch": shared.epoch(),
        "uptime_ms": shared.now().0 / 1000,
    }))
}

fn text(body: String) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], body)
}

fn refused(failure: &Failure) -> Response {
    bad_request(&failure.to_string())
}

fn bad_request(error: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response()
}
