//! What `exist` found stays for a moment, and probing keeps nothing from being evicted.

mod common;

use std::time::Duration;

use common::{Store, key};
use mooncake_master::state::{Answer, Command, Operation, Settings};
use proptest::prelude::*;

const SIZE: u64 = 1024;
const PERIOD: Duration = Duration::from_millis(500);

fn store(objects: u64) -> Store {
    let settings = Settings {
        high_watermark: 1.0,
        ..Settings::default()
    };
    Store::of(objects * SIZE, settings)
}

fn held(store: &mut Store, name: &str) -> Duration {
    match store.ask(1, Operation::Exist(vec![key(name)])) {
        Answer::Exist(results) => {
            let found = results[0].clone().expect("the key is one");
            assert!(found.exists || found.held.is_zero());
            found.held
        }
        other => panic!("Exist answered {other:?}"),
    }
}

#[test]
fn what_exist_found_stays_as_long_as_it_said() {
    let mut store = store(20);
    for n in 0..20 {
        store.put(1, &n.to_string(), SIZE);
    }
    let held = held(&mut store, "0");
    assert!(held > PERIOD - Duration::from_millis(5) && held <= PERIOD);
    assert_eq!(store.state.counters().reserved_bytes, SIZE);
    store.now += held;
    for n in 20..60 {
        store.put(1, &n.to_string(), SIZE);
        let (lease, found) = store.lookup(1, &["0"]);
        assert!(found[0].is_ok(), "after {} puts", n - 19);
        store.release(1, lease);
    }
}

#[test]
fn a_reservation_is_granted_once_and_a_repeat_does_not_stretch_it() {
    let mut store = store(20);
    store.put(1, "k", SIZE);
    let first = held(&mut store, "k");
    store.now += Duration::from_millis(200);
    let second = held(&mut store, "k");
    assert!(second <= first - Duration::from_millis(200), "{second:?}");
    store.now += Duration::from_millis(300);
    assert_eq!(held(&mut store, "k"), Duration::ZERO, "it is over");
    store.apply(Command::Tick);
    assert_eq!(store.state.counters().reservations, 0);
    store.now += Duration::from_millis(499);
    store.apply(Command::Tick);
    assert_eq!(held(&mut store, "k"), Duration::ZERO, "it rests");
    store.now += Duration::from_millis(1);
    store.apply(Command::Tick);
    assert!(held(&mut store, "k") > Duration::ZERO, "and then may again");
}

#[test]
fn what_is_reserved_at_once_is_a_tenth_at_most() {
    let mut store = store(20);
    let names: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    for name in &names {
        store.put(1, name, SIZE);
    }
    let reserved = names
        .iter()
        .filter(|name| !held(&mut store, name).is_zero());
    assert_eq!(reserved.count(), 2);
    assert_eq!(store.state.counters().reserved_bytes, 2 * SIZE);
    // A removed one makes room for another.
    store.remove(1, "0").unwrap();
    assert_eq!(store.state.counters().reserved_bytes, SIZE);
    assert!(!held(&mut store, "7").is_zero());
}

proptest! {
    #[test]
    fn law_11_probing_cannot_starve_eviction(
        probes in prop::collection::vec((0u32..200, 0u64..300), 1..200),
    ) {
        let mut store = store(40);
        for (n, (probe, wait)) in probes.into_iter().enumerate() {
            held(&mut store, &probe.to_string());
            held(&mut store, &n.to_string());
            store.now += Duration::from_millis(wait);
            if n % 3 == 0 {
                store.apply(Command::Tick);
            }
            store.put(1, &(n + 1).to_string(), SIZE);
            prop_assert!(store.state.counters().reserved_bytes <= 4 * SIZE);
        }
    }
}
