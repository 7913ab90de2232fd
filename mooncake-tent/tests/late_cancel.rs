//! A cancel that comes in the middle of a retry, when the task is on no link.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use std::sync::{Mutex, mpsc::sync_channel};

use common::*;
use mooncake_tent::{
    Permission, Reason, Request, Stage, TentEngine, TransferError, transport::Outcome,
};
use scripted::{Act, Scripted};

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_cancelled_while_it_is_posted_again_is_cancelled() {
    let owner = TentEngine::builder().transport(Scripted::new("stale"));
    let owner = owner.build().await.unwrap();
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let link = Scripted::new("stale");
    let (begins, begun) = sync_channel(1);
    let (go_on, goes_on) = sync_channel(1);
    let goes_on = Mutex::new(goes_on);
    // The first post fails for old knowledge. The second one says that it begins and waits for a word;
    // what is posted then ends only when it is cancelled.
    link.does(move |_, number| {
        if number == 0 {
            let stale = TransferError::unstarted(Reason::StaleGeneration, Stage::Admit, None);
            return Act::End(Outcome::Failed(stale), true);
        }
        begins.send(()).unwrap();
        goes_on.lock().unwrap().recv_timeout(BUDGET).unwrap();
        Act::Hold
    });
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
