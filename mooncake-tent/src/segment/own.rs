//! The segment of this process: what it offers now, and what has changed lately.

use std::{collections::VecDeque, sync::Arc};

use mooncake_proto::tent as wire;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use tokio::sync::watch;

use super::{BufferDescriptor, Segment, SegmentDescriptor};
use crate::identity::RegistrationId;

/// So many changes are known one by one. Whoever lacks more is told everything.
const LATELY: usize = 4096;

/// What this process offers. A change costs about the same however much that is.
#[derive(Debug)]
pub(crate) struct OwnSegment {
    segment: Segment,
    /// Held while the segment learns, so that it never learns an older state after a newer one.
    book: Mutex<Book>,
    versions: watch::Sender<u64>,
}

#[derive(Debug)]
struct Book {
    now: SegmentDescriptor,
    /// What each of the last versions has changed, the latest last.
    lately: VecDeque<RegistrationId>,
}

impl OwnSegment {
    pub(crate) fn new(begun: SegmentDescriptor) -> Self {
        let segment = Segment::new(begun.name().to_owned(), begun.clone(), Arc::default());
        Self {
            segment,
            versions: watch::Sender::new(begun.version()),
            book: Mutex::new(Book {
                now: begun,
                lately: VecDeque::new(),
            }),
        }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The buffer of this registration has come, changed or gone: `look` says what there is of it now.
    pub(crate) fn changed(
        &self,
        id: RegistrationId,
        look: impl FnOnce() -> Option<BufferDescriptor>,
    ) {
        let mut book = self.book.lock();
        match look() {
            Some(buffer) => book.now.put(buffer),
            None if !book.now.take(id) => return,
            None => {}
        }
        book.lately.push_back(id);
        if book.lately.len() > LATELY {
            book.lately.pop_front();
        }
        self.segment.learn(book.now.clone());
        self.versions.send_replace(book.now.version());
    }

    /// Everything may have changed: `look` says what there is, as the version that it is told.
    pub(crate) fn renew(&self, look: impl FnOnce(u64) -> SegmentDescriptor) {
        let mut book = self.book.lock();
        book.now = look(book.now.version() + 1);
        // No change of a buffer leads there, so that everybody is told all of it.
        book.lately.clear();
        self.segment.learn(book.now.clone());
        self.versions.send_replace(book.now.version());
    }

    /// What somebody lacks who knows this version of this incarnation; `None`: nothing.
    pub(crate) fn since(&self, incarnation: u64, version: u64) -> Option<wire::GetSegmentResponse> {
        let book = self.book.lock();
        let now = book.now.version();
        let same_life = book.now.incarnation().get() == incarnation;
        if same_life && version == now {
            return None;
        }
        let missed = now.checked_sub(version).filter(|_| same_life);
        let missed = missed.and_then(|missed| usize::try_from(missed).ok());
        // Beyond that, all of it is the shorter answer.
        let known = book.lately.len().min(book.now.buffer_count().max(1));
        let mut answer = wire::GetSegmentResponse::default();
        match missed.filter(|missed| *missed <= known) {
            Some(missed) => {
                let touched: FxHashSet<_> =
                    book.lately.iter().rev().take(missed).copied().collect();
                answer.delta = Some(book.now.delta(version, touched.into_iter()));
            }
            None => {
                let now = book.now.clone();
                drop(book);
                answer.segment = Some(now.to_wire());
            }
        }
        Some(answer)
    }

    /// The latest version, whenever it changes.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.versions.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        identity::{Generation, Incarnation},
        memory::Permission,
    };

    const LIFE: u64 = 9;

    fn own() -> OwnSegment {
        let life = Incarnation::from_u64(LIFE).unwrap();
        let name = "a".to_owned();
        OwnSegment::new(SegmentDescriptor::new(
            name,
            life,
            0,
            String::new(),
            Vec::new(),
            Vec::new(),
        ))
    }

    fn add(own: &OwnSegment, id: u64) {
        let buffer = BufferDescriptor {
            registration: RegistrationId(id),
            generation: Generation(1),
            address: id * 100,
            length: 100,
            permission: Permission::PeersRead,
            location: "*".into(),
            links: ["tcp".to_owned()].into(),
        };
        own.changed(RegistrationId(id), || Some(buffer));
    }

    #[test]
    fn whoever_knows_a_version_is_told_what_it_lacks_and_no_more() {
        let own = own();
        for id in 1..=100 {
            add(&own, id);
        }
        own.changed(RegistrationId(7), || None);
        own.changed(RegistrationId(7), || None);
        assert_eq!(*own.versions().borrow(), 101, "the second changed nothing");
        assert_eq!(own.since(LIFE, 101), None);
        let delta = own.since(LIFE, 99).unwrap().delta.unwrap();
        assert_eq!((delta.changed.len(), &delta.removed[..]), (1, &[7][..]));
        assert_eq!(
            (delta.from_version, delta.version, delta.buffers),
            (99, 101, 99)
        );

        for (life, version) in [(0, 0), (LIFE + 1, 100), (LIFE, 102), (LIFE, u64::MAX)] {
            let answer = own.since(life, version).unwrap();
            let whole = answer.segment.expect("no delta leads from there");
            assert_eq!((whole.buffers.len(), answer.delta), (99, None));
        }
    }

    #[test]
    fn whoever_knew_it_before_it_was_renewed_is_told_everything() {
        let own = own();
        for id in 1..=3 {
            add(&own, id);
        }
        let before = own.segment().descriptor();
        own.renew(|version| {
            let endpoints = vec![("late".to_owned(), "there".to_owned())];
            let (name, life) = (before.name().to_owned(), before.incarnation());
            let buffers = before.buffers().cloned().collect();
            SegmentDescriptor::new(name, life, version, String::new(), endpoints, buffers)
        });
        assert_eq!(*own.versions().borrow(), 4);
        assert_eq!(own.since(LIFE, 3).unwrap().segment.unwrap().links.len(), 1);
        add(&own, 4);
        assert!(own.since(LIFE, 3).unwrap().segment.is_some());
        assert!(own.since(LIFE, 4).unwrap().delta.is_some());
    }

    #[test]
    fn only_so_many_changes_are_kept() {
        let own = own();
        add(&own, 1);
        for id in 0..LATELY as u64 + 10 {
            add(&own, 2 + id);
        }
        assert_eq!(own.book.lock().lately.len(), LATELY);
        assert!(own.since(LIFE, 10).unwrap().segment.is_some());
        assert!(own.since(LIFE, 20).unwrap().delta.is_some());
    }
}
