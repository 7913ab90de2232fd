//! Removing all that a tenant has: one question, and its answer is the outcome.

use mooncake_proto::{Applied, Fault, master::RemoveAllRequest};

use super::{
    Books, Changed, MasterAnswer, MasterRequest, OpId, Outcome, Procedure,
    books::{Call, Purpose},
    results::timed_out,
    wire::malformed,
};
use crate::time::Time;

#[derive(Debug, Default)]
pub(super) struct RemoveAll {
    result: Option<Result<u64, Fault>>,
}

impl Procedure for RemoveAll {
    fn begin(&mut self, now: Time, books: &mut Books, op: OpId, deadline: Time) {
        let call = Call {
            op: Some(op),
            purpose: Purpose::Query,
            items: Vec::new(),
            sent_at: now,
        };
        let request = MasterRequest::RemoveAll(RemoveAllRequest::default());
        books.call(call, request, deadline);
    }

    fn answered(&mut self, _now: Time, _books: &mut Books, _call: Call, answer: MasterAnswer) {
        self.result = Some(match answer {
            MasterAnswer::RemoveAll(answer) => Ok(answer.removed),
            _ => {
                Err(malformed("something else than was asked").with_effect(Applied::Unknown, true))
            }
        });
    }

    fn failed(&mut self, _now: Time, _books: &mut Books, _call: Call, fault: Fault) {
        self.result = Some(Err(fault));
    }

    fn expire(&mut self, _now: Time, _books: &mut Books) {
        self.result = Some(Err(timed_out("remove_all", Applied::Unknown, true)));
    }

    fn changed(&self) -> Changed<'_> {
        Changed::All
    }

    fn outcome(&mut self) -> Option<Outcome> {
        self.result.take().map(Outcome::RemoveAll)
    }
}
