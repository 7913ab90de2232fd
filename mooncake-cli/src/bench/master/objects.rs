//! Many objects: what they take, what is given back, and whether eviction keeps others waiting.

use std::{
    thread,
    time::{Duration, Instant},
};

use tokio::runtime::Handle;

use super::{
    caller::{Caller, Wire},
    figure::{Figure, Goal},
    fixture::Fixture,
    keys::Keys,
    load::VALUE_BYTES,
    plan::{Plan, Source, Work},
    suite::Suite,
};
use crate::output::Failure;

/// How long memory may take to go back to the system.
const SETTLE: Duration = Duration::from_secs(2);
const SETTLE_STEP: Duration = Duration::from_millis(50);

/// Fills a master, and empties it.
///
/// # Errors
///
/// It fails.
pub(super) fn memory(runtime: &Handle, suite: &Suite) -> Result<Vec<Figure>, Failure> {
    let objects = suite.objects;
    let fixture = runtime.block_on(Fixture::start(&[], 1 << 40))?;
    let before = fixture.master.resident_bytes();
    let cpu = fixture.master.cpu();
    let cpu_before = cpu.read();
    let filled = runtime.block_on(fixture.fill(Keys::new(suite.key_bytes, 0), objects))?;
    let cpu_fill = cpu.read() - cpu_before;
    let full = fixture.master.resident_bytes();
    let removed = runtime.block_on(fixture.remove_all())?;
    // Memory that is the same as before, but for what the master keeps for the next objects.
    let good = before + before * 15 / 100;
    let end = Instant::now() + SETTLE;
    let mut after = fixture.master.resident_bytes();
    while after > good && Instant::now() < end {
        thread::sleep(SETTLE_STEP);
        after = fixture.master.resident_bytes();
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let each = full.saturating_sub(before) as f64 / objects as f64;
    let micros = cpu_fill.as_secs_f64() * 1e6 / objects as f64;
    Ok(vec![
        Figure::new("memory: objects", objects as f64, "objects"),
        Figure::new("memory: of an object", each, "bytes").should_be(Goal::at_most(250.0)),
        Figure::new("memory: before", mib(before), "MiB"),
        Figure::new("memory: full", mib(full), "MiB"),
        Figure::new("memory: all removed", mib(after), "MiB").should_be(Goal::at_most(mib(good))),
        Figure::new("memory: remove all", removed.as_secs_f64(), "s").should_be(Goal::at_most(0.3)),
        Figure::new("memory: fill", filled.as_secs_f64(), "s"),
        Figure::new("memory: CPU of the master to fill", micros, "µs/key"),
    ])
}

/// What eviction frees at once, as a share of the capacity.
const EVICTED_SHARE: f64 = 0.05;
const HIGH: f64 = 0.95;
/// How full the segment is before, so that the putter has some way to go to the watermark.
const FILLED: f64 = 0.93;

/// How long others ask while objects are evicted, at least.
const TURNS: u32 = 4;

/// Lets one client ask for a key at a time while another puts until objects are evicted, and
/// compares the longest delays with those of the same load where there is room.
///
/// # Errors
///
/// It fails, or nothing is evicted.
pub(super) fn eviction(runtime: &Handle, suite: &Suite) -> Result<Vec<Figure>, Failure> {
    let objects = suite.evictable;
    let budget = TURNS * suite.turns.budget;
    let high = format!("--eviction-high-watermark-ratio={HIGH}");
    let low = format!("--eviction-low-watermark-ratio={}", HIGH - EVICTED_SHARE);
    let segment_bytes = (objects * VALUE_BYTES) as f64 / HIGH;
    let settings: [&str; 2] = [&high, &low];
    let fixture = runtime.block_on(Fixture::start(&settings, segment_bytes as u64))?;
    let filled = (objects as f64 / HIGH * FILLED) as u64;
    // Half a per cent of room, then the rest: the first load stays below the watermark.
    let quiet = filled - filled / 10;
    runtime.block_on(fixture.fill(Keys::new(suite.key_bytes, 0), quiet))?;
    let asking = Plan {
        work: Work::Exist { found: false },
        batch: 1,
        depth: 1,
    };
    let putting = Plan {
        work: Work::Put,
        batch: 128,
        depth: 1,
    };
    let address = &fixture.master.address;
    let keys = |space| Keys::new(suite.key_bytes, space);
    let asker = Source::known(&keys(1), 1_000);
    let asker = Caller::start(address, Wire::Session, asking, asker)?;
    let putter = Caller::start(address, Wire::Session, putting, Source::fresh(keys(2)))?;
    let load = |budget| {
        asker.begin(budget);
        putter.begin(budget);
        let put = putter.wait()?;
        Ok::<_, Failure>((asker.wait()?, put))
    };
    let (calm, _) = load(budget / 8)?;
    let before = runtime.block_on(fixture.evicted_objects())?;
    // Up to the watermark.
    runtime.block_on(fixture.fill(keys(3), filled - quiet))?;
    let (mut asked, put) = load(budget)?;
    let mut puts = put.operations;
    let mut evicted = runtime.block_on(fixture.evicted_objects())? - before;
    let end = Instant::now() + 10 * budget;
    while (evicted as f64) < objects as f64 * EVICTED_SHARE * 0.9 && Instant::now() < end {
        let (more, put) = load(budget)?;
        asked.latency.merge(&more.latency);
        puts += put.operations;
        evicted = runtime.block_on(fixture.evicted_objects())? - before;
    }
    if evicted == 0 {
        return Err(Failure::new(format!("{puts} puts evicted nothing")));
    }
    let delay = |name: &str, latency: &crate::latency::Latency, share| {
        Figure::new(name, latency.quantile_us(share) / 1e3, "ms")
    };
    Ok(vec![
        Figure::new("eviction: objects", objects as f64, "objects"),
        Figure::new("eviction: evicted", evicted as f64, "objects"),
        Figure::new("eviction: put", puts as f64, "objects"),
        delay(
            "eviction: exist beside puts with room, p999",
            &calm.latency,
            0.999,
        ),
        delay(
            "eviction: exist beside puts with room, longest",
            &calm.latency,
            1.0,
        ),
        delay(
            "eviction: exist beside eviction, p999",
            &asked.latency,
            0.999,
        )
        .should_be(Goal::at_most(2.0)),
        delay(
            "eviction: exist beside eviction, longest",
            &asked.latency,
            1.0,
        )
        .should_be(Goal::at_most(2.0)),
    ])
}
