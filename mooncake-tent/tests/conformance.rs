//! The laws on every link that this crate has, on links that misbehave, and through a relay.
#![cfg(all(
    feature = "conformance",
    feature = "file",
    feature = "host",
    feature = "tcp"
))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{net::SocketAddr, path::Path, time::Duration};

use mooncake_tent::{
    CmaTransport, HostConfig, InProcess, Memory, Permission, Reason, RegisterOptions, RemoteRange,
    Request, Retry, ShmTransport, StagingConfig, StagingTransport, TcpConfig, TcpTransport,
    TentEngine, TransferEngine,
    conformance::{Chaos, Fixture, Mischief, Relay, Rules, laws, suite},
    conformance_tests,
    file::{FileConfig, FileEngine, FileSegment, FileTransport},
    staging::PlainMover,
    transport::{Outcome, Transport},
};

/// What is lost costs no more than this.
const PATIENCE: Duration = Duration::from_secs(1);

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn engine(link: impl Transport) -> TentEngine {
    let builder = TentEngine::builder().patience(PATIENCE * 10);
    builder.transport(link).build().await.unwrap()
}

async fn impatient(link: impl Transport) -> TentEngine {
    let builder = TentEngine::builder().patience(PATIENCE);
    builder.transport(link).build().await.unwrap()
}

mod in_process {
    use super::*;

    async fn fixture() -> Fixture {
        let link = InProcess::new();
        let build = |link| TentEngine::builder().in_process(link).build();
        let initiator = build(link.another_end()).await.unwrap();
        Fixture::new(initiator, build(link.another_end()).await.unwrap())
    }

    conformance_tests!(fixture);

    #[tokio::test(flavor = "multi_thread")]
    async fn the_suite_runs_in_one_go() {
        suite(fixture).await;
    }
}

mod tcp {
    use super::*;

    async fn fixture() -> Fixture {
        let initiator = engine(TcpTransport::default()).await;
        Fixture::new(initiator, engine(TcpTransport::default()).await)
    }

    conformance_tests!(fixture);
}

mod shm {
    use super::*;

    async fn fixture() -> Fixture {
        let initiator = engine(ShmTransport::default()).await;
        Fixture::new(initiator, engine(ShmTransport::default()).await)
    }

    conformance_tests!(fixture);
}

mod cma {
    use super::*;

    async fn fixture() -> Fixture {
        let initiator = engine(CmaTransport::default()).await;
        Fixture::new(initiator, engine(CmaTransport::default()).await)
    }

    conformance_tests!(fixture);
}

/// Between memories that no link joins, so that bytes go through the stage.
mod staging {
    use super::*;

    fn config() -> StagingConfig {
        let mut config = StagingConfig::default();
        config.slot_bytes = 256 << 10;
        config.mover("fake", PlainMover)
    }

    async fn staged(link: impl Transport, config: StagingConfig) -> TentEngine {
        let builder = TentEngine::builder().patience(PATIENCE * 10);
        let builder = builder.transport(link);
        let builder = builder.transport(StagingTransport::new(config));
        builder.build().await.unwrap()
    }

    mod both_ends {
        use super::*;

        async fn fixture() -> Fixture {
            let initiator = staged(TcpTransport::default(), config()).await;
            let target = staged(TcpTransport::default(), config()).await;
            Fixture::new(initiator, target).with_locations("fake:0", "fake:1")
        }

        conformance_tests!(fixture);
    }

    mod our_end {
        use super::*;

        async fn fixture() -> Fixture {
            let initiator = staged(ShmTransport::default(), config()).await;
            let target = staged(ShmTransport::default(), config()).await;
            Fixture::new(initiator, target).with_locations("fake:0", "*")
        }

        conformance_tests!(fixture);
    }

    /// The link below breaks things.
    mod over_chaos {
        use super::*;

        async fn fixture() -> Fixture {
            let chaos = Chaos::new(ShmTransport::default(), Mischief::all(9));
            let initiator = TentEngine::builder().patience(PATIENCE).transport(chaos);
            let initiator = initiator.transport(StagingTransport::new(config()));
            let initiator = initiator.build().await.unwrap();
            let mut theirs = config();
            theirs.lease = PATIENCE;
            let target = staged(ShmTransport::default(), theirs).await;
            let fixture = Fixture::new(initiator, target).with_faults();
            fixture.with_locations("fake:0", "fake:1")
        }

        conformance_tests!(fixture);
    }

    /// One slot there, and pieces of an odd size.
    mod narrow_at_their_end {
        use super::*;

        async fn fixture() -> Fixture {
            let mut narrow = config();
            (narrow.slot_bytes, narrow.slots, narrow.window) = (65_537, 1, 2);
            let initiator = staged(CmaTransport::default(), config()).await;
            let target = staged(CmaTransport::default(), narrow).await;
            Fixture::new(initiator, target).with_locations("*", "fake:1")
        }

        conformance_tests!(fixture);
    }
}

/// Small windows and pieces, nothing done by who submits: everything waits for everything.
mod narrow_shm {
    use super::*;

    async fn fixture() -> Fixture {
        let mut config = HostConfig::default();
        config.window = 2;
        config.inline_bytes = 0;
        config.chunk_bytes = 65_537;
        let initiator = engine(ShmTransport::new(config.clone())).await;
        Fixture::new(initiator, engine(ShmTransport::new(config)).await)
    }

    conformance_tests!(fixture);
}

mod chaos_over_shm {
    use super::*;

    async fn fixture() -> Fixture {
        let chaos = Chaos::new(ShmTransport::default(), Mischief::all(7));
        let initiator = impatient(chaos).await;
        Fixture::new(initiator, engine(ShmTransport::default()).await).with_faults()
    }

    conformance_tests!(fixture);
}

/// A link that breaks things, with another one behind it.
mod chaos_over_shm_before_tcp {
    use super::*;

    async fn fixture() -> Fixture {
        let chaos = Chaos::new(ShmTransport::default(), Mischief::all(8));
        let initiator = TentEngine::builder().patience(PATIENCE).transport(chaos);
        let initiator = initiator.transport(TcpTransport::default());
        let target = TentEngine::builder().patience(PATIENCE * 10);
        let target = target.transport(ShmTransport::default());
        let target = target.transport(TcpTransport::default());
        let (initiator, target) = (initiator.build().await, target.build().await);
        Fixture::new(initiator.unwrap(), target.unwrap()).with_faults()
    }

    conformance_tests!(fixture);
}

/// Small windows and slices, one lane: everything waits for everything.
mod narrow_tcp {
    use super::*;

    async fn fixture() -> Fixture {
        let mut config = TcpConfig::default();
        config.lanes_per_peer = 1;
        config.window = 2;
        config.slice_bytes = 65_537;
        let initiator = engine(TcpTransport::new(config)).await;
        Fixture::new(initiator, engine(TcpTransport::default()).await)
    }

    conformance_tests!(fixture);
}

/// Lanes that take so little that what waits on one often goes to another.
mod crossing_tcp {
    use super::*;

    async fn fixture() -> Fixture {
        let mut config = TcpConfig::default();
        config.lanes_per_peer = 3;
        config.window_bytes = 100_000;
        config.slice_bytes = 10_007;
        let initiator = engine(TcpTransport::new(config)).await;
        Fixture::new(initiator, engine(TcpTransport::default()).await)
    }

    conformance_tests!(fixture);
}

/// A receiver that lets next to nothing be under way: most requests wait for credit.
mod poor_tcp {
    use super::*;

    async fn fixture() -> Fixture {
        let mut config = TcpConfig::default();
        config.lanes_accepted = 16;
        config.credit_bytes = 512 << 10;
        config.credit_requests = 64;
        let initiator = engine(TcpTransport::default()).await;
        Fixture::new(initiator, engine(TcpTransport::new(config)).await)
    }

    conformance_tests!(fixture);
}

/// Engines of which one reaches the other through a relay.
async fn relayed(initiator: TentEngine, rules: Rules) -> Fixture {
    loop {
        // Each needs the address of the other; somebody else may take the one that was free.
        let listen = std::net::TcpListener::bind(anywhere()).unwrap();
        let to = listen.local_addr().unwrap();
        drop(listen);
        let relay = Relay::start(anywhere(), to, move |_| rules).unwrap();
        let mut config = TcpConfig::default();
        config.listen = Some(to);
        config.advertise = Some(relay.address().to_string());
        let target = TentEngine::builder().transport(TcpTransport::new(config));
        if let Ok(target) = target.build().await {
            return Fixture::new(initiator, target).keep(relay);
        }
    }
}

mod relayed_tcp {
    use super::*;

    async fn fixture() -> Fixture {
        let mut rules = Rules::default();
        rules.up.delay = Duration::from_micros(200);
        rules.down.delay = Duration::from_micros(100);
        let initiator = engine(TcpTransport::default()).await;
        relayed(initiator, rules).await
    }

    conformance_tests!(fixture);
}

/// Where the kernel forbids rings it is the portable engine once more, which `tests/file.rs` says.
fn ring() -> FileConfig {
    FileConfig::default()
}

fn portable() -> FileConfig {
    let mut config = FileConfig::default();
    config.engine = FileEngine::Portable;
    config
}

fn segment(path: &Path, write: bool) -> FileSegment {
    let segment = FileSegment::new(path);
    if write { segment.writable() } else { segment }
}

fn cached(path: &Path, write: bool) -> String {
    segment(path, write).name()
}

fn direct(path: &Path, write: bool) -> String {
    segment(path, write).direct().name()
}

/// An engine that opens files by itself, and one that has nothing to do.
async fn files(initiator: TentEngine, name: fn(&Path, bool) -> String) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let target = TentEngine::builder().build().await.unwrap();
    let fixture = Fixture::new(initiator, target);
    fixture.with_files(folder.path(), name).keep(folder)
}

mod file_on_rings {
    use super::*;

    async fn fixture() -> Fixture {
        files(engine(FileTransport::new(ring())).await, cached).await
    }

    conformance_tests!(fixture);
}

mod direct_file_on_rings {
    use super::*;

    async fn fixture() -> Fixture {
        files(engine(FileTransport::new(ring())).await, direct).await
    }

    conformance_tests!(fixture);
}

/// Small parts, few at once, one ring, nothing registered.
mod narrow_direct_file_on_a_ring {
    use super::*;

    async fn fixture() -> Fixture {
        let mut config = ring();
        config.rings = 1;
        config.depth = 3;
        config.part_bytes = 8_192;
        config.register_memory = false;
        files(engine(FileTransport::new(config)).await, direct).await
    }

    conformance_tests!(fixture);
}

mod file_by_plain_calls {
    use super::*;

    async fn fixture() -> Fixture {
        files(engine(FileTransport::new(portable())).await, cached).await
    }

    conformance_tests!(fixture);
}

mod direct_file_by_plain_calls {
    use super::*;

    async fn fixture() -> Fixture {
        let mut config = portable();
        config.part_bytes = 65_536;
        files(engine(FileTransport::new(config)).await, direct).await
    }

    conformance_tests!(fixture);
}

mod chaos_over_files {
    use super::*;

    async fn fixture() -> Fixture {
        let chaos = Chaos::new(FileTransport::new(ring()), Mischief::all(7));
        files(impatient(chaos).await, direct).await.with_faults()
    }

    conformance_tests!(fixture);
}

mod chaos_over_in_process {
    use super::*;

    async fn fixture() -> Fixture {
        let link = InProcess::new();
        let chaos = Chaos::new(link.another_end(), Mischief::all(1));
        let initiator = impatient(chaos).await;
        let target = TentEngine::builder().in_process(link.another_end());
        Fixture::new(initiator, target.build().await.unwrap()).with_faults()
    }

    conformance_tests!(fixture);
}

mod chaos_over_tcp {
    use super::*;

    async fn fixture() -> Fixture {
        let chaos = Chaos::new(TcpTransport::default(), Mischief::all(2));
        let initiator = impatient(chaos).await;
        Fixture::new(initiator, engine(TcpTransport::default()).await).with_faults()
    }

    conformance_tests!(fixture);
}

/// A link that breaks for good after some bytes.
mod cut_tcp {
    use super::*;

    async fn fixture() -> Fixture {
        let mut mischief = Mischief::none(3);
        mischief.cut_after = Some(1_000_003);
        let initiator = impatient(Chaos::new(TcpTransport::default(), mischief)).await;
        Fixture::new(initiator, engine(TcpTransport::default()).await).with_faults()
    }

    conformance_tests!(fixture);
}

/// A relay that cuts every connection after some bytes, sooner or later.
mod relay_that_cuts {
    use super::*;

    async fn fixture() -> Fixture {
        let mut rules = Rules::default();
        rules.up.cut_after = Some(3_000_017);
        rules.down.cut_after = Some(5_000_011);
        let initiator = impatient(TcpTransport::default()).await;
        relayed(initiator, rules).await.with_faults()
    }

    conformance_tests!(fixture);
}

/// A relay that takes everything after some bytes and passes none of it on.
mod relay_that_loses {
    use super::*;

    async fn fixture() -> Fixture {
        let mut rules = Rules::default();
        rules.up.lose_after = Some(9_000_017);
        rules.down.lose_after = Some(9_000_011);
        let initiator = impatient(TcpTransport::default()).await;
        relayed(initiator, rules).await.with_faults()
    }

    conformance_tests!(fixture);
}

/// A request for all of a buffer of the target, as often as wanted.
async fn reads(initiator: &TentEngine, target: &TentEngine) -> impl Fn() -> Request {
    let register = async |engine: &TentEngine, permission| {
        let memory = Memory::allocate(64).unwrap();
        let options = RegisterOptions::new(permission);
        engine.register_memory(memory, options).await.unwrap()
    };
    let local = register(initiator, Permission::Local).await;
    let offered = register(target, Permission::PeersRead).await;
    let segment = initiator.open_segment(target.segment_name(), PATIENCE);
    let segment = segment.await.unwrap();
    move || {
        let at = RemoteRange::Address(offered.memory().address());
        Request::read(local.all().unwrap(), &segment, at)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn law_11_a_busy_link_is_worth_a_retry_later() {
    let mut mischief = Mischief::none(5);
    mischief.busy = 1_000;
    let initiator = impatient(Chaos::new(TcpTransport::default(), mischief)).await;
    let target = engine(TcpTransport::default()).await;
    let read = reads(&initiator, &target).await;
    let mut batch = initiator.allocate_batch(1);
    initiator.submit_transfer(&mut batch, vec![read()]).unwrap();
    assert!(batch.wait(PATIENCE));
    let Some(Outcome::Failed(error)) = batch.outcome(0) else {
        panic!("nobody took it");
    };
    assert!(matches!(error.retry, Retry::Later(_)), "{error:?}");
    assert_eq!(error.peer, Some(target.incarnation()));
    assert!(error.to_string().contains("full"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn law_17_chaos_brings_every_kind_of_end_and_never_helps() {
    let builder = TentEngine::builder().patience(Duration::from_millis(200));
    let chaos = Chaos::new(TcpTransport::default(), Mischief::all(6));
    let initiator = builder.transport(chaos).build().await.unwrap();
    let target = engine(TcpTransport::default()).await;
    let read = reads(&initiator, &target).await;
    let (mut completed, mut timed_out, mut loud, mut busy, mut lies) = (0, 0, 0, 0, 0);
    for _ in 0..100 {
        let mut batch = initiator.allocate_batch(20);
        let requests = (0..20).map(|_| read()).collect();
        initiator.submit_transfer(&mut batch, requests).unwrap();
        assert!(batch.wait(PATIENCE * 20));
        for i in 0..20 {
            match batch.outcome(i).unwrap() {
                Outcome::Completed { bytes } => {
                    assert_eq!(bytes, 64);
                    completed += 1;
                }
                Outcome::TimedOut(_) => timed_out += 1,
                Outcome::Failed(error) => {
                    loud += u32::from(!error.quiescent);
                    busy += u32::from(matches!(error.retry, Retry::Later(_)));
                    lies += u32::from(matches!(error.reason, Reason::Protocol(_)));
                }
                other => panic!("nobody asked for {other:?}"),
            }
        }
    }
    let seen = [completed, timed_out, loud, busy, lies];
    assert!(seen.iter().all(|kind| *kind > 0), "{seen:?}");
    assert!(completed > 1_000, "{seen:?}");
}

/// A link that says nothing more after its first tasks.
#[tokio::test(flavor = "multi_thread")]
async fn law_09_a_link_that_falls_silent_costs_each_task_its_deadline() {
    for law in 0..2 {
        let mut mischief = Mischief::none(4);
        mischief.silent_after = Some(3);
        let builder = TentEngine::builder().patience(Duration::from_millis(100));
        let chaos = Chaos::new(TcpTransport::default(), mischief);
        let initiator = builder.transport(chaos).build().await.unwrap();
        let target = engine(TcpTransport::default()).await;
        let with = Fixture::new(initiator, target).with_faults();
        match law {
            0 => laws::law_09_every_wait_has_an_end(&with).await,
            _ => laws::law_13_books_return_to_zero(&with).await,
        }
        with.close().await;
    }
}

/// Many seeds over the laws that faults threaten most.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute"]
async fn the_laws_hold_under_many_plans() {
    for seed in 10..40 {
        println!("seed {seed}");
        let chaos = Chaos::new(TcpTransport::default(), Mischief::all(seed));
        let initiator = impatient(chaos).await;
        let target = engine(TcpTransport::default()).await;
        let with = Fixture::new(initiator, target).with_faults();
        laws::law_02_every_task_ends_once(&with).await;
        laws::law_03_quiet_before_reuse(&with).await;
        laws::law_13_books_return_to_zero(&with).await;
        with.close().await;
    }
}
