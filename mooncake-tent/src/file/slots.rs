//! Numbers that are given out and taken back.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Values under numbers, which are used again. A number carries a generation, so that an old one
/// finds nothing.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Numbered<T> {
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (generation, content) = &mut self.places[place as usize];
        *content = Some(value);
        u64::from(*generation) << 32 | u64::from(place)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let (generation, content) = self.places.get_mut(number as u32 as usize)?;
        if u64::from(*generation) != number >> 32 {
            return None;
        }
        let value = content.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(number as u32);
        Some(value)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (generation, content) = self.places.get_mut(number as u32 as usize)?;
        content
            .as_mut()
            .filter(|_| u64::from(*generation) == number >> 32)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        let places = self.places.iter_mut().enumerate();
        places.filter_map(|(place, (generation, content))| {
            let number = u64::from(*generation) << 32 | place as u64;
            Some((number, content.as_mut()?))
        })
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

/// Places in a table of the kernel's, of which it has so many.
#[derive(Debug)]
pub(super) struct Table {
    free: Mutex<Vec<u32>>,
}

impl Table {
    pub(super) fn new(places: u32) -> Self {
        Self {
            free: Mutex::new((0..places).rev().collect()),
        }
    }

    pub(super) fn take(&self) -> Option<u32> {
        self.free.lock().pop()
    }

    pub(super) fn give_back(&self, place: u32) {
        self.free.lock().push(place);
    }
}

/// Knows a place of each of its tables by heart, and forgets it.
pub(super) trait Forgets: Send + Sync + std::fmt::Debug {
    /// Nothing uses what is at `place` any more.
    fn forget(&self, place: u32);
}

/// What is at a place is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) place: u32,
    owner: Weak<dyn Forgets>,
}

impl Slot {
    pub(super) fn new(place: u32, owner: &Arc<dyn Forgets>) -> Self {
        Self {
            place,
            owner: Arc::downgrade(owner),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.forget(self.place);
        }
    }
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use super::*;

    #[test]
    fn an_old_number_finds_nothing() {
        let mut numbered = Numbered::default();
        let (a, b) = (numbered.insert('a'), numbered.insert('b'));
        assert_eq!(numbered.remove(a), Some('a'));
        let c = numbered.insert('c');
        assert_ne!(a, c);
        assert_eq!(numbered.remove(a), None);
        assert_eq!(numbered.get_mut(a), None);
        assert_eq!(numbered.get_mut(c), Some(&mut 'c'));
        let all: Vec<_> = numbered
            .iter_mut()
            .map(|(number, it)| (number, *it))
            .collect();
        assert_eq!(all, [(c, 'c'), (b, 'b')]);
        assert_eq!(numbered.len(), 2);
        assert_eq!(numbered.remove(u64::MAX), None);
    }
}
