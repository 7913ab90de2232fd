//! What requests ask of their way is what they get, or a refusal that says why.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

mod common;
mod scripted;

use common::*;
use mooncake_tent::{
    DeviceSet, Error, Hint, Intent, Memory, Permission, Priority, RegisterOptions, Request,
    TentEngine, TransferEngine,
    selector::{Policies, Policy},
    transport::{Op, TaskSpec},
};
use scripted::{Scripted, pair::Pair};

const LEN: u64 = 1 << 20;

struct Ground(Pair);

impl std::ops::Deref for Ground {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.0
    }
}

impl Ground {
    async fn new(links: [Scripted; 2], policies: Vec<Policy>) -> Self {
        let policies = Policies::new(policies).unwrap();
        let builder = TentEngine::builder().policies(policies);
        Self(Pair::new(links, builder, LEN).await)
    }

    async fn plain(policies: Vec<Policy>) -> Self {
        Self::new([Scripted::new("a"), Scripted::new("b")], policies).await
    }

    /// The link that carries it, and what that was told.
    async fn carried(&self, request: Request) -> (&'static str, TaskSpec) {
        let before = self.links.each_ref().map(Scripted::count);
        let expected =
            self.engine
                .explain(Op::Read, request.length(), request.asked(), &self.segment);
        let outcome = once(&self.engine, request).await;
        assert!(outcome.is_completed(), "{outcome:?}");
        let after = self.links.each_ref().map(Scripted::count);
        let which = usize::from(after[0] == before[0]);
        assert_eq!(after[which], before[which] + 1);
        let name = ["a", "b"][which];
        assert_eq!(
            expected.ranked[0].name, name,
            "what was explained: {expected}"
        );
        (name, self.links[which].came().pop().unwrap())
    }

    fn refused(&self, request: Request) -> String {
        let mut batch = self.engine.allocate_batch(1);
        let refused = self.engine.submit_transfer(&mut batch, vec![request]);
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::NoRoute { .. }), "{error}");
        assert!(batch.is_empty());
        error.to_string()
    }
}

fn only(name: &str, link: &str) -> Policy {
    let mut policy = Policy::named(name);
    policy.transports = Some(vec![link.to_owned()]);
    policy
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_sends_requests_of_each_kind_over_its_link() {
    let mut urgent = only("small and urgent", "b");
    (urgent.priority, urgent.max_size) = (Some(Priority::High), Some(4096));
    let mut saved = only("checkpoints", "b");
    saved.intent_type = Some(Intent::Checkpoint);
    let mut tenants = only("somebody's", "b");
    tenants.tenant = Some("t".to_owned());
    let mut elsewhere = only("for those who ask", "b");
    elsewhere.min_size = Some(u64::MAX);
    let rest = only("rest", "a");
    let ground = Ground::plain(vec![urgent, saved, tenants, elsewhere, rest]).await;
    for round in 0..3 {
        for (request, link) in [
            (ground.read(4096), "b"),
            (ground.read(4097), "a"),
            (ground.read(4096).priority(Priority::Low), "a"),
            (ground.read(LEN).intent(Intent::Checkpoint), "b"),
            (ground.read(LEN).tenant("t"), "b"),
            (ground.read(LEN).tenant("u"), "a"),
            (ground.read(LEN).policy("for those who ask"), "b"),
        ] {
            let shown = format!("round {round}: {request:?}");
            assert_eq!(ground.carried(request).await.0, link, "{shown}");
        }
    }
    // All of them at once, each over its own.
    let before = ground.links.each_ref().map(Scripted::count);
    let requests = (0..32).map(|at| match at % 2 {
        0 => ground.read(4096),
        _ => ground.read(4096).priority(Priority::Medium),
    });
    let batch = submit(&ground.engine, requests.collect());
    terminal(&batch).await;
    let after = ground.links.each_ref().map(Scripted::count);
    assert_eq!([after[0] - before[0], after[1] - before[1]], [16, 16]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_is_kept_or_the_request_is_refused_with_the_reason() {
    let ground = Ground::plain(Vec::new()).await;
    for _ in 0..3 {
        assert_eq!(ground.carried(ground.read(1)).await.0, "a");
        let hinted = ground.read(1).hint(Hint::soft("b"));
        assert_eq!(ground.carried(hinted).await.0, "b");
        let hinted = ground.read(1).hint(Hint::hard("b"));
        assert_eq!(ground.carried(hinted).await.0, "b");
        let hinted = ground.read(1).hint(Hint::soft("rdma"));
        assert_eq!(ground.carried(hinted).await.0, "a");
    }
    let why = ground.refused(ground.read(1).hint(Hint::hard("rdma")));
    assert!(why.contains("not a: only rdma is wanted"), "{why}");
    assert!(why.contains("not rdma: is not installed"), "{why}");
    let why = ground.refused(ground.read(1).policy("unheard-of"));
    assert!(why.contains("there is no policy \"unheard-of\""), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_of_devices_is_kept_whatever_the_size_and_fails_closed() {
    let links = [
        Scripted::over("a", &[]),
        Scripted::over("b", &["nic0", "nic1", "nic2"]),
    ];
    let mut bulk = Policy::named("bulk");
    bulk.devices = Some(DeviceSet::new(["nic1", "nic2"]));
    bulk.min_size = Some(4096);
    (bulk.qp_pool, bulk.service_level) = (Some("p".to_owned()), Some(3));
    let ground = Ground::new(links, vec![bulk]).await;
    for length in [1, 4096, LEN] {
        let request = ground.read(length);
        let request = request.devices(DeviceSet::new(["nic0", "nic2"]));
        let (link, spec) = ground.carried(request).await;
        assert_eq!(link, "b", "which of its devices it uses, a cannot choose");
        let terms = spec.terms.unwrap();
        let places: Vec<_> = terms.devices.as_ref().unwrap().iter().collect();
        match length {
            1 => assert_eq!((places, terms.pool.as_deref()), (vec![0, 2], None)),
            _ => {
                assert_eq!((places, terms.pool.as_deref()), (vec![2], Some("p")));
                assert_eq!(terms.service_level, Some(3));
            }
        }
    }
    let (_, spec) = ground.carried(ground.read(1).pool("mine")).await;
    assert_eq!(spec.terms.unwrap().pool.as_deref(), Some("mine"));
    let (_, spec) = ground.carried(ground.read(1).priority(Priority::Low)).await;
    assert_eq!((spec.qos.priority(), spec.terms), (Priority::Low, None));
    for set in [DeviceSet::new(["nic0"]), DeviceSet::default()] {
        let why = ground.refused(ground.read(LEN).devices(set));
        assert!(
            why.contains("not a: cannot keep to a set of devices"),
            "{why}"
        );
        assert!(why.contains("not b: has none of the devices"), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_a_kind_that_no_link_joins_is_refused() {
    let ground = Ground::plain(Vec::new()).await;
    let mut options = RegisterOptions::new(Permission::Local);
    options.location = "cuda:0".to_owned();
    let memory = Memory::allocate(4096).unwrap();
    let far = ground
        .engine
        .register_memory(memory, options)
        .await
        .unwrap();
    let to = place(&ground.remote, 0);
    for _ in 0..2 {
        let request = Request::read(far.all().unwrap(), &ground.segment, to);
        let why = ground.refused(request);
        assert!(
            why.contains("does not join cuda here and cpu there"),
            "{why}"
        );
    }
    let mixed = [far.all().unwrap(), ground.local.slice(0..1).unwrap()];
    let mixed = Request::scattered(Op::Read, mixed.into_iter().collect(), &ground.segment, to);
    let mut batch = ground.engine.allocate_batch(1);
    let error = ground.engine.submit_transfer(&mut batch, vec![mixed]);
    assert!(matches!(error, Err(Error::Invalid(_))), "{error:?}");
}
