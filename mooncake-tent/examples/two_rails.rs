//! One stream of requests over two rails, one of which has a bad day: it loses nine tenths of its speed,
//! falls silent, flaps and recovers. The devices and their clock are made up; what cuts, spreads, times
//! and retries is what links with several devices use.
//!
//! `cargo run -p mooncake-tent --features conformance --example two_rails -- [SEED]`

use std::{env, error::Error, time::Duration};

use mooncake_tent::{
    Priority,
    rail::RailState,
    spray::{
        DeviceId, Devices,
        fabric::{Fabric, Fault, Nic, Pilot, PilotConfig},
    },
};

/// No power of two.
const REQUEST: u64 = 5_000_001;
const IN_FLIGHT: usize = 4;
const PHASE: Duration = Duration::from_millis(50);
const RAILS: [DeviceId; 2] = [DeviceId(0), DeviceId(1)];

fn main() -> Result<(), Box<dyn Error>> {
    let seed = env::args().nth(1).map_or(Ok(7), |seed| seed.parse())?;
    let nics = [12_500_000_000, 12_500_000_000].map(Nic::new).to_vec();
    let mut pilot = Pilot::new(Fabric::new(nics, seed), PilotConfig::default());
    println!(
        "{IN_FLIGHT} requests of {REQUEST} bytes in flight over two rails of 12.5 GB/s, for {PHASE:?} each:\n"
    );
    println!(
        "{:<24} {:>9} {:>9} {:>7} {:>7} {:>11} {:>11}  rail 1",
        "rail 1", "requests", "GB/s", "0 has", "1 has", "0 measured", "1 measured"
    );
    let flapping = Fault::Flapping {
        up: Duration::from_millis(5),
        down: Duration::from_millis(3),
    };
    let mut whole = 0;
    for (name, fault) in [
        ("is well", None),
        ("loses 90 %", Some(Fault::Slow { times: 10 })),
        ("is well again", None),
        ("falls silent", Some(Fault::Dead)),
        ("speaks again", None),
        ("fails 1 slice in 200", Some(Fault::Lossy { one_in: 200 })),
        ("goes down and up", Some(flapping)),
        ("is well in the end", None),
    ] {
        pilot.fabric_mut().fault(DeviceId(1), fault);
        whole += phase(&mut pilot, name)?;
    }
    pilot.run(pilot.now() + PHASE * 10);
    println!(
        "\n{whole} requests arrived whole, {} bytes are still charged to a device, seed {seed}",
        pilot.in_flight()
    );
    Ok(())
}

/// Keeps requests in flight for a while, and says what became of them.
fn phase(pilot: &mut Pilot, name: &str) -> Result<usize, Box<dyn Error>> {
    let (begin, both) = (pilot.now(), Devices::first(2));
    let before = RAILS.map(|rail| pilot.device(rail).moved);
    let (mut tasks, mut done) = (Vec::new(), 0);
    while pilot.now() < begin + PHASE {
        while tasks.len() < IN_FLIGHT {
            tasks.push(pilot.submit(REQUEST, Priority::High, &both)?);
        }
        let ended = |pilot: &Pilot| tasks.iter().any(|task| pilot.task(*task).ended.is_some());
        pilot.run_until(begin + PHASE, ended);
        tasks.retain(|task| {
            let whole = pilot.task(*task).is_completed();
            done += usize::from(whole);
            !whole
        });
    }
    let after = RAILS.map(|rail| pilot.device(rail));
    // The last ones, so that each phase has its own.
    let unfinished = tasks.len();
    pilot.run_until(pilot.now() + PHASE * 10, |pilot| {
        tasks.iter().all(|task| pilot.task(*task).ended.is_some())
    });
    if let Some(lost) = tasks.iter().find(|task| !pilot.task(**task).is_completed()) {
        return Err(format!("{lost:?} did not arrive: {:?}", pilot.task(*lost)).into());
    }
    let moved = [0, 1].map(|rail| after[rail].moved - before[rail]);
    let all = (moved[0] + moved[1]) as f64;
    let share = moved.map(|bytes| format!("{:.1} %", 100.0 * bytes as f64 / all));
    let rate = after.map(|rail| match rail.rate {
        Some(rate) => format!("{:.2} GB/s", rate / 1e9),
        None => "unknown".to_owned(),
    });
    let state = match after[1].rail {
        RailState::Open { errors: 0 } => "open".to_owned(),
        RailState::Open { errors } => format!("open, {errors} errors"),
        RailState::Cooling { until } => format!("closed for {:?}", until.since(begin + PHASE)),
        RailState::Probing { .. } => "tried".to_owned(),
    };
    println!(
        "{name:<24} {done:>9} {:>9.2} {:>7} {:>7} {:>11} {:>11}  {state}",
        all / PHASE.as_secs_f64() / 1e9,
        share[0],
        share[1],
        rate[0],
        rate[1],
    );
    Ok(done + unfinished)
}
