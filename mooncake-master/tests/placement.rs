//! Where objects are put: which segments, how many replicas, and when space is short.

mod common;

use std::collections::BTreeSet;

use common::{Store, key, put};
use mooncake_master::state::{
    Answer, ClientId, Failure, Object, Operation, PutStart, Replica, SegmentId, SegmentIdentity,
    Settings,
};

const MIB: u64 = 1 << 20;

fn store(segments: u8, length: u64) -> Store {
    let mut store = Store::new(Settings {
        high_watermark: 1.0,
        ..Settings::default()
    });
    store.hello(1);
    for id in 1..=segments {
        store.mount(1, id, 0, length);
    }
    store
}

/// The object, and the names of its segments.
fn start(store: &mut Store, put: PutStart) -> Result<(Object, Vec<String>), Failure> {
    match store.ask(1, Operation::PutStart(put)) {
        Answer::Started(mut started) => started.results.remove(0).map(|object| {
            let names = object.replicas.iter().map(|replica| match replica {
                Replica::Memory { segment, .. } => started.segments[*segment as usize].name.clone(),
                other => panic!("only memory is allocated, not {other:?}"),
            });
            let names = names.collect();
            (object, names)
        }),
        other => panic!("PutStart answered {other:?}"),
    }
}

#[test]
fn replicas_lie_on_segments_of_different_names() {
    let mut store = store(3, MIB);
    for draw in 0..50u64 {
        let name = format!("key-{draw}");
        let wish = PutStart {
            replicas: 2,
            draw,
            ..put(&[(&name, 100)])
        };
        let (_, names) = start(&mut store, wish).expect("there is room");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 2, "{names:?}");
    }
    let wish = PutStart {
        replicas: 9,
        ..put(&[("k", 100)])
    };
    let (_, names) = start(&mut store, wish).expect("fewer replicas are better than none");
    assert_eq!(names.len(), 3);
}

#[test]
fn segments_of_one_name_never_hold_two_replicas_of_an_object() {
    let mut store = store(2, MIB);
    for id in 3..6 {
        let twin = SegmentIdentity {
            id: SegmentId([id; 16]),
            name: "segment-1".into(),
            owner: ClientId(1),
            registration: 1,
            generation: 0,
            length: MIB,
            owner_name: String::new(),
        };
        assert_eq!(store.ask(1, Operation::Mount(twin)), Answer::Done);
    }
    let wish = PutStart {
        replicas: 3,
        preferred: vec!["segment-1".to_owned(), "segment-1".to_owned()],
        ..put(&[("k", 100)])
    };
    let (_, names) = start(&mut store, wish).expect("there is room");
    assert_eq!(names, ["segment-1", "segment-2"]);
}

#[test]
fn preferred_segments_come_first_while_they_have_room() {
    let mut store = store(4, MIB);
    for (n, expected) in [(0, true), (1, true), (2, false)] {
        let name = format!("key-{n}");
        let wish = PutStart {
            preferred: vec!["elsewhere".to_owned(), "segment-3".to_owned()],
            draw: n,
            ..put(&[(&name, MIB / 2)])
        };
        let (_, names) = start(&mut store, wish).expect("there is room");
        assert_eq!(names == ["segment-3"], expected, "{names:?}");
    }
}

#[test]
fn every_segment_is_filled_before_anything_is_evicted() {
    let mut store = store(4, MIB);
    let mut used = BTreeSet::new();
    for n in 0..64u64 {
        let name = format!("key-{n}");
        let wish = PutStart {
            draw: n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ..put(&[(&name, MIB / 16)])
        };
        let (object, names) = start(&mut store, wish).expect("there is room");
        store.end(1, &name, object.incarnation).expect("it is ours");
        used.extend(names);
    }
    let counters = store.state.counters();
    assert_eq!(
        (counters.used_bytes, counters.evicted_objects),
        (4 * MIB, 0)
    );
    assert_eq!(used.len(), 4);
}

#[test]
fn a_large_object_evicts_as_much_as_it_needs_where_it_fits() {
    let mut store = store(1, MIB);
    for n in 0..16 {
        store.put(1, &format!("key-{n}"), MIB / 16);
    }
    store.put(1, "large", MIB / 4);
    assert_eq!(store.state.counters().evicted_objects, 4);
}

#[test]
fn what_is_being_written_is_never_evicted() {
    let mut store = store(1, MIB);
    let object = store.start(1, "k", MIB).expect("there is room");
    let full = store.ask(1, Operation::PutStart(put(&[("l", 1)])));
    let Answer::Started(started) = full else {
        panic!("PutStart answered {full:?}");
    };
    assert_eq!(started.results, [Err(Failure::NoSpace { length: 1 })]);
    let ended = store.ask(1, Operation::PutEnd(vec![(key("k"), object.incarnation)]));
    assert_eq!(ended, Answer::Keys(vec![Ok(())]));
}

#[test]
fn a_large_object_costs_its_neighbours_and_not_the_store() {
    let mut store = store(1, 64 * MIB);
    for n in 0..64 {
        store.put(1, &format!("key-{n}"), MIB);
    }
    // Every fourth one is being read: no five of them come free side by side.
    let read: Vec<_> = (0..64).step_by(4).map(|n| format!("key-{n}")).collect();
    let read: Vec<_> = read.iter().map(String::as_str).collect();
    let (lease, _) = store.lookup(1, &read);
    let full = Failure::NoSpace { length: 5 * MIB };
    let before = store.state.counters().evicted_objects;
    assert_eq!(store.start(1, "large", 5 * MIB), Err(full.clone()));
    let evicted = store.state.counters().evicted_objects - before;
    assert!(evicted <= 11, "{evicted} went in vain");
    assert_eq!(store.start(1, "large", 5 * MIB), Err(full));
    let again = store.state.counters().evicted_objects - before;
    assert_eq!(again, evicted, "and no more for asking again");

    store.release(1, lease);
    store.now += std::time::Duration::from_millis(100);
    store
        .start(1, "large", 5 * MIB)
        .expect("now there are five side by side");
    let evicted = store.state.counters().evicted_objects - before;
    assert!(evicted <= 11 + 15, "{evicted} of 64");
}

#[test]
fn nothing_is_evicted_where_that_is_of_no_use() {
    let mut store = store(2, 4 * MIB);
    store.mount(1, 9, 0, 64 * MIB);
    // The old objects are all in the two segments that are too small for what comes.
    for n in 0..16 {
        let name = format!("key-{n}");
        let (preferred, length) = if n < 8 {
            (vec!["segment-1".to_owned(), "segment-2".to_owned()], MIB)
        } else {
            (vec!["segment-9".to_owned()], 8 * MIB)
        };
        let wish = PutStart {
            preferred,
            ..put(&[(&name, length)])
        };
        let (object, _) = start(&mut store, wish).expect("there is room");
        let ended = store.end(1, &name, object.incarnation);
        ended.expect("it was started");
    }
    let (_, names) = start(&mut store, put(&[("large", 8 * MIB)])).expect("there is room");
    assert_eq!(names, ["segment-9"]);
    assert_eq!(store.state.counters().evicted_objects, 1);
    for n in 0..8 {
        assert!(store.exists(1, &format!("key-{n}")));
    }
}
