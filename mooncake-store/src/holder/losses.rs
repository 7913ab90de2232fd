//! What was found damaged or gone when it was read.

use std::{collections::BTreeMap, sync::Arc};

use mooncake_proto::master::{DroppedReplica, dropped_replica::Reason};
use tokio::sync::mpsc;

use super::{counts::add, file_storage::Holder, in_flight::ObjectName, standing::wire};

/// Losses that wait to be told; one more is found again by its next reader.
pub(super) const LOSSES: usize = 4096;
/// Objects in one call.
const MOST_OBJECTS: usize = 4096;
/// Their names, about.
const MOST_BYTES: usize = 1 << 20;

/// What its reader met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Damaged,
    /// Its file.
    Gone,
    /// No record.
    Absent,
}

/// An object that cannot be read here any more.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) object: ObjectName,
    pub(super) what: What,
}

impl Holder {
    /// Tells the master of losses until it is aborted, so that nobody is sent here for them; then nothing of them is left.
    pub(super) async fn tell_losses(self: Arc<Self>, mut lost: mpsc::Receiver<Loss>) {
        let mut losses = Vec::new();
        while lost.recv_many(&mut losses, LOSSES).await > 0 {
            let mut told: BTreeMap<_, _> = losses
                .drain(..)
                .map(|loss| (loss.object, loss.what))
                .collect();
            add(&self.counters.lost_records, told.len() as u64);
            loop {
                let mount = self.mounted().await;
                let _telling = self.telling.lock().await;
                if *self.standing.borrow() != mount {
                    continue;
                }
                // What was absent may have come meanwhile: whoever finds it absent again says so.
                told.retain(|object, what| {
                    let here = *what == What::Absent && self.records.holds(object);
                    !here && self.in_flight.lock().leave(std::slice::from_ref(object))
                });
                let objects: Vec<_> = told.keys().cloned().collect();
                let done = self.give_word(&told).await;
                self.in_flight.lock().left(&objects);
                match done {
                    Ok(()) => break,
                    Err(fault) => {
                        self.failed("telling what is lost on the disk", &fault)
                            .await
                    }
                }
            }
        }
    }

    async fn give_word(
        &self,
        told: &BTreeMap<ObjectName, What>,
    ) -> Result<(), mooncake_proto::Fault> {
        let objects: Vec<_> = told.keys().cloned().collect();
        for part in chunks(&objects) {
            let wire = part.iter().map(|object| {
                let reason = match told[object] {
                    What::Damaged => Reason::Damaged,
                    What::Gone | What::Absent => Reason::Lost,
                };
                dropped(object, reason)
            });
            self.desk.drop_replicas(wire.collect()).await?;
        }
        // Or the next reconciliation would announce it again. Of what is absent there is nothing, and a tombstone would
        // only meet what comes later.
        let here = objects.into_iter();
        let here = here.filter(|object| told[object] != What::Absent);
        if let Err(fault) = self.bury(here.collect()).await {
            tracing::warn!(%fault, "what was lost could not be removed");
        }
        Ok(())
    }
}

/// As many as go in one call each.
pub(super) fn chunks(objects: &[ObjectName]) -> Vec<&[ObjectName]> {
    let (mut chunks, mut rest) = (Vec::new(), objects);
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |object: &&ObjectName| {
            bytes += object.key.len() + object.tenant.len();
            bytes <= MOST_BYTES
        };
        let count = rest.iter().take(MOST_OBJECTS).take_while(fits).count();
        let (chunk, after) = rest.split_at(count.max(1));
        chunks.push(chunk);
        rest = after;
    }
    chunks
}

pub(super) fn dropped(object: &ObjectName, reason: Reason) -> DroppedReplica {
    DroppedReplica {
        tenant: object.tenant.clone(),
        key: object.key.clone().into(),
        incarnation: Some(wire(object.incarnation)),
        reason: reason as i32,
    }
}

#[cfg(test)]
mod tests {
    use mooncake_bucket::Incarnation;

    use super::*;

    #[test]
    fn a_call_names_no_more_objects_and_about_no_more_bytes_than_it_may() {
        let objects = |count, bytes| {
            let object = ObjectName {
                tenant: String::new(),
                key: vec![7; bytes],
                incarnation: Incarnation::new(1, 1),
            };
            vec![object; count]
        };
        let sizes = |objects: &[ObjectName]| -> Vec<usize> {
            chunks(objects).iter().map(|chunk| chunk.len()).collect()
        };
        assert!(sizes(&[]).is_empty());
        assert_eq!(sizes(&objects(MOST_OBJECTS + 1, 1)), [MOST_OBJECTS, 1]);
        assert_eq!(sizes(&objects(5, MOST_BYTES / 2)), [2, 2, 1]);
        assert_eq!(sizes(&objects(2, 2 * MOST_BYTES)), [1, 1], "it must go on");
    }
}
