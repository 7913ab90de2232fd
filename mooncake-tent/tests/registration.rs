//! Registration is all or nothing, and no life of a process repeats the names of another.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use std::time::Duration;

use mooncake_tent::{
    Error, Memory, Permission, RegisterOptions, Result, TentEngine, TransferEngine,
    transport::Attachment,
};
use scripted::Scripted;

fn declining(name: &'static str) -> Scripted {
    let link = Scripted::new(name);
    link.takes(|| Ok(Attachment::Declined("it is not for this link")));
    link
}

fn failing(name: &'static str) -> Scripted {
    let link = Scripted::new(name);
    link.takes(|| Err(Error::Invalid("its device is full".to_owned())));
    link
}

async fn register(engine: &TentEngine) -> Result<mooncake_tent::Buffer> {
    let memory = Memory::allocate(4096).unwrap();
    let options = RegisterOptions::new(Permission::PeersReadWrite);
    engine.register_memory(memory, options).await
}

#[tokio::test]
async fn memory_that_no_link_takes_is_not_registered() {
    // In the place of the one that takes everything.
    let nobody = declining("in-process");
    let engine = TentEngine::builder().transport(nobody).build().await;
    let engine = engine.unwrap();
    match register(&engine).await {
        Err(Error::NoLink { reasons }) => assert!(reasons.contains("not for this link")),
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.gauges().registrations, 0);
}

#[tokio::test]
async fn memory_that_one_link_fails_to_take_is_taken_back_from_the_others() {
    let first = Scripted::new("first");
    let declining = declining("declining");
    let failing = failing("failing");
    let builder = TentEngine::builder()
        .transport(first.clone())
        .transport(declining.clone())
        .transport(failing.clone());
    let engine = builder.build().await.unwrap();
    let error = register(&engine).await.unwrap_err();
    assert!(error.to_string().contains("its device is full"), "{error}");
    assert_eq!(first.given().len(), 1);
    for link in [first, declining, failing] {
        assert_eq!(link.held(), []);
    }
    assert_eq!(engine.gauges().registrations, 0);
    let own = engine.open_segment("", Duration::from_secs(1)).await;
    assert_eq!(own.unwrap().descriptor().buffer_count(), 0);
}

#[tokio::test]
async fn no_life_repeats_the_names_of_another() {
    let mut names = Vec::new();
    for _ in 0..4 {
        let engine = TentEngine::builder().build().await.unwrap();
        for _ in 0..3 {
            names.push(register(&engine).await.unwrap().id());
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 12);
}
