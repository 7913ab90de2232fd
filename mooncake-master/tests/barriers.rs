//! Removes that are answered when nobody can read what they removed.

mod common;

use std::time::Duration;

use common::{Store, key};
use mooncake_master::state::{
    Answer, Applied, Caller, ClientId, Command, Effect, Failure, Operation, Remove, Settings,
};

const MIB: u64 = 1 << 20;

fn barrier(keys: &[&str]) -> Operation {
    let items = keys.iter().map(|name| (key(name), None)).collect();
    Operation::Remove(Remove {
        items,
        barrier: true,
    })
}

/// As another client than the one that reads.
fn perform(store: &mut Store, number: u64, operation: Operation) -> Applied {
    let caller = Caller::Session {
        client: ClientId(2),
        number,
    };
    store.apply(Command::Perform { caller, operation })
}

fn settled(applied: &Applied) -> Vec<Answer> {
    let answer = |effect: &Effect| match effect {
        Effect::Settled { answer, .. } => Some(answer.clone()),
        _ => None,
    };
    applied.effects.iter().filter_map(answer).collect()
}

fn release(store: &mut Store, lease: u64) -> Applied {
    store.number += 1;
    let caller = Caller::Session {
        client: ClientId(1),
        number: store.number,
    };
    let operation = Operation::Release(vec![lease]);
    store.apply(Command::Perform { caller, operation })
}

fn store() -> Store {
    let mut store = Store::of(8 * MIB, Settings::default());
    store.hello(2);
    store
}

#[test]
fn law_06_a_barrier_waits_for_every_reader_and_no_longer() {
    let mut store = store();
    store.put(1, "a", MIB);
    store.put(1, "b", MIB);
    let (both, _) = store.lookup(1, &["a", "b"]);
    let (one, _) = store.lookup(1, &["a"]);
    let asked = perform(&mut store, 1, barrier(&["a", "b", "absent"]));
    assert!(matches!(asked.answer, Answer::Later { .. }), "{asked:?}");
    assert!(!store.exists(2, "a"), "it is gone at once");
    assert_eq!(store.state.counters().promised_answers, 1);
    assert_eq!(settled(&release(&mut store, both)), []);
    let answer = Answer::Keys(vec![Ok(()), Ok(()), Err(Failure::ObjectNotFound)]);
    assert_eq!(
        settled(&release(&mut store, one)),
        std::slice::from_ref(&answer)
    );
    assert_eq!(store.state.counters().promised_answers, 0);
    let again = perform(&mut store, 1, barrier(&["a", "b", "absent"]));
    assert_eq!(again.answer, answer, "a client that lost it asks again");
}

#[test]
fn law_06_a_barrier_waits_for_readers_of_earlier_lives_too() {
    let mut store = store();
    store.put(1, "a", MIB);
    let (first, _) = store.lookup(1, &["a"]);
    store.remove(1, "a").unwrap();
    store.put(1, "a", MIB);
    let asked = perform(&mut store, 1, barrier(&["a"]));
    assert!(matches!(asked.answer, Answer::Later { .. }), "{asked:?}");
    // As a caller does that did not wait for the answer.
    let again = perform(&mut store, 2, barrier(&["a"]));
    assert!(matches!(again.answer, Answer::Later { .. }), "{again:?}");
    let done = Answer::Keys(vec![Ok(())]);
    let absent = Answer::Keys(vec![Err(Failure::ObjectNotFound)]);
    assert_eq!(settled(&release(&mut store, first)), [done, absent.clone()]);
    let late = perform(&mut store, 3, barrier(&["a"]));
    assert_eq!(late.answer, absent);
}

#[test]
fn a_barrier_ends_with_the_lease_of_a_dead_reader() {
    let mut store = store();
    store.put(1, "a", MIB);
    store.lookup(1, &["a"]);
    let asked = perform(&mut store, 1, barrier(&["a"]));
    assert!(matches!(asked.answer, Answer::Later { .. }));
    let again = perform(&mut store, 1, barrier(&["a"]));
    assert_eq!(again.answer, asked.answer, "it is not asked twice");
    store.now += Settings::default().lease_ttl;
    let ticked = store.apply(Command::Tick);
    assert_eq!(settled(&ticked), [Answer::Keys(vec![Ok(())])]);
}

#[test]
fn without_readers_a_barrier_is_passed_at_once() {
    let mut store = store();
    store.put(1, "a", MIB);
    let asked = perform(&mut store, 1, barrier(&["a"]));
    assert_eq!(asked.answer, Answer::Keys(vec![Ok(())]));
}

#[test]
fn all_of_a_tenant_goes_at_once_and_nothing_that_comes_later() {
    let settings = Settings {
        high_watermark: 1.0,
        ..Settings::default()
    };
    let mut store = Store::of(64 * MIB, settings);
    store.hello(2);
    // More than one step takes out.
    let objects = 10_000;
    let names: Vec<_> = (0..objects).map(|n| n.to_string()).collect();
    for name in &names {
        store.put(1, name, 1);
    }
    let writing = store.start(1, "writing", 1).unwrap();
    let (lease, _) = store.lookup(1, &["9999"]);
    let asked = perform(&mut store, 1, Operation::RemoveAll);
    assert!(matches!(asked.answer, Answer::Later { .. }));
    for name in ["0", "5000", "9999"] {
        assert!(!store.exists(2, name), "{name} is out of sight at once");
    }
    assert_eq!(
        store.end(1, "writing", writing.incarnation),
        Err(Failure::Revoked)
    );
    store.revoke(1, "writing", writing.incarnation).unwrap();
    store.put(1, "0", 1);
    store.put(1, "new", 1);
    let mut steps = 0;
    while let Answer::Ticked { more: true } = store.apply(Command::Tick).answer {
        steps += 1;
    }
    assert!(steps > 0);
    let counters = store.state.counters();
    assert_eq!((counters.objects, counters.evicted_objects), (2, 0));
    assert!(store.exists(2, "0") && store.exists(2, "new"));
    let all = Answer::Removed { objects };
    assert_eq!(settled(&release(&mut store, lease)), [all]);
    let counters = store.state.counters();
    assert_eq!(
        (counters.quarantined_bytes, counters.promised_answers),
        (0, 0)
    );
}

#[test]
fn law_06_removing_all_waits_for_readers_of_what_was_gone_before() {
    let mut store = store();
    store.put(1, "removed", MIB);
    let (lease, _) = store.lookup(1, &["removed"]);
    store.remove(1, "removed").unwrap();
    let asked = perform(&mut store, 1, Operation::RemoveAll);
    assert!(matches!(asked.answer, Answer::Later { .. }), "{asked:?}");
    let none = Answer::Removed { objects: 0 };
    assert_eq!(settled(&release(&mut store, lease)), [none]);
    let again = perform(&mut store, 2, Operation::RemoveAll);
    assert_eq!(again.answer, Answer::Removed { objects: 0 });
}

#[test]
fn other_tenants_keep_what_they_have() {
    let mut store = store();
    store.put(1, "k", 1);
    let caller = Caller::Unary {
        client: ClientId::NOBODY,
        tenant: "other".to_owned(),
    };
    let operation = Operation::RemoveAll;
    let answer = store.apply(Command::Perform { caller, operation }).answer;
    assert_eq!(answer, Answer::Removed { objects: 0 });
    assert!(store.exists(1, "k"));
    let answer = perform(&mut store, 1, Operation::RemoveAll).answer;
    assert_eq!(answer, Answer::Removed { objects: 1 });
}

#[test]
fn law_13_a_client_that_takes_leave_leaves_nothing() {
    for quiet in [true, false] {
        let mut store = Store::of(8 * MIB, Settings::default());
        store.hello(2);
        store.mount(2, 2, 0, MIB);
        store.put(1, "k", MIB);
        store.lookup(2, &["k"]);
        store.remove(1, "k").unwrap();
        store.start(2, "unended", MIB).unwrap();
        let cancelled = store.start(2, "cancelled", MIB).unwrap();
        store.remove(1, "cancelled").unwrap();
        assert_eq!(store.ask(2, Operation::Goodbye { quiet }), Answer::Done);
        let counters = store.state.counters();
        assert_eq!((counters.clients, counters.segments), (1, 1));
        assert_eq!(counters.puts_in_progress, 0);
        if quiet {
            assert_eq!((counters.leases, counters.quarantined_bytes), (0, 0));
        } else {
            assert_eq!(counters.leases, 1);
            assert!(counters.quarantined_bytes >= 2 * MIB);
        }
        let items = vec![(key("cancelled"), cancelled.incarnation)];
        assert_eq!(
            store.ask(2, Operation::PutEnd(items)),
            Answer::Refused(Failure::Fenced)
        );
        store.pass(Duration::from_secs(100), &[1]);
        let counters = store.state.counters();
        assert_eq!((counters.leases, counters.quarantined_bytes), (0, 0));
    }
}

#[test]
fn law_06_a_barrier_also_waits_for_what_a_removal_of_all_has_not_come_to() {
    let mut store = Store::of(64 * MIB, Settings::default());
    store.hello(2);
    for n in 0..10_000 {
        store.put(1, &n.to_string(), 1);
    }
    let (lease, _) = store.lookup(1, &["9999"]);
    let all = perform(&mut store, 1, Operation::RemoveAll);
    assert!(matches!(all.answer, Answer::Later { .. }));
    let one = perform(&mut store, 2, barrier(&["9999"]));
    assert!(matches!(one.answer, Answer::Later { .. }), "{one:?}");
    while let Answer::Ticked { more: true } = store.apply(Command::Tick).answer {}
    let mut answers = settled(&release(&mut store, lease));
    answers.sort_by_key(|answer| matches!(answer, Answer::Keys(_)));
    let expected = [
        Answer::Removed { objects: 10_000 },
        Answer::Keys(vec![Err(Failure::ObjectNotFound)]),
    ];
    assert_eq!(answers, expected);
}

#[test]
fn law_11_too_many_promises_are_refused_and_nothing_is_removed() {
    let mut store = store();
    store.put(1, "read", 1);
    store.put(1, "kept", 1);
    let (lease, _) = store.lookup(1, &["read"]);
    let mut number = 0;
    let refused = loop {
        number += 1;
        let caller = Caller::Unary {
            client: ClientId(2),
            tenant: String::new(),
        };
        let operation = barrier(&["read"]);
        match store.apply(Command::Perform { caller, operation }).answer {
            Answer::Later { .. } => assert!(number <= 100_000, "there is an end"),
            answer => break answer,
        }
    };
    let full = Answer::Refused(Failure::PromisesPileUp { held: number - 1 });
    assert_eq!(refused, full);
    assert_eq!(perform(&mut store, 1, barrier(&["kept"])).answer, full);
    assert_eq!(perform(&mut store, 2, Operation::RemoveAll).answer, full);
    assert!(store.exists(1, "kept"), "what is refused is not done");
    assert_eq!(store.remove(1, "kept"), Ok(()), "others need no promise");
    let answers = settled(&release(&mut store, lease));
    assert_eq!(answers.len() as u64, number - 1);
    assert_eq!(store.state.counters().promised_answers, 0);
}
