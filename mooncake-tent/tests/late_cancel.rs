//! A cancel that comes in the middle of a retry, when the task is on no link.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use common::*;
use mooncake_tent::{
    LocalBuffer, PeerId, Permission, Reason, RegistrationId, Request, Result, Stage, TentEngine,
    TransferError,
    transport::{
        Attachment, BoxFuture, Capabilities, InstallContext, LinkGauges, Outcome, Peer, SubBatch,
        TaskRef, Tasks, Transport,
    },
};

/// A link on which the first post fails for old knowledge. The second one says that it begins and
/// waits for a word; what is posted then ends only when it is cancelled.
#[derive(Debug)]
struct Stale {
    tasks: OnceLock<Tasks>,
    posts: AtomicUsize,
    begins: SyncSender<()>,
    goes_on: Mutex<Receiver<()>>,
    posted: Mutex<Vec<TaskRef>>,
}

#[derive(Clone, Debug)]
struct Link(Arc<Stale>);

impl Transport for Link {
    fn name(&self) -> &'static str {
        "stale"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::read_write()
    }

    fn install(&self, engine: InstallContext) -> BoxFuture<'_, Result<()>> {
        self.0.tasks.set(Arc::clone(engine.tasks())).unwrap();
        Box::pin(async { Ok(()) })
    }

    fn endpoint(&self) -> Option<String> {
        None
    }

    fn uninstall(&self, _budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn add_memory_buffer<'a>(
        &'a self,
        _buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, Result<Attachment>> {
        Box::pin(async { Ok(Attachment::Attached) })
    }

    fn remove_memory_buffer(&self, _id: RegistrationId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn allocate_sub_batch(&self, _capacity: usize) -> Result<Box<dyn SubBatch>> {
        Ok(Box::new(self.clone()))
    }

    fn reaches(&self, _peer: &Peer) -> bool {
        true
    }

    fn warm_up<'a>(&'a self, _peer: &'a Arc<Peer>, _budget: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn fence(&self, _peer: PeerId, _budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn estimated_bandwidth(&self) -> Option<f64> {
        None
    }

    fn gauges(&self) -> LinkGauges {
        LinkGauges::default()
    }
}

impl SubBatch for Link {
    fn submit_transfer_tasks(&self, tasks: &[TaskRef]) -> Result<()> {
        if self.0.posts.fetch_add(1, Ordering::Relaxed) == 0 {
            let stale = TransferError::unstarted(Reason::StaleGeneration, Stage::Admit, None);
            let cells = self.0.tasks.get().unwrap();
            cells.finish(tasks[0], Outcome::Failed(stale), true);
            return Ok(());
        }
        self.0.begins.send(()).unwrap();
        let goes_on = self.0.goes_on.lock().unwrap();
        goes_on.recv_timeout(BUDGET).unwrap();
        self.0.posted.lock().unwrap().extend(tasks);
        Ok(())
    }

    fn cancel_transfer_task(&self, task: TaskRef) {
        let mut posted = self.0.posted.lock().unwrap();
        let before = posted.len();
        posted.retain(|other| *other != task);
        if posted.len() < before {
            let cells = self.0.tasks.get().unwrap();
            let peer = cells.spec(task).unwrap().peer.id();
            cells.finish(task, Outcome::cancelled(Stage::Post, peer), true);
        }
    }

    fn drive(&self, _budget: Duration) -> bool {
        false
    }

    fn hand_over(&self) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_cancelled_while_it_is_posted_again_is_cancelled() {
    let link = || {
        let (begins, begun) = sync_channel(1);
        let (go_on, goes_on) = sync_channel(1);
        let link = Link(Arc::new(Stale {
            tasks: OnceLock::new(),
            posts: AtomicUsize::new(0),
            begins,
            goes_on: Mutex::new(goes_on),
            posted: Mutex::default(),
        }));
        (link, begun, go_on)
    };
    let (theirs, ..) = link();
    let owner = TentEngine::builder()
        .transport(theirs)
        .build()
        .await
        .unwrap();
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let (link, begun, go_on) = link();
    let engine = TentEngine::builder().transport(link).build().await.unwrap();
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let read = Request::read(local.all().unwrap(), &segment, address(&remote, 0));
    let batch = submit(&engine, vec![read]);
    tokio::task::spawn_blocking(move || begun.recv_timeout(BUDGET).unwrap())
        .await
        .unwrap();
    // It is on no link yet, and nobody looks whether it is wanted before it is.
    batch.cancel(0);
    go_on.send(()).unwrap();
    terminal(&batch).await;
    assert!(batch.outcome(0).unwrap().is_cancelled());
}
