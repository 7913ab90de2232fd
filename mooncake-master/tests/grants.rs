//! Space that is set aside for its owner, and puts in one step.

mod common;

use std::time::Duration;

use common::{Store, key, put};
use mooncake_master::{
    Time,
    state::{
        Answer, Effect, Failure, Grant, Incarnation, Operation, Placed, PutPlaced, SegmentId,
        Settings,
    },
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn settings() -> Settings {
    Settings {
        high_watermark: 1.0,
        low_watermark: 1.0,
        ..Settings::default()
    }
}

fn grant(store: &mut Store, client: u64, number: u64, length: u64) -> (u64, u64) {
    let segment = SegmentId([client as u8; 16]);
    let grant = Grant {
        segment,
        number,
        length,
    };
    match store.ask(client, Operation::Grant(grant)) {
        Answer::Granted { offset, length } => (offset, length),
        other => panic!("Grant answered {other:?}"),
    }
}

fn placed(name: &str, length: u64, grant: u64, offset: u64) -> Placed {
    Placed {
        key: key(name),
        length,
        grant,
        offset,
    }
}

fn put_placed(
    store: &mut Store,
    client: u64,
    items: Vec<Placed>,
    upsert: bool,
) -> Vec<Result<Incarnation, Failure>> {
    let put = PutPlaced {
        segment: SegmentId([client as u8; 16]),
        items,
        upsert,
    };
    match store.ask(client, Operation::Put(put)) {
        Answer::Put(results) => results,
        other => panic!("Put answered {other:?}"),
    }
}

fn give_back(store: &mut Store, client: u64, numbers: Vec<u64>) -> Answer {
    let segment = SegmentId([client as u8; 16]);
    store.ask(client, Operation::ReturnGrants { segment, numbers })
}

#[test]
fn a_put_in_a_grant_is_readable_after_one_step_and_charged_like_any_other() {
    let mut store = Store::of(MIB, settings());
    let (offset, length) = grant(&mut store, 1, 7, 64 * KIB);
    assert_eq!(length, 64 * KIB);
    let before = store.state.counters();
    assert_eq!((before.granted_bytes, before.used_bytes), (64 * KIB, 0));
    let items = vec![
        placed("a", 1_000, 7, offset),
        placed("b", 64, 7, offset + 1_024),
    ];
    let results = put_placed(&mut store, 1, items, false);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let (_, found) = store.lookup(1, &["a", "b"]);
    for (found, put) in found.into_iter().zip(results) {
        assert_eq!(found.unwrap().incarnation, put.unwrap());
    }
    let after = store.state.counters();
    assert_eq!((after.objects, after.puts_in_progress), (2, 0));
    assert_eq!(after.used_bytes, 1_024 + 64);
    assert_eq!(after.granted_bytes, 64 * KIB - 1_024 - 64);
    assert_eq!(give_back(&mut store, 1, vec![7, 99]), Answer::Done);
    assert_eq!(store.state.counters().granted_bytes, 0);
    store.remove(1, "a").unwrap();
    store.remove(1, "b").unwrap();
    store.pass(Duration::from_secs(11), &[1]);
    assert_eq!(store.state.counters().used_bytes, 0);
    assert_eq!(store.state.counters().quarantined_bytes, 0);
    store.put(1, "all", MIB);
}

#[test]
fn what_hinders_a_put_hinders_it_in_a_grant_too_and_leaves_the_space_with_the_grant() {
    let mut store = Store::of(MIB, settings());
    store.hello(2);
    let (offset, length) = grant(&mut store, 1, 1, 64 * KIB);
    store.put(2, "taken", 100);
    store.start(2, "begun", 100).unwrap();
    let items = vec![
        placed("taken", 64, 1, offset),
        placed("begun", 64, 1, offset),
        placed("", 64, 1, offset),
        placed("empty", 0, 1, offset),
        placed("beyond", 64, 1, offset + length),
        placed("unaligned", 64, 1, offset + 8),
        placed("unknown", 64, 2, offset),
        placed("twice", 64, 1, offset),
        placed("twice", 64, 1, offset + 64),
    ];
    let results = put_placed(&mut store, 1, items, false);
    assert_eq!(results[0], Err(Failure::ObjectExists));
    assert!(matches!(results[1], Err(Failure::PutInProgress { .. })));
    assert_eq!(results[2], Err(Failure::InvalidKey { length: 0 }));
    assert!(matches!(results[3], Err(Failure::InvalidParams { .. })));
    let lost = |grant| Err(Failure::GrantNotFound { grant });
    assert_eq!(results[4..7], [lost(1), lost(1), lost(2)]);
    assert!(results[7].is_ok());
    assert!(matches!(results[8], Err(Failure::PutInProgress { .. })));
    assert_eq!(store.state.counters().granted_bytes, length - 64);
    // The place of the one that was put is not the grant's any more.
    let again = put_placed(&mut store, 1, vec![placed("again", 64, 1, offset)], false);
    assert_eq!(again, [lost(1)]);
    let segment = SegmentId([1; 16]);
    let theirs = PutPlaced {
        segment,
        items: vec![placed("theirs", 64, 1, offset + 64)],
        upsert: false,
    };
    let refused = store.ask(2, Operation::Put(theirs));
    assert!(matches!(
        refused,
        Answer::Refused(Failure::IllegalClient { .. })
    ));
}

#[test]
fn an_upsert_in_a_grant_replaces_whole_versions_and_takes_late_puts_over() {
    let mut store = Store::of(MIB, settings());
    store.hello(2);
    let (offset, _) = grant(&mut store, 1, 1, 64 * KIB);
    let old = store.put(2, "k", 100);
    let late = store.start(2, "late", 100).unwrap();
    let new = put_placed(&mut store, 1, vec![placed("k", 64, 1, offset)], true);
    let new = new[0].clone().unwrap();
    assert!(new > old.incarnation);
    assert_eq!(store.lookup(2, &["k"]).1[0].as_ref().unwrap().length, 64);
    let deadline = store.state.settings().put_deadline;
    store.pass(deadline + Duration::from_secs(1), &[1, 2]);
    let taken = put_placed(
        &mut store,
        1,
        vec![placed("late", 64, 1, offset + 64)],
        false,
    );
    assert!(taken[0].as_ref().unwrap() > &late.incarnation);
    let end = store.end(2, "late", late.incarnation);
    assert_eq!(end, Err(Failure::Revoked));
}

#[test]
fn an_operation_number_of_a_put_in_a_grant_is_answered_twice_alike() {
    let mut store = Store::of(MIB, settings());
    let (offset, _) = grant(&mut store, 1, 1, 64 * KIB);
    let put = Operation::Put(PutPlaced {
        segment: SegmentId([1; 16]),
        items: vec![placed("k", 64, 1, offset)],
        upsert: true,
    });
    let first = store.ask_as(1, 1_000, put.clone());
    assert_eq!(store.ask_as(1, 1_000, put), first);
    assert_eq!(store.state.counters().objects, 1);
}

#[test]
fn law_07_grants_end_with_their_segment_and_with_their_owner() {
    let mut store = Store::of(MIB, settings());
    let (offset, _) = grant(&mut store, 1, 1, 64 * KIB);
    // The owner may be writing there: the same life of the memory does not come back.
    assert_eq!(
        store.ask(1, Operation::Unmount(SegmentId([1; 16]))),
        Answer::Done
    );
    assert_eq!(store.state.counters().granted_bytes, 0);
    assert_eq!(
        store.mount(1, 1, 0, MIB),
        Answer::Refused(Failure::StaleSegment { generation: 0 })
    );
    assert_eq!(store.mount(1, 1, 1, MIB), Answer::Done);
    let lost = put_placed(&mut store, 1, vec![placed("k", 64, 1, offset)], false);
    assert_eq!(lost, [Err(Failure::GrantNotFound { grant: 1 })]);

    grant(&mut store, 1, 2, 64 * KIB);
    store.pass(Duration::from_secs(12), &[]);
    let end = store.state.counters();
    assert_eq!(
        (end.clients, end.granted_bytes, end.capacity_bytes),
        (0, 0, 0)
    );
}

#[test]
fn grants_are_bounded_evict_nothing_and_never_take_the_last_space() {
    let mut store = Store::of(MIB, settings());
    let most = MIB / 10;
    let (_, length) = grant(&mut store, 1, 1, MIB);
    assert!(length <= most && length > most - 64, "{length}");
    assert_eq!(grant(&mut store, 1, 2, MIB), (0, 0), "there is a share");
    give_back(&mut store, 1, vec![1]);

    store.put(1, "large", MIB - 32 * KIB);
    let (_, length) = grant(&mut store, 1, 3, MIB);
    assert_eq!(length, 16 * KIB, "half of what is free");
    assert_eq!(store.state.counters().evicted_objects, 0);
    for number in 4..100 {
        grant(&mut store, 1, number, 64);
    }
    let granted = store.state.counters().granted_bytes;
    assert!(granted <= 16 * KIB + 63 * 64, "{granted}");
    let taken = Grant {
        segment: SegmentId([1; 16]),
        number: 3,
        length: 64,
    };
    let refused = store.ask(1, Operation::Grant(taken));
    assert!(matches!(
        refused,
        Answer::Refused(Failure::InvalidParams { .. })
    ));
}

#[test]
fn a_put_that_finds_no_space_makes_owners_return_what_they_do_not_use() {
    let mut store = Store::of(MIB, settings());
    let (_, length) = grant(&mut store, 1, 1, MIB);
    assert!(length > 0);
    store.number += 1;
    let number = store.number;
    let caller = mooncake_master::state::Caller::Session {
        client: mooncake_master::state::ClientId(1),
        number,
    };
    let operation = Operation::PutStart(put(&[("all", MIB)]));
    let applied = store.apply(mooncake_master::state::Command::Perform { caller, operation });
    let Answer::Started(started) = applied.answer else {
        panic!("PutStart is answered by {:?}", applied.answer);
    };
    assert_eq!(started.results[0], Err(Failure::NoSpace { length: MIB }));
    let client = mooncake_master::state::ClientId(1);
    assert!(applied.effects.contains(&Effect::Reclaim { client }));
    give_back(&mut store, 1, vec![1]);
    assert_eq!(
        grant(&mut store, 1, 2, MIB),
        (0, 0),
        "space was short just now"
    );
    store.put(1, "all", MIB);
    store.remove(1, "all").unwrap();
    store.now += Duration::from_secs(2);
    assert!(grant(&mut store, 1, 3, MIB).1 > 0);
    assert!(store.now > Time::ZERO);
}

#[test]
fn what_is_granted_counts_as_taken_where_eviction_looks_at_the_watermark() {
    let settings = Settings {
        high_watermark: 0.5,
        low_watermark: 0.4,
        ..Settings::default()
    };
    let mut store = Store::of(MIB, settings);
    let (_, length) = grant(&mut store, 1, 1, MIB / 10);
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    for name in names {
        store.put(1, name, 48 * KIB);
    }
    let put = names.len() as u64 * 48 * KIB;
    assert!(put < MIB / 2 && put + length > MIB / 2);
    let after = store.state.counters();
    assert!(after.evicted_objects > 0);
    assert!(after.used_bytes + after.granted_bytes <= MIB / 5 * 2);
}
