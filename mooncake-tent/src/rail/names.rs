//! Numbers of devices that outlive descriptors.

use rustc_hash::FxHashMap;

use crate::spray::DeviceId;

/// Gives each device of one process a number by its name, and the same number for ever.
///
/// A descriptor that lists devices in another order, leaves some out or brings them back, changes no
/// number. One of these is kept for each life of a peer, beside what is cached of it.
#[derive(Clone, Debug, Default)]
pub struct DeviceNames {
    ids: FxHashMap<Box<str>, DeviceId>,
}

impl DeviceNames {
    /// The most names that a process may come with: its descriptor is not to be trusted with our memory.
    pub const MOST: usize = 1024;

    /// No device is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of `name`, a new one if it was never seen; `None`: there were too many names.
    pub fn id(&mut self, name: &str) -> Option<DeviceId> {
        if let Some(id) = self.ids.get(name) {
            return Some(*id);
        }
        if self.ids.len() >= Self::MOST {
            return None;
        }
        let id = DeviceId(u16::try_from(self.ids.len()).ok()?);
        self.ids.insert(name.into(), id);
        Some(id)
    }

    /// How many names were seen.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// None was seen.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_keeps_its_number_whatever_later_descriptors_say() {
        let mut names = DeviceNames::new();
        let first: Vec<_> = ["a", "b", "c"].map(|name| names.id(name)).to_vec();
        let without: Vec<_> = ["c", "b"].map(|name| names.id(name)).to_vec();
        let again: Vec<_> = ["d", "a"].map(|name| names.id(name)).to_vec();
        assert_eq!(without, [first[2], first[1]]);
        assert_eq!(again[1], first[0]);
        assert!(!first.contains(&again[0]) && names.len() == 4);
    }

    #[test]
    fn a_peer_with_endless_devices_is_not_remembered_without_end() {
        let mut names = DeviceNames::new();
        for number in 0..DeviceNames::MOST {
            assert!(names.id(&number.to_string()).is_some());
        }
        assert_eq!(names.id("one more"), None);
        assert_eq!(names.id("0"), Some(DeviceId(0)));
    }
}
