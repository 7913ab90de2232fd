//! The devices that may carry a request.

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use super::{DeviceId, DeviceLoad};

/// How near a device is to the memory, in the three ranks of a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// On its NUMA node, or at the least PCI distance from it.
    Nearest,
    /// For memory of an accelerator: on its NUMA node.
    Near,
    /// Elsewhere.
    Far,
}

/// A device with a rail to the peer that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The device here.
    pub device: DeviceId,
    /// How near it is to the memory here.
    pub rank: Rank,
    /// The rail was admitted [as a trial](crate::rail::Admission::Probe): it gets one slice.
    pub probe: bool,
}

/// Why no device can carry a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDevice {
    /// The set of devices that the request may use is empty: that permits nothing.
    #[error("the request permits no device at all")]
    EmptySet,
    /// Some reach the peer, but the request may use none of them.
    #[error("the request permits none of the {candidates} devices that reach the peer")]
    Excluded {
        /// How many reach it.
        candidates: usize,
    },
    /// None reaches the peer.
    #[error("no device reaches the peer")]
    NoneReaches,
    /// A candidate is none of the devices that there are.
    #[error("there is no device {device}")]
    Unknown {
        /// Its number.
        device: DeviceId,
    },
}

/// The devices that may carry the slices of a request, worked out once for all of them.
///
/// [`Spray::route`](super::Spray::route) makes it.
#[derive(Clone)]
pub struct Route {
    pub(super) ways: SmallVec<[Way; 8]>,
}

#[derive(Clone)]
pub(super) struct Way {
    pub(super) load: Arc<DeviceLoad>,
    pub(super) penalty: f64,
    pub(super) probe: bool,
}

impl Route {
    /// How many devices share the slices; what [`SlicePlan::new`](super::SlicePlan::new) asks for.
    /// Those that are only tried do not count.
    pub fn width(&self) -> usize {
        self.ways.iter().filter(|way| !way.probe).count()
    }

    /// All devices, those that are only tried among them.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.ways.iter().map(|way| way.load.device())
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.devices().map(|device| device.0))
            .finish()
    }
}
