//! What an operator says about admission.

use std::time::Duration;

use super::Contracts;

/// How much may be on its way at once, for whom, and who waits. More may come: start from the default,
/// which limits nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdmissionConfig {
    /// So many bytes are on their way at most; a request of more than that goes in parts, one
    /// after the other, between which more urgent ones may go. A write with an op id or a checksum is
    /// not divided, and goes alone. `None`: any.
    pub most_bytes: Option<u64>,
    /// So many requests are on their way at most, at least 1. `None`: any.
    pub most_requests: Option<usize>,
    /// So many requests wait at most; further ones are refused as busy.
    pub most_waiting: usize,
    /// Whoever has waited for so long counts as one step more urgent; and beyond the most urgent, goes
    /// before everybody who came later.
    pub aging: Duration,
    /// What each tenant may ask.
    pub contracts: Contracts,
}

impl Default for AdmissionConfig {
    /// No limits, 65,536 that wait, and a second for each step.
    fn default() -> Self {
        Self {
            most_bytes: None,
            most_requests: None,
            most_waiting: 1 << 16,
            aging: Duration::from_secs(1),
            contracts: Contracts::default(),
        }
    }
}
