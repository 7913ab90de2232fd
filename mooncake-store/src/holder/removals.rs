//! The loop that makes removals durable.

use std::sync::Arc;

use mooncake_bucket::{Cursor, Incarnation};
use mooncake_proto::{
    Fault,
    master::{RemoveTask, remove_task},
};

use super::{
    counts::add,
    file_storage::{Holder, PAUSE},
    in_flight::ObjectName,
    records::{distinct, named},
    standing::disk_fault,
};

/// Tasks that are fetched at once.
const FETCH: u32 = 4096;
/// Records that are listed at once.
const LIST: usize = 4096;

/// What a task asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Object(ObjectName),
    /// All of a tenant up to an incarnation.
    UpTo(String, Incarnation),
    /// Something that a newer master knows.
    Unknown,
}

impl Holder {
    /// Carries out remove tasks until it is aborted.
    pub(super) async fn remove(self: Arc<Self>) {
        loop {
            self.mounted().await;
            match self.remove_what_waits().await {
                Ok(()) => self.rest(&self.wake.removals).await,
                Err(fault) => self.failed("removing objects from the disk", &fault).await,
            }
        }
    }

    async fn remove_what_waits(&self) -> Result<(), Fault> {
        // A task that cannot be done yet keeps no later one waiting.
        let mut after = 0;
        loop {
            let fetched = self.desk.removals(FETCH, after).await?;
            let Some(last) = fetched.tasks.last() else {
                return Ok(());
            };
            after = last.task;
            let done = self.carry_out(fetched.tasks).await?;
            if !done.is_empty() {
                let count = done.len() as u64;
                self.desk.removed(done).await?;
                add(&self.counters.remove_tasks, count);
            }
            if !fetched.more {
                return Ok(());
            }
        }
    }

    /// The tasks whose tombstones are durable.
    async fn carry_out(&self, tasks: Vec<RemoveTask>) -> Result<Vec<u64>, Fault> {
        let (mut objects, mut numbers, mut done) = (Vec::new(), Vec::new(), Vec::new());
        let mut failed = None;
        for task in tasks {
            let number = task.task;
            match wanted(task) {
                // Whoever writes it looks at that, and has us look again when it has ended.
                Wanted::Object(object) if self.in_flight.lock().cut(&object) => {}
                Wanted::Object(object) => {
                    objects.push(object);
                    numbers.push(number);
                }
                Wanted::UpTo(tenant, last) => {
                    if self.in_flight.lock().cut_up_to(&tenant, last) {
                        continue;
                    }
                    match self.remove_up_to(&tenant, last).await {
                        Ok(()) => done.push(number),
                        // It is fetched again; the others go on.
                        Err(fault) => failed = Some(fault.to_string()),
                    }
                }
                Wanted::Unknown => {
                    tracing::error!(task = number, "a remove task says nothing that we know");
                }
            }
        }
        if !objects.is_empty() {
            let removed = self.records.remove(Arc::new(objects)).await;
            let removed = removed.map_err(|error| disk_fault(&error.to_string()))?;
            for (number, result) in numbers.into_iter().zip(removed) {
                match result {
                    Ok(()) => done.push(number),
                    Err(error) => failed = Some(format!("{error}: {}", error.0)),
                }
            }
        }
        if let Some(error) = failed {
            tracing::warn!(error, "not all that was removed is gone; trying again");
            tokio::time::sleep(PAUSE).await;
        }
        Ok(done)
    }

    /// Removes all that the tenant had up to an incarnation.
    async fn remove_up_to(&self, tenant: &str, last: Incarnation) -> Result<(), Fault> {
        let (mut from, mut unlisted) = (Some(Cursor::default()), None);
        while let Some(cursor) = from {
            let page = self.records.list(cursor, LIST).await;
            let page = page.map_err(|error| disk_fault(&error.to_string()))?;
            if let Some(bucket) = page.unlisted.into_iter().next() {
                unlisted.get_or_insert(bucket);
            }
            from = page.next;
            let objects = page.records.iter().filter_map(named);
            let gone =
                objects.filter(|object| object.tenant == tenant && object.incarnation <= last);
            self.bury(distinct(gone.collect())).await?;
        }
        // Some of the tenant's may be in there.
        match unlisted {
            Some(bucket) => Err(disk_fault(&bucket.error.to_string())),
            None => Ok(()),
        }
    }
}

fn wanted(task: RemoveTask) -> Wanted {
    let life = |wire: mooncake_proto::master::ObjectIncarnation| {
        Incarnation::new(wire.epoch, wire.sequence)
    };
    match task.what {
        Some(remove_task::What::Object(object)) => match object.incarnation {
            Some(incarnation) => Wanted::Object(ObjectName {
                tenant: task.tenant,
                key: object.key.into(),
                incarnation: life(incarnation),
            }),
            None => Wanted::Unknown,
        },
        Some(remove_task::What::AllUpTo(last)) => Wanted::UpTo(task.tenant, life(last)),
        None => Wanted::Unknown,
    }
}
