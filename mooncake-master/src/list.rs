//! A doubly linked list through the places of a table: no memory of its own, removal in one step.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// No place.
pub(crate) const NONE: u32 = u32::MAX;

/// A value's neighbours in one list that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct Links {
    /// Towards the front.
    pub(crate) prev: u32,
    /// Towards the back.
    pub(crate) next: u32,
}

impl Links {
    pub(crate) const LOOSE: Self = Self {
        prev: NONE,
        next: NONE,
    };
}

/// A table whose values can be in a list.
pub(crate) trait Linked {
    fn links(&mut self, at: u32) -> &mut Links;
}

/// The ends of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) front: u32,
    pub(crate) back: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        front: NONE,
        back: NONE,
    };

    pub(crate) fn push_front(&mut self, table: &mut impl Linked, at: u32) {
        self.insert(table, at, NONE, self.front);
    }

    /// Puts `at` between two neighbours.
    pub(crate) fn insert(&mut self, table: &mut impl Linked, at: u32, prev: u32, next: u32) {
        *table.links(at) = Links { prev, next };
        match prev {
            NONE => self.front = at,
            prev => table.links(prev).next = at,
        }
        match next {
            NONE => self.back = at,
            next => table.links(next).prev = at,
        }
    }

    pub(crate) fn remove(&mut self, table: &mut impl Linked, at: u32) {
        let Links { prev, next } = std::mem::replace(table.links(at), Links::LOOSE);
        match prev {
            NONE => self.front = next,
            prev => table.links(prev).next = next,
        }
        match next {
            NONE => self.back = prev,
            next => table.links(next).prev = prev,
        }
    }
}
