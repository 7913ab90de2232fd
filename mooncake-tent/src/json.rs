//! What all our JSON forms share.

use serde::{Deserialize, Deserializer};

/// A field that may be absent, but that says something when it is there: `null` is an error, since it
/// would take away what the field restricts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given<T>(pub(crate) Option<T>);

impl<T> Default for Given<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::deserialize(from).map(|value| Self(Some(value)))
    }
}
