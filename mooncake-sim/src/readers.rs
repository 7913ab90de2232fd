//! Who reads what under which lease, by what the master answered.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use mooncake_master::state::{ClientId, Incarnation, Key};
use mooncake_proto::master::{LookupResponse, lookup_result};

use crate::Micros;

#[derive(Debug)]
struct Cover {
    tenant: Arc<str>,
    objects: Vec<(Bytes, Incarnation)>,
    until: Micros,
}

/// Leases that were neither released nor are over, and what they still cover.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    covers: BTreeMap<(ClientId, u64), Cover>,
    by_number: BTreeMap<(ClientId, u64), Asked>,
}

/// A look-up, by its number.
#[derive(Debug, Default)]
struct Asked {
    /// On which it was asked last.
    stream: u64,
    /// That it was granted there: the network may say it twice.
    leases: Vec<u64>,
}

impl Readers {
    pub(crate) fn granted(
        &mut self,
        (client, stream, number, tenant): (ClientId, u64, u64, Arc<str>),
        keys: &[Bytes],
        answer: &LookupResponse,
        until: Micros,
    ) {
        let found =
            |(key, result): (&Bytes, &mooncake_proto::master::LookupResult)| match &result.result {
                Some(lookup_result::Result::Object(object)) => {
                    let wire = object.incarnation?;
                    let incarnation = Incarnation {
                        epoch: wire.epoch,
                        sequence: wire.sequence,
                    };
                    Some((key.clone(), incarnation))
                }
                _ => None,
            };
        // Of a look-up that is asked again the first answer was lost.
        let asked = self.by_number.entry((client, number)).or_default();
        if asked.stream != stream {
            for lost in std::mem::take(&mut asked.leases) {
                self.covers.remove(&(client, lost));
            }
            asked.stream = stream;
        }
        asked.leases.push(answer.lease);
        let objects: Vec<_> = keys.iter().zip(&answer.results).filter_map(found).collect();
        if !objects.is_empty() {
            let cover = Cover {
                tenant,
                objects,
                until,
            };
            self.covers.insert((client, answer.lease), cover);
        }
    }

    pub(crate) fn released(&mut self, client: ClientId, leases: &[u64]) {
        for lease in leases {
            self.covers.remove(&(client, *lease));
        }
    }

    /// The client gives all back.
    pub(crate) fn left(&mut self, client: ClientId) {
        self.covers.retain(|(of, _), _| *of != client);
    }

    /// Leases that are not over.
    pub(crate) fn leases(&self, now: Micros) -> u64 {
        self.covers
            .values()
            .filter(|cover| now < cover.until)
            .count() as u64
    }

    /// All leases, which hold no longer.
    pub(crate) fn take(&mut self) -> Vec<(ClientId, u64)> {
        std::mem::take(&mut self.covers).into_keys().collect()
    }

    /// Readers are told that this life of the key and all before are gone.
    pub(crate) fn told(&mut self, tenant: &str, key: &Key, gone: Incarnation) {
        for cover in self
            .covers
            .values_mut()
            .filter(|cover| &*cover.tenant == tenant)
        {
            cover
                .objects
                .retain(|(covered, incarnation)| *covered != key.0 || *incarnation > gone);
        }
    }

    /// Who may read the removed key at this moment and was not told.
    pub(crate) fn untold(&mut self, now: Micros, tenant: &str, key: &Bytes) -> Vec<ClientId> {
        self.covers.retain(|_, cover| now < cover.until);
        let covers = |cover: &Cover| {
            &*cover.tenant == tenant && cover.objects.iter().any(|(of, _)| of == key)
        };
        let readers = self.covers.iter().filter(|(_, cover)| covers(cover));
        readers.map(|((client, _), _)| *client).collect()
    }
}
