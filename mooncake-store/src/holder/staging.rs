//! Values that were read from the disk and wait in memory for who asked for them.
//!
//! Each request gets memory of its own, registered while it may be read and not longer. So a reader that comes late is
//! refused by the engine, and never reads what another one asked for.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use mooncake_bucket::{GetError, Incarnation};
use mooncake_proto::{
    Fault, Retry,
    status::ErrorCode,
    store::{
        DiskItem, PushOffloadedRequest, PushOffloadedResponse, ReadOffloadedRequest,
        ReadOffloadedResponse, ReleaseStagedRequest, ReleaseStagedResponse, Staged, StagedResult,
        holder_server::Holder as HolderService, staged_result,
    },
};
use mooncake_tent::{Buffer, Memory, Permission, RegisterOptions, TransferEngine};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tonic::{Request, Response, Status, async_trait};

use super::{
    counts::add,
    file_storage::Holder,
    in_flight::ObjectName,
    losses::{Loss, What},
    records::Part,
};

/// Parts of values in one request.
const MOST_ITEMS: usize = 4096;
/// Names are no longer.
const MOST_KEY: usize = 4096;
const MOST_TENANT: usize = 128;
/// Room is counted in these.
const UNIT: u64 = 4096;
/// A reader that says nothing has its memory for so long beyond its own deadline, and no longer than that in all.
const GRACE: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(10);
/// No request waits for longer, whatever its reader says.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// Reads that are under way when memory is taken back may end.
const QUIET: Duration = Duration::from_secs(5);
/// A request waits so long for room, if its own time allows.
const WAIT: Duration = Duration::from_secs(1);

/// The memory in which values wait, and for whom.
pub(super) struct Staging {
    engine: Arc<dyn TransferEngine>,
    room: Arc<Semaphore>,
    units: u32,
    tickets: Mutex<HashMap<u64, Ticket>>,
    me: Weak<Self>,
}

#[derive(Debug)]
struct Ticket {
    reader: u64,
    buffer: Buffer,
    _room: Arc<OwnedSemaphorePermit>,
}

impl Staging {
    pub(super) fn new(engine: Arc<dyn TransferEngine>, bytes: u64) -> Arc<Self> {
        let units = u32::try_from((bytes / UNIT).max(1)).unwrap_or(u32::MAX);
        Arc::new_cyclic(|me| Self {
            engine,
            room: Arc::new(Semaphore::new(units as usize)),
            units,
            tickets: Mutex::default(),
            me: Weak::clone(me),
        })
    }

    /// The most that can be asked for at once.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.units) * UNIT
    }

    /// Room for so many bytes, as soon as there is some.
    async fn room(&self, bytes: u64, within: Duration) -> Result<OwnedSemaphorePermit, Fault> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        if units > self.units {
            let most = self.bytes();
            let message = format!("{bytes} bytes are asked for at once, {most} are possible");
            return Err(Fault::new(
                ErrorCode::InvalidParams,
                Retry::Elsewhere,
                message,
            ));
        }
        let room = Arc::clone(&self.room).acquire_many_owned(units);
        match tokio::time::timeout(within, room).await {
            Ok(Ok(room)) => Ok(room),
            _ => Err(busy("the memory for readers is in use")),
        }
    }

    /// Registered memory that nobody but the reader is told of.
    async fn memory(&self, bytes: u64) -> Result<Buffer, Fault> {
        let failed = |reason: String| Fault::new(ErrorCode::Internal, Retry::Elsewhere, reason);
        let memory = Memory::allocate(bytes as usize);
        let memory = memory.map_err(|error| failed(format!("{bytes} bytes of memory: {error}")))?;
        let options = RegisterOptions::new(Permission::PeersRead);
        let buffer = self.engine.register_memory(memory, options).await;
        buffer.map_err(|error| failed(error.to_string()))
    }

    /// Keeps the memory for its reader, until it is released or the time is over.
    fn keep(
        &self,
        reader: u64,
        buffer: Buffer,
        room: Arc<OwnedSemaphorePermit>,
        time: Duration,
    ) -> u64 {
        let ticket = Ticket {
            reader,
            buffer,
            _room: room,
        };
        let number = loop {
            let number = rand::random();
            if number != 0 && !self.tickets.lock().contains_key(&number) {
                break number;
            }
        };
        self.tickets.lock().insert(number, ticket);
        let me = Weak::clone(&self.me);
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            if let Some(staging) = me.upgrade() {
                staging.end(number, reader).await;
            }
        });
        number
    }

    /// Takes the memory back; that of others is not touched.
    async fn end(&self, number: u64, reader: u64) {
        let ticket = {
            let mut tickets = self.tickets.lock();
            match tickets.get(&number) {
                Some(ticket) if ticket.reader == reader => tickets.remove(&number),
                _ => None,
            }
        };
        if let Some(ticket) = ticket {
            let taken_back = self.engine.unregister_memory(ticket.buffer, QUIET).await;
            if let Err(error) = taken_back {
                tracing::warn!(%error, "a reader's memory is not quiet: the engine keeps it until it is");
            }
        }
    }

    /// Takes everything back, side by side.
    pub(super) async fn clear(&self, within: Duration) {
        let mut ends = JoinSet::new();
        for (_, ticket) in std::mem::take(&mut *self.tickets.lock()) {
            let engine = Arc::clone(&self.engine);
            ends.spawn(async move { engine.unregister_memory(ticket.buffer, within).await });
        }
        while let Some(ended) = ends.join_next().await {
            if let Ok(Err(error)) = ended {
                tracing::warn!(%error, "a reader's memory is not quiet: the engine keeps it until it is");
            }
        }
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({} tickets)", self.tickets.lock().len())
    }
}

fn busy(message: &str) -> Fault {
    let later = Retry::Later(Duration::from_millis(10));
    Fault::new(ErrorCode::ObjectReplicaBusy, later, message)
}

fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(ErrorCode::InvalidParams, Retry::Never, message)
}

fn part(item: DiskItem) -> Result<Part, Fault> {
    let incarnation = item
        .incarnation
        .ok_or_else(|| invalid("a part of no incarnation"))?;
    let end = item.offset.checked_add(item.length);
    let most = u64::from(mooncake_bucket::MAX_VALUE_BYTES);
    if item.length == 0 || end.is_none_or(|end| end > most) {
        return Err(invalid("a part that no value has"));
    }
    if item.key.is_empty() || item.key.len() > MOST_KEY || item.tenant.len() > MOST_TENANT {
        return Err(invalid("a name that no object has"));
    }
    Ok(Part {
        object: ObjectName {
            tenant: match item.tenant.as_str() {
                "" => "default".to_owned(),
                tenant => tenant.to_owned(),
            },
            key: item.key.into(),
            incarnation: Incarnation::new(incarnation.epoch, incarnation.sequence),
        },
        offset: item.offset as u32,
        length: item.length as u32,
    })
}

fn read_fault(error: &GetError) -> Fault {
    let (code, retry) = match error {
        GetError::Damaged { .. } => (ErrorCode::ChecksumMismatch, Retry::Elsewhere),
        GetError::NotFound | GetError::OtherIncarnation { .. } => {
            (ErrorCode::ReplicaIsGone, Retry::Elsewhere)
        }
        GetError::Range { .. } | GetError::Room { .. } => {
            (ErrorCode::InvalidRead, Retry::Elsewhere)
        }
        _ => (ErrorCode::FileReadFailed, Retry::Elsewhere),
    };
    let message = match error {
        GetError::Io { source, .. } => format!("{error}: {source}"),
        error => error.to_string(),
    };
    Fault::new(code, retry, message).with_stage("disk")
}

impl Holder {
    /// Has the master told of what cannot be read, if it cannot be read ever.
    fn note_loss(&self, object: &ObjectName, error: &GetError) {
        let what = match error {
            GetError::Damaged { .. } => What::Damaged,
            GetError::NotFound | GetError::OtherIncarnation { .. } => What::Absent,
            GetError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                What::Gone
            }
            _ => return,
        };
        let object = object.clone();
        // Who does not fit is found again by its next reader.
        if self.losses.try_send(Loss { object, what }).is_err() {
            add(&self.counters.unnoted_losses, 1);
        }
    }

    fn check(&self, storage: &[u8], holder: u64) -> Result<(), Fault> {
        let mine = self.records.identity() == *storage
            && holder == self.engine.incarnation().get()
            // The master announces what is here a moment before we hear that it does.
            && !self.over.load(Ordering::Relaxed);
        if mine {
            return Ok(());
        }
        let message = "this process does not hold the storage, or not in that life";
        Err(Fault::new(ErrorCode::Stale, Retry::AfterRefresh, message))
    }

    async fn stage(&self, request: ReadOffloadedRequest) -> Result<ReadOffloadedResponse, Fault> {
        self.check(&request.storage, request.holder_incarnation)?;
        if request.items.len() > MOST_ITEMS {
            return Err(invalid(format!(
                "at most {MOST_ITEMS} parts are read at once"
            )));
        }
        let budget = Duration::from_micros(request.budget_us).min(LONGEST_WAIT);
        let asked = Instant::now();
        let total = |part: &Part| u64::from(part.length).next_multiple_of(64);
        let (most, mut bytes) = (self.staging.bytes(), 0);
        let wanted = request.items.into_iter().map(part);
        let wanted: Vec<_> = wanted
            .map(|part| {
                let part = part?;
                if total(&part) > most {
                    let message = format!("a part here has at most {most} bytes");
                    return Err(invalid(message));
                }
                // What does not go with the others is asked for once more.
                if bytes + total(&part) > most {
                    return Err(busy("there is no room for all parts at once"));
                }
                bytes += total(&part);
                Ok(part)
            })
            .collect();
        let room = self.staging.room(bytes, budget.min(WAIT)).await;
        let room = room.inspect_err(|_| add(&self.counters.busy_reads, 1))?;
        let (room, queued) = (Arc::new(room), asked.elapsed());
        add(&self.counters.read_queue_us, queued.as_micros() as u64);
        let parts = Arc::new(wanted.iter().flatten().cloned().collect::<Vec<_>>());
        let read = if parts.is_empty() {
            Vec::new()
        } else {
            let left = budget.saturating_sub(queued);
            let reading = (Arc::clone(&parts), asked + budget, Arc::clone(&room));
            let reading = self.records.read(reading.0, reading.1, reading.2);
            let read = tokio::time::timeout(left, reading).await;
            let read = read.map_err(|_| busy("the disk did not answer in time"))?;
            read.map_err(|error| {
                Fault::new(
                    ErrorCode::FileReadFailed,
                    Retry::Elsewhere,
                    error.to_string(),
                )
            })?
        };
        if read.len() < parts.len() {
            return Err(busy("the disk did not answer in time"));
        }
        let disk = asked.elapsed().saturating_sub(queued);
        add(&self.counters.read_disk_us, disk.as_micros() as u64);

        let buffer = match read.iter().any(Result::is_ok) {
            true => Some(self.staging.memory(bytes).await?),
            false => None,
        };
        let (mut results, mut at) = (Vec::with_capacity(wanted.len()), 0);
        let mut read = read.into_iter();
        for wanted in wanted {
            let staged = match wanted {
                Err(fault) => Err(fault),
                Ok(part) => match (read.next(), &buffer) {
                    (Some(Ok(value)), Some(buffer)) => {
                        buffer.memory().write_at(at, &value);
                        let staged = Staged {
                            registration: buffer.id().0,
                            generation: buffer.generation().0,
                            offset: at,
                            length: value.len() as u64,
                            checksum: crc32c::crc32c(&value),
                        };
                        at += total(&part);
                        add(&self.counters.reads, 1);
                        add(&self.counters.read_bytes, value.len() as u64);
                        Ok(staged)
                    }
                    (Some(Err(error)), _) => {
                        self.note_loss(&part.object, &error);
                        add(&self.counters.failed_reads, 1);
                        Err(read_fault(&error))
                    }
                    _ => Err(invalid("the part was not read")),
                },
            };
            let result = match staged {
                Ok(staged) => staged_result::Result::Staged(staged),
                Err(fault) => staged_result::Result::Error(fault.into()),
            };
            results.push(StagedResult {
                result: Some(result),
            });
        }
        let left = budget.saturating_sub(asked.elapsed());
        let held = (left + GRACE).min(LONGEST);
        let ticket = match buffer {
            Some(buffer) => self
                .staging
                .keep(request.reader_incarnation, buffer, room, held),
            None => 0,
        };
        Ok(ReadOffloadedResponse {
            results,
            ticket,
            held_us: held.as_micros() as u64,
        })
    }
}

/// Where readers ask. It keeps nothing open that ends while they are still connected.
#[derive(Debug)]
pub(super) struct Door(pub(super) Weak<Holder>);

impl Door {
    fn holder(&self) -> Result<Arc<Holder>, Fault> {
        self.0.upgrade().ok_or_else(|| {
            let message = "this process does not hold the storage any more";
            Fault::new(ErrorCode::Stale, Retry::AfterRefresh, message)
        })
    }
}

#[async_trait]
impl HolderService for Door {
    async fn read_offloaded(
        &self,
        request: Request<ReadOffloadedRequest>,
    ) -> Result<Response<ReadOffloadedResponse>, Status> {
        let holder = self.holder()?;
        Ok(Response::new(holder.stage(request.into_inner()).await?))
    }

    async fn release_staged(
        &self,
        request: Request<ReleaseStagedRequest>,
    ) -> Result<Response<ReleaseStagedResponse>, Status> {
        let (holder, request) = (self.holder()?, request.into_inner());
        if request.tickets.len() > MOST_ITEMS {
            return Err(
                invalid(format!("at most {MOST_ITEMS} tickets are released at once")).into(),
            );
        }
        // Tickets of another life of ours are gone.
        if request.holder_incarnation == holder.engine.incarnation().get() {
            for ticket in request.tickets {
                holder.staging.end(ticket, request.reader_incarnation).await;
            }
        }
        Ok(Response::new(ReleaseStagedResponse {}))
    }

    async fn push_offloaded(
        &self,
        _: Request<PushOffloadedRequest>,
    ) -> Result<Response<PushOffloadedResponse>, Status> {
        let message = "this holder does not write to its readers: they read";
        Err(Fault::new(ErrorCode::NotSupported, Retry::Never, message).into())
    }
}

#[cfg(test)]
mod tests {
    use mooncake_proto::master::ObjectIncarnation;

    use super::*;

    fn item(tenant: usize, key: usize, length: u64) -> DiskItem {
        DiskItem {
            tenant: "t".repeat(tenant),
            key: vec![7; key].into(),
            incarnation: Some(ObjectIncarnation {
                epoch: 1,
                sequence: 1,
            }),
            offset: 0,
            length,
        }
    }

    #[test]
    fn names_and_lengths_that_no_object_has_are_refused() {
        let most = u64::from(mooncake_bucket::MAX_VALUE_BYTES);
        assert!(part(item(MOST_TENANT, MOST_KEY, most)).is_ok());
        for (tenant, key, length) in [
            (MOST_TENANT + 1, 1, 1),
            (1, MOST_KEY + 1, 1),
            (1, 0, 1),
            (1, 1, 0),
            (1, 1, most + 1),
        ] {
            assert!(part(item(tenant, key, length)).is_err());
        }
    }
}
