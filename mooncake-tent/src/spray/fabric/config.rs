//! How a link in miniature goes about it.

use std::time::Duration;

use crate::{
    rail::RailPolicy,
    spray::{Aging, Patience, SliceLimits, SprayConfig},
};

/// How a [`Pilot`](super::Pilot) goes about it.
#[derive(Clone, Copy, Debug)]
pub struct PilotConfig {
    /// How requests are cut.
    pub limits: SliceLimits,
    /// How devices are chosen.
    pub spray: SprayConfig,
    /// When rails are closed.
    pub rails: RailPolicy,
    /// How long slices let more urgent ones pass.
    pub aging: Aging,
    /// So many slices are posted to a device at a time; the others queue.
    pub window: usize,
    /// So many queue for a device; the others wait for a place.
    pub queue: usize,
    /// How long a device may take for a slice.
    pub patience: Patience,
    /// A slice that has failed so often fails its task.
    pub attempts: u32,
}

impl Default for PilotConfig {
    /// Eight slices a device at a time, eight attempts; rails close for 1 ms at first, for 20 ms
    /// at most.
    fn default() -> Self {
        Self {
            limits: SliceLimits::default(),
            spray: SprayConfig::default(),
            rails: RailPolicy {
                error_window: Duration::from_millis(100),
                cooldown: Duration::from_millis(1),
                max_cooldown: Duration::from_millis(20),
                probe_patience: Duration::from_millis(20),
                ..RailPolicy::default()
            },
            aging: Aging::default(),
            window: 8,
            queue: 4096,
            patience: Patience::default(),
            attempts: 8,
        }
    }
}
