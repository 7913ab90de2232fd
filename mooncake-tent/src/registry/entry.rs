//! What a registry keeps under a name.

use crate::identity::Incarnation;

/// Where the owner of a segment is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `host:port` of its control service.
    pub control: String,
    /// Which life of it.
    pub incarnation: Incarnation,
}
