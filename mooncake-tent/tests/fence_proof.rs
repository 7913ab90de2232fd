//! After a fence no byte of an old write lands, wherever its connection was cut.
#![cfg(all(feature = "conformance", feature = "tcp"))]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use common::*;
use mooncake_tent::{
    Buffer, Permission, Request, Segment, TcpConfig, TentEngine, TransferEngine,
    conformance::{Cut, Relay, Rules},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// More than sockets and relay hold.
const LEN: usize = 3 << 20;
const LANES: usize = 2;
/// How late the relay may be with what it holds.
const LATE: Duration = Duration::from_millis(4);

/// The rules for connections from a number on; those beyond are left alone.
type Plan = Arc<Mutex<(u64, [Rules; LANES])>>;

/// An initiator, a target that it reaches through a relay, and a buffer on each side.
struct Scene {
    initiator: TentEngine,
    owner: TentEngine,
    segment: Segment,
    local: Buffer,
    remote: Buffer,
    relay: Relay,
    plan: Plan,
    /// Rounds in which bytes landed after their write had failed, before the fence ended.
    late: usize,
    /// Rounds in which the relay still delivered bytes after the fence.
    too_late: usize,
}

impl Scene {
    async fn new() -> Self {
        let plan = Plan::default();
        let planned = Arc::clone(&plan);
        let (owner, relay) = relayed(TcpConfig::default(), move |number| {
            let (first, rules) = *planned.lock().unwrap();
            let lane = number.checked_sub(first).map(|lane| lane as usize);
            lane.and_then(|lane| rules.get(lane).copied())
                .unwrap_or_default()
        })
        .await;
        let mut config = TcpConfig::default();
        config.lanes_per_peer = LANES;
        config.slice_bytes = 200_003;
        let initiator = engine_with(config).await;
        let remote = buffer(&owner, LEN, Permission::PeersReadWrite).await;
        let local = buffer(&initiator, LEN, Permission::Local).await;
        let segment = open(&initiator, &owner).await;
        Self {
            initiator,
            owner,
            segment,
            local,
            remote,
            relay,
            plan,
            late: 0,
            too_late: 0,
        }
    }

    async fn round(&mut self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let kind = random.random_range(0..6);
        let rules = std::array::from_fn(|_| rules(kind, &mut random));
        let (old, new) = (pattern(seed, LEN), pattern(seed + 1, LEN));
        self.remote.memory().write_at(0, &old);
        self.local.memory().write_at(0, &new);
        *self.plan.lock().unwrap() = (self.relay.counts().connections, rules);
        let what = format!("seed {seed}, {rules:?}");

        let all = self.local.all().unwrap();
        let write = Request::write(all, &self.segment, place(&self.remote, 0));
        let batch = submit(&self.initiator, vec![write]);
        let waits = random.random_bool(0.7);
        if waits {
            // As far as it gets: some of these plans only hold bytes back.
            let wait = Duration::from_millis(30);
            let _ended = tokio::time::timeout(wait, batch.terminal()).await;
        } else {
            tokio::time::sleep(Duration::from_micros(random.random_range(0..2_000))).await;
        }
        let failed = batch.outcome(0);
        let before = bytes(&self.remote, 0, LEN);

        let fenced = self.initiator.fence(&self.segment, BUDGET).await;
        let after = bytes(&self.remote, 0, LEN);
        // What was not connected before the fence is left alone.
        self.plan.lock().unwrap().0 = u64::MAX;
        let delivered = self.relay.counts().up_bytes;
        assert!(fenced.is_ok(), "{what}: {fenced:?}");
        assert!(batch.is_terminal() && batch.is_quiescent(), "{what}");
        self.late += usize::from(failed.is_some() && before != after);
        if batch.outcome(0).unwrap().is_completed() {
            assert_same(&after, &new, &what);
        }
        let mixed = after.iter().zip(old.iter().zip(&new));
        let strange = mixed.filter(|(found, (old, new))| found != old && found != new);
        assert_eq!(strange.count(), 0, "{what}: bytes of neither");

        // Both sides may have their memory back now, and use it for other things.
        let own = self.initiator.renew_registration(&self.local, BUDGET).await;
        assert!(own.is_ok(), "{what}: {own:?}");
        let theirs = self.owner.renew_registration(&self.remote, BUDGET).await;
        assert!(theirs.is_ok(), "{what}: {theirs:?}");
        self.local.memory().write_at(0, &pattern(seed + 2, LEN));
        self.relay.resume();
        tokio::time::sleep(LATE + Duration::from_millis(2)).await;
        self.too_late += usize::from(self.relay.counts().up_bytes > delivered);
        let local = self.local.slice(0..4_097).unwrap();
        let read = Request::read(local, &self.segment, place(&self.remote, 99));
        assert!(once(&self.initiator, read).await.is_completed(), "{what}");
        let later = bytes(&self.remote, 0, LEN);
        assert_same(
            &later,
            &after,
            &format!("{what}: it landed after the fence"),
        );
        // The next round begins on new lanes.
        self.initiator.fence(&self.segment, BUDGET).await.unwrap();
    }

    async fn close(self) {
        let (here, there) = (books(&self.local), books(&self.remote));
        let local = self.initiator.unregister_memory(self.local, BUDGET).await;
        let remote = self.owner.unregister_memory(self.remote, BUDGET).await;
        assert!(local.is_ok() && remote.is_ok(), "{local:?} {remote:?}");
        assert_eq!((here.leases(), there.leases()), (0, 0));
        assert_eq!(self.initiator.tasks_in_use(), 0);
        self.initiator.shutdown(BUDGET).await.unwrap();
        self.owner.shutdown(BUDGET).await.unwrap();
    }
}

fn rules(kind: usize, random: &mut StdRng) -> Rules {
    let mut rules = Rules::default();
    let share = (LEN / LANES) as u64;
    let point = random.random_range(100..share + 1_000);
    let late = |random: &mut StdRng| LATE.mul_f64(random.random());
    match kind {
        // Holds back, until after the fence.
        0 | 1 => rules.up.pause_after = Some(point),
        // The answers are lost.
        2 => rules.down.cut_after = Some(random.random_range(48..300)),
        kind => {
            rules.up.cut_after = Some(point);
            rules.up.delay = late(random);
            rules.up.cut = [Cut::HalfOpen, Cut::Reset, Cut::Close][kind - 3];
        }
    }
    rules
}

async fn rounds(seeds: std::ops::Range<u64>) {
    let count = seeds.end - seeds.start;
    let mut scene = Scene::new().await;
    for seed in seeds {
        scene.round(seed).await;
    }
    let (late, too_late) = (scene.late, scene.too_late);
    println!("of {count} rounds {late} had late bytes, {too_late} bytes that came too late");
    let nasty = late + too_late;
    assert!(
        nasty > 5,
        "the relay is too kind to prove anything: {nasty}"
    );
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn law_03_nothing_lands_after_a_fence_wherever_it_was_cut() {
    rounds(0..100).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn law_03_nothing_lands_after_a_fence_at_a_thousand_points() {
    rounds(1_000..2_000).await;
}
