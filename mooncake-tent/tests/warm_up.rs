//! Many peers that connect to one at once end connected and healthy.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    Error, Permission, Request, TcpConfig, TcpTransport, TentEngine, TransferEngine,
};

const PEERS: usize = 240;
const LANES: usize = 2;
/// All of them share two cores with other tests.
const LONG: Duration = Duration::from_secs(60);

/// Reaches out and is reached by nobody.
async fn caller() -> TentEngine {
    let mut config = TcpConfig::default();
    config.listen = None;
    config.threads = 1;
    config.lanes_per_peer = LANES;
    let builder = TentEngine::builder().without_control();
    let builder = builder.transport(TcpTransport::new(config));
    builder.build().await.unwrap()
}

fn connections(engine: &TentEngine) -> u64 {
    let gauges = engine.gauges();
    let links = gauges.links.iter();
    links.map(|(_, gauges)| gauges.connections).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_warm_up_to_one_at_once_end_connected_and_healthy() {
    let mut config = TcpConfig::default();
    config.hellos_at_once = 8;
    let receiver = engine_with(config).await;
    let offered = buffer(&receiver, 8 * PEERS, Permission::PeersReadWrite).await;
    let (place, name) = (offered.id(), receiver.segment_name().to_owned());
    let generation = offered.generation();
    let start = Arc::new(tokio::sync::Barrier::new(PEERS));
    let mut peers = Vec::new();
    for peer in 0..PEERS {
        let (start, name) = (Arc::clone(&start), name.clone());
        let engine = caller().await;
        peers.push(tokio::spawn(async move {
            let segment = engine.open_segment(&name, LONG).await.unwrap();
            start.wait().await;
            let warm = engine
                .warm_up_peers(std::slice::from_ref(&segment), LONG)
                .await;
            warm[0].result.as_ref().unwrap();
            let local = buffer(&engine, 8, Permission::Local).await;
            local.memory().write_at(0, &(peer as u64).to_le_bytes());
            let at = mooncake_tent::RemoteRange::Registered {
                registration: place,
                generation: Some(generation),
                offset: 8 * peer as u64,
            };
            let write = Request::write(local.all().unwrap(), &segment, at);
            let outcome = once(&engine, write).await;
            assert!(outcome.is_completed(), "{outcome:?}");
            engine
        }));
    }
    let mut engines = Vec::new();
    for peer in peers {
        engines.push(peer.await.unwrap());
    }
    for peer in 0..PEERS {
        let written = bytes(&offered, 8 * peer as u64, 8);
        assert_eq!(written, (peer as u64).to_le_bytes());
    }
    eventually("all of them keep all their lanes", || {
        connections(&receiver) == (PEERS * LANES) as u64
    })
    .await;
    for engine in &engines {
        engine.shutdown(LONG).await.unwrap();
    }
    eventually("nothing is left of them", || connections(&receiver) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_warms_up_to_many_and_hears_of_each() {
    let engine = caller().await;
    let mut owners = Vec::new();
    let mut segments = Vec::new();
    for _ in 0..40 {
        let owner = common::engine().await;
        segments.push(open(&engine, &owner).await);
        owners.push(owner);
    }
    // Some are gone before they are reached, and one is another life.
    for gone in [3, 17] {
        owners[gone].shutdown(BUDGET).await.unwrap();
    }
    let warm = engine.warm_up_peers(&segments, LONG).await;
    assert_eq!(warm.len(), segments.len());
    for (place, warm) in warm.iter().enumerate() {
        assert_eq!(warm.segment.name(), segments[place].name());
        match place {
            3 | 17 => {
                let failed = warm.result.as_ref().unwrap_err();
                assert!(matches!(failed, Error::Unreachable { .. }), "{failed}");
            }
            _ => assert!(warm.result.is_ok(), "{warm:?}"),
        }
    }
    // Those that refuse are not asked until the budget is over.
    assert!(warm.iter().all(|warm| warm.took < LONG / 2), "{warm:?}");
    assert!(engine.warm_up_peers(&[], LONG).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_all_seats_taken_comes_again_and_gets_one_that_becomes_free() {
    let mut config = TcpConfig::default();
    config.lanes_accepted = LANES;
    let receiver = engine_with(config).await;
    let _offered = buffer(&receiver, 8, Permission::PeersReadWrite).await;
    let first = caller().await;
    let segment = open(&first, &receiver).await;
    first.warm_up(&segment, LONG).await.unwrap();
    eventually("both lanes are there", || {
        connections(&receiver) == LANES as u64
    })
    .await;
    let second = caller().await;
    let segment = open(&second, &receiver).await;
    let segments = [segment];
    let short = second.warm_up_peers(&segments, Duration::from_millis(300));
    let short = short.await;
    assert!(short[0].result.is_err());
    assert!(short[0].took >= Duration::from_millis(250), "{short:?}");
    let waiting = {
        let second = second.clone();
        tokio::spawn(async move { second.warm_up_peers(&segments, LONG).await })
    };
    // Longer than a transfer's patience with a busy peer.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!waiting.is_finished());
    first.shutdown(BUDGET).await.unwrap();
    let warm = waiting.await.unwrap();
    warm[0].result.as_ref().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_says_when_to_come_again_is_not_asked_before() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let owner = engine_at(listener.local_addr().unwrap()).await;
    let _offered = buffer(&owner, 8, Permission::PeersReadWrite).await;
    let engine = caller().await;
    let segment = open(&engine, &owner).await;
    let dials = Arc::new(AtomicUsize::new(0));
    let (dialled, life) = (Arc::clone(&dials), owner.incarnation());
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for socket in listener.incoming() {
            let Ok(mut socket) = socket else { return };
            dialled.fetch_add(1, Ordering::Relaxed);
            let mut busy = hello_answer(3, life);
            // In 700 ms.
            busy[28..32].copy_from_slice(&700_u32.to_le_bytes());
            if socket.read_exact(&mut [0; 48]).is_ok() {
                let _gone = socket.write_all(&busy);
            }
        }
    });
    let start = Instant::now();
    let warm = engine
        .warm_up_peers(&[segment], Duration::from_secs(2))
        .await;
    assert!(warm[0].result.is_err());
    assert!(start.elapsed() >= Duration::from_secs(1));
    // Each pause is 350 ms at least; without the hint there would be dozens.
    let dials = dials.load(Ordering::Relaxed);
    assert!((2..=9).contains(&dials), "{dials} tries");
}
