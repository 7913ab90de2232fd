//! Performing operations, and what is noticed at that.

use std::sync::Arc;

use bytes::Bytes;
use mooncake_master::{
    state::{Caller, ClientId, Command, Counters},
    wire::{operation, refusal},
};
use mooncake_proto::{
    master::{self, answer::Answer as Reply, operation::Operation as Request, put_result},
    status::ErrorCode,
};
use mooncake_store::core::MasterAnswer;

use super::{
    Bar, Master, Stream,
    deferred::{Promised, miscounted},
    watch::Which,
};
use crate::{Micros, Plant, name::Name, plan::KEYS};

/// An operation that was performed.
#[derive(Debug)]
pub(crate) struct Performed {
    pub(crate) request: Request,
    /// `None`: it comes later.
    pub(crate) answer: Option<master::Answer>,
    /// Now, and not before.
    pub(crate) anew: bool,
    /// Before it was performed.
    pub(crate) before: Counters,
    /// What nobody reads once it is answered.
    pub(crate) bars: Vec<Bar>,
    pub(crate) violation: Option<String>,
}

impl Performed {
    pub(crate) fn reply(&self) -> Option<&Reply> {
        self.answer.as_ref()?.answer.as_ref()
    }
}

/// What an answer is, compared with those that were given before.
struct First {
    anew: bool,
    bars: Vec<Bar>,
    violation: Option<String>,
}

impl Master {
    /// Performs an operation of a stream that [`knows`](Self::knows) it.
    pub(crate) fn perform(
        &mut self,
        now: Micros,
        stream: u64,
        asked: master::Operation,
        draw: u64,
    ) -> Performed {
        let Stream {
            client,
            party,
            tenant,
        } = self.streams[&stream].clone();
        let before = self.counters();
        let number = asked.number;
        let request = asked.operation.expect("clients ask for something");
        let mutates = mutates(&request);
        let mut at_state = number;
        if self.plant == Plant::NumberIgnored && mutates {
            self.fresh += 1;
            at_state = self.fresh;
        }
        let mut reply = match operation(Some(request.clone()), || draw) {
            Ok(mut operation) => {
                self.mislead(now, &tenant, &mut operation);
                let caller = Caller::Session {
                    client,
                    number: at_state,
                };
                let command = Command::Perform { caller, operation };
                let answer = self.apply(now, &command);
                let Command::Perform { operation, .. } = &command else {
                    unreachable!("it was built above")
                };
                self.answer_to(&request, operation, answer)
            }
            Err(failure) => Some(refusal(failure)),
        };
        if let Some(reply) = &mut reply {
            self.mislead_after(now, client, &tenant, &request, reply);
        }
        let known = Promised {
            party,
            stream,
            request: request.clone(),
            asked: now,
            bars: self.bars(&request),
            readable: self.readable_of(&tenant),
        };
        let First {
            anew,
            bars,
            mut violation,
        } = self.first_answer((client, number), known, reply.as_ref());
        if anew {
            let reader = (client, stream, number, tenant.clone());
            violation = violation
                .or_else(|| self.watch_readers(now, reader, &request, reply.as_ref()))
                .or_else(|| {
                    if !moves_objects(&request) {
                        return None;
                    }
                    let goes = |which: &Which| goes(&tenant, which, &request, reply.as_ref());
                    self.explain(now, before, goes)
                });
            if let Some(reply) = &reply {
                violation = violation.or_else(|| self.owe(now, client, &tenant, &request, reply));
            }
        }
        if self.plant == Plant::AnswersLost && !anew && self.was_promised(client, &request) {
            reply = None;
        }
        let answer = reply.map(|reply| master::Answer {
            number,
            answer: Some(reply),
        });
        Performed {
            request,
            answer,
            anew,
            before,
            bars,
            violation,
        }
    }

    /// Compares the answer with the one that the operation got before, or keeps it.
    fn first_answer(
        &mut self,
        of: (ClientId, u64),
        asked: Promised,
        reply: Option<&Reply>,
    ) -> First {
        let (client, number) = of;
        let mut first = First {
            anew: true,
            bars: Vec::new(),
            violation: None,
        };
        match (reply, self.answers.get(&of)) {
            (Some(reply), _) if !mutates(&asked.request) || about_session(reply) => {}
            (Some(reply), Some(before)) => {
                first.anew = false;
                first.violation = (before != reply).then(|| {
                    format!(
                        "operation {number} of client {client} was answered {before:?}, and when it \
                         was sent again {reply:?}"
                    )
                });
            }
            (Some(reply), None) => {
                first.bars = asked.bars;
                first.violation = miscounted(asked.readable, reply);
                self.answers.insert(of, reply.clone());
            }
            (None, Some(before)) => {
                first.violation = Some(format!(
                    "operation {number} of client {client} was answered {before:?}, and when it was \
                     sent again its answer comes later"
                ));
            }
            (None, None) => {
                first.anew = !self.promised.contains_key(&of);
                self.promised.entry(of).or_insert(asked);
            }
        }
        first
    }

    fn readable_of(&self, tenant: &Arc<str>) -> usize {
        let readable = self.ledger.readable.keys();
        readable.filter(|(of, _)| of == tenant).count()
    }

    /// What nobody may read once the operation is answered.
    fn bars(&self, request: &Request) -> Vec<Bar> {
        let keys: Vec<Bytes> = match request {
            Request::Remove(asked) if asked.barrier => {
                asked.items.iter().map(|item| item.key.clone()).collect()
            }
            Request::RemoveAll(_) => all_keys(),
            _ => Vec::new(),
        };
        let last = self.ledger.newest;
        keys.into_iter().map(|key| Bar { key, last }).collect()
    }

    /// Who removes a key must know that all its readers are told, or will be when they are back.
    fn watch_readers(
        &mut self,
        now: Micros,
        (client, stream, number, tenant): (ClientId, u64, u64, Arc<str>),
        request: &Request,
        reply: Option<&Reply>,
    ) -> Option<String> {
        let removed: Vec<Bytes> = match (request, reply) {
            (Request::Lookup(asked), Some(Reply::Lookup(answer))) => {
                let until = now + self.state.settings().lease_ttl.as_micros() as Micros;
                self.readers
                    .granted((client, stream, number, tenant), &asked.keys, answer, until);
                return None;
            }
            (Request::Release(asked), Some(Reply::Release(_))) => {
                self.readers.released(client, &asked.leases);
                return None;
            }
            (Request::Remove(asked), Some(Reply::Remove(answer))) => {
                let both = asked.items.iter().zip(&answer.results);
                let removed = both.filter(|(_, result)| result.error.is_none());
                removed.map(|(item, _)| item.key.clone()).collect()
            }
            (Request::Remove(asked), None) => {
                asked.items.iter().map(|item| item.key.clone()).collect()
            }
            (Request::RemoveAll(_), None | Some(Reply::RemoveAll(_))) => all_keys(),
            _ => return None,
        };
        for key in removed {
            let untold = self.readers.untold(now, &tenant, &key);
            let open = |of: &ClientId| self.streams.values().any(|s| s.client == *of);
            if let Some(reader) = untold.into_iter().find(open) {
                return Some(format!(
                    "law 6: {key:?} is removed, and client {reader}, which may be reading it, is \
                     not told"
                ));
            }
        }
        None
    }
}

/// Tenants use the same ones.
fn all_keys() -> Vec<Bytes> {
    let name = |key| Name { tenant: 0, key };
    (0..KEYS).map(|key| name(key).bytes()).collect()
}

/// Its answer is kept.
fn mutates(request: &Request) -> bool {
    !matches!(
        request,
        Request::Describe(_)
            | Request::Exist(_)
            | Request::Goodbye(_)
            | Request::Lookup(_)
            | Request::ListObjects(_)
            | Request::ListSegments(_)
            | Request::Ping(_)
            | Request::Release(_)
            | Request::ReturnGrants(_)
    )
}

/// It may make objects readable, or take them out of sight.
fn moves_objects(request: &Request) -> bool {
    mutates(request) || matches!(request, Request::Goodbye(_))
}

/// The request takes it out of sight, or puts another in its place.
fn goes(tenant: &Arc<str>, (of, key): &Which, request: &Request, reply: Option<&Reply>) -> bool {
    match (request, reply) {
        (Request::MountSegment(_), _) => true,
        (Request::Put(asked), Some(Reply::Put(answer))) => {
            let mut both = asked.items.iter().zip(&answer.results);
            let put = |result: &master::PutResult| {
                matches!(result.result, Some(put_result::Result::Incarnation(_)))
            };
            of == tenant && both.any(|(item, result)| item.key == *key && put(result))
        }
        (Request::PutEnd(asked), Some(Reply::PutEnd(answer))) => {
            let mut both = asked.items.iter().zip(&answer.results);
            of == tenant && both.any(|(item, result)| item.key == *key && result.error.is_none())
        }
        (Request::Remove(asked), _) => {
            of == tenant && asked.items.iter().any(|item| item.key == *key)
        }
        (Request::RemoveAll(_), _) => of == tenant,
        _ => false,
    }
}

/// Says nothing about what the operation did.
fn about_session(reply: &MasterAnswer) -> bool {
    matches!(reply, Reply::Error(detail)
        if matches!(detail.code(), ErrorCode::Fenced | ErrorCode::Stale | ErrorCode::Busy))
}
