//! Contracts as JSON, in the form that configurations of the engine in C++ have.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer, de};

use super::{Contract, Degraded, Tenant};
use crate::{
    json::{Given, Object},
    qos::{Intent, Priority},
};

/// The only version that there is.
const VERSION: u64 = 1;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ContractForm {
    priority: Given<Priority>,
    max_inflight_bytes: Given<u64>,
    max_inflight_requests: Given<u64>,
    allowed_degraded_actions: Given<Vec<Degraded>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantForm {
    name: String,
    #[serde(default)]
    defaults: Given<Object<ContractForm>>,
    #[serde(default)]
    intents: Given<HashMap<Intent, Object<ContractForm>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u64,
    #[serde(default)]
    defaults: Given<Object<ContractForm>>,
    #[serde(default)]
    tenants: Given<Vec<Object<TenantForm>>>,
}

impl From<ContractForm> for Contract {
    fn from(form: ContractForm) -> Self {
        Self {
            priority: form.priority.0,
            max_inflight_bytes: form.max_inflight_bytes.0,
            max_inflight_requests: form.max_inflight_requests.0,
            allowed_degraded_actions: form.allowed_degraded_actions.0,
        }
    }
}

impl<'de> Deserialize<'de> for Degraded {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }
}

fn contract(given: Given<Object<ContractForm>>) -> Contract {
    given.0.map(|Object(form)| form.into()).unwrap_or_default()
}

pub(super) fn decode(text: &str) -> serde_json::Result<(Contract, Vec<Tenant>)> {
    let Object::<Document>(document) = serde_json::from_str(text)?;
    if document.version != VERSION {
        let message = format!("version {} is unknown: {VERSION}", document.version);
        return Err(de::Error::custom(message));
    }
    let tenants = document.tenants.0.unwrap_or_default().into_iter();
    let tenants = tenants.map(|Object(form)| {
        let intents = form.intents.0.unwrap_or_default().into_iter();
        Tenant {
            name: form.name,
            defaults: contract(form.defaults),
            intents: intents
                .map(|(intent, Object(form))| (intent, form.into()))
                .collect(),
        }
    });
    Ok((contract(document.defaults), tenants.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Contracts;

    #[test]
    fn contracts_have_the_fields_that_configurations_have() {
        let text = r#"{"version": 1,
            "defaults": {"priority": 1, "allowed_degraded_actions": ["delay", "fallback_transport",
                         "local_recompute", "compress", "reject"]},
            "tenants": [{"name": "a", "defaults": {"max_inflight_requests": 3},
                         "intents": {"CHECKPOINT": {"priority": "low", "max_inflight_bytes": 9}}},
                        {"name": "b"}]}"#;
        let (defaults, tenants) = decode(text).unwrap();
        assert_eq!(defaults.priority, Some(Priority::Medium));
        assert_eq!(defaults.allowed_degraded_actions.unwrap().len(), 5);
        assert_eq!(tenants[0].defaults.max_inflight_requests, Some(3));
        let saved = &tenants[0].intents[&Intent::Checkpoint];
        assert_eq!(saved.max_inflight_bytes, Some(9));
        assert_eq!(saved.priority, Some(Priority::Low));
        assert_eq!(tenants[1], Tenant::new("b"));
        assert!(Contracts::from_json(text).is_ok());
    }

    #[test]
    fn law_16_what_is_unknown_or_cannot_be_is_an_error_that_names_it() {
        for (text, says) in [
            (r#"{"version": 2}"#, "version 2 is unknown"),
            (r#"{}"#, "missing field `version`"),
            (r#"[1]"#, "expected an object"),
            (r#"{"version": 1, "tenant": []}"#, "unknown field `tenant`"),
            (
                r#"{"version": 1, "tenants": [{"defaults": {}}]}"#,
                "missing field `name`",
            ),
            (
                r#"{"version": 1, "defaults": {"max_bytes": 1}}"#,
                "unknown field `max_bytes`",
            ),
            (
                r#"{"version": 1, "defaults": {"priority": null}}"#,
                "expected high, medium or low",
            ),
            (
                r#"{"version": 1, "defaults": {"allowed_degraded_actions": ["drop"]}}"#,
                "\"drop\" is no action",
            ),
            (
                r#"{"version": 1, "tenants": [{"name": "a", "intents": {"FOREGROUND": {}}}]}"#,
                "\"FOREGROUND\" is no intent",
            ),
            (
                r#"{"version": 1, "defaults": {"max_inflight_bytes": 0}}"#,
                "lets nothing through",
            ),
        ] {
            let error = Contracts::from_json(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
