//! What a row is about, and the rows of the standard suite.

use serde::Serialize;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Objects are read into memory of the caller.
    Get,
    /// New objects are written from memory of the caller.
    Put,
}

/// Where objects are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In a node that is another process.
    Remote,
    /// In memory that the calling process lends.
    Local,
}

/// What a client knows of a key before it reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Lookup {
    /// The same client has read it a moment ago.
    Cached,
    /// It has never heard of it.
    Fresh,
}

/// One case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// What is done.
    pub op: Op,
    /// Length of an object.
    pub value_bytes: u64,
    /// Keys of one call.
    pub batch: u64,
    /// Clients that call at the same time.
    pub clients: u64,
    /// Where objects are kept.
    pub placement: Placement,
    /// What the clients know of keys; of no meaning for puts.
    pub lookup: Lookup,
    /// The least ratio to the limit.
    pub bar: Option<f64>,
    /// The least ratio to the C++ store.
    pub bar_cpp: Option<f64>,
    /// The least ratio to Redis, where it is a column.
    pub bar_redis: Option<f64>,
    /// Whether Redis is a column.
    pub redis: bool,
}

impl Case {
    /// A case without bars: one remote client.
    #[must_use]
    pub const fn new(op: Op, value_bytes: u64, batch: u64) -> Self {
        Self {
            op,
            value_bytes,
            batch,
            clients: 1,
            placement: Placement::Remote,
            lookup: Lookup::Fresh,
            bar: None,
            bar_cpp: None,
            bar_redis: None,
            redis: true,
        }
    }

    const fn should_reach(mut self, of_limit: f64) -> Self {
        self.bar = Some(of_limit);
        self
    }

    const fn against_cpp(mut self, times: f64) -> Self {
        self.bar_cpp = Some(times);
        self
    }

    const fn against_redis(mut self) -> Self {
        self.bar_redis = Some(1.0);
        self
    }

    const fn cached(mut self) -> Self {
        self.lookup = Lookup::Cached;
        self
    }

    const fn local(mut self) -> Self {
        self.placement = Placement::Local;
        self.redis = false;
        self
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// How much longer than its limit a single get may take.
const SINGLE: f64 = 1.0 / 1.15;

/// The rows that the store is judged by.
#[must_use]
pub fn standard_suite() -> Vec<Case> {
    use Op::{Get, Put};
    let mut cases = vec![
        Case::new(Get, MIB, 32).should_reach(0.85).against_cpp(3.0),
        Case::new(Put, MIB, 32).should_reach(0.85).against_cpp(3.0),
        Case::new(Get, 16 * KIB, 128).against_cpp(10.0),
        Case::new(Get, MIB, 1).should_reach(SINGLE),
    ];
    for value_bytes in [KIB, 16 * KIB, 128 * KIB, MIB, 4 * MIB] {
        let get = Case::new(Get, value_bytes, 1).cached().against_redis();
        cases.push(match value_bytes {
            MIB => get.should_reach(SINGLE),
            _ => get,
        });
    }
    for value_bytes in [KIB, 16 * KIB, 128 * KIB, MIB, 4 * MIB] {
        cases.push(Case::new(Put, value_bytes, 1).against_redis());
    }
    cases.extend([
        Case::new(Get, KIB, 128),
        Case::new(Put, 16 * KIB, 128),
        Case::new(Get, MIB, 32).local(),
        Case::new(Put, MIB, 32).local(),
        Case::new(Get, 16 * KIB, 1).local(),
        Case::new(Get, MIB, 1).local(),
    ]);
    cases
}
