//! Registries: where a segment's name leads to its owner.
//!
//! Without one, a segment's name is the `host:port` of its owner's control service. With one, an
//! engine may [choose a name](crate::TentEngineBuilder::segment_name), and others open its segment
//! by that name. What a registry keeps is an [`Entry`]: where the owner is reached and which life of
//! it that is, but not what it offers, which only the owner knows at any moment.
//!
//! All is kept under leases, so that the name of a process that is gone goes by itself. A name
//! belongs to who claimed it first, for as long as it keeps its lease: another one is refused
//! ([`Error::NameTaken`]) once the lease of a former life would have ended.
//! A process that comes back under the same `host:port` takes its name over at once, since its
//! former life cannot be there any more.
//!
//! | Registry | Feature | |
//! |---|---|---|
//! | `HttpRegistry` | `http` | what `mooncake metadata` serves |
//! | `RedisRegistry` | `redis` | one Redis server |
//! | `EtcdRegistry` | `etcd` | an etcd cluster |
//!
//! Anything else that keeps names is a type that implements [`Registry`]; feature `conformance` has
//! the suite that it must pass.

#[cfg(feature = "json")]
mod code;
#[cfg(any(feature = "redis", feature = "etcd"))]
mod contest;
mod entry;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "http")]
mod http;
mod name;
#[cfg(feature = "redis")]
mod redis;
mod tenure;

use std::{fmt, time::Duration};

pub use entry::Entry;
#[cfg(feature = "etcd")]
pub use etcd::EtcdRegistry;
#[cfg(feature = "http")]
pub use http::HttpRegistry;
pub(crate) use name::{check_name, is_address, is_place};
#[cfg(feature = "redis")]
pub use redis::RedisRegistry;
pub(crate) use tenure::Tenure;

use crate::{
    error::{Error, Result},
    transport::BoxFuture,
};

/// Keeps names of segments under leases. Its calls may be dropped half-way, which is how callers
/// keep to their budgets: then they have had all of their effect, or none.
pub trait Registry: fmt::Debug + Send + Sync + 'static {
    /// Which one it is, for people: `http://10.0.0.1:8080`.
    fn place(&self) -> &str;

    /// Claims a name, or goes on claiming it, until [`ttl`](Claim::ttl) from now. Whoever holds it
    /// already keeps it, unless that is the same incarnation or the one that the claim replaces.
    ///
    /// # Errors
    ///
    /// The registry cannot be reached, or what it has under this name makes no sense.
    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, Result<Claimed>>;

    /// Gives a name back, if `entry` holds it.
    ///
    /// # Errors
    ///
    /// The registry cannot be reached.
    fn withdraw<'a>(&'a self, name: &'a str, entry: &'a Entry) -> BoxFuture<'a, Result<()>>;

    /// Who holds this name; `None`: nobody.
    ///
    /// # Errors
    ///
    /// The registry cannot be reached, or what it has under this name makes no sense.
    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Entry>>>;
}

/// Who wants which name.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The name.
    pub name: &'a str,
    /// What it shall lead to.
    pub entry: &'a Entry,
    /// How long it stays unless it is claimed again. A registry may keep it a little longer.
    pub ttl: Duration,
    /// A holder that is known to be gone.
    pub replaces: Option<&'a Entry>,
}

impl Claim<'_> {
    /// It does not take the name from this holder.
    pub fn yields_to(&self, holder: &Entry) -> bool {
        let gone = self.replaces.is_some_and(|gone| gone == holder);
        !gone && holder.incarnation != self.entry.incarnation
    }
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It holds, until its lease ends.
    Granted,
    /// Somebody else has the name.
    HeldBy(Entry),
}

/// Why a registry could not help with a name.
#[cfg(any(feature = "http", feature = "redis", feature = "etcd"))]
pub(crate) fn trouble(place: &str, name: &str, message: impl fmt::Display) -> Error {
    Error::Registry {
        registry: place.to_owned(),
        name: name.to_owned(),
        message: message.to_string(),
    }
}

/// The answer to a call, or an error when it takes longer than `budget`.
pub(crate) async fn within<T>(
    registry: &dyn Registry,
    name: &str,
    budget: Duration,
    call: BoxFuture<'_, Result<T>>,
) -> Result<T> {
    let late = |_| Error::Registry {
        registry: registry.place().to_owned(),
        name: name.to_owned(),
        message: format!("no answer within {budget:?}"),
    };
    tokio::time::timeout(budget, call).await.map_err(late)?
}
