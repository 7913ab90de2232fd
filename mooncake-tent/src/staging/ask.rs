//! Asks a peer to do something at its end of a transfer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mooncake_proto::tent::{StageOutcome, StageRequest, StageResponse, StageStep};

use super::Staging;
use crate::{
    control::Unanswered,
    error::{Reason, Stage, TransferError},
    identity::PeerId,
    platform::after,
    segment::Segment,
};

/// Giving a slot back may take so long; then the peer takes it by itself.
const RELEASE: Duration = Duration::from_secs(1);
const TRIES: usize = 3;

/// What came of asking.
#[derive(Debug)]
pub(super) enum Said {
    /// It is done.
    Done(StageResponse),
    /// Nothing was done: all slots are lent.
    Busy,
    /// Nothing was done: it does not know the ticket.
    NoTicket,
    /// Bytes may still move.
    NotQuiet,
    /// Nothing was done, and why.
    Not(Reason),
    /// Nobody knows what was done; whatever it is, it is over.
    Failed(Reason),
    /// Nobody knows what was done, or will be.
    Lost(String),
}

impl Staging {
    /// One question, whose answer is waited for until `until`.
    pub(super) async fn ask(
        &self,
        segment: &Segment,
        mut request: StageRequest,
        until: Instant,
    ) -> Said {
        request.sender = self.incarnation.get();
        let left = until.saturating_duration_since(Instant::now());
        request.budget_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let Some(engine) = self.engine() else {
            return Said::Not(Reason::Stopped);
        };
        let asked = engine.ask_to_stage(segment.clone(), request);
        // It lives as long as somebody wants it, and not as long as a peer is silent.
        drop(engine);
        match tokio::time::timeout_at(until.into(), asked).await {
            Ok(Ok(answer)) => said(answer),
            Ok(Err(Unanswered::NotSent(why))) => Said::Not(Reason::Unreachable(why.into())),
            Ok(Err(Unanswered::Never(why))) => Said::Not(Reason::Protocol(why.into())),
            Ok(Err(Unanswered::Lost(why))) => Said::Lost(why),
            Err(_) => Said::Lost("no answer in time".to_owned()),
        }
    }

    /// Gives a slot of a peer back, in the background.
    pub(super) fn give_back(
        self: &Arc<Self>,
        segment: &Segment,
        peer: PeerId,
        ticket: u64,
        clean: bool,
    ) {
        let (staging, segment) = (Arc::clone(self), segment.clone());
        self.runtime.spawn(async move {
            for _ in 0..TRIES {
                let request = release(peer, ticket, clean);
                let said = staging.ask(&segment, request, after(RELEASE)).await;
                if !matches!(said, Said::Lost(_)) {
                    return;
                }
            }
        });
    }
}

pub(super) fn release(peer: PeerId, ticket: u64, clean: bool) -> StageRequest {
    StageRequest {
        target: peer.get(),
        ticket,
        step: StageStep::Release.into(),
        clean,
        ..StageRequest::default()
    }
}

fn said(answer: StageResponse) -> Said {
    let why = |what: &str| -> Arc<str> { format!("{what}: {}", answer.reason).into() };
    match answer.outcome() {
        StageOutcome::Done => Said::Done(answer),
        StageOutcome::Busy => Said::Busy,
        StageOutcome::NoTicket => Said::NoTicket,
        StageOutcome::NotQuiet => Said::NotQuiet,
        StageOutcome::OtherIncarnation => Said::Not(Reason::OtherIncarnation),
        StageOutcome::OutOfBounds => Said::Not(Reason::OutOfBounds),
        StageOutcome::Permission => Said::Not(Reason::Permission),
        StageOutcome::StaleGeneration => Said::Not(Reason::StaleGeneration),
        StageOutcome::UnknownRegistration => Said::Not(Reason::UnknownRegistration),
        StageOutcome::Refused => Said::Not(Reason::Protocol(why("it does not stage that"))),
        StageOutcome::CopyFailed => Said::Failed(Reason::Mover(why("at the peer"))),
        StageOutcome::Unspecified => Said::Lost("an answer that means nothing".to_owned()),
    }
}

/// The failure of a piece. What was done all the same, the books of the transfer know.
pub(super) fn failure(reason: Reason, stage: Stage, peer: PeerId) -> TransferError {
    TransferError::unstarted(reason, stage, Some(peer))
}
