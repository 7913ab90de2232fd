//! How a link with several devices shares a request among them.
//!
//! [`SlicePlan`] cuts a request into equal slices. [`Spray`] gives each to the device that would be
//! done with it first, by the bytes that it has in flight and its measured rate, and charges the device
//! with a [`Charge`] that ends with the slice. A [`PostQueue`] for each device keeps what it cannot take
//! yet, the most urgent first. As slices complete, a [`WireMeter`] for each device measures its rate.
//! A [`Watch`] for each device and a [`TimerWheel`](crate::TimerWheel) say which slices are overdue, and
//! [`rail`](crate::rail) says which rails can be used.
//!
//! All of it is told the time. Only the counters of [`DeviceLoad`] are shared by threads; the rest
//! belongs to the worker that drives a device.
//!
//! ```text
//!            candidates ─ rail::Rails (may it be used?) ─┐
//! request ─ SlicePlan (where to cut) ─ Spray (which device) ─ PostQueue (in which order) ─ device
//!                                        ▲ in flight, rate                                   │
//!                                        └─── Charge dropped, WireMeter ◄── completion ──────┘
//! ```
//!
//! `fabric`, with the feature `conformance`, has devices that are made up, with a clock of their own
//! and faults, and a link in miniature that drives all of this.

mod choice;
mod device;
#[cfg(any(feature = "conformance", all(test, not(mooncake_loom))))]
pub mod fabric;
mod load;
mod meter;
mod plan;
mod queue;
mod route;
mod watch;

pub use choice::{Assignments, NumaPenalties, Spray, SprayConfig};
pub use device::{DeviceId, Devices};
pub use load::{Charge, DeviceLoad};
pub use meter::WireMeter;
pub use plan::{SliceLimits, SlicePlan};
pub use queue::{Aging, PostQueue, Queued};
pub use route::{Candidate, NoDevice, Rank, Route};
pub use watch::{Overdue, Patience, Watch};

use crate::Priority;
