//! The link's own threads: they serve lanes for which nobody waits, or too much for whoever does, and
//! end those that are overdue.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
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
    lane::{Lane, Received, SharedLane, aged, overdue, stuck},
    peers::{Peers, spawn},
};
use crate::error::Reason;

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Turns of one lane before the others get theirs.
const TURNS: usize = 64;
const WAKE: u64 = 0;
/// What is watched of an idle lane: that the peer goes away.
const AT_REST: EventFlags = EventFlags::RDHUP.union(EventFlags::ONESHOT);

/// See the module.
#[derive(Debug)]
pub(super) struct Poller {
    /// Lanes are dealt out among them by their ids.
    workers: Vec<Worker>,
    stopped: AtomicBool,
    /// All that have not been retired, connected or not.
    lanes: Mutex<FxHashMap<u64, SharedLane>>,
    /// There was no thread to fence what is dead.
    fences_wait: AtomicBool,
}

/// A thread and what it waits for.
#[derive(Debug)]
struct Worker {
    epoll: OwnedFd,
    wake: OwnedFd,
    thread: OnceLock<Mutex<Option<thread::JoinHandle<()>>>>,
}

impl Worker {
    fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            epoll,
            wake,
            thread: OnceLock::new(),
        })
    }

    fn wake(&self) {
        // A counter that takes no more has woken already.
        let _full = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
    }

    fn join(&self) {
        let thread = self.thread.get().and_then(|thread| thread.lock().take());
        // A waker that it called may have dropped the last owner of the engine.
        let own = |thread: &thread::JoinHandle<()>| thread.thread().id() == thread::current().id();
        if let Some(thread) = thread.filter(|thread| !own(thread))
            && thread.join().is_err()
        {
            tracing::error!("a thread of the TCP link has panicked");
        }
    }
}

impl Poller {
    pub(super) fn new(threads: usize) -> io::Result<Arc<Self>> {
        let workers = (0..threads.max(1)).map(|_| Worker::new());
        Ok(Arc::new(Self {
            workers: workers.collect::<io::Result<_>>()?,
            stopped: AtomicBool::new(false),
            fences_wait: AtomicBool::new(false),
            lanes: Mutex::default(),
        }))
    }

    pub(super) fn start(self: &Arc<Self>, peers: &Arc<Peers>) -> io::Result<()> {
        for (number, worker) in self.workers.iter().enumerate() {
            let (me, peers) = (Arc::clone(self), Arc::downgrade(peers));
            let thread = spawn("tcp-link", move || me.run(number, &peers))?;
            if worker.thread.set(Mutex::new(Some(thread))).is_err() {
                unreachable!("the poller starts once");
            }
        }
        Ok(())
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.workers.iter().for_each(Worker::wake);
        self.workers.iter().for_each(Worker::join);
    }

    fn worker(&self, lane: &Lane) -> &Worker {
        &self.workers[(lane.id() % self.workers.len() as u64) as usize]
    }

    /// All lanes that have not been retired.
    pub(super) fn lanes(&self) -> Vec<SharedLane> {
        self.lanes.lock().values().cloned().collect()
    }

    /// Looks after the deadlines of a lane that is yet to be connected.
    pub(super) fn adopt(&self, lane: &SharedLane) {
        let mut lanes = self.lanes.lock();
        lanes.insert(lane.id(), Arc::clone(lane));
        if lanes.len() == 1 {
            // The thread sleeps without end while there are no lanes.
            self.workers[0].wake();
        }
    }

    /// Takes a connected lane in, without looking at it yet.
    pub(super) fn add(&self, lane: &SharedLane) {
        let data = EventData::new_u64(lane.id());
        let socket = lane.socket().expect("it is connected");
        if let Err(error) = epoll::add(&self.worker(lane).epoll, socket, data, AT_REST) {
            lane.cut(Reason::Broken(io::Error::from(error).to_string().into()));
        }
    }

    /// Serves the lane as soon as something can be received or, if frames wait, sent.
    pub(super) fn watch(&self, lane: &Lane) {
        self.arm(lane, EventFlags::IN);
        // After that, so that another's request for more is not overwritten by what we saw before.
        if lane.try_flush() != Some(false) {
            self.take_over(lane);
        }
    }

    /// Leaves the lane to its thread altogether, frames that wait to be sent as well.
    pub(super) fn take_over(&self, lane: &Lane) {
        self.arm(lane, EventFlags::IN | EventFlags::OUT);
    }

    fn arm(&self, lane: &Lane, events: EventFlags) {
        let data = EventData::new_u64(lane.id());
        if let Some(socket) = lane.socket() {
            // A lane that is not known any more has been retired.
            let _retired = epoll::modify(&self.worker(lane).epoll, socket, data, events | AT_REST);
        }
    }

    /// The next look after all lanes tries again to fence what is dead.
    pub(super) fn fence_later(&self) {
        self.fences_wait.store(true, Ordering::Release);
        self.workers[0].wake();
    }

    pub(super) fn remove(&self, lane: &Lane) {
        self.lanes.lock().remove(&lane.id());
        if let Some(socket) = lane.socket() {
            // It may never have been added.
            let _unknown = epoll::delete(&self.worker(lane).epoll, socket);
        }
    }

    fn run(&self, number: usize, peers: &Weak<Peers>) {
        let worker = &self.workers[number];
        let mut events: Vec<Event> = Vec::with_capacity(64);
        let mut looked = Instant::now();
        loop {
            // The first one looks after all of them.
            let nothing =
                || self.lanes.lock().is_empty() && !self.fences_wait.load(Ordering::Acquire);
            let idle = number > 0 || nothing();
            let tick = Timespec {
                tv_sec: 0,
                tv_nsec: TICK.as_nanos() as _,
            };
            let timeout = (!idle).then_some(&tick);
            events.clear();
            match epoll::wait(&worker.epoll, spare_capacity(&mut events), timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "a thread of the TCP link cannot wait for events");
                    thread::sleep(TICK);
                }
            }
            let Some(peers) = peers.upgrade() else {
                return;
            };
            if self.stopped.load(Ordering::Acquire) {
                return;
            }
            for event in &events {
                let id = event.data.u64();
                if id == WAKE {
                    let _empty = rustix::io::read(&worker.wake, &mut [0; 8]);
                    continue;
                }
                let lane = self.lanes.lock().get(&id).cloned();
                if let Some(lane) = lane {
                    self.serve(&peers, &lane);
                }
            }
            if number == 0 && looked.elapsed() >= TICK {
                looked = Instant::now();
                self.look_after(&peers, looked);
            }
        }
    }

    fn serve(&self, peers: &Peers, lane: &SharedLane) {
        let Some(mut receiver) = lane.try_receiver() else {
            // Who receives now hands the lane over before going, but may sleep until then.
            if lane.flush() {
                self.arm(lane, EventFlags::OUT);
                if lane.try_receiver().is_some() {
                    // It has gone, and its request to watch was perhaps just overwritten.
                    self.watch(lane);
                }
            }
            return;
        };
        for _ in 0..TURNS {
            lane.flush();
            match lane.receive(&mut receiver) {
                Ok(Received::Nothing) => break,
                Ok(Received::Answers) => peers.even_out(lane),
                Ok(Received::Bytes) => {}
                Err(reason) => return peers.retire(lane, &mut receiver, &reason),
            }
        }
        drop(receiver);
        match lane.is_busy() {
            true => self.watch(lane),
            false => self.rest(lane),
        }
    }

    /// Looks only for the end of the connection, so that no request is lost on one that has ended.
    fn rest(&self, lane: &Lane) {
        self.arm(lane, EventFlags::empty());
        if lane.is_busy() {
            // Somebody's request to watch was perhaps just overwritten.
            self.watch(lane);
        }
    }

    /// Ends what is overdue, and takes up what its submitter neither waits for nor looks at.
    fn look_after(&self, peers: &Peers, now: Instant) {
        if self.fences_wait.swap(false, Ordering::AcqRel) {
            peers.fence_at_last();
        }
        let life = peers.config().lane_life;
        for lane in self.lanes() {
            let mut why = lane.end_overdue(now).then(overdue);
            if why.is_none() && lane.is_stuck() {
                why = Some(stuck());
            }
            let is_old = lane.grow_old(life);
            if let Some(mut receiver) = lane.try_receiver() {
                lane.drop_cancelled(&mut receiver);
                if receiver.is_overdue(|| now) {
                    why = Some(overdue());
                } else if why.is_none() && is_old && lane.is_at_rest(&receiver) {
                    why = Some(aged());
                }
                if let Some(why) = why {
                    peers.retire(&lane, &mut receiver, &why);
                    continue;
                }
                lane.give_back(&mut receiver, now);
            } else if let Some(why) = why {
                // Whoever receives now sees the end of the connection and retires it.
                lane.cut(why);
                continue;
            }
            if lane.is_busy() {
                self.watch(&lane);
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use std::{net::TcpStream, os::unix::net::UnixStream};

    use super::{super::wire::LaneClock, *};
    use crate::{identity::PeerId, tcp::TcpConfig, transport::TaskSlab};

    impl Poller {
        /// What its lanes are ready for, of what is watched.
        fn ready(&self) -> Vec<EventFlags> {
            let mut events = Vec::with_capacity(8);
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            epoll::wait(
                &self.workers[0].epoll,
                spare_capacity(&mut events),
                Some(&now),
            )
            .unwrap();
            events.iter().map(|event| event.flags).collect()
        }
    }

    #[test]
    fn a_lane_whose_outbox_somebody_has_is_watched_for_room_to_send_too() {
        let poller = Poller::new(1).unwrap();
        let (peer, tasks) = (PeerId::from_u64(1).unwrap(), Arc::new(TaskSlab::new()));
        let lane = Lane::new(1, peer, tasks, &TcpConfig::default(), Arc::default());
        let lane = Arc::new(lane);
        let (ours, _theirs) = UnixStream::pair().unwrap();
        lane.connected(TcpStream::from(OwnedFd::from(ours)), LaneClock::start());
        poller.add(&lane);
        poller.watch(&lane);
        assert_eq!(poller.ready(), []);
        // Whoever has it may go without a look at what came meanwhile.
        let held = lane.hold_outbox();
        poller.watch(&lane);
        drop(held);
        assert_eq!(poller.ready(), [EventFlags::OUT]);
    }
}
