use proptest::prelude::*;

use super::*;
use crate::admission::{Contract, Contracts, Degraded, Tenant};
use crate::qos::Priority;

fn secs(secs: u64) -> Time {
    Time::ZERO + Duration::from_secs(secs)
}

fn gate(bytes: Option<u64>, requests: Option<usize>) -> Gate<u64> {
    let config = AdmissionConfig {
        most_bytes: bytes,
        most_requests: requests,
        ..AdmissionConfig::default()
    };
    Gate::new(&config)
}

fn entry(bytes: u64, priority: Priority, deadline: u64) -> Entry<'static> {
    let terms = Contracts::default().terms(None, Intent::Unspecified, Some(priority));
    Entry {
        bytes,
        deadline: secs(deadline),
        tenant: None,
        intent: Intent::Unspecified,
        bounds: terms,
    }
}

/// Offers it under a name; the charge if it goes at once.
fn come(gate: &mut Gate<u64>, now: Time, entry: &Entry<'_>, name: u64) -> Option<Charge> {
    match gate.offer(now, entry).unwrap() {
        Offer::Goes(charge) => Some(charge),
        Offer::Waits(number) => {
            gate.name(number, name);
            None
        }
    }
}

/// Lets one go after the other, and says in which order.
fn drain(gate: &mut Gate<u64>, now: Time) -> Vec<u64> {
    let mut gone = Vec::new();
    while let Some((name, charge)) = gate.next(now) {
        gone.push(name);
        gate.release(&charge);
    }
    gone
}

#[test]
fn the_more_urgent_go_first_and_of_equals_the_one_with_the_earliest_deadline() {
    let mut gate = gate(None, Some(1));
    let first = come(&mut gate, Time::ZERO, &entry(1, Priority::Low, 9), 0).unwrap();
    for (name, priority, deadline) in [
        (1, Priority::Low, 50),
        (2, Priority::Medium, 60),
        (3, Priority::High, 90),
        (4, Priority::Medium, 40),
        (5, Priority::High, 80),
        (6, Priority::Medium, 40),
    ] {
        assert!(come(&mut gate, Time::ZERO, &entry(1, priority, deadline), name).is_none());
    }
    assert!(gate.next(Time::ZERO).is_none());
    gate.release(&first);
    assert_eq!(drain(&mut gate, Time::ZERO), [5, 3, 4, 6, 2, 1]);
    assert!(gate.is_idle());
}

#[test]
fn whoever_has_waited_long_goes_before_those_that_are_more_urgent() {
    let mut gate = gate(None, Some(1));
    let mut flying = come(&mut gate, secs(0), &entry(1, Priority::High, 900), 0);
    assert!(come(&mut gate, secs(0), &entry(1, Priority::Low, 999), 1).is_none());
    // Somebody urgent comes each second, and one a second is served.
    let mut served = None;
    for now in 0..10 {
        let urgent = entry(1, Priority::High, 500 - now);
        assert!(come(&mut gate, secs(now), &urgent, 100 + now).is_none());
        gate.release(&flying.take().unwrap());
        let (name, charge) = gate.next(secs(now)).unwrap();
        flying = Some(charge);
        if name == 1 {
            served = Some(now);
            break;
        }
    }
    assert_eq!(served, Some(3), "a second for each step");
}

#[test]
fn what_is_larger_than_the_window_goes_alone_and_is_not_overtaken() {
    let mut gate = gate(Some(100), None);
    let small = come(&mut gate, Time::ZERO, &entry(60, Priority::High, 9), 0).unwrap();
    assert!(come(&mut gate, Time::ZERO, &entry(1000, Priority::High, 5), 1).is_none());
    assert!(come(&mut gate, Time::ZERO, &entry(10, Priority::High, 8), 2).is_none());
    assert!(gate.next(Time::ZERO).is_none(), "there would be room for 2");
    gate.release(&small);
    let (name, large) = gate.next(Time::ZERO).unwrap();
    assert_eq!(name, 1);
    assert!(gate.next(Time::ZERO).is_none());
    gate.release(&large);
    assert_eq!(drain(&mut gate, Time::ZERO), [2]);
    assert!(gate.is_idle());
}

#[test]
fn a_tenant_that_has_its_share_waits_and_is_in_nobodys_way() {
    let mut tenant = Tenant::new("a");
    tenant.defaults.max_inflight_requests = Some(2);
    let saved = Contract {
        max_inflight_bytes: Some(10),
        allowed_degraded_actions: Some(vec![Degraded::Reject]),
        ..Contract::default()
    };
    tenant.intents.insert(Intent::Checkpoint, saved);
    let contracts = Contracts::new(Contract::default(), vec![tenant]).unwrap();
    let whose = |tenant: Option<&'static str>, intent| Entry {
        tenant,
        intent,
        bounds: contracts.terms(tenant, intent, None),
        ..entry(7, Priority::High, 9)
    };
    let config = AdmissionConfig::default();
    let mut gate: Gate<u64> = Gate::new(&config);
    let plain = whose(Some("a"), Intent::Unspecified);
    let saves = whose(Some("a"), Intent::Checkpoint);
    let saving = come(&mut gate, Time::ZERO, &saves, 0).unwrap();
    assert_eq!(gate.offer(Time::ZERO, &saves), Err(Refusal::MayNotWait));
    let second = come(&mut gate, Time::ZERO, &plain, 1).unwrap();
    assert!(come(&mut gate, Time::ZERO, &plain, 2).is_none());
    let others = whose(Some("b"), Intent::Unspecified);
    let other = come(&mut gate, Time::ZERO, &others, 3).unwrap();
    let nobody = come(&mut gate, Time::ZERO, &whose(None, Intent::Checkpoint), 4).unwrap();
    for charge in [other, nobody] {
        gate.release(&charge);
    }
    assert!(gate.next(Time::ZERO).is_none());
    gate.release(&saving);
    let (name, third) = gate.next(Time::ZERO).unwrap();
    assert_eq!(name, 2);
    for charge in [second, third] {
        gate.release(&charge);
    }
    assert!(gate.is_idle());
}

#[test]
fn who_is_late_leaves_or_finds_no_room_waits_no_more() {
    let config = AdmissionConfig {
        most_requests: Some(1),
        most_waiting: 2,
        ..AdmissionConfig::default()
    };
    let mut gate = Gate::new(&config);
    let charge = come(&mut gate, secs(0), &entry(1, Priority::High, 9), 0).unwrap();
    assert!(come(&mut gate, secs(0), &entry(1, Priority::High, 5), 1).is_none());
    let left = gate.offer(secs(0), &entry(1, Priority::High, 7)).unwrap();
    let full = gate.offer(secs(0), &entry(1, Priority::High, 7));
    assert_eq!(full, Err(Refusal::Full(2)));
    assert_eq!(gate.next_event(), Some(secs(5)));
    assert_eq!(gate.late(secs(4)), None);
    assert_eq!(gate.late(secs(6)), Some(1));
    let Offer::Waits(number) = left else {
        panic!("there is no room");
    };
    assert_eq!(gate.late(secs(8)), None, "nobody knows its name yet");
    gate.name(number, 2);
    assert_eq!(gate.leave(number), Some(2));
    assert_eq!(gate.leave(number), None);
    gate.release(&charge);
    assert!(gate.is_idle());
    assert_eq!(gate.close(), None);
    let stopped = gate.offer(secs(0), &entry(1, Priority::High, 7));
    assert_eq!(stopped, Err(Refusal::Stopped));
}

proptest! {
    #[test]
    fn law_13_whatever_comes_and_goes_windows_hold_and_all_is_served_and_released(
        steps in prop::collection::vec((1..200u64, 0..3u64, 1..50u64, 0..4u8, 0..3usize), 1..200),
        bytes in prop::option::of(1..300u64),
        requests in prop::option::of(1..6usize),
    ) {
        let mut tenant = Tenant::new("a");
        tenant.defaults.max_inflight_bytes = Some(150);
        let contracts = Contracts::new(Contract::default(), vec![tenant]).unwrap();
        let mut gate = gate(bytes, requests);
        let mut flying: Vec<(u64, Option<&str>, Charge)> = Vec::new();
        let mut known: Vec<(u64, Option<&str>)> = Vec::new();
        let (mut now, mut gone) = (Time::ZERO, 0);
        for (name, (size, level, wait, what, whose)) in steps.into_iter().enumerate() {
            now += Duration::from_millis(wait * 20);
            let tenant = [None, Some("a"), Some("b")][whose];
            let priority = Priority::from_level(level);
            let entry = Entry {
                tenant,
                bounds: contracts.terms(tenant, Intent::Unspecified, priority),
                ..entry(size, Priority::High, 1_000_000)
            };
            known.push((size, tenant));
            match come(&mut gate, now, &entry, name as u64) {
                Some(charge) => flying.push((size, tenant, charge)),
                None => prop_assert!(gate.waiting() > 0),
            }
            if what > 0 && !flying.is_empty() {
                let (_, _, charge) = flying.swap_remove(usize::from(what) % flying.len());
                gate.release(&charge);
                gone += 1;
            }
            while let Some((name, charge)) = gate.next(now) {
                let (size, tenant) = known[name as usize];
                flying.push((size, tenant, charge));
            }
            let all: u64 = flying.iter().map(|(size, ..)| size).sum();
            prop_assert!(flying.len() == 1 || bytes.is_none_or(|most| all <= most));
            prop_assert!(requests.is_none_or(|most| flying.len() <= most));
            let own: Vec<_> = flying.iter().filter(|(_, tenant, _)| *tenant == Some("a")).collect();
            let sum: u64 = own.iter().map(|(size, ..)| size).sum();
            prop_assert!(own.len() == 1 || sum <= 150);
            // The window is not left empty while somebody waits.
            prop_assert!(!flying.is_empty() || gate.waiting() == 0);
        }
        while let Some((_, _, charge)) = flying.pop() {
            gate.release(&charge);
            gone += 1;
            while let Some((name, charge)) = gate.next(now) {
                let (size, tenant) = known[name as usize];
                flying.push((size, tenant, charge));
            }
        }
        prop_assert_eq!(gone, known.len());
        prop_assert!(gate.is_idle());
    }
}
