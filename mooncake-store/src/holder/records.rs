//! The records on the disk, for callers that must not block.

use std::{
    collections::HashSet,
    io,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use mooncake_bucket::{
    Abandoned, Accounting, BucketGcWorker, BucketStorageBackend, BucketWorkers, Cursor, GcConfig,
    GcError, GetError, Listed, Name, Page, Put, PutError, Removal, RemoveError, Stored,
};
use mooncake_proto::master::StorageState;
use tokio::sync::OwnedSemaphorePermit;

use super::in_flight::ObjectName;

/// Operations that wait for a thread at most.
const QUEUE: usize = 1024;
/// When all of them do, one more looks again so soon.
const AGAIN: Duration = Duration::from_millis(5);

/// See the module. Changes and reads have threads of their own, so that a disk that is slow to write does not keep
/// readers waiting for a thread.
#[derive(Debug)]
pub(super) struct Records {
    backend: Arc<BucketStorageBackend>,
    changes: BucketWorkers,
    reads: BucketWorkers,
    gc: Option<BucketGcWorker>,
    /// Of values that can be read. It is counted anew with each reconciliation.
    value_bytes: Arc<AtomicI64>,
}

/// A bucket, and what is in it.
pub(super) type Victim = (u32, Option<Vec<Listed>>);

/// A value and its place.
pub(super) type Arrived = (ObjectName, Vec<u8>);

impl Records {
    pub(super) fn open(
        backend: BucketStorageBackend,
        threads: usize,
        gc: GcConfig,
    ) -> io::Result<Self> {
        let backend = Arc::new(backend);
        Ok(Self {
            changes: BucketWorkers::start(Arc::clone(&backend), threads, QUEUE)?,
            reads: BucketWorkers::start(Arc::clone(&backend), threads, QUEUE)?,
            gc: Some(BucketGcWorker::start(&backend, gc)?),
            backend,
            value_bytes: Arc::default(),
        })
    }

    pub(super) fn identity(&self) -> [u8; 16] {
        self.backend.identity()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.backend.is_empty()
    }

    pub(super) fn accounting(&self) -> Accounting {
        self.backend.accounting()
    }

    /// As it is reported to the master; no disk is asked.
    pub(super) fn state(&self, capacity_bytes: u64, queued_bytes: u64) -> StorageState {
        let accounting = self.accounting();
        let value_bytes = self.value_bytes.load(Ordering::Relaxed);
        StorageState {
            capacity_bytes,
            used_bytes: accounting.file_bytes,
            live_bytes: accounting.live_bytes,
            dead_bytes: accounting.dead_bytes,
            queued_bytes,
            value_bytes: u64::try_from(value_bytes).unwrap_or(0),
            objects: accounting.live_records,
        }
    }

    /// What a listing of everything has found.
    pub(super) fn counted(&self, value_bytes: u64) {
        let value_bytes = i64::try_from(value_bytes).unwrap_or(i64::MAX);
        self.value_bytes.store(value_bytes, Ordering::Relaxed);
    }

    pub(super) async fn put(
        &self,
        values: Arc<Vec<Arrived>>,
    ) -> Result<Vec<Result<Stored, PutError>>, Abandoned> {
        let total = Arc::clone(&self.value_bytes);
        let put = move |backend: &BucketStorageBackend| {
            let put = |(object, value): &Arrived| {
                let name = name(object);
                // An earlier life goes when this one comes.
                let before = backend.stat(name).map_or(0, |stat| stat.value_bytes);
                (before, value.len())
            };
            let sizes: Vec<_> = values.iter().map(put).collect();
            let puts = values
                .iter()
                .map(|(object, value)| Put::new(name(object), object.incarnation, value));
            let results = backend.put_batch(&puts.collect::<Vec<_>>());
            for ((before, bytes), result) in sizes.iter().zip(&results) {
                if matches!(result, Ok(Stored::Written)) {
                    total.fetch_add(*bytes as i64 - i64::from(*before), Ordering::Relaxed);
                }
            }
            results
        };
        run(&self.changes, put).await
    }

    /// Makes objects unreadable for good; what of them is durably so.
    pub(super) async fn remove(
        &self,
        objects: Arc<Vec<ObjectName>>,
    ) -> Result<Vec<Result<(), RemoveError>>, Abandoned> {
        let total = Arc::clone(&self.value_bytes);
        let remove = move |backend: &BucketStorageBackend| {
            let removal = |object| Removal {
                name: name(object),
                incarnation: object.incarnation,
            };
            let held = |object: &ObjectName| {
                let stat = backend.stat(name(object));
                let stat = stat.filter(|stat| stat.incarnation == object.incarnation);
                stat.map_or(0, |stat| stat.value_bytes)
            };
            let sizes: Vec<_> = objects.iter().map(held).collect();
            let removals: Vec<_> = objects.iter().map(removal).collect();
            let results = backend.mark_removed(&removals);
            let count = |(result, bytes): (Result<_, RemoveError>, u32)| {
                result.map(|removed| {
                    if removed == mooncake_bucket::Removed::Gone {
                        total.fetch_sub(i64::from(bytes), Ordering::Relaxed);
                    }
                })
            };
            results.into_iter().zip(sizes).map(count).collect()
        };
        run(&self.changes, remove).await
    }

    pub(super) async fn list(&self, from: Cursor, most: usize) -> Result<Page, Abandoned> {
        let list = move |backend: &BucketStorageBackend| backend.list(from, most);
        run(&self.changes, list).await
    }

    /// Whether it can be read, as far as that is known without the disk.
    pub(super) fn holds(&self, object: &ObjectName) -> bool {
        let stat = self.backend.stat(name(object));
        stat.is_some_and(|stat| stat.incarnation == object.incarnation)
    }

    /// All records that are alive in the bucket that goes first, but for those that were passed over; `None`: there is
    /// no such bucket, or what is in it cannot be listed.
    pub(super) async fn next_victim(
        &self,
        passed: HashSet<u32>,
    ) -> Result<Option<Victim>, Abandoned> {
        let look = move |backend: &BucketStorageBackend| {
            let first = backend.next_victim().into_iter();
            let mut all = first.chain(backend.sealed_buckets());
            let Some(bucket) = all.find(|bucket| !passed.contains(bucket)) else {
                // The next look finds what grows now.
                backend.seal();
                return None;
            };
            let listed = backend.list_bucket(bucket).inspect_err(|error| {
                tracing::warn!(bucket, %error, "what is in a bucket cannot be listed: it is passed over");
            });
            Some((bucket, listed.ok()))
        };
        run(&self.changes, look).await
    }

    pub(super) async fn evict(
        &self,
        bucket: u32,
        value_bytes: u64,
    ) -> Result<Result<u64, GcError>, Abandoned> {
        let evict = move |backend: &BucketStorageBackend| backend.evict_bucket(bucket);
        let evicted = run(&self.changes, evict).await?;
        if evicted.is_ok() {
            self.value_bytes
                .fetch_sub(value_bytes as i64, Ordering::Relaxed);
        }
        Ok(evicted)
    }

    /// Reads parts of values; each has a result, but for those that were not begun in time. The room is in use until
    /// the disk is done with all.
    pub(super) async fn read(
        &self,
        parts: Arc<Vec<Part>>,
        deadline: Instant,
        room: Arc<OwnedSemaphorePermit>,
    ) -> Result<Vec<Result<Vec<u8>, GetError>>, Abandoned> {
        let read = move |backend: &BucketStorageBackend| {
            let one = |part: &Part| {
                let (name, life) = (name(&part.object), Some(part.object.incarnation));
                let mut bytes = vec![0; part.length as usize];
                backend.get_range(name, life, part.offset, &mut bytes)?;
                Ok(bytes)
            };
            let _room = &room;
            // Nobody waits for what comes late.
            let in_time = |_: &&Part| Instant::now() < deadline;
            parts.iter().take_while(in_time).map(one).collect()
        };
        run(&self.reads, read).await
    }

    /// Ends what its threads have begun, and closes the directory. This blocks.
    pub(super) fn close(mut self) {
        if let Some(gc) = self.gc.take() {
            gc.stop_and_join();
        }
    }
}

/// Records whose owner may not block when it lets go of them.
#[derive(Debug)]
pub(super) struct Held(Option<Records>);

impl Held {
    pub(super) fn new(records: Records) -> Self {
        Self(Some(records))
    }

    /// See [`Records::close`].
    pub(super) fn close(mut self) {
        if let Some(records) = self.0.take() {
            records.close();
        }
    }
}

impl Deref for Held {
    type Target = Records;

    fn deref(&self) -> &Records {
        self.0.as_ref().expect("it is held until it is closed")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(records) = self.0.take() {
            let closes = thread::Builder::new().name("bucket-close".to_owned());
            if let Err(error) = closes.spawn(move || records.close()) {
                tracing::warn!(%error, "no thread closes the storage: whoever let go of it did");
            }
        }
    }
}

/// A part of a value.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) object: ObjectName,
    pub(super) offset: u32,
    pub(super) length: u32,
}

pub(super) fn name(object: &ObjectName) -> Name<'_> {
    Name::new(object.tenant.as_str(), &object.key)
}

/// Has a thread carry it out, when one has room.
async fn run<T: Send + 'static>(
    workers: &BucketWorkers,
    operation: impl Fn(&BucketStorageBackend) -> T + Send + Sync + 'static,
) -> Result<T, Abandoned> {
    let operation = Arc::new(operation);
    loop {
        let again = Arc::clone(&operation);
        match workers.submit(move |backend| again(backend)) {
            Ok(completion) => return completion.await,
            Err(_busy) => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Whose tenants are not words is nobody's of this store.
pub(super) fn named(listed: &Listed) -> Option<ObjectName> {
    Some(ObjectName {
        tenant: String::from_utf8(listed.tenant.clone()).ok()?,
        key: listed.key.clone(),
        incarnation: listed.incarnation,
    })
}

/// Names once.
pub(super) fn distinct(objects: Vec<ObjectName>) -> Vec<ObjectName> {
    let mut seen = HashSet::new();
    let mut objects = objects;
    objects.retain(|object| seen.insert(object.clone()));
    objects
}
