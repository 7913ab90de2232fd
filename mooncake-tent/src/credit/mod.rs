//! Credit: what a receiver lets each of its senders have under way, so that many of them together
//! cannot overrun it.
//!
//! A receiver has a [`Ledger`] with what it takes in all, and an [`Account`] for each session. It
//! grants in cumulative numbers: all that the session may ever have begun, so that a grant that comes
//! twice or late changes nothing. A session is one connection, whose name never comes back; a grant
//! of another life cannot reach it.
//!
//! A sender pays for a request as a whole or not at all before its first byte goes, from a [`Purse`],
//! and learns of new grants by its [`Grants`]. A request that is larger than what a session holds is
//! taken alone, once everything before it is answered, and then costs all that there is: whatever its
//! size, a request is never stuck.
//!
//! Both sides count alike, and nothing here knows of a link, a clock or a thread.

mod ledger;
mod purse;

pub(crate) use ledger::{Account, Ledger};
pub(crate) use purse::{Grants, Purse};

/// Bytes and requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credit {
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
}

impl Credit {
    /// No limit at all.
    pub(crate) const ENDLESS: Self = Self {
        bytes: u64::MAX,
        requests: u64::MAX,
    };

    /// What one request of so many bytes costs.
    pub(crate) fn of_request(bytes: u64) -> Self {
        Self { bytes, requests: 1 }
    }

    pub(crate) fn is_zero(self) -> bool {
        self == Self::default()
    }

    /// There is as much of both.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.bytes >= other.bytes && self.requests >= other.requests
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        self.both(other, u64::saturating_add)
    }

    /// Down to nothing.
    pub(crate) fn minus(self, other: Self) -> Self {
        self.both(other, u64::saturating_sub)
    }

    pub(crate) fn min(self, other: Self) -> Self {
        self.both(other, u64::min)
    }

    pub(crate) fn max(self, other: Self) -> Self {
        self.both(other, u64::max)
    }

    fn both(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            bytes: of(self.bytes, other.bytes),
            requests: of(self.requests, other.requests),
        }
    }
}
