//! Processes of one host that reach each other's memory without a network: what a process that dies,
//! stops or belongs to somebody else makes of it.
#![cfg(all(feature = "conformance", feature = "tcp", feature = "host"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    CmaTransport, Error, HostConfig, Memory, Permission, Qos, Reason, RegisterOptions, Request,
    Retry, Segment, ShmTransport, TcpTransport, TentEngine, TransferEngine,
    transport::{Op, Outcome, Transport},
};

const LEN: usize = 4 << 20;
const LINK: &str = "HOST_TEST_LINK";
const WAY: &str = "HOST_TEST_WAY";

async fn engine_on(link: impl Transport) -> TentEngine {
    let builder = TentEngine::builder().patience(BUDGET);
    builder.transport(link).build().await.unwrap()
}

async fn engine_called(name: &str) -> TentEngine {
    match name {
        "shm" => engine_on(ShmTransport::default()).await,
        "cma" => engine_on(CmaTransport::default()).await,
        other => panic!("no link {other}"),
    }
}

/// A process of its own that offers [`LEN`] bytes until it is killed.
struct Owner {
    process: Child,
    segment: String,
}

impl Owner {
    fn start(link: &str) -> Self {
        Self::start_with(link, "", |_| {})
    }

    fn start_with(link: &str, way: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "an_owner", "--ignored", "--nocapture"])
            .env(LINK, link)
            .env(WAY, way)
            .stdout(Stdio::piped());
        prepare(&mut command);
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut names = lines.map_while(Result::ok).filter_map(|line| {
            let (_, name) = line.split_once("offers ")?;
            Some(name.to_owned())
        });
        let segment = names.next().expect("it says what it offers");
        Self { process, segment }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.process.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    async fn open(&self, engine: &TentEngine) -> Segment {
        engine.open_segment(&self.segment, BUDGET).await.unwrap()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Part of the tests below, in a process of its own.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a parent"]
async fn an_owner() {
    let Ok(link) = env::var(LINK) else {
        return;
    };
    if env::var(WAY).unwrap() == "not dumpable" {
        // As of a process that keeps secrets.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
            .unwrap();
    }
    let engine = engine_called(&link).await;
    let offered = buffer(&engine, LEN, Permission::PeersReadWrite).await;
    offered.memory().write_at(0, &pattern(9, LEN));
    println!("offers {}", engine.segment_name());
    if env::var(WAY).unwrap() == "becomes another program" {
        std::io::stdin().read_line(&mut String::new()).unwrap();
        panic!("{}", Command::new("sleep").arg("60").exec());
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
}

/// Part of a test below, in a process of its own: says how a read ends.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a parent"]
async fn a_reader() {
    let Ok(segment) = env::var(WAY) else {
        return;
    };
    let engine = engine_called(&env::var(LINK).unwrap()).await;
    let segment = engine.open_segment(&segment, BUDGET).await.unwrap();
    let local = buffer(&engine, LEN, Permission::Local).await;
    let read = Request::read(local.all().unwrap(), &segment, first(&segment));
    println!("read: {:?}", once(&engine, read).await);
}

fn first(segment: &Segment) -> mooncake_tent::RemoteRange {
    let buffer = segment.descriptor().buffers().next().unwrap().clone();
    mooncake_tent::RemoteRange::Registered {
        registration: buffer.registration,
        generation: Some(buffer.generation),
        offset: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_move_between_two_processes_both_ways() {
    for link in ["shm", "cma"] {
        let owner = Owner::start(link);
        let engine = engine_called(link).await;
        let segment = owner.open(&engine).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        let read = || Request::read(local.all().unwrap(), &segment, first(&segment));
        let write = || Request::write(local.all().unwrap(), &segment, first(&segment));
        assert!(once(&engine, read()).await.is_completed(), "{link}");
        assert_same(&bytes(&local, 0, LEN), &pattern(9, LEN), link);
        for round in 0..3 {
            local.memory().write_at(0, &pattern(round, LEN));
            let written = once(&engine, write()).await;
            assert!(written.is_completed(), "{link}: {written:?}");
            local.memory().write_at(0, &pattern(77, LEN));
            assert!(once(&engine, read()).await.is_completed(), "{link}");
            assert_same(&bytes(&local, 0, LEN), &pattern(round, LEN), link);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_07_a_process_that_was_killed_is_soon_read_from_no_more() {
    for link in ["shm", "cma"] {
        let owner = Owner::start(link);
        let engine = engine_called(link).await;
        let segment = owner.open(&engine).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        let read = || Request::read(local.all().unwrap(), &segment, first(&segment));
        let write = || Request::write(local.all().unwrap(), &segment, first(&segment));
        assert!(once(&engine, read()).await.is_completed(), "{link}");
        assert!(once(&engine, write()).await.is_completed(), "{link}");
        drop(owner);
        // That it was alive a moment ago is believed for a moment.
        let start = Instant::now();
        while once(&engine, read()).await.is_completed() {
            assert!(start.elapsed() < BUDGET, "{link}: it is read from still");
        }
        for request in [read(), write()] {
            let batch = submit(&engine, vec![request]);
            terminal(&batch).await;
            let error = error(batch.outcome(0));
            let gone = matches!(error.reason, Reason::Unreachable(_) | Reason::Broken(_));
            assert!(gone, "{link}: {error}");
            quiescent(&batch).await;
        }
        engine.unregister_memory(local, BUDGET).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_what_a_stopped_process_was_asked_to_fetch_too_late_changes_nothing() {
    for link in ["shm", "cma"] {
        let owner = Owner::start(link);
        let engine = engine_called(link).await;
        let segment = owner.open(&engine).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        let write = || Request::write(local.all().unwrap(), &segment, first(&segment));
        let read = || Request::read(local.all().unwrap(), &segment, first(&segment));
        assert!(once(&engine, write()).await.is_completed(), "{link}");
        assert!(once(&engine, read()).await.is_completed(), "{link}");
        let before = bytes(&local, 0, LEN);

        owner.signal("-STOP");
        // Reading needs nobody at the other end.
        assert!(once(&engine, read()).await.is_completed(), "{link}");
        local.memory().write_at(0, &pattern(5, LEN));
        let soon = Instant::now() + Duration::from_millis(100);
        let batch = submit(&engine, (0..3).map(|_| write().deadline(soon)).collect());
        terminal(&batch).await;
        for i in 0..3 {
            let outcome = batch.outcome(i).unwrap();
            assert!(outcome.is_timed_out(), "{link}: {outcome:?}");
        }
        assert!(!batch.is_quiescent(), "{link}: it may still fetch them");
        assert!(local.leases() > 0, "{link}: and reads from our memory");
        owner.signal("-CONT");
        quiescent(&batch).await;
        drop(batch);
        assert_eq!(local.leases(), 0, "{link}");
        assert!(once(&engine, read()).await.is_completed(), "{link}");
        assert_same(&bytes(&local, 0, LEN), &before, link);

        // Nothing is under way, so nobody need say so.
        owner.signal("-STOP");
        engine.shutdown(Duration::from_secs(1)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_05_memory_that_was_registered_anew_is_never_read_under_its_old_name() {
    for link in ["shm", "cma"] {
        let (owner, engine) = (engine_called(link).await, engine_called(link).await);
        let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        let old = place(&remote, 0);
        let read = |at| Request::read(local.all().unwrap(), &segment, at);
        assert!(once(&engine, read(old)).await.is_completed(), "{link}");
        owner.renew_registration(&remote, BUDGET).await.unwrap();
        let refused = error(Some(once(&engine, read(old)).await));
        assert_eq!(refused.reason, Reason::StaleGeneration, "{link}");
        assert!(once(&engine, read(place(&remote, 0))).await.is_completed());

        // Another one takes its place, at another address or the same.
        let old = place(&remote, 0);
        owner.unregister_memory(remote, BUDGET).await.unwrap();
        let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
        remote.memory().write_at(0, &pattern(3, LEN));
        let refused = error(Some(once(&engine, read(old)).await));
        let gone = matches!(
            refused.reason,
            Reason::StaleGeneration | Reason::UnknownRegistration
        );
        assert!(gone, "{link}: {refused}");
        assert!(
            once(&engine, read(address(&remote, 0)))
                .await
                .is_completed()
        );
        assert_same(&bytes(&local, 0, LEN), &pattern(3, LEN), link);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_07_a_process_that_becomes_another_program_is_read_from_no_more() {
    for link in ["shm", "cma"] {
        let mut owner = Owner::start_with(link, "becomes another program", |command| {
            command.stdin(Stdio::piped());
        });
        let engine = engine_called(link).await;
        let segment = owner.open(&engine).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        let read = || Request::read(local.all().unwrap(), &segment, first(&segment));
        assert!(once(&engine, read()).await.is_completed(), "{link}");
        owner
            .process
            .stdin
            .take()
            .unwrap()
            .write_all(b"\n")
            .unwrap();
        let start = Instant::now();
        let ended = loop {
            let outcome = once(&engine, read()).await;
            if !outcome.is_completed() {
                break outcome;
            }
            assert!(start.elapsed() < BUDGET, "{link}: it is read from still");
        };
        let error = error(Some(ended));
        assert!(
            matches!(error.reason, Reason::Unreachable(_)),
            "{link}: {error}"
        );
    }
}

/// Whether this process has mapped so much of somebody else's memory for reading.
fn maps_for_reading(length: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let mut words = line.split(' ');
        let (from, to) = words.next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let readable = words.next() == Some("r--s");
        readable && line.contains("memfd:mooncake") && number(to) - number(from) == length
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn law_13_memory_that_is_taken_back_goes_back_to_the_system() {
    // A length that no other test uses.
    const LENGTH: usize = 9 << 20;
    let (owner, engine) = (engine_called("shm").await, engine_called("shm").await);
    let remote = buffer(&owner, LENGTH, Permission::PeersRead).await;
    let local = buffer(&engine, LENGTH, Permission::Local).await;
    let segment = open(&engine, &owner).await;
    let read = Request::read(local.all().unwrap(), &segment, place(&remote, 0));
    assert!(once(&engine, read).await.is_completed());
    assert!(maps_for_reading(LENGTH));
    owner.unregister_memory(remote, BUDGET).await.unwrap();
    eventually("the mapping goes", || !maps_for_reading(LENGTH)).await;

    // The other way round: what a writer takes back.
    let remote = buffer(&owner, LENGTH, Permission::PeersReadWrite).await;
    let write = Request::write(local.all().unwrap(), &segment, address(&remote, 0));
    assert!(once(&engine, write).await.is_completed());
    assert!(maps_for_reading(LENGTH));
    engine.unregister_memory(local, BUDGET).await.unwrap();
    eventually("the mapping goes", || !maps_for_reading(LENGTH)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_the_engine_did_not_allocate_goes_by_the_kernel_or_the_network() {
    let all = async || {
        let builder = TentEngine::builder().transport(ShmTransport::default());
        let builder = builder.transport(CmaTransport::default());
        let builder = builder.transport(TcpTransport::default());
        builder.build().await.unwrap()
    };
    let (owner, engine) = (all().await, all().await);
    let foreign = |permission| {
        let memory = Memory::from_vec(pattern(1, LEN)).unwrap();
        owner.register_memory(memory, RegisterOptions::new(permission))
    };
    let foreign = foreign(Permission::PeersReadWrite).await.unwrap();
    let ours = buffer(&owner, LEN, Permission::PeersReadWrite).await;
    let segment = open(&engine, &owner).await;
    let links = |buffer: &mooncake_tent::Buffer| {
        let descriptor = segment.descriptor();
        descriptor.buffer(buffer.id()).unwrap().links.to_vec()
    };
    assert_eq!(links(&ours), ["shm", "cma", "tcp", "in-process"]);
    assert_eq!(links(&foreign), ["cma", "tcp", "in-process"]);
    let best = engine.explain(Op::Read, 1, &Qos::new(), &segment);
    assert_eq!(best.ranked[0].name, "shm", "{best}");
    for round in [2, 3] {
        let memory = match round {
            2 => Memory::allocate(LEN),
            _ => Memory::from_vec(vec![0; LEN]),
        };
        let options = RegisterOptions::new(Permission::Local);
        let local = engine
            .register_memory(memory.unwrap(), options)
            .await
            .unwrap();
        for remote in [&ours, &foreign] {
            local.memory().write_at(0, &pattern(round, LEN));
            let write = Request::write(local.all().unwrap(), &segment, place(remote, 0));
            assert!(once(&engine, write).await.is_completed());
            assert_same(&bytes(remote, 0, LEN), &pattern(round, LEN), "written");
            local.memory().write_at(0, &pattern(50, LEN));
            let read = Request::read(local.all().unwrap(), &segment, place(remote, 0));
            assert!(once(&engine, read).await.is_completed());
            assert_same(&bytes(&local, 0, LEN), &pattern(round, LEN), "read");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_takes_no_more_sessions_says_so_and_has_room_again() {
    let mut config = HostConfig::default();
    config.peers = 1;
    let owner = engine_on(ShmTransport::new(config)).await;
    let remote = buffer(&owner, 64, Permission::PeersReadWrite).await;
    let mut engines = Vec::new();
    for _ in 0..2 {
        let engine = engine_called("shm").await;
        let local = buffer(&engine, 64, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        engines.push((engine, local, segment));
    }
    let both = async |(engine, local, segment): &(TentEngine, mooncake_tent::Buffer, Segment)| {
        let read = Request::read(local.all().unwrap(), segment, place(&remote, 0));
        let write = Request::write(local.all().unwrap(), segment, place(&remote, 0));
        [once(engine, read).await, once(engine, write).await]
    };
    for outcome in both(&engines[0]).await {
        assert!(outcome.is_completed(), "{outcome:?}");
    }
    for outcome in both(&engines[1]).await {
        let error = error(Some(outcome));
        assert_eq!(error.retry, Retry::Elsewhere, "{error}");
        assert!(error.to_string().contains("sessions"), "{error}");
    }
    let (first, ..) = engines.remove(0);
    first.shutdown(BUDGET).await.unwrap();
    let start = Instant::now();
    loop {
        let outcomes = both(&engines[0]).await;
        if outcomes.iter().all(Outcome::is_completed) {
            break;
        }
        assert!(start.elapsed() < BUDGET, "no room again: {outcomes:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Another user than the one that runs the tests, which only root can become.
const NOBODY: u32 = 65_534;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test(flavor = "multi_thread")]
async fn law_04_another_users_process_is_neither_served_nor_trusted() {
    if !is_root() {
        eprintln!("skipped: only root becomes another user");
        return;
    }
    for link in ["shm", "cma"] {
        let owner = Owner::start_with(link, "", |command| {
            command.uid(NOBODY);
        });
        // Who is not told otherwise does not even try.
        let engine = engine_called(link).await;
        let segment = owner.open(&engine).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        let read = Request::read(local.all().unwrap(), &segment, first(&segment));
        let mut batch = engine.allocate_batch(1);
        let submitted = engine.submit_transfer(&mut batch, vec![read]);
        assert!(
            matches!(submitted, Err(Error::NoRoute { .. })),
            "{submitted:?}"
        );

        // We trust it, but it does not trust us.
        let mut config = HostConfig::default();
        config.users = vec![NOBODY];
        let engine = match link {
            "shm" => engine_on(ShmTransport::new(config)).await,
            _ => engine_on(CmaTransport::new(config)).await,
        };
        let segment = owner.open(&engine).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        local.memory().write_at(0, &pattern(1, LEN));
        let read = Request::read(local.all().unwrap(), &segment, first(&segment));
        let write = Request::write(local.all().unwrap(), &segment, first(&segment));
        for request in [read, write] {
            let error = error(Some(once(&engine, request).await));
            assert!(matches!(error.reason, Reason::Unreachable(_)), "{error}");
            assert!(error.to_string().contains("user"), "{link}: {error}");
        }
        assert_same(&bytes(&local, 0, LEN), &pattern(1, LEN), "it was read");
        let warm = engine.warm_up(&segment, BUDGET).await;
        assert!(matches!(warm, Err(Error::Unreachable { .. })), "{warm:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_kernel_forbids_is_refused_with_that_reason() {
    if !is_root() {
        eprintln!(
            "skipped: root alone can be somebody whom the kernel refuses, and somebody who sees it"
        );
        return;
    }
    for (way, readable) in [("", true), ("not dumpable", false)] {
        let owner = Owner::start_with("cma", way, |command| {
            command.uid(NOBODY);
        });
        let reader = Command::new(env::current_exe().unwrap())
            .args(["--exact", "a_reader", "--ignored", "--nocapture"])
            .env(LINK, "cma")
            .env(WAY, &owner.segment)
            .uid(NOBODY)
            .output()
            .unwrap();
        let said = String::from_utf8(reader.stdout).unwrap();
        if readable {
            assert!(said.contains("read: Completed"), "{said}");
        } else {
            assert!(
                said.contains("Unreachable") && said.contains("dumpable"),
                "{said}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_13_a_write_that_timed_out_becomes_quiet_when_its_peer_dies() {
    for link in ["shm", "cma"] {
        let owner = Owner::start(link);
        let engine = engine_called(link).await;
        let segment = owner.open(&engine).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        let write = || Request::write(local.all().unwrap(), &segment, first(&segment));
        assert!(once(&engine, write()).await.is_completed(), "{link}");
        owner.signal("-STOP");
        let soon = Instant::now() + Duration::from_millis(50);
        let batch = submit(&engine, vec![write().deadline(soon)]);
        terminal(&batch).await;
        assert!(!batch.is_quiescent(), "{link}");
        drop(owner);
        quiescent(&batch).await;
        drop(batch);
        engine.unregister_memory(local, BUDGET).await.unwrap();
        let links = || engine.gauges().links;
        eventually("the connections go", || {
            links().iter().all(|(_, link)| link.connections == 0)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_a_read_that_waits_is_not_begun_after_a_fence_however_long_it_waits() {
    for link in ["shm", "cma"] {
        let (owner, engine) = (engine_called(link).await, engine_called(link).await);
        let remote = buffer(&owner, LEN, Permission::PeersRead).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        let read = Request::read(local.all().unwrap(), &segment, place(&remote, 0));
        // Nobody waits for it, and the link looks after its sessions meanwhile.
        let batch = submit(&engine, vec![read]);
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        engine.fence(&segment, BUDGET).await.unwrap();
        assert!(tokio::task::block_in_place(|| batch.wait(BUDGET)));
        let error = error(batch.outcome(0));
        assert!(matches!(error.reason, Reason::Broken(_)), "{link}: {error}");
        assert_same(&bytes(&local, 0, LEN), &vec![0; LEN], link);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_02_what_is_asked_of_a_link_that_was_shut_down_ends() {
    for link in ["shm", "cma"] {
        let (owner, engine) = (engine_called(link).await, engine_called(link).await);
        let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        let read = || Request::read(local.all().unwrap(), &segment, place(&remote, 0));
        let write = || Request::write(local.all().unwrap(), &segment, place(&remote, 0));
        let before = submit(&engine, vec![read(), write()]);
        engine.shutdown(BUDGET).await.unwrap();
        let after = submit(&engine, vec![read(), write()]);
        for batch in [before, after] {
            terminal(&batch).await;
            quiescent(&batch).await;
            assert!(!batch.outcome(0).unwrap().is_completed(), "{link}");
        }
        assert_eq!(local.leases(), 0, "{link}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_01_a_write_that_was_applied_is_never_said_to_have_done_nothing() {
    for _ in 0..5 {
        let (owner, engine) = (engine_called("shm").await, engine_called("shm").await);
        let remote = buffer(&owner, 64, Permission::PeersReadWrite).await;
        let local = buffer(&engine, 64, Permission::Local).await;
        local.memory().write_at(0, &pattern(1, 64));
        let segment = open(&engine, &owner).await;
        let write = || Request::write(local.all().unwrap(), &segment, place(&remote, 0));
        // Nobody takes the answer before its sender is gone.
        let first = submit(&engine, vec![write()]);
        eventually("it is applied", || bytes(&remote, 0, 64) == pattern(1, 64)).await;
        owner.shutdown(BUDGET).await.unwrap();
        let second = submit(&engine, vec![write()]);
        terminal(&first).await;
        terminal(&second).await;
        let outcome = first.outcome(0).unwrap();
        assert!(outcome.is_completed(), "{outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_07_nobody_reads_from_an_owner_that_was_shut_down() {
    for link in ["shm", "cma"] {
        let (owner, engine) = (engine_called(link).await, engine_called(link).await);
        let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        let segment = open(&engine, &owner).await;
        let read = || Request::read(local.all().unwrap(), &segment, place(&remote, 0));
        assert!(once(&engine, read()).await.is_completed(), "{link}");
        owner.shutdown(BUDGET).await.unwrap();
        // What was known to be alive a moment ago is looked at again.
        let start = Instant::now();
        while once(&engine, read()).await.is_completed() {
            assert!(start.elapsed() < BUDGET, "{link}: it is read from still");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_peer_holds_up_nobody_else() {
    let stopped = Owner::start("shm");
    let owner = engine_called("shm").await;
    let mut config = HostConfig::default();
    config.lend_timeout = BUDGET;
    let engine = engine_on(ShmTransport::new(config)).await;
    let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    let (near, far) = (open(&engine, &owner).await, stopped.open(&engine).await);
    stopped.signal("-STOP");
    let write = Request::write(local.all().unwrap(), &far, first(&far));
    let held = submit(&engine, vec![write.deadline(Instant::now() + BUDGET)]);
    assert!(!held.is_terminal());
    for _ in 0..200 {
        let local = local.slice(0..64).unwrap();
        let write = Request::write(local, &near, place(&remote, 0));
        assert!(once(&engine, write).await.is_completed());
    }
    let waits = Instant::now();
    let read = Request::read(local.all().unwrap(), &far, first(&far));
    let batch = submit(&engine, vec![read]);
    assert!(!tokio::task::block_in_place(
        || batch.wait(Duration::from_millis(10))
    ));
    assert!(waits.elapsed() < BUDGET / 4, "{:?}", waits.elapsed());
    stopped.signal("-CONT");
    terminal(&batch).await;
    terminal(&held).await;
    assert!(held.outcome(0).unwrap().is_completed());
}
