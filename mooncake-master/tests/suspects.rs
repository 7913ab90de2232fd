//! A client that may be dead: others are preferred to it, but nothing of it is dropped yet.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{Store, key, put};
use mooncake_master::state::{Answer, ClientId, Command, Operation, PutStart, Replica, Settings};

const MIB: u64 = 1 << 20;

/// Two owners of a segment each, and a writer without one.
fn store() -> Store {
    let mut store = Store::of(MIB, Settings::default());
    store.hello(2);
    store.mount(2, 2, 0, MIB);
    store.hello(3);
    store
}

/// The owners of the segments that so many puts are sent to.
fn owners_of_puts(store: &mut Store, run: &str) -> BTreeSet<ClientId> {
    let mut owners = BTreeSet::new();
    for draw in 0..32_u64 {
        let name = format!("{run}-{draw}");
        let wish = PutStart {
            draw: draw << 59,
            ..put(&[(&name, 100)])
        };
        match store.ask(3, Operation::PutStart(wish)) {
            Answer::Started(started) => {
                let owner = |segment: &mooncake_master::state::SegmentHandle| segment.owner;
                owners.extend(started.segments.iter().map(owner));
            }
            other => panic!("PutStart answered {other:?}"),
        }
    }
    owners
}

#[test]
fn law_10_nothing_new_goes_to_a_silent_owner_and_nothing_old_is_lost() {
    let mut store = store();
    for n in 0..16 {
        store.put(3, &format!("k{n}"), 1000);
    }
    let objects = store.state.counters().objects;
    store.pass(Duration::from_millis(3_100), &[1, 3]);
    assert_eq!(store.state.counters().suspect_clients, 1);
    assert_eq!(owners_of_puts(&mut store, "a"), [ClientId(1)].into());
    assert_eq!(store.state.counters().objects, objects);

    store.ask(2, Operation::Ping);
    assert_eq!(store.state.counters().suspect_clients, 0);
    let both = [ClientId(1), ClientId(2)].into();
    assert_eq!(owners_of_puts(&mut store, "b"), both);
}

#[test]
fn an_owner_whose_stream_ended_is_avoided_at_once_until_it_is_heard() {
    let mut store = store();
    store.apply(Command::Lost {
        client: ClientId(1),
    });
    assert_eq!(owners_of_puts(&mut store, "a"), [ClientId(2)].into());
    assert_eq!(store.hello(1), Answer::Hello { resumed: true });
    assert_eq!(owners_of_puts(&mut store, "b").len(), 2);
}

#[test]
fn where_all_are_suspect_none_is_avoided() {
    let mut store = store();
    for client in [1, 2] {
        store.apply(Command::Lost {
            client: ClientId(client),
        });
    }
    assert_eq!(owners_of_puts(&mut store, "a").len(), 2);
}

#[test]
fn replicas_of_suspects_are_named_last() {
    let mut store = store();
    let wish = PutStart {
        replicas: 2,
        ..put(&[("k", 100)])
    };
    let Answer::Started(started) = store.ask(3, Operation::PutStart(wish)) else {
        panic!("it starts");
    };
    let incarnation = started.results[0].as_ref().unwrap().incarnation;
    store.ask(3, Operation::PutEnd(vec![(key("k"), incarnation)]));
    for suspect in [1, 2] {
        store.hello(3 - suspect);
        store.apply(Command::Lost {
            client: ClientId(suspect),
        });
        let Answer::Looked { found, .. } = store.ask(3, Operation::Lookup(vec![key("k")])) else {
            panic!("it is looked up");
        };
        let owners: Vec<_> = found.results[0]
            .as_ref()
            .unwrap()
            .replicas
            .iter()
            .map(|replica| match replica {
                Replica::Memory { segment, .. } => found.segments[*segment as usize].owner.0,
                other => panic!("only memory is allocated, not {other:?}"),
            })
            .collect();
        assert_eq!(owners, [3 - suspect, suspect]);
    }
}
