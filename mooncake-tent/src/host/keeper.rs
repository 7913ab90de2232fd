//! A thread that takes the answers that nobody waits for, ends what is overdue, and gives back what
//! is not lent any more.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use smallvec::SmallVec;

use super::{Medium, link::Inner, session::Session};

/// How often deadlines are looked at while something is under way.
const TICK: Duration = Duration::from_millis(20);
/// How often it is looked what is not lent any more.
const SWEEP: Duration = Duration::from_secs(1);

/// What the thread looks after.
#[derive(Debug)]
pub(super) struct Keeper<M: Medium> {
    watched: Mutex<Watched<M>>,
    /// Something is lent, by us or to us.
    sweeps: AtomicBool,
    more: Condvar,
    /// Ends the thread's sleep on sockets.
    wake: OwnedFd,
}

#[derive(Debug)]
struct Watched<M: Medium> {
    sessions: Vec<Arc<Session<M>>>,
    stopped: bool,
    running: bool,
}

impl<M: Medium> Keeper<M> {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            watched: Mutex::new(Watched {
                sessions: Vec::new(),
                stopped: false,
                running: false,
            }),
            sweeps: AtomicBool::new(false),
            more: Condvar::new(),
        })
    }

    /// Starts the thread, which lives no longer than `link`.
    pub(super) fn start(self: &Arc<Self>, link: Weak<Inner<M>>) -> io::Result<()> {
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
            self.wake_up();
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

    /// Ends the thread; `false`: not in time.
    pub(super) fn stop(&self, end: Instant) -> bool {
        let mut watched = self.watched.lock();
        watched.stopped = true;
        self.more.notify_all();
        self.wake_up();
        while watched.running {
            if self.more.wait_until(&mut watched, end).timed_out() {
                return false;
            }
        }
        true
    }

    fn wake_up(&self) {
        // Any number will do, and a counter that is full wakes as well.
        let _woken = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
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
                    if !watched.sessions.is_empty() {
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

    /// Sleeps until one of them has something to say, and takes it.
    fn serve(&self, sessions: &[Arc<Session<M>>]) {
        let sockets: SmallVec<[_; 4]> = sessions
            .iter()
            .filter_map(|session| session.writes.expects())
            .collect();
        if !sockets.is_empty() {
            let fds = sockets
                .iter()
                .map(|(socket, events)| PollFd::new(&**socket, *events));
            let wake = PollFd::new(&self.wake, PollFlags::IN);
            let mut fds: SmallVec<[_; 4]> = fds.chain([wake]).collect();
            let tick = Timespec::try_from(TICK).expect("it is short");
            let _woken = poll(&mut fds, Some(&tick));
            let _empty = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        for session in sessions {
            if !session.writes.look() {
                // Whoever drives takes them.
                thread::sleep(Duration::from_micros(100));
            }
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
