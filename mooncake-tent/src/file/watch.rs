//! The link's own thread: it serves rings for which nobody waits.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{carrier::Carrier, uring::RingCarrier};

/// How often a ring that somebody drives is looked at: whether that one is still there.
const LOOK: Duration = Duration::from_millis(10);
/// How often a ring is looked at for which nobody waits, whatever happens.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// Which rings want to be served, and the thread that does it.
#[derive(Debug)]
pub(super) struct Watch {
    rings: Vec<Watched>,
    wake: OwnedFd,
    stopped: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Watched {
    wanted: AtomicBool,
    /// The thread sleeps until something lands there.
    listened: AtomicBool,
}

impl Watch {
    pub(super) fn new(rings: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            rings: (0..rings).map(|_| Watched::default()).collect(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stopped: AtomicBool::new(false),
            thread: Mutex::default(),
        }))
    }

    pub(super) fn start(self: &Arc<Self>, rings: Vec<Arc<RingCarrier>>) -> io::Result<()> {
        let me = Arc::clone(self);
        let builder = thread::Builder::new().name("file-link".to_owned());
        let thread = builder.spawn(move || me.run(&rings))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Nobody waits for what is on this ring.
    pub(super) fn watch(&self, number: usize) {
        let ring = &self.rings[number];
        ring.wanted.store(true, Ordering::SeqCst);
        if !ring.listened.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.wake();
        let thread = self.thread.lock().take();
        // A waker that it called may have dropped the last owner of the engine.
        let own = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        if let Some(thread) = thread.filter(|thread| !own(thread))
            && thread.join().is_err()
        {
            tracing::error!("the thread of the file link has panicked");
        }
    }

    fn wake(&self) {
        // A counter that takes no more has woken already.
        let _full = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
    }

    fn run(&self, rings: &[Arc<RingCarrier>]) {
        while !self.stopped.load(Ordering::SeqCst) {
            self.sleep(rings);
            for (ring, watched) in rings.iter().zip(&self.rings) {
                watched.listened.store(false, Ordering::SeqCst);
                if watched.wanted.load(Ordering::SeqCst) && !ring.is_driven() {
                    ring.serve();
                }
            }
        }
    }

    /// Until something lands on a ring that nobody drives, a deadline passes, or somebody wakes us.
    fn sleep(&self, rings: &[Arc<RingCarrier>]) {
        let now = Instant::now();
        let mut most: Option<Duration> = None;
        let mut sooner = |wait: Duration| most = Some(most.map_or(wait, |most| most.min(wait)));
        let mut places = vec![PollFd::new(&self.wake, PollFlags::IN)];
        for (ring, watched) in rings.iter().zip(&self.rings) {
            if !watched.is_wanted(ring) {
                continue;
            }
            if ring.is_driven() {
                sooner(LOOK);
                continue;
            }
            watched.listened.store(true, Ordering::SeqCst);
            places.push(PollFd::from_borrowed_fd(ring.ring().as_fd(), PollFlags::IN));
            sooner(LONGEST_WAIT);
            if let Some(deadline) = ring.next_deadline() {
                sooner(deadline.saturating_duration_since(now));
            }
        }
        let most = most.map(|most| Timespec::try_from(most).expect("it is short"));
        // Whether it was woken, interrupted or timed out: we look.
        let _woken = poll(&mut places, most.as_ref());
        let mut count = [0; 8];
        let _none = rustix::io::read(&self.wake, &mut count);
    }
}

impl Watched {
    /// A ring without tasks is not wanted any more.
    fn is_wanted(&self, ring: &RingCarrier) -> bool {
        if !self.wanted.load(Ordering::SeqCst) {
            return false;
        }
        if ring.is_busy(None) {
            return true;
        }
        self.wanted.store(false, Ordering::SeqCst);
        // Who handed something over before that store has put it on the ring even earlier.
        let busy = ring.is_busy(None);
        if busy {
            self.wanted.store(true, Ordering::SeqCst);
        }
        busy
    }
}
