//! Which link carries a request: pure functions over what is known, with their reasons.
//!
//! [`TransportSelector::rank`] takes what matters of a request and of each link and returns a
//! [`Ranking`]. First the policy that is for the request says which links may be used; then each must
//! be able to, and work; then those that take the shortest time come first. How long that is, a
//! [`RateTable`] learns; whether a link works, a [`Circuit`]. Neither looks at a clock.

mod circuit;
mod device_mask;
mod facts;
#[cfg(feature = "json")]
mod json;
mod policies;
mod policy;
mod ranking;
mod rate_table;
mod size_class;
mod transport_selector;

pub use circuit::{Circuit, CircuitConfig, CircuitOpen, Pass};
pub use device_mask::DeviceMask;
pub use facts::{Health, LinkDevices, LinkFacts, RequestFacts, SegmentKind, memory_kind};
pub use policies::{Policies, PolicyError, Ruling};
pub use policy::{Filter, Order, Policy};
pub use ranking::{Excluded, Exclusion, Merit, RankKey, Ranked, Ranking};
pub use rate_table::RateTable;
pub use size_class::SizeClass;
pub use transport_selector::TransportSelector;
