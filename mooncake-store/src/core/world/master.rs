//! The fake master of the world: keys, leases, and no mercy.

use bytes::Bytes;
use mooncake_proto::{
    Fault, Retry,
    master::{
        self, ExistResponse, ExistResult, KeyResult, LookupResponse, LookupResult, MemoryReplica,
        Object, PutEndResponse, PutRevokeResponse, PutStartResponse, PutStartResult,
        ReleaseResponse, RemoveResponse, lookup_result, put_start_result, replica,
    },
    status::ErrorCode,
};
use rand::RngExt;

use super::*;

impl World {
    pub(super) fn act(&mut self, call: CallId, request: MasterRequest) -> MasterAnswer {
        match request {
            MasterRequest::Exist(exist) => MasterAnswer::Exist(ExistResponse {
                results: exist.keys.iter().map(|_| ExistResult::default()).collect(),
            }),
            MasterRequest::Grant(asked) => self.grant(&asked),
            MasterRequest::Put(put) => self.put(put),
            MasterRequest::ReturnGrants(back) => self.take_grants(&back),
            MasterRequest::Lookup(lookup) => self.look_up(call, lookup.keys),
            MasterRequest::PutEnd(end) => {
                let results = end.items.into_iter().map(|item| {
                    let incarnation = item.incarnation.unwrap().into();
                    match self.lives.get_mut(&item.key) {
                        Some((current, _, life))
                            if *current == incarnation && *life == Life::Writing =>
                        {
                            *life = Life::Complete;
                            self.acknowledged.insert(incarnation);
                            KeyResult::default()
                        }
                        _ => KeyResult {
                            error: Some(error(ErrorCode::Revoked)),
                        },
                    }
                });
                let results = results.collect();
                MasterAnswer::PutEnd(PutEndResponse { results })
            }
            MasterRequest::PutRevoke(revoke) => {
                for item in &revoke.items {
                    if let Some((current, _, life)) = self.lives.get_mut(&item.key)
                        && Some((*current).into()) == item.incarnation
                        && *life == Life::Writing
                    {
                        *life = Life::Gone;
                    }
                }
                let results = revoke.items.iter().map(|_| KeyResult::default()).collect();
                MasterAnswer::PutRevoke(PutRevokeResponse { results })
            }
            MasterRequest::PutStart(start) => {
                let results = start
                    .items
                    .into_iter()
                    .map(|item| self.put_start(item))
                    .collect();
                MasterAnswer::PutStart(PutStartResponse {
                    results,
                    segments: vec![segment()],
                    deadline_us: 20_000,
                })
            }
            MasterRequest::Release(_) => MasterAnswer::Release(ReleaseResponse {}),
            MasterRequest::Remove(remove) => {
                for item in &remove.items {
                    if let Some((_, _, life)) = self.lives.get_mut(&item.key) {
                        *life = Life::Gone;
                    }
                }
                let results = remove.items.iter().map(|_| KeyResult::default()).collect();
                MasterAnswer::Remove(RemoveResponse { results })
            }
            other => panic!("the core does not ask this: {other:?}"),
        }
    }

    fn put_start(&mut self, item: master::PutItem) -> PutStartResult {
        let taken = matches!(self.lives.get(&item.key), Some((_, _, life)) if *life != Life::Gone);
        let result = if taken {
            put_start_result::Result::Error(error(ErrorCode::ObjectAlreadyExists))
        } else {
            self.sequence += 1;
            let incarnation = Incarnation {
                epoch: 1,
                sequence: self.sequence,
            };
            self.lives
                .insert(item.key.clone(), (incarnation, 0, Life::Writing));
            put_start_result::Result::Object(self.object(item.key, incarnation, None))
        };
        PutStartResult {
            result: Some(result),
        }
    }

    fn look_up(&mut self, call: CallId, keys: Vec<Bytes>) -> MasterAnswer {
        let lease = self.unique + 1_000;
        self.unique += 1;
        let mut found = false;
        let results = keys.into_iter().map(|key| {
            let result = match self.lives.get(&key) {
                Some((incarnation, _, Life::Complete)) => {
                    found = true;
                    lookup_result::Result::Object(self.object(key, *incarnation, Some(lease)))
                }
                _ => lookup_result::Result::Error(error(ErrorCode::ObjectNotFound)),
            };
            LookupResult {
                result: Some(result),
            }
        });
        let results = results.collect();
        if found {
            let ends = self.sent_at[&call] + LEASE;
            self.leases.insert(
                lease,
                Granted {
                    ends,
                    unused_at: Time(0),
                    released: false,
                },
            );
        }
        MasterAnswer::Lookup(LookupResponse {
            results,
            segments: vec![segment()],
            storages: Vec::new(),
            lease: if found { lease } else { 0 },
            lease_us: LEASE.as_micros() as u64,
        })
    }

    /// An object with one to three replicas, each at an offset of its own.
    fn object(&mut self, key: Bytes, incarnation: Incarnation, lease: Option<u64>) -> Object {
        let replicas = (0..self.rng.random_range(1..4)).map(|_| {
            let offset = self.offsets.len() as u64;
            self.offsets
                .insert(offset, (key.clone(), incarnation, lease));
            let memory = MemoryReplica {
                segment: 0,
                offset,
                length: 8,
            };
            master::Replica {
                replica: Some(replica::Replica::Memory(memory)),
            }
        });
        let replicas = replicas.collect();
        Object {
            incarnation: Some(incarnation.into()),
            length: 8,
            replicas,
        }
    }
}

pub(super) fn error(code: ErrorCode) -> Box<mooncake_proto::status::ErrorDetail> {
    Fault::new(code, Retry::Never, "no").into()
}

fn segment() -> master::Segment {
    master::Segment {
        id: Bytes::from_static(&[7; 16]),
        name: "there".into(),
        length: 1 << 30,
        ..master::Segment::default()
    }
}
