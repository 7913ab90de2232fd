//! A client falls silent: what it brought and began is dropped, what others hold is not.

mod common;

use std::time::Duration;

use common::Store;
use mooncake_master::state::{
    Answer, Caller, ClientId, Command, Failure, Operation, SegmentId, SegmentIdentity, Settings,
};

const MIB: u64 = 1 << 20;

#[test]
fn its_segments_go_and_objects_there_vanish() {
    let mut store = Store::of(MIB, Settings::default());
    store.hello(2);
    store.mount(2, 2, 0, MIB);
    for n in 0..64 {
        store.put(1, &format!("k{n}"), 1000);
    }
    store.pass(Duration::from_secs(10), &[1]);
    assert_eq!(
        store.state.counters().clients,
        2,
        "ten seconds are not yet longer than the TTL"
    );
    let before = store.state.counters().objects;
    store.pass(Duration::from_millis(1), &[1]);
    let after = store.state.counters();
    assert_eq!(
        (after.clients, after.segments, after.capacity_bytes),
        (1, 1, MIB)
    );
    assert!(after.objects > 0 && after.objects < before);
    assert_eq!(after.used_bytes, after.objects * 1024);
    let gone = store.ask(2, Operation::PutEnd(vec![]));
    assert_eq!(gone, Answer::Refused(Failure::Fenced));
    assert_eq!(store.hello(2), Answer::Hello { resumed: false });
}

#[test]
fn its_unfinished_puts_are_dropped_and_their_memory_waits() {
    let mut store = Store::of(MIB, Settings::default());
    store.hello(2);
    store.start(2, "k", 1000).unwrap();
    store.pass(Duration::from_secs(11), &[1]);
    assert_eq!(store.state.counters().quarantined_bytes, 1024);
    store.start(1, "k", 1000).unwrap();
    store.pass(Duration::from_secs(50), &[1]);
    assert_eq!(store.state.counters().quarantined_bytes, 1024);
    store.pass(Duration::from_secs(1), &[1]);
    assert_eq!(store.state.counters().quarantined_bytes, 0);
}

#[test]
fn law_10_time_that_the_master_slept_is_not_held_against_it() {
    let mut store = Store::of(MIB, Settings::default());
    store.pass(Duration::from_secs(2), &[1]);
    store.now += Duration::from_secs(3600);
    store.apply(Command::Tick);
    assert_eq!(store.state.counters().clients, 1);
    store.pass(Duration::from_secs(11), &[]);
    assert_eq!(store.state.counters().clients, 0);
}

#[test]
fn a_segment_is_mounted_once_and_its_owner_alone_decides() {
    let mut store = Store::of(MIB, Settings::default());
    store.hello(2);
    store.put(1, "k", 1000);
    assert_eq!(store.mount(1, 1, 0, MIB), Answer::Done);
    assert!(store.exists(1, "k"), "mounting again changes nothing");
    let owner = ClientId(1);
    let illegal = Answer::Refused(Failure::IllegalClient { owner });
    assert_eq!(store.mount(2, 1, 0, MIB), illegal);
    assert_eq!(
        store.ask(2, Operation::Unmount(SegmentId([1; 16]))),
        illegal
    );

    assert_eq!(store.mount(1, 1, 1, 2 * MIB), Answer::Done);
    assert!(!store.exists(1, "k"), "another generation is other memory");
    assert_eq!(store.state.counters().capacity_bytes, 2 * MIB);
    assert_eq!(
        store.ask(1, Operation::Unmount(SegmentId([1; 16]))),
        Answer::Done
    );
    let unknown = Answer::Refused(Failure::SegmentNotFound);
    assert_eq!(
        store.ask(1, Operation::Unmount(SegmentId([1; 16]))),
        unknown
    );
}

#[test]
fn law_07_a_life_of_a_segment_that_readers_may_still_use_does_not_come_back() {
    let mut store = Store::of(MIB, Settings::default());
    store.put(1, "k", 1000);
    store.lookup(1, &["k"]);
    store.ask(1, Operation::Unmount(SegmentId([1; 16])));
    let stale = Answer::Refused(Failure::StaleSegment { generation: 0 });
    assert_eq!(store.mount(1, 1, 0, MIB), stale);
    assert_eq!(store.mount(1, 1, 1, MIB), Answer::Done);
}

#[test]
fn an_owner_known_by_single_calls_can_say_hello_later() {
    let mut store = Store::new(Settings::default());
    let segment = SegmentIdentity {
        id: SegmentId([1; 16]),
        name: "segment".into(),
        owner: ClientId(1),
        registration: 1,
        generation: 0,
        length: MIB,
        owner_name: String::new(),
    };
    let caller = Caller::Unary {
        client: ClientId(1),
        tenant: String::new(),
    };
    let operation = Operation::Mount(segment);
    let mounted = store.apply(Command::Perform { caller, operation });
    assert_eq!(mounted.answer, Answer::Done);
    let early = store.ask(1, Operation::Ping);
    assert_eq!(early, Answer::Refused(Failure::Fenced));
    let (client, name) = (ClientId(1), String::new());
    let tenant = "t".to_owned();
    let hello = Command::Hello {
        client,
        tenant,
        name,
    };
    assert_eq!(store.apply(hello).answer, Answer::Hello { resumed: true });
    assert!(
        matches!(store.hello(1), Answer::Refused(_)),
        "bound to a tenant for life"
    );
    store.put(1, "k", 1);
}

#[test]
fn a_client_that_did_not_hear_that_its_state_was_lost_is_told_again() {
    let mut store = Store::of(MIB, Settings::default());
    let fresh = Answer::Hello { resumed: false };
    assert_eq!(store.hello(2), fresh);
    assert_eq!(store.hello(2), fresh, "its first answer may have been lost");
    store.ask(2, Operation::Ping);
    assert_eq!(store.hello(2), Answer::Hello { resumed: true });
}
