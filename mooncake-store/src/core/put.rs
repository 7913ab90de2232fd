//! Put: ask for memory, write every replica, and only then make the object readable.

use std::{collections::HashSet, mem, time::Duration};

use bytes::Bytes;
use mooncake_proto::{
    Applied, Fault, Retry,
    master::{
        self, PutEndRequest, PutRevokeRequest, PutStartRequest, PutStartResponse, put_start_result,
    },
    status::ErrorCode,
};
use smallvec::SmallVec;

use super::{
    Books, Gather, Incarnation, Location, MasterAnswer, MasterRequest, OpId, Outcome, Procedure,
    PutItem, PutOptions, TransferFault, TransferId,
    books::{Call, Purpose, TransferPlan, key_incarnation},
    results::{Results, timed_out},
    wire::{SegmentTable, key_result, malformed},
};
use crate::{key::Key, time::Time};

/// A put of several objects.
///
/// Keys whose writes are done are ended together: when no other write is under way, when a batch
/// is full, or when the first of them has waited for a moment, so that a straggler holds up nobody.
#[derive(Debug)]
pub(super) struct Put {
    op: OpId,
    deadline: Time,
    items: Vec<PutItem>,
    options: PutOptions,
    states: Vec<State>,
    results: Results<Incarnation>,
    /// Keys in [`State::Writing`].
    writing: usize,
    ends: Gather<usize>,
    revokes: Gather<usize>,
}

/// Where a key stands that has no result yet.
#[derive(Clone, Debug)]
enum State {
    /// The master was not asked yet.
    New,
    /// A write failed and none can land any more: the grant is given back.
    Spoiled {
        incarnation: Incarnation,
        fault: Fault,
        sent: bool,
    },
    /// The master was asked for memory.
    Starting,
    Writing {
        incarnation: Incarnation,
        /// Writes of which bytes may still move.
        moving: SmallVec<[TransferId; 2]>,
        /// The first failure.
        fault: Option<Fault>,
    },
    /// All replicas are written.
    Written {
        incarnation: Incarnation,
        sent: bool,
    },
}

impl Put {
    pub(super) fn new(items: Vec<PutItem>, options: PutOptions) -> Self {
        Self {
            op: OpId(0),
            deadline: Time::NEVER,
            states: vec![State::New; items.len()],
            results: Results::new(items.len()),
            items,
            options,
            writing: 0,
            ends: Gather::new(),
            revokes: Gather::new(),
        }
    }

    fn set(&mut self, item: usize, result: Result<Incarnation, Fault>) {
        self.results.set(item, &self.items[item].key, result);
    }

    fn started(&mut self, now: Time, books: &mut Books, call: Call, answer: PutStartResponse) {
        let segments = SegmentTable::new(answer.segments);
        let mut deadline = self.deadline;
        if answer.deadline_us != 0 {
            deadline = deadline.min(call.sent_at + Duration::from_micros(answer.deadline_us));
        }
        for (item, wire) in call.items.into_iter().zip(answer.results) {
            match wire.result {
                Some(put_start_result::Result::Object(object)) => {
                    self.granted(now, books, item, object, &segments, deadline);
                }
                Some(put_start_result::Result::Error(detail)) => {
                    self.set(item, Err(detail.into()));
                }
                None => self.set(item, Err(malformed("a result that says nothing"))),
            }
        }
    }

    fn granted(
        &mut self,
        now: Time,
        books: &mut Books,
        item: usize,
        object: master::Object,
        segments: &SegmentTable,
        deadline: Time,
    ) {
        let Some(incarnation) = object.incarnation.map(Incarnation::from) else {
            self.set(item, Err(malformed("a grant without an incarnation")));
            return;
        };
        match self.destinations(item, object, segments) {
            Ok(locations) => {
                let (op, mut moving) = (self.op, SmallVec::new());
                for location in locations {
                    moving.push(books.write(TransferPlan {
                        op,
                        item,
                        location,
                        deadline,
                    }));
                }
                self.writing += 1;
                self.states[item] = State::Writing {
                    incarnation,
                    moving,
                    fault: None,
                };
            }
            Err(fault) => self.spoil(now, books, item, incarnation, fault),
        }
    }

    /// Where to write an item, if the grant is for it and all of it can be written.
    fn destinations(
        &self,
        item: usize,
        object: master::Object,
        segments: &SegmentTable,
    ) -> Result<Vec<Location>, Fault> {
        let found = segments.object(object)?;
        let locations: Vec<_> = found.in_memory().cloned().collect();
        if found.length != self.items[item].length {
            return Err(malformed("a grant of another length"));
        }
        if locations.is_empty() || locations.len() != found.replicas.len() {
            return Err(malformed("a grant that is not in memory"));
        }
        Ok(locations)
    }

    fn spoil(
        &mut self,
        now: Time,
        books: &Books,
        item: usize,
        incarnation: Incarnation,
        fault: Fault,
    ) {
        self.states[item] = State::Spoiled {
            incarnation,
            fault: fault.with_effect(Applied::Nothing, true),
            sent: false,
        };
        self.revokes.push(now, &books.settings, item);
    }

    /// A write of an item can land no more.
    fn stopped(&mut self, now: Time, books: &Books, item: usize, transfer: TransferId) {
        let State::Writing {
            incarnation,
            moving,
            fault,
        } = &mut self.states[item]
        else {
            return;
        };
        moving.retain(|one| *one != transfer);
        if !moving.is_empty() {
            return;
        }
        let incarnation = *incarnation;
        self.writing -= 1;
        if let Some(fault) = fault.take() {
            self.spoil(now, books, item, incarnation, fault);
        } else {
            self.states[item] = State::Written {
                incarnation,
                sent: false,
            };
            self.ends.push(now, &books.settings, item);
        }
    }

    /// Keys and incarnations of `items`, whose messages are on their way from now on.
    fn send(&mut self, items: &[usize]) -> Vec<(Bytes, Incarnation)> {
        let mut grants = Vec::with_capacity(items.len());
        for item in items {
            if let State::Written { incarnation, sent }
            | State::Spoiled {
                incarnation, sent, ..
            } = &mut self.states[*item]
            {
                *sent = true;
                grants.push((self.items[*item].key.clone(), *incarnation));
            }
        }
        grants
    }

    fn ended_at_master(&mut self, call: Call, answers: Vec<master::KeyResult>) {
        for (item, answer) in call.items.into_iter().zip(answers) {
            if let State::Written { incarnation, .. } = self.states[item] {
                self.set(item, key_result(answer.error).map(|()| incarnation));
            }
        }
    }

    /// Whatever the master says to a revoke, the put failed for its own reason.
    fn revoked(&mut self, call: Call) {
        for item in call.items {
            if let State::Spoiled { fault, .. } = &self.states[item] {
                let fault = fault.clone();
                self.set(item, Err(fault));
            }
        }
    }

    fn call(&self, now: Time, purpose: Purpose, items: Vec<usize>) -> Call {
        Call {
            op: Some(self.op),
            purpose,
            items,
            sent_at: now,
        }
    }
}

impl Procedure for Put {
    fn begin(&mut self, now: Time, books: &mut Books, op: OpId, deadline: Time) {
        self.op = op;
        self.deadline = deadline;
        let (mut seen, mut items) = (HashSet::new(), Vec::with_capacity(self.items.len()));
        for item in 0..self.items.len() {
            let PutItem { key, length } = &self.items[item];
            let checked = Key::check(key).and_then(|()| {
                if *length == 0 {
                    return Err(invalid("an object has at least one byte"));
                }
                if !seen.insert(key.clone()) {
                    return Err(invalid("the key appears twice in one put"));
                }
                Ok(())
            });
            match checked {
                Ok(()) => {
                    self.states[item] = State::Starting;
                    items.push(item);
                }
                Err(fault) => self.set(item, Err(fault)),
            }
        }
        if items.is_empty() {
            return;
        }
        let wire = |item: &usize| master::PutItem {
            key: self.items[*item].key.clone(),
            length: self.items[*item].length,
        };
        let request = MasterRequest::PutStart(PutStartRequest {
            items: items.iter().map(wire).collect(),
            replicas: self.options.replicas,
            preferred_segments: mem::take(&mut self.options.preferred_segments),
            ..PutStartRequest::default()
        });
        let keys = items.iter().map(|item| self.items[*item].key.clone());
        let purpose = Purpose::PutStart(keys.collect());
        books.call(self.call(now, purpose, items), request, deadline);
    }

    fn answered(&mut self, now: Time, books: &mut Books, call: Call, answer: MasterAnswer) {
        let asked = call.items.len();
        match (&call.purpose, answer) {
            (Purpose::PutStart(_), MasterAnswer::PutStart(answer))
                if answer.results.len() == asked =>
            {
                self.started(now, books, call, answer);
            }
            (Purpose::PutEnd, MasterAnswer::PutEnd(answer)) if answer.results.len() == asked => {
                self.ended_at_master(call, answer.results);
            }
            (Purpose::PutRevoke, _) => self.revoked(call),
            _ => {
                let fault = malformed("something else than was asked");
                let fault = fault.with_effect(Applied::Unknown, true);
                self.failed(now, books, call, fault);
            }
        }
    }

    fn failed(&mut self, _now: Time, _books: &mut Books, call: Call, mut fault: Fault) {
        if call.purpose == Purpose::PutRevoke {
            self.revoked(call);
            return;
        }
        // No write is under way for these keys, whatever became of the message.
        fault.quiescent = true;
        for item in call.items {
            self.set(item, Err(fault.clone()));
        }
    }

    fn ended(
        &mut self,
        now: Time,
        books: &mut Books,
        (transfer, item): (TransferId, usize),
        result: Result<u64, TransferFault>,
        quiet: bool,
    ) {
        let State::Writing { moving, fault, .. } = &mut self.states[item] else {
            return;
        };
        let wanted = self.items[item].length;
        let failure = match result {
            Ok(bytes) if bytes == wanted => None,
            Ok(bytes) => {
                let message = format!("{bytes} of {wanted} bytes were written");
                Some(Fault::new(ErrorCode::TransferFailed, Retry::Here, message))
            }
            Err(failed) => Some(
                Fault::new(ErrorCode::TransferFailed, failed.retry, failed.message)
                    .with_peer(failed.peer)
                    .with_effect(Applied::Unknown, quiet),
            ),
        };
        if let Some(failure) = failure
            && fault.is_none()
        {
            *fault = Some(failure.with_stage("write"));
            // A put with a replica less than promised is none.
            for other in moving.iter().filter(|other| **other != transfer) {
                books.cancel(*other);
            }
        }
        if quiet {
            self.stopped(now, books, item, transfer);
        }
    }

    fn quiet(&mut self, now: Time, books: &mut Books, (transfer, item): (TransferId, usize)) {
        self.stopped(now, books, item, transfer);
    }

    fn settle(&mut self, now: Time, books: &mut Books) {
        let last = self.writing == 0;
        let items = self.ends.take(now, &books.settings, last);
        if !items.is_empty() {
            let request = MasterRequest::PutEnd(PutEndRequest {
                items: self.send(&items).into_iter().map(key_incarnation).collect(),
                ..PutEndRequest::default()
            });
            let call = self.call(now, Purpose::PutEnd, items);
            books.call(call, request, self.deadline);
        }
        let items = self.revokes.take(now, &books.settings, last);
        if !items.is_empty() {
            let request = MasterRequest::PutRevoke(PutRevokeRequest {
                items: self.send(&items).into_iter().map(key_incarnation).collect(),
                ..PutRevokeRequest::default()
            });
            let call = self.call(now, Purpose::PutRevoke, items);
            books.call(call, request, self.deadline);
        }
    }

    fn wake(&self) -> Time {
        self.ends.due().min(self.revokes.due())
    }

    fn expire(&mut self, now: Time, books: &mut Books) {
        let mut unsent = Vec::new();
        for item in self.results.open_items() {
            let fault = match mem::replace(&mut self.states[item], State::New) {
                State::New => timed_out("put_start", Applied::Nothing, true),
                State::Starting => timed_out("put_start", Applied::Unknown, true),
                State::Writing { moving, fault, .. } => {
                    for transfer in moving {
                        books.cancel(transfer);
                    }
                    let mut fault =
                        fault.unwrap_or_else(|| timed_out("write", Applied::Unknown, false));
                    fault.message += "; its writes are not quiet, so the master takes the \
                                      memory back when the put's own deadline is over";
                    fault.with_effect(Applied::Unknown, false)
                }
                State::Written { incarnation, sent } => {
                    if sent {
                        timed_out("put_end", Applied::Unknown, true)
                    } else {
                        unsent.push((self.items[item].key.clone(), incarnation));
                        timed_out("put_end", Applied::Nothing, true)
                    }
                }
                State::Spoiled {
                    incarnation,
                    fault,
                    sent,
                } => {
                    if !sent {
                        unsent.push((self.items[item].key.clone(), incarnation));
                    }
                    fault
                }
            };
            self.set(item, Err(fault));
        }
        books.revoke(now, unsent);
    }

    fn outcome(&mut self) -> Option<Outcome> {
        self.results.take().map(Outcome::Put)
    }
}

fn invalid(message: &str) -> Fault {
    Fault::new(ErrorCode::InvalidParams, Retry::Never, message)
}
