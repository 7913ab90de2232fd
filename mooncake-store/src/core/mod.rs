//! The store client without its I/O: events in, actions out.
//!
//! [`ClientCore`] decides what a put or a get does next. It has no clock, no sockets, no threads
//! and no locks: whoever drives it says what time it is and what has happened, and does what it is
//! told to. The same code thus runs under a real driver and under a simulator.
//!
//! A driver holds it in a mutex. Whoever has an [`Event`] locks it, calls
//! [`handle`](ClientCore::handle), drains [`poll`](ClientCore::poll) into a list, unlocks, and
//! executes the list in its order; a timer does the same with [`Event::Tick`] at
//! [`next_deadline`](ClientCore::next_deadline).
//!
//! # What the driver owes
//!
//! One report per call; one end per transfer, and [`Event::Quiet`] after an end that was not quiet.
//! A completed transfer is quiet. Reports may come late, twice or in any order.
//!
//! # What the core promises
//!
//! - One [`Action::Finish`] per operation, with one result per key; nothing for it afterwards.
//! - A put succeeded only if the master acknowledged its end, which is asked for only after all its
//!   writes completed. It is revoked only when none of its writes can land any more. A put whose
//!   writes are not quiet at the deadline is left to the master's put deadline.
//! - A get succeeded only if its bytes arrived whole while the lease held, counted from before the
//!   look-up was sent.
//! - An operation ends at its deadline. If bytes may still move by then, the fault of that key says
//!   `quiescent: false`: the driver keeps the buffer until the transfer is quiet, whose report the
//!   core still wants, since it releases the lease then.
//! - What a look-up has found is kept for a moment under its lease, and forgotten with the first word
//!   that it is no more true, or when this client changes the object itself.
//! - A put into the client's own segment is asked for after its bytes are there, and space of it is
//!   returned, or used again, only when no byte of an earlier write can land there any more.
//! - What the master granted is given back: leases released or over, puts ended, revoked or left
//!   to their deadline; also when the answer came after the operation's end.

mod action;
mod books;
mod gather;
mod get;
mod home;
mod known;
mod lease;
mod operation;
mod peers;
mod put;
mod query;
mod remove_all;
mod results;
mod source;
#[cfg(test)]
mod tests;
mod wire;
#[cfg(test)]
mod world;

use std::{collections::BTreeSet, fmt, time::Duration};

use bytes::Bytes;
use mooncake_proto::{
    Fault,
    master::{LookupResponse, PutStartResponse, put_start_result},
};
use rustc_hash::FxHashMap;

pub(crate) use self::wire::Places;
pub use self::{
    action::{
        Action, CallId, DiskPlace, Event, Location, MasterAnswer, MasterRequest, OpId, SegmentId,
        SegmentInfo, StorageId, StorageInfo, TransferFault, TransferId,
    },
    operation::{
        Description, Existence, GetItem, Got, Incarnation, Operation, Outcome, PutItem, PutOptions,
        RemoveOptions, Replica,
    },
};
use self::{
    books::{Books, Call, Purpose},
    gather::Gather,
    get::Get,
    put::Put,
    query::Query,
    remove_all::RemoveAll,
};
use crate::time::Time;

/// What the core may be told to do differently.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Keys or leases that are sent together at most: the 64th does not wait for more.
    pub batch: usize,
    /// How long a key or lease that is ready waits for others to be sent with it.
    pub linger: Duration,
    /// How long a put may take from its start to its end; the master's hello says it.
    pub put_deadline: Duration,
    /// How long it is kept what a look-up has found, so that another read of the object needs none:
    /// at most half of the lease's time; zero: not at all.
    pub keep: Duration,
    /// Of how many objects at most.
    pub most_kept: usize,
    /// Space that is kept for puts to come in a segment of the client's own, about.
    pub granted_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch: 64,
            linger: Duration::from_millis(5),
            put_deadline: Duration::from_secs(30),
            keep: Duration::from_millis(500),
            most_kept: 16_384,
            granted_bytes: 32 << 20,
        }
    }
}

/// The decisions of a store client.
///
/// ```
/// use mooncake_store::{Time, core::{Action, ClientCore, MasterRequest, Operation, Settings}};
///
/// let mut core = ClientCore::new(Settings::default());
/// let keys = vec!["block-7".into()];
/// core.start(Time(0), Operation::Exist { keys }, Time(5_000_000));
/// let Some(Action::CallMaster { request: MasterRequest::Exist(_), .. }) = core.poll() else {
///     panic!("the master is asked first");
/// };
/// ```
#[derive(Debug)]
pub struct ClientCore {
    books: Books,
    ops: FxHashMap<OpId, Running>,
    timers: BTreeSet<(Time, OpId)>,
    next_op: u64,
}

#[derive(Debug)]
struct Running {
    procedure: Box<dyn Procedure>,
    deadline: Time,
    timer: Time,
}

/// Of what an operation leaves that was known before it.
enum Changed<'a> {
    Nothing,
    Keys(Box<dyn Iterator<Item = &'a Bytes> + 'a>),
    All,
}

/// One operation's way from its start to its outcome.
trait Procedure: fmt::Debug + Send {
    /// Validates, and asks the first question.
    fn begin(&mut self, now: Time, books: &mut Books, op: OpId, deadline: Time);

    fn answered(&mut self, now: Time, books: &mut Books, call: Call, answer: MasterAnswer);

    fn failed(&mut self, now: Time, books: &mut Books, call: Call, fault: Fault);

    /// The first end of a transfer. `quiet`: no byte of it moves any more.
    fn ended(
        &mut self,
        _now: Time,
        _books: &mut Books,
        _transfer: (TransferId, usize),
        _result: Result<u64, TransferFault>,
        _quiet: bool,
    ) {
    }

    /// A transfer that ended otherwise is quiet now.
    fn quiet(&mut self, _now: Time, _books: &mut Books, _transfer: (TransferId, usize)) {}

    /// Does what is due by now; called after everything that happens to the operation.
    fn settle(&mut self, _now: Time, _books: &mut Books) {}

    /// What it may have changed at the master, once it is over.
    fn changed(&self) -> Changed<'_> {
        Changed::Nothing
    }

    /// When [`settle`](Self::settle) has something to do again.
    fn wake(&self) -> Time {
        Time::NEVER
    }

    /// Gives each key that has no result a fault: the deadline has passed.
    fn expire(&mut self, now: Time, books: &mut Books);

    /// The outcome, once.
    fn outcome(&mut self) -> Option<Outcome>;
}

impl ClientCore {
    /// A core with nothing to do.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            books: Books::new(settings),
            ops: FxHashMap::default(),
            timers: BTreeSet::new(),
            next_op: 0,
        }
    }

    /// Takes over what the master said about puts; for puts that start from now on.
    pub const fn set_put_deadline(&mut self, put_deadline: Duration) {
        self.books.settings.put_deadline = put_deadline;
    }

    /// The process of this client lends `segment` to the store, in a life of which the core has not
    /// heard before. Puts of one replica go there while there is space, and need one call for that.
    /// Grants of space get numbers from `first_grant` on, which nobody else in this session may use.
    pub fn lend(&mut self, now: Time, segment: SegmentInfo, first_grant: u64) {
        self.books.home.lend(segment, first_grant);
        self.books.tend_home(now);
    }

    /// Bytes that are set aside for puts to come.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.books.home.free()
    }

    /// The process lends nothing any more, or its segment is about to get another life.
    pub fn withdraw(&mut self, now: Time) {
        self.books.home.withdraw();
        self.books.tend_home(now);
    }

    /// From now on nothing of look-ups is kept; what was kept is forgotten.
    pub fn keep_nothing(&mut self, now: Time) {
        self.books.settings.keep = Duration::ZERO;
        self.books.forget_all(now);
        self.books.release(now);
    }

    /// Gives back at once what is the client's and of which no byte moves. Nothing is to be heard of
    /// any more: operations do not finish, and reports are not made.
    pub fn abandon(&mut self, now: Time) {
        self.books.home.abandon();
        self.books.forget_all(now);
        self.books.tend_home(now);
        self.books.release_now(now);
    }

    /// Starts an operation, which ends at `deadline` at the latest.
    pub fn start(&mut self, now: Time, operation: Operation, deadline: Time) -> OpId {
        let op = OpId(self.next_op);
        self.next_op += 1;
        let (procedure, deadline): (Box<dyn Procedure>, Time) = match operation {
            Operation::Describe { keys } => (Box::new(Query::describe(keys)), deadline),
            Operation::Exist { keys } => (Box::new(Query::exist(keys)), deadline),
            Operation::Get { items } => (Box::new(Get::new(items)), deadline),
            Operation::Put { items, options } => {
                let deadline = deadline.min(now + self.books.settings.put_deadline);
                (Box::new(Put::new(items, options)), deadline)
            }
            Operation::Remove { keys, options } => {
                (Box::new(Query::remove(keys, options)), deadline)
            }
            Operation::RemoveAll => (Box::new(RemoveAll::default()), deadline),
        };
        let running = Running {
            procedure,
            deadline,
            timer: Time::NEVER,
        };
        self.ops.insert(op, running);
        self.advance(now, op, |procedure, books| {
            if now < deadline {
                procedure.begin(now, books, op, deadline);
            }
        });
        self.books.tend_home(now);
        self.books.release(now);
        op
    }

    /// Takes note of what has happened, and of the time.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::MasterAnswered { call, answer } => self.answered(now, call, answer),
            Event::MasterFailed { call, fault } => {
                if let Some(call) = self.books.take_call(call) {
                    if let Some(op) = call.op {
                        self.advance(now, op, |procedure, books| {
                            procedure.failed(now, books, call, fault);
                        });
                    } else {
                        self.books.heard_of_home(now, call.purpose, Err(fault));
                    }
                }
            }
            Event::Quiet { transfer } => {
                if let Some((op, item)) = self.books.transfer_quiet(now, transfer) {
                    self.advance(now, op, |procedure, books| {
                        procedure.quiet(now, books, (transfer, item));
                    });
                }
            }
            Event::Invalidated { objects } => {
                for (key, life) in objects {
                    self.books.invalidate(now, &key, life);
                }
            }
            Event::Lost => self.books.lost(now),
            Event::Reclaim => {
                self.books.make_space(now);
            }
            Event::Tick => {}
            Event::TransferEnded { transfer, result } => {
                let quiescent = result
                    .as_ref()
                    .map_or_else(|fault| fault.quiescent, |_| true);
                let ended = self.books.transfer_ended(now, transfer, quiescent);
                if let Some((op, item, quiet)) = ended {
                    self.advance(now, op, |procedure, books| {
                        procedure.ended(now, books, (transfer, item), result, quiet);
                    });
                }
            }
        }
        while let Some((at, op)) = self.timers.first().copied()
            && at <= now
        {
            self.advance(now, op, |_, _| {});
        }
        self.books.tend_home(now);
        self.books.expire_known(now);
        self.books.release(now);
    }

    /// What to do next, in this order. `None`: nothing until something happens.
    pub fn poll(&mut self) -> Option<Action> {
        self.books.pop()
    }

    /// When the core wants [`Event::Tick`], unless something else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let timer = self.timers.first().map_or(Time::NEVER, |(at, _)| *at);
        let next = timer.min(self.books.due());
        (next < Time::NEVER).then_some(next)
    }

    /// No operation runs, nothing is owed to the master, and no byte can move.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.books.is_idle()
    }

    fn answered(&mut self, now: Time, call: CallId, answer: MasterAnswer) {
        let Some(call) = self.books.take_call(call) else {
            return;
        };
        let Some(op) = call.op else {
            self.books.heard_of_home(now, call.purpose, Ok(answer));
            return;
        };
        let begins = matches!(call.purpose, Purpose::Lookup | Purpose::PutStart(_));
        if begins
            && self
                .ops
                .get(&op)
                .is_some_and(|running| running.deadline <= now)
        {
            // Too late to begin what the answer allows.
            self.advance(now, op, |_, _| {});
        }
        if self.ops.contains_key(&op) {
            self.advance(now, op, |procedure, books| {
                procedure.answered(now, books, call, answer);
            });
            return;
        }
        match (call.purpose, answer) {
            (Purpose::PutStart(keys), MasterAnswer::PutStart(answer)) => {
                self.books.revoke(now, grants(keys, answer));
            }
            (
                Purpose::Lookup,
                MasterAnswer::Lookup(LookupResponse {
                    lease, lease_us, ..
                }),
            ) if lease != 0 => {
                let ends = call.sent_at + Duration::from_micros(lease_us);
                let lease = self.books.leases.grant(lease, ends);
                let settings = &self.books.settings;
                self.books.leases.drop_hold(now, settings, lease);
            }
            _ => {}
        }
    }

    /// Lets one operation take a step, and draws the conclusions.
    fn advance(&mut self, now: Time, op: OpId, step: impl FnOnce(&mut dyn Procedure, &mut Books)) {
        let Some(running) = self.ops.get_mut(&op) else {
            return;
        };
        let procedure = running.procedure.as_mut();
        step(procedure, &mut self.books);
        procedure.settle(now, &mut self.books);
        let mut outcome = procedure.outcome();
        if outcome.is_none() && now >= running.deadline {
            procedure.expire(now, &mut self.books);
            outcome = procedure.outcome();
        }
        let timer = outcome
            .is_none()
            .then(|| procedure.wake().min(running.deadline));
        if timer != Some(running.timer) {
            self.timers.remove(&(running.timer, op));
        }
        match (timer, outcome) {
            (Some(timer), _) => {
                running.timer = timer;
                self.timers.insert((timer, op));
            }
            (None, outcome) => {
                match running.procedure.changed() {
                    Changed::Nothing => {}
                    Changed::Keys(keys) => self.books.changed(now, keys),
                    Changed::All => self.books.lost(now),
                }
                self.ops.remove(&op);
                if let Some(outcome) = outcome {
                    self.books.push(Action::Finish { op, outcome });
                }
            }
        }
    }
}

/// What an answer to PutStart granted.
fn grants(keys: Vec<Bytes>, answer: PutStartResponse) -> Vec<(Bytes, Incarnation)> {
    let granted = |(key, wire): (Bytes, mooncake_proto::master::PutStartResult)| match wire.result {
        Some(put_start_result::Result::Object(object)) => Some((key, object.incarnation?.into())),
        _ => None,
    };
    keys.into_iter()
        .zip(answer.results)
        .filter_map(granted)
        .collect()
}
