//! The page that lists segments.

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
    state::{Answer, Caller, ClientId, Command, Operation, SegmentUsage},
};

pub(crate) async fn page(Of(shared): Of<Arc<Shared>>) -> Response {
    let answer = shared.apply(&Command::Perform {
        caller: Caller::Unary {
            client: ClientId::NOBODY,
            tenant: String::new(),
        },
        operation: Operation::ListSegments,
    });
    match answer {
        Answer::Segments { segments, .. } => {
            let segments: Vec<_> = segments.iter().map(row).collect();
            Json(json!({ "segments": segments })).into_response()
        }
        Answer::Refused(failure) => refused(&failure),
        _ => bad_request("segments cannot be listed"),
    }
}

fn row(usage: &SegmentUsage) -> Value {
    let segment = &usage.segment;
    json!({
        "id": segment.id.to_string(),
        "name": segment.name,
        "owner": segment.owner_name,
        "owner_incarnation": segment.owner.to_string(),
        "registration": format!("{:016x}", segment.registration),
        "generation": segment.generation,
        "length": segment.length,
        "used_bytes": usage.used_bytes,
        "quarantined_bytes": usage.quarantined_bytes,
        "objects": usage.objects,
        "silent_ms": usage.silent.as_millis() as u64,
    })
}
