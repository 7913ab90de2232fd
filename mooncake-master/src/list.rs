//! A doubly linked list through the slots of a slab: no memory of its own, removal in one step.

use crate::slab::Slab;

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// A value's neighbours in the one list that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A value that can be in a list.
pub(crate) trait Linked {
    fn links(&mut self) -> &mut Links;
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

    pub(crate) fn push_front<T: Linked>(&mut self, slab: &mut Slab<T>, slot: u32) {
        self.insert(slab, slot, NONE, self.front);
    }

    /// Puts `slot` between two neighbours.
    pub(crate) fn insert<T: Linked>(
        &mut self,
        slab: &mut Slab<T>,
        slot: u32,
        prev: u32,
        next: u32,
    ) {
        *slab[slot].links() = Links { prev, next };
        match prev {
            NONE => self.front = slot,
            prev => slab[prev].links().next = slot,
        }
        match next {
            NONE => self.back = slot,
            next => slab[next].links().prev = slot,
        }
    }

    pub(crate) fn remove<T: Linked>(&mut self, slab: &mut Slab<T>, slot: u32) {
        let Links { prev, next } = std::mem::replace(slab[slot].links(), Links::LOOSE);
        match prev {
            NONE => self.front = next,
            prev => slab[prev].links().next = next,
        }
        match next {
            NONE => self.back = prev,
            next => slab[next].links().prev = prev,
        }
    }
}
