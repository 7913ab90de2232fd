//! Mounting a storage, and telling the master all that is in it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use mooncake_bucket::{Cursor, Incarnation};
use mooncake_proto::{
    Fault, Retry,
    master::{HeldObject, ObjectIncarnation},
    status::ErrorCode,
};

use super::{
    counts::add,
    file_storage::{Holder, PAUSE},
    in_flight::ObjectName,
    records::named,
};

/// A master that does not want the storage is asked again after so long.
const REFUSED: Duration = Duration::from_secs(5);
/// The keys of a page, about.
const PAGE_BYTES: usize = 1 << 20;

impl Holder {
    /// Keeps the storage mounted, in each session anew.
    pub(super) async fn stand(self: Arc<Self>) {
        let mut round = 0;
        loop {
            // Before it is mounted: a session that begins meanwhile is another one.
            let session = self.master.session();
            self.landed().await;
            match self.mount().await {
                Ok(()) => {
                    round += 1;
                    self.complained.store(false, Ordering::Relaxed);
                    add(&self.counters.mounts, 1);
                    self.standing.send_replace(round);
                    self.look();
                }
                Err(fault) => {
                    let pause = self.refused(&fault);
                    let _new_session =
                        tokio::time::timeout(pause, self.wake.standing.notified()).await;
                    continue;
                }
            }
            loop {
                self.wake.standing.notified().await;
                let now = self.master.session();
                let mounted = *self.standing.borrow() == round;
                if !mounted || (now.session, now.epoch) != (session.session, session.epoch) {
                    break;
                }
            }
            self.standing.send_replace(0);
        }
    }

    /// Waits until nothing is on its way to the disk; while the storage does not stand nothing begins. Else a record
    /// that is written behind the listing were no task's and nobody's when the reconciliation has ended.
    async fn landed(&self) {
        while !self.in_flight.lock().is_empty() {
            self.wake.landed.notified().await;
        }
    }

    /// Says why the storage is not announced; how long to wait.
    fn refused(&self, fault: &Fault) -> Duration {
        let path = self.options.path.display();
        let unknown = fault.code == ErrorCode::UnavailableInCurrentStatus;
        match fault.retry {
            Retry::Never if unknown => {
                if !self.complained.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        %fault,
                        "the master does not know the storage in {path}, and what was removed from it while the master \
                         did not know it might come back: nothing on it is announced until an operator says \
                         `mooncake bucket adopt {path}`"
                    );
                }
                REFUSED
            }
            Retry::Never => {
                if !self.complained.swap(true, Ordering::Relaxed) {
                    tracing::error!(%fault, "the master refuses the storage in {path}");
                }
                REFUSED
            }
            _ => {
                tracing::warn!(%fault, "the storage in {path} is not mounted; trying again");
                PAUSE
            }
        }
    }

    async fn mount(&self) -> Result<(), Fault> {
        let _telling = self.telling.lock().await;
        let queued = self.in_flight.lock().bytes();
        let state = self.records.state(self.options.capacity_bytes, queued);
        let fresh = self.records.is_empty();
        let page = self.desk.mount(self.names.clone(), state, fresh).await?;
        self.reconcile(page).await
    }

    /// Tells the master all that is here, and removes what it does not know, page by page.
    async fn reconcile(&self, most: usize) -> Result<(), Fault> {
        let (mut from, mut page, mut value_bytes) = (Some(Cursor::default()), 0, 0);
        let mut waiting: Vec<(ObjectName, u32)> = Vec::new();
        loop {
            while let Some(cursor) = from
                && waiting.len() < most
            {
                let listed = self.records.list(cursor, most).await;
                let listed = listed.map_err(|error| disk_fault(&error.to_string()))?;
                for bucket in &listed.unlisted {
                    // What is in it counts as lost, until it can be told.
                    tracing::warn!(bucket = bucket.bucket, records = bucket.records, error = %bucket.error, "a bucket cannot be listed");
                }
                from = listed.next;
                let known = listed.records.iter();
                waiting
                    .extend(known.filter_map(|record| Some((named(record)?, record.value_bytes))));
            }
            let rest = waiting.split_off(fitting(&waiting, most));
            let objects = std::mem::replace(&mut waiting, rest);
            let last = from.is_none() && waiting.is_empty();
            let told: Vec<_> = objects.iter().map(held).collect();
            let remove = self.desk.reconcile(page, told, last).await?;
            let (mut strangers, mut gone_bytes) = (Vec::new(), 0);
            for index in remove {
                let object = objects.get(index as usize).ok_or_else(|| {
                    disk_fault("the master names an object that is not on the page")
                })?;
                strangers.push(object.0.clone());
                gone_bytes += u64::from(object.1);
            }
            let told_bytes: u64 = objects.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
            value_bytes += told_bytes.saturating_sub(gone_bytes);
            add(&self.counters.strangers, strangers.len() as u64);
            self.bury(strangers).await?;
            if last {
                self.records.counted(value_bytes);
                return Ok(());
            }
            page += 1;
        }
    }

    /// Removes objects for good; an error if one of them may come back.
    pub(super) async fn bury(&self, objects: Vec<ObjectName>) -> Result<(), Fault> {
        if objects.is_empty() {
            return Ok(());
        }
        let removed = self.records.remove(Arc::new(objects)).await;
        let removed = removed.map_err(|error| disk_fault(&error.to_string()))?;
        match removed.into_iter().find_map(Result::err) {
            Some(error) => Err(disk_fault(&format!("{error}: {}", error.0))),
            None => Ok(()),
        }
    }
}

/// How many objects fit on a page.
fn fitting(objects: &[(ObjectName, u32)], most: usize) -> usize {
    let mut bytes = 0;
    let fits = |(object, _): &&(ObjectName, u32)| {
        bytes += object.key.len() + object.tenant.len();
        bytes <= PAGE_BYTES
    };
    let fitting = objects.iter().take(most).take_while(fits).count();
    fitting.max(1).min(objects.len())
}

fn held((object, value_bytes): &(ObjectName, u32)) -> HeldObject {
    HeldObject {
        tenant: object.tenant.clone(),
        key: object.key.clone().into(),
        incarnation: Some(wire(object.incarnation)),
        length: u64::from(*value_bytes),
    }
}

pub(super) fn wire(incarnation: Incarnation) -> ObjectIncarnation {
    ObjectIncarnation {
        epoch: incarnation.epoch,
        sequence: incarnation.seq,
    }
}

pub(super) fn disk_fault(message: &str) -> Fault {
    Fault::new(ErrorCode::FileWriteFailed, Retry::Here, message).with_stage("disk")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_no_more_objects_and_about_no_more_bytes_than_it_may() {
        let object = |bytes| {
            let object = ObjectName {
                tenant: String::new(),
                key: vec![7; bytes],
                incarnation: Incarnation::new(1, 1),
            };
            (object, 1)
        };
        let small: Vec<_> = (0..10).map(|_| object(10)).collect();
        assert_eq!(fitting(&small, 4), 4);
        assert_eq!(fitting(&small, 100), 10);
        assert_eq!(fitting(&[], 4), 0);
        let large: Vec<_> = (0..10).map(|_| object(PAGE_BYTES / 2)).collect();
        assert_eq!(fitting(&large, 100), 2);
        assert_eq!(fitting(&[object(2 * PAGE_BYTES)], 100), 1, "it must go on");
    }
}
