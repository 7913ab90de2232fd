//! How long it takes until another link has what a dead one left.
//!
//! `cargo bench -p mooncake-tent --features conformance --bench failover -- [ROUNDS]` prints a row for
//! each way to die: median and maximum of the time from there to the last byte over shared memory,
//! beside what the same request takes over shared memory alone. Of a silent link the time counts from
//! the request, which has 200 ms of patience.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mooncake_tent::{
    Batch, Buffer, Hint, Memory, Permission, RegisterOptions, RemoteRange, Request, Segment,
    ShmTransport, TcpConfig, TcpTransport, TentEngine, TransferEngine,
    conformance::{Relay, Rules},
    transport::Op,
};

const LEN: usize = 1 << 20;
const BUDGET: Duration = Duration::from_secs(30);
/// What an engine grants a silent link.
const PATIENCE: Duration = Duration::from_millis(200);

/// How the link fails.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// The connection ends while bytes are under way.
    Cut,
    /// Nobody listens any more when the request is made.
    Gone,
    /// Nothing comes any more, and nobody says so.
    Silent,
}

fn main() {
    let asked = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let rounds = asked.unwrap_or(20);
    println!("                                  from there to the last byte elsewhere     alone");
    for (death, op) in [
        (Death::Cut, Op::Read),
        (Death::Gone, Op::Read),
        (Death::Gone, Op::Write),
        (Death::Silent, Op::Read),
    ] {
        let (mut times, mut alone) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (took, without) = runtime.block_on(round(death, op));
            times.push(took);
            alone.push(without);
        }
        times.sort();
        alone.sort();
        let name = match death {
            Death::Cut => "the connection is reset",
            Death::Gone => "nobody listens any more",
            Death::Silent => "silence, from the request",
        };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{name:<26}{op:<6?}  median {:>7.2} ms  maximum {:>7.2} ms  {:>7.2} ms",
            ms(times[rounds / 2]),
            ms(times[rounds - 1]),
            ms(alone[rounds / 2]),
        );
    }
}

async fn round(death: Death, op: Op) -> (Duration, Duration) {
    let held = Arc::new(AtomicBool::new(matches!(death, Death::Cut | Death::Silent)));
    let (owner, relay) = owner(&held).await;
    let engine = TentEngine::builder()
        .patience(PATIENCE)
        .transport(TcpTransport::default())
        .transport(ShmTransport::default());
    let engine = engine.build().await.expect("it starts");
    let local = register(&engine, Permission::Local).await;
    let remote = register(&owner, Permission::PeersReadWrite).await;
    let contents = pattern();
    let (from, to) = match op {
        Op::Read => (&remote, &local),
        Op::Write => (&local, &remote),
    };
    from.memory().write_at(0, &contents);
    let segment = engine.open_segment(owner.segment_name(), BUDGET).await;
    let segment = segment.expect("it answers");

    let over = |link| request(op, &local, &remote, &segment).hint(Hint::soft(link));
    ended(submit(&engine, over("shm"))).await;
    let begun = Instant::now();
    ended(submit(&engine, over("shm"))).await;
    let alone = begun.elapsed();
    to.memory().write_at(0, &vec![0; LEN]);

    let died;
    let batch = match death {
        Death::Cut | Death::Silent => {
            let before = relay.counts().down_bytes;
            let asked = Instant::now();
            let batch = submit(&engine, over("tcp"));
            // It is asked for as soon as somebody waits.
            let held_up = tokio::time::timeout(Duration::from_millis(20), batch.terminal()).await;
            assert!(held_up.is_err(), "it is held up");
            assert!(relay.counts().down_bytes > before, "it has begun");
            held.store(false, Ordering::Relaxed);
            if let Death::Cut = death {
                relay.cut_all();
                died = Instant::now();
            } else {
                died = asked;
            }
            batch
        }
        Death::Gone => {
            ended(submit(&engine, over("tcp"))).await;
            to.memory().write_at(0, &vec![0; LEN]);
            drop(relay);
            died = Instant::now();
            submit(&engine, over("tcp"))
        }
    };
    ended(batch).await;
    let took = died.elapsed();
    let mut found = vec![0; LEN];
    to.memory().read_at(0, &mut found);
    assert!(found == contents, "every byte is there");
    (took, alone)
}

/// Reached over shared memory, and over TCP through a relay that holds up what comes back on
/// connections made while `held`.
async fn owner(held: &Arc<AtomicBool>) -> (TentEngine, Relay) {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let target = listener.local_addr().expect("it has an address");
        drop(listener);
        let any = "127.0.0.1:0".parse().expect("an address");
        let held = Arc::clone(held);
        let relay = Relay::start(any, target, move |_| {
            let mut rules = Rules::default();
            if held.load(Ordering::Relaxed) {
                rules.down.pause_after = Some(LEN as u64 / 2);
            }
            rules
        });
        let relay = relay.expect("it listens");
        let mut config = TcpConfig::default();
        config.listen = Some(target);
        config.advertise = Some(relay.address().to_string());
        let builder = TentEngine::builder().transport(ShmTransport::default());
        // Somebody else may have taken the port.
        if let Ok(owner) = builder.transport(TcpTransport::new(config)).build().await {
            return (owner, relay);
        }
    }
}

fn pattern() -> Vec<u8> {
    (0..LEN).map(|at| (at * 31 % 251) as u8 + 1).collect()
}

async fn register(engine: &TentEngine, permission: Permission) -> Buffer {
    let memory = Memory::allocate(LEN).expect("there is memory");
    let registered = engine.register_memory(memory, RegisterOptions::new(permission));
    registered.await.expect("memory can be registered")
}

fn request(op: Op, local: &Buffer, remote: &Buffer, segment: &Segment) -> Request {
    let local = local.slice(0..LEN as u64).expect("it has so many bytes");
    let place = RemoteRange::Registered {
        registration: remote.id(),
        generation: None,
        offset: 0,
    };
    match op {
        Op::Read => Request::read(local, segment, place),
        Op::Write => Request::write(local, segment, place),
    }
}

fn submit(engine: &TentEngine, request: Request) -> Batch {
    let mut batch = engine.allocate_batch(1);
    let submitted = engine.submit_transfer(&mut batch, vec![request]);
    submitted.expect("there is a way");
    batch
}

async fn ended(batch: Batch) {
    batch.terminal().await;
    let outcome = batch.outcome(0).expect("it has ended");
    assert!(outcome.is_completed(), "{outcome:?}");
}
