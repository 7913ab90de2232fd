//! A segment that was opened, with the latest that is known of it.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use arc_swap::{ArcSwap, Guard};

use super::{SegmentDescriptor, Span};
use crate::{
    identity::{Generation, Incarnation, RegistrationId},
    transport::Op,
};

/// An opened segment. Clones refer to the same one.
#[derive(Clone)]
pub struct Segment {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    known: ArcSwap<Known>,
    /// Lets one fetch at a time through.
    refreshing: tokio::sync::Mutex<()>,
}

/// A descriptor, and the link that the selector chose for each direction under it.
pub(crate) struct Known {
    pub(crate) descriptor: SegmentDescriptor,
    routes: [OnceLock<Option<usize>>; 2],
}

/// Where in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteRange {
    /// An address in the owner's memory, looked up in the segment's descriptor.
    Address(u64),
    /// A place in a registered buffer.
    Registered {
        /// The buffer.
        registration: RegistrationId,
        /// Exactly this life of it; `None`: the one that the descriptor names.
        generation: Option<Generation>,
        /// From its start.
        offset: u64,
    },
}

impl Segment {
    pub(crate) fn new(name: String, descriptor: SegmentDescriptor) -> Self {
        Self {
            shared: Arc::new(Shared {
                name,
                known: ArcSwap::from_pointee(Known::new(descriptor)),
                refreshing: tokio::sync::Mutex::new(()),
            }),
        }
    }

    /// The name under which it was opened.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Which life of its owner was last seen.
    pub fn incarnation(&self) -> Incarnation {
        self.known().descriptor.incarnation()
    }

    /// What was last learned of it.
    pub fn descriptor(&self) -> SegmentDescriptor {
        self.known().descriptor.clone()
    }

    pub(crate) fn known(&self) -> Guard<Arc<Known>> {
        self.shared.known.load()
    }

    pub(crate) fn learn(&self, descriptor: SegmentDescriptor) {
        self.shared.known.store(Arc::new(Known::new(descriptor)));
    }

    /// Whoever holds this may fetch the descriptor.
    pub(crate) async fn refreshing(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shared.refreshing.lock().await
    }
}

impl Known {
    fn new(descriptor: SegmentDescriptor) -> Self {
        Self {
            descriptor,
            routes: [OnceLock::new(), OnceLock::new()],
        }
    }

    /// The link for `op`, chosen by `choose` the first time.
    pub(crate) fn route(&self, op: Op, choose: impl FnOnce() -> Option<usize>) -> Option<usize> {
        let slot = match op {
            Op::Read => 0,
            Op::Write => 1,
        };
        *self.routes[slot].get_or_init(choose)
    }

    /// Resolves what the caller named. A generation that the caller names is left to the owner to
    /// check, who knows better than any descriptor.
    pub(crate) fn resolve(&self, range: RemoteRange, length: u64) -> Option<Span> {
        match range {
            RemoteRange::Address(address) => self.descriptor.find(address, length),
            RemoteRange::Registered {
                registration,
                generation: Some(generation),
                offset,
            } => Some(Span {
                registration,
                generation,
                offset,
            }),
            RemoteRange::Registered {
                registration,
                generation: None,
                offset,
            } => {
                let buffer = self.descriptor.buffer(registration)?;
                Some(Span {
                    registration,
                    generation: buffer.generation,
                    offset,
                })
            }
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({}, {})", self.name(), self.incarnation())
    }
}
