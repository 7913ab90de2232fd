//! Answers that come later, as the service gives them: none at first, and on the client's current
//! stream once there is one.

use bytes::Bytes;
use mooncake_master::{
    state::{Answer, ClientId, Incarnation, Operation},
    wire::{operation, reply},
};
use mooncake_proto::master::{
    self, RemoveAllResponse, answer::Answer as Reply, operation::Operation as Request,
};

use super::{Master, Performed};
use crate::{Micros, Plant, plan::Party};

/// What an operation promises that nobody can read once it is answered.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) key: Bytes,
    /// This life of it, and all before it of the same master.
    pub(crate) last: Incarnation,
}

/// An operation that was performed and is not answered yet.
#[derive(Clone, Debug)]
pub(super) struct Promised {
    pub(super) party: Party,
    pub(super) stream: u64,
    pub(super) request: Request,
    pub(super) asked: Micros,
    pub(super) bars: Vec<Bar>,
    /// Objects that could be read before.
    pub(super) readable: usize,
}

/// An answer that was promised and has come.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) party: Party,
    /// The client's, if it has one.
    pub(crate) stream: Option<u64>,
    /// It has asked again on this one.
    pub(crate) again: bool,
    pub(crate) performed: Performed,
}

/// What the master has answered and keeps.
#[derive(Debug)]
pub(super) struct Kept {
    client: ClientId,
    request: Request,
    asked: Micros,
    at: Micros,
}

impl Master {
    /// The operation as the service asks for it, which mistakes may change, and its answer.
    pub(super) fn answer_to(
        &self,
        request: &Request,
        operation: &Operation,
        answer: Answer,
    ) -> Option<Reply> {
        match (request, answer) {
            (_, Answer::Later { .. }) => None,
            (Request::RemoveAll(_), Answer::Keys(keys)) if self.plant == Plant::PutsForgotten => {
                let removed = keys.len() as u64;
                Some(Reply::RemoveAll(RemoveAllResponse { removed }))
            }
            (_, answer) => Some(reply(&self.terms, operation, answer)),
        }
    }

    pub(super) fn settle(
        &mut self,
        now: Micros,
        (client, number): (ClientId, u64),
        answer: Answer,
    ) {
        let Some(promised) = self.promised.remove(&(client, number)) else {
            return;
        };
        let request = promised.request;
        let operation =
            operation(Some(request.clone()), || 0).expect("it made sense when it was asked");
        let Some(reply) = self.answer_to(&request, &operation, answer) else {
            unreachable!("what is promised comes")
        };
        self.answers.insert((client, number), reply.clone());
        self.kept.push(Kept {
            client,
            request: request.clone(),
            asked: promised.asked,
            at: now,
        });
        let violation = miscounted(promised.readable, &reply);
        let current = self.streams.iter().find(|(_, one)| one.client == client);
        let stream = current.map(|(number, _)| *number);
        let lost = self.plant == Plant::AnswersLost && stream != Some(promised.stream);
        let stream = stream.filter(|_| !lost);
        let answer = Some(reply);
        let performed = Performed {
            request,
            answer: Some(master::Answer { number, answer }),
            anew: true,
            before: self.counters(),
            bars: promised.bars,
            violation,
        };
        self.settled.push(Settled {
            party: promised.party,
            stream,
            again: stream.is_some_and(|stream| stream != promised.stream),
            performed,
        });
    }

    /// Answers that have come by now.
    pub(crate) fn settled(&mut self) -> Vec<Settled> {
        std::mem::take(&mut self.settled)
    }

    /// The answer was promised first.
    pub(super) fn was_promised(&self, client: ClientId, request: &Request) -> bool {
        let mut kept = self.kept.iter();
        kept.any(|kept| kept.client == client && kept.request == *request)
    }

    /// Since when the answer is kept, if it is known which one it is.
    pub(crate) fn kept_since(
        &self,
        client: u64,
        asked: Micros,
        same: impl Fn(&Request) -> bool,
    ) -> Option<Micros> {
        let client = ClientId(client);
        let waits = |((of, _), promised): (&(ClientId, u64), &Promised)| {
            *of == client && same(&promised.request)
        };
        if self.promised.iter().any(waits) {
            return None;
        }
        let mut kept = self
            .kept
            .iter()
            .filter(|kept| kept.client == client && kept.asked >= asked && same(&kept.request));
        let first = kept.next()?;
        kept.next().is_none().then_some(first.at)
    }
}

/// A removal of all says how many objects could be read before.
pub(super) fn miscounted(readable: usize, reply: &Reply) -> Option<String> {
    match reply {
        Reply::RemoveAll(answer) if answer.removed != readable as u64 => Some(format!(
            "law 13: {readable} objects could be read, and {} are said to be removed",
            answer.removed
        )),
        _ => None,
    }
}
