//! What tenants may ask.

use std::{collections::HashMap, fmt};

use crate::qos::{Intent, Priority};

/// What one kind of request may ask. What is absent, a more general contract says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contract {
    /// The most urgent that a request may be; one that does not say how urgent it is, is just so.
    pub priority: Option<Priority>,
    /// So many bytes may be on their way at once; one request of more goes alone.
    pub max_inflight_bytes: Option<u64>,
    /// So many requests may be on their way at once, at least 1.
    pub max_inflight_requests: Option<u64>,
    /// What may happen to a request that cannot be served at once as it was asked. Absent: all that the
    /// engine can do.
    pub allowed_degraded_actions: Option<Vec<Degraded>>,
}

/// What may happen to a request that cannot be served at once as it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Degraded {
    /// Its caller compresses the data. Never done by the engine.
    Compress,
    /// It waits.
    Delay,
    /// Another link carries it when the best one fails.
    FallbackTransport,
    /// Its caller computes the data anew. Never done by the engine.
    LocalRecompute,
    /// It is refused. What may not wait is refused in any case.
    Reject,
}

impl Degraded {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Compress,
        Self::Delay,
        Self::FallbackTransport,
        Self::LocalRecompute,
        Self::Reject,
    ];

    /// Its name in configurations, such as `fallback_transport`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compress => "compress",
            Self::Delay => "delay",
            Self::FallbackTransport => "fallback_transport",
            Self::LocalRecompute => "local_recompute",
            Self::Reject => "reject",
        }
    }
}

impl fmt::Display for Degraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Degraded {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|action| action.name() == text);
        named.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("{text:?} is no action: {known}")
        })
    }
}

/// The contracts of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tenant {
    /// Who.
    pub name: String,
    /// For all its requests. Its limits count all of them together.
    pub defaults: Contract,
    /// For its requests with one intent, beside the former. Their limits count those alone.
    pub intents: HashMap<Intent, Contract>,
}

impl Tenant {
    /// A tenant that may ask whatever everybody may.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }
}

/// What each tenant may ask. Built, they make sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contracts {
    defaults: Contract,
    tenants: Vec<Tenant>,
}

/// Why contracts make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ContractError(pub(super) String);

/// The contract for a request, put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) priority: Priority,
    pub(crate) delay: bool,
    pub(crate) fallback: bool,
    /// Of all requests of its tenant, and of those with its intent.
    pub(super) limits: [Limits; 2],
}

/// How much of one kind may be on its way at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) bytes: Option<u64>,
    pub(super) requests: Option<u64>,
}

impl Limits {
    fn of(contract: &Contract) -> Self {
        Self {
            bytes: contract.max_inflight_bytes,
            requests: contract.max_inflight_requests,
        }
    }

    pub(super) fn is_any(self) -> bool {
        self.bytes.is_some() || self.requests.is_some()
    }
}

impl Contracts {
    /// `defaults` for everybody, and what `tenants` have of their own. Limits of the former count the
    /// requests of each tenant by itself; requests without a tenant are one more.
    ///
    /// # Errors
    ///
    /// Two tenants have the same name, or a limit lets nothing through.
    pub fn new(defaults: Contract, tenants: Vec<Tenant>) -> Result<Self, ContractError> {
        check("defaults", &defaults)?;
        for (place, tenant) in tenants.iter().enumerate() {
            let Tenant {
                name,
                defaults,
                intents,
            } = tenant;
            if name.is_empty() {
                return Err(ContractError(format!(
                    "tenant {}: it has no name",
                    place + 1
                )));
            }
            if tenants[..place].iter().any(|other| other.name == *name) {
                return Err(ContractError(format!("tenant {name:?} is there twice")));
            }
            check(&format!("tenant {name:?}"), defaults)?;
            for (intent, contract) in intents {
                check(&format!("tenant {name:?}, {intent}"), contract)?;
            }
        }
        Ok(Self { defaults, tenants })
    }

    /// Contracts from their JSON form.
    ///
    /// ```
    /// use mooncake_tent::admission::Contracts;
    ///
    /// Contracts::from_json(r#"{"version": 1, "tenants": [
    ///     {"name": "training", "defaults": {"priority": "low", "max_inflight_bytes": 1073741824},
    ///      "intents": {"CHECKPOINT": {"max_inflight_requests": 8}}}
    /// ]}"#)?;
    /// # Ok::<_, mooncake_tent::admission::ContractError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The text is not of this form, or has a field or a version that is unknown, or as for
    /// [`new`](Self::new).
    #[cfg(feature = "json")]
    pub fn from_json(text: &str) -> Result<Self, ContractError> {
        let (defaults, tenants) =
            super::json::decode(text).map_err(|error| ContractError(error.to_string()))?;
        Self::new(defaults, tenants)
    }

    /// The JSON form, with tenants in their order and intents by name.
    ///
    /// ```
    /// use mooncake_tent::admission::Contracts;
    ///
    /// let text = r#"{"version":1,"defaults":{"priority":"low"},"tenants":[]}"#;
    /// assert_eq!(Contracts::from_json(text)?.to_json(), text);
    /// # Ok::<_, mooncake_tent::admission::ContractError>(())
    /// ```
    #[cfg(feature = "json")]
    pub fn to_json(&self) -> String {
        super::json::encode(&self.defaults, &self.tenants)
    }

    /// What everybody has.
    pub fn defaults(&self) -> &Contract {
        &self.defaults
    }

    /// What tenants have of their own, in the order in which they were given.
    pub fn tenants(&self) -> &[Tenant] {
        &self.tenants
    }

    /// What counts for a request.
    pub(crate) fn terms(
        &self,
        tenant: Option<&str>,
        intent: Intent,
        said: Option<Priority>,
    ) -> Bounds {
        let known = self.tenants.iter();
        let own = tenant.and_then(|tenant| known.clone().find(|known| known.name == tenant));
        let own_defaults = own.map(|own| &own.defaults);
        let special = own.and_then(|own| own.intents.get(&intent));
        // The most special first.
        let all = [special, own_defaults, Some(&self.defaults)];
        let all = || all.into_iter().flatten();
        let bound = all().find_map(|contract| contract.priority);
        let actions = all().find_map(|contract| contract.allowed_degraded_actions.as_deref());
        let allows = |action| actions.is_none_or(|actions| actions.contains(&action));
        let general = own_defaults.into_iter().chain([&self.defaults]);
        let bytes = general
            .clone()
            .find_map(|contract| contract.max_inflight_bytes);
        let requests = general
            .clone()
            .find_map(|contract| contract.max_inflight_requests);
        Bounds {
            priority: said.max(bound).unwrap_or_default(),
            delay: allows(Degraded::Delay),
            fallback: allows(Degraded::FallbackTransport),
            limits: [
                Limits { bytes, requests },
                special.map_or_else(Limits::default, Limits::of),
            ],
        }
    }
}

fn check(whose: &str, contract: &Contract) -> Result<(), ContractError> {
    let none = |limit: Option<u64>| limit == Some(0);
    let field = match contract {
        _ if none(contract.max_inflight_bytes) => "max_inflight_bytes",
        _ if none(contract.max_inflight_requests) => "max_inflight_requests",
        _ => return Ok(()),
    };
    Err(ContractError(format!(
        "{whose}: {field} is 0, which lets nothing through"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contract(priority: Option<Priority>, bytes: Option<u64>) -> Contract {
        Contract {
            priority,
            max_inflight_bytes: bytes,
            ..Contract::default()
        }
    }

    #[test]
    fn the_most_special_contract_counts_and_a_caller_cannot_be_more_urgent() {
        let mut tenant = Tenant::new("a");
        tenant.defaults = contract(Some(Priority::Medium), Some(100));
        let saved = contract(Some(Priority::Low), Some(7));
        tenant.intents.insert(Intent::Checkpoint, saved);
        let everybody = Contract {
            allowed_degraded_actions: Some(vec![Degraded::Reject]),
            max_inflight_requests: Some(4),
            ..Contract::default()
        };
        let contracts = Contracts::new(everybody, vec![tenant]).unwrap();
        for (tenant, intent, said, priority) in [
            (None, Intent::Checkpoint, None, Priority::High),
            (
                Some("b"),
                Intent::Checkpoint,
                Some(Priority::Low),
                Priority::Low,
            ),
            (Some("a"), Intent::Migration, None, Priority::Medium),
            (
                Some("a"),
                Intent::Migration,
                Some(Priority::High),
                Priority::Medium,
            ),
            (
                Some("a"),
                Intent::Migration,
                Some(Priority::Low),
                Priority::Low,
            ),
            (
                Some("a"),
                Intent::Checkpoint,
                Some(Priority::High),
                Priority::Low,
            ),
        ] {
            let terms = contracts.terms(tenant, intent, said);
            assert_eq!(terms.priority, priority, "{tenant:?} {intent} {said:?}");
            assert!(!terms.delay && !terms.fallback);
            assert_eq!(terms.limits[0].requests, Some(4));
            let own = tenant == Some("a");
            assert_eq!(terms.limits[0].bytes, own.then_some(100));
            let special = own && intent == Intent::Checkpoint;
            assert_eq!(terms.limits[1].bytes, special.then_some(7));
        }
    }

    #[test]
    fn contracts_that_make_no_sense_are_refused_with_the_field() {
        let twice = vec![Tenant::new("a"), Tenant::new("a")];
        let nobody = vec![Tenant::new("")];
        let mut shut = Tenant::new("b");
        let none = contract(None, Some(0));
        shut.intents.insert(Intent::Migration, none.clone());
        for (defaults, tenants, says) in [
            (Contract::default(), twice, "\"a\" is there twice"),
            (Contract::default(), nobody, "no name"),
            (
                Contract::default(),
                vec![shut],
                "\"b\", MIGRATION: max_inflight_bytes is 0",
            ),
            (none, Vec::new(), "defaults: max_inflight_bytes"),
        ] {
            let error = Contracts::new(defaults, tenants).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
