//! The links in the order in which they should be tried, with the reasons.

use std::{fmt, time::Duration};

use super::{DeviceMask, SegmentKind, SizeClass};
use crate::transport::Op;

/// What came of ranking links for a request.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Ranking {
    /// The policy that holds, if one does: its place among all, and what people call it.
    pub policy: Option<(usize, String)>,
    /// Best first.
    pub ranked: Vec<Ranked>,
    /// The others, with the reason.
    pub excluded: Vec<Excluded>,
    /// The pool of connections, for links that have pools.
    pub pool: Option<String>,
    /// The service level, for links that have one.
    pub service_level: Option<u8>,
    /// The traffic class, for links that have one.
    pub traffic_class: Option<u8>,
}

/// A link that can carry the request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Ranked {
    /// Its place among the links that were given.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Which of its devices may be used; `None`: all of them.
    pub devices: Option<DeviceMask>,
    /// How long the request will probably take, if that is known.
    pub estimate: Option<Duration>,
    /// Why it stands where it stands.
    pub merits: Vec<Merit>,
}

/// A link that cannot carry the request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Excluded {
    /// Its place among the links that were given; `None`: it was not.
    pub index: Option<usize>,
    /// Its name.
    pub name: String,
    /// Why not.
    pub why: Exclusion,
}

/// What speaks for a link, or at least says something about its place.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Merit {
    /// So long the request will probably take.
    Estimated(Duration),
    /// It failed, and one request may try it.
    HalfOpen(String),
    /// The caller would like it.
    Hinted,
    /// The policy lists it at this place, the first being 1.
    Listed(usize),
    /// It works within this machine only.
    SameMachine,
    /// How fast it is for this length is not known.
    Unmeasured,
    /// Both ends are in this process.
    WithinProcess,
}

impl fmt::Display for Merit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Estimated(time) => write!(f, "takes about {time:.1?}"),
            Self::HalfOpen(why) => write!(f, "failed, one request may try it: {why}"),
            Self::Hinted => f.write_str("hinted"),
            Self::Listed(place) => write!(f, "number {place} of the policy"),
            Self::SameMachine => f.write_str("within this machine"),
            Self::Unmeasured => f.write_str("its speed is unknown"),
            Self::WithinProcess => f.write_str("both ends are in this process"),
        }
    }
}

/// Why a link is out of the question.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's line names its fields")]
pub enum Exclusion {
    /// It could not be installed.
    Absent { why: String },
    /// It has other links carry the bytes, and one of these can go there directly.
    Detour { direct: String },
    /// It cannot keep to the devices that may be used.
    DevicesUnchosen,
    /// It does not do this operation.
    Incapable,
    /// It has none of the devices that may be used.
    NoDevice { permitted: String },
    /// It can neither tell the target of a write nor compare checksums.
    NoReceipts,
    /// The request names a policy that there is not.
    NoSuchPolicy { policy: String },
    /// The buffer at the other end is not registered with it.
    NotAccepted,
    /// The caller wants another one and no other.
    NotHinted { wanted: String },
    /// It is named by a policy or a hint, but the engine does not have it.
    NotInstalled,
    /// The policy does not list it.
    NotListed { policy: String },
    /// It failed lately.
    Open { why: String, left: Duration },
    /// It works within one machine, and the peer is on another one.
    OtherMachine,
    /// It does not reach the peer.
    Unreachable,
    /// It does not join these kinds of memory.
    WrongMemory { local: String, remote: String },
    /// It has no way to this kind of segment.
    WrongSegment { segment: SegmentKind, local: String },
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { why } => write!(f, "could not be installed: {why}"),
            Self::Detour { direct } => write!(f, "{direct} goes there directly"),
            Self::DevicesUnchosen => f.write_str("cannot keep to a set of devices"),
            Self::Incapable => f.write_str("cannot do this operation"),
            Self::NoDevice { permitted } => write!(f, "has none of the devices {permitted}"),
            Self::NoReceipts => f.write_str("cannot tell the target of a write"),
            Self::NoSuchPolicy { policy } => write!(f, "there is no policy {policy:?}"),
            Self::NotAccepted => f.write_str("the peer's buffer is not registered with it"),
            Self::NotHinted { wanted } => write!(f, "only {wanted} is wanted"),
            Self::NotInstalled => f.write_str("is not installed"),
            Self::NotListed { policy } => write!(f, "{policy} does not list it"),
            Self::Open { why, left } if left.is_zero() => write!(f, "failed: {why}"),
            Self::Open { why, left } => write!(f, "failed, not tried for {left:.1?} more: {why}"),
            Self::OtherMachine => f.write_str("the peer is on another machine"),
            Self::Unreachable => f.write_str("does not reach the peer"),
            Self::WrongMemory { local, remote } => {
                write!(f, "does not join {local} here and {remote} there")
            }
            Self::WrongSegment { segment, local } => {
                write!(f, "does not join {local} here and a {segment} segment")
            }
        }
    }
}

impl Ranked {
    /// Why it stands where it stands, in words.
    pub fn why(&self) -> String {
        let merits: Vec<_> = self.merits.iter().map(Merit::to_string).collect();
        merits.join(", ")
    }
}

/// On one line: `shm (within this machine, takes about 87.0µs), not rdma: is not installed`.
impl fmt::Display for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranked = self
            .ranked
            .iter()
            .map(|link| format!("{} ({})", link.name, link.why()));
        let excluded = self
            .excluded
            .iter()
            .map(|link| format!("not {}: {}", link.name, link.why));
        let all: Vec<_> = ranked.chain(excluded).collect();
        if all.is_empty() {
            return f.write_str("no link is installed");
        }
        if let Some((_, policy)) = &self.policy {
            write!(f, "by {policy}: ")?;
        }
        f.write_str(&all.join(", "))
    }
}

/// What a ranking depends on besides the route and the links: requests with equal keys that ask for
/// nothing by name share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankKey {
    pub(super) op: Op,
    /// Which policy is for them.
    pub(super) policy: Option<u32>,
    pub(super) size: SizeClass,
    pub(super) receipt: bool,
}
