//! What the selector must keep.

use proptest::prelude::*;

use super::*;
use crate::{
    qos::Hint,
    selector::{Order, RateTable},
    transport::Capabilities,
};

fn link(name: &'static str) -> LinkFacts<'static> {
    LinkFacts::new(name, Capabilities::read_write())
}

fn near(name: &'static str) -> LinkFacts<'static> {
    LinkFacts {
        same_machine_only: true,
        ..link(name)
    }
}

fn at(name: &'static str, bandwidth: f64) -> LinkFacts<'static> {
    LinkFacts {
        bandwidth: Some(bandwidth),
        ..link(name)
    }
}

fn read() -> RequestFacts<'static> {
    RequestFacts::new(Op::Read, 1 << 20)
}

fn order_of(ranking: &Ranking) -> Vec<&str> {
    let names = ranking.ranked.iter().map(|link| &*link.name);
    names.collect()
}

fn rank(request: RequestFacts<'_>, links: &[LinkFacts<'_>]) -> Vec<String> {
    let ranking = TransportSelector::new().rank(&request, links);
    order_of(&ranking).into_iter().map(str::to_owned).collect()
}

/// Why each link that is out is out.
fn excluded(ranking: &Ranking) -> Vec<(&str, String)> {
    let excluded = ranking.excluded.iter();
    excluded
        .map(|link| (&*link.name, link.why.to_string()))
        .collect()
}

fn listing(transports: &[&str]) -> Policy {
    let mut policy = Policy::named("p");
    policy.transports = Some(transports.iter().map(|name| (*name).to_owned()).collect());
    policy
}

fn selector(policies: Vec<Policy>) -> TransportSelector {
    TransportSelector::with_policies(Policies::new(policies).unwrap())
}

#[test]
fn a_link_that_cannot_carry_the_request_is_excluded_with_its_reason() {
    let mut capabilities = Capabilities::read_write();
    capabilities.writes = false;
    let links = [
        LinkFacts {
            capabilities,
            ..link("read-only")
        },
        LinkFacts {
            reaches: false,
            ..link("far")
        },
        LinkFacts {
            accepts: false,
            ..link("strange")
        },
        LinkFacts {
            joins: &[("cuda*", "*")],
            ..link("nvlink")
        },
        near("shm"),
        LinkFacts {
            health: Health::Open {
                why: "refused",
                left: Duration::from_millis(90),
            },
            ..link("broken")
        },
        link("tcp"),
    ];
    let request = RequestFacts::new(Op::Write, 1);
    let ranking = TransportSelector::new().rank(&request, &links);
    assert_eq!(order_of(&ranking), ["tcp"]);
    assert_eq!(ranking.ranked[0].index, 6);
    assert_eq!(
        excluded(&ranking),
        [
            ("read-only", "cannot do this operation".to_owned()),
            ("far", "does not reach the peer".to_owned()),
            (
                "strange",
                "the peer's buffer is not registered with it".to_owned()
            ),
            ("nvlink", "does not join cpu here and cpu there".to_owned()),
            ("shm", "the peer is on another machine".to_owned()),
            (
                "broken",
                "failed, not tried for 90.0ms more: refused".to_owned()
            ),
        ]
    );
    let line = ranking.to_string();
    assert!(
        line.starts_with("tcp (its speed is unknown), not read-only: "),
        "{line}"
    );
}

#[test]
fn a_file_segment_is_carried_by_what_joins_memory_and_files() {
    let links = [
        link("tcp"),
        LinkFacts {
            joins: &[("cpu", "file")],
            ..link("file")
        },
    ];
    let request = RequestFacts {
        segment: SegmentKind::File,
        ..read()
    };
    let ranking = TransportSelector::new().rank(&request, &links);
    assert_eq!(order_of(&ranking), ["file"]);
    assert_eq!(
        excluded(&ranking),
        [(
            "tcp",
            "does not join cpu here and a file segment".to_owned()
        )]
    );
    assert_eq!(rank(read(), &links), ["tcp"]);
}

#[test]
fn a_detour_is_taken_only_where_no_link_goes_directly_be_it_that_this_one_failed() {
    let mut stage = link("stage");
    stage.capabilities.indirect = true;
    stage.joins = &[("fake", "*"), ("cpu", "*")];
    let failed = LinkFacts {
        joins: &[("fake", "cpu")],
        health: Health::Open {
            why: "x",
            left: Duration::from_secs(1),
        },
        ..link("failed")
    };
    let from_to = |local, remote| RequestFacts {
        local,
        remote,
        ..read()
    };
    let links = [stage, link("tcp"), failed];
    assert_eq!(rank(from_to("fake", "fake"), &links), ["stage"]);
    assert_eq!(rank(from_to("cpu", "fake"), &links), ["stage"]);
    assert_eq!(rank(from_to("cpu", "cpu"), &links), ["tcp"]);
    assert_eq!(rank(from_to("cpu", "cpu"), &links[..1]), [""; 0]);
    let direct = TransportSelector::new().rank(&from_to("fake", "cpu"), &links);
    assert!(order_of(&direct).is_empty());
    let why = ("stage", "failed goes there directly".to_owned());
    assert!(excluded(&direct).contains(&why), "{direct}");
}

#[test]
fn the_nearest_link_comes_first_as_long_as_nothing_was_measured() {
    let mut capabilities = Capabilities::read_write();
    capabilities.within_process = true;
    let links = [
        link("tcp"),
        near("shm"),
        LinkFacts {
            capabilities,
            ..link("inside")
        },
    ];
    let request = RequestFacts {
        same_machine: true,
        ..read()
    };
    assert_eq!(rank(request, &links), ["inside", "shm", "tcp"]);
}

#[test]
fn law_12_an_unknown_speed_is_neither_best_nor_worst() {
    let (fast, slow, unknown) = (at("fast", 9e9), at("slow", 1e9), link("unknown"));
    assert_eq!(rank(read(), &[slow, fast]), ["fast", "slow"]);
    assert_eq!(
        rank(read(), &[unknown, slow, fast]),
        ["unknown", "fast", "slow"]
    );
    assert_eq!(
        rank(read(), &[slow, unknown, fast]),
        ["fast", "unknown", "slow"]
    );
    assert_eq!(
        rank(read(), &[slow, fast, unknown]),
        ["fast", "slow", "unknown"]
    );
}

#[test]
fn what_takes_the_shortest_time_depends_on_the_length() {
    let quick = RateTable::modelled(1e9, Duration::from_micros(2));
    let wide = RateTable::modelled(20e9, Duration::from_micros(50));
    let links = [
        LinkFacts {
            rates: Some(&quick),
            ..link("quick")
        },
        LinkFacts {
            rates: Some(&wide),
            bandwidth: Some(1.0),
            ..link("wide")
        },
    ];
    let of = |length| rank(RequestFacts { length, ..read() }, &links);
    assert_eq!(of(4096), ["quick", "wide"]);
    assert_eq!(of(16 << 20), ["wide", "quick"]);
}

#[test]
fn the_order_of_a_policy_holds_unless_it_says_that_cost_does() {
    let links = [at("shm", 9e9), at("tcp", 1e9), at("cma", 5e9)];
    let ranking = selector(vec![listing(&["tcp", "shm", "rdma"])]).rank(&read(), &links);
    assert_eq!(order_of(&ranking), ["tcp", "shm"]);
    assert_eq!(
        ranking.ranked[0].why(),
        "number 1 of the policy, takes about 1.0ms"
    );
    assert_eq!(
        excluded(&ranking),
        [
            ("cma", "policy \"p\" does not list it".to_owned()),
            ("rdma", "is not installed".to_owned())
        ]
    );
    assert!(
        ranking.to_string().starts_with("by policy \"p\": tcp ("),
        "{ranking}"
    );

    let mut by_cost = listing(&["tcp", "cma", "shm"]);
    by_cost.order = Some(Order::Cost);
    let ranking = selector(vec![by_cost]).rank(&read(), &links);
    assert_eq!(order_of(&ranking), ["shm", "cma", "tcp"]);
}

#[test]
fn links_go_by_the_names_that_configurations_have() {
    let file = LinkFacts {
        joins: &[("cpu", "file")],
        ..link("file")
    };
    let request = RequestFacts {
        segment: SegmentKind::File,
        ..read()
    };
    let ranking = selector(vec![listing(&["gds", "io_uring"])]).rank(&request, &[file]);
    assert_eq!(order_of(&ranking), ["file"]);
    assert_eq!(excluded(&ranking), [("gds", "is not installed".to_owned())]);
}

#[test]
fn a_policy_that_there_is_not_excludes_everything() {
    let request = RequestFacts {
        policy: Some("q"),
        ..read()
    };
    let ranking = selector(vec![listing(&["tcp"])]).rank(&request, &[link("tcp")]);
    assert!(ranking.ranked.is_empty());
    assert_eq!(
        excluded(&ranking),
        [("tcp", "there is no policy \"q\"".to_owned())]
    );
}

#[test]
fn a_hard_hint_permits_one_link_and_a_soft_one_moves_it_to_the_front() {
    let links = [
        at("shm", 9e9),
        link("tcp"),
        LinkFacts {
            reaches: false,
            ..link("rdma")
        },
    ];
    let with = |hint: &Hint| {
        let request = RequestFacts {
            hint: Some(hint),
            ..read()
        };
        TransportSelector::new().rank(&request, &links)
    };
    let soft = with(&Hint::soft("tcp"));
    assert_eq!(order_of(&soft), ["tcp", "shm"]);
    assert_eq!(soft.ranked[0].merits[0], Merit::Hinted);
    assert_eq!(order_of(&with(&Hint::hard("tcp"))), ["tcp"]);
    assert_eq!(order_of(&with(&Hint::soft("rdma"))), ["shm", "tcp"]);
    let hard = with(&Hint::hard("rdma"));
    assert!(hard.ranked.is_empty(), "the caller wants no other");
    let not_there = with(&Hint::hard("ub"));
    assert!(not_there.ranked.is_empty());
    assert!(
        not_there.to_string().contains("not ub: is not installed"),
        "{not_there}"
    );
    // What a policy forbids is not had by a hint.
    let hint = Hint::soft("tcp");
    let request = RequestFacts {
        hint: Some(&hint),
        ..read()
    };
    let ranking = selector(vec![listing(&["shm"])]).rank(&request, &links);
    assert_eq!(order_of(&ranking), ["shm"]);
}

#[test]
fn a_set_of_devices_is_kept_to_or_the_link_is_out() {
    let names: Vec<String> = (0..70).map(|nic| format!("mlx5_{nic}")).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let links = [
        LinkFacts {
            devices: LinkDevices::Named(&names),
            ..link("rdma")
        },
        LinkFacts {
            devices: LinkDevices::Named(&["bonding"]),
            ..link("ub")
        },
        LinkFacts {
            devices: LinkDevices::NotNeeded,
            ..link("shm")
        },
        link("tcp"),
    ];
    let mut policy = Policy::named("p");
    policy.devices = Some(DeviceSet::new(["mlx5_69", "mlx5_64", "mlx5_3", "gone"]));
    let wanted = DeviceSet::new(["mlx5_3", "mlx5_69", "mlx5_5"]);
    let request = RequestFacts {
        devices: Some(&wanted),
        ..read()
    };
    let ranking = selector(vec![policy]).rank(&request, &links);
    assert_eq!(order_of(&ranking), ["rdma", "shm"]);
    let mask = ranking.ranked[0].devices.as_ref().unwrap();
    assert_eq!(mask.iter().collect::<Vec<_>>(), [3, 69], "of more than 64");
    assert_eq!(ranking.ranked[1].devices, None);
    let out: Vec<_> = excluded(&ranking)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(out, ["ub", "tcp"]);

    let nothing = DeviceSet::default();
    let request = RequestFacts {
        devices: Some(&nothing),
        ..read()
    };
    assert_eq!(rank(request, &links), ["shm"], "an empty set opens nothing");
}

#[test]
fn a_link_that_failed_may_be_tried_once_and_keeps_its_place() {
    let links = [
        LinkFacts {
            health: Health::HalfOpen { why: "reset" },
            ..link("rdma")
        },
        link("tcp"),
    ];
    let ranking = TransportSelector::new().rank(&read(), &links);
    assert_eq!(order_of(&ranking), ["rdma", "tcp"]);
    assert!(
        ranking.ranked[0]
            .why()
            .contains("one request may try it: reset")
    );
}

#[test]
fn a_ranking_carries_what_the_policy_asks_of_the_link() {
    let mut policy = Policy::named("p");
    policy.qp_pool = Some("bulk".to_owned());
    policy.service_level = Some(3);
    policy.traffic_class = Some(96);
    let selector = selector(vec![policy]);
    let ranking = selector.rank(&read(), &[]);
    assert_eq!(ranking.pool.as_deref(), Some("bulk"));
    assert_eq!(
        (ranking.service_level, ranking.traffic_class),
        (Some(3), Some(96))
    );
    let own = RequestFacts {
        pool: Some("mine"),
        ..read()
    };
    assert_eq!(selector.rank(&own, &[]).pool.as_deref(), Some("mine"));
}

#[test]
fn requests_of_one_key_are_ranked_alike() {
    let mut small = listing(&["tcp"]);
    // In the middle of a size class.
    small.max_size = Some(100_000);
    let selector = selector(vec![small]);
    let key = |length| selector.key(&RequestFacts { length, ..read() }).unwrap();
    assert_eq!(key(70_000), key(100_000));
    assert_ne!(key(100_000), key(100_001), "another policy");
    assert_eq!(key(100_001), key(256 << 10));
    assert_ne!(key(256 << 10), key((256 << 10) + 1), "another size class");
    let hint = Hint::soft("tcp");
    assert_eq!(
        selector.key(&RequestFacts {
            hint: Some(&hint),
            ..read()
        }),
        None
    );
}

proptest! {
    #[test]
    fn every_link_is_ranked_or_excluded_and_what_is_known_is_in_order(
        speeds in prop::collection::vec(prop::option::of(1..100u32), 0..40)
    ) {
        let links: Vec<_> = speeds
            .iter()
            .map(|speed| LinkFacts { bandwidth: speed.map(|speed| f64::from(speed) * 1e8), reaches: *speed != Some(50), ..link("a") })
            .collect();
        let ranking = TransportSelector::new().rank(&read(), &links);
        prop_assert_eq!(ranking.ranked.len() + ranking.excluded.len(), links.len());
        let known: Vec<_> = ranking.ranked.iter().filter_map(|link| link.estimate).collect();
        prop_assert!(known.is_sorted());
        let fit = links.iter().enumerate().filter(|(_, link)| link.reaches);
        for ((index, link), ranked) in fit.zip(&ranking.ranked) {
            // Whoever is unknown has the place that it was given.
            prop_assert!(link.bandwidth.is_some() || ranked.index == index);
        }
    }
}
