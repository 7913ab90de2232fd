//! Health of rails: which pairs of a device here and a device there can be used now.
//!
//! [`RailHealth`] is one rail as a plain state machine: errors within a window close it, a cooldown
//! keeps it closed, and then one slice at a time is let through to try it. [`Rails`] keeps one for
//! each rail that has ever failed. Both are told the time and never read a clock.
//!
//! A [`RailId`] names devices by numbers that they keep, not by their place in a descriptor:
//! [`DeviceNames`] hands the numbers out by name. So what was learnt of a rail survives each refresh
//! of the descriptor, and belongs to one life of the peer only.
//!
//! ```
//! use std::time::Duration;
//!
//! use mooncake_tent::{
//!     Incarnation, Time,
//!     rail::{Admission, DeviceNames, RailId, RailPolicy, Rails},
//!     spray::DeviceId,
//! };
//!
//! let mut theirs = DeviceNames::new();
//! let remote = theirs.id("mlx5_0").expect("there is room");
//! let rail = RailId { local: DeviceId(0), peer: Incarnation::random(), remote };
//!
//! let mut rails = Rails::new(RailPolicy { error_threshold: 1, ..RailPolicy::default() });
//! let Admission::Open(permit) = rails.admit(Time(0), rail) else { unreachable!() };
//! rails.failed(Time(9), rail, permit);
//! let Admission::Closed { until } = rails.admit(Time(10), rail) else { unreachable!() };
//!
//! // After the cooldown one slice tries it, and nobody else.
//! let Admission::Probe(probe) = rails.admit(until, rail) else { unreachable!() };
//! assert!(matches!(rails.admit(until, rail), Admission::Closed { .. }));
//! rails.succeeded(until + Duration::from_millis(1), rail, probe);
//! assert!(matches!(rails.admit(until, rail), Admission::Open(_)));
//! ```

mod book;
mod health;
mod names;

pub use book::{RailId, Rails};
pub use health::{Admission, Permit, RailHealth, RailPolicy, RailState};
pub use names::DeviceNames;
