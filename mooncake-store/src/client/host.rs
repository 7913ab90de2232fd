//! A runtime that is driven by whoever waits for it.
//!
//! Between a caller and what it waits for no other thread is woken. While nobody waits, a thread
//! of the runtime's own keeps it going.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
};

/// So long after the last wait of a caller the caretaker takes over.
const CALM: Duration = Duration::from_millis(2);
/// How long a caller looks before it sleeps: waking it again costs as much.
const LOOK: Duration = Duration::from_micros(150);
const SURE: u8 = 8;
/// Who gives way to another that computes gets the core back after milliseconds: then it gives way
/// no more for a while.
const LATE: Duration = Duration::from_micros(500);
const GRUDGE: u64 = 1_024;
/// Where looking does not pay off, one of so many waits tries it all the same.
const TRY_AGAIN: u64 = 32;

#[derive(Debug)]
pub(super) struct Host {
    shared: Arc<Shared>,
    caretaker: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Taken on drop.
    runtime: Option<Runtime>,
    /// Of callers, since the beginning.
    waits: AtomicU64,
    /// The caretaker drives.
    attended: AtomicBool,
    /// A caller looks for what it waits for, instead of sleeping.
    looking: AtomicBool,
    /// How much that paid off of late, up to [`SURE`].
    score: AtomicU8,
    /// The first wait that gives way again to other threads.
    polite_from: AtomicU64,
    /// Tells it to leave.
    leave: Notify,
    over: Mutex<bool>,
    ended: Condvar,
}

impl Host {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .event_interval(1)
            .build()?;
        let shared = Arc::new(Shared {
            runtime: Some(runtime),
            waits: AtomicU64::new(0),
            attended: AtomicBool::new(false),
            looking: AtomicBool::new(false),
            score: AtomicU8::new(SURE / 2),
            polite_from: AtomicU64::new(0),
            leave: Notify::new(),
            over: Mutex::new(false),
            ended: Condvar::new(),
        });
        let caretaker = Arc::clone(&shared);
        let caretaker = thread::Builder::new()
            .name("store-caretaker".into())
            .spawn(move || caretaker.take_care())?;
        Ok(Self {
            shared,
            caretaker: Some(caretaker),
        })
    }

    /// Waits for `future` and drives everything else meanwhile, unless another thread does.
    ///
    /// # Panics
    ///
    /// The calling thread is one of an async runtime.
    pub(super) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.shared.waits.fetch_add(1, Ordering::Relaxed);
        if self.shared.attended.load(Ordering::SeqCst) {
            self.shared.leave.notify_one();
        }
        // One looks; others, whose future it drives, sleep.
        if self.shared.looking.swap(true, Ordering::Acquire) {
            return self.shared.runtime().block_on(future);
        }
        let _looking = Looking(&self.shared.looking);
        self.shared.runtime().block_on(self.shared.look(future))
    }
}

/// Ends with the caller's wait, however that ends.
struct Looking<'a>(&'a AtomicBool);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Shared {
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until the drop")
    }

    /// Polls `future` for a while without going to sleep, if what was waited for came soon of late.
    async fn look<F: Future>(&self, future: F) -> F::Output {
        let score = self.score.load(Ordering::Relaxed);
        let wait = self.waits.load(Ordering::Relaxed);
        if score == 0 && !wait.is_multiple_of(TRY_AGAIN) {
            return future.await;
        }
        let mut future = pin!(future);
        let start = Instant::now();
        let mut last = start;
        let mut polite = wait >= self.polite_from.load(Ordering::Relaxed);
        let mut slept = false;
        let output = poll_fn(|cx| {
            let polled = future.as_mut().poll(cx);
            if polled.is_ready() || slept {
                return polled;
            }
            let now = Instant::now();
            if polite && now - last >= LATE {
                polite = false;
                self.polite_from.store(wait + GRUDGE, Ordering::Relaxed);
            }
            last = now;
            slept = now - start >= LOOK;
            if !slept {
                cx.waker().wake_by_ref();
                if polite {
                    thread::yield_now();
                }
            }
            polled
        })
        .await;
        let score = match slept {
            true => score.saturating_sub(1),
            false => (score + 2).min(SURE),
        };
        self.score.store(score, Ordering::Relaxed);
        output
    }

    /// Drives while no caller does.
    fn take_care(&self) {
        loop {
            self.attended.store(true, Ordering::SeqCst);
            self.runtime().block_on(self.leave.notified());
            self.attended.store(false, Ordering::SeqCst);
            loop {
                let before = self.waits.load(Ordering::Relaxed);
                let mut over = self.over.lock();
                if !*over {
                    self.ended.wait_for(&mut over, CALM);
                }
                if *over {
                    return;
                }
                if self.waits.load(Ordering::Relaxed) == before {
                    break;
                }
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        *self.shared.over.lock() = true;
        self.shared.ended.notify_one();
        self.shared.leave.notify_one();
        if let Some(caretaker) = self.caretaker.take()
            && caretaker.thread().id() != thread::current().id()
        {
            // It does not panic, and if it had, there would be nothing left to do.
            let _ended = caretaker.join();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Also where waiting is not allowed.
            runtime.shutdown_background();
        }
    }
}
