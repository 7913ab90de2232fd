//! Stage memory in slots, each a registration of its own, that comes when it is first needed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    engine::{Buffer, RegisterOptions, TentEngine, TransferEngine},
    error::{Error, Result},
    memory::{Memory, Permission},
};

/// As long as it takes.
const EVER: Duration = Duration::from_secs(24 * 60 * 60);

/// Slots of one kind. There are never more of them than credits.
#[derive(Debug)]
pub(super) struct SlotPool {
    permission: Permission,
    bytes: u64,
    most: usize,
    credits: Arc<Semaphore>,
    waiting: AtomicUsize,
    idle: Mutex<Vec<Buffer>>,
}

/// A slot in use. Dropping it takes its memory away from everybody.
#[derive(Debug)]
pub(super) struct Slot {
    /// There until it goes back.
    buffer: Option<Buffer>,
    pool: Arc<SlotPool>,
    credit: Option<OwnedSemaphorePermit>,
}

/// Counts who waits.
struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SlotPool {
    pub(super) fn new(permission: Permission, bytes: u64, most: usize) -> Arc<Self> {
        let most = most.min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            permission,
            bytes,
            most,
            credits: Arc::new(Semaphore::new(most)),
            waiting: AtomicUsize::new(0),
            idle: Mutex::default(),
        })
    }

    /// A slot, as soon as there is one; first come, first served.
    pub(super) async fn take(self: &Arc<Self>, engine: &TentEngine) -> Result<Slot> {
        let credit = {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let _waits = Waits(&self.waiting);
            let credit = Arc::clone(&self.credits).acquire_owned().await;
            credit.map_err(|_| Error::Busy {
                what: "the stage, which is being closed,",
                limit: 0,
            })?
        };
        let slot = |buffer, credit, pool: &Arc<Self>| Slot {
            buffer: Some(buffer),
            pool: Arc::clone(pool),
            credit: Some(credit),
        };
        let idle = self.idle.lock().pop();
        if let Some(buffer) = idle {
            return Ok(slot(buffer, credit, self));
        }
        let (pool, engine) = (Arc::clone(self), engine.clone());
        // Whoever stops waiting must not leave a registration halfway.
        let made = tokio::spawn(async move {
            let memory = Memory::allocate(pool.bytes as usize);
            let memory = memory.map_err(Error::system("memory for a stage slot"))?;
            let options = RegisterOptions::new(pool.permission);
            let buffer = engine.register_memory(memory, options).await?;
            Ok(slot(buffer, credit, &pool))
        });
        made.await.unwrap_or_else(|_| {
            Err(Error::Busy {
                what: "the stage, whose runtime ends,",
                limit: 0,
            })
        })
    }

    /// Somebody waits for a slot.
    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Slots that are in use or not quiet.
    pub(super) fn in_use(&self) -> usize {
        self.most.saturating_sub(self.credits.available_permits())
    }

    /// Slots that are kept for whoever comes next.
    pub(super) fn idle(&self) -> usize {
        self.idle.lock().len()
    }

    /// Nobody gets a slot any more, and those that nobody uses go.
    pub(super) fn close(&self) {
        self.credits.close();
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }
}

impl Slot {
    pub(super) fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("it has not gone back")
    }

    /// How many bytes fit.
    pub(super) fn bytes(&self) -> u64 {
        self.pool.bytes
    }

    pub(super) fn pool(&self) -> &SlotPool {
        &self.pool
    }

    /// Nothing can move in it any more, and nobody may still mean to: others may have it.
    pub(super) fn give_back(mut self) {
        if let Some(buffer) = self.buffer.take() {
            let mut idle = self.pool.idle.lock();
            // Whoever closes it takes those that are idle after that.
            if !self.pool.credits.is_closed() {
                idle.push(buffer);
            }
        }
        self.credit = None;
    }

    /// Takes its memory from the peers that may mean to write there, and ends when nothing can. Its
    /// credit comes back only then; `false`: that is not known, and it never does.
    pub(super) async fn retire(mut self, engine: Option<TentEngine>) -> bool {
        if let (Some(buffer), Some(engine)) = (self.buffer.take(), engine)
            && let Err(error) = engine.unregister_memory(buffer, EVER).await
        {
            tracing::warn!(%error, "a stage slot is still in use, and there is one less");
            if let Some(credit) = self.credit.take() {
                credit.forget();
            }
            return false;
        }
        self.credit = None;
        true
    }
}
