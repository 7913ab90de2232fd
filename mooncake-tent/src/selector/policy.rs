//! One rule of an operator: for which requests it is, and what it asks for.

use std::{fmt, str::FromStr};

use super::{RequestFacts, SegmentKind};
use crate::qos::{DeviceSet, Intent, Priority};

/// What shall carry which requests. The fields up to `tenant` are filters, all of which must fit; one
/// that is absent lets everything through. Names are those of the JSON form.
///
/// ```
/// use mooncake_tent::selector::{Policies, Policy};
///
/// let mut bulk = Policy::named("bulk");
/// bulk.min_size = Some(1 << 20);
/// bulk.transports = Some(vec!["rdma".into(), "tcp".into()]);
/// let policies = Policies::new(vec![bulk])?;
/// # Ok::<_, mooncake_tent::selector::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// By which requests can ask for it.
    pub name: Option<String>,
    /// What the other end is.
    pub segment_type: Option<SegmentKind>,
    /// Whether the other end is on this machine.
    pub same_machine: Option<bool>,
    /// The kind of memory here, such as `cpu`; `*` stands for any number of letters.
    pub local_memory: Option<String>,
    /// The kind of memory there, likewise; that of a file segment is `file`.
    pub remote_memory: Option<String>,
    /// The request has at least so many bytes.
    pub min_size: Option<u64>,
    /// The request has at most so many bytes.
    pub max_size: Option<u64>,
    /// The request's priority.
    pub priority: Option<Priority>,
    /// The request's intent.
    pub intent_type: Option<Intent>,
    /// Whose request it is.
    pub tenant: Option<String>,
    /// The devices that may be used; a link that cannot keep to them may not be. Absent: all may.
    pub devices: Option<DeviceSet>,
    /// The links that may be used, in the order in which they are tried. Absent: all may.
    pub transports: Option<Vec<String>>,
    /// Whether the order of `transports` holds or what was measured. Absent: it holds.
    pub order: Option<Order>,
    /// The pool of connections, for links that have pools.
    pub qp_pool: Option<String>,
    /// The service level, for links that have one: at most 15.
    pub service_level: Option<u8>,
    /// The traffic class, for links that have one.
    pub traffic_class: Option<u8>,
}

/// By what the links of a policy are put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The estimated time of the request; the place in the list where nothing is known.
    Cost,
    /// The place in the list.
    Listed,
}

impl Order {
    /// `cost` or `listed`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::Listed => "listed",
        }
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Cost, Self::Listed];
        let named = all.into_iter().find(|order| order.name() == text);
        named.ok_or_else(|| format!("{text:?} is no order: listed or cost"))
    }
}

/// A filter of a policy that a request does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "they are the fields of `Policy`")]
pub enum Filter {
    IntentType,
    LocalMemory,
    MaxSize,
    MinSize,
    Priority,
    RemoteMemory,
    SameMachine,
    SegmentType,
    Tenant,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IntentType => "intent_type",
            Self::LocalMemory => "local_memory",
            Self::MaxSize => "max_size",
            Self::MinSize => "min_size",
            Self::Priority => "priority",
            Self::RemoteMemory => "remote_memory",
            Self::SameMachine => "same_machine",
            Self::SegmentType => "segment_type",
            Self::Tenant => "tenant",
        })
    }
}

impl Policy {
    /// A policy for every request.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: Some(name.into()),
            ..Self::default()
        }
    }

    /// The first filter that `request` does not pass; `None`: the policy is for it.
    pub fn mismatch(&self, request: &RequestFacts<'_>) -> Option<Filter> {
        fn is<T: PartialEq>(filter: Option<&T>, fact: &T) -> bool {
            filter.is_none_or(|wanted| wanted == fact)
        }
        let like = |filter: &Option<String>, kind: &str| {
            let filter = filter.as_deref();
            filter.is_none_or(|pattern| is_like(kind, pattern))
        };
        let (local, remote) = request.ends();
        let tenant = self.tenant.as_deref();
        let checks = [
            (
                Filter::SegmentType,
                is(self.segment_type.as_ref(), &request.segment),
            ),
            (
                Filter::SameMachine,
                is(self.same_machine.as_ref(), &request.same_machine),
            ),
            (Filter::LocalMemory, like(&self.local_memory, local)),
            (Filter::RemoteMemory, like(&self.remote_memory, remote)),
            (
                Filter::MinSize,
                self.min_size.is_none_or(|least| request.length >= least),
            ),
            (
                Filter::MaxSize,
                self.max_size.is_none_or(|most| request.length <= most),
            ),
            (
                Filter::Priority,
                is(self.priority.as_ref(), &request.priority),
            ),
            (
                Filter::IntentType,
                is(self.intent_type.as_ref(), &request.intent),
            ),
            (
                Filter::Tenant,
                tenant.is_none_or(|tenant| request.tenant == Some(tenant)),
            ),
        ];
        let failed = checks.into_iter().find(|(_, passes)| !passes);
        failed.map(|(filter, _)| filter)
    }

    /// Where it lists `link`, the first place being 0; `None`: nowhere, so that it may not be used.
    pub(super) fn place(&self, link: &str) -> Option<usize> {
        let Some(transports) = &self.transports else {
            return Some(0);
        };
        transports.iter().position(|listed| means(listed, link))
    }

    /// Those of its `transports` that are none of `links`.
    pub(crate) fn missing<'a>(&self, links: impl Iterator<Item = &'a str> + Clone) -> Vec<&str> {
        let listed = self.transports.iter().flatten().map(|name| &**name);
        let missing = listed.filter(|name| !links.clone().any(|link| means(name, link)));
        missing.collect()
    }

    /// Its `transports` decide, not what was measured.
    pub(super) fn is_ordered(&self) -> bool {
        self.transports.is_some() && self.order != Some(Order::Cost)
    }
}

/// Whether a configuration that says `name` means `link`: it is called so, or it does what the one
/// of that name does elsewhere.
pub(super) fn means(name: &str, link: &str) -> bool {
    const ALIKE: [(&str, &str); 1] = [("io_uring", "file")];
    name == link || ALIKE.contains(&(name, link))
}

/// Whether `text` fits `pattern`, in which `*` stands for any number of letters.
pub(super) fn is_like(text: &str, pattern: &str) -> bool {
    let Some((before, mut pattern)) = pattern.split_once('*') else {
        return text == pattern;
    };
    let Some(mut text) = text.strip_prefix(before) else {
        return false;
    };
    // Each middle piece is taken where it comes first, which leaves most to those that follow.
    while let Some((piece, rest)) = pattern.split_once('*') {
        let Some(at) = text.find(piece) else {
            return false;
        };
        text = &text[at + piece.len()..];
        pattern = rest;
    }
    text.ends_with(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Op;

    #[test]
    fn a_star_stands_for_any_number_of_letters() {
        for (text, pattern, fits) in [
            ("cpu", "*", true),
            ("", "*", true),
            ("cpu", "cpu", true),
            ("cpu", "CPU", false),
            ("cuda", "cu*", true),
            ("cpu", "*u", true),
            ("cpu", "c*c*", false),
            ("abcbd", "a*b*d", true),
            ("abd", "a*bb*d", false),
            ("ab", "ab*b", false),
            ("aab", "*a*b", true),
            ("cpu", "", false),
        ] {
            assert_eq!(is_like(text, pattern), fits, "{text} {pattern}");
        }
    }

    /// A policy that has just this filter.
    fn with(set: impl FnOnce(&mut Policy)) -> Policy {
        let mut policy = Policy::default();
        set(&mut policy);
        policy
    }

    #[test]
    fn every_filter_keeps_out_what_does_not_fit_and_nothing_else() {
        let fits = RequestFacts {
            segment: SegmentKind::File,
            same_machine: true,
            local: "cuda",
            priority: Priority::Low,
            intent: Intent::Checkpoint,
            tenant: Some("a"),
            ..RequestFacts::new(Op::Read, 100)
        };
        let other = RequestFacts {
            tenant: None,
            ..RequestFacts::new(Op::Read, 0)
        };
        for (filter, policy, other) in [
            (
                Filter::SegmentType,
                with(|policy| policy.segment_type = Some(SegmentKind::File)),
                other,
            ),
            (
                Filter::SameMachine,
                with(|policy| policy.same_machine = Some(true)),
                other,
            ),
            (
                Filter::LocalMemory,
                with(|policy| policy.local_memory = Some("cu*".to_owned())),
                RequestFacts {
                    local: "cpu",
                    ..other
                },
            ),
            (
                Filter::RemoteMemory,
                with(|policy| policy.remote_memory = Some("file".to_owned())),
                other,
            ),
            (
                Filter::MinSize,
                with(|policy| policy.min_size = Some(100)),
                RequestFacts {
                    length: 99,
                    ..other
                },
            ),
            (
                Filter::MaxSize,
                with(|policy| policy.max_size = Some(100)),
                RequestFacts {
                    length: 101,
                    ..other
                },
            ),
            (
                Filter::Priority,
                with(|policy| policy.priority = Some(Priority::Low)),
                other,
            ),
            (
                Filter::IntentType,
                with(|policy| policy.intent_type = Some(Intent::Checkpoint)),
                other,
            ),
            (
                Filter::Tenant,
                with(|policy| policy.tenant = Some("a".to_owned())),
                RequestFacts {
                    tenant: Some("b"),
                    ..other
                },
            ),
        ] {
            assert_eq!(policy.mismatch(&fits), None, "{filter}");
            assert_eq!(policy.mismatch(&other), Some(filter));
        }
    }
}
