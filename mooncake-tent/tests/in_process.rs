//! Copies within a process: an engine's own segment, and engines that share a link.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::thread;

use common::*;
use mooncake_tent::{
    Applied, Buffer, InProcess, Memory, Permission, Reason, RegisterOptions, Request, TentEngine,
    TransferEngine, transport::Op,
};

#[tokio::test]
async fn an_engine_reaches_its_own_segment_without_a_socket() {
    let engine = engine().await;
    let remote = buffer(&engine, 10_007, Permission::PeersReadWrite).await;
    let local = buffer(&engine, 10_007, Permission::Local).await;
    local.memory().write_at(0, &pattern(3, 10_007));
    for name in ["", engine.segment_name()] {
        let segment = engine.open_segment(name, BUDGET).await.unwrap();
        let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
        let batch = submit(&engine, vec![write]);
        assert!(batch.is_terminal(), "it ran on our thread");
        assert!(batch.outcome(0).unwrap().is_completed());
        assert_same(&bytes(&remote, 0, 10_007), &pattern(3, 10_007), "written");
        remote.memory().write_at(0, &[0; 10_007]);
    }
    assert_eq!(threads("tcp-connect"), 0);
}

#[tokio::test]
async fn engines_that_share_a_link_copy_both_ways_under_the_same_rules() {
    let link = InProcess::new();
    let build = |link| TentEngine::builder().in_process(link).build();
    let owner = build(link.another_end()).await.unwrap();
    let engine = build(link.another_end()).await.unwrap();
    assert!(build(link.clone()).await.is_ok());
    assert!(build(link.clone()).await.is_err(), "one end, one engine");
    let remote = buffer(&owner, 4096, Permission::PeersRead).await;
    remote.memory().write_at(0, &pattern(4, 4096));
    let local = buffer(&engine, 4096, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let parts = [0..1000, 1000..1001, 1001..4096].map(|range| local.slice(range).unwrap());
    let at = address(&remote, 0);
    let read = Request::scattered(Op::Read, parts.into_iter().collect(), &segment, at);
    assert!(once(&engine, read).await.is_completed());
    assert_same(&bytes(&local, 0, 4096), &pattern(4, 4096), "read");

    let write = Request::write(local.all().unwrap(), &segment, place(&remote, 0));
    let refused = error(Some(once(&engine, write).await));
    assert_eq!(refused.reason, Reason::Permission);
    assert_eq!(
        (refused.applied, refused.quiescent),
        (Applied::Nothing, true)
    );
    let beyond = Request::read(local.all().unwrap(), &segment, place(&remote, u64::MAX));
    assert_eq!(
        error(Some(once(&engine, beyond).await)).reason,
        Reason::OutOfBounds
    );

    let at = place(&remote, 0);
    let held = books(&remote);
    drop((owner, remote));
    let read = Request::read(local.all().unwrap(), &segment, at);
    let mut batch = engine.allocate_batch(1);
    match engine.submit_transfer(&mut batch, vec![read]) {
        Ok(()) => {
            terminal(&batch).await;
            error(batch.outcome(0));
        }
        Err(error) => println!("{error}"),
    }
    assert_eq!(std::sync::Arc::strong_count(&held), 1, "its memory is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_registered_at_the_same_time_is_all_found_in_the_own_segment() {
    async fn register(engine: TentEngine) -> Buffer {
        let memory = Memory::from_vec(vec![0; 64]).unwrap();
        let options = RegisterOptions::new(Permission::PeersRead);
        engine.register_memory(memory, options).await.unwrap()
    }
    let engine = engine().await;
    let segment = engine.open_segment("", BUDGET).await.unwrap();
    // A long descriptor takes time to make, in which others register.
    let mut standing = Vec::new();
    for _ in 0..500 {
        standing.push(register(engine.clone()).await);
    }
    for round in 0..200 {
        let tasks: Vec<_> = (0..4)
            .map(|_| tokio::spawn(register(engine.clone())))
            .collect();
        let mut buffers = Vec::new();
        for task in tasks {
            buffers.push(task.await.unwrap());
        }
        let known = segment.descriptor();
        for buffer in &buffers {
            assert!(known.buffer(buffer.id()).is_some(), "round {round}");
        }
    }
}

#[tokio::test]
async fn law_03_a_fence_waits_for_what_another_thread_copies() {
    // Its pages are made while they are copied to, so that this takes a while.
    const LENGTH: usize = 128 << 20;
    const PART: usize = 1 << 20;
    let engine = engine().await;
    let remote = buffer(&engine, LENGTH, Permission::PeersReadWrite).await;
    let local = buffer(&engine, PART, Permission::Local).await;
    local.memory().write_at(0, &[1; PART]);
    let segment = engine.open_segment("", BUDGET).await.unwrap();
    let parts = (0..LENGTH / PART).map(|_| local.all().unwrap()).collect();
    let write = Request::scattered(Op::Write, parts, &segment, address(&remote, 0));
    let writer = {
        let engine = engine.clone();
        thread::spawn(move || submit(&engine, vec![write]))
    };
    while bytes(&remote, 0, 1) == [0] {
        thread::yield_now();
    }
    engine.fence(&segment, BUDGET).await.unwrap();
    // Nothing lands any more, so all of it has.
    assert_eq!(bytes(&remote, LENGTH as u64 - 1, 1), [1]);
    assert!(writer.join().unwrap().outcome(0).unwrap().is_completed());
}
