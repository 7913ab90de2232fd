//! Names in an etcd cluster.
#![cfg(all(feature = "etcd", feature = "conformance"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    net::SocketAddr,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use common::{
    BUDGET,
    servers::{Server, free},
};
use mooncake_tent::{
    Error, TentEngine, TransferEngine,
    conformance::check_registry,
    registry::{EtcdRegistry, Registry},
};
use rustix::process::Signal;

/// The server does not take shorter ones than one and a half elections.
const LEASE: Duration = Duration::from_secs(1);

fn etcd() -> Option<Server> {
    Server::start(|client: SocketAddr, peer: SocketAddr, folder: &Path| {
        let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(folder.join("data"));
        command.args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ]);
        command.args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        command.args(["--heartbeat-interval", "20", "--election-timeout", "200"]);
        command
    })
}

fn registry(server: &Server) -> EtcdRegistry {
    EtcdRegistry::new([format!("http://{}", server.address)]).unwrap()
}

/// It has a leader, and answers.
async fn ready(registry: &EtcdRegistry) {
    let end = Instant::now() + BUDGET;
    while let Err(error) = registry.look_up("nobody").await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_what_a_registry_promises() {
    let Some(server) = etcd() else { return };
    ready(&registry(&server)).await;
    check_registry(&registry(&server), &registry(&server), LEASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_there_again_after_it_was_started_anew_with_nothing() {
    let Some(mut server) = etcd() else { return };
    let names = registry(&server);
    ready(&names).await;
    let owner = TentEngine::builder().registry(registry(&server));
    let owner = owner.segment_name("owner").registry_lease(LEASE);
    let owner = owner.build().await.unwrap();
    let reader = TentEngine::builder().registry(registry(&server));
    let reader = reader.build().await.unwrap();
    let segment = reader.open_segment("owner", BUDGET).await.unwrap();
    assert_eq!(segment.incarnation(), owner.incarnation());

    server.kill();
    let failed = names.look_up("owner").await.unwrap_err();
    assert!(matches!(failed, Error::Registry { .. }), "{failed}");
    server.start_anew();
    let end = Instant::now() + BUDGET;
    while !matches!(names.look_up("owner").await, Ok(Some(_))) {
        assert!(Instant::now() < end, "its owner claims it anew");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    owner.shutdown(BUDGET).await.unwrap();
    assert_eq!(names.look_up("owner").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_member_is_asked_when_one_is_silent_or_away() {
    let Some(server) = etcd() else { return };
    let Some(silent) = etcd() else { return };
    ready(&registry(&server)).await;
    silent.signal(Signal::STOP);
    let members = [silent.address, free(), server.address];
    let names = EtcdRegistry::new(members.map(|it| format!("http://{it}"))).unwrap();
    assert_eq!(names.look_up("nobody").await.unwrap(), None);
    silent.signal(Signal::CONT);

    let away = EtcdRegistry::new([format!("http://{}", free())]).unwrap();
    let failed = away.look_up("a").await.unwrap_err();
    assert!(matches!(&failed, Error::Registry { name, .. } if name == "a"));
    assert!(failed.to_string().contains("refused"), "{failed}");
    for bad in ["", "https://127.0.0.1:1", "http://me:secret@127.0.0.1:1"] {
        assert!(EtcdRegistry::new([bad]).is_err(), "{bad:?}");
    }
    assert!(EtcdRegistry::new(Vec::<String>::new()).is_err());
}
