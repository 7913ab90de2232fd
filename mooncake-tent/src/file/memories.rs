//! Memory that a ring has pinned, so that requests may name it.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::ring::Ring;
use crate::{identity::RegistrationId, memory::LocalBuffer};

/// Pieces of memory that a ring takes.
pub(super) const MOST: u32 = 1024;

/// Which memory is where in a ring's table. Looked at for each part, written at registration.
#[derive(Debug)]
pub(super) struct Memories {
    places: ArcSwap<FxHashMap<RegistrationId, u16>>,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    free: Vec<u16>,
    pinned: FxHashMap<RegistrationId, (u16, Weak<LocalBuffer>)>,
}

impl Memories {
    /// A table with room for [`MOST`] pieces, or for none.
    pub(super) fn new(has_room: bool) -> Self {
        let places = if has_room { MOST as u16 } else { 0 };
        Self {
            places: ArcSwap::default(),
            books: Mutex::new(Books {
                free: (0..places).rev().collect(),
                ..Books::default()
            }),
        }
    }

    /// Where memory is, if it is pinned.
    pub(super) fn place(&self, id: RegistrationId) -> Option<u16> {
        self.places.load().get(&id).copied()
    }

    /// How many are pinned, without those whose owner is gone.
    pub(super) fn len(&self, ring: &Ring) -> u64 {
        let mut books = self.books.lock();
        if books.forget_the_dead(ring) {
            self.publish(&books);
        }
        books.pinned.len() as u64
    }

    /// Pins memory; `false`: it stays as it is.
    pub(super) fn pin(&self, ring: &Ring, buffer: &Arc<LocalBuffer>) -> bool {
        let mut books = self.books.lock();
        books.forget_the_dead(ring);
        let Some(place) = books.free.pop() else {
            tracing::debug!(id = %buffer.id(), "no room to pin more memory");
            return false;
        };
        if let Err(error) = ring.set_memory(u32::from(place), buffer.memory()) {
            tracing::debug!(id = %buffer.id(), %error, "memory is not pinned");
            books.free.push(place);
            return false;
        }
        let entry = (place, Arc::downgrade(buffer));
        books.pinned.insert(buffer.id(), entry);
        self.publish(&books);
        true
    }

    /// Lets go of memory that nothing uses any more.
    pub(super) fn unpin(&self, ring: &Ring, id: RegistrationId) {
        let mut books = self.books.lock();
        if books.pinned.contains_key(&id) {
            books.forget(ring, id);
            self.publish(&books);
        }
    }

    fn publish(&self, books: &Books) {
        let places = books.pinned.iter().map(|(id, (place, _))| (*id, *place));
        self.places.store(Arc::new(places.collect()));
    }
}

impl Books {
    /// Of buffers that were dropped, not unregistered; `false`: there are none.
    fn forget_the_dead(&mut self, ring: &Ring) -> bool {
        let dead = self.pinned.iter();
        let dead: Vec<_> = dead
            .filter(|(_, (_, buffer))| buffer.strong_count() == 0)
            .map(|(id, _)| *id)
            .collect();
        for id in &dead {
            self.forget(ring, *id);
        }
        !dead.is_empty()
    }

    fn forget(&mut self, ring: &Ring, id: RegistrationId) {
        let Some((place, _)) = self.pinned.remove(&id) else {
            return;
        };
        match ring.unset_memory(u32::from(place)) {
            Ok(()) => self.free.push(place),
            // Its place is lost, which costs others a chance to be pinned.
            Err(error) => tracing::debug!(%id, %error, "memory stays pinned"),
        }
    }
}
