//! Names that an etcd cluster keeps.

mod calls;
mod messages;

use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use self::{
    calls::Calls,
    messages::{
        Compare, CompareWith, DeleteRequest, KeyValue, MOD_REVISION, Operation, PutRequest,
        RequestOp, TxnRequest,
    },
};
use super::{
    Claim, Claimed, Entry, Registry,
    contest::{ATTEMPTS, Found, found, is_of, restless},
    trouble,
};
use crate::{error::Result, transport::BoxFuture};

/// What keys begin with.
const PREFIX: &str = "mooncake/tent/";

/// A registry in an etcd cluster (API version 3), under keys `mooncake/tent/NAME` that are tied to
/// leases. Leases have whole seconds.
#[derive(Debug)]
pub struct EtcdRegistry {
    calls: Calls,
    /// Our lease for each name.
    leases: Mutex<FxHashMap<String, i64>>,
}

impl EtcdRegistry {
    /// The members of the cluster at these addresses, such as `http://10.0.0.1:2379`. The next one is
    /// asked when one does not answer. There is neither TLS nor authentication.
    ///
    /// # Errors
    ///
    /// One of them is no such address, or there is none.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        Ok(Self {
            calls: Calls::new(endpoints)?,
            leases: Mutex::default(),
        })
    }

    async fn value(&self, name: &str) -> Result<Option<KeyValue>> {
        self.calls.range(name, key(name)).await
    }

    /// The lease that this name has, if it lives; it does longer now.
    async fn renewed(&self, name: &str) -> Result<Option<i64>> {
        let lease = self.leases.lock().get(name).copied();
        let Some(lease) = lease else {
            return Ok(None);
        };
        if self.calls.keep_alive(name, lease).await? {
            return Ok(Some(lease));
        }
        self.leases.lock().remove(name);
        Ok(None)
    }

    /// Does this if nobody has changed the name since.
    async fn unless_changed(
        &self,
        name: &str,
        seen: Option<&KeyValue>,
        operation: Operation,
    ) -> Result<bool> {
        let compare = Compare {
            target: MOD_REVISION,
            key: key(name),
            with: Some(CompareWith::ModRevision(
                seen.map_or(0, |seen| seen.mod_revision),
            )),
        };
        let operation = RequestOp {
            operation: Some(operation),
        };
        let request = TxnRequest {
            compare: vec![compare],
            success: vec![operation],
        };
        self.calls.txn(name, request).await
    }
}

impl Registry for EtcdRegistry {
    fn place(&self) -> &str {
        self.calls.place()
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, Result<Claimed>> {
        Box::pin(async move {
            let Claim { name, .. } = claim;
            let mut lease = self.renewed(name).await?;
            for _ in 0..ATTEMPTS {
                let seen = self.value(name).await?;
                let value = seen.as_ref().map(|seen| &seen.value[..]);
                match found(self.place(), &claim, value)? {
                    Found::Held(holder) => return Ok(Claimed::HeldBy(holder)),
                    Found::Ours if seen.as_ref().map(|seen| seen.lease) == lease => {
                        return Ok(Claimed::Granted);
                    }
                    Found::Ours | Found::Free => {}
                }
                let lease = match lease {
                    Some(lease) => lease,
                    None => {
                        let granted = self.calls.grant(name, seconds(claim.ttl)).await?;
                        self.leases.lock().insert(name.to_owned(), granted);
                        *lease.insert(granted)
                    }
                };
                let put = Operation::Put(PutRequest {
                    key: key(name),
                    value: claim.entry.to_json().into_bytes(),
                    lease,
                });
                if self.unless_changed(name, seen.as_ref(), put).await? {
                    return Ok(Claimed::Granted);
                }
            }
            Err(restless(self.place(), name))
        })
    }

    fn withdraw<'a>(&'a self, name: &'a str, entry: &'a Entry) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let seen = self.value(name).await?;
            if seen.as_ref().is_some_and(|seen| is_of(entry, &seen.value)) {
                let delete = Operation::Delete(DeleteRequest { key: key(name) });
                self.unless_changed(name, seen.as_ref(), delete).await?;
            }
            let lease = self.leases.lock().remove(name);
            match lease {
                // Nothing is tied to it any more.
                Some(lease) => self.calls.revoke(name, lease).await,
                None => Ok(()),
            }
        })
    }

    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move {
            let seen = self.value(name).await?;
            let entry = seen.map(|seen| Entry::from_json(&seen.value)).transpose();
            entry.map_err(|what| trouble(self.place(), name, what))
        })
    }
}

fn key(name: &str) -> Vec<u8> {
    format!("{PREFIX}{name}").into_bytes()
}

fn seconds(ttl: Duration) -> i64 {
    let whole = ttl.as_millis().div_ceil(1000).max(1);
    i64::try_from(whole).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_has_whole_seconds_and_at_least_one() {
        let of = |millis| seconds(Duration::from_millis(millis));
        assert_eq!([of(0), of(1), of(1000), of(1001)], [1, 1, 1, 2]);
    }
}
