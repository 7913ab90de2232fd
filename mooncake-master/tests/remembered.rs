//! A master with a state directory: what it comes back with, over real connections.

mod wire;

use std::{path::PathBuf, time::Duration};

use mooncake_master::{Master, MasterConfig, RunningMaster, StartError};
use mooncake_proto::{
    Fault,
    master::{
        AckRemoveTasksRequest, AdoptStorageRequest, ExistRequest, FetchOffloadTasksRequest,
        FetchRemoveTasksRequest, HeldObject, KeyIncarnation, ListStoragesRequest, LookupRequest,
        MountStorageRequest, NotifyOffloadRequest, Object, ObjectIncarnation, OffloadResult,
        PrefetchRequest, PutEndRequest, PutItem, PutStartRequest, ReconcileStorageRequest,
        RemoveItem, RemoveRequest, ReportStorageRequest, Storage, StorageState,
        answer::Answer as Reply, event, lookup_result, operation::Operation as Request,
        put_start_result, remove_task, replica, storages_client::StoragesClient,
    },
    status::ErrorCode,
};
use tonic::transport::{Channel, Endpoint};
use wire::{Session, client, mount};

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("mooncake-master-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    /// What a kill would leave at this moment.
    fn as_it_is(&self, name: &str) -> Self {
        let copy = Self::new(name);
        std::fs::create_dir(&copy.0).expect("it is a new one");
        for file in std::fs::read_dir(&self.0).expect("it is a directory") {
            let file = file.expect("it can be read");
            std::fs::copy(file.path(), copy.0.join(file.file_name())).expect("it is copied");
        }
        copy
    }

    fn config(&self) -> MasterConfig {
        MasterConfig {
            listen: "127.0.0.1:0".into(),
            admin_listen: "127.0.0.1:0".into(),
            enable_offload: true,
            state_dir: self.0.display().to_string(),
            ..MasterConfig::default()
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn storages(master: &RunningMaster) -> StoragesClient<Channel> {
    let address = format!("http://{}", master.address());
    let endpoint = Endpoint::from_shared(address).expect("it is an address");
    let channel = endpoint.connect().await;
    StoragesClient::new(channel.expect("the master listens"))
}

fn id() -> bytes::Bytes {
    vec![9; 16].into()
}

fn mounted(holder: u64, fresh: bool) -> MountStorageRequest {
    MountStorageRequest {
        storage: Some(Storage {
            id: id(),
            holder_incarnation: holder,
            endpoint: "127.0.0.1:7".into(),
            segment_name: "engine".into(),
            holder: "node".into(),
        }),
        state: Some(StorageState::default()),
        fresh,
    }
}

fn told(holder: u64, objects: &[(&str, ObjectIncarnation)]) -> ReconcileStorageRequest {
    let held = |(key, incarnation): &(&str, ObjectIncarnation)| HeldObject {
        tenant: String::new(),
        key: key.as_bytes().to_vec().into(),
        incarnation: Some(*incarnation),
        length: 1000,
    };
    ReconcileStorageRequest {
        storage: id(),
        client_incarnation: holder,
        page: 0,
        objects: objects.iter().map(held).collect(),
        last: true,
    }
}

async fn put(session: &mut Session, number: u64, key: &'static str) -> ObjectIncarnation {
    let items = vec![PutItem {
        key: key.into(),
        length: 1000,
    }];
    let start = PutStartRequest {
        items,
        ..Default::default()
    };
    let reply = session.ask(number, Request::PutStart(start)).await;
    let Reply::PutStart(started) = reply else {
        panic!("PutStart was answered {reply:?}");
    };
    let Some(put_start_result::Result::Object(Object { incarnation, .. })) =
        &started.results[0].result
    else {
        panic!("PutStart failed: {started:?}");
    };
    let end = PutEndRequest {
        items: vec![KeyIncarnation {
            key: key.into(),
            incarnation: *incarnation,
        }],
        ..Default::default()
    };
    session.ask(number + 1, Request::PutEnd(end)).await;
    incarnation.expect("an object that was started has one")
}

/// Asks, whatever other events come before the answer.
async fn remove(session: &mut Session, number: u64, key: &'static str) {
    let items = vec![RemoveItem {
        key: key.into(),
        incarnation: None,
    }];
    let request = RemoveRequest {
        items,
        ..Default::default()
    };
    let reply = session.ask(number, Request::Remove(request)).await;
    let Reply::Remove(removed) = reply else {
        panic!("Remove was answered {reply:?}");
    };
    assert_eq!(removed.results[0].error, None);
}

async fn exists(session: &mut Session, number: u64, key: &'static str) -> bool {
    let request = ExistRequest {
        keys: vec![key.into()],
        ..Default::default()
    };
    match session.ask(number, Request::Exist(request)).await {
        Reply::Exist(found) => found.results[0].exists,
        other => panic!("Exist was answered {other:?}"),
    }
}

#[tokio::test]
async fn law_06_a_killed_master_knows_what_is_on_disks_and_what_was_removed() {
    let directory = Directory::new("killed");
    let master = Master::start(directory.config()).await.unwrap();
    let first_epoch = master.epoch();
    let mut session = Session::open(&mut client(&master).await, 5).await;
    session.ask(1, mount(5, 1 << 20)).await;
    let mut holder = storages(&master).await;
    holder.mount_storage(mounted(5, true)).await.unwrap();
    holder.reconcile_storage(told(5, &[])).await.unwrap();
    let kept = put(&mut session, 2, "kept").await;
    let removed = put(&mut session, 4, "removed").await;
    let fetch = FetchOffloadTasksRequest {
        storage: id(),
        client_incarnation: 5,
        ..Default::default()
    };
    let tasks = holder
        .fetch_offload_tasks(fetch)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(tasks.tasks.len(), 2);
    assert!(tasks.lease != 0 && tasks.lease_us > 0);
    let results = tasks.tasks.iter().map(|task| OffloadResult {
        task: task.task,
        error: None,
        tenant: task.tenant.clone(),
        key: task.key.clone(),
        incarnation: task.object.as_ref().and_then(|object| object.incarnation),
    });
    let notify = NotifyOffloadRequest {
        storage: id(),
        client_incarnation: 5,
        results: results.collect(),
    };
    let results = holder
        .notify_offload(notify)
        .await
        .unwrap()
        .into_inner()
        .results;
    assert!(results.iter().all(|result| result.error.is_none()));
    let lookup = LookupRequest {
        keys: vec!["kept".into()],
        ..Default::default()
    };
    let Reply::Lookup(found) = session.ask(6, Request::Lookup(lookup)).await else {
        panic!("Lookup was answered by something else");
    };
    let Some(lookup_result::Result::Object(object)) = &found.results[0].result else {
        panic!("it was not found: {found:?}");
    };
    assert!(matches!(
        object.replicas[1].replica,
        Some(replica::Replica::LocalDisk(on)) if on.storage == 0
    ));
    assert_eq!(found.storages[0].endpoint, "127.0.0.1:7");
    remove(&mut session, 7, "removed").await;
    // Another master cannot have the directory meanwhile.
    match Master::start(directory.config()).await {
        Err(StartError::Log(error)) => assert!(error.to_string().contains("in use by the master")),
        other => panic!("it started: {other:?}"),
    }
    let killed = directory.as_it_is("killed-copy");
    master.shutdown().await;
    let directory = killed;

    let master = Master::start(directory.config()).await.unwrap();
    assert!(master.epoch() > first_epoch);
    let mut session = Session::open(&mut client(&master).await, 6).await;
    assert!(
        !exists(&mut session, 1, "kept").await,
        "its holder is not back"
    );
    let mut holder = storages(&master).await;
    holder.mount_storage(mounted(6, false)).await.unwrap();
    let all = [("kept", kept), ("removed", removed)];
    let reconciled = holder.reconcile_storage(told(6, &all)).await.unwrap();
    assert_eq!(reconciled.into_inner().remove, [1]);
    assert!(exists(&mut session, 2, "kept").await);
    assert!(!exists(&mut session, 3, "removed").await);
    let fetch = FetchRemoveTasksRequest {
        storage: id(),
        client_incarnation: 6,
        ..Default::default()
    };
    let tasks = holder
        .fetch_remove_tasks(fetch.clone())
        .await
        .unwrap()
        .into_inner()
        .tasks;
    assert_eq!(tasks.len(), 1);
    let Some(remove_task::What::Object(object)) = &tasks[0].what else {
        panic!("it names no object: {tasks:?}");
    };
    assert_eq!(
        (&object.key[..], object.incarnation),
        (&b"removed"[..], Some(removed))
    );
    let ack = AckRemoveTasksRequest {
        storage: id(),
        client_incarnation: 6,
        tasks: vec![tasks[0].task],
    };
    holder.ack_remove_tasks(ack).await.unwrap();
    master.shutdown().await;

    let master = Master::start(directory.config()).await.unwrap();
    let mut holder = storages(&master).await;
    holder.mount_storage(mounted(7, false)).await.unwrap();
    let fetch = FetchRemoveTasksRequest {
        client_incarnation: 7,
        ..fetch
    };
    assert_eq!(
        holder
            .fetch_remove_tasks(fetch)
            .await
            .unwrap()
            .into_inner()
            .tasks,
        []
    );
    let listed = holder
        .list_storages(ListStoragesRequest {})
        .await
        .unwrap()
        .into_inner();
    let usage = &listed.storages[0];
    assert_eq!((usage.value_bytes, usage.objects), (1000, 0));
    assert!(usage.mounted && !usage.reconciled);
    master.shutdown().await;
}

#[tokio::test]
async fn a_holder_hears_of_tasks_on_its_session_and_with_its_reports() {
    let directory = Directory::new("nudged");
    let master = Master::start(directory.config()).await.unwrap();
    let mut session = Session::open(&mut client(&master).await, 5).await;
    session.ask(1, mount(5, 1 << 20)).await;
    let mut holder = storages(&master).await;
    holder.mount_storage(mounted(5, true)).await.unwrap();
    holder.reconcile_storage(told(5, &[])).await.unwrap();
    put(&mut session, 2, "k").await;
    let nudged = async {
        loop {
            let events = session.events().await.unwrap().expect("the stream is open");
            if events
                .iter()
                .any(|event| matches!(event.event, Some(event::Event::Nudge(_))))
            {
                return;
            }
        }
    };
    // It may have come with the answer of the put, which is read by now.
    let _ = tokio::time::timeout(Duration::from_millis(200), nudged).await;
    let report = ReportStorageRequest {
        storage: id(),
        client_incarnation: 5,
        state: Some(StorageState::default()),
    };
    let waiting = holder
        .report_storage(report.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!((waiting.remove_tasks, waiting.offload_tasks), (0, 1));
    // Somebody else has no say, and what is not built says so.
    let other = ReportStorageRequest {
        client_incarnation: 77,
        ..report
    };
    let refused = Fault::from(holder.report_storage(other).await.unwrap_err());
    assert_eq!(refused.code, ErrorCode::Fenced);
    let refused = Fault::from(
        holder
            .prefetch(PrefetchRequest::default())
            .await
            .unwrap_err(),
    );
    assert_eq!(refused.code, ErrorCode::NotSupported);
    master.shutdown().await;
}

#[tokio::test]
async fn a_master_that_forgot_everything_takes_no_storage_that_is_not_adopted() {
    let master = wire::master().await;
    let mut holder = storages(&master).await;
    let refused = Fault::from(holder.mount_storage(mounted(5, false)).await.unwrap_err());
    assert_eq!(refused.code, ErrorCode::UnavailableInCurrentStatus);
    assert!(refused.to_string().contains("adopt"), "{refused}");
    holder
        .adopt_storage(AdoptStorageRequest { storage: id() })
        .await
        .unwrap();
    holder.mount_storage(mounted(5, false)).await.unwrap();
    let old = ObjectIncarnation {
        epoch: 1,
        sequence: 7,
    };
    let reconciled = holder
        .reconcile_storage(told(5, &[("k", old)]))
        .await
        .unwrap();
    assert!(reconciled.into_inner().remove.is_empty());
    let mut session = Session::open(&mut client(&master).await, 6).await;
    assert!(exists(&mut session, 1, "k").await);
    master.shutdown().await;
}
