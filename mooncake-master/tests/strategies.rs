//! Which segment a new object gets, by the strategies that look at more than chance.

mod common;
#[path = "common/disk.rs"]
mod disk;

use common::Store;
use disk::storage;
use mooncake_master::{
    AllocationStrategy,
    state::{Answer, Measured, Offload, Offloaded, Settings, StorageAnswer, StorageCall},
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn settings(strategy: AllocationStrategy) -> Settings {
    Settings {
        allocation_strategy: strategy,
        high_watermark: 1.0,
        offload: Offload::Eager,
        ..Settings::default()
    }
}

/// Clients 1 to 4, each with 64 MiB of memory. All but the last have disks of a GiB, so full in
/// percent.
fn store(strategy: AllocationStrategy, used: [u64; 3]) -> Store {
    let mut store = Store::new(settings(strategy));
    for client in 1..=4 {
        store.hello(client);
        store.mount(client, client as u8, 0, 64 * MIB);
    }
    for (client, used) in (1..).zip(used) {
        store.join_with_disk(client);
        // Until the choice goes by all that is free.
        for _ in 0..20 {
            report(&mut store, client, used * GIB / 100);
        }
    }
    store
}

fn report(store: &mut Store, client: u64, used: u64) {
    let measured = Measured {
        capacity: GIB,
        used,
        ..Measured::default()
    };
    let storage = storage(client as u8);
    store.call(client, StorageCall::Report { storage, measured });
}

/// How many of so many objects of a MiB each client's segment is given.
fn shares(store: &mut Store, objects: u64) -> [u64; 4] {
    let before: Vec<_> = (1..=4).map(|client| held(store, client)).collect();
    for n in 0..objects {
        let key = format!("object-{}-{n}", store.number);
        let started = store.start(1, &key, MIB);
        assert!(started.is_ok(), "{started:?}");
    }
    [1, 2, 3, 4].map(|client| held(store, client) - before[client as usize - 1])
}

fn held(store: &mut Store, client: u64) -> u64 {
    match store.ask(client, mooncake_master::state::Operation::ListSegments) {
        Answer::Segments { segments, .. } => {
            let owner = mooncake_master::state::ClientId(client);
            let own = segments.iter().find(|usage| usage.segment.owner == owner);
            own.map_or(0, |usage| usage.objects)
        }
        other => panic!("ListSegments answered {other:?}"),
    }
}

#[test]
fn the_emptiest_disk_comes_first_and_an_unknown_one_is_in_the_middle() {
    let mut store = store(AllocationStrategy::SsdFreeRatioFirst, [80, 45, 20]);
    assert_eq!(shares(&mut store, 10), [0, 0, 10, 0]);
    report(&mut store, 3, GIB * 9 / 10);
    // Free are now 20, 55 and 10 %; the mean, 28 %, is what the one without a disk counts as.
    assert_eq!(shares(&mut store, 10), [0, 10, 0, 0]);
    report(&mut store, 2, GIB);
    assert_eq!(shares(&mut store, 10), [10, 0, 0, 0]);
    report(&mut store, 1, GIB * 95 / 100);
    report(&mut store, 3, GIB * 96 / 100);
    let shares = shares(&mut store, 10);
    assert_eq!(shares, [10, 0, 0, 0]);
}

#[test]
fn a_burst_spreads_before_anything_of_it_is_measured_and_all_is_released() {
    let mut store = store(AllocationStrategy::SsdFreeRatioFirst, [50, 50, 50]);
    let shares = shares(&mut store, 90);
    assert!(
        shares[..3].iter().all(|share| (25..=35).contains(share)),
        "{shares:?}"
    );
    // They are offloaded, or go; then the choice starts even again.
    store.pass(std::time::Duration::from_secs(70), &[1, 2, 3, 4]);
    assert_eq!(store.state.counters().puts_in_progress, 0);
    for client in 1..=3 {
        report(&mut store, client, GIB * (50 - client) / 100);
    }
    assert_eq!(self::shares(&mut store, 5), [0, 0, 5, 0]);
}

#[test]
fn a_disk_that_was_just_emptied_is_not_given_everything_at_once() {
    let mut store = store(AllocationStrategy::SsdFreeRatioFirst, [60, 50, 90]);
    report(&mut store, 3, 0);
    assert_eq!(shares(&mut store, 5), [0, 5, 0, 0], "it seems 15 % free");
    for _ in 0..10 {
        report(&mut store, 3, 0);
    }
    assert_eq!(shares(&mut store, 5), [0, 0, 5, 0]);
}

#[test]
fn offloads_from_those_without_a_disk_go_to_the_emptiest() {
    let mut store = store(AllocationStrategy::LocalFirst, [80, 45, 20]);
    let placed = store.put(4, "k", MIB);
    assert_eq!(placed.replicas.len(), 1);
    let waiting = |store: &mut Store, client: u64| {
        let call = StorageCall::Report {
            storage: storage(client as u8),
            measured: Measured::default(),
        };
        match store.call(client, call) {
            Answer::Storage(StorageAnswer::Reported { offload_tasks, .. }) => offload_tasks,
            other => panic!("Report answered {other:?}"),
        }
    };
    assert_eq!(
        [1, 2, 3].map(|client| waiting(&mut store, client)),
        [0, 0, 1]
    );
    // Who has a disk keeps its own.
    store.put(1, "l", MIB);
    assert_eq!(
        [1, 2, 3].map(|client| waiting(&mut store, client)),
        [1, 0, 1]
    );
    let (tasks, _) = store.fetch_offloads(3, 3);
    store.notify(3, 3, tasks[0].0, Offloaded::Done).unwrap();
}

#[test]
fn the_writers_own_memory_comes_first_where_that_is_asked_for() {
    let mut store = store(AllocationStrategy::LocalFirst, [0, 0, 0]);
    assert_eq!(shares(&mut store, 64), [64, 0, 0, 0]);
    let others = shares(&mut store, 12);
    assert_eq!(
        (others[0], others.iter().sum::<u64>()),
        (0, 12),
        "others help when it is full"
    );
}

#[test]
fn the_emptiest_memory_comes_first_where_that_is_asked_for() {
    let mut store = store(AllocationStrategy::FreeRatioFirst, [0, 0, 0]);
    let shares = shares(&mut store, 100);
    assert_eq!(shares, [25; 4]);
}
