//! Numbers for operators, under names that begin with `mooncake_master_`.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::ConstGauge,
    },
    registry::Registry,
};

use crate::{
    service::Shared,
    state::{Answer, Operation},
};

/// What passed through the service. Handles are held, so that an operation costs additions only.
#[derive(Debug)]
pub(crate) struct Traffic {
    by_kind: Family<[(&'static str, &'static str); 1], Counter>,
    operations: [Counter; KINDS.len()],
    refused: Counter,
    /// Invalidations that a client was too slow to be told of.
    pub(crate) untold_invalidations: Counter,
}

const KINDS: [&str; 18] = [
    "describe",
    "exist",
    "goodbye",
    "list_objects",
    "list_segments",
    "lookup",
    "mount_segment",
    "ping",
    "put_end",
    "put_revoke",
    "put_start",
    "release",
    "remove",
    "remove_all",
    "unmount_segment",
    "grant",
    "put",
    "return_grants",
];

impl Default for Traffic {
    fn default() -> Self {
        let by_kind = Family::<_, Counter>::default();
        Self {
            operations: KINDS.map(|kind| by_kind.get_or_create_owned(&[("kind", kind)])),
            by_kind,
            refused: Counter::default(),
            untold_invalidations: Counter::default(),
        }
    }
}

impl Traffic {
    pub(crate) fn count(&self, operation: &Operation, answer: &Answer) {
        let kind = match operation {
            Operation::Describe(_) => 0,
            Operation::Exist(_) => 1,
            Operation::Goodbye { .. } => 2,
            Operation::ListObjects(_) => 3,
            Operation::ListSegments => 4,
            Operation::Lookup(_) => 5,
            Operation::Mount(_) => 6,
            Operation::Ping => 7,
            Operation::PutEnd(_) => 8,
            Operation::PutRevoke(_) => 9,
            Operation::PutStart(_) => 10,
            Operation::Release(_) => 11,
            Operation::Remove(_) => 12,
            Operation::RemoveAll => 13,
            Operation::Unmount(_) => 14,
            Operation::Grant(_) => 15,
            Operation::Put(_) => 16,
            Operation::ReturnGrants { .. } => 17,
        };
        self.operations[kind].inc();
        if matches!(answer, Answer::Refused(_)) {
            self.refused.inc();
        }
    }
}

/// All numbers of one master.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
}

impl Metrics {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let mut registry = Registry::with_prefix("mooncake_master");
        let traffic = shared.traffic();
        registry.register("operations", "Operations by kind", traffic.by_kind.clone());
        registry.register(
            "refused_operations",
            "Operations that failed as a whole",
            traffic.refused.clone(),
        );
        registry.register(
            "untold_invalidations",
            "Invalidations dropped because the client did not read",
            traffic.untold_invalidations.clone(),
        );
        registry.register_collector(Box::new(StateNumbers(Arc::clone(shared))));
        Self { registry }
    }

    /// As text, in the format of Prometheus.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }
}

/// Reads the state when asked.
#[derive(Debug)]
struct StateNumbers(Arc<Shared>);

impl Collector for StateNumbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = self.0.counters();
        let gauges = [
            ("objects", "Complete objects", now.objects),
            ("puts_in_progress", "Puts under way", now.puts_in_progress),
            (
                "used_bytes",
                "Allocated to objects and puts",
                now.used_bytes,
            ),
            (
                "quarantined_bytes",
                "Allocated to what is gone, until leases or writers have ended",
                now.quarantined_bytes,
            ),
            (
                "granted_bytes",
                "Set aside for puts of the segments' owners",
                now.granted_bytes,
            ),
            (
                "capacity_bytes",
                "Of all mounted segments",
                now.capacity_bytes,
            ),
            ("segments", "Mounted segments", now.segments),
            ("storages", "Storages that have a holder", now.storages),
            (
                "disk_replicas",
                "Replicas on disks, on their way there, or waiting for it",
                now.disk_replicas,
            ),
            (
                "queued_offloads",
                "Objects that wait to be copied to disks",
                now.queued_offloads,
            ),
            (
                "remove_tasks",
                "Objects that disks have yet to remove",
                now.remove_tasks,
            ),
            (
                "saving_bytes",
                "Of objects that are evicted once they are on a disk",
                now.saving_bytes,
            ),
            ("leases", "Leases that are not over", now.leases),
            (
                "reservations",
                "Objects that exist promised to keep for a moment",
                now.reservations,
            ),
            ("reserved_bytes", "Of these", now.reserved_bytes),
            (
                "promised_answers",
                "Answers that were promised and have not come yet",
                now.promised_answers,
            ),
            ("clients", "Clients that are alive", now.clients),
            (
                "suspect_clients",
                "Clients that are silent or whose stream has ended",
                now.suspect_clients,
            ),
            (
                "sessions",
                "Open session streams",
                self.0.open_sessions() as u64,
            ),
            ("epoch", "Of this life of the master", self.0.epoch()),
        ];
        for (name, help, value) in gauges {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(gauge)?;
        }
        let counters = [
            (
                "offloaded_objects",
                "Objects copied to disks",
                now.offloaded_objects,
            ),
            (
                "failed_offloads",
                "Copies to disks that failed for good",
                now.failed_offloads,
            ),
            (
                "missed_offloads",
                "Copies to disks that no disk could take, or whose memory went before",
                now.missed_offloads,
            ),
            (
                "dropped_replicas",
                "Replicas that disks gave up to make room",
                now.dropped_replicas,
            ),
            (
                "lost_replicas",
                "Replicas that disks lost or damaged",
                now.lost_replicas,
            ),
            ("evicted_objects", "Objects evicted", now.evicted_objects),
            (
                "evicted_bytes",
                "Bytes that evicted objects took",
                now.evicted_bytes,
            ),
            (
                "expired_clients",
                "Clients that died of silence",
                now.expired_clients,
            ),
            (
                "abandoned_puts",
                "Puts that were taken over, or that nobody ended",
                now.abandoned_puts,
            ),
        ];
        for (name, help, value) in counters {
            let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(counter)?;
        }
        Ok(())
    }
}
