//! Answers peers that have bytes go through our stage.

use std::{
    ops::Range,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use mooncake_proto::tent::{StageOutcome, StageRequest, StageResponse, StageStep};
use smallvec::smallvec;

use super::{
    Staging,
    ledger::{Released, Ticket, Use},
    mover::Mover,
    slots::{Slot, SlotPool},
};
use crate::{
    identity::{Generation, Incarnation, RegistrationId},
    memory::{Access, LocalSlice, Refusal},
};

/// Who asks for a slot waits here for so long at most before it is told that all are lent.
const QUEUE: Duration = Duration::from_millis(500);
/// Who gives a slot back that is not clean waits here for so long at most.
const SETTLE: Duration = Duration::from_millis(500);

/// Nothing is done, and why.
struct Refused(StageOutcome, String);

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let outcome = match refusal {
            Refusal::OutOfBounds => StageOutcome::OutOfBounds,
            Refusal::Permission => StageOutcome::Permission,
            Refusal::StaleGeneration => StageOutcome::StaleGeneration,
            Refusal::UnknownRegistration => StageOutcome::UnknownRegistration,
        };
        Self(outcome, String::new())
    }
}

fn refused(why: impl Into<String>) -> Refused {
    Refused(StageOutcome::Refused, why.into())
}

type Answer = Result<StageResponse, Refused>;

impl Staging {
    /// Does one step for a peer. Whoever stops waiting for it does not keep it from its end.
    pub(crate) async fn serve(self: Arc<Self>, asked: StageRequest) -> StageResponse {
        let runtime = self.runtime.clone();
        let served = runtime.spawn(async move { self.step(asked).await }).await;
        // Nobody knows how far it came.
        let answer = served.unwrap_or_else(|_| Ok(StageResponse::default()));
        answer.unwrap_or_else(|Refused(outcome, reason)| StageResponse {
            outcome: outcome.into(),
            reason,
            ..StageResponse::default()
        })
    }

    async fn step(self: &Arc<Self>, asked: StageRequest) -> Answer {
        if asked.target != self.incarnation.get() {
            return Err(Refused(StageOutcome::OtherIncarnation, String::new()));
        }
        let sender = Incarnation::from_u64(asked.sender);
        let (Some(sender), true) = (sender, asked.ticket != 0) else {
            return Err(refused("it has no sender or no ticket"));
        };
        let ticket = (sender, asked.ticket);
        if asked.step() == StageStep::Release {
            return Ok(self.release(ticket, &asked).await);
        }
        if self.is_stopped() {
            return Err(refused("it is being shut down"));
        }
        match asked.step() {
            StageStep::Reserve => self.reserve(ticket, &asked).await,
            StageStep::Fill => self.fill(ticket, &asked).await,
            StageStep::Drain => self.drain(ticket, &asked).await,
            StageStep::Unspecified | StageStep::Release => Err(refused("an unknown step")),
        }
    }

    /// The range of the buffer, with what copies it, as far as the peer may do that (law 4).
    fn admit(
        &self,
        asked: &StageRequest,
        access: Access,
    ) -> Result<(LocalSlice, Arc<dyn Mover>), Refused> {
        let (id, generation) = (
            RegistrationId(asked.registration),
            Generation(asked.generation),
        );
        let whole = self
            .buffers
            .admit_of_any_kind(id, generation, whole(asked)?, access)?;
        // The whole has room for it: it was added up to that.
        let piece = asked.before..asked.before + asked.length;
        if piece.is_empty() {
            return Err(Refusal::OutOfBounds.into());
        }
        let slice = whole.part(piece);
        let location = slice.buffer().location();
        let mover = self.config.mover_at(location);
        let mover = mover.ok_or_else(|| refused(format!("memory at {location} is not staged")))?;
        let mover = Arc::clone(mover);
        if asked.length > self.config.slot_bytes {
            let most = self.config.slot_bytes;
            return Err(refused(format!("a slot has {most} bytes")));
        }
        Ok((slice, mover))
    }

    async fn reserve(self: &Arc<Self>, ticket: Ticket, asked: &StageRequest) -> Answer {
        // Better said before the bytes come than after.
        let admitted = self.admit(asked, Access::Write)?;
        drop(admitted);
        self.lend(ticket, Use::Writes, asked).await
    }

    /// Lends a slot to the holder of a new ticket.
    async fn lend(self: &Arc<Self>, ticket: Ticket, use_: Use, asked: &StageRequest) -> Answer {
        let engine = self.engine().ok_or_else(|| refused("it is gone"))?;
        let wait = QUEUE.min(Duration::from_millis(asked.budget_ms.into()) / 2);
        let taken = tokio::time::timeout(wait, self.lent_for(use_).take(&engine)).await;
        let slot = match taken {
            Ok(slot) => slot.map_err(|error| refused(error.to_string()))?,
            Err(_) => return Err(Refused(StageOutcome::Busy, "all slots are lent".to_owned())),
        };
        let answer = self.describe(&slot);
        let mut ledger = self.ledger.lock();
        // Whoever stops us looks into the books after that.
        let lent = match self.is_stopped() {
            true => Err(slot),
            false => ledger.lend(self.now(), ticket, use_, slot),
        };
        drop(ledger);
        match lent {
            Ok(()) => {
                self.look_after_leases();
                Ok(answer)
            }
            Err(slot) => {
                slot.give_back();
                Err(refused(match self.is_stopped() {
                    true => "it is being shut down",
                    false => "the ticket is in use",
                }))
            }
        }
    }

    async fn fill(self: &Arc<Self>, ticket: Ticket, asked: &StageRequest) -> Answer {
        let (from, mover) = self.admit(asked, Access::Read)?;
        if !self.ledger.lock().knows(ticket) {
            self.lend(ticket, Use::Reads, asked).await?;
        }
        let (slot, lent) = self.open(ticket, Use::Reads)?;
        let answer = self.describe(&slot);
        let copied = match slot.buffer().slice(0..asked.length) {
            Ok(into) => {
                let pairs = smallvec![(from, into)];
                self.copies.run(&mover, pairs, lent).await
            }
            Err(error) => Err(error.to_string()),
        };
        self.put_back(ticket, slot);
        match copied {
            Ok(()) => Ok(answer),
            Err(why) => Err(Refused(StageOutcome::CopyFailed, why)),
        }
    }

    async fn drain(self: &Arc<Self>, ticket: Ticket, asked: &StageRequest) -> Answer {
        let (into, mover) = self.admit(asked, Access::Write)?;
        let (slot, lent) = self.open(ticket, Use::Writes)?;
        let answer = self.describe(&slot);
        let copied = match slot.buffer().slice(0..asked.length) {
            Ok(from) => {
                let pairs = smallvec![(from, into)];
                self.copies.run(&mover, pairs, lent).await
            }
            Err(error) => Err(error.to_string()),
        };
        self.put_back(ticket, slot);
        match copied {
            Ok(()) => Ok(answer),
            Err(why) => Err(Refused(StageOutcome::CopyFailed, why)),
        }
    }

    /// A slot that is lent, and whether it still is, for who copies: a lease may end while a thread is
    /// waited for.
    fn open(
        self: &Arc<Self>,
        ticket: Ticket,
        use_: Use,
    ) -> Result<(Slot, impl Fn() -> bool + Send + use<>), Refused> {
        let begun = self.ledger.lock().begin(self.now(), ticket, use_);
        let (slot, until) =
            begun.ok_or_else(|| Refused(StageOutcome::NoTicket, "it is not lent".to_owned()))?;
        let staging = Arc::clone(self);
        Ok((slot, move || staging.now() < until))
    }

    fn put_back(self: &Arc<Self>, ticket: Ticket, slot: Slot) {
        let retire = self.ledger.lock().copied(self.now(), ticket, slot);
        if let Some(slot) = retire {
            self.retire(ticket, slot);
        }
        if self.is_stopped() {
            // It was not ready when all were recalled.
            self.recall();
        }
    }

    /// Takes a slot away from its holder, in the background.
    fn retire(self: &Arc<Self>, ticket: Ticket, slot: Slot) {
        let staging = Arc::clone(self);
        self.runtime.spawn(async move {
            if slot.retire(staging.engine()).await {
                staging.ledger.lock().retired(ticket);
                staging.changed.notify_waiters();
            }
        });
    }

    async fn release(self: &Arc<Self>, ticket: Ticket, asked: &StageRequest) -> StageResponse {
        let outcome = |outcome: StageOutcome| StageResponse {
            outcome: outcome.into(),
            ..StageResponse::default()
        };
        let released = self.ledger.lock().release(ticket, asked.clean);
        match released {
            Released::Unknown => return outcome(StageOutcome::Done),
            Released::Free(slot) => {
                slot.give_back();
                return outcome(StageOutcome::Done);
            }
            Released::Retire(slot) => self.retire(ticket, slot),
            Released::NotQuiet => {}
        }
        let wait = SETTLE.min(Duration::from_millis(asked.budget_ms.into()) / 2);
        let quiet = tokio::time::timeout(wait, async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if !self.ledger.lock().knows(ticket) {
                    return;
                }
                changed.await;
            }
        });
        match quiet.await {
            Ok(()) => outcome(StageOutcome::Done),
            Err(_) => outcome(StageOutcome::NotQuiet),
        }
    }

    fn describe(&self, slot: &Slot) -> StageResponse {
        let lease = self.config.lease.as_millis();
        StageResponse {
            outcome: StageOutcome::Done.into(),
            reason: String::new(),
            registration: slot.buffer().id().0,
            generation: slot.buffer().generation().0,
            offset: 0,
            length: slot.bytes(),
            lease_ms: u32::try_from(lease).unwrap_or(u32::MAX),
            wanted: slot.pool().is_wanted(),
        }
    }

    fn lent_for(&self, use_: Use) -> &Arc<SlotPool> {
        match use_ {
            Use::Reads => &self.for_reads,
            Use::Writes => &self.for_writes,
        }
    }

    /// Sees to it that slots come back whose holders are silent, for as long as any is lent.
    fn look_after_leases(self: &Arc<Self>) {
        {
            let mut looked_after = self.leases_looked_after.lock();
            if *looked_after {
                return;
            }
            *looked_after = true;
        }
        let staging = Arc::downgrade(self);
        self.runtime.spawn(look_after_leases(staging));
    }

    /// Takes all slots back that peers hold.
    pub(super) fn recall(self: &Arc<Self>) {
        let recalled = self.ledger.lock().recall();
        for (ticket, slot) in recalled {
            self.retire(ticket, slot);
        }
    }
}

/// The range of all of the transfer.
fn whole(asked: &StageRequest) -> Result<Range<u64>, Refused> {
    let start = asked.offset.checked_sub(asked.before);
    let end = asked.offset.checked_add(asked.length);
    let end = end.and_then(|end| end.checked_add(asked.behind));
    let whole = start.zip(end).map(|(start, end)| start..end);
    whole.ok_or_else(|| Refusal::OutOfBounds.into())
}

async fn look_after_leases(staging: Weak<Staging>) {
    loop {
        let pause = {
            let Some(staging) = staging.upgrade() else {
                return;
            };
            let now = staging.now();
            let expired = staging.ledger.lock().expire(now);
            for (ticket, slot) in expired {
                tracing::debug!(peer = %ticket.0, "a stage slot is taken back from a silent peer");
                staging.retire(ticket, slot);
            }
            let mut looked_after = staging.leases_looked_after.lock();
            let Some(end) = staging.ledger.lock().next_end() else {
                *looked_after = false;
                return;
            };
            // One that is being copied or is not quiet may be overdue.
            end.since(now).max(staging.config.lease / 8)
        };
        tokio::time::sleep_until((Instant::now() + pause).into()).await;
    }
}
