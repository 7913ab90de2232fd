//! A new version is written beside the old one, and takes its place when it is whole.

mod common;

use common::{Store, key};
use mooncake_master::state::{Answer, Failure, Incarnation, Object, Operation, PutStart, Settings};

const MIB: u64 = 1 << 20;

fn store() -> Store {
    let mut store = Store::of(8 * MIB, Settings::default());
    store.hello(2);
    store
}

fn upsert(store: &mut Store, client: u64, name: &str, length: u64) -> Result<Object, Failure> {
    let put = PutStart {
        upsert: true,
        ..common::put(&[(name, length)])
    };
    match store.ask(client, Operation::PutStart(put)) {
        Answer::Started(mut started) => started.results.remove(0),
        other => panic!("PutStart answered {other:?}"),
    }
}

fn current(store: &mut Store, name: &str) -> Option<Incarnation> {
    let (lease, mut found) = store.lookup(2, &[name]);
    store.release(2, lease);
    found.remove(0).ok().map(|object| object.incarnation)
}

#[test]
fn readers_see_the_old_version_until_the_new_one_is_whole() {
    let mut store = store();
    let old = store.put(1, "k", MIB);
    let new = upsert(&mut store, 2, "k", 2 * MIB).unwrap();
    assert!(new.incarnation > old.incarnation);
    assert_eq!(current(&mut store, "k"), Some(old.incarnation));
    let counters = store.state.counters();
    assert_eq!((counters.objects, counters.puts_in_progress), (1, 1));

    let (lease, _) = store.lookup(1, &["k"]);
    store.end(2, "k", new.incarnation).unwrap();
    assert_eq!(current(&mut store, "k"), Some(new.incarnation));
    let counters = store.state.counters();
    assert_eq!((counters.objects, counters.puts_in_progress), (1, 0));
    assert_eq!(
        (counters.used_bytes, counters.quarantined_bytes),
        (2 * MIB, MIB),
        "who reads the old version keeps it"
    );
    store.release(1, lease);
    assert_eq!(store.state.counters().quarantined_bytes, 0);
    assert_eq!(
        store.end(2, "k", new.incarnation),
        Ok(()),
        "a repeat is as good"
    );
    assert_eq!(
        store.end(1, "k", old.incarnation),
        Err(Failure::Revoked),
        "the old one was replaced"
    );
}

#[test]
fn a_failed_upsert_leaves_the_old_version() {
    let mut store = store();
    let old = store.put(1, "k", MIB);
    let new = upsert(&mut store, 2, "k", MIB).unwrap();
    store.revoke(2, "k", new.incarnation).unwrap();
    assert_eq!(current(&mut store, "k"), Some(old.incarnation));
    assert_eq!(store.end(2, "k", new.incarnation), Err(Failure::Revoked));
    let counters = store.state.counters();
    assert_eq!((counters.used_bytes, counters.quarantined_bytes), (MIB, 0));

    // So does a writer that dies: its client is forgotten, and later its memory is free.
    upsert(&mut store, 2, "k", MIB).unwrap();
    store.pass(std::time::Duration::from_secs(100), &[1]);
    let counters = store.state.counters();
    assert_eq!((counters.objects, counters.puts_in_progress), (1, 0));
    assert_eq!((counters.used_bytes, counters.quarantined_bytes), (MIB, 0));
}

#[test]
fn one_of_two_writers_wins() {
    let mut store = store();
    let free = upsert(&mut store, 1, "k", 1).expect("an absent key is as good");
    for upserting in [false, true] {
        let second = if upserting {
            upsert(&mut store, 2, "k", 1)
        } else {
            store.start(2, "k", 1)
        };
        assert!(
            matches!(second, Err(Failure::PutInProgress { .. })),
            "{second:?}"
        );
    }
    store.end(1, "k", free.incarnation).unwrap();
    assert_eq!(store.start(2, "k", 1), Err(Failure::ObjectExists));
    upsert(&mut store, 1, "k", 1).unwrap();
    let second = upsert(&mut store, 2, "k", 1);
    assert!(matches!(second, Err(Failure::PutInProgress { .. })));
    assert_eq!(
        store.start(2, "k", 1),
        Err(Failure::ObjectExists),
        "there is an object all the time"
    );
}

#[test]
fn a_late_upsert_is_taken_over_and_the_old_version_stays() {
    let mut store = store();
    let old = store.put(1, "k", MIB);
    let late = upsert(&mut store, 1, "k", MIB).unwrap();
    store.now += Settings::default().put_deadline;
    let new = upsert(&mut store, 2, "k", MIB).unwrap();
    assert_eq!(store.end(1, "k", late.incarnation), Err(Failure::Revoked));
    assert_eq!(current(&mut store, "k"), Some(old.incarnation));
    store.end(2, "k", new.incarnation).unwrap();
    assert_eq!(current(&mut store, "k"), Some(new.incarnation));
    assert_eq!(
        store.state.counters().quarantined_bytes,
        MIB,
        "the late writer may still write to its own"
    );
}

#[test]
fn a_remove_takes_the_version_and_its_successor() {
    let mut store = store();
    let old = store.put(1, "k", MIB);
    let new = upsert(&mut store, 2, "k", MIB).unwrap();
    store.remove(1, "k").unwrap();
    assert_eq!(store.end(2, "k", new.incarnation), Err(Failure::Revoked));
    assert_eq!(current(&mut store, "k"), None);
    assert_eq!(store.remove(1, "k"), Err(Failure::ObjectNotFound));

    // One that names an incarnation takes that.
    store.revoke(2, "k", new.incarnation).unwrap();
    let old = Incarnation {
        sequence: old.incarnation.sequence,
        ..store.put(1, "k", MIB).incarnation
    };
    let named = vec![(key("k"), Some(old))];
    let answer = store.ask(1, common::remove(named));
    assert_eq!(answer, Answer::Keys(vec![Err(Failure::ObjectNotFound)]));
    assert!(current(&mut store, "k").is_some());
}

#[test]
fn an_evicted_version_is_followed_by_its_successor_all_the_same() {
    let settings = Settings {
        high_watermark: 1.0,
        ..Settings::default()
    };
    let mut store = Store::of(4 * MIB, settings);
    store.hello(2);
    store.put(1, "k", MIB);
    let new = upsert(&mut store, 2, "k", MIB).unwrap();
    for n in 0..4 {
        store.put(1, &n.to_string(), MIB);
    }
    assert_eq!(current(&mut store, "k"), None, "it had to make room");
    assert!(matches!(
        store.start(1, "k", 1),
        Err(Failure::PutInProgress { .. })
    ));
    store.end(2, "k", new.incarnation).unwrap();
    assert_eq!(current(&mut store, "k"), Some(new.incarnation));
}
