//! Answers of the state machine as answers of the wire.

use std::time::Duration;

use mooncake_proto::{
    master::{self as proto, answer::Answer as Reply},
    status::ErrorDetail,
};

use super::fault::fault;
use crate::{
    state::{
        Answer, Description, Existence, Failure, Incarnation, Key, Located, Object, Operation,
        Replica, SegmentIdentity, SegmentUsage, StorageHandle,
    },
    time::micros,
};

/// What all answers of one master have in common.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Of this life of the master.
    pub epoch: u64,
    /// How often clients are asked to ping.
    pub ping_interval: Duration,
    /// How long a silent client keeps its state.
    pub client_ttl: Duration,
    /// How long a look-up's lease lasts.
    pub lease_ttl: Duration,
    /// How long a put may take from its start to its end.
    pub put_deadline: Duration,
}

impl Terms {
    /// The answer to hello.
    pub fn hello(&self, resumed: bool) -> proto::HelloAnswer {
        proto::HelloAnswer {
            epoch: self.epoch,
            resumed,
            ping_interval_us: micros(self.ping_interval),
            client_ttl_us: micros(self.client_ttl),
            put_deadline_us: micros(self.put_deadline),
        }
    }
}

/// The reply to an operation that was performed.
pub fn reply(terms: &Terms, operation: &Operation, answer: Answer) -> Reply {
    match answer {
        Answer::Described(described) => {
            let storages = storages(&described.storages);
            let (results, segments) = located(operation, described, describe_result);
            Reply::Describe(proto::DescribeResponse {
                results,
                segments,
                storages,
            })
        }
        Answer::Done => match operation {
            Operation::Goodbye { .. } => Reply::Goodbye(proto::GoodbyeResponse {}),
            Operation::ReturnGrants { .. } => Reply::ReturnGrants(proto::ReturnGrantsResponse {}),
            Operation::Mount(_) => Reply::MountSegment(proto::MountSegmentResponse {}),
            Operation::Unmount(_) => Reply::UnmountSegment(proto::UnmountSegmentResponse {}),
            _ => Reply::Release(proto::ReleaseResponse {}),
        },
        Answer::Exist(results) => {
            let one = |(at, result): (_, Result<Existence, Failure>)| match result {
                Ok(found) => proto::ExistResult {
                    exists: found.exists,
                    held_ms: u32::try_from(found.held.as_millis()).unwrap_or(u32::MAX),
                    error: None,
                },
                Err(failure) => proto::ExistResult {
                    error: Some(about(operation, at, failure)),
                    ..Default::default()
                },
            };
            let results = results.into_iter().enumerate().map(one).collect();
            Reply::Exist(proto::ExistResponse { results })
        }
        Answer::Granted { offset, length } => Reply::Grant(proto::GrantResponse { offset, length }),
        Answer::Keys(results) => {
            let one = |(at, result): (_, Result<(), Failure>)| proto::KeyResult {
                error: result.err().map(|failure| about(operation, at, failure)),
            };
            let results = results.into_iter().enumerate().map(one).collect();
            match operation {
                Operation::PutEnd(_) => Reply::PutEnd(proto::PutEndResponse { results }),
                Operation::PutRevoke(_) => Reply::PutRevoke(proto::PutRevokeResponse { results }),
                _ => Reply::Remove(proto::RemoveResponse { results }),
            }
        }
        Answer::Looked { found, lease } => {
            let storages = storages(&found.storages);
            let (results, segments) = located(operation, found, lookup_result);
            Reply::Lookup(proto::LookupResponse {
                results,
                segments,
                lease,
                lease_us: if lease == 0 {
                    0
                } else {
                    micros(terms.lease_ttl)
                },
                storages,
            })
        }
        Answer::Objects { objects, more } => {
            let listed = |object: crate::state::ListedObject| proto::ListedObject {
                key: object.key.0,
                length: object.length,
                replicas: object.replicas,
                incarnation: Some(incarnation(object.incarnation)),
            };
            Reply::ListObjects(proto::ListObjectsResponse {
                objects: objects.into_iter().map(listed).collect(),
                more,
            })
        }
        Answer::Pong { known } => Reply::Ping(proto::PingResponse {
            epoch: terms.epoch,
            unknown_client: !known,
        }),
        Answer::Put(results) => {
            use proto::put_result::Result::{Error, Incarnation};
            let one = |(at, result): (_, Result<_, Failure>)| {
                let error = |failure| Error(about(operation, at, failure));
                let result = result.map_or_else(error, |of| Incarnation(incarnation(of)));
                proto::PutResult {
                    result: Some(result),
                }
            };
            let results = results.into_iter().enumerate().map(one).collect();
            Reply::Put(proto::PutResponse { results })
        }
        Answer::Refused(failure) => refusal(failure),
        Answer::Removed { objects } => {
            Reply::RemoveAll(proto::RemoveAllResponse { removed: objects })
        }
        Answer::Segments {
            segments,
            evicted_objects,
        } => Reply::ListSegments(proto::ListSegmentsResponse {
            segments: segments.iter().map(usage).collect(),
            evicted_objects,
        }),
        Answer::Started(started) => {
            let (results, segments) = located(operation, started, start_result);
            Reply::PutStart(proto::PutStartResponse {
                results,
                segments,
                deadline_us: micros(terms.put_deadline),
            })
        }
        // Not given to operations, or no answer yet.
        Answer::Hello { .. }
        | Answer::Later { .. }
        | Answer::Storage(_)
        | Answer::Ticked { .. } => refusal(Failure::invalid("this is no answer to an operation")),
    }
}

/// The reply to an operation that failed as a whole.
pub fn refusal(failure: Failure) -> Reply {
    Reply::Error(fault(failure).into())
}

fn located<T, R>(
    operation: &Operation,
    located: Located<T>,
    result: impl Fn(Result<T, Box<ErrorDetail>>) -> R,
) -> (Vec<R>, Vec<proto::Segment>) {
    let one = |(at, found): (_, Result<T, Failure>)| {
        result(found.map_err(|failure| about(operation, at, failure)))
    };
    let results = located.results.into_iter().enumerate().map(one).collect();
    (
        results,
        located
            .segments
            .iter()
            .map(|known| segment(known))
            .collect(),
    )
}

/// A failure of the operation's key at this place.
fn about(operation: &Operation, at: usize, failure: Failure) -> Box<ErrorDetail> {
    let key: Option<&Key> = match operation {
        Operation::Describe(keys) | Operation::Exist(keys) | Operation::Lookup(keys) => {
            keys.get(at)
        }
        Operation::Put(put) => put.items.get(at).map(|item| &item.key),
        Operation::PutEnd(items) | Operation::PutRevoke(items) => items.get(at).map(|item| &item.0),
        Operation::PutStart(put) => put.items.get(at).map(|item| &item.0),
        Operation::Remove(remove) => remove.items.get(at).map(|item| &item.0),
        Operation::Goodbye { .. }
        | Operation::Grant(_)
        | Operation::ListObjects(_)
        | Operation::ListSegments
        | Operation::Mount(_)
        | Operation::Ping
        | Operation::Release(_)
        | Operation::RemoveAll
        | Operation::ReturnGrants { .. }
        | Operation::Unmount(_) => None,
    };
    let fault = fault(failure);
    match key {
        Some(key) => fault.with_key(key.0.clone()).into(),
        None => fault.into(),
    }
}

fn lookup_result(found: Result<Object, Box<ErrorDetail>>) -> proto::LookupResult {
    use proto::lookup_result::Result::{Error, Object};
    let result = found.map_or_else(Error, |found| Object(object(found)));
    proto::LookupResult {
        result: Some(result),
    }
}

fn start_result(started: Result<Object, Box<ErrorDetail>>) -> proto::PutStartResult {
    use proto::put_start_result::Result::{Error, Object};
    let result = started.map_or_else(Error, |started| Object(object(started)));
    proto::PutStartResult {
        result: Some(result),
    }
}

fn describe_result(described: Result<Description, Box<ErrorDetail>>) -> proto::DescribeResult {
    use proto::describe_result::Result::{Description, Error};
    let result = described.map_or_else(Error, |described| {
        Description(proto::ObjectDescription {
            object: Some(object(described.object)),
            writing: described.writing,
            leases: described.leases,
            idle_us: micros(described.idle),
        })
    });
    proto::DescribeResult {
        result: Some(result),
    }
}

pub(super) fn object(object: Object) -> proto::Object {
    let length = object.length;
    let one = |replica| {
        use proto::replica::Replica as Place;
        let place = match replica {
            Replica::LocalDisk { storage } => {
                Place::LocalDisk(proto::LocalDiskReplica { storage, length })
            }
            Replica::Memory { segment, offset } => Place::Memory(proto::MemoryReplica {
                segment,
                offset,
                length,
            }),
            Replica::Remote(remote) => Place::Remote(proto::RemoteReplica {
                store: remote.store,
                path: remote.path,
                length,
            }),
        };
        proto::Replica {
            replica: Some(place),
        }
    };
    proto::Object {
        incarnation: Some(incarnation(object.incarnation)),
        length,
        replicas: object.replicas.into_iter().map(one).collect(),
    }
}

pub(crate) fn incarnation(of: Incarnation) -> proto::ObjectIncarnation {
    proto::ObjectIncarnation {
        epoch: of.epoch,
        sequence: of.sequence,
    }
}

pub(super) fn segment(segment: &SegmentIdentity) -> proto::Segment {
    proto::Segment {
        id: segment.id.0.to_vec().into(),
        name: segment.name.clone(),
        owner_incarnation: segment.owner.0,
        registration: segment.registration,
        generation: segment.generation,
        length: segment.length,
        owner: segment.owner_name.clone(),
    }
}

fn storages(storages: &[StorageHandle]) -> Vec<proto::Storage> {
    storages.iter().map(storage).collect()
}

pub(super) fn storage(storage: &StorageHandle) -> proto::Storage {
    proto::Storage {
        id: storage.id.0.to_vec().into(),
        holder_incarnation: storage.holder.0,
        endpoint: storage.endpoint.clone(),
        segment_name: storage.segment_name.clone(),
        holder: storage.holder_name.clone(),
    }
}

fn usage(usage: &SegmentUsage) -> proto::SegmentUsage {
    proto::SegmentUsage {
        segment: Some(segment(&usage.segment)),
        used_bytes: usage.used_bytes,
        quarantined_bytes: usage.quarantined_bytes,
        objects: usage.objects,
        silent_us: micros(usage.silent),
        granted_bytes: usage.granted_bytes,
    }
}
