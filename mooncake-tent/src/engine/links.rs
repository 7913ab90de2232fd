//! The links of an engine, each at its place for good, whether it is installed yet or not.

use std::{
    ops::Index,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{error::Error, metrics::Served, transport::Transport};

/// A link that an engine should have if possible, and has not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AbsentLink {
    /// Its name.
    pub name: &'static str,
    /// What the last attempt said.
    pub why: String,
    /// How often it was tried.
    pub attempts: u32,
    /// The reason may pass, and it is tried again from time to time.
    pub retried: bool,
}

/// All links that an engine was given.
#[derive(Debug)]
pub(super) struct Links {
    all: Vec<Arc<dyn Transport>>,
    /// What each does for peers.
    served: Vec<Arc<Served>>,
    /// A bit for the place of each that takes buffers.
    taking: AtomicU64,
    /// The same for those that also carry requests.
    carrying: AtomicU64,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    /// By place.
    absent: Vec<(usize, AbsentLink)>,
    /// No link may come any more.
    closed: bool,
}

impl Links {
    /// All but the `absent` ones are installed.
    pub(super) fn new(
        all: Vec<Arc<dyn Transport>>,
        served: Vec<Arc<Served>>,
        absent: Vec<(usize, AbsentLink)>,
    ) -> Self {
        let there = |place: &usize| absent.iter().all(|(other, _)| other != place);
        let there = (0..all.len()).filter(there);
        let there = there.fold(0, |bits, place| bits | 1 << place);
        Self {
            all,
            served,
            taking: AtomicU64::new(there),
            carrying: AtomicU64::new(there),
            book: Mutex::new(Book {
                absent,
                closed: false,
            }),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// What the link at this place does for peers.
    pub(super) fn served(&self, place: usize) -> &Arc<Served> {
        &self.served[place]
    }

    pub(super) fn get(&self, place: usize) -> Option<&Arc<dyn Transport>> {
        self.all.get(place)
    }

    /// All of them, installed or not, by place.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Transport>> {
        self.all.iter()
    }

    /// Those that carry requests, with their places.
    pub(super) fn installed(&self) -> impl Iterator<Item = (usize, &Arc<dyn Transport>)> {
        self.among(self.carrying.load(Ordering::Acquire))
    }

    /// Those that take buffers, with their places.
    pub(super) fn taking(&self) -> impl Iterator<Item = (usize, &Arc<dyn Transport>)> {
        self.among(self.taking.load(Ordering::Acquire))
    }

    /// Those whose bits are set, with their places.
    pub(super) fn among(&self, bits: u64) -> impl Iterator<Item = (usize, &Arc<dyn Transport>)> {
        let all = self.all.iter().enumerate();
        all.filter(move |(place, _)| bits >> place & 1 == 1)
    }

    pub(super) fn is_installed(&self, place: usize) -> bool {
        self.carrying.load(Ordering::Acquire) >> place & 1 == 1
    }

    pub(super) fn absent(&self) -> Vec<AbsentLink> {
        let book = self.book.lock();
        book.absent.iter().map(|(_, link)| link.clone()).collect()
    }

    /// Why the link at this place is not there, and whether that may change; `None`: it is.
    pub(super) fn absence(&self, place: usize) -> Option<AbsentLink> {
        if self.is_installed(place) {
            return None;
        }
        let book = self.book.lock();
        let absent = book.absent.iter().find(|(other, _)| *other == place);
        absent.map(|(_, link)| link.clone())
    }

    /// Places of those that are tried again.
    pub(super) fn retried(&self) -> Vec<usize> {
        let book = self.book.lock();
        let retried = book.absent.iter().filter(|(_, link)| link.retried);
        retried.map(|(place, _)| *place).collect()
    }

    /// Another attempt failed; after how many.
    pub(super) fn failed_again(&self, place: usize, error: &Error, retried: bool) -> u32 {
        let mut book = self.book.lock();
        let absent = book.absent.iter_mut().find(|(other, _)| *other == place);
        absent.map_or(u32::MAX, |(_, link)| {
            link.why = error.to_string();
            link.attempts += 1;
            link.retried = retried;
            link.attempts
        })
    }

    /// It was installed, and takes buffers from now on; `false`: it is too late for it.
    pub(super) fn takes(&self, place: usize) -> bool {
        let book = self.book.lock();
        if !book.closed {
            self.taking.fetch_or(1 << place, Ordering::AcqRel);
        }
        !book.closed
    }

    /// It has all buffers that there are, and carries requests from now on; `false`: it is too late.
    pub(super) fn carries(&self, place: usize) -> bool {
        let mut book = self.book.lock();
        if !book.closed {
            self.carrying.fetch_or(1 << place, Ordering::AcqRel);
            book.absent.retain(|(other, _)| *other != place);
        }
        !book.closed
    }

    /// None may come from now on.
    pub(super) fn close(&self) {
        let mut book = self.book.lock();
        book.closed = true;
        for (_, link) in &mut book.absent {
            link.retried = false;
        }
    }

    pub(super) fn are_closed(&self) -> bool {
        self.book.lock().closed
    }
}

impl Index<usize> for Links {
    type Output = Arc<dyn Transport>;

    fn index(&self, place: usize) -> &Self::Output {
        &self.all[place]
    }
}
