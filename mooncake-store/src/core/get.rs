//! Get: look up under a lease, read one replica after the other, and believe nothing that came late.

use std::{mem, sync::Arc, time::Duration};

use bytes::Bytes;
use mooncake_proto::{
    Applied, Fault, Retry,
    master::{LookupRequest, LookupResponse, lookup_result},
    status::ErrorCode,
};

use super::{
    Books, DiskPlace, Gather, GetItem, Got, Incarnation, MasterAnswer, MasterRequest, OpId,
    Outcome, Procedure, Replica, TransferFault, TransferId,
    books::{Call, Purpose},
    known::Kept,
    lease::LeaseId,
    peers::Attempt,
    results::{Results, timed_out},
    source::Source,
    wire::{Found, Places, malformed},
};
use crate::{key::Key, time::Time};

/// How often one key is looked up at most.
const LOOK_UPS: u8 = 2;

/// A get of several objects.
#[derive(Debug)]
pub(super) struct Get {
    op: OpId,
    deadline: Time,
    items: Vec<GetItem>,
    states: Vec<State>,
    look_ups: Vec<u8>,
    results: Results<Got>,
    /// Keys in [`State::Reading`].
    reading: usize,
    /// Keys to look up again.
    again: Gather<usize>,
    /// When leases with reads under way end.
    ends: Vec<Time>,
}

#[derive(Debug)]
enum State {
    /// The answer to a look-up is awaited, or the key waits to be looked up.
    LookingUp,
    Reading(Reading),
}

#[derive(Debug)]
struct Reading {
    incarnation: Incarnation,
    length: u64,
    lease: LeaseId,
    lease_ends: Time,
    /// Replicas that were not tried yet, the next one last.
    untried: Vec<Source>,
    current: Source,
    /// The current replica was read for the second time.
    repeated: bool,
    transfer: TransferId,
    /// The current read.
    attempt: Attempt,
    /// The current read failed and is not quiet yet.
    failed: Option<Box<TransferFault>>,
}

impl Get {
    pub(super) fn new(items: Vec<GetItem>) -> Self {
        Self {
            op: OpId(0),
            deadline: Time::NEVER,
            states: items.iter().map(|_| State::LookingUp).collect(),
            look_ups: vec![0; items.len()],
            results: Results::new(items.len()),
            items,
            reading: 0,
            again: Gather::new(),
            ends: Vec::new(),
        }
    }

    fn set(&mut self, item: usize, result: Result<Got, Fault>) {
        self.results.set(item, &self.items[item].key, result);
    }

    fn look_up(&mut self, now: Time, books: &mut Books, items: Vec<usize>) {
        let mut keys = Vec::with_capacity(items.len());
        for item in &items {
            self.look_ups[*item] += 1;
            keys.push(self.items[*item].key.clone());
        }
        let call = Call {
            op: Some(self.op),
            purpose: Purpose::Lookup,
            items,
            sent_at: now,
        };
        let request = MasterRequest::Lookup(LookupRequest {
            keys,
            ..LookupRequest::default()
        });
        books.call(call, request, self.deadline);
    }

    fn found(&mut self, now: Time, books: &mut Books, call: Call, answer: LookupResponse) {
        let ends = call.sent_at + Duration::from_micros(answer.lease_us);
        // One hold is ours until all of the answer was looked at.
        let lease = (answer.lease != 0).then(|| books.leases.grant(answer.lease, ends));
        let places = Places::new(answer.segments, answer.storages);
        for (item, wire) in call.items.into_iter().zip(answer.results) {
            let found = match wire.result {
                Some(lookup_result::Result::Object(object)) => places.object(object),
                Some(lookup_result::Result::Error(detail)) => Err(detail.into()),
                None => Err(malformed("a result that says nothing")),
            };
            match (found, lease) {
                (Err(fault), _) => self.set(item, Err(fault)),
                (Ok(_), None) => {
                    self.set(item, Err(malformed("a place to read from, but no lease")));
                }
                (Ok(_), Some(_)) if now >= ends => self.lease_over(now, books, item),
                (Ok(found), Some(lease)) => {
                    let kept = Kept {
                        found: Arc::new(found),
                        lease,
                        lease_ends: ends,
                    };
                    self.begin_read(now, books, item, &kept);
                    books.keep(now, call.sent_at, &self.items[item].key, kept);
                }
            }
        }
        if let Some(lease) = lease {
            books.leases.drop_hold(now, &books.settings, lease);
        }
    }

    fn begin_read(&mut self, now: Time, books: &mut Books, item: usize, kept: &Kept) {
        let Kept {
            found,
            lease,
            lease_ends,
        } = kept;
        let (lease, lease_ends) = (*lease, *lease_ends);
        if let Some(capacity) = self.items[item].capacity
            && capacity < found.length
        {
            let message = format!(
                "the destination has {capacity} bytes, the object has {}",
                found.length
            );
            let fault = Fault::new(ErrorCode::InvalidParams, Retry::Never, message);
            self.set(item, Err(fault));
            return;
        }
        let mut untried = sources(found, &self.items[item].key);
        // The next one is the last: what has failed comes after all that has not, and disks after memory.
        untried.reverse();
        untried.sort_by_key(|source| (!books.peers.is_bad(source.owner()), source.is_memory()));
        if untried.is_empty() {
            let message = if found.replicas.is_empty() {
                "the object has no replica that can be read"
            } else {
                "the object lies only in remote storage, which is not supported by this client"
            };
            let fault = Fault::new(ErrorCode::NotSupported, Retry::Never, message);
            self.set(item, Err(fault));
            return;
        }
        let current = match next_replica(now, books, &mut untried) {
            Ok(current) => current,
            // The master may know of others by now.
            Err(_) if self.look_ups[item] == 0 => {
                self.lease_over(now, books, item);
                return;
            }
            Err(fault) => {
                self.set(item, Err(fault));
                return;
            }
        };
        books.leases.hold(lease);
        let ends = share(now, self.deadline.min(lease_ends), untried.len());
        let transfer = books.read((self.op, item), current.clone(), ends, lease);
        self.reading += 1;
        if !self.ends.contains(&lease_ends) {
            self.ends.push(lease_ends);
        }
        self.states[item] = State::Reading(Reading {
            incarnation: found.incarnation,
            length: found.length,
            lease,
            lease_ends,
            untried,
            current,
            repeated: false,
            transfer,
            attempt: Attempt { began: now, ends },
            failed: None,
        });
    }

    /// Takes a key out of its reading state, and gives its hold of the lease back.
    fn stop_reading(&mut self, now: Time, books: &mut Books, item: usize) -> Option<Reading> {
        match mem::replace(&mut self.states[item], State::LookingUp) {
            State::Reading(reading) => {
                self.reading -= 1;
                books.leases.drop_hold(now, &books.settings, reading.lease);
                Some(reading)
            }
            State::LookingUp => None,
        }
    }

    fn complete(&mut self, now: Time, books: &mut Books, item: usize, result: Result<Got, Fault>) {
        self.stop_reading(now, books, item);
        self.set(item, result);
    }

    /// What was looked up is of no use, such as when the lease ended before the bytes were there:
    /// once, that is asked for again.
    fn lease_over(&mut self, now: Time, books: &mut Books, item: usize) {
        self.stop_reading(now, books, item);
        books.forget(now, &self.items[item].key);
        if self.look_ups[item] < LOOK_UPS {
            self.again.push(now, &books.settings, item);
            return;
        }
        let message = "the lease ended before the object was read, twice";
        let fault = Fault::new(ErrorCode::LeaseExpired, Retry::Here, message).with_stage("read");
        self.set(item, Err(fault));
    }

    /// Goes on after a failed read that is quiet.
    fn after_failure(&mut self, now: Time, books: &mut Books, item: usize, failed: TransferFault) {
        let may_look_up = self.look_ups[item] < LOOK_UPS;
        let (op, deadline) = (self.op, self.deadline);
        let State::Reading(reading) = &mut self.states[item] else {
            return;
        };
        let (owner, attempt) = (reading.current.owner(), reading.attempt);
        books.peers.failed(now, owner, attempt, &failed);
        let stale = failed.retry == Retry::AfterRefresh;
        if now >= reading.lease_ends || (stale && may_look_up) {
            self.lease_over(now, books, item);
            return;
        }
        let next = match failed.retry {
            Retry::Never => None,
            // It was read by what is known of it: the master may know better.
            _ if self.look_ups[item] == 0 && reading.untried.is_empty() => {
                self.lease_over(now, books, item);
                return;
            }
            Retry::Here if !reading.repeated && reading.untried.is_empty() => {
                reading.repeated = true;
                Some(reading.current.clone())
            }
            _ => next_replica(now, books, &mut reading.untried).ok(),
        };
        if next.is_none() && failed.retry != Retry::Never && self.look_ups[item] == 0 {
            // What was left is out of reach, such as the disk of a process whose memory just was.
            self.lease_over(now, books, item);
            return;
        }
        if let Some(next) = next {
            reading.current = next.clone();
            reading.failed = None;
            let end = deadline.min(reading.lease_ends);
            let ends = share(now, end, reading.untried.len());
            reading.attempt = Attempt { began: now, ends };
            reading.transfer = books.read((op, item), next, ends, reading.lease);
            return;
        }
        books.forget(now, &self.items[item].key);
        let fault = read_fault(failed, true);
        self.complete(now, books, item, Err(fault));
    }
}

impl Procedure for Get {
    fn begin(&mut self, now: Time, books: &mut Books, op: OpId, deadline: Time) {
        self.op = op;
        self.deadline = deadline;
        let mut items = Vec::with_capacity(self.items.len());
        for item in 0..self.items.len() {
            match Key::check(&self.items[item].key) {
                Ok(()) => match books.known(now, &self.items[item].key).cloned() {
                    Some(kept) => self.begin_read(now, books, item, &kept),
                    None => items.push(item),
                },
                Err(fault) => self.set(item, Err(fault)),
            }
        }
        if !items.is_empty() {
            self.look_up(now, books, items);
        }
    }

    fn answered(&mut self, now: Time, books: &mut Books, call: Call, answer: MasterAnswer) {
        match answer {
            MasterAnswer::Lookup(answer) if answer.results.len() == call.items.len() => {
                self.found(now, books, call, answer);
            }
            _ => self.failed(now, books, call, malformed("something else than was asked")),
        }
    }

    fn failed(&mut self, _now: Time, _books: &mut Books, call: Call, fault: Fault) {
        // A look-up moves no bytes, whatever became of it.
        let fault = fault.with_effect(Applied::Nothing, true);
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
        let State::Reading(reading) = &mut self.states[item] else {
            return;
        };
        if reading.transfer != transfer {
            return;
        }
        let failed = match result {
            Ok(_) if now >= reading.lease_ends => {
                self.lease_over(now, books, item);
                return;
            }
            Ok(bytes) if bytes == reading.length => {
                books.peers.succeeded(reading.current.owner());
                let got = Got {
                    length: bytes,
                    incarnation: reading.incarnation,
                };
                self.complete(now, books, item, Ok(got));
                return;
            }
            Ok(bytes) => TransferFault {
                retry: Retry::Elsewhere,
                applied: Applied::UpTo(bytes),
                quiescent: true,
                peer: reading.current.peer().to_owned(),
                message: format!("{bytes} of {} bytes were read", reading.length),
            },
            Err(failed) => failed,
        };
        if quiet {
            self.after_failure(now, books, item, failed);
        } else {
            // Its bytes could land among those of the next read.
            reading.failed = Some(Box::new(failed));
        }
    }

    fn quiet(&mut self, now: Time, books: &mut Books, (transfer, item): (TransferId, usize)) {
        if let State::Reading(reading) = &mut self.states[item]
            && reading.transfer == transfer
            && let Some(failed) = reading.failed.take()
        {
            self.after_failure(now, books, item, *failed);
        }
    }

    fn settle(&mut self, now: Time, books: &mut Books) {
        if self.ends.iter().any(|ends| *ends <= now) {
            self.ends.retain(|ends| now < *ends);
            for state in &self.states {
                if let State::Reading(reading) = state
                    && reading.lease_ends <= now
                {
                    books.cancel(reading.transfer);
                }
            }
        }
        if now < self.deadline {
            let items = self.again.take(now, &books.settings, self.reading == 0);
            if !items.is_empty() {
                self.look_up(now, books, items);
            }
        }
    }

    fn wake(&self) -> Time {
        let ends = self.ends.iter().copied().min().unwrap_or(Time::NEVER);
        ends.min(self.again.due())
    }

    fn expire(&mut self, now: Time, books: &mut Books) {
        for item in self.results.open_items() {
            let fault = match self.stop_reading(now, books, item) {
                Some(Reading {
                    failed: Some(failed),
                    ..
                }) => read_fault(*failed, false),
                Some(reading) => {
                    books.cancel(reading.transfer);
                    timed_out("read", Applied::Unknown, false)
                        .with_peer(reading.current.peer().to_owned())
                }
                None => timed_out("lookup", Applied::Nothing, true),
            };
            self.set(item, Err(fault));
        }
    }

    fn outcome(&mut self) -> Option<Outcome> {
        self.results.take().map(Outcome::Get)
    }
}

/// The replicas that can be read, in the order of the answer.
fn sources(found: &Found, key: &Bytes) -> Vec<Source> {
    let source = |replica: &Replica| match replica {
        Replica::Memory(location) => Some(Source::Memory(location.clone())),
        Replica::LocalDisk(storage) => Some(Source::Disk(DiskPlace {
            storage: Arc::clone(storage),
            key: key.clone(),
            incarnation: found.incarnation,
            length: found.length,
        })),
        Replica::Remote { .. } => None,
    };
    found.replicas.iter().filter_map(source).collect()
}

/// The next replica whose owner may be tried.
fn next_replica(now: Time, books: &mut Books, untried: &mut Vec<Source>) -> Result<Source, Fault> {
    let mut refused = None;
    while let Some(next) = untried.pop() {
        match books.peers.admit(now, next.owner()) {
            Ok(()) => return Ok(next),
            Err(left) => refused = Some((next, left)),
        }
    }
    let (retry, peer) = match refused {
        Some((next, left)) => (Retry::Later(left), next.peer().to_owned()),
        None => (Retry::Elsewhere, String::new()),
    };
    let message = "the peer could not be reached a moment ago and is not tried yet";
    Err(Fault::new(ErrorCode::TransferFailed, retry, message)
        .with_peer(peer)
        .with_stage("read"))
}

/// Until when one replica may be read, if so many others are to have their time as well.
fn share(now: Time, end: Time, others: usize) -> Time {
    if others == 0 {
        return end;
    }
    now + end.since(now) / (others as u32 + 1)
}

fn read_fault(failed: TransferFault, quiescent: bool) -> Fault {
    let code = match failed.retry {
        Retry::AfterRefresh => ErrorCode::Stale,
        _ => ErrorCode::TransferFailed,
    };
    Fault::new(code, failed.retry, failed.message)
        .with_peer(failed.peer)
        .with_stage("read")
        .with_effect(failed.applied, quiescent)
}
