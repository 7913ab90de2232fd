//! The page that lists storages.

use std::sync::Arc;

use axum::{
    Json,
    extract::State as Of,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{bad_request, refused};
use crate::{
    service::Shared,
    state::{Answer, ClientId, Command, StorageAnswer, StorageCall, StorageUsage},
};

pub(crate) async fn page(Of(shared): Of<Arc<Shared>>) -> Response {
    let answer = shared.apply(&Command::Storage {
        client: ClientId::NOBODY,
        call: StorageCall::List,
    });
    match answer {
        Answer::Storage(StorageAnswer::Storages(storages)) => {
            let storages: Vec<_> = storages.iter().map(row).collect();
            Json(json!({ "storages": storages })).into_response()
        }
        Answer::Refused(failure) => refused(&failure),
        _ => bad_request("storages cannot be listed"),
    }
}

fn row(usage: &StorageUsage) -> Value {
    let (storage, measured) = (&usage.storage, &usage.measured);
    json!({
        "id": storage.id.to_string(),
        "holder": storage.holder_name,
        "holder_incarnation": storage.holder.to_string(),
        "endpoint": storage.endpoint,
        "capacity_bytes": measured.capacity,
        "used_bytes": measured.used,
        "live_bytes": measured.live,
        "dead_bytes": measured.dead,
        "queued_bytes": measured.queued,
        "value_bytes": measured.value_bytes,
        "objects": measured.objects,
        "known_value_bytes": usage.value_bytes,
        "known_objects": usage.objects,
        "remove_tasks": usage.remove_tasks,
        "offload_tasks": usage.offload_tasks,
        "mounted": usage.mounted,
        "reconciled": usage.reconciled,
        "silent_ms": usage.silent.as_millis() as u64,
    })
}
