//! The page that lists objects.

use std::{fmt::Write, sync::Arc};

use axum::{
    Json,
    extract::{Query, State as Of},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{bad_request, refused};
use crate::{
    service::Shared,
    state::{Answer, Caller, ClientId, Command, Key, ListObjects, ListedObject, Operation},
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Asked {
    tenant: String,
    prefix: String,
    after: String,
    after_hex: String,
    limit: u32,
}

pub(crate) async fn page(Of(shared): Of<Arc<Shared>>, Query(asked): Query<Asked>) -> Response {
    let after = if asked.after_hex.is_empty() {
        asked.after.into_bytes()
    } else {
        match from_hex(&asked.after_hex) {
            Some(after) => after,
            None => return bad_request("after_hex is not a hexadecimal key"),
        }
    };
    let command = Command::Perform {
        caller: Caller::Unary {
            client: ClientId::NOBODY,
            tenant: asked.tenant,
        },
        operation: Operation::ListObjects(ListObjects {
            prefix: Key::from(asked.prefix.into_bytes()),
            after: Key::from(after),
            limit: asked.limit,
        }),
    };
    match shared.answer(&command).await {
        Answer::Objects { objects, more } => {
            let keys: Vec<_> = objects.iter().map(row).collect();
            Json(json!({ "keys": keys, "more": more })).into_response()
        }
        Answer::Refused(failure) => refused(&failure),
        _ => bad_request("objects cannot be listed"),
    }
}

fn row(object: &ListedObject) -> Value {
    json!({
        "key": object.key.0.escape_ascii().to_string(),
        "key_hex": hex(&object.key.0),
        "length": object.length,
        "replicas": object.replicas,
        "incarnation": {
            "epoch": object.incarnation.epoch,
            "sequence": object.incarnation.sequence,
        },
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
        Some((high? * 16 + low?) as u8)
    };
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_keys_come_back_and_others_are_refused() {
        let key = b"\0k\xff";
        assert_eq!(from_hex(&hex(key)), Some(key.to_vec()));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("+1"), None);
    }
}
