//! Where a device is plugged in.

use std::{fmt, path::Path};

/// The way from the host bridge to a device: `pci0000:80`, the bridges, and the device itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciPath {
    /// The host bridge and at least the device.
    parts: Vec<String>,
}

impl PciPath {
    /// The part of a path in sysfs that speaks of PCI; `None`: nothing does.
    pub(super) fn within(path: &Path) -> Option<Self> {
        let parts = path.iter().filter_map(|part| part.to_str());
        let parts: Vec<String> = parts
            .skip_while(|part| !is_host_bridge(part))
            .enumerate()
            .take_while(|(place, part)| *place == 0 || is_address(part))
            .map(|(_, part)| part.to_owned())
            .collect();
        (parts.len() > 1).then_some(Self { parts })
    }

    /// Of the device: `0000:81:00.0`.
    pub fn address(&self) -> &str {
        self.parts.last().expect("a path ends with the device")
    }

    /// From the host bridge to the device.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(String::as_str)
    }

    /// How far it is to `other` within PCI; `None`: they meet only above their host bridges.
    fn distance(&self, other: &Self) -> Option<Distance> {
        if self == other {
            return Some(Distance::Same);
        }
        let pairs = self.parts.iter().zip(&other.parts);
        let common = pairs.take_while(|(ours, theirs)| ours == theirs).count();
        let longest = self.parts.len().max(other.parts.len());
        match common {
            0 => None,
            1 => Some(Distance::HostBridge),
            // A switch is a bridge up and one down for each device.
            _ if longest - common <= 2 => Some(Distance::Switch),
            _ => Some(Distance::Switches),
        }
    }
}

fn is_host_bridge(part: &str) -> bool {
    part.strip_prefix("pci")
        .and_then(|rest| rest.split_once(':'))
        .is_some_and(|(domain, bus)| is_hex(domain, 4..=8) && is_hex(bus, 2..=2))
}

fn is_address(part: &str) -> bool {
    let mut pieces = part.splitn(3, ':');
    let (domain, bus, rest) = (pieces.next(), pieces.next(), pieces.next());
    let slot = rest.and_then(|rest| rest.split_once('.'));
    domain.is_some_and(|domain| is_hex(domain, 4..=8))
        && bus.is_some_and(|bus| is_hex(bus, 2..=2))
        && slot.is_some_and(|(slot, function)| is_hex(slot, 2..=2) && is_hex(function, 1..=1))
}

fn is_hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> bool {
    digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What bytes between two devices have to cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distance {
    /// Nothing: they are one device under two names.
    Same,
    /// One switch, or they are on one card.
    Switch,
    /// Several switches below one host bridge.
    Switches,
    /// A host bridge.
    HostBridge,
    /// What joins host bridges within a NUMA node.
    Node,
    /// What joins NUMA nodes.
    System,
    /// It is not known.
    Unknown,
}

impl Distance {
    /// Between devices at these places, whose NUMA nodes are given where they are known.
    pub(super) fn between(
        here: (Option<&PciPath>, Option<u32>),
        there: (Option<&PciPath>, Option<u32>),
    ) -> Self {
        let within = here.0.and_then(|path| path.distance(there.0?));
        within.unwrap_or(match (here.1, there.1) {
            (Some(a), Some(b)) if a == b => Self::Node,
            (Some(_), Some(_)) => Self::System,
            _ => Self::Unknown,
        })
    }

    /// A short name, that operators know from other tools: `PIX`, `PXB`, `PHB`, `NODE` or `SYS`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "X",
            Self::Switch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
            Self::Unknown => "?",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PciPath {
        PciPath::within(Path::new(text)).unwrap()
    }

    #[test]
    fn the_way_to_a_device_is_what_its_path_says_of_pci() {
        let nic = path("/sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0");
        assert_eq!(nic.address(), "0000:00:03.0");
        assert_eq!(
            nic.parts().collect::<Vec<_>>(),
            ["pci0000:00", "0000:00:03.0"]
        );
        for without in [
            "/sys/devices/virtual/net/rxe0",
            "pci0000:00",
            "/pci00:00/0000:00:03.0",
        ] {
            assert_eq!(PciPath::within(Path::new(without)), None, "{without}");
        }
    }

    #[test]
    fn distances_have_the_classes_that_operators_know() {
        let device = "pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:00.0/0000:83:00.0";
        for (other, distance) in [
            (device, Distance::Same),
            (
                "pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:00.0/0000:83:00.1",
                Distance::Switch,
            ),
            (
                "pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:01.0/0000:84:00.0",
                Distance::Switch,
            ),
            (
                "pci0000:80/0000:80:01.1/0000:81:00.1/0000:85:00.0/0000:86:00.0",
                Distance::Switches,
            ),
            ("pci0000:80/0000:80:03.1/0000:88:00.0", Distance::HostBridge),
            ("pci0000:c0/0000:c0:01.1/0000:c1:00.0", Distance::Node),
        ] {
            let (device, other) = (path(device), path(other));
            let found = Distance::between((Some(&device), Some(1)), (Some(&other), Some(1)));
            assert_eq!(found, distance, "{other:?}");
        }
        let (a, b) = (
            path("pci0000:00/0000:00:01.0"),
            path("pci0000:80/0000:80:01.0"),
        );
        let of = |here, there| Distance::between((Some(&a), here), (Some(&b), there));
        assert_eq!(of(Some(0), Some(1)), Distance::System);
        assert_eq!(of(None, Some(1)), Distance::Unknown, "law 12");
    }
}
