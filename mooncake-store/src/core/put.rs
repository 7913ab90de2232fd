//! Put: ask for memory, write every replica, and only then make the object readable. In memory of our
//! own that was set aside before, it is written first, and one call does the rest.

use std::{collections::HashSet, mem, sync::Arc, time::Duration};

use bytes::Bytes;
use mooncake_proto::{
    Applied, Fault, Retry,
    master::{
        self, PlacedItem, PutEndRequest, PutRequest, PutResponse, PutRevokeRequest,
        PutStartRequest, PutStartResponse, put_result, put_start_result,
    },
    status::ErrorCode,
};
use smallvec::SmallVec;

use super::{
    Books, Changed, Gather, Incarnation, Location, MasterAnswer, MasterRequest, OpId, Outcome,
    Procedure, PutItem, PutOptions, SegmentId, SegmentInfo, TransferFault, TransferId,
    books::{Call, Purpose, TransferPlan, key_incarnation},
    home::Piece,
    peers::Attempt,
    results::{Results, timed_out},
    wire::{Places, key_result, malformed},
};
use crate::{key::Key, time::Time};

/// Segments that the master is asked to avoid, at most.
const MAX_AVOIDED: usize = 64;

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
    /// Keys to start again, and when.
    again: Vec<(Time, usize)>,
    /// Keys that were started elsewhere after their first attempt had failed.
    moved: HashSet<usize>,
    /// Where attempts have failed.
    avoided: Vec<SegmentId>,
    /// What was granted to us was given up for space that could not be found.
    yielded: bool,
}

/// By what right an item is written.
#[derive(Clone, Copy, Debug)]
enum Ticket {
    /// In space of our own that was granted before.
    Placed(Piece),
    /// The master was asked for memory first.
    Started(Incarnation),
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
    /// It will be asked again; if there is no time for that, this is the result.
    Waiting { fault: Fault },
    Writing {
        ticket: Ticket,
        attempt: Attempt,
        /// Writes of which bytes may still move, and where.
        moving: SmallVec<[(TransferId, Arc<SegmentInfo>); 2]>,
        /// The first failure.
        fault: Option<Fault>,
    },
    /// All replicas are written.
    Written { ticket: Ticket, sent: bool },
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
            again: Vec::new(),
            moved: HashSet::new(),
            avoided: Vec::new(),
            yielded: false,
        }
    }

    fn set(&mut self, item: usize, result: Result<Incarnation, Fault>) {
        self.results.set(item, &self.items[item].key, result);
    }

    fn started(&mut self, now: Time, books: &mut Books, call: Call, answer: PutStartResponse) {
        let places = Places::new(answer.segments, Vec::new());
        let mut deadline = self.deadline;
        if answer.deadline_us != 0 {
            deadline = deadline.min(call.sent_at + Duration::from_micros(answer.deadline_us));
        }
        let mut yields = false;
        for (item, wire) in call.items.into_iter().zip(answer.results) {
            match wire.result {
                Some(put_start_result::Result::Object(object)) => {
                    self.granted(now, books, item, object, &places, deadline);
                }
                Some(put_start_result::Result::Error(detail)) => {
                    self.refused(now, books, item, detail.into(), &mut yields);
                }
                None => self.set(item, Err(malformed("a result that says nothing"))),
            }
        }
    }

    /// Asks again if what is ours can make space, or if waiting is wanted and there is time.
    /// `yields`: what is ours is given up for items of the same answer.
    fn refused(
        &mut self,
        now: Time,
        books: &mut Books,
        item: usize,
        fault: Fault,
        yields: &mut bool,
    ) {
        let full = matches!(fault.code, ErrorCode::NoSpace | ErrorCode::Busy);
        if full && !mem::replace(&mut self.yielded, true) {
            *yields = books.make_space(now);
        }
        if full && *yields {
            self.ask_again(now, item, fault);
            return;
        }
        match fault.retry {
            Retry::Later(after) if full && self.options.wait_for_space => {
                // Those that wait should not all ask in the same moment.
                let at = now + after + after * (item as u32 % 8) / 16;
                self.ask_again(at, item, fault);
            }
            _ => self.set(item, Err(fault)),
        }
    }

    fn ask_again(&mut self, at: Time, item: usize, fault: Fault) {
        self.states[item] = State::Waiting { fault };
        self.again.push((at, item));
    }

    /// Whether the client's own segment is the place to be tried first.
    fn prefers(&self, home: &SegmentInfo) -> bool {
        let first = self.options.preferred_segments.first();
        self.options.replicas <= 1 && first.is_none_or(|name| *name == home.name)
    }

    /// Begins to write what fits into space of our own; returns the others.
    fn place(&mut self, now: Time, books: &mut Books, items: Vec<usize>) -> Vec<usize> {
        if !books.home.segment().is_some_and(|home| self.prefers(home)) {
            return items;
        }
        let mut others = Vec::new();
        for item in items {
            match books.home.carve(self.items[item].length) {
                Some((piece, location)) => {
                    let ticket = Ticket::Placed(piece);
                    self.write(now, books, item, ticket, vec![location], self.deadline);
                }
                None => others.push(item),
            }
        }
        others
    }

    fn ask(&mut self, now: Time, books: &mut Books, items: Vec<usize>) {
        let wire = |item: &usize| master::PutItem {
            key: self.items[*item].key.clone(),
            length: self.items[*item].length,
        };
        let mut avoided = self.avoided.clone();
        for segment in books.peers.avoided(now) {
            if !avoided.contains(&segment) {
                avoided.push(segment);
            }
        }
        avoided.truncate(MAX_AVOIDED);
        let avoided = avoided.into_iter();
        let mut preferred = self.options.preferred_segments.clone();
        if let Some(home) = books.home.segment()
            && preferred.is_empty()
            && self.prefers(home)
        {
            preferred.push(home.name.clone());
        }
        let request = MasterRequest::PutStart(PutStartRequest {
            items: items.iter().map(wire).collect(),
            replicas: self.options.replicas,
            preferred_segments: preferred,
            upsert: self.options.upsert,
            avoided_segments: avoided.map(|id| id.0.to_vec().into()).collect(),
            ..PutStartRequest::default()
        });
        for item in &items {
            self.states[*item] = State::Starting;
        }
        let keys = items.iter().map(|item| self.items[*item].key.clone());
        let purpose = Purpose::PutStart(keys.collect());
        books.call(self.call(now, purpose, items), request, self.deadline);
    }

    fn granted(
        &mut self,
        now: Time,
        books: &mut Books,
        item: usize,
        object: master::Object,
        places: &Places,
        deadline: Time,
    ) {
        let Some(incarnation) = object.incarnation.map(Incarnation::from) else {
            self.set(item, Err(malformed("a grant without an incarnation")));
            return;
        };
        match self.destinations(item, object, places) {
            Ok(locations) => {
                let ticket = Ticket::Started(incarnation);
                self.write(now, books, item, ticket, locations, deadline);
            }
            Err(fault) => self.spoil(now, books, item, incarnation, fault),
        }
    }

    fn write(
        &mut self,
        now: Time,
        books: &mut Books,
        item: usize,
        ticket: Ticket,
        locations: Vec<Location>,
        deadline: Time,
    ) {
        let (op, mut moving) = (self.op, SmallVec::new());
        let grant = match ticket {
            Ticket::Placed(piece) => Some(piece.grant),
            Ticket::Started(_) => None,
        };
        for location in locations {
            let segment = Arc::clone(&location.segment);
            let plan = TransferPlan {
                op,
                item,
                location,
                deadline,
            };
            moving.push((books.write(plan, grant), segment));
        }
        self.writing += 1;
        self.states[item] = State::Writing {
            ticket,
            attempt: Attempt {
                began: now,
                ends: deadline,
            },
            moving,
            fault: None,
        };
    }

    /// Where to write an item, if the grant is for it and all of it can be written.
    fn destinations(
        &self,
        item: usize,
        object: master::Object,
        places: &Places,
    ) -> Result<Vec<Location>, Fault> {
        let found = places.object(object)?;
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
    fn stopped(&mut self, now: Time, books: &mut Books, item: usize, transfer: TransferId) {
        let State::Writing {
            ticket,
            moving,
            fault,
            ..
        } = &mut self.states[item]
        else {
            return;
        };
        moving.retain(|(one, _)| *one != transfer);
        if !moving.is_empty() {
            return;
        }
        let ticket = *ticket;
        self.writing -= 1;
        match (ticket, fault.take()) {
            (Ticket::Started(incarnation), Some(fault)) => {
                self.spoil(now, books, item, incarnation, fault);
            }
            (Ticket::Placed(piece), Some(fault)) => {
                books.home.take_back(piece);
                self.ask_again(now, item, fault);
            }
            (_, None) => {
                let sent = false;
                self.states[item] = State::Written { ticket, sent };
                self.ends.push(now, &books.settings, item);
            }
        }
    }

    /// Keys and incarnations of `items`, whose messages are on their way from now on.
    fn send(&mut self, items: &[usize]) -> Vec<(Bytes, Incarnation)> {
        let mut grants = Vec::with_capacity(items.len());
        for item in items {
            if let State::Written {
                ticket: Ticket::Started(incarnation),
                sent,
            }
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
            if let State::Written {
                ticket: Ticket::Started(incarnation),
                ..
            } = self.states[item]
            {
                self.set(item, key_result(answer.error).map(|()| incarnation));
            }
        }
    }

    /// The piece of our own in which an item is written.
    fn piece(&self, item: usize) -> Option<Piece> {
        match self.states[item] {
            State::Written {
                ticket: Ticket::Placed(piece),
                ..
            } => Some(piece),
            _ => None,
        }
    }

    /// Asks the master to make readable what is written in pieces of our own.
    fn put(&mut self, now: Time, books: &mut Books, placed: Vec<(usize, Piece)>) {
        let Some((_, Piece { segment, .. })) = placed.first() else {
            return;
        };
        let wire = |(item, piece): &(usize, Piece)| PlacedItem {
            key: self.items[*item].key.clone(),
            length: self.items[*item].length,
            grant: piece.grant,
            offset: piece.offset,
        };
        let request = MasterRequest::Put(PutRequest {
            segment: segment.0.to_vec().into(),
            items: placed.iter().map(wire).collect(),
            upsert: self.options.upsert,
            ..PutRequest::default()
        });
        let items: Vec<_> = placed.into_iter().map(|(item, _)| item).collect();
        for item in &items {
            if let State::Written { sent, .. } = &mut self.states[*item] {
                *sent = true;
            }
        }
        let call = self.call(now, Purpose::Put, items);
        books.call(call, request, self.deadline);
    }

    fn put_at_master(&mut self, now: Time, books: &mut Books, call: Call, answer: PutResponse) {
        for (item, answer) in call.items.into_iter().zip(answer.results) {
            let Some(piece) = self.piece(item) else {
                continue;
            };
            match answer.result {
                Some(put_result::Result::Incarnation(incarnation)) => {
                    books.home.consume(piece);
                    self.set(item, Ok(incarnation.into()));
                }
                Some(put_result::Result::Error(detail)) => {
                    let fault = Fault::from(detail);
                    if fault.code == ErrorCode::Stale {
                        books.home.lose(piece);
                        self.ask_again(now, item, fault);
                    } else {
                        books.home.take_back(piece);
                        self.set(item, Err(fault));
                    }
                }
                None => {
                    books.home.lose(piece);
                    self.set(item, Err(malformed("a result that says nothing")));
                }
            }
        }
    }

    /// The master did not say what became of these, or refuses them all.
    fn put_failed(&mut self, now: Time, books: &mut Books, items: Vec<usize>, fault: &Fault) {
        for item in items {
            let Some(piece) = self.piece(item) else {
                continue;
            };
            let nothing = fault.applied == Applied::Nothing;
            // It does not know this life of our segment: it may still place the object elsewhere.
            let homeless = matches!(
                fault.code,
                ErrorCode::IllegalClient | ErrorCode::SegmentNotFound
            );
            if nothing && homeless {
                books.home.lose(piece);
                self.ask_again(now, item, fault.clone());
                continue;
            }
            if nothing {
                books.home.take_back(piece);
            } else {
                books.home.lose(piece);
            }
            self.set(item, Err(fault.clone()));
        }
    }

    /// Whatever the master says to a revoke, the put failed for its own reason. If that was the
    /// place, another one is asked for, once.
    fn revoked(&mut self, now: Time, call: Call, heard: bool) {
        for item in call.items {
            let State::Spoiled { fault, .. } = &self.states[item] else {
                continue;
            };
            let fault = fault.clone();
            let elsewhere = matches!(fault.retry, Retry::Elsewhere | Retry::AfterRefresh);
            if heard && elsewhere && self.moved.insert(item) {
                self.ask_again(now, item, fault);
            } else {
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
                Ok(()) => items.push(item),
                Err(fault) => self.set(item, Err(fault)),
            }
        }
        let items = self.place(now, books, items);
        if !items.is_empty() {
            self.ask(now, books, items);
        }
    }

    fn answered(&mut self, now: Time, books: &mut Books, call: Call, answer: MasterAnswer) {
        let asked = call.items.len();
        match (&call.purpose, answer) {
            (Purpose::PutStart(_), MasterAnswer::PutStart(answer))
                if answer.results.len() == asked =>
            {
                self.started(now, books, call, answer);
            }
            (Purpose::Put, MasterAnswer::Put(answer)) if answer.results.len() == asked => {
                self.put_at_master(now, books, call, answer);
            }
            (Purpose::PutEnd, MasterAnswer::PutEnd(answer)) if answer.results.len() == asked => {
                self.ended_at_master(call, answer.results);
            }
            (Purpose::PutRevoke, _) => self.revoked(now, call, true),
            _ => {
                let fault = malformed("something else than was asked");
                let fault = fault.with_effect(Applied::Unknown, true);
                self.failed(now, books, call, fault);
            }
        }
    }

    fn failed(&mut self, now: Time, books: &mut Books, call: Call, mut fault: Fault) {
        if call.purpose == Purpose::PutRevoke {
            self.revoked(now, call, false);
            return;
        }
        // No write is under way for these keys, whatever became of the message.
        fault.quiescent = true;
        if call.purpose == Purpose::Put {
            self.put_failed(now, books, call.items, &fault);
            return;
        }
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
        let State::Writing {
            moving,
            fault,
            attempt,
            ..
        } = &mut self.states[item]
        else {
            return;
        };
        let ended = moving.iter().find(|(one, _)| *one == transfer);
        if let Some((_, segment)) = ended {
            match &result {
                Ok(_) => books.peers.succeeded(segment),
                Err(failed) if failed.retry == Retry::Elsewhere => {
                    books.peers.failed(now, segment, *attempt, failed);
                    if !self.avoided.contains(&segment.id) {
                        self.avoided.push(segment.id);
                    }
                }
                Err(_) => {}
            }
        }
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
            for (other, _) in moving.iter().filter(|(other, _)| *other != transfer) {
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
        if now < self.deadline && self.again.iter().any(|(at, _)| *at <= now) {
            let (due, later) = self.again.drain(..).partition(|(at, _)| *at <= now);
            self.again = later;
            let due: Vec<(Time, usize)> = due;
            let mut items: Vec<_> = due.into_iter().map(|(_, item)| item).collect();
            items.sort_unstable();
            self.ask(now, books, items);
        }
        let last = self.writing == 0;
        let items = self.ends.take(now, &books.settings, last);
        let placed = items
            .iter()
            .filter_map(|&item| Some((item, self.piece(item)?)));
        let placed: Vec<_> = placed.collect();
        let items: Vec<_> = items
            .into_iter()
            .filter(|item| self.piece(*item).is_none())
            .collect();
        self.put(now, books, placed);
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
        let again = self.again.iter().map(|(at, _)| *at).min();
        let again = again.unwrap_or(Time::NEVER);
        self.ends.due().min(self.revokes.due()).min(again)
    }

    fn expire(&mut self, now: Time, books: &mut Books) {
        let mut unsent = Vec::new();
        for item in self.results.open_items() {
            let fault = match mem::replace(&mut self.states[item], State::New) {
                State::New => timed_out("put_start", Applied::Nothing, true),
                State::Waiting { fault } => fault,
                State::Starting => timed_out("put_start", Applied::Unknown, true),
                State::Writing {
                    ticket,
                    moving,
                    fault,
                    ..
                } => {
                    if let Ticket::Placed(piece) = ticket {
                        books.home.lose(piece);
                    }
                    let mut late = timed_out("write", Applied::Unknown, false);
                    for (transfer, segment) in moving {
                        books.cancel(transfer);
                        late.peer.clone_from(&segment.name);
                    }
                    let mut fault = fault.unwrap_or(late);
                    fault.message += "; its writes are not quiet, so the master takes the \
                                      memory back when the put's own deadline is over";
                    fault.with_effect(Applied::Unknown, false)
                }
                State::Written { ticket, sent: true } => {
                    if let Ticket::Placed(piece) = ticket {
                        books.home.lose(piece);
                    }
                    timed_out("put_end", Applied::Unknown, true)
                }
                State::Written {
                    ticket,
                    sent: false,
                } => {
                    match ticket {
                        Ticket::Placed(piece) => books.home.take_back(piece),
                        Ticket::Started(incarnation) => {
                            unsent.push((self.items[item].key.clone(), incarnation));
                        }
                    }
                    timed_out("put_end", Applied::Nothing, true)
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

    fn changed(&self) -> Changed<'_> {
        Changed::Keys(Box::new(self.items.iter().map(|item| &item.key)))
    }

    fn outcome(&mut self) -> Option<Outcome> {
        self.results.take().map(Outcome::Put)
    }
}

fn invalid(message: &str) -> Fault {
    Fault::new(ErrorCode::InvalidParams, Retry::Never, message)
}
