//! Registered memory that the client lends to calls which bring none of their own.

use std::sync::{Arc, Weak};

use mooncake_tent::{Buffer, Error, Memory, Permission, RegisterOptions, TransferEngine};
use parking_lot::Mutex;

/// Smallest size; others are powers of two above it.
const SMALLEST: u64 = 64 << 10;
/// Idle memory that is kept; more is freed.
const KEEP: u64 = 256 << 20;

/// Idle buffers by size, and how to make more.
#[derive(Debug)]
pub(super) struct Scratch {
    engine: Arc<dyn TransferEngine>,
    idle: Mutex<Idle>,
    me: Weak<Self>,
}

#[derive(Debug, Default)]
struct Idle {
    buffers: Vec<Buffer>,
    bytes: u64,
}

/// A buffer on loan.
#[derive(Debug)]
pub(super) struct ScratchBuffer {
    /// Taken on drop.
    buffer: Option<Buffer>,
    home: Weak<Scratch>,
}

impl Scratch {
    pub(super) fn new(engine: Arc<dyn TransferEngine>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            engine,
            idle: Mutex::default(),
            me: Weak::clone(me),
        })
    }

    /// At least `len` bytes.
    pub(super) async fn lend(&self, len: u64) -> Result<Arc<ScratchBuffer>, Error> {
        let size = len.max(SMALLEST).checked_next_power_of_two().unwrap_or(len);
        let idle = self.idle.lock().take(size);
        let buffer = match idle {
            Some(buffer) => buffer,
            None => {
                let memory = Memory::allocate(size as usize).map_err(|source| Error::System {
                    what: format!("{size} bytes of memory"),
                    source,
                })?;
                let options = RegisterOptions::new(Permission::Local);
                self.engine.register_memory(memory, options).await?
            }
        };
        Ok(Arc::new(ScratchBuffer {
            buffer: Some(buffer),
            home: Weak::clone(&self.me),
        }))
    }
}

impl Idle {
    fn take(&mut self, size: u64) -> Option<Buffer> {
        let place = self
            .buffers
            .iter()
            .rposition(|buffer| buffer.len() == size)?;
        self.bytes -= size;
        Some(self.buffers.swap_remove(place))
    }

    fn keep(&mut self, buffer: Buffer) {
        if self.bytes + buffer.len() <= KEEP {
            self.bytes += buffer.len();
            self.buffers.push(buffer);
        }
    }
}

impl ScratchBuffer {
    pub(super) fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("it is there until the drop")
    }
}

impl Drop for ScratchBuffer {
    fn drop(&mut self) {
        let buffer = self.buffer.take().expect("it is there until the drop");
        // A buffer in which bytes may still move is not lent again: the engine frees it when quiet.
        if buffer.leases() == 0
            && let Some(home) = self.home.upgrade()
        {
            home.idle.lock().keep(buffer);
        }
    }
}
