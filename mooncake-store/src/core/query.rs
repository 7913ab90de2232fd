//! Exist, Remove and Describe: one call, and its answer is the outcome.

use std::time::Duration;

use bytes::Bytes;
use mooncake_proto::{
    Applied, Fault,
    master::{DescribeRequest, ExistRequest, RemoveItem, RemoveRequest, describe_result},
};

use super::{
    Books, Changed, Description, Existence, MasterAnswer, MasterRequest, OpId, Outcome, Procedure,
    RemoveOptions,
    books::{Call, Purpose},
    results::{Results, timed_out},
    wire::{Places, key_result, malformed},
};
use crate::{key::Key, time::Time};

#[derive(Debug)]
pub(super) struct Query {
    keys: Vec<Bytes>,
    asked: Asked,
}

#[derive(Debug)]
enum Asked {
    Describe(Results<Description>),
    Exist(Results<Existence>),
    Remove(Results<()>, RemoveOptions),
}

impl Query {
    pub(super) fn describe(keys: Vec<Bytes>) -> Self {
        let asked = Asked::Describe(Results::new(keys.len()));
        Self { keys, asked }
    }

    pub(super) fn exist(keys: Vec<Bytes>) -> Self {
        let asked = Asked::Exist(Results::new(keys.len()));
        Self { keys, asked }
    }

    pub(super) fn remove(keys: Vec<Bytes>, options: RemoveOptions) -> Self {
        let asked = Asked::Remove(Results::new(keys.len()), options);
        Self { keys, asked }
    }

    fn fail(&mut self, item: usize, fault: Fault) {
        let key = &self.keys[item];
        match &mut self.asked {
            Asked::Describe(results) => results.set(item, key, Err(fault)),
            Asked::Exist(results) => results.set(item, key, Err(fault)),
            Asked::Remove(results, _) => results.set(item, key, Err(fault)),
        }
    }

    /// Nothing that reads leaves a trace; a lost remove may have happened.
    const fn lost(&self) -> Applied {
        match self.asked {
            Asked::Remove(..) => Applied::Unknown,
            Asked::Describe(_) | Asked::Exist(_) => Applied::Nothing,
        }
    }
}

impl Procedure for Query {
    fn begin(&mut self, now: Time, books: &mut Books, op: OpId, deadline: Time) {
        let mut items = Vec::with_capacity(self.keys.len());
        for item in 0..self.keys.len() {
            match Key::check(&self.keys[item]) {
                Ok(()) => items.push(item),
                Err(fault) => self.fail(item, fault),
            }
        }
        if items.is_empty() {
            return;
        }
        let keys = items.iter().map(|item| self.keys[*item].clone());
        let request = match self.asked {
            Asked::Describe(_) => MasterRequest::Describe(DescribeRequest {
                keys: keys.collect(),
                ..DescribeRequest::default()
            }),
            Asked::Exist(_) => MasterRequest::Exist(ExistRequest {
                keys: keys.collect(),
                ..ExistRequest::default()
            }),
            Asked::Remove(_, options) => {
                let remove = |key| RemoveItem {
                    key,
                    incarnation: None,
                };
                MasterRequest::Remove(RemoveRequest {
                    items: keys.map(remove).collect(),
                    barrier: options.barrier,
                    ..RemoveRequest::default()
                })
            }
        };
        let call = Call {
            op: Some(op),
            purpose: Purpose::Query,
            items,
            sent_at: now,
        };
        books.call(call, request, deadline);
    }

    fn answered(&mut self, now: Time, books: &mut Books, call: Call, answer: MasterAnswer) {
        let asked = call.items.len();
        match (&mut self.asked, answer) {
            (Asked::Describe(results), MasterAnswer::Describe(answer))
                if answer.results.len() == asked =>
            {
                let places = Places::new(answer.segments, answer.storages);
                for (item, wire) in call.items.into_iter().zip(answer.results) {
                    let result = match wire.result {
                        Some(describe_result::Result::Description(description)) => {
                            places.description(description)
                        }
                        Some(describe_result::Result::Error(detail)) => Err(detail.into()),
                        None => Err(malformed("a result that says nothing")),
                    };
                    results.set(item, &self.keys[item], result);
                }
            }
            (Asked::Exist(results), MasterAnswer::Exist(answer))
                if answer.results.len() == asked =>
            {
                for (item, wire) in call.items.into_iter().zip(answer.results) {
                    let result = key_result(wire.error).map(|()| Existence {
                        exists: wire.exists,
                        held: Duration::from_millis(wire.held_ms.into()),
                    });
                    results.set(item, &self.keys[item], result);
                }
            }
            (Asked::Remove(results, _), MasterAnswer::Remove(answer))
                if answer.results.len() == asked =>
            {
                for (item, wire) in call.items.into_iter().zip(answer.results) {
                    results.set(item, &self.keys[item], key_result(wire.error));
                }
            }
            _ => {
                let fault = malformed("something else than was asked");
                let fault = fault.with_effect(self.lost(), true);
                self.failed(now, books, call, fault);
            }
        }
    }

    fn failed(&mut self, _now: Time, _books: &mut Books, call: Call, fault: Fault) {
        for item in call.items {
            self.fail(item, fault.clone());
        }
    }

    fn expire(&mut self, _now: Time, _books: &mut Books) {
        for item in 0..self.keys.len() {
            self.fail(item, timed_out("query", self.lost(), true));
        }
    }

    fn changed(&self) -> Changed<'_> {
        match self.asked {
            Asked::Remove(..) => Changed::Keys(Box::new(self.keys.iter())),
            Asked::Describe(_) | Asked::Exist(_) => Changed::Nothing,
        }
    }

    fn outcome(&mut self) -> Option<Outcome> {
        match &mut self.asked {
            Asked::Describe(results) => results.take().map(Outcome::Describe),
            Asked::Exist(results) => results.take().map(Outcome::Exist),
            Asked::Remove(results, _) => results.take().map(Outcome::Remove),
        }
    }
}
