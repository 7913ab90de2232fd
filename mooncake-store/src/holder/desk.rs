//! What a holder asks of the master.

use std::time::Duration;

use bytes::Bytes;
use mooncake_proto::{
    Fault,
    master::{
        AckRemoveTasksRequest, DropReplicasRequest, DropReplicasResponse, DroppedReplica,
        FetchOffloadTasksRequest, FetchOffloadTasksResponse, FetchRemoveTasksRequest,
        FetchRemoveTasksResponse, HeldObject, MountStorageRequest, NotifyOffloadRequest,
        NotifyOffloadResponse, OffloadResult, ReconcileStorageRequest, ReportStorageRequest,
        ReportStorageResponse, Storage, StorageState, UnmountStorageRequest,
        storages_client::StoragesClient,
    },
};
use tonic::transport::{Channel, Endpoint};

use crate::StoreError;

/// How long the master may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(1);
/// Keys of a page or a batch of tasks.
const MOST_ANSWER_BYTES: usize = 64 << 20;

/// A connection to the master that names the storage in each call.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    client: StoragesClient<Channel>,
    storage: Bytes,
    holder: u64,
}

impl Desk {
    /// Connects with the first call.
    pub(super) fn new(address: &str, storage: [u8; 16], holder: u64) -> Result<Self, StoreError> {
        let uri = if address.contains("://") {
            address.to_owned()
        } else {
            format!("http://{address}")
        };
        let endpoint = Endpoint::from_shared(uri).map_err(|error| StoreError::Connect {
            address: address.to_owned(),
            after: Duration::ZERO,
            reason: error.to_string(),
        })?;
        let endpoint = endpoint
            .tcp_nodelay(true)
            .http2_adaptive_window(true)
            .connect_timeout(CONNECT)
            .timeout(PATIENCE);
        let client = StoragesClient::new(endpoint.connect_lazy());
        Ok(Self {
            client: client.max_decoding_message_size(MOST_ANSWER_BYTES),
            storage: Bytes::copy_from_slice(&storage),
            holder,
        })
    }

    /// The most objects of a page.
    pub(super) async fn mount(
        &self,
        (endpoint, segment_name, holder): (String, String, String),
        state: StorageState,
        fresh: bool,
    ) -> Result<usize, Fault> {
        let request = MountStorageRequest {
            storage: Some(Storage {
                id: self.storage.clone(),
                holder_incarnation: self.holder,
                endpoint,
                segment_name,
                holder,
            }),
            state: Some(state),
            fresh,
        };
        let answer = self.client.clone().mount_storage(request).await?;
        Ok((answer.into_inner().page as usize).max(1))
    }

    /// What of the page must go.
    pub(super) async fn reconcile(
        &self,
        page: u64,
        objects: Vec<HeldObject>,
        last: bool,
    ) -> Result<Vec<u32>, Fault> {
        let request = ReconcileStorageRequest {
            storage: self.storage.clone(),
            client_incarnation: self.holder,
            page,
            objects,
            last,
        };
        let answer = self.client.clone().reconcile_storage(request).await?;
        Ok(answer.into_inner().remove)
    }

    pub(super) async fn report(&self, state: StorageState) -> Result<ReportStorageResponse, Fault> {
        let request = ReportStorageRequest {
            storage: self.storage.clone(),
            client_incarnation: self.holder,
            state: Some(state),
        };
        let answer = self.client.clone().report_storage(request).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn unmount(&self) -> Result<(), Fault> {
        let request = UnmountStorageRequest {
            storage: self.storage.clone(),
            client_incarnation: self.holder,
        };
        self.client.clone().unmount_storage(request).await?;
        Ok(())
    }

    pub(super) async fn removals(
        &self,
        limit: u32,
        after: u64,
    ) -> Result<FetchRemoveTasksResponse, Fault> {
        let request = FetchRemoveTasksRequest {
            storage: self.storage.clone(),
            client_incarnation: self.holder,
            limit,
            after,
        };
        let answer = self.client.clone().fetch_remove_tasks(request).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn removed(&self, tasks: Vec<u64>) -> Result<(), Fault> {
        let request = AckRemoveTasksRequest {
            storage: self.storage.clone(),
            client_incarnation: self.holder,
            tasks,
        };
        self.client.clone().ack_remove_tasks(request).await?;
        Ok(())
    }

    pub(super) async fn offloads(
        &self,
        limit: u32,
        limit_bytes: u64,
    ) -> Result<FetchOffloadTasksResponse, Fault> {
        let request = FetchOffloadTasksRequest {
            storage: self.storage.clone(),
            client_incarnation: self.holder,
            limit,
            limit_bytes,
        };
        let answer = self.client.clone().fetch_offload_tasks(request).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn offloaded(
        &self,
        results: Vec<OffloadResult>,
    ) -> Result<NotifyOffloadResponse, Fault> {
        let request = NotifyOffloadRequest {
            storage: self.storage.clone(),
            client_incarnation: self.holder,
            results,
        };
        let answer = self.client.clone().notify_offload(request).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn drop_replicas(
        &self,
        objects: Vec<DroppedReplica>,
    ) -> Result<DropReplicasResponse, Fault> {
        let request = DropReplicasRequest {
            storage: self.storage.clone(),
            client_incarnation: self.holder,
            objects,
        };
        let answer = self.client.clone().drop_replicas(request).await?;
        Ok(answer.into_inner())
    }
}
