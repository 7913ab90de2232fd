//! Names of lives: incarnations, registrations and their generations.

use std::{fmt, num::NonZeroU64};

/// One life of a process: random, never 0. A restarted process is another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(NonZeroU64);

impl Incarnation {
    /// A new life.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// From the wire; `None` for 0.
    pub fn from_u64(raw: u64) -> Option<Self> {
        NonZeroU64::new(raw).map(Self)
    }

    /// For the wire.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({:016x})", self.0)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The process at the other end of a link.
pub type PeerId = Incarnation;

/// Names a registered buffer within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegistrationId(pub u64);

impl fmt::Display for RegistrationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Which life of a registration: grows each time the buffer is registered anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u32);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
