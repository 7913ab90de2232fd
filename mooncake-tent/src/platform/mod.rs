//! What the machine is made of: NUMA nodes, network devices, and which of these are near each other.
//!
//! [`Topology::probe`] reads it from sysfs; feature `json` also reads descriptions of it that people
//! write. What the system does not say is unknown, which is neither near nor far.

mod cpu_set;
pub(crate) mod host;
#[cfg(feature = "json")]
mod json;
mod pci;
mod priority_matrix;
mod sysfs;
mod topology;

pub use cpu_set::CpuSet;
pub(crate) use host::{after, jittered, machine};
pub use pci::{Distance, PciPath};
pub use priority_matrix::PriorityMatrix;
pub use topology::{MemoryPlace, MemoryPlaceKind, Nic, NicKind, NumaNode, Topology, TopologyError};
