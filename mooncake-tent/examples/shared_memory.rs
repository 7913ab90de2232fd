//! Two processes of one host: one offers memory, the other reads and writes it without a socket
//! carrying a byte of it. Says how fast, beside a plain copy within one process.
//!
//! ```text
//! cargo run --release -p mooncake-tent --example shared_memory
//! ```
#![allow(clippy::unwrap_used, reason = "an example ends at its first problem")]

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mooncake_tent::{
    Buffer, CmaTransport, Memory, Permission, Qos, RegisterOptions, RemoteRange, Request, Segment,
    ShmTransport, TentEngine, TransferEngine, transport::Op,
};

const BUDGET: Duration = Duration::from_secs(10);
/// More than caches hold, so that each block is cold when its turn comes.
const OFFERED: usize = 256 << 20;

#[tokio::main]
async fn main() {
    if env::args().nth(1).as_deref() == Some("offer") {
        return offer().await;
    }
    let (mut owner, name) = start_owner();
    for link in ["shm", "cma"] {
        let builder = TentEngine::builder();
        let engine = match link {
            "shm" => builder.transport(ShmTransport::default()),
            _ => builder.transport(CmaTransport::default()),
        };
        let engine = engine.build().await.unwrap();
        let segment = engine.open_segment(&name, BUDGET).await.unwrap();
        println!(
            "over {}",
            engine.explain(Op::Read, 1 << 20, &Qos::new(), &segment)
        );
        let memory = Memory::allocate(OFFERED).unwrap();
        memory.prefault().unwrap();
        let options = RegisterOptions::new(Permission::Local);
        let local = engine.register_memory(memory, options).await.unwrap();
        tokio::task::block_in_place(|| measure(&engine, &segment, &local));
    }
    owner.kill().unwrap();
    owner.wait().unwrap();
}

async fn offer() {
    let builder = TentEngine::builder().transport(ShmTransport::default());
    let engine = builder
        .transport(CmaTransport::default())
        .build()
        .await
        .unwrap();
    let memory = Memory::allocate(OFFERED).unwrap();
    memory.prefault().unwrap();
    let options = RegisterOptions::new(Permission::PeersReadWrite);
    let offered = engine.register_memory(memory, options).await.unwrap();
    offered.memory().write_at(0, b"from the owner");
    println!("{}", engine.segment_name());
    std::future::pending().await
}

fn start_owner() -> (Child, String) {
    let mut command = Command::new(env::current_exe().unwrap());
    let mut owner = command.arg("offer").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let name = lines.next().unwrap().unwrap();
    (owner, name)
}

fn measure(engine: &TentEngine, segment: &Segment, local: &Buffer) {
    let descriptor = segment.descriptor();
    let offered = descriptor.buffers().next().unwrap();
    let place = |offset| RemoteRange::Registered {
        registration: offered.registration,
        generation: Some(offered.generation),
        offset,
    };
    let read = |offset: u64, length: u64| {
        let local = local.slice(offset..offset + length).unwrap();
        Request::read(local, segment, place(offset))
    };
    let write = |offset: u64, length: u64| {
        let local = local.slice(offset..offset + length).unwrap();
        Request::write(local, segment, place(offset))
    };
    once(engine, read(0, 14));
    let mut text = [0; 14];
    local.memory().read_at(0, &mut text);
    assert_eq!(&text, b"from the owner");

    let mut plain = vec![1_u8; OFFERED];
    println!("   block      read          write         plain copy");
    for block in [4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20] {
        let all = OFFERED as u64;
        let blocks = || (0..all / block).map(|i| i * block).take(20_000);
        let read = timed(blocks(), |offset| once(engine, read(offset, block)));
        let write = timed(blocks(), |offset| once(engine, write(offset, block)));
        let memory = local.memory();
        let copied = timed(blocks(), |offset| {
            let at = offset as usize;
            memory.read_at(offset, &mut plain[at..at + block as usize]);
        });
        let show = |took: Duration| {
            let speed = block as f64 / took.as_secs_f64() / 1e9;
            format!("{speed:5.1} GB/s {:>7.1} µs", took.as_secs_f64() * 1e6)
        };
        println!(
            "{block:>8}  {}  {}  {}",
            show(read),
            show(write),
            show(copied)
        );
    }
}

fn once(engine: &TentEngine, request: Request) {
    let mut batch = engine.allocate_batch(1);
    engine.submit_transfer(&mut batch, vec![request]).unwrap();
    assert!(batch.wait(BUDGET));
    let outcome = batch.outcome(0).unwrap();
    assert!(outcome.is_completed(), "{outcome:?}");
}

/// The median time of one of them.
fn timed(offsets: impl Iterator<Item = u64>, mut once: impl FnMut(u64)) -> Duration {
    let mut times: Vec<_> = offsets
        .map(|offset| {
            let start = Instant::now();
            once(offset);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}
