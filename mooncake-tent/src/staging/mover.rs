//! Copies between the stage and memory that links do not reach.

use std::{fmt, io, sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::{memory::LocalSlice, platform::after};

/// Copies between memory of one kind and ordinary memory, such as a device's own copies do.
pub trait Mover: fmt::Debug + Send + Sync + 'static {
    /// Copies all bytes of `from` to `into`, which is as long. One of them is ordinary memory and the
    /// other one is of the mover's kind, as the [location](crate::LocalBuffer::location) of its buffer
    /// says; where it begins is its [`address`](LocalSlice::address). It may block. When it returns,
    /// however, neither side is touched any more.
    ///
    /// # Errors
    ///
    /// Some bytes may not be copied. The transfer fails.
    fn copy(&self, from: &LocalSlice, into: &LocalSlice) -> io::Result<()>;
}

/// For memory that is called by another name but can be reached like any other.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainMover;

impl Mover for PlainMover {
    fn copy(&self, from: &LocalSlice, into: &LocalSlice) -> io::Result<()> {
        if from.len() != into.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        into.piece().copy_from(from.piece());
        Ok(())
    }
}

/// From where to where.
pub(super) type Pairs = SmallVec<[(LocalSlice, LocalSlice); 1]>;

/// The copies that are under way, so that whoever closes them can wait for their ends.
#[derive(Debug, Default)]
pub(super) struct Copies {
    books: Mutex<Books>,
    none: Condvar,
}

#[derive(Debug, Default)]
struct Books {
    running: usize,
    closed: bool,
}

/// One copy.
struct Running(Arc<Copies>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut books = self.0.books.lock();
        books.running -= 1;
        if books.running == 0 {
            self.0.none.notify_all();
        }
    }
}

impl Copies {
    /// None begins from now on.
    pub(super) fn close(&self) {
        self.books.lock().closed = true;
    }

    /// Blocks until none is under way; `false`: one is, after the budget.
    pub(super) fn wait(&self, budget: Duration) -> bool {
        let end = after(budget);
        let mut books = self.books.lock();
        while books.running > 0 {
            if self.none.wait_until(&mut books, end).timed_out() {
                return books.running == 0;
            }
        }
        true
    }

    fn begin(self: &Arc<Self>) -> Option<Running> {
        let mut books = self.books.lock();
        if books.closed {
            return None;
        }
        books.running += 1;
        Some(Running(Arc::clone(self)))
    }

    /// Has `mover` copy all pairs on a thread that may block, each only if it `may` be copied still. When
    /// this has ended, nothing is copied any more; who does not wait for that leaves the copy going on.
    pub(super) async fn run(
        self: &Arc<Self>,
        mover: &Arc<dyn Mover>,
        pairs: Pairs,
        may: impl Fn() -> bool + Send + 'static,
    ) -> Result<(), String> {
        let running = self.begin().ok_or("the engine is shutting down")?;
        let mover = Arc::clone(mover);
        let copied = tokio::task::spawn_blocking(move || {
            let copied = pairs.iter().try_for_each(|(from, into)| match may() {
                true => mover.copy(from, into),
                false => Err(io::Error::other("the lease of the stage slot was over")),
            });
            drop((pairs, running));
            copied
        });
        match copied.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the mover has panicked".to_owned()),
        }
    }
}
