//! The portable way: plain calls, on some threads and on those of whoever waits.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{
    FileConfig, FileCounts,
    book::{Book, Launch},
    calls::carry_out,
    carrier::Carrier,
    job::{Job, Notes, tell},
};
use crate::{
    identity::PeerId,
    transport::{TaskRef, Tasks},
};

/// See the module.
#[derive(Debug)]
pub(super) struct Pool {
    tasks: Tasks,
    depth: usize,
    work: Mutex<Work>,
    /// There is something to do.
    wake: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Work {
    book: Book,
    stopped: bool,
}

impl Pool {
    pub(super) fn start(
        config: &FileConfig,
        part_bytes: u64,
        tasks: &Tasks,
    ) -> io::Result<Arc<Self>> {
        let pool = Arc::new(Self {
            tasks: Arc::clone(tasks),
            depth: config.depth.max(1),
            work: Mutex::new(Work {
                book: Book::new(part_bytes),
                stopped: false,
            }),
            wake: Condvar::new(),
            threads: Mutex::default(),
        });
        for _ in 0..config.threads.max(1) {
            let me = Arc::clone(&pool);
            let builder = thread::Builder::new().name("file-link".to_owned());
            match builder.spawn(move || me.run()) {
                Ok(thread) => pool.threads.lock().push(thread),
                Err(error) => {
                    pool.stop(true);
                    return Err(error);
                }
            }
        }
        Ok(pool)
    }

    /// Ends the threads. Those that are not `idle` are left to the kernel, which may hold them for
    /// ever.
    pub(super) fn stop(&self, idle: bool) {
        self.work.lock().stopped = true;
        self.wake.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A waker that it called may have dropped the last owner of the engine.
            let own = thread.thread().id() == thread::current().id();
            if idle && !own && thread.join().is_err() {
                tracing::error!("a thread of the file link has panicked");
            }
        }
    }

    fn run(&self) {
        while let Some(launch) = self.wait() {
            self.carry_out(&launch);
        }
    }

    /// The next part, when there is one; `None`: it is over.
    fn wait(&self) -> Option<Launch> {
        let mut work = self.work.lock();
        loop {
            let mut notes = Notes::new();
            let launch = work.next(self.depth, &mut notes);
            if !notes.is_empty() {
                drop(work);
                self.tell(notes);
                work = self.work.lock();
            }
            if launch.is_some() {
                return launch;
            }
            if work.stopped {
                return None;
            }
            match work.book.next_deadline() {
                Some(deadline) => {
                    self.wake.wait_until(&mut work, deadline);
                }
                None => self.wake.wait(&mut work),
            }
        }
    }

    fn carry_out(&self, launch: &Launch) {
        let result = carry_out(launch);
        let mut notes = Notes::new();
        self.work.lock().book.land(launch.id, result, &mut notes);
        self.tell(notes);
    }

    fn tell(&self, notes: Notes) {
        if !notes.is_empty() {
            let over = tell(&self.tasks, notes);
            self.work.lock().book.told(over);
        }
    }

    fn end(&self, how: impl FnOnce(&mut Book, &mut Notes)) {
        let mut notes = Notes::new();
        how(&mut self.work.lock().book, &mut notes);
        self.tell(notes);
    }
}

impl Work {
    fn next(&mut self, depth: usize, notes: &mut Notes) -> Option<Launch> {
        self.book.expire(Instant::now(), notes);
        // A call that was begun is not called back: it ends by itself.
        while self.book.recall().is_some() {}
        self.book.launch(depth)
    }
}

impl Carrier for Pool {
    fn post(&self, jobs: &mut Vec<Job>) {
        let mut notes = Notes::new();
        let shared = {
            let mut work = self.work.lock();
            for job in jobs.drain(..) {
                work.book.add(job, &mut notes);
            }
            work.book.is_shareable()
        };
        self.tell(notes);
        if shared {
            // More than whoever waits can do at once.
            self.wake.notify_all();
        }
    }

    fn cancel(&self, task: TaskRef) {
        self.end(|book, notes| book.cancel(task, notes));
    }

    fn drive(&self, _budget: Duration) -> bool {
        let mut notes = Notes::new();
        let launch = self.work.lock().next(self.depth, &mut notes);
        let ended = !notes.is_empty();
        self.tell(notes);
        match launch {
            Some(launch) => {
                self.carry_out(&launch);
                true
            }
            None => ended,
        }
    }

    fn hand_over(&self) {
        if self.is_busy(None) {
            self.wake.notify_all();
        }
    }

    fn fence(&self, peer: PeerId) {
        self.end(|book, notes| book.fence(peer, notes));
    }

    fn close(&self) {
        self.end(Book::close);
    }

    fn is_busy(&self, peer: Option<PeerId>) -> bool {
        self.work.lock().book.is_busy(peer)
    }

    fn counts(&self) -> FileCounts {
        self.work.lock().book.counts
    }
}
