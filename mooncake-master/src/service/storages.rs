//! Calls of holders and operators about storages.

use mooncake_proto::{
    Fault, Retry,
    master::{self as proto, remove_task, storages_server::Storages},
    status::{ErrorCode, ErrorDetail},
};
use tonic::{Request, Response, Status, async_trait};

use super::{
    MasterService,
    answer::{self, incarnation},
    fault::fault,
    request,
};
use crate::{
    state::{
        Answer, ClientId, Command, Dropped, Failure, Held, Key, Measured, ObjectName,
        OffloadResult, Offloaded, RECONCILE_PAGE, Removal, StorageAnswer, StorageCall, StorageId,
        StorageIdentity, StorageUsage,
    },
    time::micros,
};

/// Objects, or tasks, in one call: it is one step, and none takes long.
const MAX_BATCH: usize = 4096;

impl MasterService {
    async fn storage_call(&self, client: u64, call: StorageCall) -> Result<Answer, Status> {
        let client = ClientId(client);
        let command = Command::Storage { client, call };
        match self.shared.answer(&command).await {
            Answer::Refused(failure) => Err(fault(failure).into()),
            answer => Ok(answer),
        }
    }
}

fn unexpected<T>() -> Result<T, Status> {
    Err(Status::internal("the call was answered by something else"))
}

fn invalid(failure: Failure) -> Status {
    fault(failure).into()
}

fn storage_id(id: &[u8]) -> Result<StorageId, Status> {
    let id = id.try_into().map_err(|_| {
        invalid(Failure::invalid(format!(
            "a storage's id has 16 bytes, not {}",
            id.len()
        )))
    })?;
    Ok(StorageId(id))
}

fn bounded(count: usize) -> Result<(), Status> {
    if count > MAX_BATCH {
        let what = format!("a call takes at most {MAX_BATCH} entries, not {count}");
        return Err(invalid(Failure::invalid(what)));
    }
    Ok(())
}

fn measured(state: Option<proto::StorageState>) -> Measured {
    let state = state.unwrap_or_default();
    Measured {
        capacity: state.capacity_bytes,
        used: state.used_bytes,
        live: state.live_bytes,
        dead: state.dead_bytes,
        queued: state.queued_bytes,
        value_bytes: state.value_bytes,
        objects: state.objects,
    }
}

fn named(
    tenant: &str,
    of: Option<proto::ObjectIncarnation>,
) -> Result<(String, crate::state::Incarnation), Status> {
    let of =
        of.ok_or_else(|| invalid(Failure::invalid("an object comes without its incarnation")))?;
    let tenant = match tenant {
        "" => crate::state::DEFAULT_TENANT,
        tenant => tenant,
    };
    Ok((tenant.to_owned(), request::incarnation(of)))
}

/// The results of keys, of which `key` gives the name for errors.
fn each(
    results: Vec<Result<(), Failure>>,
    key: impl Fn(usize) -> Option<Key>,
) -> Vec<proto::KeyResult> {
    let one = |(at, result): (usize, Result<(), Failure>)| proto::KeyResult {
        error: result.err().map(|failure| match key(at) {
            Some(key) => fault(failure).with_key(key.0).into(),
            None => fault(failure).into(),
        }),
    };
    results.into_iter().enumerate().map(one).collect()
}

fn outcome(error: Option<Box<ErrorDetail>>) -> Offloaded {
    match error.map(|detail| Fault::from(*detail)) {
        None => Offloaded::Done,
        Some(fault) if fault.retry == Retry::Never => Offloaded::Refused,
        Some(_) => Offloaded::Failed,
    }
}

fn task((task, removal): (u64, Removal)) -> proto::RemoveTask {
    let of = incarnation(removal.incarnation);
    let what = match removal.key {
        Some(key) => remove_task::What::Object(proto::KeyIncarnation {
            key: key.0,
            incarnation: Some(of),
        }),
        None => remove_task::What::AllUpTo(of),
    };
    proto::RemoveTask {
        task,
        tenant: removal.tenant,
        what: Some(what),
    }
}

fn usage(usage: &StorageUsage) -> proto::StorageUsage {
    let Measured {
        capacity,
        used,
        live,
        dead,
        queued,
        value_bytes,
        objects,
    } = usage.measured;
    proto::StorageUsage {
        storage: Some(answer::storage(&usage.storage)),
        state: Some(proto::StorageState {
            capacity_bytes: capacity,
            used_bytes: used,
            live_bytes: live,
            dead_bytes: dead,
            queued_bytes: queued,
            value_bytes,
            objects,
        }),
        value_bytes: usage.value_bytes,
        objects: usage.objects,
        remove_tasks: usage.remove_tasks,
        offload_tasks: usage.offload_tasks,
        promotions: 0,
        mounted: usage.mounted,
        reconciled: usage.reconciled,
        silent_us: micros(usage.silent),
    }
}

fn not_yet(what: &str) -> Status {
    Fault::new(
        ErrorCode::NotSupported,
        Retry::Never,
        format!("this master does not {what} yet: objects on disks are read from there"),
    )
    .into()
}

#[async_trait]
impl Storages for MasterService {
    async fn mount_storage(
        &self,
        request: Request<proto::MountStorageRequest>,
    ) -> Result<Response<proto::MountStorageResponse>, Status> {
        let request = request.into_inner();
        let storage = request
            .storage
            .ok_or_else(|| invalid(Failure::invalid("the request names no storage")))?;
        let client = storage.holder_incarnation;
        let call = StorageCall::Mount {
            storage: StorageIdentity {
                id: storage_id(&storage.id)?,
                holder: ClientId(client),
                endpoint: storage.endpoint,
                segment_name: storage.segment_name,
                holder_name: storage.holder,
            },
            measured: measured(request.state),
            fresh: request.fresh,
        };
        self.storage_call(client, call).await?;
        let page = RECONCILE_PAGE;
        Ok(Response::new(proto::MountStorageResponse { page }))
    }

    async fn reconcile_storage(
        &self,
        request: Request<proto::ReconcileStorageRequest>,
    ) -> Result<Response<proto::ReconcileStorageResponse>, Status> {
        let request = request.into_inner();
        bounded(request.objects.len())?;
        let held = |held: proto::HeldObject| {
            let (tenant, incarnation) = named(&held.tenant, held.incarnation)?;
            Ok(Held {
                tenant,
                key: Key(held.key),
                incarnation,
                length: held.length,
            })
        };
        let objects = request.objects.into_iter().map(held);
        let call = StorageCall::Reconcile {
            storage: storage_id(&request.storage)?,
            page: request.page,
            objects: objects.collect::<Result<_, Status>>()?,
            last: request.last,
        };
        match self.storage_call(request.client_incarnation, call).await? {
            Answer::Storage(StorageAnswer::Reconciled { remove }) => {
                Ok(Response::new(proto::ReconcileStorageResponse { remove }))
            }
            _ => unexpected(),
        }
    }

    async fn report_storage(
        &self,
        request: Request<proto::ReportStorageRequest>,
    ) -> Result<Response<proto::ReportStorageResponse>, Status> {
        let request = request.into_inner();
        let call = StorageCall::Report {
            storage: storage_id(&request.storage)?,
            measured: measured(request.state),
        };
        match self.storage_call(request.client_incarnation, call).await? {
            Answer::Storage(StorageAnswer::Reported {
                remove_tasks,
                offload_tasks,
            }) => Ok(Response::new(proto::ReportStorageResponse {
                remove_tasks,
                offload_tasks,
                promotions: 0,
            })),
            _ => unexpected(),
        }
    }

    async fn unmount_storage(
        &self,
        request: Request<proto::UnmountStorageRequest>,
    ) -> Result<Response<proto::UnmountStorageResponse>, Status> {
        let request = request.into_inner();
        let storage = storage_id(&request.storage)?;
        let call = StorageCall::Unmount { storage };
        self.storage_call(request.client_incarnation, call).await?;
        Ok(Response::new(proto::UnmountStorageResponse {}))
    }

    async fn adopt_storage(
        &self,
        request: Request<proto::AdoptStorageRequest>,
    ) -> Result<Response<proto::AdoptStorageResponse>, Status> {
        let storage = storage_id(&request.into_inner().storage)?;
        self.storage_call(0, StorageCall::Adopt { storage }).await?;
        Ok(Response::new(proto::AdoptStorageResponse {}))
    }

    async fn list_storages(
        &self,
        _: Request<proto::ListStoragesRequest>,
    ) -> Result<Response<proto::ListStoragesResponse>, Status> {
        match self.storage_call(0, StorageCall::List).await? {
            Answer::Storage(StorageAnswer::Storages(storages)) => {
                let storages = storages.iter().map(usage).collect();
                Ok(Response::new(proto::ListStoragesResponse { storages }))
            }
            _ => unexpected(),
        }
    }

    async fn fetch_remove_tasks(
        &self,
        request: Request<proto::FetchRemoveTasksRequest>,
    ) -> Result<Response<proto::FetchRemoveTasksResponse>, Status> {
        let request = request.into_inner();
        let call = StorageCall::FetchRemoves {
            storage: storage_id(&request.storage)?,
            limit: request.limit,
            after: request.after,
        };
        match self.storage_call(request.client_incarnation, call).await? {
            Answer::Storage(StorageAnswer::Removes { tasks, more }) => {
                let tasks = tasks.into_iter().map(task).collect();
                Ok(Response::new(proto::FetchRemoveTasksResponse {
                    tasks,
                    more,
                }))
            }
            _ => unexpected(),
        }
    }

    async fn ack_remove_tasks(
        &self,
        request: Request<proto::AckRemoveTasksRequest>,
    ) -> Result<Response<proto::AckRemoveTasksResponse>, Status> {
        let request = request.into_inner();
        bounded(request.tasks.len())?;
        let call = StorageCall::AckRemoves {
            storage: storage_id(&request.storage)?,
            tasks: request.tasks,
        };
        self.storage_call(request.client_incarnation, call).await?;
        Ok(Response::new(proto::AckRemoveTasksResponse {}))
    }

    async fn fetch_offload_tasks(
        &self,
        request: Request<proto::FetchOffloadTasksRequest>,
    ) -> Result<Response<proto::FetchOffloadTasksResponse>, Status> {
        let request = request.into_inner();
        let call = StorageCall::FetchOffloads {
            storage: storage_id(&request.storage)?,
            limit: request.limit,
            limit_bytes: request.limit_bytes,
        };
        match self.storage_call(request.client_incarnation, call).await? {
            Answer::Storage(StorageAnswer::Offloads {
                tasks,
                objects,
                lease,
                more,
            }) => {
                let objects_of = objects.results.into_iter().flatten();
                let one =
                    |((task, tenant, key), object): ((u64, String, Key), _)| proto::OffloadTask {
                        task,
                        tenant,
                        key: key.0,
                        object: Some(answer::object(object)),
                    };
                Ok(Response::new(proto::FetchOffloadTasksResponse {
                    tasks: tasks.into_iter().zip(objects_of).map(one).collect(),
                    segments: objects
                        .segments
                        .iter()
                        .map(|known| answer::segment(known))
                        .collect(),
                    lease,
                    lease_us: match lease {
                        0 => 0,
                        _ => micros(self.shared.terms.lease_ttl),
                    },
                    more,
                }))
            }
            _ => unexpected(),
        }
    }

    async fn notify_offload(
        &self,
        request: Request<proto::NotifyOffloadRequest>,
    ) -> Result<Response<proto::NotifyOffloadResponse>, Status> {
        let request = request.into_inner();
        bounded(request.results.len())?;
        let one = |result: proto::OffloadResult| {
            let named = named(&result.tenant, result.incarnation).ok();
            OffloadResult {
                task: result.task,
                object: named.map(|(tenant, incarnation)| ObjectName {
                    tenant,
                    key: Key(result.key),
                    incarnation,
                }),
                outcome: outcome(result.error),
            }
        };
        let call = StorageCall::NotifyOffloads {
            storage: storage_id(&request.storage)?,
            results: request.results.into_iter().map(one).collect(),
        };
        match self.storage_call(request.client_incarnation, call).await? {
            Answer::Storage(StorageAnswer::Each(results)) => {
                let results = each(results, |_| None);
                Ok(Response::new(proto::NotifyOffloadResponse { results }))
            }
            _ => unexpected(),
        }
    }

    async fn drop_replicas(
        &self,
        request: Request<proto::DropReplicasRequest>,
    ) -> Result<Response<proto::DropReplicasResponse>, Status> {
        let request = request.into_inner();
        bounded(request.objects.len())?;
        let evicted = proto::dropped_replica::Reason::Evicted;
        let one = |dropped: proto::DroppedReplica| {
            let reason = dropped.reason();
            let (tenant, incarnation) = named(&dropped.tenant, dropped.incarnation)?;
            Ok(Dropped {
                tenant,
                key: Key(dropped.key),
                incarnation,
                evicted: reason == evicted,
            })
        };
        let objects = request.objects.into_iter().map(one);
        let objects = objects.collect::<Result<Vec<_>, Status>>()?;
        let keys: Vec<_> = objects.iter().map(|dropped| dropped.key.clone()).collect();
        let call = StorageCall::Drop {
            storage: storage_id(&request.storage)?,
            objects,
        };
        match self.storage_call(request.client_incarnation, call).await? {
            Answer::Storage(StorageAnswer::Each(results)) => {
                let results = each(results, |at| keys.get(at).cloned());
                Ok(Response::new(proto::DropReplicasResponse { results }))
            }
            _ => unexpected(),
        }
    }

    async fn prefetch(
        &self,
        _: Request<proto::PrefetchRequest>,
    ) -> Result<Response<proto::PrefetchResponse>, Status> {
        Err(not_yet("copy objects from disks to memory"))
    }

    async fn fetch_promotions(
        &self,
        _: Request<proto::FetchPromotionsRequest>,
    ) -> Result<Response<proto::FetchPromotionsResponse>, Status> {
        Err(not_yet("copy objects from disks to memory"))
    }

    async fn end_promotions(
        &self,
        _: Request<proto::EndPromotionsRequest>,
    ) -> Result<Response<proto::EndPromotionsResponse>, Status> {
        Err(not_yet("copy objects from disks to memory"))
    }
}
