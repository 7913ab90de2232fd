//! What no step of the master may do: lose an object without a reason, break a promise of `exist`,
//! keep something of a client that has left.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use mooncake_master::state::{
    Answer, Caller, ClientId, Command, Counters, Incarnation, Key, Operation,
};
use mooncake_proto::master::{
    PutStartResponse, answer::Answer as Reply, lookup_result, operation::Operation as Request,
    put_result, put_start_result,
};

use super::Master;
use crate::{Micros, name::Name, plan::KEYS};

/// An object: its tenant and key.
pub(super) type Which = (Arc<str>, Bytes);

/// What the master owes to whom.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// After the last step that could change it.
    pub(super) readable: BTreeMap<Which, Incarnation>,
    /// Objects that must be found, and until when.
    held: BTreeMap<Which, (Incarnation, Micros)>,
    /// Writers that may still write, and until when.
    writers: BTreeMap<Incarnation, (ClientId, Micros)>,
    /// The latest that was given out.
    pub(super) newest: Incarnation,
    pub(super) held_reads: usize,
    /// Keys that were replaced.
    pub(super) upserts: usize,
    pub(super) clean_goodbyes: usize,
}

impl Master {
    /// Upserts, reads of what `exist` had promised, and goodbyes after which nothing was held back.
    pub(crate) fn seen(&self) -> (usize, usize, usize) {
        let ledger = &self.ledger;
        (ledger.upserts, ledger.held_reads, ledger.clean_goodbyes)
    }

    /// Lets time pass; what went wrong.
    pub(crate) fn pass(&mut self, now: Micros) -> Option<String> {
        let before = self.counters();
        self.tick(now);
        // Time makes nothing readable.
        if self.counters().objects == before.objects {
            return None;
        }
        self.explain(now, before, |_| false)
    }

    /// What can be read now.
    fn describe_all(&mut self, now: Micros) -> BTreeMap<Which, Incarnation> {
        let keys: Vec<_> = (0..KEYS)
            .map(|key| Name { tenant: 0, key }.bytes())
            .collect();
        let mut readable = BTreeMap::new();
        for tenant in self.tenants.clone() {
            let operation = Operation::Describe(keys.iter().cloned().map(Key).collect());
            let caller = Caller::Unary {
                client: ClientId::NOBODY,
                tenant: tenant.to_string(),
            };
            let command = Command::Perform { caller, operation };
            let applied = self.state.apply(self.time(now), &command);
            let Answer::Described(described) = applied.answer else {
                unreachable!("keys can be described")
            };
            for (key, result) in keys.iter().zip(described.results) {
                if let Ok(description) = result
                    && !description.writing
                {
                    let which = (tenant.clone(), key.clone());
                    readable.insert(which, description.object.incarnation);
                }
            }
        }
        readable
    }

    /// Whatever a step takes out of sight was asked for, lost with its node, or made room. `wanted`:
    /// what may go.
    pub(super) fn explain(
        &mut self,
        now: Micros,
        counted: Counters,
        wanted: impl Fn(&Which) -> bool,
    ) -> Option<String> {
        let after = self.describe_all(now);
        let before = std::mem::take(&mut self.ledger.readable);
        let counters = self.counters();
        let lost = counters.expired_clients > counted.expired_clients
            || counters.segments < counted.segments;
        let mut evicted = counters.evicted_objects - counted.evicted_objects;
        let mut broken = None;
        for (which, incarnation) in &before {
            if after.get(which) == Some(incarnation) {
                continue;
            }
            let held = self.ledger.held.remove(which);
            self.ledger.upserts += usize::from(wanted(which) && after.contains_key(which));
            if wanted(which) || lost {
                continue;
            }
            if let Some((promised, until)) = held
                && promised == *incarnation
                && now < until
            {
                broken = Some(format!(
                    "law 6: exist promised {which:?} until {until}, and it is gone"
                ));
            }
            if evicted == 0 {
                broken.get_or_insert_with(|| {
                    format!("law 6: {which:?} goes out of sight, and nobody wanted that")
                });
            }
            evicted = evicted.saturating_sub(1);
        }
        self.ledger.readable = after;
        broken
    }

    /// Notes what the answer promises.
    pub(super) fn owe(
        &mut self,
        now: Micros,
        client: ClientId,
        tenant: &Arc<str>,
        request: &Request,
        reply: &Reply,
    ) -> Option<String> {
        match (request, reply) {
            (Request::Exist(asked), Reply::Exist(answer)) => {
                for (key, result) in asked.keys.iter().zip(&answer.results) {
                    let which = (tenant.clone(), key.clone());
                    if result.held_ms > 0
                        && let Some(incarnation) = self.ledger.readable.get(&which)
                    {
                        let until = now + 1_000 * Micros::from(result.held_ms);
                        let until = match self.ledger.held.get(&which) {
                            Some((before, end)) if before == incarnation => until.max(*end),
                            _ => until,
                        };
                        self.ledger.held.insert(which, (*incarnation, until));
                    }
                }
            }
            (Request::Lookup(asked), Reply::Lookup(answer)) => {
                for (key, result) in asked.keys.iter().zip(&answer.results) {
                    let which = (tenant.clone(), key.clone());
                    let held = self.ledger.held.get(&which);
                    if held.is_none_or(|(_, until)| *until <= now) {
                        continue;
                    }
                    self.ledger.held_reads += 1;
                    let error = match &result.result {
                        Some(lookup_result::Result::Object(_)) => continue,
                        other => other,
                    };
                    return Some(format!(
                        "law 6: exist promised {which:?}, and a look-up of it ends with {error:?}"
                    ));
                }
            }
            (_, Reply::Put(answer)) => {
                for result in &answer.results {
                    if let Some(put_result::Result::Incarnation(wire)) = result.result {
                        let incarnation = Incarnation {
                            epoch: wire.epoch,
                            sequence: wire.sequence,
                        };
                        self.ledger.newest = self.ledger.newest.max(incarnation);
                    }
                }
            }
            (_, Reply::PutStart(answer)) => self.granted(now, client, answer),
            (Request::PutEnd(asked), Reply::PutEnd(answer)) => {
                let both = asked.items.iter().zip(&answer.results);
                for (item, _) in both.filter(|(_, result)| result.error.is_none()) {
                    self.finished(item.incarnation.unwrap_or_default());
                }
            }
            (Request::PutRevoke(asked), Reply::PutRevoke(answer)) => {
                let both = asked.items.iter().zip(&answer.results);
                for (item, _) in both.filter(|(_, result)| result.error.is_none()) {
                    self.finished(item.incarnation.unwrap_or_default());
                }
            }
            (Request::Goodbye(asked), Reply::Goodbye(_)) if asked.quiet => {
                return self.left(now, client);
            }
            _ => {}
        }
        None
    }

    fn granted(&mut self, now: Micros, client: ClientId, answer: &PutStartResponse) {
        let settings = self.state.settings();
        let longest = settings.put_deadline + settings.write_frame_budget + settings.hold_margin;
        let until = now + longest.as_micros() as Micros;
        for result in &answer.results {
            if let Some(put_start_result::Result::Object(object)) = &result.result {
                let wire = object.incarnation.unwrap_or_default();
                let incarnation = Incarnation {
                    epoch: wire.epoch,
                    sequence: wire.sequence,
                };
                self.ledger.newest = self.ledger.newest.max(incarnation);
                self.ledger.writers.insert(incarnation, (client, until));
            }
        }
    }

    fn finished(&mut self, wire: mooncake_proto::master::ObjectIncarnation) {
        self.ledger.writers.remove(&Incarnation {
            epoch: wire.epoch,
            sequence: wire.sequence,
        });
    }

    /// Nothing of the client is left, since nothing of it moves.
    fn left(&mut self, now: Micros, client: ClientId) -> Option<String> {
        // What is over by time does not count.
        let broken = self.pass(now);
        self.readers.left(client);
        let ledger = &mut self.ledger;
        ledger
            .writers
            .retain(|_, (writer, until)| *writer != client && now < *until);
        let others_write = !ledger.writers.is_empty();
        let others_read = self.readers.leases(now);
        let counters = self.counters();
        if counters.leases != others_read {
            return Some(format!(
                "law 13: client {client} left, others have {others_read} leases, and charged are \
                 {counters:?}"
            ));
        }
        if broken.is_some() || others_write || others_read > 0 {
            return broken;
        }
        self.ledger.clean_goodbyes += 1;
        (counters.puts_in_progress, counters.quarantined_bytes)
            .ne(&(0, 0))
            .then(|| {
                format!(
                    "law 13: client {client} left, nobody else reads or writes, and charged are \
                     {counters:?}"
                )
            })
    }
}
