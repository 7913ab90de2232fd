//! The loop that makes room: the master is told first, so that nobody is sent here for what is gone.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
};

use mooncake_bucket::Listed;
use mooncake_proto::{Fault, master::dropped_replica::Reason};

use super::{
    counts::add,
    file_storage::Holder,
    in_flight::ObjectName,
    losses::{chunks, dropped},
    records::{distinct, named},
    standing::disk_fault,
};

impl Holder {
    /// Whether buckets should go.
    pub(super) fn is_full(&self, used_bytes: u64) -> bool {
        used_bytes as f64 > self.options.capacity_bytes as f64 * self.options.high_watermark
    }

    /// Evicts what is too much until it is aborted.
    pub(super) async fn evict(self: Arc<Self>) {
        loop {
            self.wake.evictions.notified().await;
            self.mounted().await;
            if !self.is_full(self.records.accounting().file_bytes) {
                continue;
            }
            if let Err(fault) = self.make_room().await {
                self.failed("making room on the disk", &fault).await;
            }
            if !self.is_full(self.records.accounting().file_bytes) {
                self.wake.offloads.notify_one();
            }
        }
    }

    async fn make_room(&self) -> Result<(), Fault> {
        let goal = self.options.capacity_bytes as f64 * self.options.low_watermark;
        let mut passed = HashSet::new();
        while self.records.accounting().file_bytes as f64 > goal {
            let victim = self.records.next_victim(passed.clone()).await;
            let victim = victim.map_err(|error| disk_fault(&error.to_string()))?;
            let Some((bucket, records)) = victim else {
                // Nothing is sealed yet, or what is left must stay for now.
                return Ok(());
            };
            passed.insert(bucket);
            let Some(records) = records else {
                continue;
            };
            let _telling = self.telling.lock().await;
            if *self.standing.borrow() == 0 {
                return Ok(());
            }
            let objects = distinct(records.iter().filter_map(named).collect());
            // What is written and not told is not the master's yet: it would hear of it after it has gone.
            if !self.in_flight.lock().leave(&objects) {
                continue;
            }
            let given_up = self.give_up(bucket, &records, &objects).await;
            self.in_flight.lock().left(&objects);
            given_up?;
        }
        Ok(())
    }

    async fn give_up(
        &self,
        bucket: u32,
        records: &[Listed],
        objects: &[ObjectName],
    ) -> Result<(), Fault> {
        let bytes = records.iter().map(|record| u64::from(record.value_bytes));
        let bytes = bytes.sum();
        let mut given_up = Vec::with_capacity(objects.len());
        for part in chunks(objects) {
            let wire = part.iter().map(|object| dropped(object, Reason::Evicted));
            let answer = self.desk.drop_replicas(wire.collect()).await?;
            let given = part.iter().zip(answer.results);
            let given = given.filter(|(_, result)| result.error.is_none());
            given_up.extend(given.map(|(object, _)| object.clone()));
        }
        let count = given_up.len() as u64;
        if given_up.len() == objects.len() {
            let evicted = self.records.evict(bucket, bytes).await;
            match evicted.map_err(|error| disk_fault(&error.to_string()))? {
                Ok(_) => {}
                // A collection was faster, and has moved them.
                Err(error) => {
                    tracing::debug!(bucket, %error, "what was to be evicted is removed");
                    self.bury(given_up).await?;
                }
            }
        } else {
            // The bucket stays for what the master keeps; a collection takes the rest out of it.
            self.bury(given_up).await?;
        }
        add(&self.counters.evicted_objects, count);
        tracing::debug!(
            bucket,
            objects = count,
            all = self.counters.evicted_objects.load(Ordering::Relaxed),
            "objects gave way"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_without_a_tenant_in_words_is_nobodys() {
        let listed = |tenant: &[u8]| Listed {
            tenant: tenant.to_vec(),
            key: b"k".to_vec(),
            incarnation: mooncake_bucket::Incarnation::new(1, 1),
            value_bytes: 1,
            bucket: 1,
        };
        let object: Option<ObjectName> = named(&listed(b"t"));
        assert_eq!(object.map(|object| object.tenant), Some("t".to_owned()));
        assert_eq!(named(&listed(&[0xff])), None);
    }
}
