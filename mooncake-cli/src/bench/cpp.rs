//! The C++ store and transfer engine, as their Python wheel has them, as contenders.

mod engine;
mod master;
mod replay;
mod store;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Sample;
use super::child::LineChild;
use crate::output::Failure;

pub use engine::{EngineCase, EnginePair};
pub use master::{MasterCalls, MasterCase, MasterOp};
pub use replay::{CppReplay, ReplayCase, replay};
pub use store::{CppCase, CppStore, Home};

/// Runs as `python -c`: our own code around the wheel's modules.
const SCRIPT: &str = concat!(
    include_str!("cpp/common.py"),
    include_str!("cpp/store.py"),
    include_str!("cpp/engine.py"),
    include_str!("cpp/replay.py"),
    include_str!("cpp/main.py"),
);

/// A Python that has the wheel.
#[derive(Clone, Debug)]
pub struct Wheel {
    python: PathBuf,
}

impl Wheel {
    /// Makes sure that this Python can import the wheel's modules.
    ///
    /// # Errors
    ///
    /// It cannot, or there is no such Python.
    pub fn find(python: &Path) -> Result<Self, Failure> {
        let wheel = Self {
            python: python.to_owned(),
        };
        let remedy = "a Python in which `import mooncake.store, mooncake.engine` works: \
                      pip install mooncake-transfer-engine-non-cuda";
        let probed = wheel.start("probe", &json!({}));
        probed.map_err(|failure| {
            failure
                .of("the C++ store cannot be measured")
                .remedy(remedy)
        })?;
        Ok(wheel)
    }

    fn start(&self, part: &str, arguments: &Value) -> Result<(LineChild, Value), Failure> {
        let mut command = Command::new(&self.python);
        command
            .args(["-u", "-c", SCRIPT, part, &arguments.to_string()])
            .stderr(Stdio::null());
        LineChild::start(&format!("the C++ {part}"), &mut command)
    }
}

/// A round, as the script tells it.
#[derive(Debug, Deserialize)]
struct Told {
    operations: u64,
    bytes: u64,
    wall_ns: u64,
    cpu_ns: u64,
    latencies_ns: Vec<u64>,
}

/// Asks `child` for a round. What the processes beside it use in its timed parts counts as well.
fn round(child: &mut LineChild, beside: &[u32], budget: Duration) -> Result<Sample, Failure> {
    rounds([child], beside, budget)
}

/// Asks several children for a round at the same time.
fn rounds<'a>(
    children: impl IntoIterator<Item = &'a mut LineChild>,
    beside: &[u32],
    budget: Duration,
) -> Result<Sample, Failure> {
    let mut told = Vec::new();
    for child in children {
        // Their time is to count once.
        let beside = if told.is_empty() { beside } else { &[] };
        let budget = budget.as_secs_f64();
        child.tell(&json!({ "do": "round", "budget": budget, "beside": beside }))?;
        told.push(child);
    }
    let mut sample = Sample::default();
    for child in told {
        let told: Told = understood(child.answer()?)?;
        sample.operations += told.operations;
        sample.bytes += told.bytes;
        sample.wall = sample.wall.max(Duration::from_nanos(told.wall_ns));
        sample.cpu += Duration::from_nanos(told.cpu_ns);
        for nanos in told.latencies_ns {
            sample.latency.record(Duration::from_nanos(nanos));
        }
    }
    Ok(sample)
}

fn understood<T: DeserializeOwned>(said: Value) -> Result<T, Failure> {
    serde_json::from_value(said)
        .map_err(|error| Failure::new("the C++ side says something else").because(error))
}
