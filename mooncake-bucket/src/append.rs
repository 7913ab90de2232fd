//! A bucket that grows. Callers take a place each, write there side by side, and share what makes it durable.

use std::{io, sync::Arc, time::Instant};

use parking_lot::{Condvar, Mutex};

use crate::{bucket::Bucket, disk::DiskFile, error::copy, format::BLOCK};

/// See the module. No lock is held while the disk works.
#[derive(Debug)]
pub(crate) struct Appender {
    pub(crate) bucket: Arc<Bucket>,
    /// The grouping key that it was begun for.
    pub(crate) group: Option<u64>,
    file: Arc<dyn DiskFile>,
    begun: Instant,
    state: Mutex<State>,
    synced: Condvar,
}

#[derive(Debug)]
struct State {
    tail: u64,
    records: u32,
    /// Places that were taken and whose records are not settled yet.
    writers: u32,
    closed: bool,
    /// Writes that are through.
    written: u64,
    /// Of those, how many are durable.
    durable: u64,
    syncing: bool,
    failure: Option<io::Error>,
}

/// What a bucket may become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes: u64,
    pub(crate) records: u32,
}

/// A place in a bucket.
#[derive(Debug)]
pub(crate) enum Reserved {
    At(u64),
    /// It is full. `true`: nobody writes to it any more either, and the caller has to seal it.
    Full(bool),
}

impl Appender {
    /// `file` has its head already.
    pub(crate) fn new(bucket: Arc<Bucket>, group: Option<u64>, file: Arc<dyn DiskFile>) -> Self {
        Self {
            bucket,
            group,
            file,
            begun: Instant::now(),
            state: Mutex::new(State {
                tail: BLOCK,
                records: 0,
                writers: 0,
                closed: false,
                written: 0,
                durable: 0,
                syncing: false,
                failure: None,
            }),
            synced: Condvar::new(),
        }
    }

    /// Of a bucket that was found without a footer, which would go at `tail`: nothing more is written to it.
    pub(crate) fn found(bucket: Arc<Bucket>, file: Arc<dyn DiskFile>, tail: u64) -> Self {
        let appender = Self::new(bucket, None, file);
        {
            let mut state = appender.state.lock();
            state.tail = tail;
            state.closed = true;
        }
        appender
    }

    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// Where the next group would begin.
    pub(crate) fn tail(&self) -> u64 {
        self.state.lock().tail
    }

    /// Takes a place of whole blocks. Whoever has one settles it, come what may.
    pub(crate) fn reserve(&self, bytes: u64, records: u32, limits: Limits) -> Reserved {
        let mut state = self.state.lock();
        let empty = state.tail == BLOCK;
        let full = state.tail + bytes > limits.bytes
            || state.records.saturating_add(records) > limits.records;
        if state.closed || (full && !empty) {
            let first = !state.closed;
            state.closed = true;
            return Reserved::Full(first && state.writers == 0);
        }
        let at = state.tail;
        state.tail += bytes;
        state.records = state.records.saturating_add(records);
        state.writers += 1;
        Reserved::At(at)
    }

    /// Writes to a place; returns what [`sync`](Self::sync) needs.
    pub(crate) fn write(&self, at: u64, pieces: &[&[u8]]) -> io::Result<u64> {
        let written = self.file.write_at(at, pieces);
        let mut state = self.state.lock();
        match written {
            Ok(()) => {
                state.written += 1;
                Ok(state.written)
            }
            Err(error) => {
                // What this disk does next is anybody's guess; another file may fare better.
                state.closed = true;
                Err(error)
            }
        }
    }

    /// Returns once what `ticket` stands for is durable. One of those who wait syncs for all.
    pub(crate) fn sync(&self, ticket: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        loop {
            if state.durable >= ticket {
                return Ok(());
            }
            if let Some(error) = &state.failure {
                return Err(copy(error));
            }
            if state.syncing {
                self.synced.wait(&mut state);
                continue;
            }
            state.syncing = true;
            let upto = state.written;
            drop(state);
            let done = self.file.sync();
            state = self.state.lock();
            state.syncing = false;
            match done {
                Ok(()) => state.durable = upto,
                Err(error) => {
                    // A later sync that succeeds would say nothing of what this one lost.
                    state.closed = true;
                    state.failure = Some(error);
                }
            }
            self.synced.notify_all();
        }
    }

    /// A place is done with. `true`: it was the last one of a bucket that is closed, and the caller has to seal it.
    pub(crate) fn settle(&self) -> bool {
        let mut state = self.state.lock();
        state.writers -= 1;
        state.closed && state.writers == 0
    }

    /// Nothing more is written to it. `true`: the caller has to seal it.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state.lock();
        let first = !state.closed;
        state.closed = true;
        first && state.writers == 0
    }
}
