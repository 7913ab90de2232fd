//! Rough descriptions of results.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A number for `what`.
pub(crate) fn shape(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The words of a message without what it quotes and counts.
pub(crate) fn words(message: &str) -> String {
    let unquoted = message.split(['"', '`', '\'']).step_by(2);
    unquoted
        .flat_map(str::chars)
        .filter(|letter| !letter.is_ascii_digit())
        .collect()
}
