//! A caller that does the work of its own operation while it waits for the outcome.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use mooncake_tent::Batch;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    task::yield_now,
};

use super::{
    asked::Asked,
    driver::{Actions, Driver, Finished},
    host::Host,
    transfer::Transfer,
};
use crate::{
    core::Event,
    time::{Clock, Time},
};

/// Transfers that were posted together to one segment, and have not been looked at since.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) batch: Arc<Batch>,
    pub(super) transfers: Vec<Transfer>,
}

/// Where an operation's transfers wait for the caller that waits for them.
#[derive(Debug)]
pub(super) struct Attendant {
    /// `None`: it has gone.
    posted: Mutex<Option<VecDeque<Posted>>>,
    came: Notify,
}

impl Attendant {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            posted: Mutex::new(Some(VecDeque::new())),
            came: Notify::new(),
        })
    }

    /// Gives it these to wait for; back, if it has gone.
    pub(super) fn take_on(&self, posted: Posted) -> Result<(), Posted> {
        match &mut *self.posted.lock() {
            Some(waiting) => waiting.push_back(posted),
            None => return Err(posted),
        }
        self.came.notify_one();
        Ok(())
    }

    /// The first of what it has been given. The others go on by themselves meanwhile.
    fn next(&self) -> Option<Posted> {
        let mut posted = self.posted.lock();
        let waiting = posted.as_mut()?;
        let next = waiting.pop_front()?;
        for other in waiting.iter() {
            // Who looks without waiting leaves the work to the links.
            let _ended = other.batch.is_terminal();
        }
        Some(next)
    }

    /// What is left when the caller goes.
    fn leave(&self) -> VecDeque<Posted> {
        self.posted.lock().take().unwrap_or_default()
    }

    fn has_posted(&self) -> bool {
        self.posted
            .lock()
            .as_ref()
            .is_some_and(|waiting| !waiting.is_empty())
    }

    /// Waits for the outcome, or for transfers to wait for.
    async fn outcome(&self, finished: &mut oneshot::Receiver<Finished>) -> Option<Finished> {
        if let Ok(outcome) = finished.try_recv() {
            return Some(outcome);
        }
        if self.has_posted() {
            // What was just queued for the master is on its way before the caller turns to bytes.
            yield_now().await;
            return None;
        }
        tokio::select! {
            outcome = finished => Some(outcome.expect("every operation finishes")),
            () = self.came.notified() => None,
        }
    }
}

impl Driver {
    /// Runs an operation and does its work: drives the session while the master is asked, and the
    /// links while bytes move.
    pub(super) fn attend(&self, host: &Host, asked: Asked, budget: Duration) -> Finished {
        let attendant = Attendant::new();
        let end = Clock.now() + budget;
        let (mut finished, actions) = self.begin(asked, end, Some(Arc::clone(&attendant)));
        let mut actions = Some(actions);
        let outcome = loop {
            let outcome = match actions.take() {
                // Whoever drives sends what is queued, without being woken for it.
                Some(actions) if actions.need_the_master() => host.wait(async {
                    self.act(actions);
                    attendant.outcome(&mut finished).await
                }),
                Some(actions) => {
                    self.act(actions);
                    finished.try_recv().ok()
                }
                None => host.wait(attendant.outcome(&mut finished)),
            };
            if let Some(outcome) = outcome {
                break outcome;
            }
            actions = attendant.next().map(|posted| self.see_through(posted, end));
        };
        for posted in attendant.leave() {
            self.watch(posted);
        }
        outcome
    }

    /// Waits for transfers to end, and does what the links have to do for that.
    fn see_through(&self, posted: Posted, end: Time) -> Actions {
        if posted.batch.wait(end.since(Clock.now())) {
            return self.ended(posted);
        }
        self.watch(posted);
        self.handled([Event::Tick])
    }
}
