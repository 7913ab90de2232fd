//! Puts blocks from registered memory and gets them back, over real sockets, in one process.

use std::time::{Duration, Instant};

use mooncake_master::{Master, MasterConfig};
use mooncake_store::{
    Client, ClientOptions, GetInto, Node, NodeOptions, PutFrom, RealClient, core::PutOptions,
};

const BLOCK: u64 = 1 << 20;
const BLOCKS: u64 = 32;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = MasterConfig {
        listen: "127.0.0.1:0".to_owned(),
        admin_listen: "127.0.0.1:0".to_owned(),
        ..MasterConfig::default()
    };
    let master = Master::start(config).await?;
    let address = master.address().to_string();
    let node = Node::start(&address, NodeOptions::new("node", 2 * BLOCK * BLOCKS)).await?;
    let client = RealClient::connect(&address, ClientOptions::default()).await?;

    let source = client.allocate((BLOCK * BLOCKS) as usize).await?;
    let target = client.allocate((BLOCK * BLOCKS) as usize).await?;
    source.memory().write_at(BLOCK, b"the second block");
    let place = |i: u64| i * BLOCK..(i + 1) * BLOCK;
    let key = |i: u64| format!("block-{i}");

    let mut puts = Vec::new();
    let mut gets = Vec::new();
    for i in 0..BLOCKS {
        puts.push(PutFrom::new(key(i), source.slice(place(i))?));
        gets.push(GetInto::new(key(i), target.slice(place(i))?));
    }
    let rate = |start: Instant| (BLOCK * BLOCKS) as f64 / start.elapsed().as_secs_f64() / 1e9;
    let start = Instant::now();
    for result in client.put_from(puts, PutOptions::default()).await {
        result?;
    }
    println!("put {BLOCKS} blocks of 1 MiB at {:.2} GB/s", rate(start));
    let start = Instant::now();
    for result in client.get_into(gets).await {
        result?;
    }
    println!("got them back at {:.2} GB/s", rate(start));
    let mut text = [0; 16];
    target.memory().read_at(BLOCK, &mut text);
    println!("block 1 begins with {:?}", text.escape_ascii().to_string());

    client.close(Duration::from_secs(1)).await?;
    node.shutdown(Duration::from_secs(1)).await?;
    master.shutdown().await;
    Ok(())
}
