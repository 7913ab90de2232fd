//! A segment that was opened, with the latest that is known of it.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};

use super::{BufferDescriptor, Fences, Routes, SegmentDescriptor, Span};
use crate::{
    identity::{Generation, Incarnation, RegistrationId},
    selector::memory_kind,
    transport::{Op, Opened},
};

/// An opened segment. Clones refer to the same one, and share a count of themselves: threads that submit
/// very many requests side by side had better open it once each.
#[derive(Clone)]
pub struct Segment {
    handle: Arc<Handle>,
}

/// Of one opening. Each task holds it, and counts of different openings are in different places.
struct Handle {
    segment: Arc<Shared>,
    /// Its opener has closed it.
    closed: AtomicBool,
}

/// Tells whether an opening is still in use.
pub(super) struct OneOpening(Weak<Handle>);

impl fmt::Debug for OneOpening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_in_use() { "open" } else { "closed" })
    }
}

impl OneOpening {
    pub(super) fn is_in_use(&self) -> bool {
        let handle = self.0.upgrade();
        handle.is_some_and(|handle| !handle.closed.load(Ordering::Acquire))
    }
}

struct Shared {
    name: String,
    known: ArcSwap<Known>,
    /// Lets one fetch at a time through.
    refreshing: tokio::sync::Mutex<()>,
    fences: Arc<Fences>,
    provided: Option<Provided>,
}

/// Of a segment that a link provides itself.
struct Provided {
    link: usize,
    /// Closes it with the last clone of the segment.
    _keep: Box<dyn Any + Send + Sync>,
}

/// A descriptor, and the links that the selector chose under it.
pub(crate) struct Known {
    pub(crate) descriptor: SegmentDescriptor,
    pub(crate) routes: Routes,
    /// All buffers lie in plain memory of their host.
    plain: OnceLock<bool>,
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
    pub(crate) fn new(name: String, descriptor: SegmentDescriptor, fences: Arc<Fences>) -> Self {
        Self::of(Shared {
            fences,
            name,
            known: ArcSwap::from_pointee(Known::new(descriptor)),
            refreshing: tokio::sync::Mutex::new(()),
            provided: None,
        })
    }

    /// What link number `link` has opened by itself.
    pub(crate) fn provided(name: String, opened: Opened, link: usize) -> Self {
        let Opened { descriptor, keep } = opened;
        Self::of(Shared {
            fences: Arc::default(),
            name,
            known: ArcSwap::from_pointee(Known::new(descriptor)),
            refreshing: tokio::sync::Mutex::new(()),
            provided: Some(Provided { link, _keep: keep }),
        })
    }

    fn of(shared: Shared) -> Self {
        let first = shared.known.load().descriptor.incarnation();
        shared.fences.meet(first);
        Self::opening(Arc::new(shared))
    }

    fn opening(segment: Arc<Shared>) -> Self {
        let closed = AtomicBool::new(false);
        let handle = Handle { segment, closed };
        Self {
            handle: Arc::new(handle),
        }
    }

    /// The same segment, as one who opens it has it.
    pub(crate) fn opened_again(&self) -> Self {
        Self::opening(Arc::clone(&self.handle.segment))
    }

    /// This opening of it.
    pub(super) fn as_opened(&self) -> OneOpening {
        OneOpening(Arc::downgrade(&self.handle))
    }

    /// Whoever has opened it does not need it any more.
    pub(super) fn close(&self) {
        self.handle.closed.store(true, Ordering::Release);
    }

    fn shared(&self) -> &Shared {
        &self.handle.segment
    }

    /// The number of the link that provides it, if it is not that of a process.
    pub(crate) fn provider(&self) -> Option<usize> {
        self.shared()
            .provided
            .as_ref()
            .map(|provided| provided.link)
    }

    /// The name under which it was opened.
    pub fn name(&self) -> &str {
        &self.shared().name
    }

    /// Which life of its owner was last seen.
    pub fn incarnation(&self) -> Incarnation {
        self.known().descriptor.incarnation()
    }

    /// What was last learned of it.
    pub fn descriptor(&self) -> SegmentDescriptor {
        self.known().descriptor.clone()
    }

    /// They are clones of each other, or openings of the same one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle.segment, &other.handle.segment)
    }

    pub(crate) fn known(&self) -> Guard<Arc<Known>> {
        self.shared().known.load()
    }

    pub(crate) fn learn(&self, descriptor: SegmentDescriptor) {
        // Before anything is posted to it.
        self.fences().meet(descriptor.incarnation());
        self.shared().known.store(Arc::new(Known::new(descriptor)));
    }

    pub(crate) fn fences(&self) -> &Fences {
        &self.shared().fences
    }

    /// Whoever holds this may fetch the descriptor.
    pub(crate) async fn refreshing(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shared().refreshing.lock().await
    }
}

impl Known {
    fn new(descriptor: SegmentDescriptor) -> Self {
        Self {
            descriptor,
            routes: Routes::default(),
            plain: OnceLock::new(),
        }
    }

    /// The buffer lies in plain memory of its host, as can be seen at a glance.
    pub(crate) fn is_plain(&self, registration: Option<RegistrationId>) -> bool {
        let is_plain = |buffer: &BufferDescriptor| memory_kind(&buffer.location) == "cpu";
        let all = || self.descriptor.buffers().all(is_plain);
        registration.is_none() || *self.plain.get_or_init(all)
    }

    /// Resolves what the caller named. A generation that the caller names is left to the owner to
    /// check, who knows better than any descriptor. `names` are those of our links.
    pub(crate) fn resolve<'a, I: Iterator<Item = &'a str>>(
        &self,
        op: Op,
        range: RemoteRange,
        length: u64,
        names: impl Fn() -> I,
    ) -> Option<Span> {
        match range {
            RemoteRange::Address(address) => self.descriptor.find(op, address, length, names),
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
