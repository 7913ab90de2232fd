//! The loop that copies objects from memory to the disk.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use mooncake_bucket::{Incarnation, PutError, Stored};
use mooncake_proto::{
    Fault, Retry,
    master::{FetchOffloadTasksResponse, OffloadResult, ReleaseRequest, dropped_replica::Reason},
    status::ErrorCode,
};
use mooncake_tent::{
    Generation, RegistrationId, RemoteRange, Request, Segment,
    transport::{Op, Outcome},
};
use smallvec::SmallVec;
use tokio::task::JoinSet;

use super::{
    counts::add,
    file_storage::{Holder, PAUSE},
    in_flight::ObjectName,
    losses::{chunks, dropped},
    standing::{disk_fault, wire},
};
use crate::{
    client::Loan,
    core::{Location, MasterRequest, Places},
    time::{Clock, Time},
};

/// Tasks that are fetched at once.
const FETCH: u32 = 256;
/// How long an owner of memory may take to describe it.
const OPEN_BUDGET: Duration = Duration::from_secs(1);
/// How long the master may take to take a lease back.
const RELEASE_BUDGET: Duration = Duration::from_secs(1);

/// An object that is to be on the disk.
#[derive(Debug)]
struct Flight {
    task: u64,
    object: ObjectName,
    length: u64,
    /// It is among those in flight.
    begun: bool,
    /// The places that were not tried yet, the next one last.
    untried: Vec<Location>,
    value: Option<Vec<u8>>,
    fault: Option<Fault>,
}

impl Flight {
    fn refuse(&mut self, code: ErrorCode, retry: Retry, message: impl Into<String>) {
        self.fault = Some(Fault::new(code, retry, message).with_stage("offload"));
    }

    /// A task that nobody can carry out; the master hears so.
    fn senseless(task: u64, tenant: String, key: Vec<u8>) -> Self {
        let incarnation = Incarnation::new(0, 0);
        let mut flight = Self {
            task,
            object: ObjectName {
                tenant,
                key,
                incarnation,
            },
            length: 0,
            begun: false,
            untried: Vec::new(),
            value: None,
            fault: None,
        };
        let message = "the task does not say what is to be copied";
        flight.refuse(ErrorCode::InvalidParams, Retry::Never, message);
        flight
    }

    fn is_open(&self) -> bool {
        self.value.is_none() && self.fault.is_none()
    }
}

impl Holder {
    /// Carries out offload tasks until it is aborted.
    pub(super) async fn offload(self: Arc<Self>) {
        loop {
            let mount = self.mounted().await;
            if self.is_full(self.records.accounting().file_bytes) {
                // Whatever were fetched now had to be refused, and a task is given few times.
                self.wake.evictions.notify_one();
                self.rest(&self.wake.offloads).await;
                continue;
            }
            match self.offload_some(mount).await {
                Ok(true) => {}
                Ok(false) => self.rest(&self.wake.offloads).await,
                Err(fault) => self.failed("copying objects to the disk", &fault).await,
            }
        }
    }

    /// `true`: there may be more.
    async fn offload_some(&self, mount: u64) -> Result<bool, Fault> {
        let asked_at = Clock.now();
        let used = self.records.accounting().file_bytes;
        let room = self.options.capacity_bytes.saturating_sub(used);
        let limit_bytes = self.options.offload_bytes.min(room).max(1);
        let fetched = self.desk.offloads(FETCH, limit_bytes).await?;
        let more = fetched.more;
        let (lease, ends) = (
            fetched.lease,
            asked_at + Duration::from_micros(fetched.lease_us),
        );
        let mut flights = self.flights(mount, fetched);
        self.make_sure_of_room(&mut flights);
        self.fetch(&mut flights, ends).await;
        self.release(lease);
        if flights.is_empty() {
            return Ok(false);
        }
        self.write(&mut flights).await;
        let told = self.tell(mount, &flights).await;
        let mut flying = self.in_flight.lock();
        for flight in flights.iter().filter(|flight| flight.begun) {
            flying.end(&flight.object, flight.length);
        }
        drop(flying);
        // What waited for an end goes on: removals, evictions, and a new mounting.
        self.wake.removals.notify_one();
        self.wake.evictions.notify_one();
        self.wake.landed.notify_one();
        told?;
        Ok(more)
    }

    /// The tasks that are not under way already; none of another mounting, whose reconciliation may have begun.
    fn flights(&self, mount: u64, fetched: FetchOffloadTasksResponse) -> Vec<Flight> {
        let places = Places::new(fetched.segments, Vec::new());
        let mut flights = Vec::with_capacity(fetched.tasks.len());
        for task in fetched.tasks {
            let found = task.object.map(|object| places.object(object));
            let Some(Ok(found)) = found else {
                tracing::error!(task = task.task, "an offload task makes no sense");
                flights.push(Flight::senseless(task.task, task.tenant, task.key.into()));
                continue;
            };
            let object = ObjectName {
                tenant: task.tenant,
                key: task.key.into(),
                incarnation: Incarnation::new(found.incarnation.epoch, found.incarnation.sequence),
            };
            let (begun, leaving) = {
                let mut flying = self.in_flight.lock();
                // Whoever mounts it anew first says that it does not stand, and looks for flights after that.
                if *self.standing.borrow() != mount {
                    break;
                }
                (
                    flying.begin(&object, found.length),
                    flying.is_leaving(&object),
                )
            };
            if !begun && !leaving {
                continue;
            }
            let mut untried: Vec<_> = found.in_memory().cloned().collect();
            // Our own memory first.
            let own = self.engine.incarnation().get();
            untried.sort_by_key(|location| location.segment.owner_incarnation == own);
            let mut flight = Flight {
                task: task.task,
                object,
                length: found.length,
                begun,
                untried,
                value: None,
                fault: None,
            };
            let most = u64::from(mooncake_bucket::MAX_VALUE_BYTES).min(self.staging.bytes());
            if found.length > most {
                // What is larger could be written, and not be read again.
                let message = format!("a record here has at most {most} bytes");
                flight.refuse(ErrorCode::InvalidParams, Retry::Never, message);
            }
            if leaving {
                let message = "the object is just giving way to others";
                flight.refuse(ErrorCode::UnableOffload, Retry::Later(PAUSE), message);
            }
            flights.push(flight);
        }
        flights
    }

    /// Refuses what does not fit, before it is read.
    fn make_sure_of_room(&self, flights: &mut [Flight]) {
        let capacity = self.options.capacity_bytes;
        let mut used = self.records.accounting().file_bytes;
        for flight in flights.iter_mut().filter(|flight| flight.is_open()) {
            used = used.saturating_add(flight.length);
            if used > capacity {
                used -= flight.length;
                let message = format!("{used} of {capacity} bytes of the disk are in use");
                flight.refuse(ErrorCode::NoSpace, Retry::Later(PAUSE), message);
            }
        }
        if self.is_full(used) {
            self.wake.evictions.notify_one();
        }
    }

    /// Reads values from memory while the lease holds, from one place after the other.
    async fn fetch(&self, flights: &mut [Flight], ends: Time) {
        let lengths: Vec<_> = flights
            .iter()
            .filter(|flight| flight.is_open())
            .map(|flight| flight.length)
            .collect();
        if lengths.is_empty() {
            return;
        }
        let loans = match self.scratch.lend(&lengths).await {
            Ok(loans) => loans,
            Err(error) => {
                for flight in flights.iter_mut().filter(|flight| flight.is_open()) {
                    flight.refuse(ErrorCode::UnableOffload, Retry::Here, error.to_string());
                }
                return;
            }
        };
        let open = flights.iter_mut().filter(|flight| flight.is_open());
        let mut open: Vec<_> = open.zip(loans).collect();
        let mut segments = HashMap::new();
        while !open.is_empty() {
            let mut tried = Vec::new();
            for (flight, loan) in open {
                match flight.untried.pop() {
                    Some(location) => tried.push((flight, loan, location)),
                    None if flight.fault.is_some() => {}
                    None => flight.refuse(
                        ErrorCode::ReplicaNotFound,
                        Retry::Elsewhere,
                        "no replica in memory can be read",
                    ),
                }
            }
            self.read(&mut tried, ends, &mut segments).await;
            tried.retain(|(flight, ..)| flight.value.is_none());
            open = tried
                .into_iter()
                .map(|(flight, loan, _)| (flight, loan))
                .collect();
            if Clock.now() >= ends {
                return;
            }
        }
    }

    /// Reads each value from one place; what failed has a fault.
    async fn read(
        &self,
        tried: &mut [(&mut Flight, Loan, Location)],
        ends: Time,
        segments: &mut HashMap<String, Result<Segment, String>>,
    ) {
        let names = tried.iter().map(|(_, _, it)| it.segment.name.clone());
        let new = names.filter(|name| !segments.contains_key(name)).collect();
        self.open(new, ends, segments).await;
        let (mut posted, mut moving) = (Vec::new(), JoinSet::new());
        for (flight, loan, location) in tried {
            let left = ends.since(Clock.now());
            let name = &location.segment.name;
            let segment = match segments.get(name) {
                Some(Ok(segment)) => segment,
                // Who did not answer a moment ago is not asked for each object anew.
                Some(Err(error)) => {
                    let message = format!("the memory of {name}: {error}");
                    flight.refuse(ErrorCode::TransferFailed, Retry::Here, message);
                    continue;
                }
                None => unreachable!("all names were opened"),
            };
            let Some(local) = loan.front(flight.length) else {
                flight.refuse(ErrorCode::Internal, Retry::Here, "the memory is too short");
                continue;
            };
            let remote = RemoteRange::Registered {
                registration: RegistrationId(location.segment.registration),
                generation: Some(Generation(location.segment.generation)),
                offset: location.offset,
            };
            let local = SmallVec::<[_; 1]>::from_buf([local]);
            let request = Request::scattered(Op::Read, local, segment, remote)
                .deadline(Instant::now() + left / (flight.untried.len() as u32 + 1));
            let mut batch = self.engine.allocate_batch(1);
            match self.engine.submit_transfer(&mut batch, vec![request]) {
                Ok(()) => {
                    let at = posted.len();
                    posted.push((flight, loan, name));
                    // They have deadlines, and what may still move keeps its memory.
                    moving.spawn(async move {
                        batch.terminal().await;
                        (at, batch)
                    });
                }
                Err(error) => {
                    flight.refuse(ErrorCode::TransferFailed, Retry::Here, error.to_string());
                }
            }
        }
        // Each is looked at when it ends: a slow one makes no other late.
        while let Some(ended) = moving.join_next().await {
            let (at, batch) = ended.expect("waiting does not panic");
            let (flight, loan, name) = &mut posted[at];
            let outcome = batch.outcome(0);
            let late = Clock.now() >= ends;
            match outcome {
                Some(Outcome::Completed { bytes }) if bytes == flight.length && !late => {
                    let mut value = vec![0; bytes as usize];
                    loan.read_at(0, &mut value);
                    // The bytes may have been another object's while they were copied.
                    if Clock.now() < ends {
                        flight.value = Some(value);
                        flight.fault = None;
                        continue;
                    }
                    flight.refuse(ErrorCode::LeaseExpired, Retry::Here, "the lease ended");
                }
                _ if late => {
                    let message = "the lease ended before the memory was read";
                    flight.refuse(ErrorCode::LeaseExpired, Retry::Here, message);
                }
                outcome => {
                    let message = format!("the memory was not read: {outcome:?}");
                    segments.insert(name.clone(), Err(message.clone()));
                    flight.refuse(ErrorCode::TransferFailed, Retry::Here, message);
                }
            }
        }
    }

    /// Opens segments side by side; why one cannot be is remembered.
    async fn open(
        &self,
        names: HashSet<String>,
        ends: Time,
        segments: &mut HashMap<String, Result<Segment, String>>,
    ) {
        let mut opening = JoinSet::new();
        for name in names {
            let engine = Arc::clone(&self.engine);
            let budget = ends.since(Clock.now()).min(OPEN_BUDGET);
            opening.spawn(async move {
                let opened = engine.open_segment(&name, budget).await;
                (name, opened)
            });
        }
        while let Some(opened) = opening.join_next().await {
            let (name, opened) = opened.expect("opening does not panic");
            segments.insert(name, opened.map_err(|error| error.to_string()));
        }
    }

    /// Gives the memory free; who does not hear of it waits for the end of the lease.
    fn release(&self, lease: u64) {
        if lease == 0 {
            return;
        }
        let request = MasterRequest::Release(ReleaseRequest {
            leases: vec![lease],
        });
        let deadline = Clock.now() + RELEASE_BUDGET;
        self.master.submit(request, deadline, |_| ());
    }

    /// Writes all that was read, in one group, and removes again what was removed meanwhile.
    async fn write(&self, flights: &mut [Flight]) {
        for flight in flights.iter_mut() {
            if flight.is_open() {
                flight.refuse(
                    ErrorCode::UnableOffload,
                    Retry::Here,
                    "the memory was not read",
                );
            }
            self.look_whether_cut(flight);
        }
        let mut writing: Vec<_> = flights
            .iter_mut()
            .filter(|flight| flight.fault.is_none() && flight.value.is_some())
            .collect();
        let take = |flight: &mut &mut Flight| {
            let value = flight.value.take().expect("it has one");
            (flight.object.clone(), value)
        };
        let values: Vec<_> = writing.iter_mut().map(take).collect();
        if values.is_empty() {
            return;
        }
        match self.records.put(Arc::new(values)).await {
            Ok(results) => {
                for (flight, result) in writing.iter_mut().zip(results) {
                    match result {
                        Ok(Stored::Written | Stored::AlreadyHere) => {}
                        Err(error) => flight.fault = Some(put_fault(&error)),
                    }
                }
            }
            Err(error) => {
                for flight in &mut writing {
                    flight.fault = Some(disk_fault(&error.to_string()));
                }
            }
        }
        let mut removed = Vec::new();
        for flight in writing {
            if flight.fault.is_none() {
                self.look_whether_cut(flight);
                if flight.fault.is_some() {
                    removed.push(flight.object.clone());
                }
            }
        }
        // The tasks of these are not done before they are.
        if let Err(fault) = self.bury(removed).await {
            tracing::warn!(%fault, "what was removed on its way to the disk is still there");
        }
    }

    fn look_whether_cut(&self, flight: &mut Flight) {
        if flight.fault.is_none() && self.in_flight.lock().is_cut(&flight.object) {
            let message = "the object was removed on its way to the disk";
            flight.refuse(ErrorCode::Revoked, Retry::Never, message);
            add(&self.counters.revoked_offloads, 1);
        }
    }

    /// Tells the master what became of all, until it has heard it or another life of it has begun.
    async fn tell(&self, mount: u64, flights: &[Flight]) -> Result<(), Fault> {
        let result = |flight: &Flight| OffloadResult {
            task: flight.task,
            error: flight.fault.clone().map(Into::into),
            tenant: flight.object.tenant.clone(),
            key: flight.object.key.clone().into(),
            incarnation: Some(wire(flight.object.incarnation)),
        };
        let results: Vec<_> = flights.iter().map(result).collect();
        let answer = loop {
            // All that is here is told when it is mounted again.
            if *self.standing.borrow() != mount {
                return Ok(());
            }
            match self.desk.offloaded(results.clone()).await {
                Ok(answer) => break answer,
                Err(fault) if fault.code == ErrorCode::SegmentNotFound => return Err(fault),
                Err(fault) => {
                    tracing::warn!(%fault, "the master has not heard of offloads; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        // Another life of the master may have answered: it knows nothing of these tasks, and says nothing of removals.
        if *self.standing.borrow() != mount || answer.results.len() != flights.len() {
            return Ok(());
        }
        let mut removed = Vec::new();
        for (flight, result) in flights.iter().zip(&answer.results) {
            match (&flight.fault, &result.error) {
                (Some(_), _) => add(&self.counters.refused_offloads, 1),
                (None, None) => {
                    add(&self.counters.offloaded_objects, 1);
                    add(&self.counters.offloaded_bytes, flight.length);
                }
                // What it says otherwise is no word of a removal: the next reconciliation tells.
                (None, Some(error)) if error.code() != ErrorCode::Revoked => {
                    let task = flight.task;
                    tracing::warn!(
                        task,
                        reason = error.message,
                        "the master takes no note of an offload"
                    );
                }
                // This very life of it was removed.
                (None, Some(_)) => {
                    add(&self.counters.revoked_offloads, 1);
                    removed.push(flight.object.clone());
                }
            }
        }
        while *self.standing.borrow() == mount
            && let Err(fault) = self.forget(&removed).await
        {
            tracing::warn!(%fault, "what was removed on its way to the disk is still there; trying again");
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

impl Holder {
    /// Removes records, of which the master hears first: should it count on one all the same, it does not any more.
    async fn forget(&self, objects: &[ObjectName]) -> Result<(), Fault> {
        for part in chunks(objects) {
            let wire = part.iter().map(|object| dropped(object, Reason::Evicted));
            self.desk.drop_replicas(wire.collect()).await?;
        }
        self.bury(objects.to_vec()).await
    }
}

fn put_fault(error: &PutError) -> Fault {
    let (code, retry) = match error {
        PutError::Full { .. } => (ErrorCode::NoSpace, Retry::Later(PAUSE)),
        PutError::Removed | PutError::Stale { .. } => (ErrorCode::Revoked, Retry::Never),
        PutError::TooLong { .. } => (ErrorCode::InvalidParams, Retry::Never),
        _ => (ErrorCode::FileWriteFailed, Retry::Here),
    };
    let message = match error {
        PutError::Io(cause) => format!("{error}: {cause}"),
        error => error.to_string(),
    };
    Fault::new(code, retry, message).with_stage("disk")
}
