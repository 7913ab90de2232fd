//! Measures operations per second of one pipelined session over loopback, and of the state machine
//! alone for comparison.
//!
//! `cargo run --release -p mooncake-master --example session_throughput [seconds]`

use std::{
    error::Error,
    time::{Duration, Instant},
};

use mooncake_master::{
    Master, MasterConfig, Time,
    state::{self, Caller, ClientId, Command, Settings, State},
};
use mooncake_proto::master::{
    ClientFrame, ExistRequest, Hello, LookupRequest, MountSegmentRequest, Operation, Segment,
    event, master_client::MasterClient, operation::Operation as Request,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

const WINDOW: usize = 256;

fn key(n: usize) -> bytes::Bytes {
    // As long as the keys of inference engines.
    format!("{n:0107}").into_bytes().into()
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(2), |s| s.parse())?;
    let time = Duration::from_secs(seconds);
    let master = Master::start(MasterConfig {
        listen: "127.0.0.1:0".into(),
        admin_listen: "127.0.0.1:0".into(),
        ..MasterConfig::default()
    })
    .await?;
    let address = format!("http://{}", master.address());
    let client = MasterClient::new(Endpoint::from_shared(address)?.connect().await?);
    println!("session over loopback, one stream, {WINDOW} frames in flight:");
    for (what, frame, keys) in [
        ("exist, 1 operation a frame", 1, 1),
        ("exist, 16 operations a frame", 16, 1),
        ("exist, 128 keys an operation", 1, 128),
    ] {
        let request = |keys| {
            Request::Exist(ExistRequest {
                keys,
                ..Default::default()
            })
        };
        let rate = session(client.clone(), time, frame, keys, request).await?;
        print_rate(what, rate, keys);
    }
    let request = |keys| {
        Request::Lookup(LookupRequest {
            keys,
            ..Default::default()
        })
    };
    print_rate(
        "lookup (absent), 128 keys",
        session(client, time, 1, 128, request).await?,
        128,
    );
    master.shutdown().await;

    println!("the state machine alone, one core:");
    alone();
    Ok(())
}

fn print_rate(what: &str, operations: f64, keys: usize) {
    let per_key = operations * keys as f64;
    println!("  {what:32} {operations:>12.0} operations/s {per_key:>12.0} keys/s");
}

/// Operations per second.
async fn session(
    mut client: MasterClient<Channel>,
    time: Duration,
    frame: usize,
    keys: usize,
    request: impl Fn(Vec<bytes::Bytes>) -> Request + Send + 'static,
) -> Result<f64, Box<dyn Error>> {
    let (frames, outbound) = mpsc::channel(WINDOW);
    let hello = Hello {
        protocol: 1,
        client_incarnation: 1,
        ..Hello::default()
    };
    let first = ClientFrame {
        hello: Some(hello),
        ..ClientFrame::default()
    };
    frames.send(first).await?;
    let mut inbound = client
        .session(ReceiverStream::new(outbound))
        .await?
        .into_inner();
    let id = vec![1; 16].into();
    let segment = Some(Segment {
        id,
        name: "bench".into(),
        owner_incarnation: 1,
        length: 1 << 40,
        ..Segment::default()
    });
    let mount = Operation {
        number: 1,
        operation: Some(Request::MountSegment(MountSegmentRequest { segment })),
    };
    let frame_of = |operations| ClientFrame {
        operations,
        ..ClientFrame::default()
    };
    frames.send(frame_of(vec![mount])).await?;
    let began = Instant::now();
    let sending = tokio::spawn(async move {
        let mut number = 2;
        let all: Vec<_> = (0..4096).map(key).collect();
        while began.elapsed() < time {
            let operations = (0..frame).map(|_| {
                number += 1;
                let at = number as usize * keys % (all.len() - keys);
                Operation {
                    number,
                    operation: Some(request(all[at..at + keys].to_vec())),
                }
            });
            let frame = frame_of(operations.collect());
            if frames.send(frame).await.is_err() {
                break;
            }
        }
    });
    let mut answered = 0;
    while let Some(frame) = inbound.message().await? {
        let is_answer = |event: &&mooncake_proto::master::Event| {
            matches!(event.event, Some(event::Event::Answer(_)))
        };
        answered += frame.events.iter().filter(is_answer).count();
    }
    sending.await?;
    Ok(answered as f64 / began.elapsed().as_secs_f64())
}

fn alone() {
    const OBJECTS: usize = 1_000_000;
    const BATCH: usize = 128;
    let before = resident_bytes();
    let mut store = State::new(1, Settings::default());
    let client = ClientId(1);
    let hello = Command::Hello {
        client,
        tenant: String::new(),
        name: String::new(),
    };
    store.apply(Time::ZERO, &hello);
    let mut number = 0;
    let mut perform = |store: &mut State, operation| {
        number += 1;
        store.apply(Time(number), &Command::AcknowledgeBelow { client, number });
        let caller = Caller::Session { client, number };
        store
            .apply(Time(number), &Command::Perform { caller, operation })
            .answer
    };
    for id in 0..4 {
        let segment = state::SegmentIdentity {
            id: state::SegmentId([id; 16]),
            name: format!("segment-{id}"),
            owner: client,
            registration: 1,
            generation: 0,
            length: 1 << 40,
            owner_name: String::new(),
        };
        perform(&mut store, state::Operation::Mount(segment));
    }
    let keys: Vec<state::Key> = (0..OBJECTS).map(|n| state::Key(key(n))).collect();
    let with_keys = resident_bytes();

    let began = Instant::now();
    for batch in keys.chunks(BATCH) {
        let put = state::PutStart {
            items: batch.iter().map(|key| (key.clone(), 200_000)).collect(),
            replicas: 1,
            draw: began.elapsed().as_nanos() as u64,
            ..Default::default()
        };
        let state::Answer::Started(started) = perform(&mut store, state::Operation::PutStart(put))
        else {
            unreachable!("PutStart is answered by Started");
        };
        let ends = batch.iter().zip(started.results);
        let ends = ends.filter_map(|(key, of)| Some((key.clone(), of.ok()?.incarnation)));
        let ends = ends.collect();
        perform(&mut store, state::Operation::PutEnd(ends));
    }
    print_rate(
        "put_start + put_end, batches",
        OBJECTS as f64 / began.elapsed().as_secs_f64(),
        1,
    );
    let objects = store.counters().objects;
    let each = resident_bytes().saturating_sub(with_keys) / objects.max(1);
    println!("  {objects} objects with keys of 107 bytes take {each} bytes each");

    for (what, operation) in [
        ("exist, batches", state::Operation::Exist as fn(_) -> _),
        ("lookup + release, batches", state::Operation::Lookup),
    ] {
        let batches: Vec<_> = keys
            .chunks(BATCH)
            .map(|batch| operation(batch.to_vec()))
            .collect();
        let began = Instant::now();
        for batch in batches {
            if let state::Answer::Looked { lease, .. } = perform(&mut store, batch) {
                perform(&mut store, state::Operation::Release(vec![lease]));
            }
        }
        print_rate(what, OBJECTS as f64 / began.elapsed().as_secs_f64(), 1);
    }

    let began = Instant::now();
    for batch in keys.chunks(BATCH) {
        let items = batch.iter().map(|key| (key.clone(), None)).collect();
        perform(
            &mut store,
            state::Operation::Remove(state::Remove {
                items,
                barrier: false,
            }),
        );
    }
    print_rate(
        "remove, batches",
        OBJECTS as f64 / began.elapsed().as_secs_f64(),
        1,
    );
    drop(keys);
    let left = resident_bytes().saturating_sub(before) >> 20;
    println!("  {left} MiB more are resident than before, with all removed");
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
