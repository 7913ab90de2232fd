//! Registered memory that the client lends to calls which bring none of their own.

use std::{
    ops::Range,
    sync::{Arc, Weak},
};

use mooncake_tent::{
    Buffer, Error, LocalSlice, Memory, Permission, RegisterOptions, TransferEngine,
};
use parking_lot::Mutex;

/// Smallest size; others are powers of two above it.
const SMALLEST: u64 = 64 << 10;
/// Idle memory that is kept; more is freed.
const KEEP: u64 = 256 << 20;
/// Loans do not share one.
const CACHE_LINE: u64 = 64;

/// Idle buffers by size, and how to make more.
#[derive(Debug)]
pub(crate) struct Scratch {
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
struct ScratchBuffer {
    /// Taken on drop.
    buffer: Option<Buffer>,
    home: Weak<Scratch>,
}

/// A part of a buffer on loan, which goes back when all its parts are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Loan {
    scratch: Arc<ScratchBuffer>,
    range: Range<u64>,
}

impl Scratch {
    pub(crate) fn new(engine: Arc<dyn TransferEngine>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            engine,
            idle: Mutex::default(),
            me: Weak::clone(me),
        })
    }

    /// Memory for each of these lengths, none of which is 0. It lies in one buffer, since the
    /// registration of a buffer costs more than its bytes.
    pub(crate) async fn lend(&self, lengths: &[u64]) -> Result<Vec<Loan>, Error> {
        let plan = Plan::new(lengths)?;
        let idle = self.idle.lock().take(plan.size);
        let buffer = match idle {
            Some(buffer) => buffer,
            None => {
                let size = plan.size;
                let memory = Memory::allocate(size as usize).map_err(|source| Error::System {
                    what: format!("{size} bytes of memory"),
                    source,
                })?;
                let options = RegisterOptions::new(Permission::Local);
                self.engine.register_memory(memory, options).await?
            }
        };
        Ok(self.loans(plan, buffer))
    }

    /// The same, if there is memory at hand.
    pub(super) fn lend_idle(&self, lengths: &[u64]) -> Option<Vec<Loan>> {
        let plan = Plan::new(lengths).ok()?;
        let buffer = self.idle.lock().take(plan.size)?;
        Some(self.loans(plan, buffer))
    }

    fn loans(&self, plan: Plan, buffer: Buffer) -> Vec<Loan> {
        let scratch = Arc::new(ScratchBuffer {
            buffer: Some(buffer),
            home: Weak::clone(&self.me),
        });
        let loan = |range| Loan {
            scratch: Arc::clone(&scratch),
            range,
        };
        plan.ranges.into_iter().map(loan).collect()
    }
}

/// Where loans lie in a buffer, and how large that is.
struct Plan {
    ranges: Vec<Range<u64>>,
    size: u64,
}

impl Plan {
    fn new(lengths: &[u64]) -> Result<Self, Error> {
        let mut end = 0_u64;
        let mut ranges = Vec::with_capacity(lengths.len());
        for length in lengths {
            let start = end;
            let over = start.checked_add(*length);
            let over =
                over.and_then(|over| Some((over, over.checked_next_multiple_of(CACHE_LINE)?)));
            // The master says how long an object is, and is not trusted.
            let Some((over, next)) = over else {
                let what = format!("no memory has room for {length} bytes more than {start}");
                return Err(Error::Invalid(what));
            };
            ranges.push(start..over);
            end = next;
        }
        let size = end.max(SMALLEST).checked_next_power_of_two().unwrap_or(end);
        Ok(Self { ranges, size })
    }
}

impl Loan {
    /// Its first `length` bytes, for a transfer; `None` if it is shorter.
    pub(crate) fn front(&self, length: u64) -> Option<LocalSlice> {
        let end = self.range.start.checked_add(length)?;
        let buffer = self.scratch.buffer();
        (end <= self.range.end).then(|| buffer.slice(self.range.start..end).ok())?
    }

    /// Fills its beginning.
    pub(super) fn write(&self, bytes: &[u8]) {
        assert!(
            bytes.len() as u64 <= self.range.end - self.range.start,
            "writing beyond a loan"
        );
        self.scratch
            .buffer()
            .memory()
            .write_at(self.range.start, bytes);
    }

    /// Copies a part of it out.
    pub(crate) fn read_at(&self, offset: u64, into: &mut [u8]) {
        let start = self.range.start + offset;
        assert!(
            start + into.len() as u64 <= self.range.end,
            "reading beyond a loan"
        );
        self.scratch.buffer().memory().read_at(start, into);
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
    fn buffer(&self) -> &Buffer {
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
