//! Reading values from disks: a holder reads them into memory of its own, where we read them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mooncake_proto::{
    Fault,
    master::ObjectIncarnation,
    store::{
        DiskItem, ReadOffloadedRequest, ReadOffloadedResponse, ReleaseStagedRequest, Staged,
        holder_client::HolderClient, staged_result,
    },
};
use mooncake_tent::{LocalSlice, transport::Op};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Semaphore;
use tonic::transport::{Channel, Endpoint};

use super::{
    driver::Driver,
    transfer::{Transfer, result, unposted},
};
use crate::{
    Applied, ErrorCode, Retry,
    core::{DiskPlace, Event, Location, OpId, SegmentId, SegmentInfo, TransferFault, TransferId},
    time::{Clock, Time},
};

/// In one request of a holder: values, and about so many bytes.
const MOST_ITEMS: usize = 256;
const MOST_BYTES: u64 = 32 << 20;
/// Requests that one holder has at a time; others wait here and not in its queue.
const AT_ONCE: usize = 4;
/// A holder has this much less time than we have, or a share of it, so that its answer is heard.
const MARGIN: Duration = Duration::from_millis(100);
const CONNECT: Duration = Duration::from_secs(1);
/// Holders whose connections are kept.
const MOST_HOLDERS: usize = 1024;
/// How long a holder may take to hear that we are done.
const RELEASE: Duration = Duration::from_secs(1);
/// What a busy holder may ask for.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Bytes that are checked at a time.
const CHUNK: usize = 64 << 10;
/// A record that cannot be read is gone at the master after a while.
const LATER: Retry = Retry::Later(Duration::from_millis(100));

/// A value that is to be read from a disk.
#[derive(Debug)]
pub(super) struct DiskRead {
    place: DiskPlace,
    /// Once it is known where the holder has the bytes.
    transfer: Transfer,
}

impl DiskRead {
    pub(super) fn new(
        (id, op, item): (TransferId, OpId, usize),
        place: DiskPlace,
        deadline: Time,
    ) -> Self {
        let location = location(&place, 0, 0, 0);
        let transfer = Transfer {
            id,
            op,
            item,
            direction: Op::Read,
            location,
            deadline,
        };
        Self { place, transfer }
    }
}

fn location(place: &DiskPlace, registration: u64, generation: u32, offset: u64) -> Location {
    let storage = &place.storage;
    let segment = SegmentInfo {
        id: SegmentId(storage.id.0),
        name: storage.segment_name.clone(),
        owner_incarnation: storage.holder_incarnation,
        registration,
        generation,
        length: place.length,
    };
    Location {
        segment: Arc::new(segment),
        offset,
        length: place.length,
    }
}

/// Connections to holders, by where they answer.
#[derive(Debug, Default)]
pub(super) struct Holders(Mutex<FxHashMap<String, Connection>>);

#[derive(Clone, Debug)]
struct Connection {
    holder: HolderClient<Channel>,
    turns: Arc<Semaphore>,
}

impl Holders {
    /// Connects with the first call.
    fn at(&self, address: &str) -> Result<Connection, String> {
        let mut holders = self.0.lock();
        if let Some(holder) = holders.get(address) {
            return Ok(holder.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|error| error.to_string())?;
        let endpoint = endpoint.tcp_nodelay(true).connect_timeout(CONNECT);
        let holder = Connection {
            holder: HolderClient::new(endpoint.connect_lazy()),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        };
        if holders.len() >= MOST_HOLDERS {
            holders.clear();
        }
        holders.insert(address.to_owned(), holder.clone());
        Ok(holder)
    }
}

impl Driver {
    /// Asks all holders side by side.
    pub(super) fn read_disks(&self, reads: Vec<DiskRead>) {
        let mut groups: FxHashMap<_, Vec<Vec<DiskRead>>> = FxHashMap::default();
        for read in reads {
            let storage = &read.place.storage;
            let holder = (
                storage.id,
                storage.holder_incarnation,
                storage.endpoint.clone(),
                // What has other holders left ends sooner.
                read.transfer.deadline.0,
            );
            let groups = groups.entry(holder).or_default();
            match groups.last_mut() {
                Some(group) if has_room(group, &read) => group.push(read),
                _ => groups.push(vec![read]),
            }
        }
        for group in groups.into_values().flatten() {
            let driver = self.me.upgrade().expect("whoever calls holds it");
            self.runtime.spawn(async move { driver.pull(group).await });
        }
    }

    /// Reads values of one holder.
    async fn pull(self: Arc<Self>, reads: Vec<DiskRead>) {
        let transfers = reads.iter().map(|read| &read.transfer);
        let unhoused: Vec<_> = transfers.filter(|it| self.local(it).is_none()).collect();
        if !unhoused.is_empty() {
            let lengths: Vec<_> = unhoused.iter().map(|it| it.location.length).collect();
            match self.scratch().lend(&lengths).await {
                Ok(loans) => self.house(&unhoused, loans),
                Err(error) => {
                    self.refuse_all(&reads, Retry::Never, &error.to_string());
                    return;
                }
            }
        }
        let mut waiting = reads;
        loop {
            let (again, pause) = self.pull_once(waiting).await;
            if again.is_empty() {
                return;
            }
            tokio::time::sleep(pause).await;
            waiting = again;
        }
    }

    /// Reads what the holder has room for. What is to come later, and when; there is time for that.
    async fn pull_once(&self, reads: Vec<DiskRead>) -> (Vec<DiskRead>, Duration) {
        let none = (Vec::new(), Duration::ZERO);
        let storage = Arc::clone(&reads[0].place.storage);
        // All of a group have the same.
        let deadline = reads[0].transfer.deadline;
        let turns = match self.holders.at(&storage.endpoint) {
            Ok(connection) => connection.turns,
            Err(message) => {
                self.refuse_all(&reads, Retry::Elsewhere, &message);
                return none;
            }
        };
        let left = deadline.since(Clock.now());
        let Ok(Ok(_turn)) = tokio::time::timeout(left, turns.acquire()).await else {
            self.refuse_all(&reads, LATER, "others are in front of this one");
            return none;
        };
        let answer = match self.ask(&reads).await {
            Ok(answer) if answer.results.len() == reads.len() => answer,
            Ok(_) => {
                self.refuse_all(&reads, LATER, "it answered something else");
                return none;
            }
            Err(fault) => {
                if let Some(pause) = pause_of(&fault, deadline) {
                    return (reads, pause);
                }
                self.refuse_all(&reads, retry_of(&fault), &fault.message);
                return none;
            }
        };
        let mut staged = Vec::with_capacity(reads.len());
        let (mut again, mut longest) = none;
        for (read, result) in reads.into_iter().zip(answer.results) {
            match result.result {
                Some(staged_result::Result::Staged(place)) if place.length == read.place.length => {
                    staged.push((read, place));
                }
                Some(staged_result::Result::Error(detail)) => {
                    let fault = Fault::from(detail);
                    match pause_of(&fault, deadline) {
                        Some(pause) => {
                            longest = longest.max(pause);
                            again.push(read);
                        }
                        None => self.refuse_read(&read, retry_of(&fault), fault.message),
                    }
                }
                _ => self.refuse_read(&read, LATER, "not what was asked".to_owned()),
            }
        }
        self.bring(staged).await;
        if answer.ticket != 0 {
            let request = ReleaseStagedRequest {
                holder_incarnation: storage.holder_incarnation,
                reader_incarnation: self.engine.incarnation().get(),
                tickets: vec![answer.ticket],
            };
            if let Ok(mut connection) = self.holders.at(&storage.endpoint) {
                let released = connection.holder.release_staged(request);
                let released = tokio::time::timeout(RELEASE, released);
                // Or its own time ends it.
                let _unheard = released.await;
            }
        }
        (again, longest)
    }

    async fn ask(&self, reads: &[DiskRead]) -> Result<ReadOffloadedResponse, Fault> {
        let storage = &reads[0].place.storage;
        let deadline = reads.iter().map(|read| read.transfer.deadline).min();
        let left = deadline.unwrap_or(Time(0)).since(Clock.now());
        let tenant = &self.master.hello().tenant;
        let item = |read: &DiskRead| DiskItem {
            tenant: tenant.clone(),
            key: read.place.key.clone(),
            incarnation: Some(ObjectIncarnation {
                epoch: read.place.incarnation.epoch,
                sequence: read.place.incarnation.sequence,
            }),
            offset: 0,
            length: read.place.length,
        };
        let request = ReadOffloadedRequest {
            storage: Bytes::copy_from_slice(&storage.id.0),
            holder_incarnation: storage.holder_incarnation,
            reader_incarnation: self.engine.incarnation().get(),
            items: reads.iter().map(item).collect(),
            budget_us: left.saturating_sub(MARGIN.min(left / 8)).as_micros() as u64,
        };
        let unreachable =
            |message: String| Fault::new(ErrorCode::RpcFailed, Retry::Elsewhere, message);
        let connection = self.holders.at(&storage.endpoint);
        let mut holder = connection.map_err(unreachable)?.holder;
        match tokio::time::timeout(left, holder.read_offloaded(request)).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => {
                let message = format!("the holder at {} did not answer in time", storage.endpoint);
                Err(unreachable(message))
            }
        }
    }

    /// Reads what the holder has in its memory; returns when nothing of it moves any more.
    async fn bring(&self, staged: Vec<(DiskRead, Staged)>) {
        let Some((first, _)) = staged.first() else {
            return;
        };
        let (name, deadline) = (
            first.place.storage.segment_name.clone(),
            first.transfer.deadline,
        );
        let segment = match self.segment(&name, deadline).await {
            Ok(segment) => segment,
            Err(error) => {
                for (read, _) in &staged {
                    self.refuse_read(read, Retry::Elsewhere, error.to_string());
                }
                return;
            }
        };
        let (mut posted, mut requests) = (Vec::new(), Vec::new());
        for (mut read, place) in staged {
            read.transfer.location = location(
                &read.place,
                place.registration,
                place.generation,
                place.offset,
            );
            match self.local(&read.transfer) {
                Some(local) => {
                    requests.push(read.transfer.request(local.clone(), &segment));
                    posted.push((read, local, place.checksum));
                }
                None => {
                    let message = "the operation has ended meanwhile".to_owned();
                    self.refuse_read(&read, Retry::Never, message);
                }
            }
        }
        if requests.is_empty() {
            return;
        }
        let mut batch = self.engine.allocate_batch(requests.len());
        if let Err(error) = self.engine.submit_transfer(&mut batch, requests) {
            for (read, ..) in &posted {
                self.refuse_read(read, error.retry(), error.to_string());
            }
            return;
        }
        let batch = Arc::new(batch);
        let places = posted.iter().enumerate();
        let places = places.map(|(at, (read, ..))| (read.transfer.id, (Arc::clone(&batch), at)));
        self.posted.lock().extend(places);
        batch.terminal().await;
        let (mut ends, mut loud) = (Vec::with_capacity(posted.len()), Vec::new());
        for (at, (read, local, checksum)) in posted.iter().enumerate() {
            self.posted.lock().remove(&read.transfer.id);
            let quiescent = batch.is_task_quiescent(at);
            if !quiescent {
                loud.push(read.transfer.id);
            }
            let read_result = result(batch.outcome(at), quiescent, &name);
            let verified = read_result.and_then(|bytes| match checksum_of(local) == *checksum {
                true => Ok(bytes),
                false => Err(TransferFault {
                    retry: LATER,
                    applied: Applied::UpTo(bytes),
                    quiescent: true,
                    peer: name.clone(),
                    message: "the bytes are not those that the holder has read".to_owned(),
                }),
            });
            ends.push(Event::TransferEnded {
                transfer: read.transfer.id,
                result: verified,
            });
        }
        self.act(self.handled(ends));
        batch.quiescent().await;
        let quiet = loud.into_iter().map(|transfer| Event::Quiet { transfer });
        self.act(self.handled(quiet));
    }

    fn refuse_all(&self, reads: &[DiskRead], retry: Retry, message: &str) {
        for read in reads {
            self.refuse_read(read, retry, message.to_owned());
        }
    }

    fn refuse_read(&self, read: &DiskRead, retry: Retry, message: String) {
        let peer = &read.place.storage.endpoint;
        let fault = unposted(retry, peer, format!("the holder at {peer}: {message}"));
        self.event(Event::TransferEnded {
            transfer: read.transfer.id,
            result: Err(fault),
        });
    }
}

/// What another attempt needs. Only a holder that cannot be reached is to be avoided: one that answers is a good peer,
/// whatever became of a record.
fn retry_of(fault: &Fault) -> Retry {
    match (fault.code, fault.retry) {
        (ErrorCode::RpcFailed | ErrorCode::RpcTimeout, _) => Retry::Elsewhere,
        (_, retry @ (Retry::AfterRefresh | Retry::Later(_))) => retry,
        _ => LATER,
    }
}

/// After how long a holder that is busy is asked once more, if there is time for that.
fn pause_of(fault: &Fault, deadline: Time) -> Option<Duration> {
    match (fault.code, fault.retry) {
        (ErrorCode::ObjectReplicaBusy, Retry::Later(pause)) => {
            let pause = pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            (Clock.now() + pause < deadline).then_some(pause)
        }
        _ => None,
    }
}

/// Whether one more goes with these.
fn has_room(group: &[DiskRead], read: &DiskRead) -> bool {
    let bytes = group.iter().map(|read| read.place.length).sum::<u64>();
    group.len() < MOST_ITEMS && bytes.saturating_add(read.place.length) <= MOST_BYTES
}

/// CRC32C of scattered bytes.
fn checksum_of(local: &[LocalSlice]) -> u32 {
    let (mut checksum, mut chunk) = (0, vec![0; CHUNK]);
    for slice in local {
        let mut at = 0;
        while at < slice.len() {
            let bytes = (slice.len() - at).min(CHUNK as u64) as usize;
            slice.read_at(at, &mut chunk[..bytes]);
            checksum = crc32c::crc32c_append(checksum, &chunk[..bytes]);
            at += bytes as u64;
        }
    }
    checksum
}
