//! A thread that takes the answers that nobody waits for, ends what is overdue, and gives back what
//! is not lent any more.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use super::{
    Medium,
    link::Inner,
    session::{Registration, Session},
};

/// How often deadlines are looked at while something is under way.
const TICK: Duration = Duration::from_millis(20);
/// How often it is looked what is not lent any more.
const SWEEP: Duration = Duration::from_secs(1);

/// Bytes of a mapping that are touched at a time.
const WARMED: u64 = 16 << 20;

/// What the thread looks after.
#[derive(Debug)]
pub(super) struct Keeper<M: Medium> {
    watched: Mutex<Watched<M>>,
    /// Something is lent, by us or to us.
    sweeps: AtomicBool,
    more: Condvar,
}

#[derive(Debug)]
struct Watched<M: Medium> {
    sessions: Vec<Arc<Session<M>>>,
    /// What was lent to us lately, and how far we have touched it.
    cold: Vec<(Arc<Registration<M>>, u64)>,
    stopped: bool,
    running: bool,
}

impl<M: Medium> Keeper<M> {
    pub(super) fn new() -> Self {
        Self {
            watched: Mutex::new(Watched {
                sessions: Vec::new(),
                cold: Vec::new(),
                stopped: false,
                running: false,
            }),
            sweeps: AtomicBool::new(false),
            more: Condvar::new(),
        }
    }

    /// Starts the thread, which lives no longer than `link`.
    pub(super) fn start(self: &Arc<Self>, link: Weak<Inner<M>>) -> std::io::Result<()> {
        self.watched.lock().running = true;
        let keeper = Arc::clone(self);
        let started = thread::Builder::new()
            .name(format!("{}-link", M::NAME))
            .spawn(move || {
                keeper.run(&link);
                keeper.watched.lock().running = false;
                keeper.more.notify_all();
            });
        if let Err(error) = started {
            self.watched.lock().running = false;
            return Err(error);
        }
        Ok(())
    }

    /// Nobody waits for the answers of this one.
    pub(super) fn watch(&self, session: &Arc<Session<M>>) {
        let mut watched = self.watched.lock();
        let known = watched.sessions.iter();
        if !known.into_iter().any(|known| Arc::ptr_eq(known, session)) {
            watched.sessions.push(Arc::clone(session));
            self.more.notify_all();
        }
    }

    /// Something is lent, by us or to us, which will end.
    pub(super) fn sweep(&self) {
        if !self.sweeps.swap(true, Ordering::AcqRel) {
            // Whoever waits has looked at it under the lock.
            let _watched = self.watched.lock();
            self.more.notify_all();
        }
    }

    /// This was just lent to us.
    pub(super) fn warm(&self, lent: Arc<Registration<M>>) {
        self.watched.lock().cold.push((lent, 0));
        self.more.notify_all();
    }

    /// Ends the thread; `false`: not in time.
    pub(super) fn stop(&self, end: Instant) -> bool {
        let mut watched = self.watched.lock();
        watched.stopped = true;
        self.more.notify_all();
        while watched.running {
            if self.more.wait_until(&mut watched, end).timed_out() {
                return false;
            }
        }
        true
    }

    fn run(&self, link: &Weak<Inner<M>>) {
        let mut swept = Instant::now();
        loop {
            let sessions: SmallVec<[_; 4]> = {
                let mut watched = self.watched.lock();
                loop {
                    if watched.stopped {
                        return;
                    }
                    if !watched.sessions.is_empty() || !watched.cold.is_empty() {
                        break;
                    }
                    if self.sweeps.load(Ordering::Acquire) {
                        let due = swept + SWEEP;
                        if self.more.wait_until(&mut watched, due).timed_out() {
                            break;
                        }
                    } else {
                        self.more.wait(&mut watched);
                    }
                }
                watched.sessions.iter().cloned().collect()
            };
            if !sessions.is_empty() {
                self.serve(&sessions);
            }
            drop(sessions);
            self.warm_some();
            if swept.elapsed() >= SWEEP {
                swept = Instant::now();
                let Some(link) = link.upgrade() else { return };
                self.sweeps.store(false, Ordering::Release);
                if link.sweep() {
                    self.sweep();
                }
            }
        }
    }

    /// Touches a part of what is cold.
    fn warm_some(&self) {
        let Some((lent, from)) = self.watched.lock().cold.pop() else {
            return;
        };
        if lent.warm(from, WARMED) {
            self.watched.lock().cold.push((lent, from + WARMED));
        }
    }

    /// Sleeps until one of them has something to say, and takes it.
    fn serve(&self, sessions: &[Arc<Session<M>>]) {
        let sockets: SmallVec<[_; 4]> = sessions
            .iter()
            .filter_map(|session| session.writes.under_way())
            .collect();
        if !sockets.is_empty() {
            let fds = sockets
                .iter()
                .map(|socket| PollFd::new(socket, PollFlags::IN));
            let mut fds: SmallVec<[_; 4]> = fds.collect();
            let cold = !self.watched.lock().cold.is_empty();
            let tick = if cold { Duration::ZERO } else { TICK };
            let tick = Timespec::try_from(tick).expect("it is short");
            let _woken = poll(&mut fds, Some(&tick));
        }
        for session in sessions {
            if !session.writes.look() {
                // Whoever drives takes them.
                thread::sleep(Duration::from_micros(100));
            }
            session.writes.flush();
        }
        let mut watched = self.watched.lock();
        watched.sessions.retain(|session| {
            let ending = session.writes.settle();
            ending || !session.writes.is_empty()
        });
        let only_ending = sockets.is_empty() && !watched.sessions.is_empty();
        drop(watched);
        if only_ending {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
