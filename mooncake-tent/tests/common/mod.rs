//! What the tests share: engines over real sockets, patterns, and waits that are bounded.
#![allow(dead_code, reason = "each file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

pub(crate) mod names;
pub(crate) mod servers;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use mooncake_tent::{
    Batch, Buffer, Incarnation, LocalBuffer, Memory, Permission, RegisterOptions, RemoteRange,
    Request, Segment, TcpConfig, TcpTransport, TentEngine, TransferEngine, TransferError,
    transport::Outcome,
};

/// Nothing here takes so long unless it hangs.
pub(crate) const BUDGET: Duration = Duration::from_secs(20);

pub(crate) async fn engine() -> TentEngine {
    engine_with(TcpConfig::default()).await
}

pub(crate) async fn engine_with(config: TcpConfig) -> TentEngine {
    let builder = TentEngine::builder().transport(TcpTransport::new(config));
    builder.build().await.unwrap()
}

/// One connection to each peer, so that requests are answered in their order.
pub(crate) fn one_lane() -> TcpConfig {
    let mut config = TcpConfig::default();
    config.lanes_per_peer = 1;
    config
}

/// An engine that offers nothing itself but sends its peers to `data`.
pub(crate) async fn engine_at(data: SocketAddr) -> TentEngine {
    let mut config = TcpConfig::default();
    config.advertise = Some(data.to_string());
    engine_with(config).await
}

pub(crate) async fn buffer(engine: &TentEngine, len: usize, permission: Permission) -> Buffer {
    let memory = Memory::allocate(len).unwrap();
    let options = RegisterOptions::new(permission);
    engine.register_memory(memory, options).await.unwrap()
}

/// The books of a buffer, which outlive it.
pub(crate) fn books(buffer: &Buffer) -> Arc<LocalBuffer> {
    Arc::clone(buffer.slice(0..1).unwrap().buffer())
}

pub(crate) async fn open(engine: &TentEngine, owner: &TentEngine) -> Segment {
    engine
        .open_segment(owner.segment_name(), BUDGET)
        .await
        .unwrap()
}

pub(crate) fn address(buffer: &Buffer, offset: u64) -> RemoteRange {
    RemoteRange::Address(buffer.memory().address() + offset)
}

pub(crate) fn place(buffer: &Buffer, offset: u64) -> RemoteRange {
    RemoteRange::Registered {
        registration: buffer.id(),
        generation: Some(buffer.generation()),
        offset,
    }
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8)
        .collect()
}

pub(crate) fn bytes(buffer: &Buffer, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    buffer.memory().read_at(offset, &mut bytes);
    bytes
}

/// Compares without printing megabytes.
pub(crate) fn assert_same(found: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let differs = found.iter().zip(wanted).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first byte that differs");
}

pub(crate) fn submit(engine: &TentEngine, requests: Vec<Request>) -> Batch {
    let mut batch = engine.allocate_batch(requests.len());
    engine.submit_transfer(&mut batch, requests).unwrap();
    batch
}

pub(crate) async fn terminal(batch: &Batch) {
    let ended = tokio::time::timeout(BUDGET, batch.terminal()).await;
    assert!(ended.is_ok(), "law 2: every task ends");
}

pub(crate) async fn quiescent(batch: &Batch) {
    let quiet = tokio::time::timeout(BUDGET, batch.quiescent()).await;
    assert!(quiet.is_ok(), "it does not become quiet");
}

/// Submits one request and waits for its end.
pub(crate) async fn once(engine: &TentEngine, request: Request) -> Outcome {
    let batch = submit(engine, vec![request]);
    terminal(&batch).await;
    batch.outcome(0).unwrap()
}

pub(crate) fn error(outcome: Option<Outcome>) -> TransferError {
    match outcome {
        Some(Outcome::Failed(error)) => error,
        other => panic!("it should have failed: {other:?}"),
    }
}

pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < BUDGET, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Threads of this process whose name begins like this.
pub(crate) fn threads(prefix: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

/// Bytes of an answer.
pub(crate) const ANSWER: usize = 40;
/// Credit that never runs out.
pub(crate) const PLENTY: u64 = 1 << 40;

/// Of the protocol that lanes speak.
pub(crate) const VERSION: u16 = 3;

pub(crate) fn hello(version: u16, initiator: u64, target: Incarnation, lane: u64) -> Vec<u8> {
    let mut hello = b"MCTL".to_vec();
    hello.extend(version.to_le_bytes());
    hello.extend([0; 2]);
    for number in [initiator, target.get(), lane, 64, 1 << 20] {
        hello.extend(number.to_le_bytes());
    }
    hello
}

/// The hello of a connection that carries fences only.
pub(crate) fn errand(initiator: u64, target: Incarnation, lane: u64) -> Vec<u8> {
    let mut errand = hello(VERSION, initiator, target, lane);
    errand[6] = 1;
    errand
}

pub(crate) fn hello_answer(status: u16, target: Incarnation) -> Vec<u8> {
    let granted = if status == 0 { PLENTY } else { 0 };
    let mut answer = b"MCTL\x03\0".to_vec();
    answer.extend(status.to_le_bytes());
    for number in [target.get(), 1 << 40, 0, granted, granted] {
        answer.extend(number.to_le_bytes());
    }
    answer
}

pub(crate) fn request(verb: u8, tag: u64, buffer: &Buffer, offset: u64, length: u64) -> Vec<u8> {
    request_until(verb, tag, buffer, offset..offset.wrapping_add(length), 0)
}

/// With a deadline in µs since the hello.
pub(crate) fn request_until(
    verb: u8,
    tag: u64,
    buffer: &Buffer,
    range: std::ops::Range<u64>,
    deadline_us: u64,
) -> Vec<u8> {
    let mut request = vec![verb, 0, 0, 0];
    request.extend(buffer.generation().0.to_le_bytes());
    let length = range.end.wrapping_sub(range.start);
    for number in [tag, buffer.id().0, range.start, length, deadline_us] {
        request.extend(number.to_le_bytes());
    }
    request
}

/// A request to fence a lane, made by hand.
pub(crate) fn fence(tag: u64, lane: u64) -> Vec<u8> {
    let mut fence = vec![3, 0, 0, 0, 0, 0, 0, 0];
    for number in [tag, lane, 0, 0, 0] {
        fence.extend(number.to_le_bytes());
    }
    fence
}

pub(crate) fn answer(status: u8, verb: u8, tag: u64, length: u64) -> Vec<u8> {
    let mut answer = vec![status, verb, 0, 0, 0, 0, 0, 0];
    for number in [tag, length, PLENTY, PLENTY] {
        answer.extend(number.to_le_bytes());
    }
    answer
}

/// What an answer says beside its grants.
pub(crate) fn said(answer: &[u8]) -> &[u8] {
    &answer[..24]
}

/// A lane to `owner` made by hand, after its hello.
pub(crate) fn raw_lane(owner: &TentEngine, segment: &Segment, lane: u64) -> TcpStream {
    let mut socket = raw_socket(segment);
    socket
        .write_all(&hello(VERSION, 0xabcd, owner.incarnation(), lane))
        .unwrap();
    let mut welcome = [0; 48];
    socket.read_exact(&mut welcome).unwrap();
    assert_eq!(welcome[6..8], [0, 0], "accepted");
    socket
}

pub(crate) fn raw_socket(segment: &Segment) -> TcpStream {
    let descriptor = segment.descriptor();
    let socket = TcpStream::connect(descriptor.peer().endpoint("tcp").unwrap()).unwrap();
    socket.set_read_timeout(Some(BUDGET)).unwrap();
    socket
}

/// A target made by hand: says hello to each lane for `incarnation`, reads `requests` bytes, and
/// leaves the rest to `then`, which gets the number of the lane.
pub(crate) fn fake_target(
    listener: TcpListener,
    incarnation: Incarnation,
    then: impl Fn(usize, TcpStream) + Send + Sync + 'static,
) {
    let then = Arc::new(then);
    std::thread::spawn(move || {
        for (number, socket) in listener.incoming().enumerate() {
            let (Ok(mut socket), then) = (socket, Arc::clone(&then)) else {
                return;
            };
            std::thread::spawn(move || {
                let mut hello = [0; 48];
                if socket.read_exact(&mut hello).is_ok()
                    && socket.write_all(&hello_answer(0, incarnation)).is_ok()
                {
                    then(number, socket);
                }
            });
        }
    });
}

/// An engine that its peers reach through a relay, under these rules.
#[cfg(feature = "conformance")]
pub(crate) async fn relayed(
    config: TcpConfig,
    plan: impl Fn(u64) -> mooncake_tent::conformance::Rules + Clone + Send + Sync + 'static,
) -> (TentEngine, mooncake_tent::conformance::Relay) {
    relayed_beside(config, plan, |engine| engine).await
}

/// The same, with other links beside.
#[cfg(feature = "conformance")]
pub(crate) async fn relayed_beside(
    config: TcpConfig,
    plan: impl Fn(u64) -> mooncake_tent::conformance::Rules + Clone + Send + Sync + 'static,
    beside: impl Fn(mooncake_tent::TentEngineBuilder) -> mooncake_tent::TentEngineBuilder,
) -> (TentEngine, mooncake_tent::conformance::Relay) {
    loop {
        // Each needs the address of the other; somebody else may take the one that was free.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        drop(listener);
        let any = "127.0.0.1:0".parse().unwrap();
        let relay = mooncake_tent::conformance::Relay::start(any, target, plan.clone()).unwrap();
        let mut config = config.clone();
        config.listen = Some(target);
        config.advertise = Some(relay.address().to_string());
        let builder = TentEngine::builder().transport(TcpTransport::new(config));
        if let Ok(owner) = beside(builder).build().await {
            return (owner, relay);
        }
    }
}

/// Reads and drops everything until the other side closes.
pub(crate) fn swallow(mut socket: TcpStream) {
    let mut sink = vec![0; 1 << 16];
    while socket.read(&mut sink).is_ok_and(|read| read > 0) {}
}
