//! The bytes of keys, in places of a few sizes.

use crate::mapped::Pool;

/// Up to here sizes grow by 16 bytes, beyond by an eighth of a power of two.
const FINE: usize = 256;
const CLASSES: usize = 48;

#[derive(Debug)]
pub(crate) struct Keys {
    pools: [Pool; CLASSES],
}

/// The class of a key's length, and the size of its places.
fn class(len: u16) -> (usize, usize) {
    let last = (len as usize).saturating_sub(1);
    let (step, classes_before) = if last < FINE {
        (4, 0)
    } else {
        let step = last.ilog2() - 3;
        (step, 16 + (step as usize - 5) * 8 - 8)
    };
    let steps = last >> step;
    (classes_before + steps, (steps + 1) << step)
}

impl Keys {
    pub(crate) fn new() -> Self {
        let mut sizes = [0; CLASSES];
        for len in 1..=super::MAX_KEY_BYTES as u16 {
            let (class, size) = class(len);
            sizes[class] = size;
        }
        Self {
            pools: sizes.map(Pool::new),
        }
    }

    /// The place of a copy.
    pub(crate) fn insert(&mut self, key: &[u8]) -> u32 {
        let pool = &mut self.pools[class(key.len() as u16).0];
        let place = pool.take();
        pool.bytes_mut(place)[..key.len()].copy_from_slice(key);
        place
    }

    pub(crate) fn remove(&mut self, place: u32, len: u16) {
        self.pools[class(len).0].give(place);
    }

    #[inline]
    pub(crate) fn at(&self, place: u32, len: u16) -> &[u8] {
        &self.pools[class(len).0].bytes(place)[..len as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_fit_and_waste_little() {
        let mut last = 0;
        for len in 1..=super::super::MAX_KEY_BYTES {
            let (class, size) = class(len as u16);
            assert!(
                size >= len && size - len < (len / 8).max(16),
                "{len} in {size}"
            );
            assert!(size.is_multiple_of(16) && class < CLASSES);
            assert!(class == last || class == last + 1, "{len}");
            last = class;
        }
        assert_eq!(last, CLASSES - 1);
    }

    #[test]
    fn keys_of_all_lengths_come_back() {
        let mut keys = Keys::new();
        let key = |len: u16| vec![len as u8; len as usize];
        let all: Vec<_> = (1..=4096)
            .map(|len| (keys.insert(&key(len)), len))
            .collect();
        for &(place, len) in &all {
            assert_eq!(keys.at(place, len), key(len));
        }
        for (place, len) in all {
            keys.remove(place, len);
        }
    }
}
