//! The tasks of a batch that go to other processes of this host.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{
    Medium,
    link::Inner,
    session::Session,
    socket::on_clock,
    wire::{PIECES, Receipt, Write},
    work::{Read, Work},
    writes::{Posted, Told},
};
use crate::{
    error::{Reason, Result, Stage, TransferError},
    identity::{Generation, RegistrationId},
    memory::{LocalSlice, checksum},
    transport::{Op, Outcome, Posting, SubBatch, TaskRef},
};

/// So many of the longest reads that are done at once are done in one submission.
const INLINE: u64 = 4;

#[derive(Debug)]
pub(super) struct HostSubBatch<M: Medium> {
    link: Arc<Inner<M>>,
    work: Arc<Work<M>>,
    /// Those that have writes of ours.
    writing: Mutex<SmallVec<[Arc<Session<M>>; 1]>>,
}

impl<M: Medium> HostSubBatch<M> {
    pub(super) fn new(link: &Arc<Inner<M>>) -> Self {
        Self {
            link: Arc::clone(link),
            work: Arc::default(),
            writing: Mutex::default(),
        }
    }

    /// Does a read of what is known, if `inline` leaves room for it, or leaves it to who waits.
    fn read(&self, task: TaskRef, session: &Arc<Session<M>>, spec: Posting, inline: &mut u64) {
        let read = Read {
            task,
            fences: session.fences(),
            session: Arc::clone(session),
            registration: spec.registration,
            generation: spec.generation,
            offset: spec.offset,
            length: spec.length,
            local: spec.local,
            deadline: spec.deadline,
        };
        let small = read.length <= self.link.config().inline_bytes.min(*inline);
        let known = || session.known(read.registration, read.generation);
        if small && let Some(known) = known() {
            *inline -= read.length;
            read.run_from(&known, self.link.tasks());
        } else {
            self.link.lends();
            self.work.push(read);
        }
    }

    fn write(&self, task: TaskRef, session: &Arc<Session<M>>, spec: Posting) {
        if !spec.receipt.is_none() {
            return self.write_told(task, session, spec);
        }
        let slices = spec.local.len();
        if slices > 1 {
            let slices = u32::try_from(slices).unwrap_or(u32::MAX);
            self.link.tasks().split(task, slices);
        }
        // A source's offset is that of its buffer.
        let mut offset = spec.offset;
        let deadline = on_clock(spec.deadline);
        for local in spec.local {
            let place = (spec.registration, spec.generation, offset);
            let write = write_from(&local, place, deadline);
            offset += local.len();
            session.writes.post(Posted {
                task,
                write,
                local,
                told: None,
                deadline: spec.deadline,
                ended: false,
                offered_again: false,
                fences: 0,
            });
        }
        self.writes_to(session);
    }

    fn writes_to(&self, session: &Arc<Session<M>>) {
        let mut writing = self.writing.lock();
        if !writing.iter().any(|known| Arc::ptr_eq(known, session)) {
            writing.push(Arc::clone(session));
        }
    }

    /// Posts all slices as one, since the target does as the receipt says once all of them are there.
    fn write_told(&self, task: TaskRef, session: &Arc<Session<M>>, spec: Posting) {
        let pieces = spec.local.len();
        if pieces > PIECES {
            let why = format!("a write with a receipt has {PIECES} pieces at most, not {pieces}");
            let reason = Reason::Unreachable(why.into());
            let error = TransferError::unstarted(reason, Stage::Post, Some(spec.peer));
            return self.link.tasks().finish(task, Outcome::Failed(error), true);
        }
        let checksum = spec.receipt.checksum.then(|| checksum(&spec.local, 0));
        let receipt = Receipt {
            op_id: spec.receipt.op_id,
            checksum,
            pieces: pieces as u64,
        };
        let (mut offset, deadline) = (spec.offset, on_clock(spec.deadline));
        let mut all = spec.local.into_iter().map(|local| {
            let place = (spec.registration, spec.generation, offset);
            offset += local.len();
            (write_from(&local, place, deadline), local)
        });
        let (write, local) = all.next().expect("a task has a local side");
        let more = all.collect();
        session.writes.post(Posted {
            task,
            write,
            local,
            told: Some(Box::new(Told { receipt, more })),
            deadline: spec.deadline,
            ended: false,
            offered_again: false,
            fences: 0,
        });
        self.writes_to(session);
    }
}

/// What a peer is asked to fetch from `local` to this place.
fn write_from(
    local: &LocalSlice,
    (registration, generation, offset): (RegistrationId, Generation, u64),
    deadline: u64,
) -> Write {
    Write {
        tag: 0,
        source: local.buffer().id(),
        from: local.offset(),
        length: local.len(),
        registration,
        generation,
        offset,
        deadline,
    }
}

/// How a task ends that need not be begun at all.
fn hopeless(spec: &Posting, now: Instant) -> Option<Outcome> {
    if spec.offset.checked_add(spec.length).is_none() {
        let peer = Some(spec.peer);
        let error = TransferError::unstarted(Reason::OutOfBounds, Stage::Admit, peer);
        return Some(Outcome::Failed(error));
    }
    let late = spec.deadline.is_some_and(|end| end <= now);
    late.then(|| Outcome::timed_out(Stage::Post, spec.peer))
}

impl<M: Medium> SubBatch for HostSubBatch<M> {
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> Result<()> {
        let mut last: Option<Arc<Session<M>>> = None;
        // Whoever submits much is not held up by all of it.
        let mut inline = self.link.config().inline_bytes.saturating_mul(INLINE);
        // As long as a few copies take, one look at the clock does for all.
        let now = Instant::now();
        for task in tasks {
            let Some(spec) = self.link.tasks().posting(*task) else {
                continue;
            };
            if let Some(end) = hopeless(&spec, now) {
                self.link.tasks().finish(*task, end, true);
                continue;
            }
            let known = last.take().filter(|session| session.peer() == spec.peer);
            let session = match known.map_or_else(|| self.link.session(spec.peer), Ok) {
                Ok(session) => session,
                Err(reason) => {
                    let error = TransferError::unstarted(reason, Stage::Connect, Some(spec.peer));
                    self.link
                        .tasks()
                        .finish(*task, Outcome::Failed(error), true);
                    continue;
                }
            };
            match spec.op {
                Op::Read => self.read(*task, &session, spec, &mut inline),
                Op::Write => self.write(*task, &session, spec),
            }
            last = Some(session);
        }
        let writing = self.writing.lock();
        if !writing.is_empty() {
            self.link.lends();
        }
        for session in &*writing {
            session.writes.flush();
        }
        Ok(())
    }

    fn cancel_transfer_task(&self, task: TaskRef) {
        while let Some(read) = self.work.take(task) {
            // It finds that it is not wanted.
            read.run(self.link.tasks());
        }
        // A retry of it may have gone to another peer than the batch's.
        for session in self.link.sessions() {
            session.writes.cancel(task);
        }
    }

    fn drive(&self, budget: Duration) -> bool {
        if let Some(read) = self.work.pop() {
            if let Some(read) = read.run_within(budget, self.link.tasks()) {
                self.work.put_back(read);
            }
            return true;
        }
        let mut driven = false;
        let writing = self.writing.lock().clone();
        let share = match writing.len() {
            0 | 1 => budget,
            _ => budget.min(Duration::from_micros(100)),
        };
        for session in &writing {
            driven |= session.writes.drive(share);
        }
        driven
    }

    fn hand_over(&self) {
        self.link.give(&self.work);
        for session in &*self.writing.lock() {
            if !session.writes.is_empty() {
                self.link.watch(session);
            }
        }
    }

    fn recycle(&mut self) -> bool {
        self.writing.get_mut().clear();
        self.work.is_empty()
    }
}
