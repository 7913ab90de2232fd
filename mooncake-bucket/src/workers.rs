//! Threads that carry out operations for callers who must not block.
//!
//! Disks are asked by calls that block: portable ones know no others, and a sync has no other form anywhere. So
//! the storage itself blocks and starts no threads for its callers, which is what a program without a runtime wants.
//! A program with one hands operations to [`BucketWorkers`], whose [`Completion`]s are futures of no particular
//! runtime, and can be waited for without any.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread::JoinHandle,
};

use parking_lot::{Condvar, Mutex};

use crate::backend::BucketStorageBackend;

type Job = Box<dyn FnOnce(&BucketStorageBackend) + Send>;

/// A bounded queue of operations and the threads that carry them out. Dropping it carries out what was taken.
pub struct BucketWorkers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    backend: Arc<BucketStorageBackend>,
    queue: Mutex<Queue>,
    filled: Condvar,
    most: usize,
}

struct Queue {
    jobs: VecDeque<Job>,
    ends: bool,
}

/// So many operations wait already; none was taken. Trying again later makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} operations wait already")]
pub struct Busy {
    /// How many.
    pub waiting: usize,
}

/// The operation panicked; what it did until then is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operation did not come to its end")]
pub struct Abandoned;

impl BucketWorkers {
    /// Starts `threads` that share a queue of `most` operations.
    pub fn start(
        backend: Arc<BucketStorageBackend>,
        threads: usize,
        most: usize,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            backend,
            queue: Mutex::new(Queue {
                jobs: VecDeque::new(),
                ends: false,
            }),
            filled: Condvar::new(),
            most: most.max(1),
        });
        let mut workers = Self {
            shared,
            threads: Vec::new(),
        };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&workers.shared);
            let thread = std::thread::Builder::new()
                .name(format!("bucket-{number}"))
                .spawn(move || work(&shared))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// The storage that they work on.
    pub fn backend(&self) -> &Arc<BucketStorageBackend> {
        &self.shared.backend
    }

    /// Has a thread carry out `operation`. Operations begin in the order in which they came.
    pub fn submit<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&BucketStorageBackend) -> T + Send + 'static,
    ) -> Result<Completion<T>, Busy> {
        let slot = Arc::new(Slot::default());
        let end = End(Arc::clone(&slot));
        let mut queue = self.shared.queue.lock();
        if queue.jobs.len() >= self.shared.most {
            // Dropped without the lock: what the operation owns may do anything.
            let waiting = queue.jobs.len();
            drop(queue);
            return Err(Busy { waiting });
        }
        queue
            .jobs
            .push_back(Box::new(move |backend| end.finish(operation(backend))));
        drop(queue);
        self.shared.filled.notify_one();
        Ok(Completion(slot))
    }
}

fn work(shared: &Shared) {
    loop {
        let mut queue = shared.queue.lock();
        let job = loop {
            if let Some(job) = queue.jobs.pop_front() {
                break job;
            }
            if queue.ends {
                return;
            }
            shared.filled.wait(&mut queue);
        };
        drop(queue);
        let job = std::panic::AssertUnwindSafe(|| job(&shared.backend));
        // Its completion says so; the thread has others to serve.
        if std::panic::catch_unwind(job).is_err() {
            tracing::error!("an operation on a storage panicked");
        }
    }
}

impl Drop for BucketWorkers {
    fn drop(&mut self) {
        self.shared.queue.lock().ends = true;
        self.shared.filled.notify_all();
        for thread in self.threads.drain(..) {
            let _panics_were_caught = thread.join();
        }
    }
}

impl fmt::Debug for BucketWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketWorkers({} threads)", self.threads.len())
    }
}

/// The end of an operation: a future, or something to block on. Dropping it does not stop the operation.
#[must_use = "an operation's result says whether anything was done"]
pub struct Completion<T>(Arc<Slot<T>>);

struct Slot<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

struct State<T> {
    end: Option<Result<T, Abandoned>>,
    waker: Option<Waker>,
    ended: bool,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                end: None,
                waker: None,
                ended: false,
            }),
            ended: Condvar::new(),
        }
    }
}

/// The side of the worker, which ends the operation come what may.
struct End<T>(Arc<Slot<T>>);

impl<T> End<T> {
    fn finish(self, value: T) {
        self.0.end(Ok(value));
    }
}

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        self.0.end(Err(Abandoned));
    }
}

impl<T> Slot<T> {
    /// The first end counts.
    fn end(&self, end: Result<T, Abandoned>) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        state.end = Some(end);
        let waker = state.waker.take();
        drop(state);
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Completion<T> {
    /// Blocks until the operation has ended.
    pub fn wait(self) -> Result<T, Abandoned> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(end) = state.end.take() {
                return end;
            }
            self.0.ended.wait(&mut state);
        }
    }
}

impl<T> Future for Completion<T> {
    type Output = Result<T, Abandoned>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state.lock();
        match state.end.take() {
            Some(end) => Poll::Ready(end),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completion")
    }
}
