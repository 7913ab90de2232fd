//! Devices by number, and sets of them.

use std::fmt;

use smallvec::SmallVec;

/// A device of one process, by the number that it keeps for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of devices, of any width. An empty one permits nothing.
///
/// ```
/// use mooncake_tent::spray::{DeviceId, Devices};
///
/// let allowed: Devices = [DeviceId(3), DeviceId(200)].into_iter().collect();
/// assert!(allowed.contains(DeviceId(200)) && !allowed.contains(DeviceId(8)));
/// assert!(Devices::first(2).iter().eq([DeviceId(0), DeviceId(1)]));
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Devices {
    /// The last one is not 0, so that equal sets have equal words.
    words: SmallVec<[u64; 2]>,
}

const BITS: usize = u64::BITS as usize;

impl Devices {
    /// No device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Those with the numbers below `count`.
    pub fn first(count: u16) -> Self {
        (0..count).map(DeviceId).collect()
    }

    /// Adds a device; `false`: it was there.
    pub fn insert(&mut self, device: DeviceId) -> bool {
        let (word, bit) = place(device);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let absent = self.words[word] & bit == 0;
        self.words[word] |= bit;
        absent
    }

    /// Takes a device out; `false`: it was not there.
    pub fn remove(&mut self, device: DeviceId) -> bool {
        let (word, bit) = place(device);
        let present = self.contains(device);
        if present {
            self.words[word] &= !bit;
            while self.words.last() == Some(&0) {
                self.words.pop();
            }
        }
        present
    }

    /// Whether the device is in the set.
    pub fn contains(&self, device: DeviceId) -> bool {
        let (word, bit) = place(device);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        let ones = self.words.iter().map(|bits| bits.count_ones() as usize);
        ones.sum()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = DeviceId> {
        self.words.iter().enumerate().flat_map(|(word, bits)| {
            let mut bits = *bits;
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits.checked_sub(1)?;
                Some(DeviceId((word * BITS + bit) as u16))
            })
        })
    }
}

fn place(device: DeviceId) -> (usize, u64) {
    let number = usize::from(device.0);
    (number / BITS, 1 << (number % BITS))
}

impl FromIterator<DeviceId> for Devices {
    fn from_iter<I: IntoIterator<Item = DeviceId>>(devices: I) -> Self {
        let mut set = Self::new();
        for device in devices {
            set.insert(device);
        }
        set
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(|device| device.0))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_devices_of_any_width_is_a_set(
            steps in prop::collection::vec((any::<bool>(), prop_oneof![0..200u16, any::<u16>()]), 0..80)
        ) {
            let (mut set, mut model) = (Devices::new(), BTreeSet::new());
            for (add, number) in steps {
                let device = DeviceId(number);
                if add {
                    prop_assert_eq!(set.insert(device), model.insert(device));
                } else {
                    prop_assert_eq!(set.remove(device), model.remove(&device));
                }
                prop_assert!(set.contains(device) == add);
            }
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
            prop_assert_eq!(set, model.into_iter().collect());
        }
    }
}
