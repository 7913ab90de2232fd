//! What people ask for: pages of objects, and what is known of one.

mod common;

use std::time::Duration;

use common::{Store, key};
use mooncake_master::state::{
    Answer, Command, Effect, Failure, Key, ListObjects, Operation, Settings,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// All keys below the prefix, a page at a time.
fn list(store: &mut Store, prefix: &str, limit: u32) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    loop {
        let page = ListObjects {
            prefix: key(prefix),
            after: keys.last().cloned().unwrap_or_else(|| key("")),
            limit,
        };
        match store.ask(1, Operation::ListObjects(page)) {
            Answer::Objects { objects, more } => {
                assert!(objects.len() <= limit as usize);
                keys.extend(objects.into_iter().map(|object| object.key));
                if !more {
                    return keys;
                }
            }
            other => panic!("ListObjects answered {other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn pages_together_are_all_keys_in_order(
        names in prop::collection::btree_set("[ab]{1,6}", 0..40),
        prefix in "[ab]{0,2}",
        limit in 1u32..12,
    ) {
        let mut store = Store::of(MIB, Settings::default());
        for name in &names {
            store.put(1, name, 10);
        }
        store.start(1, "ab-being-written", 10).expect("there is room");
        let expected = names.iter().filter(|name| name.starts_with(&prefix));
        let expected: Vec<_> = expected.map(|name| key(name)).collect();
        prop_assert_eq!(list(&mut store, &prefix, limit), expected);
    }
}

#[test]
fn describing_an_object_is_no_use_of_it() {
    let mut store = Store::of(MIB, Settings::default());
    store.put(1, "k", 10);
    store.start(1, "w", 10).expect("there is room");
    store.lookup(1, &["k"]);
    store.now += Duration::from_secs(3);
    let keys = vec![key("k"), key("w"), key("absent")];
    for _ in 0..2 {
        let answer = store.ask(1, Operation::Describe(keys.clone()));
        let Answer::Described(described) = answer else {
            panic!("Describe answered {answer:?}");
        };
        let [Ok(complete), Ok(writing), Err(Failure::ObjectNotFound)] = &described.results[..]
        else {
            panic!("{described:?}");
        };
        assert_eq!((complete.writing, complete.leases), (false, 1));
        // Uses at the same time are told apart by a microsecond.
        let idle = Duration::from_secs(3).abs_diff(complete.idle);
        assert!(idle <= Duration::from_micros(2), "{idle:?}");
        assert!(writing.writing && writing.idle.is_zero());
        assert_eq!(described.segments[0].name, "segment-1");
    }
}

#[test]
fn a_page_of_many_objects_is_gathered_in_steps_beside_other_work() {
    let mut store = Store::of(64 * MIB, Settings::default());
    let objects = 10_000;
    for n in 0..objects {
        store.put(1, &format!("key-{n:05}"), 1);
    }
    let page = ListObjects {
        prefix: key("key-"),
        after: key("key-04998"),
        limit: 3,
    };
    let asked = store.ask(1, Operation::ListObjects(page));
    assert!(matches!(asked, Answer::Later { .. }), "{asked:?}");
    // What has been passed is replaced by something that is still to come.
    store.remove(1, "key-05000").unwrap();
    store.put(1, "key-05000", 2);
    let mut pages = Vec::new();
    loop {
        let ticked = store.apply(Command::Tick);
        for effect in ticked.effects {
            if let Effect::Settled { answer, .. } = effect {
                pages.push(answer);
            }
        }
        if ticked.answer == (Answer::Ticked { more: false }) {
            break;
        }
    }
    let [Answer::Objects { objects, more }] = &pages[..] else {
        panic!("one page was expected, not {pages:?}");
    };
    let keys: Vec<_> = objects.iter().map(|object| object.key.clone()).collect();
    let expected = ["key-04999", "key-05000", "key-05001"].map(key);
    assert!(*more);
    assert!(expected.starts_with(&keys) && keys.len() >= 2, "{keys:?}");
}
