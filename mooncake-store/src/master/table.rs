//! Operations on their way to the master and back. No clock, no I/O.

use std::{collections::VecDeque, fmt, time::Duration};

use mooncake_proto::{
    Applied, Fault, Retry,
    master::{self, ClientFrame},
    status::ErrorCode,
};

use crate::{
    core::{MasterAnswer, MasterRequest},
    time::Time,
};

/// What is called with an answer.
pub type OnAnswer = Box<dyn FnOnce(Result<MasterAnswer, Fault>) + Send>;

/// A call that is over, to be reported outside all locks.
pub struct Done {
    on_answer: OnAnswer,
    result: Result<MasterAnswer, Fault>,
}

impl Done {
    /// Tells whoever asked.
    pub fn report(self) {
        (self.on_answer)(self.result);
    }
}

/// What may become of an operation when its stream breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Means something only on its own stream.
    Heartbeat,
    /// Must not happen twice, and nobody knows whether it happened.
    Mutation,
    /// May be asked as often as one likes.
    Read,
    /// Gives back what only the master that granted it knows.
    Release,
}

impl Kind {
    /// Of a request other than a ping that keeps the session alive.
    pub const fn of(request: &MasterRequest) -> Self {
        match request {
            MasterRequest::Describe(_)
            | MasterRequest::Exist(_)
            | MasterRequest::ListObjects(_)
            | MasterRequest::ListSegments(_)
            | MasterRequest::Lookup(_)
            | MasterRequest::Ping(_) => Self::Read,
            MasterRequest::Grant(_)
            | MasterRequest::MountSegment(_)
            | MasterRequest::Put(_)
            | MasterRequest::PutEnd(_)
            | MasterRequest::PutRevoke(_)
            | MasterRequest::PutStart(_)
            | MasterRequest::Remove(_)
            | MasterRequest::RemoveAll(_)
            | MasterRequest::UnmountSegment(_) => Self::Mutation,
            MasterRequest::Goodbye(_)
            | MasterRequest::Release(_)
            | MasterRequest::ReturnGrants(_) => Self::Release,
        }
    }
}

/// One call that has no answer.
pub struct Pending {
    /// What is asked.
    pub request: MasterRequest,
    /// What a broken stream means for it.
    pub kind: Kind,
    /// When an answer is of no use any more.
    pub deadline: Time,
    /// Called once.
    pub on_answer: OnAnswer,
}

impl Pending {
    fn fail(self, fault: Fault) -> Done {
        Done {
            on_answer: self.on_answer,
            result: Err(fault),
        }
    }
}

/// How much one frame carries at most. The master begins with the first frame while it reads the
/// next; HTTP/2 cuts what is longer anyway.
const FRAME_OPERATIONS: usize = 256;
const FRAME_BYTES: usize = 16 << 10;

/// All calls of one session that are not over.
pub struct Table {
    address: String,
    most: usize,
    /// Not sent yet, and thus without a number.
    queue: VecDeque<Pending>,
    /// Sent; `None`: over. The first has the number `first` and is not over.
    sent: VecDeque<Option<Pending>>,
    first: u64,
    /// Numbers that must be sent again on this stream.
    again: std::ops::Range<u64>,
    unanswered: usize,
    /// No deadline is earlier.
    earliest: Time,
}

impl Table {
    /// A table for calls to the master at `address`, `most` of them at once.
    pub fn new(address: String, most: usize) -> Self {
        Self {
            address,
            most,
            queue: VecDeque::new(),
            sent: VecDeque::new(),
            first: 1,
            again: 1..1,
            unanswered: 0,
            earliest: Time::NEVER,
        }
    }

    /// Queues a call, unless there are too many or its time is over.
    pub fn submit(&mut self, now: Time, pending: Pending) -> Result<(), Done> {
        if pending.deadline <= now {
            let fault = self.timed_out(Applied::Nothing);
            return Err(pending.fail(fault));
        }
        if self.unanswered >= self.most {
            let message = format!("{} operations wait for the master already", self.most);
            let retry = Retry::Later(Duration::from_millis(1));
            let fault = Fault::new(ErrorCode::Busy, retry, message).with_peer(&*self.address);
            return Err(pending.fail(fault));
        }
        self.earliest = self.earliest.min(pending.deadline);
        self.unanswered += 1;
        self.queue.push_back(pending);
        Ok(())
    }

    /// What to send next, as much as is ready and fits.
    pub fn next_frame(&mut self) -> Option<ClientFrame> {
        let (mut operations, mut bytes) = (Vec::new(), 0);
        self.again.start = self.again.start.max(self.first);
        while !self.again.is_empty() && fits(&operations, bytes) {
            let number = self.again.start;
            self.again.start += 1;
            if let Some(pending) = &self.sent[self.index(number)] {
                bytes += pending.request.encoded_len();
                operations.push(operation(number, &pending.request));
            }
        }
        // A straggler keeps all numbers after it, so those are bounded too.
        while fits(&operations, bytes)
            && self.sent.len() < 2 * self.most
            && let Some(pending) = self.queue.pop_front()
        {
            bytes += pending.request.encoded_len();
            operations.push(operation(self.next_number(), &pending.request));
            self.sent.push_back(Some(pending));
        }
        (!operations.is_empty()).then(|| ClientFrame {
            hello: None,
            operations,
            acknowledged_below: self.first,
        })
    }

    /// Something waits to be sent.
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The first answer to a number ends its call; a later one, or one after its deadline, is late.
    pub fn complete(&mut self, answer: master::Answer) -> Option<Done> {
        let ours = (self.first..self.next_number()).contains(&answer.number);
        let index = ours.then(|| self.index(answer.number))?;
        let pending = self.sent[index].take()?;
        self.unanswered -= 1;
        self.forget_front();
        let result = match answer.answer {
            Some(MasterAnswer::Error(detail)) => Err(Fault::from(detail)),
            Some(answer) => Ok(answer),
            None => Err(Fault::new(
                ErrorCode::Internal,
                Retry::Never,
                "the master's answer says nothing",
            )
            .with_effect(Applied::Unknown, true)),
        };
        let result = result.map_err(|mut fault| {
            if fault.peer.is_empty() {
                fault.peer.clone_from(&self.address);
            }
            fault
        });
        Some(Done {
            on_answer: pending.on_answer,
            result,
        })
    }

    /// Ends the calls whose deadline has passed.
    pub fn expire(&mut self, now: Time, done: &mut Vec<Done>) {
        if now < self.earliest {
            return;
        }
        let mut earliest = Time::NEVER;
        let unsent = self.timed_out(Applied::Nothing);
        for pending in std::mem::take(&mut self.queue) {
            if pending.deadline <= now {
                done.push(pending.fail(unsent.clone()));
                self.unanswered -= 1;
            } else {
                earliest = earliest.min(pending.deadline);
                self.queue.push_back(pending);
            }
        }
        let lost = self.timed_out(Applied::Unknown);
        for slot in &mut self.sent {
            let over = |pending: &mut Pending| pending.deadline <= now;
            if let Some(pending) = slot.take_if(over) {
                done.push(pending.fail(lost.clone()));
                self.unanswered -= 1;
            } else if let Some(pending) = slot {
                earliest = earliest.min(pending.deadline);
            }
        }
        self.earliest = earliest;
        self.forget_front();
    }

    /// When [`expire`](Self::expire) may have something to do.
    pub const fn earliest(&self) -> Time {
        self.earliest
    }

    /// The stream broke: nothing is sent until it is known what the master still knows.
    pub fn lost(&mut self, done: &mut Vec<Done>) {
        let fault = Fault::new(ErrorCode::RpcFailed, Retry::Here, "the session was lost")
            .with_peer(&*self.address);
        self.queue
            .retain_mut(|pending| pending.kind != Kind::Heartbeat);
        self.fail_sent(done, |kind| (kind == Kind::Heartbeat).then_some(&fault));
        self.unanswered = self.queue.len() + self.sent.iter().flatten().count();
        self.again = self.first..self.first;
    }

    /// The master still holds our state: what has no answer is sent again under its number.
    pub fn resume(&mut self) {
        self.again = self.first..self.next_number();
    }

    /// The master lost our state: mutations have an unknown outcome, reads are asked anew.
    pub fn restart(&mut self, done: &mut Vec<Done>) {
        let unknown = Fault::new(
            ErrorCode::UnknownOutcome,
            Retry::AfterRefresh,
            "the master lost this session before it answered",
        )
        .with_peer(&*self.address)
        .with_effect(Applied::Unknown, true);
        let next = self.next_number();
        self.fail_sent(done, |kind| (kind != Kind::Read).then_some(&unknown));
        // Another life of the master may use the same numbers for other leases.
        for pending in std::mem::take(&mut self.queue) {
            if pending.kind == Kind::Release {
                done.push(pending.fail(unknown.clone()));
            } else {
                self.queue.push_back(pending);
            }
        }
        for pending in std::mem::take(&mut self.sent).into_iter().flatten().rev() {
            self.queue.push_front(pending);
        }
        self.unanswered = self.queue.len();
        self.first = next;
        self.again = next..next;
    }

    /// Ends everything.
    pub fn close(&mut self, done: &mut Vec<Done>) {
        let unsent = closed(&self.address);
        done.extend(
            self.queue
                .drain(..)
                .map(|pending| pending.fail(unsent.clone())),
        );
        let lost = unsent.with_effect(Applied::Unknown, true);
        self.fail_sent(done, |_| Some(&lost));
        self.unanswered = 0;
    }

    fn fail_sent<'a>(
        &mut self,
        done: &mut Vec<Done>,
        fault_of: impl Fn(Kind) -> Option<&'a Fault>,
    ) {
        for slot in &mut self.sent {
            if let Some(fault) = slot.as_ref().and_then(|pending| fault_of(pending.kind))
                && let Some(pending) = slot.take()
            {
                done.push(pending.fail(fault.clone()));
            }
        }
        self.forget_front();
    }

    /// Whatever is over at the front needs no number any more.
    fn forget_front(&mut self) {
        while let Some(None) = self.sent.front() {
            self.sent.pop_front();
            self.first += 1;
        }
    }

    fn next_number(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    fn index(&self, number: u64) -> usize {
        usize::try_from(number - self.first).expect("no more are sent than fit in memory")
    }

    fn timed_out(&self, applied: Applied) -> Fault {
        let message = "the master did not answer before the deadline";
        Fault::new(ErrorCode::RpcTimeout, Retry::Here, message)
            .with_peer(&*self.address)
            .with_effect(applied, true)
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("queued", &self.queue.len())
            .field("unanswered", &self.unanswered)
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

/// The session was closed on our side.
pub(super) fn closed(address: &str) -> Fault {
    let message = "the session with the master is closed";
    Fault::new(ErrorCode::RpcFailed, Retry::Never, message).with_peer(address)
}

const fn fits(operations: &[master::Operation], bytes: usize) -> bool {
    operations.len() < FRAME_OPERATIONS && bytes < FRAME_BYTES
}

fn operation(number: u64, request: &MasterRequest) -> master::Operation {
    master::Operation {
        number,
        operation: Some(request.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use mooncake_proto::master::{ExistRequest, ExistResponse, PutEndRequest, ReleaseRequest};
    use parking_lot::Mutex;

    use super::*;

    type Ends = Arc<Mutex<Vec<(&'static str, Option<ErrorCode>)>>>;

    struct Rig {
        table: Table,
        ends: Ends,
    }

    impl Rig {
        fn new(most: usize) -> Self {
            Self {
                table: Table::new("master:1".into(), most),
                ends: Ends::default(),
            }
        }

        fn submit(&mut self, name: &'static str, request: MasterRequest, deadline: Time) {
            let ends = self.ends.clone();
            let pending = Pending {
                kind: Kind::of(&request),
                request,
                deadline,
                on_answer: Box::new(move |result| {
                    ends.lock()
                        .push((name, result.err().map(|fault| fault.code)));
                }),
            };
            if let Err(done) = self.table.submit(Time(1), pending) {
                done.report();
            }
        }

        fn numbers(&mut self) -> Vec<u64> {
            let frame = self.table.next_frame().unwrap_or_default();
            frame
                .operations
                .iter()
                .map(|operation| operation.number)
                .collect()
        }

        fn answer(&mut self, number: u64) {
            let answer = Some(MasterAnswer::Exist(ExistResponse::default()));
            let done = self.table.complete(master::Answer { number, answer });
            done.into_iter().for_each(Done::report);
        }

        fn step(&mut self, step: impl FnOnce(&mut Table, &mut Vec<Done>)) {
            let mut done = Vec::new();
            step(&mut self.table, &mut done);
            done.into_iter().for_each(Done::report);
        }

        fn ended(&self) -> Vec<(&'static str, Option<ErrorCode>)> {
            std::mem::take(&mut self.ends.lock())
        }
    }

    fn exist() -> MasterRequest {
        MasterRequest::Exist(ExistRequest::default())
    }

    #[test]
    fn an_answer_ends_a_call_once_and_the_mark_follows_the_oldest_unanswered() {
        let mut rig = Rig::new(10);
        for name in ["a", "b", "c"] {
            rig.submit(name, exist(), Time(100));
        }
        assert_eq!(rig.numbers(), [1, 2, 3]);
        for number in [2, 2, 0, 99, u64::MAX] {
            rig.answer(number);
        }
        assert_eq!(rig.ended(), [("b", None)]);
        assert_eq!(rig.table.first, 1);
        rig.answer(1);
        assert_eq!(rig.table.first, 3);
        rig.answer(3);
        rig.submit("d", exist(), Time(100));
        assert_eq!(rig.table.next_frame().unwrap().acknowledged_below, 4);
    }

    #[test]
    fn an_overdue_call_ends_and_its_late_answer_is_dropped() {
        let mut rig = Rig::new(10);
        rig.submit("sent", exist(), Time(100));
        rig.submit("long", exist(), Time(300));
        assert_eq!(rig.numbers(), [1, 2]);
        rig.submit("queued", exist(), Time(200));
        assert_eq!(rig.table.earliest(), Time(100));
        rig.step(|table, done| table.expire(Time(100), done));
        assert_eq!(rig.ended(), [("sent", Some(ErrorCode::RpcTimeout))]);
        assert_eq!(rig.table.earliest(), Time(200));
        rig.step(|table, done| table.expire(Time(250), done));
        assert_eq!(rig.ended(), [("queued", Some(ErrorCode::RpcTimeout))]);
        rig.answer(1);
        rig.answer(2);
        assert_eq!(rig.ended(), [("long", None)]);
        assert!(rig.numbers().is_empty(), "what was overdue is not sent");
    }

    #[test]
    fn leases_of_a_lost_life_are_not_released_to_the_next() {
        let mut rig = Rig::new(10);
        let release = || MasterRequest::Release(ReleaseRequest { leases: vec![5] });
        rig.submit("sent", release(), Time(100));
        assert_eq!(rig.numbers(), [1]);
        rig.submit("queued", release(), Time(100));
        rig.submit("read", exist(), Time(100));
        rig.step(Table::lost);
        rig.step(Table::restart);
        let unknown = Some(ErrorCode::UnknownOutcome);
        assert_eq!(rig.ended(), [("sent", unknown), ("queued", unknown)]);
        assert_eq!(rig.numbers(), [2]);
    }

    #[test]
    fn what_is_sent_again_comes_before_what_is_new() {
        let mut rig = Rig::new(10);
        for name in ["a", "b", "c"] {
            rig.submit(
                name,
                MasterRequest::PutEnd(PutEndRequest::default()),
                Time(100),
            );
        }
        assert_eq!(rig.numbers(), [1, 2, 3]);
        rig.answer(2);
        rig.step(Table::lost);
        rig.submit("d", exist(), Time(100));
        rig.table.resume();
        assert_eq!(rig.numbers(), [1, 3, 4]);
        assert!(rig.numbers().is_empty());
    }

    #[test]
    fn frames_are_bounded_in_operations_and_bytes() {
        let mut rig = Rig::new(1_000);
        for _ in 0..300 {
            rig.submit("small", exist(), Time(100));
        }
        assert_eq!((rig.numbers().len(), rig.numbers().len()), (256, 44));
        let large = vec![Bytes::from(vec![0; 1_024]); 4];
        for _ in 0..5 {
            let keys = large.clone();
            let request = ExistRequest {
                keys,
                ..ExistRequest::default()
            };
            rig.submit("large", MasterRequest::Exist(request), Time(100));
        }
        assert_eq!((rig.numbers().len(), rig.numbers().len()), (4, 1));
    }

    #[test]
    fn a_straggler_bounds_the_numbers_after_it() {
        let mut rig = Rig::new(2);
        rig.submit("straggler", exist(), Time(100));
        assert_eq!(rig.numbers(), [1]);
        for number in 2..5 {
            rig.submit("quick", exist(), Time(100));
            assert_eq!(rig.numbers(), [number]);
            rig.answer(number);
        }
        rig.submit("waits", exist(), Time(100));
        rig.submit("too many", exist(), Time(100));
        assert!(rig.numbers().is_empty());
        assert_eq!(
            rig.ended().last(),
            Some(&("too many", Some(ErrorCode::Busy)))
        );
        rig.answer(1);
        assert_eq!(rig.numbers(), [5]);
    }
}
