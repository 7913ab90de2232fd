//! No byte of a write lands later than its deadline, however long something held it up.
#![cfg(all(feature = "conformance", feature = "tcp"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    env,
    io::{Read, Write},
    process::{Child, Command},
    time::{Duration, Instant},
};

use common::*;
use mooncake_tent::{
    Permission, Request, TcpConfig, TransferEngine,
    conformance::{Relay, Rules},
    transport::Outcome,
};

/// More than sockets and relay hold.
const LEN: usize = 16 << 20;
const DEADLINE: Duration = Duration::from_millis(600);

/// Holds every connection back: the first in the middle of its writes, all others from the start,
/// so that no fence gets through.
fn held_back(first: u64) -> impl Fn(u64) -> Rules + Clone + Send + Sync + 'static {
    move |number| {
        let mut rules = Rules::default();
        rules.up.pause_after = Some(if number == 0 { first } else { 0 });
        rules
    }
}

async fn until_silent(relay: &Relay) {
    loop {
        let before = relay.counts();
        tokio::time::sleep(Duration::from_millis(100)).await;
        if relay.counts() == before {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_a_write_that_is_held_up_in_its_middle_ends_at_its_deadline_on_both_sides() {
    // In its payload, in its header, and before it.
    for held in [48 + 48 + 500_000, 48 + 20, 48] {
        let (owner, relay) = relayed(TcpConfig::default(), held_back(held)).await;
        let engine = engine_with(one_lane()).await;
        let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
        let local = buffer(&engine, LEN, Permission::Local).await;
        local.memory().write_at(0, &pattern(1, LEN));
        let (here, there) = (books(&local), books(&remote));
        let segment = open(&engine, &owner).await;
        let all = local.all().unwrap();
        let write = Request::write(all, &segment, place(&remote, 0));
        let batch = submit(&engine, vec![write.deadline(Instant::now() + DEADLINE)]);
        terminal(&batch).await;
        let outcome = batch.outcome(0);
        assert!(matches!(outcome, Some(Outcome::TimedOut(_))), "{outcome:?}");
        eventually("nothing is read any more", || here.leases() == 0).await;
        // Nobody told the target: its own clock did.
        eventually("the target gives up", || there.leases() == 0).await;
        quiescent(&batch).await;
        let before = bytes(&remote, 0, LEN);
        relay.resume();
        until_silent(&relay).await;
        let after = bytes(&remote, 0, LEN);
        assert_same(&after, &before, "it landed after its deadline");
        drop(batch);
        engine.unregister_memory(local, BUDGET).await.unwrap();
        owner.unregister_memory(remote, BUDGET).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_comes_too_late_ends_its_lane_and_touches_nothing() {
    let owner = engine().await;
    let remote = buffer(&owner, 4096, Permission::PeersReadWrite).await;
    let segment = open(&engine().await, &owner).await;
    for (lane, verb) in [(1, 1), (2, 2)] {
        let mut socket = raw_lane(&owner, &segment, lane);
        // One in good time first.
        let early = request_until(1, 0, &remote, 0..8, u64::MAX);
        socket.write_all(&early).unwrap();
        socket.read_exact(&mut [0; ANSWER + 8]).unwrap();
        let late = request_until(verb, 1, &remote, 0..4096, 1);
        socket.write_all(&late).unwrap();
        let _reset = socket.write_all(&pattern(1, 4096));
        let mut rest = Vec::new();
        let _reset = socket.read_to_end(&mut rest);
        assert!(rest.is_empty(), "verb {verb}");
    }
    assert_same(&bytes(&remote, 0, 4096), &[0; 4096], "it came too late");
}

const SEGMENT: &str = "WRITE_BUDGET_SEGMENT";

/// Part of the test below, in a process of its own: writes for as long as it is let.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a parent"]
async fn a_writer() {
    let Ok(name) = env::var(SEGMENT) else {
        return;
    };
    let engine = engine_with(one_lane()).await;
    let local = buffer(&engine, LEN, Permission::Local).await;
    local.memory().write_at(0, &pattern(1, LEN));
    let segment = engine.open_segment(&name, BUDGET).await.unwrap();
    let at = segment.descriptor().buffers().next().unwrap().address;
    let part = LEN as u64 / 16;
    let writes = (0..16).map(|i| {
        let range = local.slice(i * part..(i + 1) * part).unwrap();
        let at = mooncake_tent::RemoteRange::Address(at + i * part);
        Request::write(range, &segment, at).deadline(Instant::now() + DEADLINE)
    });
    let batch = submit(&engine, writes.collect());
    terminal(&batch).await;
    let completed = (0..16).filter(|i| batch.outcome(*i).unwrap().is_completed());
    assert!(completed.count() < 16, "it was stopped before");
    quiescent(&batch).await;
}

fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_a_writer_that_was_stopped_for_long_changes_nothing_when_it_goes_on() {
    let held = 48 + 3_000_000;
    let (owner, relay) = relayed(TcpConfig::default(), held_back(held)).await;
    let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
    let there = books(&remote);
    let mut writer = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_writer", "--ignored", "--nocapture"])
        .env(SEGMENT, owner.segment_name())
        .spawn()
        .unwrap();
    eventually("it writes", || relay.counts().up_bytes >= held).await;
    // It has frames in its hands, in its socket and on the way.
    signal(&writer, "-STOP");
    let stopped = Instant::now();
    eventually("its deadline passes", || stopped.elapsed() > DEADLINE).await;
    eventually("the target gives up", || there.leases() == 0).await;
    // The memory is given to somebody else.
    remote.memory().write_at(0, &pattern(2, LEN));
    signal(&writer, "-CONT");
    relay.resume();
    let ended = tokio::task::spawn_blocking(move || writer.wait().unwrap());
    assert!(ended.await.unwrap().success());
    until_silent(&relay).await;
    let found = bytes(&remote, 0, LEN);
    assert_same(&found, &pattern(2, LEN), "it landed after its deadline");
}
