//! What a choice must be like, without a device.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::spray::SliceLimits;

const SOME: Time = Time(1_000_000);

fn candidates(count: u16) -> impl Iterator<Item = Candidate> {
    (0..count).map(|device| Candidate {
        device: DeviceId(device),
        rank: Rank::Nearest,
        probe: false,
    })
}

fn spray(rates: &[Option<f64>]) -> Spray {
    let spray = Spray::new(rates.len() as u16, SprayConfig::default());
    for (load, rate) in spray.loads().iter().zip(rates) {
        if let Some(rate) = rate {
            load.publish_rate(SOME, *rate);
        }
    }
    spray
}

fn everywhere(spray: &Spray) -> Route {
    let count = spray.loads().len() as u16;
    spray
        .route(candidates(count), &Devices::first(count))
        .expect("all reach the peer")
}

/// Bytes by device, of slices that stay in flight.
fn assign(spray: &Spray, length: u64, priority: Priority) -> (Vec<Charge>, BTreeMap<u16, u64>) {
    let route = everywhere(spray);
    let plan = SlicePlan::new(length, &SliceLimits::default(), route.width());
    let plan = plan.expect("there is something to cut");
    let charges: Vec<_> = spray
        .assign(SOME, &route, &plan, priority)
        .map(|(_, charge)| charge)
        .collect();
    let mut bytes = BTreeMap::new();
    for charge in &charges {
        *bytes.entry(charge.device().0).or_default() += charge.bytes();
    }
    (charges, bytes)
}

proptest! {
    #[test]
    fn equal_devices_share_a_long_request_equally(
        length in 8u64 << 20..1 << 30, devices in 1..32u16, rate in prop::option::of(1e8..1e11f64)
    ) {
        let spray = spray(&vec![rate; devices.into()]);
        let (_charges, bytes) = assign(&spray, length, Priority::High);
        for device in 0..devices {
            let share = bytes[&device] as f64 / length as f64 * f64::from(devices);
            prop_assert!((0.98..1.02).contains(&share), "{share} of a fair share");
        }
    }

    #[test]
    fn equal_devices_share_64_requests_of_any_size_within_two_hundredths(
        lengths in prop::collection::vec(1u64..4 << 20, 64), devices in 1..16u16, in_flight in any::<bool>()
    ) {
        let spray = spray(&vec![None; devices.into()]);
        let (mut slices, mut all, mut kept) = (vec![0u64; devices.into()], 0, Vec::new());
        for length in lengths {
            let (charges, _) = assign(&spray, length, Priority::High);
            for charge in charges {
                slices[usize::from(charge.device().0)] += 1;
                all += 1;
                if in_flight {
                    kept.push(charge);
                }
            }
        }
        if !in_flight {
            // Nothing but turns decides: the numbers of slices are equal.
            for count in slices {
                let share = count as f64 / f64::from(all);
                prop_assert!((share - 1.0 / f64::from(devices)).abs() < 0.02, "{share}");
            }
        } else {
            // Bytes decide: no device has more than another by more than about the longest slice.
            let loads: Vec<_> = spray.loads().iter().map(|load| load.in_flight()).collect();
            let spread = loads.iter().max().unwrap() - loads.iter().min().unwrap();
            let longest = kept.iter().map(Charge::bytes).max().unwrap();
            prop_assert!(spread <= longest + longest / 8, "{loads:?}");
        }
    }

    #[test]
    fn the_last_device_is_done_within_a_tenth_of_the_best_possible(
        rates in prop::collection::vec(1e9..20e9f64, 1..12), length in 4u64 << 20..1 << 30
    ) {
        let known: Vec<_> = rates.iter().copied().map(Some).collect();
        let spray = spray(&known);
        let (charges, bytes) = assign(&spray, length, Priority::High);
        let slice = length as f64 / charges.len() as f64;
        let makespan = bytes
            .iter()
            .map(|(device, bytes)| *bytes as f64 / rates[usize::from(*device)])
            .fold(0.0, f64::max);
        let best = best_makespan(&rates, slice, charges.len());
        // Slices are equal to within a unit.
        prop_assert!(makespan <= best * 1.1 + 64.0 / 1e9, "{makespan} against {best}");
    }

    #[test]
    fn law_13_charges_are_released_to_where_they_were_taken_in_whatever_order(
        lengths in prop::collection::vec(1u64..20 << 20, 1..8), order in any::<u64>()
    ) {
        let spray = spray(&[Some(1e9), None, Some(7e9), Some(2e10)]);
        let mut kept: Vec<Charge> = Vec::new();
        for (number, length) in lengths.iter().enumerate() {
            let (charges, _) = assign(&spray, *length, Priority::ALL[number % 3]);
            prop_assert_eq!(charges.iter().map(Charge::bytes).sum::<u64>(), *length);
            kept.extend(charges);
        }
        while !kept.is_empty() {
            for load in spray.loads() {
                let of_it = kept.iter().filter(|charge| charge.device() == load.device());
                prop_assert_eq!(load.in_flight(), of_it.map(Charge::bytes).sum::<u64>());
            }
            drop(kept.swap_remove((order % kept.len() as u64) as usize));
        }
        prop_assert!(spray.loads().iter().all(|load| load.in_flight() == 0));
    }

    #[test]
    fn requests_of_one_slice_and_of_many_use_what_they_are_allowed_and_nothing_else(
        length in prop_oneof![1u64..4096, 1u64..20 << 20],
        devices in 1..300u16,
        mask in prop::collection::btree_set(0..300u16, 0..12)
    ) {
        let spray = spray(&vec![None; devices.into()]);
        let allowed: Devices = mask.iter().copied().map(DeviceId).collect();
        let reachable: Vec<_> = mask.iter().copied().filter(|device| *device < devices).collect();
        match spray.route(candidates(devices), &allowed) {
            Ok(route) => {
                prop_assert!(route.devices().map(|device| device.0).eq(reachable.iter().copied()));
                let plan = SlicePlan::new(length, &SliceLimits::default(), route.width()).unwrap();
                for (_, charge) in spray.assign(SOME, &route, &plan, Priority::Low) {
                    prop_assert!(mask.contains(&charge.device().0));
                }
            }
            Err(NoDevice::EmptySet) => prop_assert!(mask.is_empty()),
            Err(NoDevice::Excluded { candidates }) => {
                prop_assert!(reachable.is_empty() && !mask.is_empty());
                prop_assert_eq!(candidates, usize::from(devices));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// When so many equal slices can be done at best: the least time in which the devices do enough of them.
fn best_makespan(rates: &[f64], slice: f64, slices: usize) -> f64 {
    let done = |time: f64| -> f64 {
        let each = rates
            .iter()
            .map(|rate| (time * rate / slice + 1e-9).floor());
        each.sum()
    };
    let (mut low, mut high) = (0.0, slice * slices as f64 / rates[0]);
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
fn neighbouring_slices_go_to_different_devices() {
    let spray = spray(&[Some(1e9); 4]);
    let route = everywhere(&spray);
    let plan = SlicePlan::new((6 << 20) + 1, &SliceLimits::default(), 4).unwrap();
    let devices: Vec<_> = spray
        .assign(SOME, &route, &plan, Priority::High)
        .map(|(_, charge)| charge.device().0)
        .collect();
    let first: Vec<_> = devices[..4].to_vec();
    assert!(devices.chunks(4).all(|round| round == first), "{devices:?}");
}

#[test]
fn one_slice_at_a_time_takes_turns_although_no_two_rates_are_the_same() {
    let spray = spray(&[Some(10.0e9), Some(9.2e9), Some(10.1e9), None]);
    let mut counts = [0; 4];
    for _ in 0..64 {
        let (charges, _) = assign(&spray, 4096, Priority::High);
        counts[usize::from(charges[0].device().0)] += 1;
    }
    assert_eq!(counts, [16; 4]);
}

#[test]
fn a_device_that_comes_back_has_a_few_turns_before_the_others_and_no_more() {
    let spray = spray(&[Some(1e9); 2]);
    let one = SlicePlan::new(4096, &SliceLimits::default(), 2).unwrap();
    let without = spray.route(candidates(1), &Devices::first(2)).unwrap();
    let both = everywhere(&spray);
    let choose = |route| {
        let (_, charge) = spray
            .assign(SOME, route, &one, Priority::High)
            .next()
            .unwrap();
        charge.device().0
    };
    (0..1000).for_each(|_| assert_eq!(choose(&without), 0));
    let devices: Vec<_> = (0..36).map(|_| choose(&both)).collect();
    assert!(
        devices[..16].iter().all(|device| *device == 1),
        "{devices:?}"
    );
    let later = devices[16..].iter().filter(|device| **device == 1);
    assert_eq!(later.count(), 10, "{devices:?}");
}

#[test]
fn one_slice_of_high_priority_passes_what_is_low_and_not_what_is_high() {
    let spray = spray(&[Some(1e9); 2]);
    let busy = |device, bytes, priority| {
        let load: &Arc<DeviceLoad> = spray.load(DeviceId(device)).unwrap();
        load.charge(bytes, priority)
    };
    let _low = busy(0, 100 << 20, Priority::Low);
    let _high = busy(1, 1 << 20, Priority::High);
    for priority in Priority::ALL {
        for _ in 0..2 {
            let (charges, _) = assign(&spray, 4096, priority);
            let expected = if priority == Priority::Low { 1 } else { 0 };
            assert_eq!(charges[0].device(), DeviceId(expected), "{priority:?}");
        }
    }
}

#[test]
fn law_12_an_unknown_rate_is_neither_the_best_nor_the_worst() {
    let spray = spray(&[Some(2e9), None, Some(10e9)]);
    let (_charges, bytes) = assign(&spray, 64 << 20, Priority::High);
    let shares = [0, 1, 2].map(|device| bytes[&device] as f64 / f64::from(64 << 20));
    // The unknown one counts as 6 GB/s.
    for (share, rate) in shares.into_iter().zip([2.0, 6.0, 10.0]) {
        assert!((share - rate / 18.0).abs() < 0.02, "{shares:?}");
    }
}

#[test]
fn a_far_device_is_used_when_the_near_one_has_ten_times_as_much_to_do() {
    let spray = spray(&[Some(1e9); 2]);
    let near_and_far = candidates(2).map(|candidate| Candidate {
        rank: [Rank::Nearest, Rank::Far][usize::from(candidate.device.0)],
        ..candidate
    });
    let route = spray.route(near_and_far, &Devices::first(2)).unwrap();
    let one = SlicePlan::new(1000, &SliceLimits::default(), 2).unwrap();
    let choose = || {
        spray
            .assign(SOME, &route, &one, Priority::High)
            .next()
            .unwrap()
            .1
    };
    let devices: Vec<_> = (0..12).map(|_| choose()).collect();
    let far = devices
        .iter()
        .filter(|charge| charge.device() == DeviceId(1));
    assert_eq!(far.count(), 1, "{devices:?}");
}

#[test]
fn a_device_that_is_only_tried_gets_the_first_slice_and_no_other() {
    let spray = spray(&[Some(1e9); 3]);
    let tried = |probes: &'static [u16]| {
        candidates(3).map(move |candidate| Candidate {
            probe: probes.contains(&candidate.device.0),
            ..candidate
        })
    };
    let plan = SlicePlan::new(5 << 20, &SliceLimits::default(), 2).unwrap();
    let route = spray.route(tried(&[1]), &Devices::first(3)).unwrap();
    assert_eq!((route.width(), route.devices().count()), (2, 3));
    let devices: Vec<_> = spray
        .assign(SOME, &route, &plan, Priority::High)
        .map(|(_, charge)| charge.device().0)
        .collect();
    assert_eq!(devices.len() as u64, plan.len());
    assert_eq!(
        (
            devices[0],
            devices.iter().filter(|device| **device == 1).count()
        ),
        (1, 1)
    );

    // Where all are only tried, the rest has to wait for what comes of it.
    let route = spray.route(tried(&[0, 1, 2]), &Devices::first(3)).unwrap();
    let mut assignments = spray.assign(SOME, &route, &plan, Priority::High);
    assert_eq!(assignments.by_ref().count(), 3);
    assert_eq!(assignments.left(), 3..plan.len());
}

#[test]
fn a_set_that_permits_nothing_is_an_error_and_not_all_devices() {
    let spray = spray(&[None; 2]);
    let with = |candidates: &[u16], allowed: &[u16]| {
        let candidates = candidates.iter().map(|device| Candidate {
            device: DeviceId(*device),
            rank: Rank::Far,
            probe: false,
        });
        let allowed = allowed.iter().copied().map(DeviceId).collect();
        spray.route(candidates, &allowed).map(|route| route.width())
    };
    assert_eq!(with(&[0, 1], &[]), Err(NoDevice::EmptySet));
    assert_eq!(
        with(&[0, 1], &[64]),
        Err(NoDevice::Excluded { candidates: 2 })
    );
    assert_eq!(with(&[], &[0]), Err(NoDevice::NoneReaches));
    assert_eq!(
        with(&[2], &[2]),
        Err(NoDevice::Unknown {
            device: DeviceId(2)
        })
    );
    assert_eq!(with(&[1, 1, 0], &[0, 1]), Ok(2), "a device counts once");
}

#[test]
fn penalties_are_numbers_of_at_least_one() {
    assert!(NumaPenalties::new([1.0, 1.0, 2.5]).is_some());
    for bad in [0.5, 0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(NumaPenalties::new([1.0, bad, 10.0]), None);
    }
}
