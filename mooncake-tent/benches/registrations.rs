//! What one registration more costs, by how many there are, while peers are told of it.
//!
//! `cargo bench -p mooncake-tent --bench registrations -- [PEERS]` prints a row for each count.

use std::time::{Duration, Instant};

use mooncake_tent::{
    Buffer, Memory, Permission, RegisterOptions, Segment, TentEngine, TransferEngine,
};

const BUDGET: Duration = Duration::from_secs(60);
/// So many are timed together.
const ROUND: usize = 1_000;

fn main() {
    let asked = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(measure(asked.unwrap_or(100)));
}

async fn measure(peers: usize) {
    let owner = bare().await;
    let mut opened: Vec<(TentEngine, Segment)> = Vec::new();
    for _ in 0..peers {
        let peer = bare().await;
        let segment = peer.open_segment(owner.segment_name(), BUDGET).await;
        opened.push((peer, segment.expect("it answers")));
    }
    println!("registered  peers  registration  until all peers know, each");
    let mut buffers: Vec<Buffer> = Vec::new();
    for count in [0, 1_000, 10_000, 30_000] {
        while buffers.len() < count {
            buffers.push(register(&owner, memory()).await);
        }
        wait(&opened, buffers.len()).await;
        let memories: Vec<_> = (0..ROUND).map(|_| memory()).collect();
        let begun = Instant::now();
        for memory in memories {
            buffers.push(register(&owner, memory).await);
        }
        let registered = begun.elapsed();
        wait(&opened, buffers.len()).await;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / ROUND as f64;
        println!(
            "{count:>10}  {peers:>5}  {:>9.2} µs  {:>23.2} µs",
            each(registered),
            each(begun.elapsed())
        );
    }
}

async fn bare() -> TentEngine {
    let engine = TentEngine::builder().build().await;
    engine.expect("it starts")
}

fn memory() -> Memory {
    Memory::from_vec(vec![0; 64]).expect("it is not empty")
}

async fn register(engine: &TentEngine, memory: Memory) -> Buffer {
    let options = RegisterOptions::new(Permission::PeersRead);
    let registered = engine.register_memory(memory, options).await;
    registered.expect("memory can be registered")
}

async fn wait(opened: &[(TentEngine, Segment)], count: usize) {
    let knows = |(_, segment): &(TentEngine, Segment)| segment.descriptor().buffer_count() == count;
    while !opened.iter().all(knows) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
