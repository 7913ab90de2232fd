//! What spraying and rail health must be like, over devices with faults.

use proptest::prelude::*;

use super::*;
use crate::{
    Priority,
    rail::{RailPolicy, RailState},
    spray::{Devices, NoDevice, SliceLimits, SlicePlan},
};

const SECOND: Time = Time(1_000_000);
const GB: u64 = 1_000_000_000;

fn pilot(nics: Vec<Nic>, seed: u64) -> Pilot {
    Pilot::new(Fabric::new(nics, seed), PilotConfig::default())
}

fn all(pilot: &Pilot) -> Devices {
    Devices::first(pilot.devices())
}

fn submit(pilot: &mut Pilot, length: u64) -> TaskId {
    let all = all(pilot);
    pilot.submit(length, Priority::High, &all).unwrap()
}

/// Runs tasks of `length`, always so many at once, until `count` were submitted and have ended.
fn stream(pilot: &mut Pilot, count: usize, depth: usize, length: u64) -> Vec<TaskId> {
    let limit = pilot.now() + Duration::from_secs(600);
    let mut tasks: Vec<TaskId> = Vec::new();
    let open = |pilot: &Pilot, tasks: &[TaskId]| {
        let open = tasks
            .iter()
            .filter(|task| pilot.task(**task).ended.is_none());
        open.count()
    };
    while tasks.len() < count {
        tasks.push(submit(pilot, length));
        assert!(pilot.run_until(limit, |pilot| open(pilot, &tasks) < depth));
    }
    assert!(pilot.run_until(limit, |pilot| open(pilot, &tasks) == 0));
    tasks
}

fn assigned(pilot: &Pilot) -> Vec<u64> {
    let devices = (0..pilot.devices()).map(DeviceId);
    devices
        .map(|device| pilot.device(device).assigned)
        .collect()
}

/// Nothing is left of anything.
fn is_quiet(pilot: &Pilot) -> bool {
    pilot.in_flight() == 0 && pilot.unfinished() == 0
}

fn odd_length() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..30u32, any::<u64>()).prop_map(|(bits, raw)| 1 << bits | raw & ((1 << bits) - 1)),
        (0..30u32, -1..=1i64)
            .prop_map(|(bits, by)| (1u64 << bits).saturating_add_signed(by).max(1)),
    ]
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    let micros = |range: std::ops::Range<u64>| range.prop_map(Duration::from_micros);
    prop_oneof![
        Just(None),
        Just(Some(Fault::Dead)),
        Just(Some(Fault::Down)),
        (micros(100..5000), micros(10..3000))
            .prop_map(|(up, down)| Some(Fault::Flapping { up, down })),
        (1..50u32).prop_map(|one_in| Some(Fault::Lossy { one_in })),
        (2..200u32).prop_map(|times| Some(Fault::Slow { times })),
    ]
}

fn nic() -> impl Strategy<Value = Nic> {
    let rank = prop::sample::select(&[Rank::Nearest, Rank::Near, Rank::Far][..]);
    (GB..50 * GB, 0..20u64, rank).prop_map(|(bytes_per_second, latency, rank)| Nic {
        bytes_per_second,
        latency: Duration::from_micros(latency),
        rank,
    })
}

#[derive(Clone, Debug)]
struct Story {
    nics: Vec<Nic>,
    /// Length, priority, which devices, and the pause before it.
    tasks: Vec<(u64, Priority, u32, u64)>,
    /// When, where and what; all is well in the end.
    faults: Vec<(u64, u16, Option<Fault>)>,
    cancelled: Vec<prop::sample::Index>,
    seed: u64,
}

fn story() -> impl Strategy<Value = Story> {
    let priority = prop::sample::select(&Priority::ALL[..]);
    let task = (odd_length(), priority, 1..64u32, 0..500u64);
    (
        prop::collection::vec(nic(), 1..6),
        prop::collection::vec(task, 1..12),
        prop::collection::vec((0..20_000u64, 0..6u16, fault()), 0..8),
        prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        any::<u64>(),
    )
        .prop_map(|(nics, tasks, faults, cancelled, seed)| Story {
            nics,
            tasks,
            faults,
            cancelled,
            seed,
        })
}

/// All that can be seen of a story, after it has ended.
fn tell(story: &Story) -> (Pilot, Vec<(TaskId, Devices)>) {
    let mut pilot = pilot(story.nics.clone(), story.seed);
    let count = story.nics.len() as u16;
    for (at, device, fault) in &story.faults {
        let device = DeviceId(device % count);
        pilot.fabric_mut().fault_at(Time(*at), device, *fault);
        pilot.fabric_mut().fault_at(Time(100_000), device, None);
    }
    let mut tasks = Vec::new();
    for (length, priority, mask, pause) in &story.tasks {
        let resume = pilot.now() + Duration::from_micros(*pause);
        pilot.run_until(resume, |pilot| pilot.now() >= resume);
        let mut allowed: Devices = (0..count)
            .filter(|bit| mask >> bit & 1 == 1)
            .map(DeviceId)
            .collect();
        if allowed.is_empty() {
            allowed = Devices::first(1);
        }
        tasks.push((pilot.submit(*length, *priority, &allowed).unwrap(), allowed));
    }
    for which in &story.cancelled {
        pilot.cancel(tasks[which.index(tasks.len())].0);
    }
    pilot.run(Time(600 * SECOND.0));
    (pilot, tasks)
}

proptest! {
    #[test]
    fn law_13_whatever_breaks_every_task_ends_and_every_charge_is_released(story in story()) {
        let (pilot, tasks) = tell(&story);
        prop_assert!(is_quiet(&pilot), "{} bytes in flight, {} unfinished", pilot.in_flight(), pilot.unfinished());
        for (task, allowed) in tasks {
            let report = pilot.task(task);
            prop_assert!(report.ended.is_some(), "law 2");
            prop_assert!(report.moved.iter().all(|(device, _)| allowed.contains(*device)), "its devices");
            let mut moved: Vec<_> = report.moved.iter().map(|(_, range)| range.clone()).collect();
            moved.sort_by_key(|range| range.start);
            prop_assert!(moved.windows(2).all(|pair| pair[0].end <= pair[1].start), "nothing moves twice");
            prop_assert!(moved.iter().all(|range| range.start < range.end && range.end <= report.length));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_story(story in story()) {
        let tell = |story| {
            let (pilot, tasks) = tell(story);
            let reports: Vec<_> = tasks.iter().map(|(task, _)| pilot.task(*task).clone()).collect();
            (pilot.posts().to_vec(), format!("{reports:?}"), pilot.now())
        };
        prop_assert_eq!(tell(&story), tell(&story));
    }

    #[test]
    fn a_request_of_any_size_arrives_whole_over_devices_of_any_speed(
        nics in prop::collection::vec(nic(), 1..6), length in odd_length(), seed in any::<u64>()
    ) {
        let mut pilot = pilot(nics, seed);
        let task = submit(&mut pilot, length);
        pilot.run(Time(600 * SECOND.0));
        prop_assert!(pilot.task(task).is_completed() && is_quiet(&pilot));
    }

    #[test]
    fn equal_devices_move_equal_shares_of_any_load(
        devices in 2..9u16, length in 1u64..20 << 20, depth in 1..9usize, rate in GB..50 * GB
    ) {
        let mut pilot = pilot(vec![Nic::new(rate); devices.into()], 1);
        stream(&mut pilot, 128, depth, length);
        let moved = (0..devices).map(|device| pilot.device(DeviceId(device)).moved);
        for moved in moved {
            let share = moved as f64 / (128 * length) as f64;
            prop_assert!((share - 1.0 / f64::from(devices)).abs() < 0.02, "{share} of {devices}");
        }
    }

    #[test]
    fn unequal_rails_are_done_within_a_tenth_of_the_best_possible(
        rates in prop::collection::vec(GB..20 * GB, 2..7), length in 16u64 << 20..256 << 20
    ) {
        let nics: Vec<_> = rates.iter().copied().map(Nic::new).collect();
        let mut pilot = pilot(nics, 1);
        // Before the first slices are complete nobody knows any rate.
        stream(&mut pilot, 20, 2, length);
        let task = stream(&mut pilot, 1, 1, length)[0];
        let report = pilot.task(task);
        let took = report.ended.unwrap().since(report.submitted).as_secs_f64();
        let slices = SlicePlan::new(length, &SliceLimits::default(), rates.len()).unwrap().len();
        let best = best_makespan(&rates, length as f64 / slices as f64, slices);
        // Latency and the microseconds of the clock come on top of it.
        prop_assert!(took <= best * 1.1 + 7e-6, "{took} against {best}");
    }

    #[test]
    fn a_rail_that_loses_nine_tenths_has_its_share_corrected_within_64_slices(
        devices in 2..7u16, victim in 0..7u16, rate in 5 * GB..50 * GB, length in 4u64 << 20..16 << 20, depth in 1..4usize
    ) {
        let (mut pilot, victim) = (pilot(vec![Nic::new(rate); devices.into()], 1), DeviceId(victim % devices));
        stream(&mut pilot, 20, depth, length);
        let healthy = pilot.device(victim).rate.unwrap();
        pilot.fabric_mut().fault(victim, Some(Fault::Slow { times: 10 }));
        let before = assigned(&pilot);
        let slices = |pilot: &Pilot, before: &[u64]| -> Vec<u64> {
            assigned(pilot).iter().zip(before).map(|(now, before)| now - before).collect()
        };
        // Until 64 slices have come to all devices together, or the last of the task with them.
        while slices(&pilot, &before).iter().sum::<u64>() < 64 {
            stream(&mut pilot, 1, 1, length);
        }
        let learnt = pilot.device(victim).rate.unwrap();
        prop_assert!(learnt < 0.2 * healthy, "{learnt} of {healthy}");
        let before = assigned(&pilot);
        stream(&mut pilot, 10, depth, length);
        let after = slices(&pilot, &before);
        let share = after[usize::from(victim.0)] as f64 / after.iter().sum::<u64>() as f64;
        let fair = 0.1 / (f64::from(devices) - 0.9);
        prop_assert!(share < 1.5 * fair + 0.01, "{share} where {fair} is fair");
        prop_assert!(is_quiet(&pilot));
    }

    #[test]
    fn a_rail_that_flaps_comes_back_and_costs_no_bytes(
        up in 500..5000u64, down in 50..3000u64, devices in 2..5u16, seed in any::<u64>()
    ) {
        let mut pilot = pilot(vec![Nic::new(10 * GB); devices.into()], seed);
        let flapping = Fault::Flapping {
            up: Duration::from_micros(up),
            down: Duration::from_micros(down),
        };
        pilot.fabric_mut().fault(DeviceId(0), Some(flapping));
        let tasks = stream(&mut pilot, 200, 2, 3_000_001);
        prop_assert!(tasks.iter().all(|task| pilot.task(*task).is_completed()));
        pilot.fabric_mut().fault(DeviceId(0), None);
        // The longest cooldown, and a little traffic to try it with.
        let rested = pilot.now() + PilotConfig::default().rails.max_cooldown;
        while pilot.now() < rested {
            stream(&mut pilot, 1, 1, 3_000_001);
        }
        let before = assigned(&pilot);
        stream(&mut pilot, 20, 1, 3_000_001);
        let slices: Vec<_> = assigned(&pilot).iter().zip(&before).map(|(now, before)| now - before).collect();
        let share = slices[0] as f64 / slices.iter().sum::<u64>() as f64;
        prop_assert!((share - 1.0 / f64::from(devices)).abs() < 0.05, "{slices:?}");
    }
}

fn best_makespan(rates: &[u64], slice: f64, slices: u64) -> f64 {
    let done = |time: f64| -> f64 {
        let each = rates
            .iter()
            .map(|rate| (time * *rate as f64 / slice + 1e-9).floor());
        each.sum()
    };
    let (mut low, mut high) = (0.0, slice * slices as f64 / rates[0] as f64);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if done(middle) >= slices as f64 {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

#[test]
fn a_device_that_dies_in_silence_costs_time_and_no_bytes() {
    for seed in 0..32 {
        let mut pilot = pilot(vec![Nic::new(10 * GB); 3], seed);
        stream(&mut pilot, 3, 1, 5 << 20);
        let task = submit(&mut pilot, 100_000_003);
        let dies = pilot.now() + Duration::from_micros(80 * seed);
        pilot
            .fabric_mut()
            .fault_at(dies, DeviceId(1), Some(Fault::Dead));
        pilot.run(Time(SECOND.0));
        assert!(pilot.task(task).is_completed(), "seed {seed}");
        let rail = pilot.device(DeviceId(1)).rail;
        assert!(
            !matches!(rail, RailState::Open { .. }),
            "seed {seed}: {rail:?}"
        );
        // What it swallowed is completed long after it was moved by another.
        pilot.fabric_mut().fault(DeviceId(1), None);
        stream(&mut pilot, 30, 2, 5 << 20);
        assert!(
            is_quiet(&pilot) && pilot.task(task).is_completed(),
            "seed {seed}"
        );
    }
}

#[test]
fn with_every_rail_down_nothing_is_lost_and_one_slice_each_tries_them() {
    let mut pilot = pilot(vec![Nic::new(10 * GB); 2], 1);
    for device in [0, 1] {
        pilot
            .fabric_mut()
            .fault(DeviceId(device), Some(Fault::Dead));
    }
    let task = submit(&mut pilot, 5_000_001);
    let closed = |pilot: &Pilot| {
        let rails = [0, 1].map(|device| pilot.device(DeviceId(device)).rail);
        rails
            .iter()
            .all(|rail| matches!(rail, RailState::Cooling { .. }))
    };
    assert!(pilot.run_until(SECOND, closed));
    let posted = pilot.posts().len();
    let tried = pilot.now() + PilotConfig::default().rails.cooldown * 2;
    pilot.run_until(tried, |pilot| pilot.now() >= tried);
    assert_eq!(pilot.posts().len() - posted, 2, "one for each rail");
    for device in [0, 1] {
        pilot.fabric_mut().fault(DeviceId(device), None);
    }
    pilot.run(SECOND);
    assert!(pilot.task(task).is_completed() && is_quiet(&pilot));
}

#[test]
fn a_task_that_never_gets_through_fails_and_leaves_nothing() {
    let config = PilotConfig {
        rails: RailPolicy {
            error_threshold: u32::MAX,
            ..RailPolicy::default()
        },
        ..PilotConfig::default()
    };
    let mut pilot = Pilot::new(Fabric::new(vec![Nic::new(GB); 2], 3), config);
    for device in [0, 1] {
        pilot
            .fabric_mut()
            .fault(DeviceId(device), Some(Fault::Dead));
    }
    let task = submit(&mut pilot, 5_000_001);
    pilot.run(SECOND);
    assert!(pilot.task(task).ended.is_some() && !pilot.task(task).is_completed());
    assert!(is_quiet(&pilot));
}

#[test]
fn urgent_slices_are_posted_before_all_that_is_not_yet_posted() {
    let mut pilot = pilot(vec![Nic::new(GB); 2], 1);
    let all = all(&pilot);
    let low = pilot.submit(64 << 20, Priority::Low, &all).unwrap();
    let (small, large) = (1000, 10 << 20);
    for length in [small, large] {
        let posted = pilot.posts().len();
        let high = pilot.submit(length, Priority::High, &all).unwrap();
        assert!(pilot.run_until(SECOND, |pilot| pilot.task(high).ended.is_some()));
        let after = &pilot.posts()[posted..];
        let last = after.iter().rposition(|(_, task)| *task == high).unwrap();
        // On a device whose urgent slices are all posted the others may go on.
        for device in [0, 1].map(DeviceId) {
            let here: Vec<_> = after[..=last]
                .iter()
                .filter(|(at, _)| *at == device)
                .collect();
            let urgent = here.iter().rposition(|(_, task)| *task == high);
            let passed = here[..urgent.map_or(0, |last| last + 1)]
                .iter()
                .filter(|(_, task)| *task == low);
            // Those that were old enough, one in eight.
            assert!(passed.count() <= here.len() / 8 + 1);
        }
        assert!(pilot.task(low).ended.is_none());
    }
    pilot.run(SECOND);
    assert!(pilot.task(low).is_completed() && is_quiet(&pilot));
}

#[test]
fn an_empty_set_of_devices_is_refused_whatever_the_size() {
    let mut pilot = pilot(vec![Nic::new(GB); 2], 1);
    for length in [1, 4096, 64 << 20] {
        let refused = pilot.submit(length, Priority::High, &Devices::new());
        assert_eq!(refused, Err(NoDevice::EmptySet));
    }
    assert!(is_quiet(&pilot));
}

#[test]
fn a_fabric_that_is_lossy_fails_loses_and_doubles() {
    let mut fabric = Fabric::new(vec![Nic::new(10 * GB)], 5);
    fabric.fault(DeviceId(0), Some(Fault::Lossy { one_in: 2 }));
    (0..1000).for_each(|token| fabric.post(DeviceId(0), token, 1000));
    let mut seen = vec![(0, 0); 1000];
    while let Some(event) = fabric.next(SECOND) {
        if let Event::Completion { token, moved, .. } = event {
            let (completed, failed) = &mut seen[token as usize];
            *if moved { completed } else { failed } += 1;
        }
    }
    for kind in [(0, 0), (0, 1), (1, 0), (2, 0)] {
        let count = seen.iter().filter(|seen| **seen == kind).count();
        assert!(count > 100, "{count} of {kind:?}");
    }
}
