//! Who an object is: its tenant, its key, and which of its lives.

use std::fmt;

/// One life of an object, totally ordered: a later put of the same key has a greater one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    /// Grows when whoever numbers objects starts anew.
    pub epoch: u64,
    /// Grows with each object of an epoch.
    pub seq: u64,
}

impl Incarnation {
    /// The life `seq` of the epoch `epoch`.
    pub const fn new(epoch: u64, seq: u64) -> Self {
        Self { epoch, seq }
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}

/// The most bytes that a tenant and a key may have together.
pub const MAX_NAME_BYTES: usize = u16::MAX as usize;

/// A key of a tenant. Both are any bytes; the tenant may be empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a> {
    /// Whose key it is.
    pub tenant: &'a [u8],
    /// The key among that tenant's.
    pub key: &'a [u8],
}

impl<'a> Name<'a> {
    /// `key` of `tenant`.
    pub fn new(
        tenant: &'a (impl AsRef<[u8]> + ?Sized),
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> Self {
        Self {
            tenant: tenant.as_ref(),
            key: key.as_ref(),
        }
    }

    /// `key` of the tenant without a name.
    pub fn key(key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            tenant: &[],
            key: key.as_ref(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tenant.len() + self.key.len()
    }
}

/// Keys are data of users: only their lengths are told.
impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({} + {} bytes)", self.tenant.len(), self.key.len())
    }
}
