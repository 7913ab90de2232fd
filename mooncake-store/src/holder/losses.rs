//! What was found damaged or gone when it was read.

use std::{collections::BTreeMap, sync::Arc};

use mooncake_proto::master::{DroppedReplica, dropped_replica::Reason};
use tokio::sync::mpsc;

use super::{counts::add, file_storage::Holder, in_flight::ObjectName, standing::wire};

/// Losses that wait to be told; one more is found again by its next reader.
pub(super) const LOSSES: usize = 4096;

/// An object that cannot be read here any more.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) object: ObjectName,
    pub(super) damaged: bool,
}

impl Loss {
    fn reason(&self) -> Reason {
        match self.damaged {
            true => Reason::Damaged,
            false => Reason::Lost,
        }
    }
}

impl Holder {
    /// Tells the master of losses until it is aborted, so that nobody is sent here for them; then nothing of them is left.
    pub(super) async fn tell_losses(self: Arc<Self>, mut lost: mpsc::Receiver<Loss>) {
        let mut losses = Vec::new();
        while lost.recv_many(&mut losses, LOSSES).await > 0 {
            let told: BTreeMap<_, _> = losses
                .drain(..)
                .map(|loss| (loss.object.clone(), loss))
                .collect();
            add(&self.counters.lost_records, told.len() as u64);
            loop {
                self.mounted().await;
                let wire = told
                    .values()
                    .map(|loss| dropped(&loss.object, loss.reason()));
                match self.desk.drop_replicas(wire.collect()).await {
                    Ok(_) => break,
                    Err(fault) => {
                        self.failed("telling what is lost on the disk", &fault)
                            .await
                    }
                }
            }
            // Or the next reconciliation would announce it again.
            if let Err(fault) = self.bury(told.into_keys().collect()).await {
                tracing::warn!(%fault, "what was lost could not be removed");
            }
        }
    }
}

pub(super) fn dropped(object: &ObjectName, reason: Reason) -> DroppedReplica {
    DroppedReplica {
        tenant: object.tenant.clone(),
        key: object.key.clone().into(),
        incarnation: Some(wire(object.incarnation)),
        reason: reason as i32,
    }
}
