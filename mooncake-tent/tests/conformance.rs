//! The laws on every link that this crate has, on links that misbehave, and through a relay.
#![cfg(all(feature = "conformance", feature = "tcp"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{net::SocketAddr, time::Duration};

use mooncake_tent::{
    InProcess, TcpConfig, TcpTransport, TentEngine,
    conformance::{Chaos, Fixture, Mischief, Relay, Rules, suite},
    conformance_tests,
    transport::Transport,
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

/// A target whose link is reached through `relay`, which lives as long as the link.
#[derive(Debug)]
struct Behind {
    relay: Relay,
    link: TcpTransport,
}

impl Behind {
    fn new(rules: Rules) -> Self {
        // The relay needs an address before the link has one, and the other way round.
        let listen = std::net::TcpListener::bind(anywhere()).unwrap();
        let to = listen.local_addr().unwrap();
        drop(listen);
        let relay = Relay::start(anywhere(), to, move |_| rules).unwrap();
        let mut config = TcpConfig::default();
        config.listen = Some(to);
        config.advertise = Some(relay.address().to_string());
        let link = TcpTransport::new(config);
        Self { relay, link }
    }
}

mod relayed_tcp {
    use super::*;

    static RELAYS: std::sync::Mutex<Vec<Relay>> = std::sync::Mutex::new(Vec::new());

    async fn fixture() -> Fixture {
        let mut rules = Rules::default();
        rules.up.delay = Duration::from_micros(200);
        rules.down.delay = Duration::from_micros(100);
        let Behind { relay, link } = Behind::new(rules);
        let target = engine(link).await;
        let initiator = engine(TcpTransport::default()).await;
        RELAYS.lock().unwrap().push(relay);
        Fixture::new(initiator, target)
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

    static RELAYS: std::sync::Mutex<Vec<Relay>> = std::sync::Mutex::new(Vec::new());

    async fn fixture() -> Fixture {
        let mut rules = Rules::default();
        rules.up.cut_after = Some(3_000_017);
        rules.down.cut_after = Some(5_000_011);
        let Behind { relay, link } = Behind::new(rules);
        let target = engine(link).await;
        let initiator = impatient(TcpTransport::default()).await;
        RELAYS.lock().unwrap().push(relay);
        Fixture::new(initiator, target).with_faults()
    }

    conformance_tests!(fixture);
}

/// A link that says nothing more after its first tasks.
#[tokio::test(flavor = "multi_thread")]
async fn law_09_a_link_that_falls_silent_costs_each_task_its_deadline() {
    use mooncake_tent::conformance::laws;

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
    use mooncake_tent::conformance::laws;

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
