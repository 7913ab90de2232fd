//! What an engine has done since it began: by link, peer and direction, and as a whole.
//!
//! Whoever ends a task adds to numbers of its own thread, so that threads do not meet; who asks adds
//! them up. What is rare is counted in one place.

mod histogram;
mod meter;
mod served;
mod snapshot;
mod tally;
mod text;

pub use histogram::Histogram;
pub(crate) use meter::{Meter, MeterId, Meters};
pub use served::Served;
pub use snapshot::{
    AdmissionMetrics, Failovers, LinkMetrics, Metrics, RefreshMetrics, RegistrationMetrics,
    ServedMetrics,
};
pub(crate) use tally::Tally;
