//! What can be set on staging.

use std::{sync::Arc, time::Duration};

use super::Mover;
use crate::{
    error::{Error, Result},
    selector::memory_kind,
};

/// Less than this in a slot would be all about asking for it.
const LEAST: u64 = 1 << 12;
/// More would hardly be had.
const MOST: u64 = 1 << 30;

/// How [`StagingTransport`](super::StagingTransport) works. Nothing is allocated before it is used.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StagingConfig {
    /// Bytes of a slot: 4 MiB unless told otherwise, 4 KiB at least and 1 GiB at most. Transfers go in
    /// pieces of the smaller one of what both ends say.
    pub slot_bytes: u64,
    /// So many slots there are at most for our own transfers, as many that peers write and as many that
    /// they read: 16 unless told otherwise.
    pub slots: usize,
    /// So many pieces of one transfer are on their way at once: 4 unless told otherwise.
    pub window: usize,
    /// A slot that a peer has not asked anything of for so long is taken back: 10 s unless told
    /// otherwise, 100 ms at least.
    pub lease: Duration,
    pub(super) movers: Vec<(&'static str, Arc<dyn Mover>)>,
}

impl Default for StagingConfig {
    fn default() -> Self {
        Self {
            slot_bytes: 4 << 20,
            slots: 16,
            window: 4,
            lease: Duration::from_secs(10),
            movers: Vec::new(),
        }
    }
}

impl StagingConfig {
    /// What copies between memory of `kind`, such as `cuda` for memory at `cuda:0`, and the stage.
    #[must_use]
    pub fn mover(mut self, kind: &'static str, mover: impl Mover) -> Self {
        self.movers.push((kind, Arc::new(mover)));
        self
    }

    /// What copies memory at `location`; `None`: it needs none, or there is none.
    pub(super) fn mover_at(&self, location: &str) -> Option<&Arc<dyn Mover>> {
        let kind = memory_kind(location);
        let found = self.movers.iter().find(|(known, _)| *known == kind);
        found.map(|(_, mover)| mover)
    }

    /// Within its bounds.
    pub(super) fn check(&self) -> Result<()> {
        let invalid = |message: String| {
            let link = super::NAME;
            Err(Error::Install { link, message })
        };
        let mut kinds = self.movers.iter().map(|(kind, _)| *kind);
        if !(LEAST..=MOST).contains(&self.slot_bytes) {
            invalid(format!(
                "a slot has {LEAST} to {MOST} bytes, not {}",
                self.slot_bytes
            ))
        } else if self.slots == 0 || self.window == 0 {
            invalid("it needs at least one slot, and a window of one".to_owned())
        } else if self.lease < Duration::from_millis(100) {
            invalid("slots are lent for 100 ms at least".to_owned())
        } else if let Some(kind) = kinds.find(|kind| {
            kind.contains(':') || memory_kind(kind) == memory_kind("*") || kind.contains('*')
        }) {
            invalid(format!("{kind:?} is no kind of memory that needs a mover"))
        } else {
            Ok(())
        }
    }
}

/// The bytes of a peer's slot, as its endpoint says; `None`: it speaks of something else.
pub(super) fn slot_bytes(endpoint: &str) -> Option<u64> {
    let bytes = endpoint.strip_prefix("1/")?.parse().ok()?;
    (LEAST..=MOST).contains(&bytes).then_some(bytes)
}

/// What peers read by [`slot_bytes`].
pub(super) fn endpoint(slot_bytes: u64) -> String {
    format!("1/{slot_bytes}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::PlainMover;

    #[test]
    fn settings_without_sense_are_refused() {
        let with = |set: fn(&mut StagingConfig)| {
            let mut config = StagingConfig::default();
            set(&mut config);
            config.check()
        };
        assert!(with(|_| ()).is_ok());
        assert!(with(|config| config.slot_bytes = 0).is_err());
        assert!(with(|config| config.slot_bytes = u64::MAX).is_err());
        assert!(with(|config| config.slots = 0).is_err());
        assert!(with(|config| config.window = 0).is_err());
        assert!(with(|config| config.lease = Duration::ZERO).is_err());
        for kind in ["", "cpu", "*", "a*", "cuda:0"] {
            let config = StagingConfig::default().mover(kind, PlainMover);
            assert!(config.check().is_err(), "{kind}");
        }
        let config = StagingConfig::default().mover("cuda", PlainMover);
        assert!(config.check().is_ok());
        assert!(config.mover_at("cuda:3").is_some());
        assert!(config.mover_at("cpu:0").is_none() && config.mover_at("*").is_none());
    }

    #[test]
    fn an_endpoint_says_how_large_slots_are() {
        assert_eq!(slot_bytes(&endpoint(1 << 20)), Some(1 << 20));
        for other in ["", "1/", "1/1", "1/x", "2/65536", "1/99999999999999"] {
            assert_eq!(slot_bytes(other), None, "{other}");
        }
    }
}
