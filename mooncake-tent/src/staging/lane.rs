//! Moves pieces of one transfer, one after the other; several lanes of it overlap.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use mooncake_proto::tent::{StageRequest, StageResponse, StageStep};
use smallvec::{SmallVec, smallvec};

use super::{
    ask::{Said, failure, release},
    job::Job,
    mover::Pairs,
    slots::Slot,
};
use crate::{
    engine::{Request, TransferEngine},
    error::{Applied, Reason, Stage, TransferError},
    identity::{Generation, RegistrationId},
    memory::LocalSlice,
    platform::{after, jittered},
    qos::Intent,
    registry,
    segment::RemoteRange,
    transport::{Op, Outcome},
};

/// Who was told that all slots are lent asks again after about this.
const AGAIN: Duration = Duration::from_millis(5);
/// Who waits for proof asks again after this, and then after ever more.
const FIRST: Duration = Duration::from_millis(10);
const LAST: Duration = Duration::from_secs(1);
/// The answer to one question about what moves.
const ANSWER: Duration = Duration::from_secs(2);

/// Why a piece is not done.
enum Break {
    /// The transfer shall not go on.
    Stopped,
    Failed(TransferError),
}

/// A slot of the peer that is lent to us, or may be.
#[derive(Debug)]
struct Held {
    ticket: u64,
    /// Where it is, once that was said.
    slot: Option<RemoteRange>,
    lease: Duration,
    /// When the peer was last heard of it.
    heard: Instant,
}

pub(super) struct Lane {
    job: Arc<Job>,
    local: Option<Slot>,
    held: Option<Held>,
}

impl Lane {
    pub(super) fn new(job: Arc<Job>) -> Self {
        Self {
            job,
            local: None,
            held: None,
        }
    }

    /// Moves pieces until there are no more. When it has ended, nothing of what it began can move.
    pub(super) async fn run(mut self) {
        let job = Arc::clone(&self.job);
        loop {
            let piece = job.ring.lock().take();
            let Some(piece) = piece else { break };
            match self.piece(&piece).await {
                Ok(()) => job.ring.lock().done(&piece),
                Err(Break::Stopped) => break,
                Err(Break::Failed(error)) => {
                    job.fail(error);
                    break;
                }
            }
            // Whoever has nothing yet comes first. A slot there is not kept while we wait for one here.
            if job.staging.for_us.is_wanted() {
                self.leave_local();
                self.leave_remote(true);
            }
        }
        self.leave_local();
        self.leave_remote(true);
    }

    async fn piece(&mut self, piece: &Range<u64>) -> Result<(), Break> {
        match self.job.op {
            Op::Write => self.write(piece).await,
            Op::Read => self.read(piece).await,
        }
    }

    async fn write(&mut self, piece: &Range<u64>) -> Result<(), Break> {
        let from = match self.job.mover {
            None => self.job.slices(piece),
            Some(_) => {
                let staged = self.stage(piece).await?;
                self.copy(pairs(&self.job.slices(piece), &staged)).await?;
                smallvec![staged]
            }
        };
        if !self.job.staged_there {
            let to = self.place(piece);
            return self.hop(from, to, piece, true).await;
        }
        let to = match self.held.as_ref().and_then(|held| held.slot) {
            Some(slot) => slot,
            None => self.lent(StageStep::Reserve, piece).await?.0,
        };
        self.hop(from, to, piece, false).await?;
        self.drain(piece).await
    }

    async fn read(&mut self, piece: &Range<u64>) -> Result<(), Break> {
        let staged = match self.job.mover {
            None => None,
            Some(_) => Some(self.stage(piece).await?),
        };
        let (from, wanted) = match self.job.staged_there {
            false => (self.place(piece), false),
            true => self.lent(StageStep::Fill, piece).await?,
        };
        let into = match &staged {
            None => self.job.slices(piece),
            Some(staged) => smallvec![staged.clone()],
        };
        self.hop(into, from, piece, staged.is_none()).await?;
        if wanted {
            self.leave_remote(true);
        }
        if let Some(staged) = staged {
            self.touch(piece)?;
            let mut pairs = pairs(&self.job.slices(piece), &staged);
            for (here, stage) in &mut pairs {
                std::mem::swap(here, stage);
            }
            self.copy(pairs).await?;
        }
        Ok(())
    }

    /// Bytes of the piece may be at the destination from now on, unless the transfer has ended.
    fn touch(&self, piece: &Range<u64>) -> Result<(), Break> {
        match self.job.ring.lock().touch(piece) {
            true => Ok(()),
            false => Err(Break::Stopped),
        }
    }

    /// The part of a slot here that a piece takes.
    async fn stage(&mut self, piece: &Range<u64>) -> Result<LocalSlice, Break> {
        if self.local.is_none() {
            let staging = &self.job.staging;
            let engine = staging.engine().ok_or(Break::Stopped)?;
            let slot = tokio::select! {
                slot = staging.for_us.take(&engine) => slot,
                () = self.job.stopped() => return Err(Break::Stopped),
            };
            let slot = slot.map_err(|error| self.broken(error.to_string()))?;
            self.local = Some(slot);
        }
        let slot = self.local.as_ref().expect("it was just taken");
        let slice = slot.buffer().slice(0..piece.end - piece.start);
        slice.map_err(|error| self.broken(error.to_string()))
    }

    async fn copy(&self, pairs: Pairs) -> Result<(), Break> {
        if self.job.is_stopped() {
            return Err(Break::Stopped);
        }
        let mover = self.job.mover.as_ref().expect("only then it is copied");
        let copied = self.job.staging.copies.run(mover, pairs, || true).await;
        copied.map_err(|why| self.failed(Reason::Mover(format!("here: {why}").into()), Stage::Move))
    }

    /// Where the piece is in the end.
    fn place(&self, piece: &Range<u64>) -> RemoteRange {
        RemoteRange::Registered {
            registration: self.job.registration,
            generation: Some(self.job.generation),
            // Beyond all buffers stays beyond all of them.
            offset: self.job.offset.saturating_add(piece.start),
        }
    }

    /// Has another link move a piece. `last`: its destination is that of the transfer.
    async fn hop(
        &mut self,
        local: SmallVec<[LocalSlice; 1]>,
        remote: RemoteRange,
        piece: &Range<u64>,
        last: bool,
    ) -> Result<(), Break> {
        let job = Arc::clone(&self.job);
        if job.is_stopped() {
            return Err(Break::Stopped);
        }
        let request = Request::scattered(job.op, local, &job.segment, remote)
            .deadline(job.deadline)
            .intent(Intent::StagingInternal)
            .priority(job.priority);
        if last {
            self.touch(piece)?;
        }
        let batch = {
            let engine = job.staging.engine().ok_or(Break::Stopped)?;
            let mut batch = engine.allocate_batch(1);
            if let Err(error) = engine.submit_inner(&mut batch, vec![request]) {
                job.ring.lock().untouch(piece);
                let mut failed = failure(
                    Reason::Broken(error.to_string().into()),
                    Stage::Post,
                    job.peer(),
                );
                failed.retry = error.retry();
                return Err(Break::Failed(failed));
            }
            batch
        };
        tokio::select! {
            () = batch.terminal() => {}
            () = job.stopped() => batch.cancel_all(),
        }
        batch.terminal().await;
        let outcome = batch.outcome(0);
        let error = match outcome {
            Some(Outcome::Completed { .. }) => {
                batch.quiescent().await;
                return Ok(());
            }
            other => other.and_then(|outcome| outcome.error().cloned()),
        };
        let mut error = error.unwrap_or_else(|| failure(Reason::Stopped, Stage::Move, job.peer()));
        if last && error.applied == Applied::Nothing && batch.is_quiescent() {
            job.ring.lock().untouch(piece);
        }
        let of_the_slot = job.staged_there && error.reason.is_an_answer();
        if of_the_slot {
            // What was asked for is there; it is the slot that went.
            error = failure(
                Reason::Broken("the stage slot was taken back".into()),
                Stage::Move,
                job.peer(),
            );
        }
        error.progress = None;
        if !batch.is_quiescent() {
            if job.staged_there {
                // Others get it once it is sure that nothing lands there.
                self.leave_remote(false);
            }
            job.fail(error.clone());
            batch.quiescent().await;
        }
        Err(match job.is_stopped() {
            true => Break::Stopped,
            false => Break::Failed(error),
        })
    }

    /// Has the peer lend us a slot, or fill it: where it is, and whether others want it.
    async fn lent(
        &mut self,
        step: StageStep,
        piece: &Range<u64>,
    ) -> Result<(RemoteRange, bool), Break> {
        let job = Arc::clone(&self.job);
        let mut fresh = self.held.is_none();
        loop {
            let held = self.held.get_or_insert_with(|| Held {
                ticket: rand::random::<u64>().max(1),
                slot: None,
                lease: Duration::ZERO,
                heard: Instant::now(),
            });
            let request = job.question(step, held.ticket, piece);
            let ticket = held.ticket;
            // Who has a slot keeps others from getting theirs and must not wait behind them.
            let turn = match held.slot {
                Some(_) => None,
                None => tokio::select! {
                    turn = Arc::clone(&job.queue).acquire_owned() => turn.ok(),
                    () = job.stopped() => return Err(Break::Stopped),
                },
            };
            let (asking, stop) = (Arc::clone(&job), Arc::clone(&job));
            let mut asked = job.staging.runtime.spawn(async move {
                let staging = &asking.staging;
                let asked = staging.ask(&asking.segment, request, asking.deadline);
                let said = asked.await;
                drop(turn);
                said
            });
            let said = tokio::select! {
                said = &mut asked => said.unwrap_or_else(|_| Said::Lost("given up".to_owned())),
                () = job.stopped() => {
                    // It may still come to have a slot, which is given back then and not before.
                    self.held = None;
                    job.staging.runtime.spawn(async move {
                        let _answered = asked.await;
                        stop.staging.give_back(&stop.segment, stop.peer(), ticket, true);
                    });
                    return Err(Break::Stopped);
                }
            };
            match said {
                Said::Done(answer) => {
                    let Some(slot) = slot_of(&answer, piece) else {
                        let why = "a slot that is too small for what was asked";
                        return Err(self.failed(Reason::Protocol(why.into()), Stage::Admit));
                    };
                    held.slot = Some(slot);
                    held.lease = Duration::from_millis(answer.lease_ms.into());
                    held.heard = Instant::now();
                    return Ok((slot, answer.wanted));
                }
                Said::Busy => tokio::select! {
                    () = tokio::time::sleep(jittered(AGAIN)) => {}
                    () = job.stopped() => return Err(Break::Stopped),
                },
                // Its lease was over.
                Said::NoTicket if !fresh => (self.held, fresh) = (None, true),
                said => return Err(self.not_done(said)),
            }
        }
    }

    /// Has the peer copy the slot to its place.
    async fn drain(&mut self, piece: &Range<u64>) -> Result<(), Break> {
        let job = Arc::clone(&self.job);
        let Some(held) = &mut self.held else {
            return Err(self.broken("the slot was given back"));
        };
        let request = job.question(StageStep::Drain, held.ticket, piece);
        if !job.ring.lock().touch(piece) {
            return Err(Break::Stopped);
        }
        // Whoever ends the transfer early waits for this: it is under way.
        match job.staging.ask(&job.segment, request, job.deadline).await {
            Said::Done(answer) => {
                held.heard = Instant::now();
                if answer.wanted {
                    self.leave_remote(true);
                }
                Ok(())
            }
            said @ (Said::Lost(_) | Said::NotQuiet) => {
                let broken = self.not_done(said);
                if let Break::Failed(error) = &broken {
                    // It ends now, and is quiet when that is sure.
                    job.fail(error.clone());
                }
                self.until_quiet().await;
                Err(broken)
            }
            said => {
                if !matches!(said, Said::Failed(_)) {
                    job.ring.lock().untouch(piece);
                }
                Err(self.not_done(said))
            }
        }
    }

    /// Ends with proof that the peer copies nothing for us any more.
    async fn until_quiet(&mut self) {
        let Some(held) = self.held.take() else { return };
        let job = &self.job;
        // It begins no copy once the lease is over, and one copy does not take as long. That is said of
        // a peer that is out of reach; one that answers knows better. Whoever answers under a name that
        // a registry keeps may be elsewhere, and says nothing of what was there before.
        let there = registry::is_address(job.segment.name());
        let silent = |since: Instant| since + held.lease.saturating_mul(2);
        let mut over = silent(held.heard).max(after(held.lease.max(ANSWER / 20)));
        let mut pause = FIRST;
        while Instant::now() < over {
            let request = release(job.peer(), held.ticket, false);
            let until = over.min(after(ANSWER));
            match job.staging.ask(&job.segment, request, until).await {
                Said::Done(_) | Said::NoTicket => return,
                Said::Not(Reason::OtherIncarnation) if there => return,
                Said::NotQuiet => over = silent(Instant::now()),
                _ => {}
            }
            tokio::time::sleep_until(over.min(after(pause)).into()).await;
            pause = (pause * 2).min(LAST);
        }
    }

    fn leave_local(&mut self) {
        if let Some(slot) = self.local.take() {
            slot.give_back();
        }
    }

    fn leave_remote(&mut self, clean: bool) {
        let job = &self.job;
        if let Some(held) = self.held.take() {
            job.staging
                .give_back(&job.segment, job.peer(), held.ticket, clean);
        }
    }

    fn not_done(&self, said: Said) -> Break {
        match said {
            Said::Not(reason) | Said::Failed(reason) => self.failed(reason, Stage::Admit),
            Said::Lost(why) => self.broken(why),
            Said::NoTicket => self.broken("the stage slot was taken back"),
            Said::Done(_) | Said::Busy | Said::NotQuiet => self.broken("an answer out of turn"),
        }
    }

    fn broken(&self, why: impl Into<Arc<str>>) -> Break {
        self.failed(Reason::Broken(why.into()), Stage::Move)
    }

    fn failed(&self, reason: Reason, stage: Stage) -> Break {
        Break::Failed(failure(reason, stage, self.job.peer()))
    }
}

impl Job {
    /// What to ask of the peer for a piece.
    fn question(&self, step: StageStep, ticket: u64, piece: &Range<u64>) -> StageRequest {
        StageRequest {
            target: self.peer().get(),
            ticket,
            step: step.into(),
            registration: self.registration.0,
            generation: self.generation.0,
            offset: self.offset.saturating_add(piece.start),
            length: piece.end - piece.start,
            before: piece.start,
            behind: self.length() - piece.end,
            ..StageRequest::default()
        }
    }
}

fn slot_of(answer: &StageResponse, piece: &Range<u64>) -> Option<RemoteRange> {
    (answer.length >= piece.end - piece.start).then_some(RemoteRange::Registered {
        registration: RegistrationId(answer.registration),
        generation: Some(Generation(answer.generation)),
        offset: answer.offset,
    })
}

/// Each slice, with its part of the stage.
fn pairs(slices: &[LocalSlice], staged: &LocalSlice) -> Pairs {
    let mut at = 0;
    let pairs = slices.iter().map(|slice| {
        let part = staged.part(at..at + slice.len());
        at += slice.len();
        (slice.clone(), part)
    });
    pairs.collect()
}
