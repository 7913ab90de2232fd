//! What cannot be, of all that an engine is told, or is not likely to be meant.

use std::{fmt, sync::Arc};

use crate::{
    selector::Policies,
    transport::{Claim, Transport},
};

/// Two things that an engine is told and that do not go together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's line names its fields")]
pub enum Conflict {
    /// Two want the same for themselves: an address to listen on, a device.
    Claim {
        claim: Claim,
        first: String,
        second: String,
    },
    /// Two links have one name, so that nobody could tell which is meant.
    Name { link: String },
    /// A setting that another one makes useless.
    NoEffect(String),
    /// A policy names a link that the engine was not given; if `alone`, it names no other.
    Policy {
        policy: String,
        link: String,
        alone: bool,
    },
    /// Settings contradict each other, or one of them itself.
    Settings(String),
}

impl Conflict {
    /// No engine can be built from it. Otherwise it is only worth a word: machines of a fleet share
    /// their policies, whatever links they have.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::NoEffect(_) | Self::Policy { .. })
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim {
                claim,
                first,
                second,
            } => write!(f, "{first} and {second} both want {claim}"),
            Self::Name { link } => write!(f, "two links are called {link}"),
            Self::Policy {
                policy,
                link,
                alone,
            } => {
                write!(f, "{policy} names {link}, which is no link of this engine")?;
                match alone {
                    true => f.write_str(", and no other"),
                    false => Ok(()),
                }
            }
            Self::NoEffect(what) | Self::Settings(what) => f.write_str(what),
        }
    }
}

/// All conflicts that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts(pub(super) Vec<Conflict>);

impl Conflicts {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Conflict> {
        self.0.iter()
    }
}

/// On one line, one after the other.
impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, conflict) in self.0.iter().enumerate() {
            if place > 0 {
                f.write_str("; ")?;
            }
            conflict.fmt(f)?;
        }
        Ok(())
    }
}

/// Of `links` among themselves and with what the engine `claims` itself, and of `policies` with them.
pub(super) fn find(
    links: &[Arc<dyn Transport>],
    claims: Vec<(String, Claim)>,
    policies: &Policies,
) -> Vec<Conflict> {
    let mut found = Vec::new();
    let mut claimed = claims;
    for (place, link) in links.iter().enumerate() {
        let name = link.name();
        let same = |other: &&Arc<dyn Transport>| other.name() == name;
        // Of three, too, it is said once.
        if links[..place].iter().filter(same).count() == 1 {
            let link = name.to_owned();
            found.push(Conflict::Name { link });
        }
        for claim in link.claims() {
            let other = claimed.iter().find(|(_, other)| other.excludes(&claim));
            if let Some((first, _)) = other {
                found.push(Conflict::Claim {
                    claim: claim.clone(),
                    first: first.clone(),
                    second: name.to_owned(),
                });
            }
            claimed.push((name.to_owned(), claim));
        }
    }
    for (place, policy) in policies.iter().enumerate() {
        let names = links.iter().map(|link| link.name());
        let missing = policy.missing(names);
        let listed = policy.transports.as_ref().map_or(0, Vec::len);
        let alone = missing.len() == listed;
        found.extend(missing.into_iter().map(|link| Conflict::Policy {
            policy: policies.title(place),
            link: link.to_owned(),
            alone,
        }));
    }
    found
}
