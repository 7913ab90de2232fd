//! A metadata service, and engines that are found by what it keeps.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mooncake_tent::conformance::check_registry;
use mooncake_tent::registry::{HttpRegistry, Registry};
use mooncake_tent::{Error, TentEngine, TransferEngine};
use rustix::process::Signal;
use tokio::runtime::Runtime;

use super::processes::{END, PATIENCE, Role, nobody, spawn_in, until};

const LEASE: Duration = Duration::from_millis(600);
/// Says to a process of this test where to offer a segment.
const OFFER: &str = "OFFER_A_SEGMENT_IN";

fn service(words: &[&str]) -> Role {
    let words = [&["metadata"], words].concat();
    if words.contains(&"--listen") {
        return Role::start(&words);
    }
    Role::start(&[&words[..], &["--listen", "127.0.0.1:0"]].concat())
}

fn registry(role: &Role) -> HttpRegistry {
    HttpRegistry::new(role.field("url")).unwrap()
}

async fn engine(role: &Role, name: &str) -> Result<TentEngine, Error> {
    let builder = TentEngine::builder().registry(registry(role));
    builder
        .segment_name(name)
        .registry_lease(LEASE)
        .build()
        .await
}

fn there(runtime: &Runtime, names: &HttpRegistry, name: &str) -> bool {
    matches!(runtime.block_on(names.look_up(name)), Ok(Some(_)))
}

/// The status of the answer to a request, and its body.
fn ask(role: &Role, method: &str, target: &str, body: &[u8]) -> (u16, String) {
    let mut socket = TcpStream::connect(role.field("admin_address")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    // What is too long is refused before it is read.
    let _ = socket.write_all(body);
    let mut answer = Vec::new();
    // Then the connection may end by a reset after the answer.
    let _ = socket.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[test]
fn a_metadata_service_keeps_what_a_registry_promises() {
    let role = service(&[]);
    let check = async { check_registry(&registry(&role), &registry(&role), LEASE).await };
    Runtime::new().unwrap().block_on(check);
}

/// No test by itself: what [`a_killed_process_loses_its_name`] starts and kills.
#[test]
#[ignore = "a process of another test"]
fn offers_a_segment() {
    let Ok(url) = std::env::var(OFFER) else {
        return;
    };
    Runtime::new().unwrap().block_on(async {
        let builder = TentEngine::builder().registry(HttpRegistry::new(&url).unwrap());
        let builder = builder.segment_name("offered").registry_lease(LEASE);
        let engine = builder.build().await.unwrap();
        println!("\noffered by {}", engine.incarnation());
        // As long as whoever started it listens.
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
        let _ = ended.await;
    });
}

fn offer(role: &Role) -> (Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "metadata::offers_a_segment",
        "--ignored",
        "--nocapture",
    ]);
    command.env(OFFER, role.field("url")).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let incarnation = loop {
        let line = lines.next().unwrap().unwrap();
        if let Some(incarnation) = line.strip_prefix("offered by ") {
            break incarnation.to_owned();
        }
    };
    // It goes on writing.
    std::thread::spawn(move || lines.map_while(Result::ok).count());
    (child, incarnation)
}

#[test]
fn a_killed_process_loses_its_name_and_its_next_life_is_found_under_it() {
    let role = service(&[]);
    let runtime = Runtime::new().unwrap();
    let names = registry(&role);
    let (mut first, incarnation) = offer(&role);
    let reader = TentEngine::builder().registry(registry(&role)).build();
    let reader = runtime.block_on(reader).unwrap();
    let opened = reader.open_segment("offered", PATIENCE);
    let segment = runtime.block_on(opened).unwrap();
    assert_eq!(segment.incarnation().to_string(), incarnation);
    std::thread::sleep(LEASE * 2);
    assert!(there(&runtime, &names, "offered"), "it is claimed anew");

    first.kill().unwrap();
    first.wait().unwrap();
    until("its lease ends", || {
        (!there(&runtime, &names, "offered")).then_some(())
    });
    let (mut second, incarnation) = offer(&role);
    until("the next life is known", || {
        (segment.incarnation().to_string() == incarnation).then_some(())
    });
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn names_are_there_again_after_the_service_was_killed_and_started_anew() {
    let role = service(&[]);
    let runtime = Runtime::new().unwrap();
    let names = registry(&role);
    let owner = runtime.block_on(engine(&role, "owner")).unwrap();
    assert!(there(&runtime, &names, "owner"));
    let address = role.field("admin_address").to_owned();
    assert_eq!(role.end(Signal::KILL).0, None);
    let failed = runtime.block_on(names.look_up("owner")).unwrap_err();
    assert!(matches!(failed, Error::Registry { .. }), "{failed}");
    assert!(failed.to_string().contains("refused"), "{failed}");

    let role = service(&["--listen", &address]);
    until("its owner claims it anew", || {
        there(&runtime, &names, "owner").then_some(())
    });
    runtime.block_on(owner.shutdown(PATIENCE)).unwrap();
    assert!(!there(&runtime, &names, "owner"), "it was given back");
    assert_eq!(role.number("mooncake_metadata_entries"), 0);
}

#[test]
fn law_10_a_service_that_was_stopped_expires_nobody_for_that() {
    let role = service(&[]);
    let runtime = Runtime::new().unwrap();
    let names = registry(&role);
    let owner = runtime.block_on(engine(&role, "owner")).unwrap();
    role.signal(Signal::STOP);
    std::thread::sleep(LEASE * 4);
    role.signal(Signal::CONT);
    let begun = Instant::now();
    while begun.elapsed() < LEASE * 2 {
        assert!(there(&runtime, &names, "owner"));
    }
    assert_eq!(role.number("mooncake_metadata_expired_total"), 0);
    drop(owner);
    until("the lease ends", || {
        (role.number("mooncake_metadata_expired_total") == 1).then_some(())
    });
}

#[test]
fn what_makes_no_sense_or_finds_no_room_is_refused_and_counted() {
    let role = service(&["--capacity", "40KiB", "--longest-lease", "1m"]);
    let put = |query: &str, size: usize| {
        let target = format!("/metadata?{query}");
        ask(&role, "PUT", &target, &vec![b'x'; size]).0
    };
    let long = "k".repeat(1025);
    for (query, size, status) in [
        ("key=a&owner=o&ttl_ms=60000", 16 << 10, 200),
        ("key=a&owner=o&ttl_ms=60000", (16 << 10) + 1, 413),
        ("key=a&owner=p&ttl_ms=60000", 1, 409),
        ("key=b&owner=o&ttl_ms=60000", 16 << 10, 200),
        ("key=c&owner=o&ttl_ms=60000", 16 << 10, 507),
        ("key=c&owner=o&ttl_ms=60001", 1, 400),
        ("key=c&owner=o&ttl_ms=0", 1, 400),
        ("key=c&owner=o&ttl_ms=-1", 1, 400),
        ("key=c&owner=o", 1, 400),
        ("key=c&ttl_ms=1000", 1, 400),
        ("key=&owner=o&ttl_ms=1000", 1, 400),
        ("key=c&owner=o&ttl_ms=1000&other=1", 1, 400),
        (&format!("key={long}&owner=o&ttl_ms=1000"), 1, 400),
        ("owner=o&ttl_ms=1000", 1, 400),
    ] {
        assert_eq!(put(query, size), status, "{query}, {size} bytes");
    }
    let (status, said) = ask(&role, "GET", "/metadata?key=c", b"");
    assert_eq!((status, &said[..]), (404, "there is no such key\n"));
    let remove = |query: &str| ask(&role, "DELETE", &format!("/metadata?{query}"), b"");
    assert_eq!(remove("key=a").0, 400);
    assert_eq!(remove("key=a&owner=p").0, 409);
    assert_eq!(remove("key=a&owner=o").0, 200);
    assert_eq!(remove("key=a&owner=o").0, 404);
    for (name, count) in [
        ("entries", 1),
        ("gets_total", 1),
        ("misses_total", 1),
        ("puts_total", 2),
        ("removals_total", 1),
        ("conflicts_total", 2),
        ("refused_total", 12),
    ] {
        let name = format!("mooncake_metadata_{name}");
        assert_eq!(role.number(&name), count, "{name}");
    }
    assert_eq!(role.page("/health"), r#"{"status":"serving"}"#);
}

#[test]
fn a_value_that_is_no_entry_is_an_error_for_its_name_alone() {
    let role = service(&[]);
    let runtime = Runtime::new().unwrap();
    let names = registry(&role);
    let target = "/metadata?key=mooncake/tent/bad&owner=o&ttl_ms=60000";
    assert_eq!(ask(&role, "PUT", target, b"{}").0, 200);
    let owner = runtime.block_on(engine(&role, "good")).unwrap();
    let failed = runtime.block_on(names.look_up("bad")).unwrap_err();
    assert!(matches!(&failed, Error::Registry { name, .. } if name == "bad"));
    let failed = runtime.block_on(engine(&role, "bad")).unwrap_err();
    assert!(matches!(&failed, Error::Registry { name, .. } if name == "bad"));
    assert!(there(&runtime, &names, "good"));
    runtime.block_on(owner.shutdown(PATIENCE)).unwrap();
}

#[test]
fn a_metadata_service_ends_when_told_to_and_says_why_it_does_not_start() {
    for signal in [Signal::TERM, Signal::INT] {
        let role = service(&[]);
        // Somebody who is connected and says nothing.
        let _silent = TcpStream::connect(role.field("admin_address")).unwrap();
        let (code, took) = role.end(signal);
        assert_eq!(code, Some(0), "{signal:?}");
        assert!(took < END, "{took:?}");
    }
    let role = service(&[]);
    let folder = tempfile::tempdir().unwrap();
    let taken = ["metadata", "--listen", role.field("admin_address")];
    let refused = spawn_in(folder.path(), &taken).wait_with_output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("cannot listen on") && said.contains("--listen"),
        "{said}"
    );
    assert_eq!(role.abandon(), Some(0));
    let unreachable = HttpRegistry::new(&format!("http://{}", nobody())).unwrap();
    let failed = Runtime::new().unwrap().block_on(unreachable.look_up("a"));
    assert!(failed.unwrap_err().to_string().contains("refused"));
}
