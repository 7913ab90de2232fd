//! Many seeds, and mistakes that must not pass.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use mooncake_sim::{Plan, Plant, Report, run, shrink};

/// Runs seeds on all cores; the smallest part of the first plan that fails, and how it fails.
fn first_failure(seeds: std::ops::Range<u64>, plant: Plant) -> (Option<u64>, Report) {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicU64::new(u64::MAX));
    let work = || {
        let mut total = Report::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || seed > failed.load(Ordering::Relaxed) {
                return total;
            }
            match run(&Plan::draw(seed, plant)) {
                Ok(report) => total += report,
                Err(_) => {
                    failed.fetch_min(seed, Ordering::Relaxed);
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut total = Report::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            total += worker.join().expect("a worker does not panic");
        }
    });
    let failed = failed.into_inner();
    ((failed < u64::MAX).then_some(failed), total)
}

fn all_hold(seeds: std::ops::Range<u64>) -> Report {
    let (failed, total) = first_failure(seeds, Plant::Nothing);
    if let Some(seed) = failed {
        let plan = Plan::draw(seed, Plant::Nothing);
        let violation = run(&plan).expect_err("a run is the same each time");
        let (smaller, small) = shrink(plan.clone(), violation.clone());
        panic!(
            "seed {seed}: {violation}\n  {}\nsmaller: {small}\n  {}",
            plan.command(),
            smaller.command()
        );
    }
    total
}

#[test]
fn no_promise_is_broken_in_thousands_of_bad_days() {
    all_hold(1_000..4_000);
}

#[test]
fn a_thousand_days_see_everything_that_can_happen() {
    let seen = all_hold(0..1_000);
    for (what, count) in seen.each() {
        assert!(count > 0, "{what} never happens: {seen:#?}");
    }
    // What a store does all day must not become rare.
    for (what, count, least) in [
        ("puts", seen.puts, 5_000),
        ("puts in one step", seen.placed_puts, 500),
        ("replacements in one step", seen.placed_upserts, 50),
        ("puts that missed their grants", seen.misplaced_puts, 5),
        ("returned grants", seen.returned_grants, 200),
        ("gets", seen.gets, 5_000),
        ("removes", seen.removes, 5_000),
        ("evicted", seen.evicted, 1_000),
        ("no space", seen.no_space, 200),
        ("busy", seen.busy, 100),
        ("taken over", seen.taken_over, 100),
        ("leases over", seen.leases_over, 100),
        ("streams resumed", seen.resumed, 1_000),
        ("late frames", seen.late_frames, 20),
        ("stale", seen.stale, 20),
        ("failovers", seen.failovers, 10),
        ("upserts", seen.upserts, 500),
        ("puts that waited", seen.waited_puts, 50),
        ("puts elsewhere", seen.moved_puts, 10),
        ("answers that came later", seen.deferred, 100),
        ("barriers", seen.barriers, 30),
        ("reads of what exist promised", seen.held_reads, 200),
        ("objects removed together", seen.removed_together, 500),
        ("quiet goodbyes", seen.quiet_goodbyes, 200),
    ] {
        assert!(count >= least, "{what}: {count}, not {least}: {seen:#?}");
    }
}

#[test]
#[ignore = "takes minutes"]
fn no_promise_is_broken_in_a_hundred_thousand_bad_days() {
    all_hold(4_000..104_000);
}

#[test]
fn each_planted_mistake_is_caught() {
    for plant in Plant::MISTAKES {
        let (failed, _) = first_failure(0..2_000, plant);
        let seed = failed.unwrap_or_else(|| panic!("{plant} passes 2,000 seeds"));
        println!("{plant}: seed {seed}");
    }
}

#[test]
fn a_run_is_the_same_each_time_and_a_small_one_still_fails() {
    let plan = Plan::draw(3, Plant::Nothing);
    assert_eq!(run(&plan), run(&plan));
    let seed = (0..).find(|seed| run(&Plan::draw(*seed, Plant::PublishEarly)).is_err());
    let plan = Plan::draw(seed.expect("one is caught"), Plant::PublishEarly);
    let violation = run(&plan).expect_err("it was before");
    let (smaller, small) = shrink(plan.clone(), violation);
    assert!(smaller.operations().len() < plan.operations().len());
    assert_eq!(run(&smaller), Err(small));
    let again = Plan::draw(plan.seed, plan.plant)
        .keep(Some(&smaller.operations()), Some(&smaller.faults()));
    assert_eq!(again.command(), smaller.command());
}
