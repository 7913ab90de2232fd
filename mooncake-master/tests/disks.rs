//! Objects on disks: how they come there, are read from there, and are removed from there.

mod common;
#[path = "common/disk.rs"]
mod disk;

use std::time::Duration;

use common::Store;
use disk::{held, storage};
use mooncake_master::state::{
    Answer, ClientId, Command, Effect, Failure, Offload, Offloaded, Operation, Record, Replica,
    Settings, State, StorageCall,
};

const MIB: u64 = 1 << 20;

fn settings(offload: Offload) -> Settings {
    Settings {
        offload,
        log: true,
        ..Settings::default()
    }
}

/// Memory of 1 MiB at client 1, and its disk.
fn store(offload: Offload) -> Store {
    let mut store = Store::of(MIB, settings(offload));
    store.join_with_disk(1);
    store
}

/// Takes the object's memory by writing something large.
fn evict_all(store: &mut Store) {
    let large = store.start(1, "large", MIB).expect("nothing holds memory");
    let revoked = store.revoke(1, "large", large.incarnation);
    assert_eq!(revoked, Ok(()));
}

#[test]
fn what_is_written_is_copied_and_read_from_the_disk_when_its_memory_is_gone() {
    let mut store = store(Offload::Eager);
    let object = store.put(1, "k", 1000);
    let (tasks, lease) = store.fetch_offloads(1, 1);
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks[0].1, object);
    assert_ne!(lease, 0, "its memory stays until it is read");
    assert!(matches!(
        store.start(1, "large", MIB),
        Err(Failure::NoSpace { .. })
    ));
    store.notify(1, 1, tasks[0].0, Offloaded::Done).unwrap();
    store.release(1, lease);
    let (_, found) = store.lookup(1, &["k"]);
    let replicas = &found[0].as_ref().unwrap().replicas;
    assert!(matches!(
        replicas[..],
        [Replica::Memory { .. }, Replica::LocalDisk { storage: 0 }]
    ));
    store.pass(Duration::from_secs(11), &[1]);

    evict_all(&mut store);
    assert!(store.exists(1, "k"));
    let (_, found) = store.lookup(1, &["k"]);
    let found = found[0].as_ref().unwrap();
    assert_eq!(found.replicas[..], [Replica::LocalDisk { storage: 0 }]);
    assert_eq!(found.incarnation, object.incarnation);
    assert_eq!(store.start(1, "k", 9), Err(Failure::ObjectExists));
}

#[test]
fn eviction_waits_for_the_disk_where_that_is_asked_for() {
    let mut store = store(Offload::OnEvict);
    for n in 0..15 {
        store.put(1, &format!("k{n}"), MIB / 16);
    }
    // 15 of 16: above the high watermark, so the oldest are to go.
    assert!(store.state.counters().saving_bytes > 0);
    assert_eq!(store.state.counters().evicted_objects, 0);
    let saved = store.offload_all(1, 1);
    assert!(saved >= 1);
    store.apply(Command::Tick);
    assert_eq!(store.state.counters().evicted_objects, saved as u64);
    assert_eq!(store.state.counters().saving_bytes, 0);
    for n in 0..15 {
        assert!(store.exists(1, &format!("k{n}")), "k{n} is lost");
    }
}

#[test]
fn no_tail_is_lost_that_waits_or_came_before_the_disk() {
    let mut store = Store::of(MIB, settings(Offload::Eager));
    for n in 0..7 {
        store.put(1, &format!("k{n}"), MIB / 16);
    }
    store.join_with_disk(1);
    for n in 7..15 {
        store.put(1, &format!("k{n}"), MIB / 16);
    }
    for _ in 0..9 {
        store.offload_all(1, 1);
        store.apply(Command::Tick);
    }
    // Memory runs short again and again.
    for n in 15..40 {
        store.put(1, &format!("k{n}"), MIB / 16);
        store.offload_all(1, 1);
        store.apply(Command::Tick);
    }
    for n in 0..40 {
        assert!(store.exists(1, &format!("k{n}")), "k{n} is lost");
    }
}

#[test]
fn a_disk_that_hangs_does_not_bring_the_store_to_a_stop() {
    let mut store = store(Offload::OnEvict);
    for n in 0..15 {
        store.put(1, &format!("k{n}"), MIB / 16);
    }
    let (tasks, lease) = store.fetch_offloads(1, 1);
    store.release(1, lease);
    assert!(!tasks.is_empty());
    // It goes on to report, and says nothing of its tasks.
    for n in 15..100 {
        store.pass(Duration::from_secs(1), &[1]);
        store.put(1, &format!("k{n}"), MIB / 16);
    }
    let counters = store.state.counters();
    assert!(counters.saving_bytes <= MIB / 4 && counters.evicted_objects > 60);
}

#[test]
fn a_disk_that_refuses_does_not_keep_memory_from_being_evicted() {
    let mut store = store(Offload::OnEvict);
    for n in 0..15 {
        store.put(1, &format!("k{n}"), MIB / 16);
    }
    for _ in 0..9 {
        let (tasks, lease) = store.fetch_offloads(1, 1);
        store.release(1, lease);
        for (task, _) in tasks {
            store.notify(1, 1, task, Offloaded::Failed).unwrap();
        }
    }
    let counters = store.state.counters();
    assert!(counters.failed_offloads > 0 && counters.evicted_objects == counters.failed_offloads);
    assert_eq!((counters.saving_bytes, counters.queued_offloads), (0, 0));
}

#[test]
fn law_06_a_remove_makes_a_task_that_stays_until_it_is_acknowledged() {
    let mut store = store(Offload::Eager);
    let object = store.put(1, "k", 1000);
    assert_eq!(store.offload_all(1, 1), 1);
    store.remove(1, "k").unwrap();
    assert!(!store.exists(1, "k"));
    let tasks = store.fetch_removes(1, 1);
    assert_eq!(store.fetch_removes(1, 1), tasks, "fetching deletes nothing");
    let [(task, removal)] = &tasks[..] else {
        panic!("one task was expected, not {tasks:?}");
    };
    assert_eq!(removal.key, Some(common::key("k")));
    assert_eq!(removal.incarnation, object.incarnation);
    // A newer life of the key is not what the task means.
    let newer = store.put(1, "k", 1000);
    assert!(newer.incarnation > removal.incarnation);
    store.acknowledge(1, 1, vec![*task, *task, 99]);
    assert_eq!(store.fetch_removes(1, 1), []);
    assert!(store.exists(1, "k"));
}

#[test]
fn an_offload_in_flight_is_revoked_by_a_remove_and_gets_its_task() {
    let mut store = store(Offload::Eager);
    store.put(1, "k", 1000);
    let (tasks, _) = store.fetch_offloads(1, 1);
    store.remove(1, "k").unwrap();
    assert_eq!(store.fetch_removes(1, 1).len(), 1);
    let named = Some(("k", &tasks[0].1));
    assert_eq!(
        store.notify_of(1, 1, tasks[0].0, named, Offloaded::Done),
        Err(Failure::Revoked)
    );
    assert!(!store.exists(1, "k"));
    // What only waited leaves nothing behind.
    store.put(1, "l", 1000);
    store.remove(1, "l").unwrap();
    assert_eq!(store.fetch_removes(1, 1).len(), 1);
    assert_eq!(store.fetch_offloads(1, 1), (Vec::new(), 0));
}

#[test]
fn what_replaces_an_object_has_the_former_life_removed_from_disks() {
    let mut store = store(Offload::Eager);
    let old = store.put(1, "k", 1000);
    store.offload_all(1, 1);
    let mut put = common::put(&[("k", 10)]);
    put.upsert = true;
    let Answer::Started(started) = store.ask(1, Operation::PutStart(put)) else {
        panic!("the upsert did not start");
    };
    let new = started.results[0].clone().unwrap();
    assert_eq!(
        store.fetch_removes(1, 1),
        [],
        "a put that fails leaves the old one"
    );
    store.end(1, "k", new.incarnation).unwrap();
    let tasks = store.fetch_removes(1, 1);
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks[0].1.incarnation, old.incarnation);
}

#[test]
fn law_11_a_full_queue_says_busy_and_the_key_stays() {
    let limited = Settings {
        remove_queue_limit: 2,
        ..settings(Offload::Eager)
    };
    let mut store = Store::of(MIB, limited);
    store.join_with_disk(1);
    for key in ["a", "b", "c"] {
        store.put(1, key, 1000);
    }
    assert_eq!(store.offload_all(1, 1), 3);
    let busy = Failure::RemovesPileUp {
        storage: storage(1),
        held: 2,
    };
    store.remove(1, "a").unwrap();
    store.remove(1, "b").unwrap();
    assert_eq!(store.remove(1, "c"), Err(busy.clone()));
    assert!(store.exists(1, "c"));
    assert_eq!(
        store.ask(1, Operation::RemoveAll),
        Answer::Refused(busy.clone())
    );
    assert!(store.exists(1, "c"));
    // A put that replaces it waits as well, and then ends.
    let mut put = common::put(&[("c", 10)]);
    put.upsert = true;
    let Answer::Started(started) = store.ask(1, Operation::PutStart(put)) else {
        panic!("the upsert did not start");
    };
    let new = started.results[0].clone().unwrap().incarnation;
    assert_eq!(store.end(1, "c", new), Err(busy));
    let tasks = store.fetch_removes(1, 1);
    store.acknowledge(1, 1, vec![tasks[0].0]);
    store.end(1, "c", new).unwrap();
    assert_eq!(
        store.lookup(1, &["c"]).1[0].as_ref().unwrap().incarnation,
        new
    );
}

#[test]
fn remove_all_is_answered_when_all_holders_have_acknowledged_or_died() {
    let mut store = store(Offload::Eager);
    store.join_with_disk(2);
    store.put(1, "k", 1000);
    store.offload_all(1, 1);
    let Answer::Later { ticket } = store.ask(1, Operation::RemoveAll) else {
        panic!("it was answered before the holders had removed anything");
    };
    assert!(!store.exists(1, "k"));
    let tasks = store.fetch_removes(1, 1);
    assert_eq!(tasks[0].1.key, None);
    store.acknowledge(1, 1, tasks.iter().map(|(task, _)| *task).collect());
    // The other one falls silent.
    let mut settled = Vec::new();
    for _ in 0..12 {
        store.now += Duration::from_secs(1);
        store.ask(1, Operation::Ping);
        let effects = store.apply(Command::Tick).effects;
        settled.extend(effects.into_iter().filter(
            |effect| matches!(effect, Effect::Settled { ticket: it, .. } if *it == ticket),
        ));
    }
    assert_eq!(settled.len(), 1);
}

#[test]
fn law_06_a_holder_that_returns_keeps_what_is_known_and_nothing_else() {
    let mut store = store(Offload::Eager);
    let kept = store.put(1, "kept", 1000);
    let removed = store.put(1, "removed", 1000);
    let lost = store.put(1, "lost", 1000);
    store.offload_all(1, 1);
    evict_all(&mut store);
    assert!(store.exists(1, "kept"));
    store.call(
        1,
        StorageCall::Unmount {
            storage: storage(1),
        },
    );
    for key in ["kept", "removed", "lost"] {
        assert!(!store.exists(1, key), "{key} is announced");
        assert_eq!(store.lookup(1, &[key]).1, [Err(Failure::ObjectNotFound)]);
    }
    store.remove(1, "removed").unwrap();

    // Another life of the holder.
    store.hello(2);
    assert_eq!(store.attach(2, 1, false), Answer::Done);
    assert!(!store.exists(1, "kept"), "it is not reconciled");
    let mut wrong = held("kept", &kept);
    wrong.length += 1;
    let mut never = held("never", &kept);
    never.incarnation.sequence += 1000;
    let told = vec![held("removed", &removed), held("kept", &kept), wrong, never];
    assert_eq!(store.reconcile(2, 1, told), [0, 2, 3]);
    assert!(store.exists(1, "kept"));
    assert!(!store.exists(1, "removed") && !store.exists(1, "lost"));
    assert_eq!(store.state.counters().lost_replicas, 1);
    let (_, found) = store.lookup(1, &["lost"]);
    assert_eq!(found, [Err(Failure::ObjectNotFound)], "{lost:?}");
    // The former life has no say any more.
    let report = StorageCall::Unmount {
        storage: storage(1),
    };
    let owner = ClientId(2);
    assert_eq!(
        store.call(1, report),
        Answer::Refused(Failure::IllegalClient { owner })
    );
}

#[test]
fn a_key_whose_only_disk_is_away_can_be_put_anew_and_the_old_life_does_not_return() {
    let mut store = store(Offload::Eager);
    let old = store.put(1, "k", 1000);
    store.offload_all(1, 1);
    evict_all(&mut store);
    store.call(
        1,
        StorageCall::Unmount {
            storage: storage(1),
        },
    );
    let new = store.put(1, "k", 500);
    store.hello(2);
    store.attach(2, 1, false);
    assert_eq!(store.reconcile(2, 1, vec![held("k", &old)]), [0]);
    let (_, found) = store.lookup(1, &["k"]);
    assert_eq!(found[0].as_ref().unwrap().incarnation, new.incarnation);
}

#[test]
fn an_unknown_storage_is_refused_until_it_is_adopted_and_then_keeps_what_is_free() {
    let mut other = store(Offload::Eager);
    let mine = other.put(1, "mine", 1000);
    let theirs = other.put(1, "theirs", 1000);

    let mut store = restarted(Vec::new());
    store.hello(1);
    store.mount(1, 1, 0, MIB);
    assert_eq!(
        store.attach(1, 9, false),
        Answer::Refused(Failure::StorageUnknown {
            storage: storage(9)
        })
    );
    assert_eq!(
        store.call(
            0,
            StorageCall::Adopt {
                storage: storage(9)
            }
        ),
        Answer::Done
    );
    assert_eq!(store.attach(1, 9, false), Answer::Done);
    for n in 0..4 {
        store.put(1, &format!("other-{n}"), 10);
    }
    let current = store.put(1, "mine", 10);
    assert_ne!(current.incarnation, mine.incarnation);
    let told = vec![held("mine", &mine), held("theirs", &theirs)];
    assert_eq!(store.reconcile(1, 9, told.clone()), [0]);
    assert!(store.exists(1, "theirs"));
    assert_eq!(
        store.lookup(1, &["mine"]).1[0]
            .as_ref()
            .unwrap()
            .incarnation,
        current.incarnation
    );
    // It is adopted once.
    store.remove(1, "theirs").unwrap();
    assert_eq!(store.reconcile(1, 9, told), [0, 1]);
}

#[test]
fn law_04_pages_that_make_no_sense_are_refused() {
    let mut store = store(Offload::Eager);
    let object = store.put(1, "k", 1000);
    let mut long = held("k", &object);
    long.length = u64::MAX;
    for (page, objects) in [(u64::MAX, Vec::new()), (7, Vec::new()), (0, vec![long])] {
        let call = StorageCall::Reconcile {
            storage: storage(1),
            page,
            objects,
            last: true,
        };
        let answer = store.call(1, call);
        assert!(
            matches!(answer, Answer::Refused(Failure::InvalidParams { .. })),
            "{answer:?}"
        );
    }
}

/// Two lives of one key, which no later master knows.
fn foreign_lives() -> [mooncake_master::state::Held; 2] {
    let mut other = store(Offload::Off);
    let first = other.put(1, "k", 1000);
    other.remove(1, "k").expect("it was put");
    let second = other.put(1, "k", 500);
    [held("k", &first), held("k", &second)]
}

/// A master that adopts these storages, each brought by the client of its number.
fn adopting(storages: &[u8], records: Vec<Record>) -> Store {
    let mut store = restarted(records);
    store.hello(100);
    for &id in storages {
        let storage = storage(id);
        assert_eq!(store.call(0, StorageCall::Adopt { storage }), Answer::Done);
        store.hello(u64::from(id));
        assert_eq!(store.attach(u64::from(id), id, false), Answer::Done);
    }
    store
}

#[test]
fn law_06_what_is_removed_while_a_storage_is_adopted_does_not_come_back_with_it() {
    let [first, _] = foreign_lives();
    // Before it was told.
    let mut store = adopting(&[8, 9], Vec::new());
    assert_eq!(store.remove(100, "k"), Err(Failure::ObjectNotFound));
    assert_eq!(store.reconcile(8, 8, vec![first.clone()]), [0]);
    assert!(!store.exists(100, "k"));

    // After one has told it, and before the other, in this life and the next one.
    let mut store = adopting(&[8, 9], Vec::new());
    assert!(store.reconcile(8, 8, vec![first.clone()]).is_empty());
    assert!(store.exists(100, "k"));
    store.remove(100, "k").unwrap();
    let mut next = adopting(&[8, 9], store.records.clone());
    for store in [&mut store, &mut next] {
        assert_eq!(store.reconcile(9, 9, vec![first.clone()]), [0]);
        assert!(!store.exists(100, "k"));
    }

    // While it tells, with a new life of its holder in between.
    let mut store = adopting(&[9], Vec::new());
    let page = StorageCall::Reconcile {
        storage: storage(9),
        page: 0,
        objects: vec![first.clone()],
        last: false,
    };
    assert!(matches!(store.call(9, page), Answer::Storage(_)));
    store.call(
        9,
        StorageCall::Unmount {
            storage: storage(9),
        },
    );
    store.remove(100, "k").unwrap();
    store.attach(9, 9, false);
    assert_eq!(store.reconcile(9, 9, vec![first]), [0]);
}

#[test]
fn of_two_adopted_storages_the_later_life_of_a_key_is_kept_whichever_comes_first() {
    let [first, second] = foreign_lives();
    for newer_first in [false, true] {
        let mut store = adopting(&[8, 9], Vec::new());
        let tell = [(8, &first, &[0][..]), (9, &second, &[])];
        let tell = match newer_first {
            true => [tell[1], tell[0]],
            false => [(8, &first, &[][..]), tell[1]],
        };
        for (id, held, gone) in tell {
            let removed = store.reconcile(u64::from(id), id, vec![held.clone()]);
            assert_eq!(removed, gone, "{id} when the newer is first: {newer_first}");
        }
        let (_, found) = store.lookup(100, &["k"]);
        assert_eq!(found[0].as_ref().unwrap().incarnation, second.incarnation);
        let tasks = store.fetch_removes(8, 8).len();
        assert_eq!(tasks, usize::from(!newer_first), "the earlier one goes");
    }
}

#[test]
fn law_11_removes_are_busy_when_too_many_were_noted_for_a_storage_that_has_not_told() {
    let limited = Settings {
        remove_queue_limit: 2,
        ..settings(Offload::Eager)
    };
    let mut store = Store::of(MIB, limited);
    let storage = storage(9);
    store.call(0, StorageCall::Adopt { storage });
    store.put(1, "a", 1000);
    store.remove(1, "a").unwrap();
    assert_eq!(store.remove(1, "b"), Err(Failure::ObjectNotFound));
    store.put(1, "c", 1000);
    let busy = Failure::AdoptionUnderWay { held: 2 };
    assert_eq!(store.remove(1, "c"), Err(busy));
    assert!(store.exists(1, "c"));
    store.attach(1, 9, false);
    assert!(store.reconcile(1, 9, Vec::new()).is_empty());
    store.remove(1, "c").unwrap();
}

#[test]
fn law_06_all_that_a_tenant_removed_stays_removed_though_no_storage_was_known_then() {
    let [first, _] = foreign_lives();
    let mut store = restarted(Vec::new());
    store.hello(1);
    let removed = Answer::Removed { objects: 0 };
    assert_eq!(store.ask(1, Operation::RemoveAll), removed);
    let mut store = adopting(&[9], store.records.clone());
    assert_eq!(store.reconcile(9, 9, vec![first]), [0]);
}

#[test]
fn remove_all_is_answered_when_the_holder_of_a_storage_that_is_adopted_dies() {
    let mut store = adopting(&[9], Vec::new());
    let Answer::Later { ticket } = store.ask(100, Operation::RemoveAll) else {
        panic!("it was answered before the holder had removed anything");
    };
    let (storage, client) = (storage(9), ClientId(9));
    let call = StorageCall::Unmount { storage };
    let effects = store.apply(Command::Storage { client, call }).effects;
    let settled =
        |effect: &Effect| matches!(effect, Effect::Settled { ticket: it, .. } if *it == ticket);
    assert!(effects.iter().any(settled), "{effects:?}");
}

#[test]
fn tasks_of_a_dead_holder_go_to_another_disk() {
    let mut store = store(Offload::Eager);
    store.join_with_disk(2);
    store.put(1, "fetched", 1000);
    let (fetched, _) = store.fetch_offloads(1, 1);
    store.put(1, "waiting", 1000);
    store.call(
        1,
        StorageCall::Unmount {
            storage: storage(1),
        },
    );
    store.pass(Duration::from_secs(1), &[1, 2]);
    assert_eq!(store.offload_all(2, 2), 2, "no tail is lost");
    store.pass(Duration::from_secs(11), &[1, 2]);
    evict_all(&mut store);
    assert!(store.exists(1, "waiting"));
    // Both have it now: the first holder's word still counts, as it is the same life.
    store.attach(1, 1, false);
    store.notify(1, 1, fetched[0].0, Offloaded::Done).unwrap();
}

#[test]
fn a_task_without_a_result_is_given_out_again_when_its_lease_has_passed() {
    let mut store = store(Offload::Eager);
    let object = store.put(1, "k", 1000);
    let (first, _) = store.fetch_offloads(1, 1);
    assert_eq!(store.fetch_offloads(1, 1).0, []);
    store.pass(Duration::from_secs(11), &[1]);
    let (again, lease) = store.fetch_offloads(1, 1);
    assert_eq!(again, first);
    assert_ne!(lease, 0);
    store.notify(1, 1, again[0].0, Offloaded::Done).unwrap();
    let named = Some(("k", &object));
    for outcome in [Offloaded::Done, Offloaded::Failed, Offloaded::Refused] {
        store.notify_of(1, 1, again[0].0, named, outcome).unwrap();
    }
    assert_eq!(
        store.lookup(1, &["k"]).1[0]
            .as_ref()
            .unwrap()
            .replicas
            .len(),
        2,
        "{object:?}"
    );
}

#[test]
fn law_06_a_result_that_is_told_again_is_answered_as_before_and_costs_no_replica() {
    let mut store = store(Offload::OnEvict);
    for n in 0..15 {
        store.put(1, &format!("k{n}"), MIB / 16);
    }
    let (tasks, lease) = store.fetch_offloads(1, 1);
    store.release(1, lease);
    let (task, object) = tasks[0].clone();
    let named = Some(("k0", &object));
    assert_eq!(
        store.notify_of(1, 1, task, Some(("k1", &object)), Offloaded::Done),
        Err(Failure::Revoked),
        "the task was for something else, and of this no such life is known"
    );
    store.notify(1, 1, task, Offloaded::Done).unwrap();
    // It is evicted now, and the answer was lost.
    store.notify_of(1, 1, task, named, Offloaded::Done).unwrap();
    let replicas = |store: &mut Store| {
        let (lease, found) = store.lookup(1, &["k0"]);
        if lease != 0 {
            store.release(1, lease);
        }
        found[0].clone().unwrap().replicas
    };
    let only = [Replica::LocalDisk { storage: 0 }];
    assert_eq!(replicas(&mut store)[..], only);
    // Nothing says what this was for.
    assert_eq!(
        store.notify(1, 1, task, Offloaded::Done),
        Err(Failure::TaskNotFound { task })
    );
    // Another life of the master, of which the holder hears before it tells again.
    store.attach(1, 1, false);
    assert!(store.reconcile(1, 1, vec![held("k0", &object)]).is_empty());
    store.notify_of(1, 1, task, named, Offloaded::Done).unwrap();
    assert_eq!(replicas(&mut store)[..], only);
    store.remove(1, "k0").unwrap();
    assert_eq!(
        store.notify_of(1, 1, task, named, Offloaded::Done),
        Err(Failure::Revoked)
    );
}

#[test]
fn what_a_reconciliation_has_found_is_not_lost_by_a_task_that_fails_after_it() {
    let mut store = store(Offload::Eager);
    let object = store.put(1, "k", 1000);
    let (tasks, lease) = store.fetch_offloads(1, 1);
    assert!(store.reconcile(1, 1, vec![held("k", &object)]).is_empty());
    for outcome in [Offloaded::Failed, Offloaded::Refused] {
        let named = Some(("k", &object));
        store.notify_of(1, 1, tasks[0].0, named, outcome).unwrap();
        store.notify(1, 1, tasks[0].0, outcome).unwrap_err();
    }
    store.release(1, lease);
    evict_all(&mut store);
    assert!(store.exists(1, "k"));
    store.drop_replica(1, 1, "k", object.incarnation).unwrap();
    assert_eq!(store.state.counters().disk_replicas, 0);
}

#[test]
fn one_attempt_that_failed_does_not_undo_another_that_is_on_the_disk() {
    let mut store = store(Offload::Eager);
    let object = store.put(1, "k", 1000);
    let (first, _) = store.fetch_offloads(1, 1);
    store.pass(Duration::from_secs(11), &[1]);
    let (second, lease) = store.fetch_offloads(1, 1);
    store.release(1, lease);
    assert_eq!(first, second);
    let named = Some(("k", &object));
    store
        .notify_of(1, 1, first[0].0, named, Offloaded::Failed)
        .unwrap();
    store
        .notify_of(1, 1, second[0].0, named, Offloaded::Done)
        .unwrap();
    assert_eq!(store.fetch_offloads(1, 1).0, [], "it is there");
    evict_all(&mut store);
    assert!(store.exists(1, "k"));
}

#[test]
fn tasks_that_reconciliations_end_leave_room_for_others() {
    let mut store = Store::of(64 * MIB, settings(Offload::Eager));
    store.join_with_disk(1);
    let mut last = 0;
    for round in 0..5 {
        let mut told = Vec::new();
        for n in 0..1000 {
            let key = format!("k{n}");
            let object = store.put(1, &key, 1000);
            told.push((key, object));
        }
        let (tasks, lease) = store.fetch_offloads(1, 1);
        assert_eq!(tasks.len(), 1000, "in round {round}");
        store.release(1, lease);
        let all = told.iter().map(|(key, object)| held(key, object));
        assert!(store.reconcile(1, 1, all.collect()).is_empty());
        for (key, _) in &told {
            store.remove(1, key).unwrap();
        }
        let removes = store.fetch_removes(1, 1);
        last = removes[removes.len() - 1].0;
        store.acknowledge(1, 1, removes.into_iter().map(|(task, _)| task).collect());
    }
    // Nor are numbers given out again, though the next life's epoch is the very next one.
    let mut next = restarted(store.records);
    next.hello(1);
    next.mount(1, 1, 0, MIB);
    next.attach(1, 1, false);
    next.reconcile(1, 1, Vec::new());
    next.put(1, "k", 1000);
    let (tasks, _) = next.fetch_offloads(1, 1);
    assert!(
        tasks[0].0 > last && last > 2 << 12,
        "{} after {last}",
        tasks[0].0
    );
}

#[test]
fn a_task_whose_answer_was_lost_ends_though_its_memory_is_gone() {
    let mut store = store(Offload::Eager);
    store.put(1, "k", 1000);
    let (lost, _) = store.fetch_offloads(1, 1);
    store.pass(Duration::from_secs(11), &[1]);
    evict_all(&mut store);
    let (again, lease) = store.fetch_offloads(1, 1);
    assert_eq!((again.len(), lease), (1, 0), "there is nothing to read");
    assert_eq!(again[0].0, lost[0].0);
    assert!(again[0].1.replicas.is_empty());
    store.notify(1, 1, again[0].0, Offloaded::Failed).unwrap();
    let counters = store.state.counters();
    assert_eq!((counters.objects, counters.disk_replicas), (0, 0));
}

#[test]
fn a_reconciliation_that_an_end_of_the_mount_cuts_is_not_continued() {
    let mut store = store(Offload::Eager);
    let object = store.put(1, "k", 1000);
    store.offload_all(1, 1);
    let call = |page, objects: Vec<_>, last| StorageCall::Reconcile {
        storage: storage(1),
        page,
        objects,
        last,
    };
    assert!(matches!(
        store.call(1, call(0, vec![held("k", &object)], false)),
        Answer::Storage(_)
    ));
    let storage = storage(1);
    store.call(1, StorageCall::Unmount { storage });
    store.hello(2);
    assert_eq!(store.attach(2, 1, false), Answer::Done);
    let refused = store.call(2, call(1, Vec::new(), true));
    assert!(matches!(refused, Answer::Refused(_)), "{refused:?}");
    assert!(store.reconcile(2, 1, Vec::new()).is_empty());
    assert_eq!(store.state.counters().disk_replicas, 0, "it is not there");
}

#[test]
fn who_is_known_by_a_storage_alone_is_told_that_nothing_of_it_was_resumed() {
    let mut store = Store::new(settings(Offload::Eager));
    assert_eq!(store.attach(1, 1, true), Answer::Done);
    assert_eq!(store.hello(1), Answer::Hello { resumed: false });
    store.ask(1, Operation::Ping);
    assert_eq!(store.hello(1), Answer::Hello { resumed: true });
}

#[test]
fn a_replica_that_is_dropped_is_not_read_again_and_ends_an_object_that_has_no_other() {
    let mut store = store(Offload::Eager);
    let object = store.put(1, "k", 1000);
    store.offload_all(1, 1);
    store.drop_replica(1, 1, "k", object.incarnation).unwrap();
    store.drop_replica(1, 1, "k", object.incarnation).unwrap();
    assert_eq!(
        store.lookup(1, &["k"]).1[0]
            .as_ref()
            .unwrap()
            .replicas
            .len(),
        1
    );
    store.pass(Duration::from_secs(11), &[1]);
    evict_all(&mut store);
    assert!(!store.exists(1, "k"));
    let only = store.put(1, "l", 1000);
    store.offload_all(1, 1);
    evict_all(&mut store);
    assert!(store.exists(1, "l"));
    store.drop_replica(1, 1, "l", only.incarnation).unwrap();
    assert!(!store.exists(1, "l"));
    assert_eq!(store.state.counters().objects, 0);
}

#[test]
fn a_suspect_holder_comes_last() {
    let mut store = store(Offload::Eager);
    store.put(1, "k", 1000);
    store.offload_all(1, 1);
    store.hello(2);
    let client = ClientId(1);
    store.apply(Command::Lost { client });
    let (_, found) = store.lookup(2, &["k"]);
    let replicas = &found[0].as_ref().unwrap().replicas;
    assert!(matches!(
        replicas[..],
        [Replica::Memory { .. }, Replica::LocalDisk { .. }]
    ));
}

#[test]
fn a_holder_hears_once_that_something_waits() {
    let mut store = store(Offload::Eager);
    let nudges = |store: &mut Store, key: &str| {
        let object = store.start(1, key, 10).unwrap();
        store.number += 1;
        let caller = mooncake_master::state::Caller::Session {
            client: ClientId(1),
            number: store.number,
        };
        let operation = Operation::PutEnd(vec![(common::key(key), object.incarnation)]);
        let effects = store.apply(Command::Perform { caller, operation }).effects;
        let nudge = Effect::Nudge {
            client: ClientId(1),
        };
        effects.iter().filter(|effect| **effect == nudge).count()
    };
    assert_eq!(nudges(&mut store, "a"), 1);
    assert_eq!(nudges(&mut store, "b"), 0, "it knows");
    store.fetch_offloads(1, 1);
    assert_eq!(nudges(&mut store, "c"), 1);
}

#[test]
fn what_cannot_be_logged_is_refused_and_what_need_not_be_goes_on() {
    let mut store = store(Offload::Eager);
    store.put(1, "on-disk", 1000);
    store.offload_all(1, 1);
    store.put(1, "in-memory", 1000);
    store.apply(Command::LogFailed);
    assert_eq!(store.remove(1, "on-disk"), Err(Failure::LogFailed));
    assert!(store.exists(1, "on-disk"));
    store.remove(1, "in-memory").unwrap();
    store.put(1, "new", 1000);
    let fetch = StorageCall::FetchOffloads {
        storage: storage(1),
        limit: 0,
        limit_bytes: 0,
    };
    assert_eq!(store.call(1, fetch), Answer::Refused(Failure::LogFailed));
    assert_eq!(
        store.ask(1, Operation::RemoveAll),
        Answer::Refused(Failure::LogFailed)
    );
}

/// The next life of a master that told these records.
fn restarted(records: Vec<Record>) -> Store {
    let mut store = Store::new(settings(Offload::Eager));
    store.state = State::new(2, settings(Offload::Eager));
    store.apply(Command::Replay(records));
    store.apply(Command::Replayed);
    store.number = 1000;
    store
}

#[test]
fn law_06_a_restart_forgets_neither_objects_nor_removes() {
    let mut records = Vec::new();
    let mut store = store(Offload::Eager);
    let mut keep = |effects: Vec<Effect>| {
        for effect in effects {
            if let Effect::Log(record) = effect {
                records.push(record);
            }
        }
    };
    keep(vec![Effect::Log(Record::Storage {
        id: storage(1),
        adopting: false,
    })]);
    let kept = store.put(1, "kept", 1000);
    let removed = store.put(1, "removed", 1000);
    let client = ClientId(1);
    let call = StorageCall::FetchOffloads {
        storage: storage(1),
        limit: 0,
        limit_bytes: 0,
    };
    keep(store.apply(Command::Storage { client, call }).effects);
    let caller = mooncake_master::state::Caller::Session {
        client,
        number: 500,
    };
    let operation = common::remove(vec![(common::key("removed"), None)]);
    keep(store.apply(Command::Perform { caller, operation }).effects);

    let mut store = restarted(records);
    store.hello(7);
    assert!(!store.exists(7, "kept"), "its holder is not back");
    assert_eq!(store.attach(7, 1, false), Answer::Done);
    assert_eq!(store.fetch_removes(7, 1).len(), 1);
    let told = vec![held("kept", &kept), held("removed", &removed)];
    assert_eq!(store.reconcile(7, 1, told), [1]);
    assert!(store.exists(7, "kept"));
    let (_, found) = store.lookup(7, &["kept"]);
    assert_eq!(found[0].as_ref().unwrap().incarnation, kept.incarnation);
    store.remove(7, "kept").unwrap();
    let numbers: Vec<_> = store
        .fetch_removes(7, 1)
        .iter()
        .map(|(task, _)| *task)
        .collect();
    assert!(numbers.len() == 2 && numbers[0] < numbers[1], "{numbers:?}");
}
