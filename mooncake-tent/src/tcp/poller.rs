//! The link's own thread: serves lanes for which nobody waits, and ends those that are overdue.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, OnceLock, Weak},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::{
    buffer::spare_capacity,
    event::{
        EventfdFlags, Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
        eventfd,
    },
};

use super::{
    lane::{Lane, Received, SharedLane},
    peers::{Peers, spawn},
};
use crate::error::Reason;

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Turns of one lane before the others get theirs.
const TURNS: usize = 64;
const STOP: u64 = 0;

/// See the module.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
    lanes: Mutex<FxHashMap<u64, SharedLane>>,
    thread: OnceLock<Mutex<Option<thread::JoinHandle<()>>>>,
}

impl Poller {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, EventData::new_u64(STOP), EventFlags::IN)?;
        Ok(Arc::new(Self {
            epoll,
            wake,
            lanes: Mutex::default(),
            thread: OnceLock::new(),
        }))
    }

    pub(super) fn start(self: &Arc<Self>, peers: &Arc<Peers>) {
        let (me, peers) = (Arc::clone(self), Arc::downgrade(peers));
        let thread = spawn("tcp-link", move || me.run(&peers));
        if self.thread.set(Mutex::new(Some(thread))).is_err() {
            unreachable!("the poller starts once");
        }
    }

    pub(super) fn stop(&self) {
        // Any number but 0 wakes, whatever its byte order.
        rustix::io::write(&self.wake, &[1; 8]).expect("an eventfd takes a number");
        let thread = self.thread.get().and_then(|thread| thread.lock().take());
        if let Some(thread) = thread {
            thread.join().expect("the link's thread does not panic");
        }
    }

    /// Takes a connected lane in, without looking at it yet.
    pub(super) fn add(&self, lane: &SharedLane) {
        self.lanes.lock().insert(lane.id(), Arc::clone(lane));
        let data = EventData::new_u64(lane.id());
        let socket = lane.socket().expect("it is connected");
        if let Err(error) = epoll::add(&self.epoll, socket, data, EventFlags::ONESHOT) {
            lane.cut(Reason::Broken(io::Error::from(error).to_string().into()));
        }
    }

    /// Serves the lane as soon as something can be received or, if frames wait, sent.
    pub(super) fn watch(&self, lane: &Lane) {
        let Some(socket) = lane.socket() else {
            // It is watched once it is connected.
            return;
        };
        let mut events = EventFlags::IN | EventFlags::ONESHOT;
        if lane.flush() {
            events |= EventFlags::OUT;
        }
        let data = EventData::new_u64(lane.id());
        // A lane that is not known any more has been retired.
        let _retired = epoll::modify(&self.epoll, socket, data, events);
    }

    pub(super) fn remove(&self, lane: &Lane) {
        self.lanes.lock().remove(&lane.id());
        if let Some(socket) = lane.socket() {
            // It may never have been added.
            let _unknown = epoll::delete(&self.epoll, socket);
        }
    }

    fn run(&self, peers: &Weak<Peers>) {
        let mut events: Vec<Event> = Vec::with_capacity(64);
        let mut looked = Instant::now();
        loop {
            let idle = self.lanes.lock().is_empty();
            let tick = Timespec {
                tv_sec: 0,
                tv_nsec: TICK.as_nanos() as _,
            };
            let timeout = (!idle).then_some(&tick);
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the TCP link's thread cannot wait for events");
                    thread::sleep(TICK);
                }
            }
            let Some(peers) = peers.upgrade() else {
                return;
            };
            for event in &events {
                let id = event.data.u64();
                if id == STOP {
                    return;
                }
                let lane = self.lanes.lock().get(&id).cloned();
                if let Some(lane) = lane {
                    self.serve(&peers, &lane);
                }
            }
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                self.end_overdue(&peers, looked);
            }
        }
    }

    fn serve(&self, peers: &Peers, lane: &SharedLane) {
        let Some(mut receiver) = lane.try_receiver() else {
            // Who receives now hands the lane over before going.
            return;
        };
        for _ in 0..TURNS {
            lane.flush();
            match lane.receive(&mut receiver) {
                Ok(Received::Nothing) => break,
                Ok(Received::Answers | Received::Bytes) => {}
                Err(reason) => return peers.retire(lane, &mut receiver, &reason),
            }
        }
        drop(receiver);
        if lane.is_busy() {
            self.watch(lane);
        }
    }

    fn end_overdue(&self, peers: &Peers, now: Instant) {
        let overdue: Vec<_> = self
            .lanes
            .lock()
            .values()
            .filter(|lane| lane.is_overdue(now))
            .cloned()
            .collect();
        for lane in overdue {
            let reason = Reason::Broken("a request's deadline passed".into());
            lane.cut(reason.clone());
            // Whoever receives now sees the end of the connection and retires it.
            if let Some(mut receiver) = lane.try_receiver() {
                peers.retire(&lane, &mut receiver, &reason);
            }
        }
    }
}
