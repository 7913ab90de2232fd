//! Eviction by demand is exact: with room for N equal objects, the N last used are there.

mod common;

use std::{collections::VecDeque, time::Duration};

use common::Store;
use mooncake_master::state::{Operation, Settings};
use proptest::prelude::*;

const SIZE: u64 = 1000;
const SLOT: u64 = 1024;

fn store(segments: u8, objects: u64) -> Store {
    let settings = Settings {
        high_watermark: 1.0,
        // The tests ask what is there all the time.
        exist_reservation: Duration::ZERO,
        ..Settings::default()
    };
    let mut store = Store::new(settings);
    store.hello(1);
    for id in 1..=segments {
        store.mount(1, id, 0, objects / u64::from(segments) * SLOT);
    }
    store
}

/// The last used in front.
#[derive(Default)]
struct Model(VecDeque<u32>);

impl Model {
    fn touch(&mut self, key: u32) -> bool {
        let Some(at) = self.0.iter().position(|&k| k == key) else {
            return false;
        };
        self.0.remove(at);
        self.0.push_front(key);
        true
    }

    fn put(&mut self, key: u32, room: usize) {
        self.0.truncate(room - 1);
        self.0.push_front(key);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_random_workload_leaves_what_exact_lru_leaves(
        segments in 1u8..5,
        accesses in prop::collection::vec((0u32..60, 1usize..5, any::<u64>()), 1..400),
    ) {
        let room = 24;
        let mut store = store(segments, room);
        let mut model = Model::default();
        for (first, count, draw) in accesses {
            let keys: Vec<u32> = (first..first + count as u32).collect();
            let names: Vec<String> = keys.iter().map(|k| format!("key-{k}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (lease, found) = store.lookup(1, &names);
            // The suffix first: of a chain of prefixes it is the one to lose.
            for (&key, found) in keys.iter().zip(found).rev() {
                prop_assert_eq!(found.is_ok(), model.touch(key), "key {}", key);
            }
            store.release(1, lease);
            for (key, name) in keys.iter().zip(&names) {
                if !store.exists(1, name) {
                    let before = store.state.counters();
                    let put = mooncake_master::state::PutStart { draw, ..common::put(&[(name, SIZE)]) };
                    let started = store.ask(1, Operation::PutStart(put));
                    let mooncake_master::state::Answer::Started(started) = started else {
                        panic!("PutStart answered {started:?}");
                    };
                    let object = started.results[0].clone().unwrap();
                    store.end(1, name, object.incarnation).unwrap();
                    let evicted = store.state.counters().evicted_objects - before.evicted_objects;
                    // Segments that do not divide the room evenly have a little less of it.
                    let room = (room / u64::from(segments) * u64::from(segments)) as usize;
                    prop_assert_eq!(evicted, u64::from(model.0.len() == room));
                    model.put(*key, room);
                }
            }
        }
    }
}

#[test]
fn of_a_chain_of_prefixes_the_longest_goes_first() {
    let mut store = store(1, 4);
    let chain = ["p0", "p1", "p2", "p3"];
    let started: Vec<_> = chain
        .iter()
        .map(|k| store.start(1, k, SIZE).unwrap())
        .collect();
    let items = chain.iter().zip(&started);
    let items = items
        .map(|(k, o)| (common::key(k), o.incarnation))
        .collect();
    store.ask(1, Operation::PutEnd(items));
    store.put(1, "x", SIZE);
    assert!(!store.exists(1, "p3") && store.exists(1, "p0"));
    let (lease, _) = store.lookup(1, &["p0", "p1", "p2"]);
    store.release(1, lease);
    store.put(1, "y", SIZE);
    assert!(!store.exists(1, "x"));
    store.put(1, "z", SIZE);
    assert!(!store.exists(1, "p2") && store.exists(1, "p1") && store.exists(1, "p0"));
}

#[test]
fn in_whatever_portions_a_batch_ends_its_longest_prefix_goes_first() {
    let names: Vec<String> = (0..6).map(|n| format!("p{n}")).collect();
    let items: Vec<_> = names.iter().map(|name| (name.as_str(), SIZE)).collect();
    for portions in [
        vec![vec![0, 2, 4], vec![1, 3, 5]],
        vec![vec![1, 3, 5], vec![0, 2, 4]],
        vec![vec![3], vec![5], vec![0], vec![4], vec![1], vec![2]],
        vec![vec![5, 4, 3], vec![2, 1, 0]],
        vec![vec![0, 1, 2, 3, 4, 5]],
    ] {
        let mut store = store(1, 6);
        let started = match store.ask(1, Operation::PutStart(common::put(&items))) {
            mooncake_master::state::Answer::Started(started) => started.results,
            other => panic!("PutStart answered {other:?}"),
        };
        for portion in &portions {
            let of = |&n: &usize| {
                let object = started[n].as_ref().expect("there is room");
                (common::key(&names[n]), object.incarnation)
            };
            let ends = portion.iter().map(of).collect();
            store.ask(1, Operation::PutEnd(ends));
        }
        for left in (0..6).rev() {
            store.put(1, &format!("x{left}"), SIZE);
            for (n, name) in names.iter().enumerate() {
                assert_eq!(store.exists(1, name), n < left, "{name} of {portions:?}");
            }
        }
    }
}

#[test]
fn the_watermark_evicts_down_to_the_low_mark_and_no_further() {
    let mut store = Store::of(1000 * SLOT, Settings::default());
    for n in 0..900 {
        store.put(1, &n.to_string(), SIZE);
    }
    assert_eq!(store.state.counters().evicted_objects, 0);
    store.put(1, "900", SIZE);
    let counters = store.state.counters();
    // At PutStart: the new object is not there yet, but its memory is.
    assert_eq!(
        (counters.evicted_objects, counters.used_bytes),
        (51, 850 * SLOT)
    );
    assert_eq!(counters.evicted_bytes, 51 * SLOT);
    assert!(!store.exists(1, "50") && store.exists(1, "51"));
}
