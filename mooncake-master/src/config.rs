//! What an operator can set.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    AllocationStrategy,
    state::{MAX_RESERVATION, Offload, Settings},
};

/// The configuration of a master. Unknown fields are errors; absent ones have these defaults:
///
/// ```
/// let config: mooncake_master::MasterConfig = serde_json::from_str("{}")?;
/// assert_eq!(config.listen, "127.0.0.1:50051");
/// assert_eq!(config.admin_listen, "127.0.0.1:9003");
/// assert_eq!(config.client_ttl, 10);
/// assert_eq!(config.suspect_after_ms, 3_000);
/// assert_eq!(config.default_kv_lease_ttl, 10_000);
/// assert_eq!(config.exist_reservation_ms, 500);
/// assert_eq!(config.reserved_share, 0.10);
/// assert_eq!(config.ping_interval_ms, 1_000);
/// assert_eq!(config.put_deadline_ms, 30_000);
/// assert_eq!(config.write_frame_budget_ms, 30_000);
/// assert_eq!(config.eviction_high_watermark_ratio, 0.90);
/// assert_eq!(config.eviction_low_watermark_ratio, 0.85);
/// assert_eq!(config.quarantine_share, 0.20);
/// assert_eq!(config.allocation_strategy.to_string(), "random");
/// assert!(!config.enable_offload && !config.offload_on_evict);
/// assert_eq!(config.offloading_queue_limit, 50_000);
/// assert_eq!(config.state_dir, "");
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MasterConfig {
    /// `host:port` of the gRPC service; port 0 takes a free one.
    pub listen: String,
    /// `host:port` of the HTTP pages for operators; port 0 takes a free one.
    pub admin_listen: String,
    /// Seconds of silence after which a client is dead and its segments are unmounted.
    pub client_ttl: u64,
    /// Silence after which others are preferred to a client, before it counts as dead.
    pub suspect_after_ms: u64,
    /// Milliseconds for which a look-up's locations hold.
    pub default_kv_lease_ttl: u64,
    /// Milliseconds for which an object stays that `exist` has found; 0: it may go at once.
    pub exist_reservation_ms: u64,
    /// At most this share of the capacity is reserved so at once; 0: nothing is.
    pub reserved_share: f64,
    /// How often clients are asked to ping.
    pub ping_interval_ms: u64,
    /// From PutStart to PutEnd; after it another writer may take the key over.
    pub put_deadline_ms: u64,
    /// The longest budget of a write frame, for which memory of abandoned puts is held back.
    pub write_frame_budget_ms: u64,
    /// Eviction starts when more than this share of the capacity is used; 1: only when space is
    /// needed at once.
    pub eviction_high_watermark_ratio: f64,
    /// Eviction stops at this share.
    pub eviction_low_watermark_ratio: f64,
    /// When more than this share of the capacity waits for leases or writers to end, puts that find
    /// no space are told to wait.
    pub quarantine_share: f64,
    /// How segments are chosen: `random`, `free_ratio_first`, `local_first` or
    /// `ssd_free_ratio_first`.
    pub allocation_strategy: AllocationStrategy,
    /// Objects are copied to disks of nodes that offer some.
    pub enable_offload: bool,
    /// Not as soon as they are written, but when memory runs short.
    pub offload_on_evict: bool,
    /// So many objects wait to be copied to one disk at most.
    pub offloading_queue_limit: u64,
    /// Directory of the log that outlives the master; empty: what is on disks is not known after a
    /// restart.
    pub state_dir: String,
}

impl Default for MasterConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:50051".to_owned(),
            admin_listen: "127.0.0.1:9003".to_owned(),
            client_ttl: 10,
            suspect_after_ms: 3_000,
            default_kv_lease_ttl: 10_000,
            exist_reservation_ms: 500,
            reserved_share: 0.10,
            ping_interval_ms: 1_000,
            put_deadline_ms: 30_000,
            write_frame_budget_ms: 30_000,
            eviction_high_watermark_ratio: 0.90,
            eviction_low_watermark_ratio: 0.85,
            quarantine_share: 0.20,
            allocation_strategy: AllocationStrategy::Random,
            enable_offload: false,
            offload_on_evict: false,
            offloading_queue_limit: 50_000,
            state_dir: String::new(),
        }
    }
}

/// A value that makes no sense, and what would.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct InvalidConfig {
    field: &'static str,
    what: String,
}

impl MasterConfig {
    /// The numbers of the state machine, with this seed for its hash.
    pub fn settings(&self, hash_seed: u64) -> Result<Settings, InvalidConfig> {
        self.check()?;
        Ok(Settings {
            client_ttl: Duration::from_secs(self.client_ttl),
            suspect_after: Duration::from_millis(self.suspect_after_ms),
            lease_ttl: Duration::from_millis(self.default_kv_lease_ttl),
            exist_reservation: Duration::from_millis(self.exist_reservation_ms),
            reserved_share: self.reserved_share,
            put_deadline: Duration::from_millis(self.put_deadline_ms),
            write_frame_budget: Duration::from_millis(self.write_frame_budget_ms),
            high_watermark: self.eviction_high_watermark_ratio,
            low_watermark: self.eviction_low_watermark_ratio,
            quarantine_share: self.quarantine_share,
            allocation_strategy: self.allocation_strategy,
            offload: match (self.enable_offload, self.offload_on_evict) {
                (false, _) => Offload::Off,
                (true, false) => Offload::Eager,
                (true, true) => Offload::OnEvict,
            },
            offload_queue_limit: usize::try_from(self.offloading_queue_limit).unwrap_or(usize::MAX),
            log: !self.state_dir.is_empty(),
            hash_seed,
            ..Settings::default()
        })
    }

    fn check(&self) -> Result<(), InvalidConfig> {
        let wrong = |field, what: String| Err(InvalidConfig { field, what });
        for (field, value) in [
            ("client_ttl", self.client_ttl),
            ("suspect_after_ms", self.suspect_after_ms),
            ("default_kv_lease_ttl", self.default_kv_lease_ttl),
            ("ping_interval_ms", self.ping_interval_ms),
            ("put_deadline_ms", self.put_deadline_ms),
            ("write_frame_budget_ms", self.write_frame_budget_ms),
            ("offloading_queue_limit", self.offloading_queue_limit),
        ] {
            if value == 0 {
                return wrong(field, "must be at least 1".to_owned());
            }
        }
        for (field, ratio) in [
            (
                "eviction_high_watermark_ratio",
                self.eviction_high_watermark_ratio,
            ),
            (
                "eviction_low_watermark_ratio",
                self.eviction_low_watermark_ratio,
            ),
            ("quarantine_share", self.quarantine_share),
            ("reserved_share", self.reserved_share),
        ] {
            if !(0.0..=1.0).contains(&ratio) {
                return wrong(field, format!("must be between 0 and 1, not {ratio}"));
            }
        }
        if self.offload_on_evict && !self.enable_offload {
            let what = "needs enable_offload".to_owned();
            return wrong("offload_on_evict", what);
        }
        let longest = MAX_RESERVATION.as_millis() as u64;
        if self.exist_reservation_ms > longest {
            let what = format!("must be at most {longest}");
            return wrong("exist_reservation_ms", what);
        }
        let (low, high) = (
            self.eviction_low_watermark_ratio,
            self.eviction_high_watermark_ratio,
        );
        if low > high {
            let what = format!("must not be above eviction_high_watermark_ratio: {low} > {high}");
            return wrong("eviction_low_watermark_ratio", what);
        }
        if self.ping_interval_ms >= self.client_ttl.saturating_mul(1000) {
            let what = format!("must be shorter than client_ttl, {} s", self.client_ttl);
            return wrong("ping_interval_ms", what);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut MasterConfig)) -> String {
        let mut config = MasterConfig::default();
        change(&mut config);
        config.settings(0).unwrap_err().to_string()
    }

    #[test]
    fn values_that_make_no_sense_are_refused_by_name() {
        assert!(refusal(|c| c.client_ttl = 0).starts_with("client_ttl"));
        assert!(refusal(|c| c.quarantine_share = f64::NAN).starts_with("quarantine_share"));
        assert!(refusal(|c| c.eviction_high_watermark_ratio = 0.5).contains("0.85 > 0.5"));
        assert!(refusal(|c| c.offload_on_evict = true).contains("needs enable_offload"));
        assert!(refusal(|c| c.ping_interval_ms = 10_000).contains("client_ttl"));
    }

    #[test]
    fn unknown_fields_and_strategies_are_errors() {
        let parse = |text| {
            serde_json::from_str::<MasterConfig>(text)
                .unwrap_err()
                .to_string()
        };
        assert!(parse(r#"{"client_tll": 3}"#).contains("client_tll"));
        assert!(parse(r#"{"allocation_strategy": "cxl"}"#).contains("`cxl` is not known"));
    }

    #[test]
    fn a_configuration_survives_being_printed() {
        let text = serde_json::to_string(&MasterConfig::default()).unwrap();
        assert_eq!(
            serde_json::from_str::<MasterConfig>(&text).unwrap(),
            MasterConfig::default()
        );
    }
}
