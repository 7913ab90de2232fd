//! Between the state machine and its log: nobody is answered on the strength of what could be
//! forgotten.

use std::sync::Arc;

use super::Shared;
use crate::state::{Answer, Applied, Command, Effect, Failure, Operation};

/// What must be durable before an answer is given: all up to this number; 0: nothing.
pub(super) type After = u64;

impl Shared {
    /// Logs what a step told. Called while the state is locked, so that the log has the order of the
    /// steps.
    pub(super) fn remember(&self, command: &Command, applied: &mut Applied) -> After {
        let Some(log) = &self.log else {
            return 0;
        };
        let told = |effect: &Effect| matches!(effect, Effect::Log(_));
        if applied.effects.iter().any(told) {
            let records = applied.effects.iter().filter_map(|effect| match effect {
                Effect::Log(record) => Some(record),
                _ => None,
            });
            let after = log.append(records);
            applied.effects.retain(|effect| !told(effect));
            return after;
        }
        match command {
            // That an object is not there may be news that is not durable yet.
            Command::Perform {
                operation: Operation::Remove(_) | Operation::RemoveAll,
                ..
            }
            | Command::Storage { .. } => log.tail(),
            _ if applied.again => log.tail(),
            _ => 0,
        }
    }

    /// What was told and is not durable yet.
    pub(super) fn unlogged(&self) -> After {
        self.log.as_ref().map_or(0, |log| log.tail())
    }

    /// The answer, once what it says will be remembered.
    pub(super) async fn when_durable(self: &Arc<Self>, after: After, answer: Answer) -> Answer {
        let Some(log) = self.log.as_ref().filter(|_| after > 0) else {
            return answer;
        };
        if log.durable(after).await {
            return answer;
        }
        self.apply(&Command::LogFailed);
        Answer::Refused(Failure::LogFailed)
    }

    /// The same without waiting for it.
    pub(super) fn when_durable_then(
        self: &Arc<Self>,
        after: After,
        answer: Answer,
        then: impl FnOnce(&Arc<Self>, Answer) + Send + 'static,
    ) {
        match &self.log {
            Some(log) if after > 0 && !log.is_durable(after) => {
                let shared = Arc::clone(self);
                log.runtime.spawn(async move {
                    let answer = shared.when_durable(after, answer).await;
                    then(&shared, answer);
                });
            }
            _ => then(self, answer),
        }
    }

    /// The master ends: nothing more will be remembered.
    pub(crate) fn close_log(&self) {
        if let Some(log) = &self.log {
            log.close();
        }
    }

    /// Looks after the log: after each tick, which is soon enough for both.
    pub(super) fn tend_log(self: &Arc<Self>) {
        let Some(log) = &self.log else {
            return;
        };
        if log.has_failed() {
            self.apply(&Command::LogFailed);
        } else if log.wants_checkpoint() {
            let shared = Arc::clone(self);
            log.runtime.spawn_blocking(move || {
                let Some(log) = &shared.log else {
                    return;
                };
                let written = log.checkpoint(|from, most, into| {
                    let state = shared.state.lock();
                    state.survey(from, most, into)
                });
                if let Err(error) = written {
                    tracing::warn!(%error, "no checkpoint was written: the log goes on");
                }
            });
        }
    }
}
