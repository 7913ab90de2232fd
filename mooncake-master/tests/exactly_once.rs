//! A client that lost its stream asks again and gets the first answers.

mod common;

use common::{Store, key, put};
use mooncake_master::state::{Answer, Failure, Operation, Settings};

const MIB: u64 = 1 << 20;

#[test]
fn an_operation_number_is_answered_twice_alike() {
    let mut store = Store::of(MIB, Settings::default());
    let start = Operation::PutStart(put(&[("a", 10), ("a", 10), ("", 10)]));
    let first = store.ask_as(1, 100, start.clone());
    assert_eq!(store.ask_as(1, 100, start), first);
    let Answer::Started(started) = first else {
        panic!("PutStart answered {first:?}");
    };
    let incarnation = started.results[0].as_ref().unwrap().incarnation;
    let end = Operation::PutEnd(vec![(key("a"), incarnation)]);
    let remove = common::remove(vec![(key("a"), None)]);
    let ended = store.ask_as(1, 101, end.clone());
    let removed = store.ask_as(1, 102, remove.clone());
    assert_eq!(removed, Answer::Keys(vec![Ok(())]));
    assert_eq!(
        store.ask_as(1, 101, end),
        ended,
        "though by now it is revoked"
    );
    store.put(1, "a", 10);
    assert_eq!(store.ask_as(1, 102, remove), removed);
    assert!(store.exists(1, "a"), "the repeated remove changed nothing");
}

#[test]
fn numbers_are_each_clients_own_and_forgotten_when_acknowledged() {
    let mut store = Store::of(MIB, Settings::default());
    store.hello(2);
    let remove = common::remove(vec![(key("a"), None)]);
    let absent = Answer::Keys(vec![Err(Failure::ObjectNotFound)]);
    assert_eq!(store.ask_as(1, 500, remove.clone()), absent);
    store.put(1, "a", 10);
    assert_eq!(store.ask_as(1, 500, remove.clone()), absent);
    assert_eq!(
        store.ask_as(2, 500, remove.clone()),
        Answer::Keys(vec![Ok(())])
    );

    let client = mooncake_master::state::ClientId(1);
    let number = 501;
    store.apply(mooncake_master::state::Command::AcknowledgeBelow { client, number });
    let number = 500;
    let forgotten = Answer::Refused(Failure::OperationForgotten { number });
    assert_eq!(store.ask_as(1, number, remove), forgotten);
}

#[test]
fn law_11_answers_do_not_pile_up_without_bound() {
    let mut store = Store::of(MIB, Settings::default());
    let remove = common::remove(vec![]);
    let refused = (0..100_000).find_map(|_| match store.ask(1, remove.clone()) {
        Answer::Refused(failure) => Some(failure),
        _ => None,
    });
    assert!(
        matches!(refused, Some(Failure::AnswersPileUp { .. })),
        "{refused:?}"
    );
}
