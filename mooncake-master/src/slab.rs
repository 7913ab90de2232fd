//! A table of values with small, generational references.
//!
//! It grows by chunks and never moves a value, so that it costs no spare half and no long copy; a
//! chunk that becomes empty is given back.

use std::{
    fmt,
    ops::{Index, IndexMut},
};

const CHUNK: u32 = 2048;
const NONE: u32 = u32::MAX;

/// Names a value for as long as it lives; a later value in its slot is not meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ref {
    pub(crate) slot: u32,
    pub(crate) life: u32,
}

impl Ref {
    /// Never zero.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.slot)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self {
            slot: (bits & u64::from(u32::MAX)) as u32,
            life: (bits >> 32) as u32,
        }
    }
}

enum Slot<T> {
    Vacant { next: u32 },
    Taken { life: u32, value: T },
}

struct Chunk<T> {
    slots: Vec<Slot<T>>,
    /// First of the vacant slots, as an index into the chunk.
    vacant: u32,
    taken: u32,
    /// Stands in `Slab::roomy`.
    roomy: bool,
}

/// See the [module](self).
pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks with a place to give.
    roomy: Vec<u32>,
    /// Of the latest value: one count for all slots, so that lives outlast their chunk.
    life: u32,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            roomy: Vec::new(),
            life: 0,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, value: T) -> Ref {
        self.life = self.life.checked_add(1).unwrap_or(1);
        let life = self.life;
        let at = self.roomy.last().copied().unwrap_or_else(|| {
            let at = u32::try_from(self.chunks.len()).expect("slots are counted in 32 bits");
            self.chunks.push(Chunk {
                slots: Vec::new(),
                vacant: NONE,
                taken: 0,
                roomy: true,
            });
            self.roomy.push(at);
            at
        });
        let chunk = &mut self.chunks[at as usize];
        let taken = Slot::Taken { life, value };
        let within = if chunk.vacant == NONE {
            if chunk.slots.capacity() == 0 {
                chunk.slots.reserve_exact(CHUNK as usize);
            }
            chunk.slots.push(taken);
            chunk.slots.len() as u32 - 1
        } else {
            let within = chunk.vacant;
            match std::mem::replace(&mut chunk.slots[within as usize], taken) {
                Slot::Vacant { next } => chunk.vacant = next,
                Slot::Taken { .. } => unreachable!("a slot in the vacant list is vacant"),
            }
            within
        };
        chunk.taken += 1;
        if chunk.taken == CHUNK {
            chunk.roomy = false;
            self.roomy.pop();
        }
        self.len += 1;
        Ref {
            slot: at * CHUNK + within,
            life,
        }
    }

    pub(crate) fn remove(&mut self, slot: u32) -> T {
        let (at, within) = (slot / CHUNK, slot % CHUNK);
        let chunk = &mut self.chunks[at as usize];
        let vacant = Slot::Vacant { next: chunk.vacant };
        let Slot::Taken { value, .. } =
            std::mem::replace(&mut chunk.slots[within as usize], vacant)
        else {
            unreachable!("only a taken slot is removed");
        };
        chunk.vacant = within;
        chunk.taken -= 1;
        self.len -= 1;
        if !chunk.roomy {
            chunk.roomy = true;
            self.roomy.push(at);
        }
        // The only chunk with room is kept, lest a value that comes and goes costs a chunk each time.
        if chunk.taken == 0 && self.roomy.len() > 1 {
            chunk.slots = Vec::new();
            chunk.vacant = NONE;
        }
        value
    }

    pub(crate) fn get(&self, at: Ref) -> Option<&T> {
        let chunk = self.chunks.get((at.slot / CHUNK) as usize)?;
        match chunk.slots.get((at.slot % CHUNK) as usize)? {
            Slot::Taken { life, value } if *life == at.life => Some(value),
            _ => None,
        }
    }

    /// The full reference of a taken slot.
    pub(crate) fn reference(&self, slot: u32) -> Ref {
        match &self.chunks[(slot / CHUNK) as usize].slots[(slot % CHUNK) as usize] {
            Slot::Taken { life, .. } => Ref { slot, life: *life },
            Slot::Vacant { .. } => unreachable!("only a taken slot is referred to"),
        }
    }

    /// What the slot holds, if it is taken.
    pub(crate) fn at(&self, slot: u32) -> Option<&T> {
        let chunk = self.chunks.get((slot / CHUNK) as usize)?;
        match chunk.slots.get((slot % CHUNK) as usize)? {
            Slot::Taken { value, .. } => Some(value),
            Slot::Vacant { .. } => None,
        }
    }

    /// One past the highest slot that may be taken.
    pub(crate) fn end(&self) -> u32 {
        self.chunks.len() as u32 * CHUNK
    }

    /// All values, by slot.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.chunks).flat_map(|(at, chunk)| {
            (0u32..)
                .zip(&chunk.slots)
                .filter_map(move |(within, slot)| match slot {
                    Slot::Taken { value, .. } => Some((at * CHUNK + within, value)),
                    Slot::Vacant { .. } => None,
                })
        })
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        match &self.chunks[(slot / CHUNK) as usize].slots[(slot % CHUNK) as usize] {
            Slot::Taken { value, .. } => value,
            Slot::Vacant { .. } => unreachable!("only a taken slot is looked into"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        match &mut self.chunks[(slot / CHUNK) as usize].slots[(slot % CHUNK) as usize] {
            Slot::Taken { value, .. } => value,
            Slot::Vacant { .. } => unreachable!("only a taken slot is looked into"),
        }
    }
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_reference_finds_its_own_value_or_none(steps in prop::collection::vec((any::<bool>(), 0usize..8192), 1..400)) {
            let mut slab = Slab::new();
            let mut live: Vec<(Ref, usize)> = Vec::new();
            let mut gone: Vec<Ref> = Vec::new();
            for (grow, n) in steps {
                if grow {
                    for i in 0..n % 97 {
                        live.push((slab.insert(n + i), n + i));
                    }
                } else {
                    for _ in 0..(n % 113).min(live.len()) {
                        let (at, value) = live.swap_remove(n % live.len());
                        prop_assert_eq!(slab.remove(at.slot), value);
                        gone.push(at);
                    }
                }
                prop_assert_eq!(slab.len(), live.len());
            }
            prop_assert!(live.iter().all(|(at, value)| slab.get(*at) == Some(value)));
            prop_assert!(gone.iter().all(|at| slab.get(*at).is_none()));
            prop_assert_eq!(slab.iter().count(), live.len());
        }
    }

    #[test]
    fn empty_chunks_are_given_back() {
        let mut slab = Slab::new();
        let all: Vec<_> = (0..CHUNK * 8).map(|i| slab.insert(i)).collect();
        for at in all {
            slab.remove(at.slot);
        }
        let kept = slab
            .chunks
            .iter()
            .filter(|c| c.slots.capacity() > 0)
            .count();
        assert!(kept <= 1, "{kept} chunks are kept for nothing");
    }
}
