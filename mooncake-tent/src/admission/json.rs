//! Contracts as JSON, in the form that configurations of the engine in C++ have.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, Visitor},
};

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
    intents: Given<Intents>,
}

/// As of any field, there is one contract for each intent.
#[derive(Default)]
struct Intents(HashMap<Intent, Contract>);

impl<'de> Deserialize<'de> for Intents {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ByIntent)
    }
}

struct ByIntent;

impl<'de> Visitor<'de> for ByIntent {
    type Value = Intents;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a contract for each intent")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Intents, A::Error> {
        let mut intents = Intents::default();
        while let Some(intent) = fields.next_key::<Intent>()? {
            let Object::<ContractForm>(form) = fields.next_value()?;
            if intents.0.insert(intent, form.into()).is_some() {
                return Err(de::Error::duplicate_field(intent.name()));
            }
        }
        Ok(intents)
    }
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
    let tenants = tenants.map(|Object(form)| Tenant {
        name: form.name,
        defaults: contract(form.defaults),
        intents: form.intents.0.unwrap_or_default().0,
    });
    Ok((contract(document.defaults), tenants.collect()))
}

#[derive(Serialize)]
struct ContractOut<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_inflight_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_inflight_requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_degraded_actions: Option<&'a [Degraded]>,
}

#[derive(Serialize)]
struct TenantOut<'a> {
    name: &'a str,
    defaults: ContractOut<'a>,
    intents: BTreeMap<&'static str, ContractOut<'a>>,
}

#[derive(Serialize)]
struct DocumentOut<'a> {
    version: u64,
    defaults: ContractOut<'a>,
    tenants: Vec<TenantOut<'a>>,
}

impl<'a> From<&'a Contract> for ContractOut<'a> {
    fn from(contract: &'a Contract) -> Self {
        Self {
            priority: contract.priority,
            max_inflight_bytes: contract.max_inflight_bytes,
            max_inflight_requests: contract.max_inflight_requests,
            allowed_degraded_actions: contract.allowed_degraded_actions.as_deref(),
        }
    }
}

impl Serialize for Degraded {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.serialize_str(self.name())
    }
}

pub(super) fn encode(defaults: &Contract, tenants: &[Tenant]) -> String {
    let tenants = tenants.iter().map(|tenant| TenantOut {
        name: &tenant.name,
        defaults: (&tenant.defaults).into(),
        intents: tenant
            .intents
            .iter()
            .map(|(intent, contract)| (intent.name(), contract.into()))
            .collect(),
    });
    let document = DocumentOut {
        version: VERSION,
        defaults: defaults.into(),
        tenants: tenants.collect(),
    };
    serde_json::to_string(&document).expect("text, numbers and lists are JSON")
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
        assert_eq!(defaults.allowed_degraded_actions.as_ref().unwrap().len(), 5);
        assert_eq!(tenants[0].defaults.max_inflight_requests, Some(3));
        let saved = &tenants[0].intents[&Intent::Checkpoint];
        assert_eq!(saved.max_inflight_bytes, Some(9));
        assert_eq!(saved.priority, Some(Priority::Low));
        assert_eq!(tenants[1], Tenant::new("b"));
        let contracts = Contracts::from_json(text).unwrap();
        assert_eq!(
            (contracts.tenants(), contracts.defaults()),
            (&*tenants, &defaults)
        );
        assert_eq!(Contracts::from_json(&contracts.to_json()), Ok(contracts));
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
                r#"{"version": 1, "tenants": [{"name": "a",
                    "intents": {"CHECKPOINT": {"priority": "low"}, "CHECKPOINT": {}}}]}"#,
                "duplicate field `CHECKPOINT`",
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
