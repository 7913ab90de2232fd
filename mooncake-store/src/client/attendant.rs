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

/// How long the caller does the work of one part of its operation. Then others do it, so that what is
/// slow holds up nothing else of the operation.
const SHARE: Duration = Duration::from_millis(50);
/// The same while there are other parts.
const SHARE_OF_SEVERAL: Duration = Duration::from_millis(2);

/// Transfers that were posted together to one segment, and have not been looked at since.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) batch: Arc<Batch>,
    pub(super) transfers: Vec<Transfer>,
}

/// Where an operation's transfers wait for the caller that waits for them.
#[derive(Debug)]
pub(super) struct Attendant {
    queue: Mutex<Queue>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    posted: VecDeque<Posted>,
    /// The caller is at work on something else.
    busy: bool,
    gone: bool,
}

impl Attendant {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::default(),
            came: Notify::new(),
        })
    }

    /// Gives it these to wait for; back, if it has gone.
    pub(super) fn take_on(&self, posted: Posted) -> Result<(), Posted> {
        let mut queue = self.queue.lock();
        if queue.gone {
            return Err(posted);
        }
        if queue.busy {
            posted.go_on();
        }
        queue.posted.push_back(posted);
        drop(queue);
        self.came.notify_one();
        Ok(())
    }

    /// The first of what it has been given, and how long it may take.
    fn next(&self) -> Option<(Posted, Duration)> {
        let mut queue = self.queue.lock();
        let next = queue.posted.pop_front();
        queue.busy = next.is_some();
        queue.posted.iter().for_each(Posted::go_on);
        let share = match queue.posted.is_empty() {
            true => SHARE,
            false => SHARE_OF_SEVERAL,
        };
        Some((next?, share))
    }

    /// What is left when the caller goes.
    fn leave(&self) -> VecDeque<Posted> {
        let mut queue = self.queue.lock();
        queue.gone = true;
        std::mem::take(&mut queue.posted)
    }

    fn has_posted(&self) -> bool {
        !self.queue.lock().posted.is_empty()
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
            let next = attendant.next();
            actions = next.map(|(posted, share)| self.see_through(posted, share, end));
            attendant.queue.lock().busy = false;
        };
        for posted in attendant.leave() {
            self.watch(posted);
        }
        outcome
    }

    /// Waits for transfers to end, and does what the links have to do for that.
    fn see_through(&self, posted: Posted, share: Duration, end: Time) -> Actions {
        if posted.batch.wait(share.min(end.since(Clock.now()))) {
            return self.ended(posted);
        }
        self.watch(posted);
        self.handled([Event::Tick])
    }
}

impl Posted {
    /// Leaves the work to the links for now.
    fn go_on(&self) {
        // Whoever looks without waiting does so.
        let _ended = self.batch.is_terminal();
    }
}
