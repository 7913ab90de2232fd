//! A wheel beside a sorted map, which does the same.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// So long after now.
    Insert(u64),
    /// So long before now.
    InsertLate(u64),
    Cancel(prop::sample::Index),
    Advance(u64),
}

/// Spans of all magnitudes, so that every level of the wheel has its turn.
fn span() -> impl Strategy<Value = u64> {
    (0..44u32, any::<u64>()).prop_map(|(bits, raw)| raw & ((1 << bits) - 1))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => span().prop_map(Step::Insert),
        1 => span().prop_map(Step::InsertLate),
        2 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        3 => span().prop_map(Step::Advance),
    ]
}

/// A sorted map does what the wheel should do.
struct Model {
    resolution: u64,
    reached: u64,
    timers: BTreeMap<(u64, usize), Time>,
}

impl Model {
    fn insert(&mut self, deadline: Time, number: usize) -> (u64, usize) {
        let tick = deadline.0.div_ceil(self.resolution).max(self.reached);
        self.timers.insert((tick, number), deadline);
        (tick, number)
    }

    fn pop(&mut self, now: Time) -> Option<(Time, usize)> {
        let first = self.timers.first_entry()?;
        let (tick, number) = *first.key();
        (tick <= now.0 / self.resolution).then(|| (first.remove(), number))
    }
}

proptest! {
    #[test]
    fn a_wheel_does_what_a_sorted_map_does(
        start in span(), resolution in 1..200u64, steps in prop::collection::vec(step(), 1..200)
    ) {
        let mut now = Time(start);
        let mut wheel = TimerWheel::new(now, Duration::from_micros(resolution));
        let reached = now.0 / resolution;
        let mut model = Model { resolution, reached, timers: BTreeMap::new() };
        let mut tokens = Vec::new();
        for step in steps {
            match step {
                Step::Insert(_) | Step::InsertLate(_) => {
                    let deadline = match step {
                        Step::Insert(after) => Time(now.0 + after),
                        Step::InsertLate(before) => Time(now.0.saturating_sub(before)),
                        _ => unreachable!("matched above"),
                    };
                    let key = model.insert(deadline, tokens.len());
                    tokens.push((wheel.insert(deadline, tokens.len()), key));
                }
                Step::Cancel(which) => if !tokens.is_empty() {
                    let (token, key) = tokens[which.index(tokens.len())];
                    let expected = model.timers.remove(&key).map(|_| key.1);
                    prop_assert_eq!(wheel.cancel(token), expected);
                }
                Step::Advance(by) => {
                    now = Time(now.0 + by);
                    if let Some(((tick, _), _)) = model.timers.first_key_value() {
                        let next = wheel.next_due().unwrap();
                        prop_assert!(next.0 <= tick * resolution, "it says {:?}", next);
                    }
                    loop {
                        let expected = model.pop(now);
                        prop_assert_eq!(wheel.pop(now), expected);
                        if expected.is_none() {
                            break;
                        }
                    }
                    model.reached = now.0 / resolution;
                }
            }
            prop_assert_eq!(wheel.len(), model.timers.len());
            prop_assert_eq!(wheel.next_due().is_none(), model.timers.is_empty());
        }
    }

    #[test]
    fn no_timer_is_early_nor_late_by_a_tick(
        after in span(), resolution in 1..5000u64, start in span()
    ) {
        let mut wheel = TimerWheel::new(Time(start), Duration::from_micros(resolution));
        let deadline = Time(start + after);
        wheel.insert(deadline, ());
        // A driver that sleeps until the time it is told.
        let mut wakes = 0;
        let fired = loop {
            let now = wheel.next_due().unwrap().max(Time(start));
            if wheel.pop(now).is_some() {
                break now;
            }
            wakes += 1;
            prop_assert!(wakes <= LEVELS, "woken for nothing again and again");
        };
        prop_assert!(fired >= deadline && fired.0 - deadline.0 < resolution);
    }
}

#[test]
fn the_token_of_a_timer_that_is_gone_does_not_reach_its_successor() {
    let mut wheel = TimerWheel::new(Time(0), Duration::from_micros(1));
    let old = wheel.insert(Time(5), 'a');
    assert_eq!(wheel.pop(Time(5)), Some((Time(5), 'a')));
    let new = wheel.insert(Time(9), 'b');
    assert_eq!(old.slot, new.slot, "the memory is used again");
    assert_eq!(wheel.cancel(old), None);
    assert_eq!(wheel.cancel(new), Some('b'));
    assert!(wheel.is_empty() && wheel.next_due().is_none());
}

#[test]
fn the_last_moment_of_time_has_its_place() {
    let mut wheel = TimerWheel::new(Time(0), Duration::from_micros(1));
    let never = wheel.insert(Time(u64::MAX), ());
    assert_eq!(wheel.pop(Time(u64::MAX - 1)), None);
    assert_eq!(wheel.cancel(never), Some(()));
}

#[test]
fn a_wheel_that_has_grown_allocates_nothing() {
    let mut wheel = TimerWheel::new(Time(0), Duration::from_micros(1));
    let mut now = 0;
    for round in 0..100u64 {
        let tokens: Vec<_> = (0..64)
            .map(|i| wheel.insert(Time(now + 7 * i), i))
            .collect();
        now += 200;
        tokens.iter().skip(1).step_by(2).for_each(|token| {
            wheel.cancel(*token);
        });
        while wheel.pop(Time(now)).is_some() {}
        tokens.iter().for_each(|token| {
            wheel.cancel(*token);
        });
        assert!(wheel.is_empty() && wheel.entries.len() <= 64, "{round}");
    }
}
