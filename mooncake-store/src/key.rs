//! The name of an object.

use std::fmt;

use bytes::Bytes;
use mooncake_proto::{Fault, Retry, status::ErrorCode};

/// The name of an object: 1 to 4,096 bytes of any value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

impl Key {
    /// The most bytes a key may have.
    pub const MAX_LEN: usize = 4_096;

    /// Takes `bytes` as a key.
    ///
    /// # Errors
    ///
    /// `InvalidKey` when there are no bytes, or more than [`Key::MAX_LEN`].
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, Fault> {
        let bytes = bytes.into();
        Self::check(&bytes)?;
        Ok(Self(bytes))
    }

    /// Whether `bytes` would be a key.
    ///
    /// # Errors
    ///
    /// As [`Key::new`]. The fault of a key that is too long carries the bytes that it may have.
    pub fn check(bytes: &Bytes) -> Result<(), Fault> {
        if (1..=Self::MAX_LEN).contains(&bytes.len()) {
            return Ok(());
        }
        let message = format!(
            "a key has 1 to {} bytes, this one has {}",
            Self::MAX_LEN,
            bytes.len()
        );
        let shown = bytes.slice(..bytes.len().min(Self::MAX_LEN));
        Err(Fault::new(ErrorCode::InvalidKey, Retry::Never, message).with_key(shown))
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0.escape_ascii())
    }
}

impl From<Key> for Bytes {
    fn from(key: Key) -> Self {
        key.0
    }
}

impl TryFrom<&str> for Key {
    type Error = Fault;

    fn try_from(text: &str) -> Result<Self, Fault> {
        Self::new(Bytes::copy_from_slice(text.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_to_4096_bytes() {
        for len in [1, 2, 4_095, 4_096] {
            assert_eq!(Key::new(vec![0; len]).unwrap().as_bytes().len(), len);
        }
        for len in [0, 4_097, 100_000] {
            let fault = Key::new(vec![b'k'; len]).unwrap_err();
            assert_eq!(fault.code, ErrorCode::InvalidKey);
            assert!(fault.message.contains(&len.to_string()), "{fault}");
            assert!(fault.key.len() <= Key::MAX_LEN);
        }
    }
}
