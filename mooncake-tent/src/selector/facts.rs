//! What the selector is told of a request and of the links.

use std::{fmt, str::FromStr, time::Duration};

use super::RateTable;
use crate::{
    qos::{DeviceSet, Hint, Intent, Priority},
    transport::{Capabilities, Op},
};

/// What matters of a request. More may come: start from [`new`](Self::new).
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// Its direction.
    pub op: Op,
    /// In bytes.
    pub length: u64,
    /// What it reads from or writes to.
    pub segment: SegmentKind,
    /// The segment's owner is on this machine.
    pub same_machine: bool,
    /// The target is told of it, or compares checksums.
    pub receipt: bool,
    /// The kind of memory here, as [`memory_kind`] has it.
    pub local: &'a str,
    /// The kind of memory there; does not count for a file.
    pub remote: &'a str,
    /// How urgent it is.
    pub priority: Priority,
    /// What it is for.
    pub intent: Intent,
    /// Whose it is.
    pub tenant: Option<&'a str>,
    /// The policy that the caller wants, whatever that policy asks for.
    pub policy: Option<&'a str>,
    /// The link that the caller would like.
    pub hint: Option<&'a Hint>,
    /// The devices that may carry it; `None`: any.
    pub devices: Option<&'a DeviceSet>,
    /// The pool of connections that it belongs to.
    pub pool: Option<&'a str>,
}

impl RequestFacts<'_> {
    /// A request between ordinary memories of different machines that asks for nothing special.
    pub fn new(op: Op, length: u64) -> Self {
        Self {
            op,
            length,
            segment: SegmentKind::Memory,
            same_machine: false,
            receipt: false,
            local: HOST,
            remote: HOST,
            priority: Priority::default(),
            intent: Intent::default(),
            tenant: None,
            policy: None,
            hint: None,
            devices: None,
            pool: None,
        }
    }

    /// The kinds of memory that a link must join, those of a file segment being `file`.
    pub(super) fn ends(&self) -> (&str, &str) {
        match self.segment {
            SegmentKind::File => (self.local, FILE),
            SegmentKind::Memory => (self.local, self.remote),
        }
    }
}

/// Ordinary memory.
pub(super) const HOST: &str = "cpu";
/// What stands for the other end when that is a file.
const FILE: &str = "file";

/// The kind of memory at a location: `cpu` for `cpu:0`. A location that says nothing (`*`) is
/// ordinary memory.
pub fn memory_kind(location: &str) -> &str {
    let kind = location.split_once(':').map_or(location, |(kind, _)| kind);
    match kind {
        "" | "*" => HOST,
        kind => kind,
    }
}

/// What a segment is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// Ranges of a file.
    File,
    /// Registered memory of a process.
    #[default]
    Memory,
}

impl SegmentKind {
    /// `memory` or `file`.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => FILE,
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for SegmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SegmentKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::File, Self::Memory];
        let named = all.into_iter().find(|kind| kind.name() == text);
        named.ok_or_else(|| format!("{text:?} is no kind of segment: memory or file"))
    }
}

/// What matters of a link. More may come: start from [`new`](Self::new).
#[derive(Clone, Copy, Debug)]
pub struct LinkFacts<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Pairs of kinds that it joins, here and there. `*` in one stands for any number of letters,
    /// and `file` is a file segment.
    pub joins: &'a [(&'a str, &'a str)],
    /// Why the engine does not have it, though it should if possible; `None`: it does.
    pub absent: Option<&'a str>,
    /// It works within one machine only.
    pub same_machine_only: bool,
    /// It can reach the owner of the segment.
    pub reaches: bool,
    /// The buffer at the other end is registered with it.
    pub accepts: bool,
    /// Whether it worked lately.
    pub health: Health<'a>,
    /// What was measured on it.
    pub rates: Option<&'a RateTable>,
    /// Bytes a second, for sizes that were not measured by themselves.
    pub bandwidth: Option<f64>,
    /// What it sends through.
    pub devices: LinkDevices<'a>,
}

impl<'a> LinkFacts<'a> {
    /// A link between ordinary memories that reaches everybody, and of which nothing else is known.
    pub fn new(name: &'a str, capabilities: Capabilities) -> Self {
        Self {
            name,
            capabilities,
            joins: &[(HOST, HOST)],
            absent: None,
            same_machine_only: false,
            reaches: true,
            accepts: true,
            health: Health::Closed,
            rates: None,
            bandwidth: None,
            devices: LinkDevices::default(),
        }
    }

    /// How long it will probably take for `length` bytes.
    pub(super) fn estimate(&self, length: u64) -> Option<Duration> {
        let measured = self.rates.and_then(|rates| rates.estimate(length));
        measured.or_else(|| {
            let bandwidth = self.bandwidth.filter(|bandwidth| *bandwidth > 0.0)?;
            Duration::try_from_secs_f64(length as f64 / bandwidth).ok()
        })
    }
}

/// The state of a link's circuit to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health<'a> {
    /// It works as far as is known.
    #[default]
    Closed,
    /// It failed, and one request may try it.
    HalfOpen {
        /// What failed.
        why: &'a str,
    },
    /// It failed, and nothing may try it.
    Open {
        /// What failed.
        why: &'a str,
        /// For how long.
        left: Duration,
    },
}

/// What a link sends through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkDevices<'a> {
    /// Devices of these names, among which it chooses.
    Named(&'a [&'a str]),
    /// No device that a request could name: plain copies, say.
    NotNeeded,
    /// Whatever the system takes, so that it cannot keep to a set of devices.
    #[default]
    Unchosen,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_tells_its_kind() {
        for (location, kind) in [
            ("cpu:1", "cpu"),
            ("cuda:0:1", "cuda"),
            ("*", "cpu"),
            ("", "cpu"),
            ("nvme", "nvme"),
        ] {
            assert_eq!(memory_kind(location), kind);
        }
    }
}
