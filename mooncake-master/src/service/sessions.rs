//! The streams that are open now, and how others' deeds reach them.

use std::sync::Arc;

use mooncake_proto::master::{Answer, Event, Invalidate, InvalidatedObject, Nudge, Reclaim, event};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};

use super::answer::incarnation;
use crate::state::{ClientId, Effect};

/// Events that wait for one client to read; more are dropped and counted, and the client learns by
/// the end of its leases.
const QUEUED_EVENTS: usize = 1024;
/// Answers that wait likewise: as many as a client may ask for at once, as they all come when one
/// write of the log is durable.
const QUEUED_ANSWERS: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    streams: FxHashMap<ClientId, Entry>,
    /// Of the latest stream.
    number: u64,
    stopping: bool,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    tenant: Arc<str>,
    events: mpsc::Sender<Event>,
    fence: oneshot::Sender<&'static str>,
}

/// A stream's own end.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) client: ClientId,
    number: u64,
    pub(crate) events: mpsc::Receiver<Event>,
    /// Says why the stream must end.
    pub(crate) fence: oneshot::Receiver<&'static str>,
}

impl Entry {
    /// Tells what may go untold; `false`: it does.
    fn tell(&self, event: event::Event) -> bool {
        let waiting = self.events.max_capacity() - self.events.capacity();
        let event = Event { event: Some(event) };
        waiting < QUEUED_EVENTS && self.events.try_send(event).is_ok()
    }
}

impl Sessions {
    /// Makes this the client's one stream; an older one is fenced. `None`: the master is stopping.
    pub(crate) fn register(&self, client: ClientId, tenant: &str) -> Option<Registration> {
        let (events, events_out) = mpsc::channel(QUEUED_EVENTS + QUEUED_ANSWERS);
        let (fence, fence_out) = oneshot::channel();
        let mut open = self.open.lock();
        if open.stopping {
            return None;
        }
        open.number += 1;
        let number = open.number;
        let entry = Entry {
            number,
            tenant: tenant.into(),
            events,
            fence,
        };
        if let Some(older) = open.streams.insert(client, entry) {
            // It may have ended by itself.
            let _ = older.fence.send("a newer stream of this client took over");
        }
        Some(Registration {
            client,
            number,
            events: events_out,
            fence: fence_out,
        })
    }

    /// No newer stream of the client has taken over.
    pub(crate) fn is_current(&self, registration: &Registration) -> bool {
        let open = self.open.lock();
        let current = open.streams.get(&registration.client);
        current.is_some_and(|entry| entry.number == registration.number)
    }

    /// The stream has ended; `true`: no other has taken its place.
    pub(crate) fn leave(&self, registration: &Registration) -> bool {
        let mut open = self.open.lock();
        let current = open.streams.get(&registration.client);
        let last = current.is_some_and(|entry| entry.number == registration.number);
        if last {
            open.streams.remove(&registration.client);
        }
        last
    }

    /// Ends all streams, and lets none begin.
    pub(crate) fn stop(&self) {
        let mut open = self.open.lock();
        open.stopping = true;
        for (_, entry) in open.streams.drain() {
            // It may have ended by itself.
            let _ = entry.fence.send("the master is stopping");
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.open.lock().streams.len()
    }

    /// Gives a client an answer that it waits for. One that does not read is sent away: it comes
    /// back, asks again and is answered then.
    pub(crate) fn answer(&self, client: ClientId, answer: Answer) {
        let mut open = self.open.lock();
        let Some(entry) = open.streams.get(&client) else {
            return;
        };
        let event = Event {
            event: Some(event::Event::Answer(answer)),
        };
        if entry.events.try_send(event).is_err()
            && let Some(entry) = open.streams.remove(&client)
        {
            // It may have ended by itself.
            let _ = entry.fence.send("the client does not read its answers");
        }
    }

    /// Asks a client to return the grants that it does not use. If it cannot be told now it is asked
    /// again, when space is still short.
    pub(crate) fn reclaim(&self, client: ClientId) {
        if let Some(entry) = self.open.lock().streams.get(&client) {
            let _ = entry.tell(event::Event::Reclaim(Reclaim {}));
        }
    }

    /// Tells a client that work waits for it. If it cannot be told now it finds out by its next report.
    pub(crate) fn nudge(&self, client: ClientId) {
        if let Some(entry) = self.open.lock().streams.get(&client) {
            let _ = entry.tell(event::Event::Nudge(Nudge {}));
        }
    }

    /// Tells those who may be reading what is gone; how many could not be told.
    pub(crate) fn invalidate(&self, effects: &[Effect]) -> u64 {
        let mut gone: Vec<(&Arc<str>, InvalidatedObject)> = Vec::new();
        for effect in effects {
            if let Effect::Invalidate {
                tenant,
                key,
                incarnation: of,
            } = effect
            {
                let object = InvalidatedObject {
                    key: key.0.clone(),
                    incarnation: Some(incarnation(*of)),
                };
                gone.push((tenant, object));
            }
        }
        if gone.is_empty() {
            return 0;
        }
        let mut untold = 0;
        for entry in self.open.lock().streams.values() {
            let theirs = gone.iter().filter(|(tenant, _)| **tenant == entry.tenant);
            let objects: Vec<_> = theirs.map(|(_, object)| object.clone()).collect();
            if !objects.is_empty() {
                let told = entry.tell(event::Event::Invalidate(Invalidate { objects }));
                untold += u64::from(!told);
            }
        }
        untold
    }
}
