//! Whoever has opened a segment learns what changes in it, and is told no more than that.
#![cfg(all(feature = "tcp", feature = "conformance"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use common::*;
use mooncake_proto::tent::{GetSegmentRequest, GetSegmentResponse, control_client::ControlClient};
use mooncake_tent::{
    Buffer, Memory, Permission, RegisterOptions, Segment, SegmentDescriptor, TentEngine,
    TransferEngine,
    conformance::{Relay, Rules},
};
use tonic::transport::Channel;

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + BUDGET * 3;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn bare() -> TentEngine {
    TentEngine::builder().build().await.unwrap()
}

async fn small(engine: &TentEngine) -> Buffer {
    let memory = Memory::from_vec(vec![0; 64]).unwrap();
    let options = RegisterOptions::new(Permission::PeersRead);
    engine.register_memory(memory, options).await.unwrap()
}

async fn many(engine: &TentEngine, count: usize) -> Vec<Buffer> {
    let mut buffers = Vec::new();
    for _ in 0..count {
        buffers.push(small(engine).await);
    }
    buffers
}

fn generation(segment: &Segment, buffer: &Buffer) -> Option<mooncake_tent::Generation> {
    let descriptor = segment.descriptor();
    descriptor.buffer(buffer.id()).map(|it| it.generation)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_changes_and_goes_is_known_without_a_request() {
    let (owner, reader) = (engine().await, engine().await);
    let first = small(&owner).await;
    let segment = open(&reader, &owner).await;
    let second = small(&owner).await;
    until("it comes", || generation(&segment, &second).is_some()).await;
    owner.renew_registration(&second, BUDGET).await.unwrap();
    let changed = || generation(&segment, &second) == Some(second.generation());
    until("it changes", changed).await;
    let gone = first.id();
    drop(first);
    until("it goes", || segment.descriptor().buffer(gone).is_none()).await;
    assert_eq!(segment.descriptor().buffer_count(), 1);

    // What nobody may see is nobody's business.
    let version = segment.descriptor().version();
    let _local = buffer(&owner, 64, Permission::Local).await;
    let third = small(&owner).await;
    until("one more comes", || generation(&segment, &third).is_some()).await;
    assert_eq!(segment.descriptor().version(), version + 1);

    reader.close_segment(&segment);
    let fourth = small(&owner).await;
    let again = open(&reader, &owner).await;
    assert!(generation(&again, &fourth).is_some());
    assert!(generation(&segment, &fourth).is_none(), "it is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_buffer_more_costs_each_peer_the_bytes_of_one() {
    const BUFFERS: usize = 10_000;
    const PEERS: usize = 100;
    let owner = bare().await;
    let mut buffers = many(&owner, BUFFERS).await;
    let to: SocketAddr = owner.control_address().unwrap().parse().unwrap();
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let relay = Relay::start(listen, to, |_| Rules::default()).unwrap();
    let name = relay.address().to_string();
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let peer = bare().await;
        let segment = peer.open_segment(&name, BUDGET).await.unwrap();
        assert_eq!(segment.descriptor().buffer_count(), BUFFERS);
        peers.push((peer, segment));
    }
    let knows_all = |count: usize| {
        let knows = |segment: &Segment| segment.descriptor().buffer_count() == count;
        peers.iter().all(|(_, segment)| knows(segment))
    };
    // All of them listen when a first change has reached them.
    buffers.push(small(&owner).await);
    until("all know the first", || knows_all(buffers.len())).await;
    let counts = || relay.counts().down_bytes;
    let whole = counts() / PEERS as u64;
    assert!(whole > 200_000, "{whole} bytes for all of it");

    let before = counts();
    buffers.push(small(&owner).await);
    until("all know one more", || knows_all(buffers.len())).await;
    let each = (counts() - before) / PEERS as u64;
    assert!(each < 1_000, "{each} bytes for one buffer");

    let before = counts();
    buffers.extend(many(&owner, 100).await);
    until("all know a hundred more", || knows_all(buffers.len())).await;
    let each = (counts() - before) / PEERS as u64;
    assert!(each < 30_000, "{each} bytes for a hundred buffers");

    let before = counts();
    buffers.truncate(BUFFERS);
    until("all know that they are gone", || knows_all(BUFFERS)).await;
    let each = (counts() - before) / PEERS as u64;
    assert!(
        each < 30_000,
        "{each} bytes for a hundred and two that are gone"
    );
}

async fn client(owner: &TentEngine) -> ControlClient<Channel> {
    let address = format!("http://{}", owner.control_address().unwrap());
    let channel = Channel::from_shared(address).unwrap().connect().await;
    ControlClient::new(channel.unwrap())
}

fn asking(incarnation: u64, version: u64) -> GetSegmentRequest {
    GetSegmentRequest {
        name: String::new(),
        incarnation,
        version,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_says_what_it_knows_is_told_the_rest() {
    let owner = bare().await;
    let mut client = client(&owner).await;
    let _buffers = many(&owner, 50).await;
    let mut ask = async |incarnation, version| {
        let answer = client.get_segment(asking(incarnation, version)).await;
        answer.unwrap().into_inner()
    };
    let whole = ask(0, 0).await.segment.unwrap();
    assert_eq!((whole.buffers.len(), whole.version), (50, 50));
    let life = whole.incarnation;
    assert_eq!(ask(life, 50).await, GetSegmentResponse::default());
    let one = small(&owner).await;
    let delta = ask(life, 50).await.delta.unwrap();
    assert_eq!((delta.changed.len(), delta.removed.len()), (1, 0));
    let known = SegmentDescriptor::from_wire(whole).unwrap();
    let known = known.with_delta(delta).unwrap();
    assert!(known.buffer(one.id()).is_some());

    // From a version that it never had, or of another life, there is no way but all of it.
    for (incarnation, version) in [(life, 52), (life ^ 1, 50), (0, 50)] {
        let answer = ask(incarnation, version).await;
        assert_eq!(answer.segment.unwrap().buffers.len(), 51);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_listen_is_told_the_outcome_later() {
    let owner = bare().await;
    let mut client = client(&owner).await;
    let mut buffers = many(&owner, 100).await;
    let request = asking(owner.incarnation().get(), 100);
    let mut changes = client.watch_segment(request).await.unwrap().into_inner();
    // Far more than a few messages have room for.
    for _ in 0..200 {
        buffers.push(small(&owner).await);
        buffers.push(small(&owner).await);
        buffers.pop();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let end = 100 + 200 * 3;
    let (mut messages, mut version) = (0, 0);
    while version < end {
        let answer = tokio::time::timeout(BUDGET, changes.message()).await;
        let answer = answer.unwrap().unwrap().unwrap();
        let delta = answer.delta.expect("all is known since it began");
        (messages, version) = (messages + 1, delta.version);
        assert!(delta.buffers as usize <= buffers.len() + 1);
    }
    assert_eq!(version, end);
    assert!(messages < 600, "{messages} messages");

    let wrong = client.watch_segment(asking(1, 0)).await.unwrap_err();
    assert!(wrong.message().contains("incarnation"), "{wrong}");
    owner.shutdown(BUDGET).await.unwrap();
    let ended = tokio::time::timeout(BUDGET, changes.message())
        .await
        .unwrap();
    assert!(!matches!(ended, Ok(Some(_))), "it ends with its owner");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_life_of_an_owner_is_known_without_a_request() {
    let reader = engine().await;
    let owner = engine().await;
    let listen: SocketAddr = owner.segment_name().parse().unwrap();
    let _old = small(&owner).await;
    let segment = open(&reader, &owner).await;
    let old = owner.incarnation();
    drop(owner);
    let end = Instant::now() + BUDGET;
    let owner = loop {
        match TentEngine::builder().listen(listen).build().await {
            Ok(owner) => break owner,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let anew = small(&owner).await;
    until("it is another one", || segment.incarnation() != old).await;
    until("its buffers are known", || {
        generation(&segment, &anew).is_some()
    })
    .await;
    assert_eq!(segment.descriptor().buffer_count(), 1);
}
