//! Two engines in one process: one offers a megabyte, the other writes to it and reads it back.
//!
//! `cargo run -p mooncake-tent --example copy`

use std::{
    error::Error,
    time::{Duration, Instant},
};

use mooncake_tent::{
    Batch, Memory, Permission, RegisterOptions, RemoteRange, Request, TcpTransport, TentEngine,
    TransferEngine,
};

const LEN: usize = 1 << 20;
const BUDGET: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let build = || {
        let builder = TentEngine::builder().transport(TcpTransport::default());
        builder.build()
    };
    let owner = build().await?;
    let options = RegisterOptions::new(Permission::PeersReadWrite);
    let offered = owner.register_memory(Memory::allocate(LEN)?, options);
    let offered = offered.await?;
    println!("{} offers {LEN} bytes", owner.segment_name());

    let engine = build().await?;
    let private = RegisterOptions::new(Permission::Local);
    let source: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    let source = Memory::from_vec(source)?;
    let source = engine.register_memory(source, private.clone()).await?;
    let copy = engine.register_memory(Memory::allocate(LEN)?, private);
    let copy = copy.await?;
    let segment = engine.open_segment(owner.segment_name(), BUDGET).await?;
    let at = RemoteRange::Address(offered.memory().address());

    let write = Request::write(source.all()?, &segment, at);
    moved("written", run(&engine, write).await?)?;
    let read = Request::read(copy.all()?, &segment, at);
    moved("read back", run(&engine, read).await?)?;

    let (mut sent, mut received) = (vec![0; LEN], vec![0; LEN]);
    source.memory().read_at(0, &mut sent);
    copy.memory().read_at(0, &mut received);
    println!(
        "the copies are {}",
        if sent == received {
            "equal"
        } else {
            "different"
        }
    );
    engine.shutdown(BUDGET).await?;
    owner.shutdown(BUDGET).await?;
    Ok(())
}

async fn run(engine: &TentEngine, request: Request) -> Result<(Batch, Duration), Box<dyn Error>> {
    let start = Instant::now();
    let mut batch = engine.allocate_batch(1);
    engine.submit_transfer(&mut batch, vec![request])?;
    batch.terminal().await;
    Ok((batch, start.elapsed()))
}

fn moved(how: &str, (batch, took): (Batch, Duration)) -> Result<(), Box<dyn Error>> {
    match batch.outcome(0) {
        Some(outcome) if outcome.is_completed() => {
            println!("{how} in {took:?}");
            Ok(())
        }
        other => Err(format!("not {how}: {other:?}").into()),
    }
}
