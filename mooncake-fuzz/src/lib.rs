//! Made-up bytes for everything in Mooncake that decodes.
//!
//! A [`Target`] takes any bytes and panics when a promise is broken: what decodes encodes to
//! something that decodes alike, a decoder takes as many bytes as it says, its result does not
//! depend on how the bytes were cut, and it takes no more memory than its input is worth.
//! [`Campaign`] finds bytes that are worth trying.
//!
//! # When a target fails
//!
//! The failing test names a file with the smallest input that it found. Copied to
//! `corpus/TARGET/`, under a name that says what it is, it is tried first from then on.

mod answers;
mod buckets;
mod campaign;
mod configuration;
mod contracts;
mod deltas;
mod descriptors;
mod entries;
mod frames;
mod handles;
mod memory;
mod mutation;
mod operations;
mod policies;
mod requests;
mod shape;
mod topology;
mod trace;
mod units;

pub use campaign::Campaign;

/// Something that decodes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is called; its corpus is in the folder of this name.
    pub name: &'static str,
    /// Decodes the bytes and panics when a promise is broken. Returns a rough description of what
    /// came out: inputs with a new one are worth changing further.
    pub run: fn(&[u8]) -> u64,
    /// Byte strings that mean something to it.
    pub words: &'static [&'static [u8]],
}

/// All targets, by name.
pub const TARGETS: [Target; 15] = [
    answers::TARGET,
    buckets::TARGET,
    configuration::TARGET,
    contracts::TARGET,
    deltas::TARGET,
    descriptors::TARGET,
    entries::TARGET,
    frames::TARGET,
    handles::TARGET,
    operations::TARGET,
    policies::TARGET,
    requests::TARGET,
    topology::TARGET,
    trace::TARGET,
    units::TARGET,
];

impl Target {
    /// The target called `name`.
    ///
    /// # Panics
    ///
    /// There is none.
    pub fn named(name: &str) -> Self {
        let found = TARGETS.into_iter().find(|target| target.name == name);
        found.unwrap_or_else(|| panic!("there is no target {name}"))
    }

    /// Runs it, and checks how much memory that took.
    pub fn check(&self, bytes: &[u8]) -> u64 {
        let (shape, peak) = memory::peak(|| (self.run)(bytes));
        // Some small messages become large structs, each of which is there a few times.
        let most = (1 << 20) + bytes.len() * (4 << 10);
        assert!(
            peak <= most,
            "{peak} bytes of memory for {} of input",
            bytes.len()
        );
        shape
    }
}
