//! A writer tells two readers when the bytes of a whole submission have reached them.
//!
//! `cargo run -p mooncake-tent --example notify`

use std::{error::Error, time::Duration};

use mooncake_tent::{
    Buffer, Memory, Notification, Permission, RegisterOptions, RemoteRange, Request, TcpTransport,
    TentEngine, TransferEngine,
};

const LEN: usize = 1 << 20;
const BUDGET: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let writer = engine().await?;
    let readers = [engine().await?, engine().await?];
    let source = Memory::from_vec(vec![7; LEN])?;
    let source = register(&writer, source, Permission::Local).await?;

    let mut offered = Vec::new();
    let mut requests = Vec::new();
    for reader in &readers {
        let memory = Memory::allocate(LEN)?;
        let buffer = register(reader, memory, Permission::PeersReadWrite).await?;
        let segment = writer.open_segment(reader.segment_name(), BUDGET).await?;
        let at = RemoteRange::Address(buffer.memory().address());
        requests.push(Request::write(source.all()?, &segment, at));
        offered.push(buffer);
    }
    let mut batch = writer.allocate_batch(requests.len());
    let ready = Notification::new("ready", "layer 0");
    let announcement = writer.submit_transfer_and_notify(&mut batch, requests, ready)?;

    // Whoever is told finds the bytes.
    for (reader, buffer) in readers.iter().zip(&offered) {
        let told = tokio::time::timeout(BUDGET, reader.next_notification()).await?;
        let mut bytes = vec![0; LEN];
        buffer.memory().read_at(0, &mut bytes);
        let message = String::from_utf8_lossy(&told.notification.message);
        let whole = bytes.iter().all(|byte| *byte == 7);
        println!(
            "{} has {message:?} from {}: {}",
            reader.segment_name(),
            told.segment,
            if whole { "whole" } else { "not whole" }
        );
        // It answers by the name that it was given.
        let back = reader.open_segment(&told.segment, BUDGET).await?;
        let thanks = Notification::new("thanks", message.as_bytes());
        reader.send_notification(&back, thanks, BUDGET).await?;
    }
    announcement.delivered().await?;
    println!("{} answers", writer.receive_notifications().len());
    for engine in readers.iter().chain([&writer]) {
        engine.shutdown(BUDGET).await?;
    }
    Ok(())
}

async fn engine() -> mooncake_tent::Result<TentEngine> {
    let builder = TentEngine::builder().transport(TcpTransport::default());
    builder.build().await
}

async fn register(
    engine: &TentEngine,
    memory: Memory,
    permission: Permission,
) -> mooncake_tent::Result<Buffer> {
    let options = RegisterOptions::new(permission);
    engine.register_memory(memory, options).await
}
