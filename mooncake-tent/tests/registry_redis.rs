//! Names in a Redis server.
#![cfg(all(feature = "redis", feature = "conformance"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use common::{
    BUDGET,
    servers::{Server, free},
};
use mooncake_tent::{
    Error, TentEngine, TransferEngine, conformance::check_registry, registry::RedisRegistry,
    registry::Registry,
};
use rustix::process::Signal;

const LEASE: Duration = Duration::from_millis(400);

fn redis() -> Option<Server> {
    Server::start(|address: SocketAddr, _, folder: &Path| {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--databases", "2"]);
        command.arg("--dir").arg(folder);
        command
    })
}

fn registry(server: &Server) -> RedisRegistry {
    RedisRegistry::new(&format!("redis://{}", server.address)).unwrap()
}

/// One command by another client.
fn tell(server: &Server, command: &str) {
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket
        .write_all(format!("{command}\r\nQUIT\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(!answer.starts_with('-'), "{command}: {answer}");
}

async fn until_there(registry: &RedisRegistry, name: &str) {
    let end = Instant::now() + BUDGET;
    while !matches!(registry.look_up(name).await, Ok(Some(_))) {
        assert!(Instant::now() < end, "{name} is there");
        tokio::time::sleep(LEASE / 10).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_what_a_registry_promises() {
    let Some(server) = redis() else { return };
    check_registry(&registry(&server), &registry(&server), LEASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_there_again_after_it_was_started_anew() {
    let Some(mut server) = redis() else { return };
    let names = registry(&server);
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
    until_there(&names, "owner").await;
    owner.shutdown(BUDGET).await.unwrap();
    assert_eq!(names.look_up("owner").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_an_error_for_its_name_alone() {
    let Some(server) = redis() else { return };
    let names = registry(&server);
    tell(&server, "SET mooncake/tent/text nonsense");
    tell(&server, "RPUSH mooncake/tent/list 1");
    let owner = TentEngine::builder().registry(registry(&server));
    let _owner = owner.segment_name("good").build().await.unwrap();
    for bad in ["text", "list"] {
        let failed = names.look_up(bad).await.unwrap_err();
        assert!(matches!(&failed, Error::Registry { name, .. } if name == bad));
        let owner = TentEngine::builder().registry(registry(&server));
        let failed = owner.segment_name(bad).build().await.unwrap_err();
        assert!(matches!(&failed, Error::Registry { name, .. } if name == bad));
        assert!(names.look_up("good").await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_silent_or_away_is_an_error_within_the_budget() {
    let Some(server) = redis() else { return };
    let names = registry(&server);
    assert_eq!(names.look_up("a").await.unwrap(), None);
    let reader = TentEngine::builder().registry(names);
    let reader = reader.build().await.unwrap();
    server.signal(Signal::STOP);
    let budget = Duration::from_millis(200);
    let failed = reader.open_segment("a", budget).await.unwrap_err();
    assert!(failed.to_string().contains("no answer within"), "{failed}");
    server.signal(Signal::CONT);
    let failed = reader.open_segment("a", BUDGET).await.unwrap_err();
    assert!(failed.to_string().contains("no such name"), "{failed}");

    let away = RedisRegistry::new(&format!("redis://{}", free())).unwrap();
    let failed = away.look_up("a").await.unwrap_err();
    assert!(failed.to_string().contains("redis://127.0.0.1"), "{failed}");
    assert!(RedisRegistry::new("http://127.0.0.1").is_err());
    let secret = RedisRegistry::new("redis://me:hunter2@127.0.0.1/1").unwrap();
    assert!(!format!("{secret:?} {}", secret.place()).contains("hunter2"));
}
