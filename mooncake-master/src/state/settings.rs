//! The numbers that the state machine goes by.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Offload;
use crate::alloc::AllocationStrategy;

/// What the state machine must know to decide alike in each run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// A client that is silent for longer is dead.
    pub client_ttl: Duration,
    /// A client that is silent for longer is suspect: others are preferred to it.
    pub suspect_after: Duration,
    /// How long a look-up's lease lasts.
    pub lease_ttl: Duration,
    /// How long an object stays that `exist` found; zero: nothing is promised.
    pub exist_reservation: Duration,
    /// At most this share of the capacity is reserved at once.
    pub reserved_share: f64,
    /// How long a put may take before another writer may take its key over.
    pub put_deadline: Duration,
    /// The longest budget of a write frame: after a put's deadline its writer's bytes may land for
    /// so long.
    pub write_frame_budget: Duration,
    /// What is added to that. A TCP target ends a write at its deadline plus what the hello of its
    /// lane took, at most a second, plus a thousandth of the lane's age for clocks that drift.
    pub hold_margin: Duration,
    /// Eviction starts when more than this share of the capacity is used; 1: only when space is
    /// needed at once.
    pub high_watermark: f64,
    /// Eviction stops at this share.
    pub low_watermark: f64,
    /// When more than this share waits for leases or writers to end, puts that find no space are
    /// told to wait for it, instead of evicting.
    pub quarantine_share: f64,
    /// At most this share of a segment is set aside for its owner's next puts.
    pub granted_share: f64,
    /// How segments are chosen.
    pub allocation_strategy: AllocationStrategy,
    /// Which objects are copied to disks.
    pub offload: Offload,
    /// So many objects wait for one storage at most.
    pub offload_queue_limit: usize,
    /// So many objects wait to be removed from one storage at most.
    pub remove_queue_limit: usize,
    /// Steps tell what must outlive the master.
    pub log: bool,
    /// Keys the hash of the object table, so that strangers cannot choose colliding keys.
    pub hash_seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            client_ttl: Duration::from_secs(10),
            suspect_after: Duration::from_secs(3),
            lease_ttl: Duration::from_secs(10),
            exist_reservation: Duration::from_millis(500),
            reserved_share: 0.10,
            put_deadline: Duration::from_secs(30),
            write_frame_budget: Duration::from_secs(30),
            hold_margin: Duration::from_secs(2),
            high_watermark: 0.90,
            low_watermark: 0.85,
            quarantine_share: 0.20,
            granted_share: 0.10,
            allocation_strategy: AllocationStrategy::Random,
            offload: Offload::Off,
            offload_queue_limit: 50_000,
            remove_queue_limit: 65_536,
            log: false,
            hash_seed: 0,
        }
    }
}

impl Settings {
    /// After a put's deadline, how long its writer's bytes may still land.
    pub(crate) fn hold(&self) -> Duration {
        self.write_frame_budget + self.hold_margin
    }
}
