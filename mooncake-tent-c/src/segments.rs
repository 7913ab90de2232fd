//! Segments by their numbers.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use mooncake_tent::Segment;
use parking_lot::Mutex;

use crate::failure::{Failure, Result};

/// The number of the engine's own.
const LOCAL: u64 = 0;

#[derive(Debug)]
pub(crate) struct Segments {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Segment>>,
}

impl Segments {
    pub(crate) fn new(own: Segment) -> Self {
        Self {
            next: AtomicU64::new(LOCAL + 1),
            open: Mutex::new(HashMap::from([(LOCAL, own)])),
        }
    }

    pub(crate) fn get(&self, id: u64) -> Result<Segment> {
        let open = self.open.lock();
        open.get(&id).cloned().ok_or_else(|| unknown(id))
    }

    pub(crate) fn add(&self, segment: Segment) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(id, segment);
        id
    }

    /// The number of the one of this name that was opened first.
    pub(crate) fn find(&self, name: &str) -> Option<u64> {
        let open = self.open.lock();
        let named = open.iter().filter(|(_, segment)| segment.name() == name);
        named.map(|(id, _)| *id).min()
    }

    /// The segment, if no other number is left for it.
    pub(crate) fn remove(&self, id: u64) -> Result<Option<Segment>> {
        if id == LOCAL {
            return Err(Failure::new("the engine's own segment is never closed"));
        }
        let mut open = self.open.lock();
        let closed = open.remove(&id).ok_or_else(|| unknown(id))?;
        let same = |other: &Segment| {
            (other.name(), other.incarnation()) == (closed.name(), closed.incarnation())
        };
        let others = open.values().any(same);
        Ok((!others).then_some(closed))
    }
}

fn unknown(id: u64) -> Failure {
    Failure::new(format!("no segment {id} is open"))
}
