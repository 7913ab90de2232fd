//! What can be measured of a master.

use clap::ValueEnum;

use super::{
    caller::Wire,
    figure::Goal,
    plan::{Plan, Work},
};

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Ask for one key a call, pipelined.
    Exist,
    /// Ask for one key a call, each as an RPC of its own, one after the other.
    ExistUnary,
    /// The same, many at the same time.
    ExistUnaryMany,
    /// Ask for many keys a call; all exist.
    ExistBatch,
    /// Ask for many keys a call; none exists.
    ExistMiss,
    /// Put objects of one key a call, pipelined.
    Put,
    /// Put objects of many keys a call.
    PutBatch,
    /// Look many keys up a call, and give the lease back.
    Query,
    /// Hold a million objects, and remove them.
    Memory,
    /// Start a master, connect clients.
    Start,
    /// Do nothing.
    Idle,
    /// Evict from five million objects while others ask. Not part of `--quick`.
    Eviction,
}

/// A case that is a load: its shape, unless the user wants another, and its bars.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) op: &'static str,
    pub(super) wire: Wire,
    pub(super) plan: Plan,
    pub(super) clients: usize,
    /// Keys a second.
    pub(super) keys_per_s: Option<Goal>,
    /// Processor microseconds of the master a key.
    pub(super) master_us: Option<Goal>,
    /// Processor microseconds of both sides a call.
    pub(super) both_us: Option<Goal>,
}

impl Case {
    /// All, in the order in which they are measured.
    pub(super) fn all(quick: bool) -> Vec<Self> {
        let mut all = Self::value_variants().to_vec();
        all.retain(|case| !quick || *case != Self::Eviction);
        all
    }

    /// Its name on the command line.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value().expect("no case is hidden");
        value.get_name().to_owned()
    }

    /// The load that it is, if it is one.
    pub(super) fn shape(self) -> Option<Shape> {
        let found = Work::Exist { found: true };
        let shape = |op, work, batch, depth, clients| Shape {
            op,
            wire: Wire::Session,
            plan: Plan { work, batch, depth },
            clients,
            keys_per_s: None,
            master_us: None,
            both_us: None,
        };
        Some(match self {
            Self::Exist => Shape {
                keys_per_s: Some(Goal::at_least(200_000.0)),
                both_us: Some(Goal::at_most(4.0)),
                ..shape("exist", found, 1, 256, 1)
            },
            Self::ExistUnary => Shape {
                wire: Wire::Unary,
                master_us: Some(Goal::at_most(20.0)),
                ..shape("exist", found, 1, 1, 1)
            },
            Self::ExistUnaryMany => Shape {
                wire: Wire::Unary,
                master_us: Some(Goal::at_most(20.0)),
                ..shape("exist", found, 1, 32, 1)
            },
            Self::ExistBatch => Shape {
                keys_per_s: Some(Goal::at_least(2_000_000.0)),
                master_us: Some(Goal::at_most(0.3)),
                ..shape("exist", found, 1_000, 4, 2)
            },
            Self::ExistMiss => Shape {
                keys_per_s: Some(Goal::at_least(2_000_000.0)),
                master_us: Some(Goal::at_most(0.3)),
                ..shape("exist_miss", Work::Exist { found: false }, 1_000, 4, 2)
            },
            Self::Put => Shape {
                keys_per_s: Some(Goal::at_least(60_000.0)),
                ..shape("put", Work::Put, 1, 256, 1)
            },
            Self::PutBatch => Shape {
                keys_per_s: Some(Goal::at_least(400_000.0)),
                master_us: Some(Goal::at_most(1.5)),
                ..shape("put", Work::Put, 128, 4, 1)
            },
            Self::Query => shape("query", Work::Query, 128, 4, 1),
            Self::Memory | Self::Start | Self::Idle | Self::Eviction => return None,
        })
    }
}
