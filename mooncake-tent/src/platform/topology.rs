//! What a machine is made of, as far as transfers care.

use std::collections::BTreeMap;

use super::{CpuSet, Distance, PciPath, PriorityMatrix};
use crate::selector::DeviceMask;

/// NUMA nodes, network devices, and which of these suit which memory.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Topology {
    /// In the order of their numbers.
    pub nodes: Vec<NumaNode>,
    /// RDMA devices first, each kind in the order of its names.
    pub nics: Vec<Nic>,
    /// Where memory may be.
    pub memories: Vec<MemoryPlace>,
}

/// A part of the machine that has memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Those that are in it; none in a node that is only memory.
    pub cpus: CpuSet,
    /// Memory in bytes, if the system says.
    pub memory_bytes: Option<u64>,
    /// From here to each node, by number: 10 is local, 20 twice as far.
    pub distances: BTreeMap<u32, u32>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nic {
    /// What the system calls it.
    pub name: String,
    /// What speaks to it.
    pub kind: NicKind,
    /// Its address, in whatever form it was given.
    pub pci_bus_id: Option<String>,
    /// Where it is plugged in; `None`: it is not, or that is not known.
    pub pci: Option<PciPath>,
    /// To which node it is attached; `None`: that is not known.
    pub numa_node: Option<u32>,
    /// Whether it has a connection; `None`: that is not known.
    pub up: Option<bool>,
    /// In bits a second, if the system says.
    pub bits_per_second: Option<u64>,
    /// The network interface that an RDMA device sends through.
    pub interface: Option<String>,
    /// What a description of the machine says of it besides.
    pub attributes: BTreeMap<String, String>,
}

/// What speaks to a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NicKind {
    /// RDMA verbs.
    Rdma,
    /// Unified Bus.
    Ub,
    /// Sockets.
    Tcp,
    /// That is not known.
    Unknown,
}

impl NicKind {
    /// All of them, in the order in which devices are listed.
    pub const ALL: [Self; 4] = [Self::Rdma, Self::Ub, Self::Tcp, Self::Unknown];

    /// `rdma`, `ub`, `tcp` or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Ub => "ub",
            Self::Tcp => "tcp",
            Self::Unknown => "unknown",
        }
    }
}

/// A place where memory may be, with the devices that suit it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlace {
    /// Its name as the location of buffers: `cpu:0`, or `*` for memory anywhere.
    pub location: String,
    /// What kind of memory, as descriptions of machines say: `host`, `cuda` and so on.
    pub kind: MemoryPlaceKind,
    /// The address of the device whose memory it is.
    pub pci_bus_id: Option<String>,
    /// In which node it is; `None`: that is not known.
    pub numa_node: Option<u32>,
    /// Devices by their place in [`Topology::nics`], the best tier first. Those of which nothing is
    /// known are in the middle.
    pub tiers: [Vec<usize>; 3],
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "they are names")]
pub enum MemoryPlaceKind {
    Host,
    Cuda,
    Rocm,
    Ascend,
    Unknown,
}

impl MemoryPlaceKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Host,
        Self::Cuda,
        Self::Rocm,
        Self::Ascend,
        Self::Unknown,
    ];

    /// `host`, `cuda`, `rocm`, `ascend` or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Ascend => "ascend",
            Self::Unknown => "unknown",
        }
    }
}

/// Memory anywhere.
pub(super) const ANYWHERE: &str = "*";

/// Why a description of a machine makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's line names its fields")]
#[non_exhaustive]
pub enum TopologyError {
    /// The text is no JSON of this form; the message names the place, and the field if there is one.
    #[error("{0}")]
    Json(String),
    /// A location ranks a device twice.
    #[error("{location}: device {nic} is there twice")]
    RankedTwice { location: String, nic: String },
    /// Two devices or two locations have the same name.
    #[error("{what} {name:?} is there twice")]
    Twice { what: &'static str, name: String },
    /// A location ranks a device that there is not.
    #[error("{location}: there is no device {nic}")]
    UnknownNic { location: String, nic: String },
}

impl Topology {
    /// How far it is between the devices at two places in [`nics`](Self::nics).
    ///
    /// # Panics
    ///
    /// There is none at one of them.
    pub fn distance(&self, here: usize, there: usize) -> Distance {
        let place = |nic: &Nic| (nic.pci.clone(), nic.numa_node);
        let (here_is, there_is) = (place(&self.nics[here]), place(&self.nics[there]));
        if here == there {
            return Distance::Same;
        }
        Distance::between(
            (here_is.0.as_ref(), here_is.1),
            (there_is.0.as_ref(), there_is.1),
        )
    }

    /// The devices for memory at `location`, the best tier first; of a location that is not listed,
    /// those for memory anywhere.
    pub fn tiers(&self, location: &str) -> Option<&[Vec<usize>; 3]> {
        let listed = |location: &str| {
            self.memories
                .iter()
                .find(|place| place.location == location)
        };
        let place = listed(location).or_else(|| listed(ANYWHERE))?;
        Some(&place.tiers)
    }

    /// Which devices suit which memory, by name.
    pub fn priority_matrix(&self) -> PriorityMatrix {
        let names = |tiers: &[Vec<usize>]| {
            let places = tiers.iter().flatten();
            places.map(|place| self.nics[*place].name.clone()).collect()
        };
        let rows = self.memories.iter().map(|place| {
            let [first, rest @ ..] = &place.tiers;
            let preferred = names(std::slice::from_ref(first));
            (place.location.clone(), preferred, names(rest))
        });
        PriorityMatrix::from_rows(rows)
    }

    /// The same machine, with what `matrix` says of the locations that it lists.
    ///
    /// # Errors
    ///
    /// It names a device that there is not.
    pub fn with_priority_matrix(mut self, matrix: &PriorityMatrix) -> Result<Self, TopologyError> {
        for (location, preferred, available) in matrix.rows() {
            let places = |names: &[String]| {
                let place = |name: &String| {
                    let found = self.nics.iter().position(|nic| nic.name == *name);
                    found.ok_or_else(|| TopologyError::UnknownNic {
                        location: location.to_owned(),
                        nic: name.clone(),
                    })
                };
                names.iter().map(place).collect::<Result<Vec<_>, _>>()
            };
            let tiers = [places(preferred)?, Vec::new(), places(available)?];
            match self
                .memories
                .iter_mut()
                .find(|place| place.location == location)
            {
                Some(place) => place.tiers = tiers,
                None => self.memories.push(MemoryPlace::named(location, tiers)),
            }
        }
        Ok(self)
    }

    /// Only those devices that `keep` says.
    #[must_use]
    pub fn filtered(mut self, mut keep: impl FnMut(&Nic) -> bool) -> Self {
        let kept = DeviceMask::of(self.nics.len(), |place| keep(&self.nics[*place]));
        let new: Vec<Option<usize>> = (0..self.nics.len())
            .scan(0, |next, place| {
                let place = kept.contains(place).then_some(*next);
                *next += usize::from(place.is_some());
                Some(place)
            })
            .collect();
        for tier in self.memories.iter_mut().flat_map(|place| &mut place.tiers) {
            *tier = tier.iter().filter_map(|place| new[*place]).collect();
        }
        let mut place = 0;
        self.nics.retain(|_| {
            place += 1;
            kept.contains(place - 1)
        });
        self
    }

    /// Fills in [`memories`](Self::memories) from where nodes and devices are: those of the same node
    /// first, then those of which that is not known, then the others, the nearest first.
    pub(super) fn rank(&mut self) {
        let places = self.nodes.iter().map(|node| {
            let mut tiers: [Vec<usize>; 3] = Default::default();
            for (place, nic) in self.nics.iter().enumerate() {
                let tier = match nic.numa_node {
                    Some(id) if id == node.id => 0,
                    None => 1,
                    Some(_) => 2,
                };
                tiers[tier].push(place);
            }
            let far = |place: &usize| {
                let there = self.nics[*place].numa_node;
                let distance = there.and_then(|there| node.distances.get(&there));
                distance.copied().unwrap_or(u32::MAX)
            };
            tiers[2].sort_by_key(far);
            MemoryPlace {
                kind: MemoryPlaceKind::Host,
                numa_node: Some(node.id),
                ..MemoryPlace::named(&format!("cpu:{}", node.id), tiers)
            }
        });
        let mut places: Vec<_> = places.collect();
        let all = [(0..self.nics.len()).collect(), Vec::new(), Vec::new()];
        places.push(MemoryPlace {
            kind: MemoryPlaceKind::Host,
            ..MemoryPlace::named(ANYWHERE, all)
        });
        self.memories = places;
    }

    /// Whether names are names of one thing, and tiers of devices that there are.
    #[cfg(feature = "json")]
    pub(super) fn check(&self) -> Result<(), TopologyError> {
        let twice = |what, names: Vec<&String>| {
            let mut seen = std::collections::HashSet::new();
            let again = names.into_iter().find(|name| !seen.insert(*name));
            again.map_or(Ok(()), |name| {
                let name = name.clone();
                Err(TopologyError::Twice { what, name })
            })
        };
        twice("device", self.nics.iter().map(|nic| &nic.name).collect())?;
        let locations = self.memories.iter().map(|place| &place.location);
        twice("memory", locations.collect())?;
        for place in &self.memories {
            let mut seen = std::collections::HashSet::new();
            for id in place.tiers.iter().flatten() {
                let location = place.location.clone();
                let Some(nic) = self.nics.get(*id) else {
                    let nic = format!("number {id}");
                    return Err(TopologyError::UnknownNic { location, nic });
                };
                if !seen.insert(id) {
                    let nic = nic.name.clone();
                    return Err(TopologyError::RankedTwice { location, nic });
                }
            }
        }
        Ok(())
    }
}

impl NumaNode {
    pub(super) fn new(id: u32) -> Self {
        Self {
            id,
            cpus: CpuSet::default(),
            memory_bytes: None,
            distances: BTreeMap::new(),
        }
    }
}

impl Nic {
    pub(super) fn new(name: impl Into<String>, kind: NicKind) -> Self {
        Self {
            name: name.into(),
            kind,
            pci_bus_id: None,
            pci: None,
            numa_node: None,
            up: None,
            bits_per_second: None,
            interface: None,
            attributes: BTreeMap::new(),
        }
    }
}

impl MemoryPlace {
    pub(super) fn named(location: &str, tiers: [Vec<usize>; 3]) -> Self {
        Self {
            location: location.to_owned(),
            kind: MemoryPlaceKind::Unknown,
            pci_bus_id: None,
            numa_node: None,
            tiers,
        }
    }
}
