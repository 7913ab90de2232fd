//! Leases keep memory in place; they do not keep keys.

mod common;

use std::time::Duration;

use common::{Store, key};
use mooncake_master::state::{Answer, Caller, ClientId, Command, Operation};
use mooncake_master::state::{Effect, Failure, Settings};

const MIB: u64 = 1 << 20;

fn settings() -> Settings {
    Settings {
        high_watermark: 1.0,
        ..Settings::default()
    }
}

#[test]
fn law_03_removed_memory_is_not_given_out_while_it_may_be_read() {
    let mut store = Store::of(MIB, settings());
    store.put(1, "k", MIB);
    let (first, _) = store.lookup(1, &["k"]);
    let (second, _) = store.lookup(1, &["k"]);
    store.remove(1, "k").unwrap();
    assert!(!store.exists(1, "k"), "a lease does not refuse a remove");
    assert_eq!(store.state.counters().quarantined_bytes, MIB);
    let busy = store.start(1, "k", 1);
    assert!(
        matches!(busy, Err(Failure::QuarantineFull { .. })),
        "{busy:?}"
    );

    store.release(1, first);
    store.release(1, first);
    assert_eq!(
        store.state.counters().quarantined_bytes,
        MIB,
        "the second lease is on it"
    );
    store.release(1, second);
    assert_eq!(store.state.counters().quarantined_bytes, 0);
    store.put(1, "k", MIB);
}

#[test]
fn a_dead_readers_lease_ends_by_its_time() {
    let mut store = Store::of(MIB, settings());
    store.put(1, "k", MIB);
    store.lookup(1, &["k"]);
    store.remove(1, "k").unwrap();
    store.pass(Duration::from_micros(9_999_999), &[1]);
    assert_eq!(store.state.counters().quarantined_bytes, MIB);
    store.pass(Duration::from_micros(1), &[1]);
    let counters = store.state.counters();
    assert_eq!((counters.quarantined_bytes, counters.leases), (0, 0));
}

#[test]
fn a_lease_that_is_over_is_noticed_when_space_is_needed() {
    let mut store = Store::of(MIB, settings());
    store.put(1, "k", MIB);
    store.lookup(1, &["k"]);
    assert_eq!(store.start(1, "l", 1), Err(Failure::NoSpace { length: 1 }));
    assert!(store.exists(1, "k"));
    store.now += Duration::from_secs(10);
    store.start(1, "l", 1).unwrap();
    assert!(!store.exists(1, "k"));
}

#[test]
fn leased_objects_are_not_evicted_and_keep_their_place() {
    let mut store = Store::of(4 * 1024, settings());
    for key in ["a", "b", "c", "d"] {
        store.put(1, key, 1024);
    }
    let (lease, _) = store.lookup(1, &["a"]);
    for key in ["b", "c", "d"] {
        let (lease, _) = store.lookup(1, &[key]);
        store.release(1, lease);
    }
    store.put(1, "e", 1024);
    assert!(
        store.exists(1, "a") && !store.exists(1, "b"),
        "`a` is older, but leased"
    );
    store.release(1, lease);
    store.put(1, "f", 1024);
    assert!(
        !store.exists(1, "a") && store.exists(1, "c"),
        "now `a` is the oldest"
    );
}

#[test]
fn others_cannot_end_a_lease() {
    let mut store = Store::of(MIB, settings());
    store.hello(2);
    store.put(1, "k", 1);
    let (lease, _) = store.lookup(1, &["k"]);
    store.release(2, lease);
    assert_eq!(store.state.counters().leases, 1);
}

#[test]
fn readers_of_a_removed_object_are_to_be_told() {
    let mut store = Store::of(MIB, settings());
    store.put(1, "k", 1);
    store.put(1, "l", 1);
    store.lookup(1, &["k"]);
    for (name, read) in [("k", true), ("l", false)] {
        let caller = Caller::Session {
            client: ClientId(1),
            number: 1000 + u64::from(read),
        };
        let operation = common::remove(vec![(key(name), None)]);
        let effects = store.apply(Command::Perform { caller, operation }).effects;
        let told = effects.iter().map(|effect| match effect {
            Effect::Invalidate { key: of, .. } => of.clone(),
            other => panic!("only invalidations were expected, not {other:?}"),
        });
        let expected = read.then(|| key(name));
        assert_eq!(told.collect::<Vec<_>>(), Vec::from_iter(expected));
    }
}

#[test]
fn law_13_a_look_up_that_is_asked_again_holds_one_lease() {
    let mut store = Store::of(MIB, settings());
    store.put(1, "k", MIB);
    let lookup = || Operation::Lookup(vec![key("k")]);
    store.ask_as(1, 500, lookup());
    store.ask_as(1, 501, lookup());
    assert_eq!(store.state.counters().leases, 2);
    store.ask_as(1, 500, lookup());
    assert_eq!(
        store.state.counters().leases,
        3,
        "on one stream no answer is lost, so each may be read under"
    );
    assert_eq!(store.hello(1), Answer::Hello { resumed: true });
    store.ask_as(1, 500, lookup());
    assert_eq!(
        store.state.counters().leases,
        2,
        "the answers that were on the older stream are lost, and their leases with them"
    );
}

#[test]
fn a_put_that_finds_no_space_makes_readers_return_what_they_do_not_need() {
    let mut store = Store::of(MIB, settings());
    store.hello(2);
    store.put(1, "k", MIB);
    let (lease, _) = store.lookup(2, &["k"]);
    store.number += 1;
    let (client, number) = (ClientId(1), store.number);
    let applied = store.apply(Command::Perform {
        caller: Caller::Session { client, number },
        operation: Operation::PutStart(common::put(&[("other", MIB)])),
    });
    let client = ClientId(2);
    assert!(applied.effects.contains(&Effect::Reclaim { client }));
    store.release(2, lease);
    store.put(1, "other", MIB);
}
