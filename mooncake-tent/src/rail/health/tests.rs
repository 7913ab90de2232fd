//! Histories of one rail.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

const POLICY: RailPolicy = RailPolicy {
    error_threshold: 3,
    error_window: Duration::from_secs(10),
    cooldown: Duration::from_secs(4),
    max_cooldown: Duration::from_secs(20),
    probe_patience: Duration::from_secs(5),
};

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000)
}

fn fail(rail: &mut RailHealth, now: Time) {
    let permit = rail.admit(now, &POLICY).permit();
    rail.failed(now, permit.expect("it admits"), &POLICY);
}

/// Closed at 0 s.
fn closed() -> RailHealth {
    let mut rail = RailHealth::new();
    (0..3).for_each(|_| fail(&mut rail, at(0)));
    assert_eq!(rail.state(), RailState::Cooling { until: at(4) });
    rail
}

fn probe(rail: &mut RailHealth, now: Time) -> Permit {
    match rail.admit(now, &POLICY) {
        Admission::Probe(permit) => permit,
        other => panic!("{other:?} instead of a trial"),
    }
}

#[test]
fn errors_close_a_rail_only_when_they_fall_into_one_window() {
    let mut rail = RailHealth::new();
    for seconds in [0, 6, 12, 18, 24] {
        fail(&mut rail, at(seconds));
        assert!(matches!(rail.state(), RailState::Open { errors: 1..=2 }));
    }
    fail(&mut rail, at(25));
    assert!(matches!(rail.state(), RailState::Cooling { .. }));
}

#[test]
fn after_the_cooldown_one_slice_tries_the_rail_and_its_success_opens_it() {
    let mut rail = closed();
    assert_eq!(
        rail.admit(at(3), &POLICY),
        Admission::Closed { until: at(4) }
    );
    let trial = probe(&mut rail, at(4));
    assert_eq!(
        rail.admit(at(4), &POLICY),
        Admission::Closed { until: at(9) }
    );
    rail.succeeded(at(5), trial);
    assert_eq!(rail.state(), RailState::Open { errors: 0 });
}

#[test]
fn a_trial_that_fails_or_a_relapse_doubles_the_cooldown_to_a_limit() {
    let mut rail = closed();
    let mut now = at(4);
    for expected in [8, 16, 20, 20] {
        let trial = probe(&mut rail, now);
        rail.failed(now, trial, &POLICY);
        now += SECOND * expected;
        assert_eq!(rail.state(), RailState::Cooling { until: now });
    }
    // It works for a moment only.
    let trial = probe(&mut rail, now);
    rail.succeeded(now, trial);
    now += SECOND * 19;
    (0..3).for_each(|_| fail(&mut rail, now));
    assert_eq!(
        rail.state(),
        RailState::Cooling {
            until: now + SECOND * 20
        }
    );
    // It works for as long as it was closed: forgiven.
    now += SECOND * 20;
    let trial = probe(&mut rail, now);
    rail.succeeded(now, trial);
    now += SECOND * 20;
    (0..3).for_each(|_| fail(&mut rail, now));
    assert_eq!(
        rail.state(),
        RailState::Cooling {
            until: now + SECOND * 4
        }
    );
}

#[test]
fn a_trial_that_is_never_heard_of_makes_way_for_another() {
    let mut rail = closed();
    let lost = probe(&mut rail, at(4));
    let next = probe(&mut rail, at(9));
    rail.succeeded(at(10), lost);
    assert!(matches!(rail.state(), RailState::Probing { .. }));
    rail.succeeded(at(10), next);
    assert!(matches!(rail.state(), RailState::Open { .. }));
}

#[test]
fn a_trial_that_was_not_needed_is_the_next_callers() {
    let mut rail = closed();
    let trial = probe(&mut rail, at(4));
    rail.unused(at(4), trial);
    let next = probe(&mut rail, at(4));
    rail.unused(at(4), trial);
    rail.succeeded(at(5), next);
    assert_eq!(rail.state(), RailState::Open { errors: 0 });
}

#[test]
fn law_07_late_news_of_an_old_burst_does_not_close_a_rail_that_recovered() {
    let mut rail = RailHealth::new();
    let old = rail.admit(at(0), &POLICY).permit().unwrap();
    (0..3).for_each(|_| rail.failed(at(0), old, &POLICY));
    let trial = probe(&mut rail, at(4));
    (0..9).for_each(|_| rail.failed(at(4), old, &POLICY));
    assert!(matches!(rail.state(), RailState::Probing { .. }));
    rail.succeeded(at(4), trial);
    for late in [old, trial] {
        (0..9).for_each(|_| rail.failed(at(5), late, &POLICY));
    }
    assert_eq!(rail.state(), RailState::Open { errors: 0 });
}

#[test]
fn what_the_link_says_needs_no_window_and_no_cooldown() {
    let mut rail = RailHealth::new();
    rail.lost(at(1), &POLICY);
    assert_eq!(rail.state(), RailState::Cooling { until: at(5) });
    rail.lost(at(2), &POLICY);
    assert_eq!(
        rail.state(),
        RailState::Cooling { until: at(5) },
        "it is said twice"
    );
    rail.restored(at(3));
    let trial = probe(&mut rail, at(3));
    rail.succeeded(at(3), trial);
    assert!(matches!(rail.state(), RailState::Open { .. }));
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Admit,
    Fail(usize),
    Lost,
    Restored,
    Succeed(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Admit),
        4 => (0..8usize).prop_map(Event::Fail),
        1 => Just(Event::Lost),
        1 => Just(Event::Restored),
        3 => (0..8usize).prop_map(Event::Succeed),
    ]
}

proptest! {
    #[test]
    fn whatever_happened_a_rail_is_tried_again_within_the_longest_wait(
        history in prop::collection::vec((event(), 0..3_000_000u64), 0..200)
    ) {
        let (mut rail, mut now) = (RailHealth::new(), Time::ZERO);
        // Of those admitted lately, any may come back, in any order and more than once.
        let mut permits: Vec<Permit> = Vec::new();
        let mut trials = 0u32;
        for (event, pause) in history {
            now += Duration::from_micros(pause);
            let recent = |back: usize| permits.len().checked_sub(back + 1).map(|at| permits[at]);
            match event {
                Event::Admit => match rail.admit(now, &POLICY) {
                    Admission::Open(permit) => {
                        trials = 0;
                        permits.push(permit);
                    }
                    Admission::Probe(permit) => {
                        trials += 1;
                        permits.push(permit);
                    }
                    Admission::Closed { until } => {
                        prop_assert!(until > now, "it says to come back at once");
                        prop_assert!(until.since(now) <= POLICY.max_cooldown.max(POLICY.probe_patience));
                    }
                },
                Event::Fail(back) => if let Some(permit) = recent(back) {
                    rail.failed(now, permit, &POLICY);
                },
                Event::Lost => rail.lost(now, &POLICY),
                Event::Restored => rail.restored(now),
                Event::Succeed(back) => if let Some(permit) = recent(back) {
                    rail.succeeded(now, permit);
                },
            }
        }
        prop_assert!(trials < 200);
        // From here on it works: it is open after one wait and one slice.
        now += POLICY.max_cooldown.max(POLICY.probe_patience);
        if let Admission::Probe(permit) = rail.admit(now, &POLICY) {
            rail.succeeded(now, permit);
        }
        prop_assert!(matches!(rail.admit(now, &POLICY), Admission::Open(_)));
    }
}
