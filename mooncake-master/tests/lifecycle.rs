//! The life of an object, from PutStart to its removal.

mod common;

use std::time::Duration;

use common::Store;
use mooncake_master::state::{Answer, ClientId, Failure, Settings};

const MIB: u64 = 1 << 20;

#[test]
fn law_06_a_key_is_announced_only_while_it_can_be_read() {
    let mut store = Store::of(MIB, Settings::default());
    assert!(!store.exists(1, "k"));
    let object = store.start(1, "k", 100).unwrap();
    assert!(!store.exists(1, "k"), "it is still being written");
    assert_eq!(
        store.lookup(1, &["k"]),
        (0, vec![Err(Failure::ObjectNotFound)])
    );

    store.end(1, "k", object.incarnation).unwrap();
    assert!(store.exists(1, "k"));
    let (lease, found) = store.lookup(1, &["other", "k"]);
    assert_ne!(lease, 0);
    assert_eq!(found, [Err(Failure::ObjectNotFound), Ok(object)]);

    store.remove(1, "k").unwrap();
    assert!(!store.exists(1, "k"));
    assert_eq!(store.remove(1, "k"), Err(Failure::ObjectNotFound));
}

#[test]
fn exactly_one_writer_wins() {
    let mut store = Store::of(MIB, Settings::default());
    store.hello(2);
    let object = store.start(1, "k", 100).unwrap();
    assert!(matches!(
        store.start(2, "k", 100),
        Err(Failure::PutInProgress { .. })
    ));
    let owner = ClientId(1);
    assert_eq!(
        store.end(2, "k", object.incarnation),
        Err(Failure::IllegalClient { owner })
    );
    assert_eq!(
        store.revoke(2, "k", object.incarnation),
        Err(Failure::IllegalClient { owner })
    );
    store.end(1, "k", object.incarnation).unwrap();
    assert_eq!(store.start(2, "k", 100), Err(Failure::ObjectExists));
}

#[test]
fn law_07_a_put_that_was_removed_or_replaced_ends_revoked() {
    let mut store = Store::of(MIB, Settings::default());
    let first = store.start(1, "k", 100).unwrap();
    store.remove(1, "k").unwrap();
    assert_eq!(store.end(1, "k", first.incarnation), Err(Failure::Revoked));
    let second = store.start(1, "k", 100).unwrap();
    assert!(second.incarnation > first.incarnation);
    assert_ne!(
        second.replicas, first.replicas,
        "the cancelled writer may still write there"
    );
    assert_eq!(store.end(1, "k", first.incarnation), Err(Failure::Revoked));
    store.end(1, "k", second.incarnation).unwrap();
}

#[test]
fn a_revoked_put_gives_its_memory_back_at_once_and_may_be_revoked_again() {
    let mut store = Store::of(MIB, Settings::default());
    let object = store.start(1, "k", MIB).unwrap();
    assert!(matches!(
        store.start(1, "l", 1),
        Err(Failure::NoSpace { .. })
    ));
    store.revoke(1, "k", object.incarnation).unwrap();
    store.revoke(1, "k", object.incarnation).unwrap();
    store.start(1, "l", MIB).unwrap();
    assert_eq!(store.end(1, "k", object.incarnation), Err(Failure::Revoked));
}

#[test]
fn a_cancelled_writer_that_says_it_is_quiet_frees_its_memory() {
    let mut store = Store::of(MIB, Settings::default());
    let object = store.start(1, "k", MIB).unwrap();
    store.remove(1, "k").unwrap();
    assert_eq!(store.state.counters().quarantined_bytes, MIB);
    store.revoke(1, "k", object.incarnation).unwrap();
    assert_eq!(store.state.counters().quarantined_bytes, 0);
}

#[test]
fn a_late_writer_is_taken_over_and_its_memory_waits_until_nothing_of_it_can_land() {
    let mut store = Store::of(MIB, Settings::default());
    store.hello(2);
    let late = store.start(1, "k", 1000).unwrap();
    store.pass(Duration::from_millis(29_999), &[1, 2]);
    assert!(matches!(
        store.start(2, "k", 1000),
        Err(Failure::PutInProgress { .. })
    ));
    store.pass(Duration::from_millis(1), &[1, 2]);
    let taken = store.start(2, "k", 1000).unwrap();
    assert_ne!(taken.replicas, late.replicas);
    assert_eq!(store.end(1, "k", late.incarnation), Err(Failure::Revoked));
    store.end(2, "k", taken.incarnation).unwrap();
    assert_eq!(store.state.counters().quarantined_bytes, 1024);
    store.pass(Duration::from_millis(31_999), &[1, 2]);
    assert_eq!(store.state.counters().quarantined_bytes, 1024);
    store.pass(Duration::from_millis(1), &[1, 2]);
    assert_eq!(store.state.counters().quarantined_bytes, 0);
}

#[test]
fn a_put_that_nobody_ends_comes_back_by_itself() {
    let mut store = Store::of(MIB, Settings::default());
    let object = store.start(1, "k", 1000).unwrap();
    store.pass(Duration::from_secs(61), &[1]);
    assert_eq!(store.state.counters().puts_in_progress, 1);
    store.pass(Duration::from_secs(1), &[1]);
    let counters = store.state.counters();
    assert_eq!((counters.puts_in_progress, counters.used_bytes), (0, 0));
    assert_eq!(counters.abandoned_puts, 1);
    assert_eq!(store.end(1, "k", object.incarnation), Err(Failure::Revoked));
}

#[test]
fn odd_requests_are_refused_in_words() {
    let mut store = Store::new(Settings::default());
    store.hello(1);
    assert_eq!(store.start(1, "k", 1), Err(Failure::NoSegment));
    store.mount(1, 1, 0, MIB);
    let (length, limit) = (MIB + 1, MIB);
    assert_eq!(
        store.start(1, "k", length),
        Err(Failure::TooLarge { length, limit })
    );
    let length = u64::MAX;
    assert_eq!(
        store.start(1, "k", length),
        Err(Failure::TooLarge { length, limit })
    );
    assert!(matches!(
        store.mount(1, 2, 0, u64::MAX),
        Answer::Refused(Failure::InvalidParams { .. })
    ));
    assert!(matches!(
        store.start(1, "k", 0),
        Err(Failure::InvalidParams { .. })
    ));
    assert_eq!(
        store.start(1, "", 1),
        Err(Failure::InvalidKey { length: 0 })
    );
    let long = "x".repeat(4097);
    assert_eq!(
        store.start(1, &long, 1),
        Err(Failure::InvalidKey { length: 4097 })
    );
    store.put(1, &long[1..], 1);
}
