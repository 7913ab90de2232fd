//! The rules of an operator, in order.

use std::collections::HashSet;

use super::{Policy, RequestFacts};

/// Policies of which the first that fits a request counts. Built, they make sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    list: Vec<Policy>,
}

/// Why policies make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[non_exhaustive]
pub enum PolicyError {
    /// What the field says can never be kept.
    #[error("{policy}: {field} {problem}")]
    Field {
        policy: String,
        field: &'static str,
        problem: String,
    },
    /// The text is no JSON of this form; the message names the place, and the field if there is one.
    #[error("{0}")]
    Json(String),
}

/// Which policy is for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling<'a> {
    /// This one, with its place among all.
    Applies(usize, &'a Policy),
    /// None asks for anything.
    Free,
    /// The request names one that there is not, so nothing may carry it.
    Unknown(&'a str),
}

impl Policies {
    /// Policies in the order in which they are tried.
    ///
    /// # Errors
    ///
    /// Two have the same name, or one of them could never be kept.
    pub fn new(list: Vec<Policy>) -> Result<Self, PolicyError> {
        let mut names = HashSet::new();
        for (place, policy) in list.iter().enumerate() {
            let new = policy.name.as_deref().is_none_or(|name| names.insert(name));
            let problem =
                check(policy).or_else(|| (!new).then(|| ("name", "is used twice".into())));
            if let Some((field, problem)) = problem {
                return Err(PolicyError::Field {
                    policy: title(place, policy),
                    field,
                    problem,
                });
            }
        }
        Ok(Self { list })
    }

    /// Policies from their JSON form: a list, or an object whose `policy` is the list.
    ///
    /// ```
    /// use mooncake_tent::selector::Policies;
    ///
    /// let text = r#"[{"name": "bulk", "min_size": 1048576, "transports": ["rdma", "tcp"]}]"#;
    /// assert_eq!(Policies::from_json(text)?.len(), 1);
    /// let misspelt = Policies::from_json(r#"[{"min_sise": 1048576}]"#).unwrap_err();
    /// assert!(misspelt.to_string().contains("unknown field `min_sise`"));
    /// # Ok::<_, mooncake_tent::selector::PolicyError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The text is not of this form, has a field that is unknown or says something that cannot be, or
    /// as for [`new`](Self::new).
    #[cfg(feature = "json")]
    pub fn from_json(text: &str) -> Result<Self, PolicyError> {
        let list =
            super::json::decode(text).map_err(|error| PolicyError::Json(error.to_string()))?;
        Self::new(list)
    }

    /// The JSON form, a list.
    #[cfg(feature = "json")]
    pub fn to_json(&self) -> String {
        super::json::encode(&self.list)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.list.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What people call the policy at `place`: its name, or its number.
    ///
    /// # Panics
    ///
    /// There is none at this place.
    pub fn title(&self, place: usize) -> String {
        title(place, &self.list[place])
    }

    /// The policy for `request`: the one that it names, or else the first that fits.
    pub fn ruling<'a>(&'a self, request: &RequestFacts<'a>) -> Ruling<'a> {
        let mut all = self.list.iter().enumerate();
        if let Some(name) = request.policy {
            let named = all.find(|(_, policy)| policy.name.as_deref() == Some(name));
            return named.map_or(Ruling::Unknown(name), |(place, policy)| {
                Ruling::Applies(place, policy)
            });
        }
        let fits = all.find(|(_, policy)| policy.mismatch(request).is_none());
        fits.map_or(Ruling::Free, |(place, policy)| {
            Ruling::Applies(place, policy)
        })
    }
}

fn title(place: usize, policy: &Policy) -> String {
    match &policy.name {
        Some(name) => format!("policy {name:?}"),
        None => format!("policy {}", place + 1),
    }
}

/// The field of a policy that cannot be kept, and why.
fn check(policy: &Policy) -> Option<(&'static str, String)> {
    let empty = |text: &Option<String>| text.as_deref() == Some("");
    if let (Some(least), Some(most)) = (policy.min_size, policy.max_size)
        && least > most
    {
        return Some(("min_size", format!("{least} is above max_size {most}")));
    }
    if let Some(level) = policy.service_level.filter(|level| *level > 15) {
        return Some(("service_level", format!("{level} is above 15")));
    }
    for (field, text) in [
        ("name", &policy.name),
        ("local_memory", &policy.local_memory),
        ("remote_memory", &policy.remote_memory),
        ("tenant", &policy.tenant),
        ("qp_pool", &policy.qp_pool),
    ] {
        if empty(text) {
            return Some((field, "is empty: leave it out".to_owned()));
        }
    }
    let none = "names none: leave it out to allow all";
    if policy
        .devices
        .as_ref()
        .is_some_and(|devices| devices.is_empty())
    {
        return Some(("devices", none.to_owned()));
    }
    let transports = policy.transports.as_deref()?;
    if transports.is_empty() {
        return Some(("transports", none.to_owned()));
    }
    let twice = transports
        .iter()
        .enumerate()
        .find(|(place, name)| transports[..*place].contains(name));
    let (_, twice) = twice?;
    Some(("transports", format!("lists {twice:?} twice")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{qos::DeviceSet, transport::Op};

    #[test]
    fn the_first_policy_that_fits_counts_unless_the_request_names_one() {
        let mut small = Policy::named("small");
        small.max_size = Some(4096);
        let policies = Policies::new(vec![small, Policy::named("any"), Policy::default()]).unwrap();
        let place = |length, policy| {
            let request = RequestFacts {
                policy,
                ..RequestFacts::new(Op::Read, length)
            };
            match policies.ruling(&request) {
                Ruling::Applies(place, _) => place,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((place(4096, None), place(4097, None)), (0, 1));
        assert_eq!(place(1 << 30, Some("small")), 0, "whatever it filters");
        assert_eq!(policies.title(2), "policy 3");

        let request = RequestFacts {
            policy: Some("smal"),
            ..RequestFacts::new(Op::Read, 1)
        };
        assert_eq!(policies.ruling(&request), Ruling::Unknown("smal"));
        assert_eq!(
            Policies::default().ruling(&RequestFacts::new(Op::Read, 1)),
            Ruling::Free
        );
    }

    #[test]
    fn what_can_never_be_kept_is_refused_with_the_field() {
        fn refused(set: impl FnOnce(&mut Policy)) -> String {
            let mut policy = Policy::named("a");
            set(&mut policy);
            let list = vec![Policy::named("b"), policy];
            Policies::new(list).unwrap_err().to_string()
        }
        for (error, expected) in [
            (
                refused(|policy| policy.name = Some("b".into())),
                "policy \"b\": name is used twice",
            ),
            (
                refused(|policy| (policy.min_size, policy.max_size) = (Some(2), Some(1))),
                "policy \"a\": min_size 2 is above max_size 1",
            ),
            (
                refused(|policy| policy.service_level = Some(16)),
                "policy \"a\": service_level 16 is above 15",
            ),
            (
                refused(|policy| policy.devices = Some(DeviceSet::default())),
                "policy \"a\": devices names none: leave it out to allow all",
            ),
            (
                refused(|policy| policy.transports = Some(vec![])),
                "policy \"a\": transports names none: leave it out to allow all",
            ),
            (
                refused(|policy| policy.transports = Some(vec!["tcp".into(), "tcp".into()])),
                "policy \"a\": transports lists \"tcp\" twice",
            ),
            (
                refused(|policy| policy.tenant = Some(String::new())),
                "policy \"a\": tenant is empty: leave it out",
            ),
        ] {
            assert_eq!(error, expected);
        }
    }
}
