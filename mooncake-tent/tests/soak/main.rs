//! Everything at once for a long time, with peers that are killed: no byte is wrong, every task ends,
//! and afterwards nothing is left.
//!
//! `MOONCAKE_SOAK_SECONDS` is how long, `MOONCAKE_SOAK_SEED` repeats what was drawn; what threads and
//! the kernel make of it differs from run to run.
#![cfg(all(feature = "tcp", feature = "host"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

#[path = "../common/mod.rs"]
mod common;

mod caller;
mod child;
mod ledger;
mod owner;
mod process;

use std::{
    env,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use caller::{Caller, Tally};
use child::Child;
use common::*;
use ledger::Ledger;
use mooncake_tent::{
    CmaTransport, Gauges, ShmTransport, TcpTransport, TentEngine, TentEngineBuilder,
    TransferEngine, admission::AdmissionConfig, transport::LinkGauges,
};
use owner::Owner;
use process::Holdings;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{runtime::Runtime, task::JoinHandle};

const SECONDS: &str = "MOONCAKE_SOAK_SECONDS";
const SEED: &str = "MOONCAKE_SOAK_SEED";
/// What a process of the test is for.
const PART: &str = "MOONCAKE_SOAK_PART";

/// Each has a part of every buffer for itself, so that it knows what is there.
const CALLERS: usize = 4;
/// In bytes: the largest request, and something odd.
const PART_BYTES: u64 = (8 << 20) + 4099;
const BUFFER_BYTES: u64 = PART_BYTES * CALLERS as u64;
const PATIENCE: Duration = Duration::from_secs(4);

/// Over all links that reach another process.
fn builder() -> TentEngineBuilder {
    TentEngine::builder()
        .patience(PATIENCE)
        .transport(ShmTransport::default())
        .transport(CmaTransport::default())
        .transport(TcpTransport::default())
}

/// Gauges of an engine that nobody uses.
fn nothing(engine: &TentEngine) -> Gauges {
    let mut nothing = Gauges::default();
    let links = engine.gauges().links.into_iter();
    nothing.links = links
        .map(|(link, _)| (link, LinkGauges::default()))
        .collect();
    nothing
}

/// No work is left; `open` keeps its registrations and connections.
async fn idle(engine: &TentEngine, registrations: u64, open: bool) {
    let mut wanted = nothing(engine);
    wanted.registrations = registrations;
    let start = Instant::now();
    loop {
        let mut gauges = engine.gauges();
        if open {
            for (_, link) in &mut gauges.links {
                link.connections = 0;
                link.peer_credit_bytes = 0;
                link.peer_credit_requests = 0;
            }
        }
        if gauges == wanted && engine.tasks_in_use() == 0 {
            return;
        }
        let tasks = engine.tasks_in_use();
        assert!(start.elapsed() < BUDGET, "drift: {tasks} tasks, {gauges:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a part of this test in a process of its own, which has nothing but what the part opens.
fn part(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(PART, name);
    command
}

fn is_part(name: &str) -> bool {
    env::var(PART).is_ok_and(|part| part == name)
}

fn soak(seconds: u64) {
    let seed: u64 = match env::var(SEED) {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => rand::random(),
    };
    println!("{SECONDS}={seconds} {SEED}={seed}");
    let ran = part("a_soak")
        .env(SECONDS, seconds.to_string())
        .env(SEED, seed.to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    let complained = String::from_utf8_lossy(&ran.stderr);
    println!("{said}");
    assert!(
        ran.status.success() && said.contains("nothing is left"),
        "repeat with {SECONDS}={seconds} {SEED}={seed}\n{complained}"
    );
}

#[test]
fn for_some_seconds_no_byte_is_wrong_and_nothing_is_left() {
    soak(10);
}

#[test]
#[ignore = "ten minutes long"]
fn for_minutes_no_byte_is_wrong_and_nothing_is_left() {
    soak(env::var(SECONDS).map_or(600, |seconds| seconds.parse().unwrap()));
}

/// Part of the tests above: a peer that may be killed.
#[test]
#[ignore = "needs a parent"]
fn a_peer() {
    if is_part("a_peer") {
        child::run();
    }
}

/// Part of the tests above: everybody but the peers that are killed.
#[test]
#[ignore = "needs a parent"]
fn a_soak() {
    if !is_part("a_soak") {
        return;
    }
    let number = |name| env::var(name).unwrap().parse::<u64>().unwrap();
    let (seconds, seed) = (number(SECONDS), number(SEED));
    let before = Holdings::at_first();
    let resident = process::resident_bytes();
    let runtime = Runtime::new().unwrap();
    let tally = runtime.block_on(run(Duration::from_secs(seconds), seed));
    runtime.shutdown_timeout(BUDGET);
    before.must_be_back();
    let kept = process::resident_bytes().saturating_sub(resident);
    assert!(kept < 128 << 20, "memory stays: {kept} bytes");
    println!("{tally:?}\n{kept} bytes are kept");
    tally.must_be_much();
    println!("nothing is left");
}

async fn run(time: Duration, seed: u64) -> Tally {
    let mut draw = StdRng::seed_from_u64(seed);
    let ledger = Arc::new(Ledger::new(time));
    let mut children = Vec::new();
    for _ in 0..2 {
        children.push(Child::start(draw.random()));
    }
    let mut owners = Vec::new();
    for _ in 0..2 {
        let engine = builder().build().await.unwrap();
        owners.push(Owner::start(engine, Arc::clone(&ledger), draw.random()).await);
    }
    let names: Arc<[String]> = children
        .iter()
        .map(Child::name)
        .chain(owners.iter().map(Owner::name))
        .map(str::to_owned)
        .collect();
    // Two callers share each engine. One lets only so much go at once, the other has the network alone.
    let mut narrow = AdmissionConfig::default();
    narrow.most_requests = Some(6);
    narrow.most_bytes = Some(4 << 20);
    let shared = builder().admission(narrow).build().await.unwrap();
    let network = TentEngine::builder().patience(PATIENCE);
    let network = network.transport(TcpTransport::new(one_lane()));
    let engines = [shared, network.build().await.unwrap()];
    let mut callers = Vec::new();
    for number in 0..CALLERS {
        let engine = engines[number / 2].clone();
        let names = Arc::clone(&names);
        let caller = Caller::new(number, engine, names, Arc::clone(&ledger), draw.random());
        callers.push(tokio::spawn(caller.await.run()));
    }
    let killer = {
        let (ledger, mut draw) = (Arc::clone(&ledger), StdRng::seed_from_u64(draw.random()));
        tokio::task::spawn_blocking(move || {
            // The last one lives from beginning to end.
            let mut kills = 0;
            while ledger.goes_on() {
                let pause = Duration::from_millis(draw.random_range(500..2_500));
                ledger.sleep(pause);
                if draw.random_bool(0.3) {
                    let child = draw.random_range(0..children.len());
                    children[child].stop_for(Duration::from_millis(draw.random_range(10..400)));
                } else {
                    children[0].kill_and_restart(draw.random());
                    kills += 1;
                }
            }
            (children, kills)
        })
    };

    let mut tally = Tally::default();
    let mut resident = None;
    while ledger.goes_on() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let early = callers.iter().any(JoinHandle::is_finished);
        if early && ledger.goes_on() || owners.iter().any(Owner::has_ended) {
            ledger.stop();
        }
        if resident.is_none() && ledger.elapsed() > time / 3 {
            resident = Some(process::resident_bytes());
        }
    }
    let mut ended = Vec::new();
    for caller in callers {
        let (caller, counted) = caller.await.unwrap();
        tally.add(&counted);
        ended.push(caller);
    }
    let grown = process::resident_bytes().saturating_sub(resident.unwrap_or(u64::MAX));
    // In a few seconds it has not yet touched all that it works with.
    let settled = time >= Duration::from_secs(60);
    assert!(!settled || grown < 128 << 20, "memory grows: {grown} bytes");
    let (children, kills) = killer.await.unwrap();
    tally.kills = kills;

    for (engine, registrations) in engines.iter().zip([2, 2]) {
        idle(engine, registrations, true).await;
    }
    for caller in ended {
        caller.end().await;
    }
    for engine in engines {
        idle(&engine, 0, true).await;
        engine.shutdown(BUDGET).await.unwrap();
        idle(&engine, 0, false).await;
    }
    for owner in owners {
        owner.end().await;
    }
    let children: Vec<_> = children.into_iter().map(Child::end).collect();
    for left in children {
        assert_eq!(left, Ok(()), "a peer ends as it should");
    }
    ledger.must_agree();
    tally
}
