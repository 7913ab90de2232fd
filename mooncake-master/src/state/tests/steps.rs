//! How much one step does, counted in objects.

use super::*;

const LENGTH: u64 = 64;

/// A store of so many objects of one client's segment, which the last of them fills to `fill`.
fn filled(objects: u64, fill: f64, settings: Settings) -> (State, Driver) {
    let mut state = State::new(7, settings);
    let mut driver = Driver::default();
    driver.take(&mut state, &Step::Hello(1));
    let length = (objects as f64 * LENGTH as f64 / fill) as u64;
    let segment = SegmentIdentity {
        length: length.next_multiple_of(LENGTH),
        ..segment(1, 1, 0)
    };
    driver.perform(&mut state, 1, Operation::Mount(segment));
    for first in (0..objects).step_by(512) {
        put(
            &mut state,
            &mut driver,
            first..objects.min(first + 512),
            LENGTH,
        );
    }
    (state, driver)
}

fn numbered(n: u64) -> Key {
    Key::from(n.to_string().into_bytes())
}

/// Without looking at the books, which takes long for many objects.
fn ask(state: &mut State, driver: &mut Driver, operation: Operation) -> Answer {
    driver.number += 1;
    let (client, number) = (ClientId(1), driver.number);
    let caller = Caller::Session { client, number };
    let applied = state.apply(driver.now, &Command::Perform { caller, operation });
    applied.answer
}

fn settled_with(effect: Effect) -> Option<(u64, Answer)> {
    match effect {
        Effect::Settled { ticket, answer, .. } => Some((ticket, answer)),
        _ => None,
    }
}

fn put(
    state: &mut State,
    driver: &mut Driver,
    numbers: std::ops::Range<u64>,
    length: u64,
) -> Vec<Result<Object, Failure>> {
    let keys: Vec<_> = numbers.map(numbered).collect();
    let start = PutStart {
        items: keys.iter().map(|key| (key.clone(), length)).collect(),
        replicas: 1,
        ..PutStart::default()
    };
    let Answer::Started(started) = ask(state, driver, Operation::PutStart(start)) else {
        panic!("PutStart is answered by Started");
    };
    let ends = keys.into_iter().zip(&started.results);
    let ends = ends.filter_map(|(key, object)| Some((key, object.as_ref().ok()?.incarnation)));
    let ends = ends.collect();
    ask(state, driver, Operation::PutEnd(ends));
    started.results
}

#[test]
fn eviction_looks_at_what_it_evicts_and_takes_steps() {
    // So many that what is evicted takes steps beyond the two of a put, which crosses the watermark.
    let objects = 100_000;
    let (mut state, mut driver) = filled(objects, 0.8999, settings());
    assert_eq!(state.counters().evicted_objects, 0);
    put(&mut state, &mut driver, objects..objects + 100, LENGTH);
    let (mut work, mut steps) = (0, 0);
    let before = state.counters().evicted_objects;
    loop {
        let answer = state.apply(driver.now, &Command::Tick).answer;
        assert!(state.work <= STEP, "{} objects in one step", state.work);
        work += u64::from(state.work);
        steps += 1;
        if answer == (Answer::Ticked { more: false }) {
            break;
        }
    }
    let evicted = state.counters().evicted_objects - before;
    assert!(evicted > u64::from(STEP), "{evicted}");
    assert!(steps > 1 && work <= evicted, "{work} for {evicted}");
    state.check_books();
}

#[test]
fn a_segment_is_emptied_in_steps_and_nothing_of_other_segments_is_looked_at() {
    let (mut state, mut driver) = filled(5000, 0.5, settings());
    let other = segment(1, 2, 0);
    ask(&mut state, &mut driver, Operation::Mount(other));
    let elsewhere = PutStart {
        items: (5000..6000).map(|n| (numbered(n), LENGTH)).collect(),
        replicas: 1,
        preferred: vec!["segment-2".to_owned()],
        ..PutStart::default()
    };
    ask(&mut state, &mut driver, Operation::PutStart(elsewhere));
    let before = state.counters();
    let unmount = Operation::Unmount(SegmentId([1; 16]));
    let Answer::Later { ticket } = ask(&mut state, &mut driver, unmount) else {
        panic!("it is done in steps");
    };
    let now = state.counters();
    assert_eq!(
        (now.segments, now.used_bytes),
        (1, 1000 * LENGTH),
        "{before:?}"
    );
    let again = ask(&mut state, &mut driver, Operation::Mount(segment(1, 1, 0)));
    let stale = Failure::StaleSegment { generation: 0 };
    assert_eq!(again, Answer::Refused(stale), "this life of it has ended");
    let mut work = state.work;
    let settled = loop {
        let applied = state.apply(driver.now, &Command::Tick);
        assert!(state.work <= STEP, "{} objects in one step", state.work);
        work += state.work;
        let settled = applied.effects.into_iter().find_map(settled_with);
        if let Some(settled) = settled {
            break settled;
        }
        assert_eq!(applied.answer, Answer::Ticked { more: true });
    };
    assert_eq!(settled, (ticket, Answer::Done));
    assert!(work < 5000, "{work} looked at in the steps after the first");
    let counters = state.counters();
    assert_eq!((counters.objects, counters.puts_in_progress), (0, 1000));
    state.check_books();
}

#[test]
fn a_list_ends_though_all_that_it_has_yet_to_look_at_goes_meanwhile() {
    let (mut state, mut driver) = filled(5000, 0.5, settings());
    let page = Operation::ListObjects(list(0));
    let Answer::Later { ticket } = ask(&mut state, &mut driver, page) else {
        panic!("it is gathered in steps");
    };
    ask(&mut state, &mut driver, Operation::RemoveAll);
    let mut settled = Vec::new();
    loop {
        let applied = state.apply(driver.now, &Command::Tick);
        assert!(state.work <= STEP, "{} objects in one step", state.work);
        settled.extend(applied.effects.into_iter().filter_map(settled_with));
        if applied.answer == (Answer::Ticked { more: false }) {
            break;
        }
    }
    let list = settled.iter().find(|(of, _)| *of == ticket);
    assert!(
        matches!(list, Some((_, Answer::Objects { .. }))),
        "{list:?}"
    );
    state.check_books();
}

#[test]
fn what_needs_many_neighbours_gets_them_step_by_step() {
    let objects = 6000;
    let settings = Settings {
        high_watermark: 1.0,
        ..settings()
    };
    let (mut state, mut driver) = filled(objects, 1.0, settings);
    // The order of use is not that of addresses.
    for n in 0..objects {
        let key = numbered(n * 3701 % objects);
        let answer = ask(&mut state, &mut driver, Operation::Lookup(vec![key]));
        if let Answer::Looked { lease, .. } = answer {
            ask(&mut state, &mut driver, Operation::Release(vec![lease]));
        }
    }
    let mut tries = 0;
    loop {
        tries += 1;
        assert!(tries < 20, "it never gets its place");
        let number = objects + tries;
        let result = put(&mut state, &mut driver, number..number + 1, 2000 * LENGTH);
        assert!(state.work <= 2 * STEP, "{} objects in one step", state.work);
        if result[0].is_ok() {
            break;
        }
    }
    assert!(tries > 1, "{tries}");
    let evicted = state.counters().evicted_objects;
    assert!(evicted < 2000 + 300 * tries, "{evicted} in {tries} tries");
    state.check_books();
}

#[test]
fn what_ends_at_one_moment_ends_in_steps() {
    let (mut state, mut driver) = filled(5000, 0.1, settings());
    let keys = (0..5000).map(numbered).collect();
    ask(&mut state, &mut driver, Operation::Exist(keys));
    assert!(state.counters().reservations > 4000);
    driver.now += Duration::from_secs(1);
    let mut steps = 0;
    while (state.apply(driver.now, &Command::Tick).answer) == (Answer::Ticked { more: true }) {
        assert!(state.work <= STEP, "{} objects in one step", state.work);
        steps += 1;
    }
    assert!(steps > 3, "{steps}");
    assert_eq!(state.counters().reservations, 0);
}

#[test]
fn what_is_set_aside_returns_beside_those_that_did_before_though_one_was_used_since() {
    let objects = 100_000;
    let (mut state, mut driver) = filled(objects, 0.8999, settings());
    let tick = |state: &mut State, driver: &Driver| {
        let mut work = 0;
        while (state.apply(driver.now, &Command::Tick).answer) == (Answer::Ticked { more: true }) {
            work += state.work;
        }
        work + state.work
    };
    // Two of the oldest, of which the first is free before the second.
    for n in 0..2 {
        ask(&mut state, &mut driver, Operation::Exist(vec![numbered(n)]));
        driver.now += Duration::from_millis(100);
    }
    put(&mut state, &mut driver, objects..objects + 100, LENGTH);
    tick(&mut state, &driver);
    assert!(state.counters().evicted_objects > 1000);
    driver.now += Duration::from_millis(350);
    tick(&mut state, &driver);
    assert_eq!(state.counters().reservations, 1);
    let used = Operation::Lookup(vec![numbered(0)]);
    ask(&mut state, &mut driver, used);
    driver.now += Duration::from_millis(200);
    let work = tick(&mut state, &driver);
    assert_eq!(state.counters().reservations, 0);
    assert!(work < 10, "{work} objects were looked at");
    state.check_books();
}

#[test]
fn what_was_granted_of_a_segment_ends_with_it_in_steps_and_keeps_its_life_from_coming_back() {
    let (mut state, mut driver) = filled(10, 0.000_1, settings());
    let id = SegmentId([1; 16]);
    let number = 1;
    let grant = Grant {
        segment: id,
        number,
        length: 8000 * LENGTH,
    };
    let Answer::Granted { offset, length } = ask(&mut state, &mut driver, Operation::Grant(grant))
    else {
        panic!("Grant is answered by Granted");
    };
    assert_eq!(length, 8000 * LENGTH);
    // Every second place, so that as many parts are left.
    for first in (0..4000).step_by(500) {
        let placed = |n: u64| Placed {
            key: numbered(1000 + n),
            length: LENGTH,
            grant: number,
            offset: offset + 2 * n * LENGTH,
        };
        let put = PutPlaced {
            segment: id,
            items: (first..first + 500).map(placed).collect(),
            upsert: false,
        };
        let Answer::Put(results) = ask(&mut state, &mut driver, Operation::Put(put)) else {
            panic!("Put is answered by its results");
        };
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
    state.check_books();
    ask(&mut state, &mut driver, Operation::RemoveAll);
    while (state.apply(driver.now, &Command::Tick).answer) == (Answer::Ticked { more: true }) {}
    assert_eq!(state.counters().granted_bytes, 4000 * LENGTH);
    let unmount = ask(&mut state, &mut driver, Operation::Unmount(id));
    assert!(matches!(unmount, Answer::Later { .. }), "{unmount:?}");
    assert_eq!(state.counters().granted_bytes, 0);
    let mut steps = 0;
    while (state.apply(driver.now, &Command::Tick).answer) == (Answer::Ticked { more: true }) {
        assert!(state.work <= STEP, "{} objects in one step", state.work);
        steps += 1;
    }
    assert!(steps > 1, "{steps}");
    state.check_books();
    let again = ask(&mut state, &mut driver, Operation::Mount(segment(1, 1, 0)));
    let stale = Failure::StaleSegment { generation: 0 };
    assert_eq!(again, Answer::Refused(stale), "its owner may be writing");
}

#[test]
fn no_large_object_takes_the_place_of_what_was_granted() {
    let settings = Settings {
        high_watermark: 1.0,
        ..settings()
    };
    let (mut state, mut driver) = filled(1000, 0.5, settings);
    let grant = Grant {
        segment: SegmentId([1; 16]),
        number: 1,
        length: 100 * LENGTH,
    };
    let granted = ask(&mut state, &mut driver, Operation::Grant(grant));
    let offset = 1000 * LENGTH;
    let length = 100 * LENGTH;
    assert_eq!(granted, Answer::Granted { offset, length });
    // The grant lies between both: neither side alone has more, whatever is evicted.
    let mut fits = |objects: u64, number: u64| {
        (0..10).any(|_| {
            put(
                &mut state,
                &mut driver,
                number..number + 1,
                objects * LENGTH,
            )[0]
            .is_ok()
        })
    };
    assert!(!fits(1001, 5000));
    assert!(fits(1000, 5001));
    state.check_books();
}

#[test]
fn what_is_longer_than_half_of_all_numbers_is_evicted_for_its_like() {
    let settings = Settings {
        high_watermark: 1.0,
        ..settings()
    };
    let (mut state, mut driver) = filled(1, 1.0, settings);
    let length = 1 << 63;
    let huge = SegmentIdentity {
        length,
        ..segment(1, 2, 0)
    };
    ask(&mut state, &mut driver, Operation::Mount(huge));
    for n in 1..4 {
        let results = put(&mut state, &mut driver, n..n + 1, length);
        assert!(results[0].is_ok(), "{results:?}");
    }
    assert_eq!(state.counters().used_bytes, length + LENGTH);
    state.check_books();
}
